-- stuck_at: when a run in flight was found to be stuck. It is reported once.
ALTER TABLE schedule_runs ADD COLUMN stuck_at INTEGER;
