-- A run starts as its own revision specifies. Runs that waited under an earlier version of the program
-- were to start as the current revision specifies, and still do.
UPDATE schedule_runs
   SET revision = coalesce((
       SELECT s.revision FROM schedules s WHERE s.schedule_id = schedule_runs.schedule_id), revision)
 WHERE finished_at IS NULL AND status = 'ENQUEUED'
   AND NOT (needs IN ('flow', 'ray') AND (coalesce(reason, '') = 'lost' OR end_asked_at IS NOT NULL));
