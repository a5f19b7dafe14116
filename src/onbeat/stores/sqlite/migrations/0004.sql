-- Groups with a number of places, and which schedule follows which; `@startup` is a start.
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

-- rated: when runs were decided that a rate counts. happened: what caused ticks follow.
ALTER TABLE schedule_state ADD COLUMN rated TEXT;
ALTER TABLE schedule_state ADD COLUMN happened TEXT;

-- deadline_at: by when it is to start; of one that was accepted, by when it is to be heard of.
-- end_asked_at: somebody wants it to end, for the reason that it has. rendered: its target's fields.
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

-- What schedules said before they were changed or deleted, and until when; nothing while deleted.
CREATE TABLE past_definitions (
    schedule_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    until_at INTEGER NOT NULL,
    definition TEXT NOT NULL,
    PRIMARY KEY (schedule_id, revision, until_at)
) STRICT, WITHOUT ROWID;
