"""End runs whose deadline has passed: to start, or to be reported by their target."""

from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.runs.phase import UNSTARTED
from onbeat.core.runs.run import Canceled, Failed, Reason, ReasonDetail, Run
from onbeat.stores.sql.finish import TARGET_NOT_NOTIFIED, end, release_next
from onbeat.stores.sql.followers import hold_with_followers
from onbeat.stores.sql.rows import (
    end_waiting,
    full_groups,
    gate_is_open,
    lift_limit,
    read_detail,
    stored_runs,
)
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction

OVERDUE = f"""
SELECT {RUN_COLUMNS}
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
    overdue = stored_runs(tx, OVERDUE, (tx.now, ids))
    waiting = [stored for stored in overdue if stored.phase in UNSTARTED]
    for stored in waiting:  # end all before any is released
        run, schedule_id = stored.run, stored.schedule_id
        group, start_by = _group_and_limit(tx, run)
        if run.was_tried or start_by != run.deadline_at:
            end_waiting(tx, schedule_id, run, _why_it_waited(tx, run, group))
        elif lift_limit(tx, schedule_id, run) is None:
            end_waiting(tx, schedule_id, run, "edited", detail=ReasonDetail(start_by=start_by))
    for stored in overdue:
        if stored.run.is_accepted:
            end_unreported(tx, stored)
    for schedule_id in sorted({stored.schedule_id for stored in waiting}):
        release_next(tx, schedule_id)
    return len(overdue)


def end_unreported(tx: Transaction, stored: StoredRun) -> None:
    """End an accepted run whose target has not reported in time."""
    if stored.run.ending is not None:
        end(tx, stored, Canceled(TARGET_NOT_NOTIFIED))
        return
    end(tx, stored, Failed(UNREPORTED, "timeout", retryable=False))


def _group_and_limit(tx: Transaction, run: Run) -> tuple[str | None, int | None]:
    """Return the group of a run, and by when an edit limited its start, if one did."""
    row = tx.one("SELECT grp, detail FROM schedule_runs WHERE run_id = ?1", (run.run_id,))
    group, detail = (None, None) if row is None else row
    return group, read_detail(detail).start_by


def _why_it_waited(tx: Transaction, run: Run, group: str | None) -> Reason:
    """Return what kept a run from starting in time."""
    if run.was_busy:
        return "busy"
    if group is not None and run.blocked_by is None and group in full_groups(tx):
        return "group_full"
    return "deadline"
