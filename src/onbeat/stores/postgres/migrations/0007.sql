-- For selective queries: schedules of a source, paused schedules, runs with rare outcomes. Each index
-- has few rows, or is written only with its schedule.
CREATE INDEX schedules_of_source ON schedules (source, schedule_id);
CREATE INDEX paused_schedules ON schedules (schedule_id) WHERE paused = 1 AND deleted_at IS NULL;
CREATE INDEX skipped_runs ON schedule_runs (run_id) WHERE status = 'SKIPPED';
CREATE INDEX canceled_runs ON schedule_runs (run_id) WHERE status = 'CANCELED';
CREATE INDEX runs_of_reason ON schedule_runs (reason, run_id) WHERE reason IS NOT NULL;
CREATE INDEX runs_not_by_timer ON schedule_runs (triggered_by, run_id) WHERE triggered_by <> 'timer';
