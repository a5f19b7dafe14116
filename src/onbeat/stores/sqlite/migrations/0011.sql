-- For `why`: the data of a decision beyond its reason, and the attempts that were retried.
ALTER TABLE schedule_runs ADD COLUMN detail TEXT;
ALTER TABLE schedule_runs ADD COLUMN tried TEXT;
ALTER TABLE schedules ADD COLUMN paused_at INTEGER;
ALTER TABLE schedules ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';

-- When nodes were up. A row is inserted when a node registers, and closed when it leaves or falls silent.
CREATE TABLE node_times (
    node_id TEXT NOT NULL,
    name TEXT NOT NULL,
    plans INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    is_lost INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (node_id, started_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX node_times_ended ON node_times (ended_at);
