-- A run has one named phase, in the column that had its status. `reattachable`: its target continues
-- without its node, and can be reattached. The phases of rows from earlier versions follow from what
-- they had: status, lease, cancellation, queue, and the outcome of the last attempt.
DROP INDEX waiting_runs;
ALTER TABLE schedule_runs RENAME COLUMN status TO phase;
ALTER TABLE schedule_runs ADD COLUMN reattachable INTEGER NOT NULL DEFAULT 0;

UPDATE schedule_runs SET reattachable = 1
 WHERE finished_at IS NULL AND needs IN ('ray', 'flow', 'session', 'session:url');

UPDATE schedule_runs
   SET phase = CASE phase
       WHEN 'STARTED' THEN CASE
           WHEN leased_by IS NULL AND end_asked_at IS NOT NULL THEN 'REVOKED'
           WHEN leased_by IS NULL THEN 'ACCEPTED'
           WHEN end_asked_at IS NOT NULL THEN 'CANCELING'
           WHEN reattachable = 1 AND reason = 'lost' THEN 'REATTACHED'
           ELSE 'RUNNING' END
       WHEN 'ENQUEUED' THEN CASE
           WHEN reattachable = 1 AND end_asked_at IS NOT NULL
           THEN CASE WHEN leased_by IS NULL THEN 'RECALLED' ELSE 'RECALLING' END
           WHEN reattachable = 1 AND reason = 'lost'
           THEN CASE WHEN leased_by IS NULL THEN 'DETACHED' ELSE 'REATTACHING' END
           WHEN leased_by IS NOT NULL THEN 'CLAIMED'
           WHEN blocked_by IS NOT NULL THEN 'QUEUED'
           WHEN reason = 'busy' THEN 'DEFERRED'
           WHEN attempt > deferrals THEN 'RETRYING'
           WHEN triggered_by = 'backfill' THEN 'BACKFILL'
           WHEN due_at > created_at THEN 'SCHEDULED'
           ELSE 'WAITING' END
       ELSE phase END
 WHERE finished_at IS NULL;

-- A detached run has started: no deadline for its start applies.
UPDATE schedule_runs SET deadline_at = NULL
 WHERE finished_at IS NULL AND phase IN ('DETACHED', 'REATTACHING', 'RECALLED', 'RECALLING');

-- The first two conditions hold for every run of these phases. They are cheap, and spare running and
-- ended runs the comparison with seven names.
CREATE INDEX waiting_runs ON schedule_runs (priority DESC, due_at, run_at, schedule_id)
    WHERE finished_at IS NULL AND leased_by IS NULL
      AND phase IN ('BACKFILL', 'DEFERRED', 'DETACHED', 'RECALLED', 'RETRYING', 'SCHEDULED', 'WAITING');
