-- Times are milliseconds, except run_at and other planned instants, which are seconds.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta (name, value) VALUES ('store_id', lower(hex(randomblob(16))));

CREATE TABLE nodes (
    node_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    offers TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    alive_until INTEGER NOT NULL,
    version TEXT NOT NULL,
    tz TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE schedules (
    schedule_id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT NOT NULL,
    definition TEXT NOT NULL,
    revision INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    pause_note TEXT NOT NULL DEFAULT '',
    paused_until INTEGER,
    deleted_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per live schedule: its next undecided tick, in time order.
CREATE TABLE due (
    due_at INTEGER NOT NULL,
    schedule_id TEXT NOT NULL,
    run_at INTEGER NOT NULL,
    PRIMARY KEY (due_at, schedule_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX due_of_schedule ON due (schedule_id);

-- decided_until: every tick up to here is decided, or was never planned by this definition.
-- decided_run_at: the latest tick with a row; an edit never plans a tick before it.
CREATE TABLE schedule_state (
    schedule_id TEXT PRIMARY KEY REFERENCES schedules,
    decided_until INTEGER NOT NULL,
    decided_run_at INTEGER NOT NULL DEFAULT 0,
    iteration INTEGER NOT NULL DEFAULT 0,
    runs_used INTEGER NOT NULL DEFAULT 0,
    last_run_at INTEGER,
    last_success_at INTEGER,
    last_failure_at INTEGER,
    last_exit INTEGER,
    last_missed_at INTEGER,
    last_miss_reason TEXT,
    consecutive_failures INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE schedule_runs (
    run_id INTEGER PRIMARY KEY,
    schedule_id TEXT NOT NULL REFERENCES schedules,
    run_at INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    due_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    triggered_by TEXT NOT NULL,
    needs TEXT NOT NULL,
    priority INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    iteration INTEGER NOT NULL DEFAULT 0,
    revision INTEGER NOT NULL,
    tick_count INTEGER NOT NULL DEFAULT 1,
    first_run_at INTEGER,
    blocked_by INTEGER,
    leased_by TEXT,
    fence INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER,
    finished_at INTEGER,
    exit_code INTEGER,
    error TEXT,
    result TEXT,
    inputs TEXT,
    log_tail TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;

-- One row per tick. The columns are in this order so that new rows append.
CREATE UNIQUE INDEX run_of_tick ON schedule_runs (run_at, schedule_id, request_id);
CREATE UNIQUE INDEX run_of_request ON schedule_runs (schedule_id, request_id) WHERE request_id <> '';
CREATE INDEX runs_of_schedule ON schedule_runs (schedule_id, run_id);
CREATE INDEX unfinished_runs ON schedule_runs (schedule_id) WHERE finished_at IS NULL;
CREATE INDEX waiting_runs ON schedule_runs (priority DESC, due_at, run_at, schedule_id)
    WHERE status = 'ENQUEUED' AND leased_by IS NULL AND blocked_by IS NULL;
CREATE INDEX blocked_runs ON schedule_runs (schedule_id) WHERE blocked_by IS NOT NULL AND finished_at IS NULL;

-- Events, one row per transaction: body is a list.
CREATE TABLE events (
    event_id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
