"""End runs whose deadline has passed: to start, or to be reported by their target."""

from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.runs.run import Canceled, Failed, Reason, ReasonDetail, Run, Status
from onbeat.stores.sql.finish import TARGET_NOT_NOTIFIED, end, release_next
from onbeat.stores.sql.followers import hold_with_followers
from onbeat.stores.sql.rows import (
    RUN_OF_SCHEDULE,
    as_run,
    end_waiting,
    full_groups,
    gate_is_open,
    lift_limit,
    read_detail,
)
from onbeat.stores.sql.transaction import Row, Transaction

OVERDUE = f"""
SELECT {RUN_OF_SCHEDULE}, fence, grp, reason, detail
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IS NULL AND deadline_at <= ?1 AND schedule_id IN (?2[])
 ORDER BY run_id
"""

OVERDUE_SCHEDULES = """
SELECT DISTINCT schedule_id FROM (
    SELECT schedule_id FROM schedule_runs
     WHERE deadline_at IS NOT NULL AND leased_by IS NULL AND finished_at IS NULL
       AND deadline_at <= ?1
     ORDER BY deadline_at LIMIT ?2) AS overdue
"""


def expire(tx: Transaction, *, limit: int) -> int:
    """End runs that have waited too long. The contract is `Store.expire`."""
    tx.keep_gate()
    if not gate_is_open(tx):
        return 0
    ids = [schedule_id for (schedule_id,) in tx.all(OVERDUE_SCHEDULES, (tx.now, limit))]
    if not ids:
        return 0
    hold_with_followers(tx, ids)
    overdue = tx.all(OVERDUE, (tx.now, ids))
    waiting = [row for row in overdue if row[3] == Status.ENQUEUED]
    for *row, group, reason, detail in waiting:  # end all before any is released
        run = as_run(tuple(row[:-1]))
        if run.was_tried or read_detail(detail).start_by != run.deadline_at:
            end_waiting(tx, row[0], run, _why_it_waited(tx, run, group, reason))
        elif not lift_limit(tx, row[0], run):
            end_waiting(tx, row[0], run, "edited", detail=ReasonDetail(start_by=run.deadline_at))
    for *row, _, _, _ in overdue:
        if row[3] == Status.STARTED:
            end_unreported(tx, tuple(row))
    for schedule_id in sorted({row[0] for row in waiting}):
        release_next(tx, schedule_id)
    return len(overdue)


def end_unreported(tx: Transaction, row: Row) -> None:
    """End an accepted run whose target has not reported in time."""
    if as_run(tuple(row[:-1])).ending is not None:
        end(tx, row, Canceled(TARGET_NOT_NOTIFIED))
        return
    end(tx, row, Failed(UNREPORTED, "timeout", retryable=False))


def _why_it_waited(tx: Transaction, run: Run, group: str | None, reason: str | None) -> Reason:
    """Return what kept a run from starting in time."""
    if reason == "busy":
        return "busy"
    if group is not None and run.blocked_by is None and group in full_groups(tx):
        return "group_full"
    return "deadline"
