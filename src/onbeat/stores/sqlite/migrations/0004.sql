-- Groups and their places; which schedule follows which: `@startup` is a start of the scheduler.
CREATE TABLE groups (
    name TEXT PRIMARY KEY,
    places INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE follows (
    followed TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    PRIMARY KEY (followed, schedule_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX followed_by ON follows (schedule_id);

-- rated: when runs were decided that count for a rate. happened: the events that undecided ticks follow.
ALTER TABLE schedule_state ADD COLUMN rated TEXT;
ALTER TABLE schedule_state ADD COLUMN happened TEXT;

-- deadline_at: when a waiting run must have started, or an accepted one must be reported.
-- end_asked_at: when cancellation was requested, for the reason of the row. rendered: the target's fields.
ALTER TABLE schedule_runs ADD COLUMN grp TEXT;
ALTER TABLE schedule_runs ADD COLUMN deadline_at INTEGER;
ALTER TABLE schedule_runs ADD COLUMN end_asked_at INTEGER;
ALTER TABLE schedule_runs ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE schedule_runs ADD COLUMN external_id TEXT;
ALTER TABLE schedule_runs ADD COLUMN idempotency_key TEXT;
ALTER TABLE schedule_runs ADD COLUMN rendered TEXT;

CREATE INDEX runs_in_group ON schedule_runs (grp) WHERE grp IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_with_deadline ON schedule_runs (deadline_at)
    WHERE deadline_at IS NOT NULL AND leased_by IS NULL AND finished_at IS NULL;
CREATE INDEX runs_to_end ON schedule_runs (leased_by)
    WHERE end_asked_at IS NOT NULL AND finished_at IS NULL;
CREATE INDEX run_of_key ON schedule_runs (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Former definitions of schedules, and until when they were valid; NULL while deleted.
CREATE TABLE past_definitions (
    schedule_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    until_at INTEGER NOT NULL,
    definition TEXT NOT NULL,
    PRIMARY KEY (schedule_id, revision, until_at)
) STRICT, WITHOUT ROWID;
