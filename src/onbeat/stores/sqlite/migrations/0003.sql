-- The roles of a node, and whether a stop was requested.
ALTER TABLE nodes ADD COLUMN roles TEXT NOT NULL DEFAULT '["plan","run"]';
ALTER TABLE nodes ADD COLUMN stop_asked INTEGER NOT NULL DEFAULT 0;
CREATE INDEX deleted_schedules ON schedules (deleted_at) WHERE deleted_at IS NOT NULL;
