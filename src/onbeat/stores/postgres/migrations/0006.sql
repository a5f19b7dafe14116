-- A run starts by its own revision, not by the current one. Runs that waited under an older version
-- were to start by the current one, and have its needs, priority and group: they keep to that.
UPDATE schedule_runs
   SET revision = coalesce((
       SELECT s.revision FROM schedules s WHERE s.schedule_id = schedule_runs.schedule_id), revision)
 WHERE finished_at IS NULL AND status = 'ENQUEUED'
   AND NOT (needs IN ('flow', 'ray') AND (coalesce(reason, '') = 'lost' OR end_asked_at IS NOT NULL));
