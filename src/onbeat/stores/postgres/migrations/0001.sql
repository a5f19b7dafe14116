-- Times are milliseconds, except run_at and other planned instants, which are seconds.
-- There are no foreign keys: every writer holds the schedule's state row, and checking each of a
-- thousand runs costs more than writing them.

CREATE TABLE meta (
    name text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO meta (name, value) VALUES ('store_id', replace(gen_random_uuid()::text, '-', ''));

CREATE SEQUENCE run_ids;

CREATE TABLE nodes (
    node_id text PRIMARY KEY,
    name text NOT NULL,
    roles text NOT NULL,
    offers text NOT NULL,
    started_at bigint NOT NULL,
    alive_until bigint NOT NULL,
    version text NOT NULL,
    tz text NOT NULL,
    stop_asked bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE schedules (
    schedule_id text COLLATE "C" PRIMARY KEY,
    source text NOT NULL,
    user_id text NOT NULL,
    definition text NOT NULL,
    revision bigint NOT NULL,
    paused bigint NOT NULL DEFAULT 0,
    pause_note text NOT NULL DEFAULT '',
    paused_until bigint,
    deleted_at bigint,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);

CREATE INDEX deleted_schedules ON schedules (deleted_at) WHERE deleted_at IS NOT NULL;

-- One row per live schedule: its next undecided tick. Rows at the head of the queue die as fast as
-- ticks are decided, so vacuum has to keep up.
CREATE TABLE due (
    schedule_id text COLLATE "C" PRIMARY KEY,
    due_at bigint NOT NULL,
    run_at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
        autovacuum_analyze_threshold = 100000);
CREATE INDEX due_in_order ON due (due_at, schedule_id);

-- decided_until: every tick up to here is decided, or was never planned by this definition.
-- decided_run_at: the latest tick with a row; an edit never plans a tick before it.
-- spread_until: the end of the window over which missed ticks are spread, so that their pace is kept.
CREATE TABLE schedule_state (
    schedule_id text COLLATE "C" PRIMARY KEY,
    decided_until bigint NOT NULL,
    decided_run_at bigint NOT NULL DEFAULT 0,
    iteration bigint NOT NULL DEFAULT 0,
    runs_used bigint NOT NULL DEFAULT 0,
    last_run_at bigint,
    last_success_at bigint,
    last_failure_at bigint,
    last_exit bigint,
    last_missed_at bigint,
    last_miss_reason text,
    consecutive_failures bigint NOT NULL DEFAULT 0,
    spread_until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0);

CREATE TABLE schedule_runs (
    run_id bigint PRIMARY KEY,
    schedule_id text COLLATE "C" NOT NULL,
    run_at bigint NOT NULL,
    request_id text NOT NULL,
    due_at bigint NOT NULL,
    status text NOT NULL,
    reason text,
    triggered_by text NOT NULL,
    needs text NOT NULL,
    priority bigint NOT NULL DEFAULT 0,
    attempt bigint NOT NULL DEFAULT 0,
    iteration bigint NOT NULL DEFAULT 0,
    revision bigint NOT NULL,
    tick_count bigint NOT NULL DEFAULT 1,
    first_run_at bigint,
    blocked_by bigint,
    leased_by text,
    fence bigint NOT NULL DEFAULT 0,
    started_at bigint,
    finished_at bigint,
    exit_code bigint,
    error text,
    result text,
    inputs text,
    log_tail text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000,
        autovacuum_vacuum_cost_delay = 0);

-- One row per tick. The columns are in this order so that new rows append.
CREATE UNIQUE INDEX run_of_tick ON schedule_runs (run_at, schedule_id, request_id);
CREATE UNIQUE INDEX run_of_request ON schedule_runs (schedule_id, request_id) WHERE request_id <> '';
CREATE INDEX runs_of_schedule ON schedule_runs (schedule_id, run_id);
CREATE INDEX unfinished_runs ON schedule_runs (schedule_id) WHERE finished_at IS NULL;
CREATE INDEX waiting_runs ON schedule_runs (priority DESC, due_at, run_at, schedule_id)
    WHERE status = 'ENQUEUED' AND leased_by IS NULL AND blocked_by IS NULL;
CREATE INDEX blocked_runs ON schedule_runs (schedule_id) WHERE blocked_by IS NOT NULL AND finished_at IS NULL;

-- Events, one row per transaction: body is a list. Their order is that of commits for one schedule,
-- and approximately that of commits across schedules.
CREATE TABLE events (
    event_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    body text NOT NULL
);
