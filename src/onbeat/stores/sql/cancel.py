"""Cancel runs, and carry out decisions about runs that exist."""

from onbeat.core.runs.decisions import Decision, Release, RequestCancel, Supersede
from onbeat.core.runs.run import Canceled, Reason, Run, Status
from onbeat.errors import RunIsOver
from onbeat.events import RunCancelRequested
from onbeat.stores.sql.finish import TARGET_NOT_NOTIFIED, end, hold_run, release_next
from onbeat.stores.sql.rows import (
    DETACHED,
    as_run,
    cancel_waiting,
    end_waiting,
    release,
    storable_text,
)
from onbeat.stores.sql.transaction import Transaction

REQUEST_CANCEL = """
UPDATE schedule_runs
   SET end_asked_at = ?2, reason = ?3, updated_at = ?2,
       deadline_at = CASE WHEN leased_by IS NULL THEN ?2 ELSE deadline_at END
 WHERE run_id = ?1 AND status = 'STARTED' AND end_asked_at IS NULL
"""

# A detached run is reattached only to cancel it: a node that has claimed it claims it again.
REQUEST_CANCEL_DETACHED = f"""
UPDATE schedule_runs
   SET end_asked_at = ?2, reason = ?3, updated_at = ?2, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND status = 'ENQUEUED' AND end_asked_at IS NULL AND {DETACHED}
"""


def cancel(tx: Transaction, run_id: int, *, note: str) -> None:
    """Cancel a run. The contract is `Store.cancel`."""
    row = hold_run(tx, run_id)
    run, schedule_id, error = as_run(tuple(row[:-1])), row[0], note or "canceled manually"
    if run.detached:
        _request_cancel(tx, schedule_id, run, "canceled", note)
    elif run.status is Status.ENQUEUED:
        cancel_waiting(tx, schedule_id, run, error)
        release_next(tx, schedule_id)
    elif run.is_accepted:
        end(tx, row, Canceled(f"{error}; {TARGET_NOT_NOTIFIED}"))
    elif run.status is Status.STARTED:
        _request_cancel(tx, schedule_id, run, "canceled", note)
    else:
        raise RunIsOver(run_id, run.status)


def carry_out_on_run(tx: Transaction, schedule_id: str, decision: Decision) -> None:
    """Carry out a decision about an existing run."""
    match decision:
        case Supersede():
            end_waiting(tx, schedule_id, decision.run, decision.reason, newer=decision.newer)
        case Release():
            release(tx, schedule_id, decision.run)
        case RequestCancel():
            _request_cancel(tx, schedule_id, decision.run, "superseded")
        case _:
            raise AssertionError(f"{decision} is about a tick")


def _request_cancel(
    tx: Transaction, schedule_id: str, run: Run, reason: Reason, note: str = ""
) -> None:
    sql = REQUEST_CANCEL_DETACHED if run.detached else REQUEST_CANCEL
    if tx.run(sql, (run.run_id, tx.now, reason)):
        tx.emit(
            RunCancelRequested(schedule_id, run.run_id, run.run_at, reason, storable_text(note))
        )
