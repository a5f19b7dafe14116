-- For `why`: the data of a decision beyond its reason, and the attempts that were retried.
ALTER TABLE schedule_runs ADD COLUMN detail text;
ALTER TABLE schedule_runs ADD COLUMN tried text;
ALTER TABLE schedules ADD COLUMN paused_at bigint;
ALTER TABLE schedules ADD COLUMN paused_by text NOT NULL DEFAULT '';

-- When nodes were up. A row is inserted when a node registers, and closed when it leaves or falls silent.
CREATE TABLE node_times (
    node_id text NOT NULL,
    name text NOT NULL,
    plans bigint NOT NULL,
    started_at bigint NOT NULL,
    ended_at bigint,
    is_lost bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (node_id, started_at)
);
CREATE INDEX node_times_ended ON node_times (ended_at);
