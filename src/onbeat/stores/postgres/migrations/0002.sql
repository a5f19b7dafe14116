-- Groups and their places; which schedule follows which: `@startup` is a start of the scheduler.
CREATE TABLE groups (
    name text COLLATE "C" PRIMARY KEY,
    places bigint NOT NULL
);

CREATE TABLE follows (
    followed text COLLATE "C" NOT NULL,
    schedule_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (followed, schedule_id)
);
CREATE INDEX followed_by ON follows (schedule_id);

-- rated: when runs were decided that count for a rate. happened: the events that undecided ticks follow.
ALTER TABLE schedule_state ADD COLUMN rated text;
ALTER TABLE schedule_state ADD COLUMN happened text;

-- deadline_at: when a waiting run must have started, or an accepted one must be reported.
-- end_asked_at: when cancellation was requested, for the reason of the row. rendered: the target's fields.
ALTER TABLE schedule_runs ADD COLUMN grp text;
ALTER TABLE schedule_runs ADD COLUMN deadline_at bigint;
ALTER TABLE schedule_runs ADD COLUMN end_asked_at bigint;
ALTER TABLE schedule_runs ADD COLUMN deferrals bigint NOT NULL DEFAULT 0;
ALTER TABLE schedule_runs ADD COLUMN external_id text;
ALTER TABLE schedule_runs ADD COLUMN idempotency_key text;
ALTER TABLE schedule_runs ADD COLUMN rendered text;

CREATE INDEX runs_in_group ON schedule_runs (grp) WHERE grp IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_with_deadline ON schedule_runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND leased_by IS NULL AND finished_at IS NULL;
CREATE INDEX runs_to_end ON schedule_runs (leased_by)
    WHERE end_asked_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX run_of_key ON schedule_runs (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Former definitions of schedules, and until when they were valid; NULL while deleted.
CREATE TABLE past_definitions (
    schedule_id text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,
    until_at bigint NOT NULL,
    definition text NOT NULL,
    PRIMARY KEY (schedule_id, revision, until_at)
);
