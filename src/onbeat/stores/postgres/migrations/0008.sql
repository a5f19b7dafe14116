-- stuck_at: when a run in flight was found to take too long. It is reported once.
ALTER TABLE schedule_runs ADD COLUMN stuck_at bigint;
