"""Cancel runs, and carry out decisions about runs that exist."""

from onbeat.core.runs.apply import apply
from onbeat.core.runs.decisions import Decision, Release, RequestCancel, Supersede
from onbeat.core.runs.phase import UNANNOUNCED
from onbeat.core.runs.run import Canceled
from onbeat.errors import RunIsOver
from onbeat.events import RunCancelRequested
from onbeat.ports.rows import RunRow
from onbeat.stores.sql.finish import TARGET_NOT_NOTIFIED, end, hold_run, release_next
from onbeat.stores.sql.queries import written_run
from onbeat.stores.sql.rows import cancel_waiting, end_waiting, release, storable_text, write
from onbeat.stores.sql.transaction import Transaction

REQUEST_CANCEL = """
UPDATE schedule_runs
   SET phase = ?3, end_asked_at = ?4, reason = ?5, deadline_at = ?6, updated_at = ?4
 WHERE run_id = ?1 AND phase = ?2
"""

# A detached run is reattached only to cancel it: a node that has claimed it claims it again.
RECALL = """
UPDATE schedule_runs
   SET phase = ?3, end_asked_at = ?4, reason = ?5, deadline_at = ?6, updated_at = ?4,
       leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND phase = ?2
"""


def cancel(tx: Transaction, run_id: int, *, note: str = "") -> RunRow:
    """Cancel a run. The contract is `Store.cancel`."""
    stored = hold_run(tx, run_id)
    run, schedule_id, error = stored.run, stored.schedule_id, note or "canceled manually"
    if run.phase.facts.is_over:
        raise RunIsOver(run_id, run.status)
    if run.phase in UNANNOUNCED:
        cancel_waiting(tx, schedule_id, run, error)
        release_next(tx, schedule_id)
    elif run.is_accepted:
        end(tx, stored, Canceled(f"{error}; {TARGET_NOT_NOTIFIED}"))
    elif run.ending is None:  # else it was requested before
        _request_cancel(tx, schedule_id, RequestCancel(run, "canceled"), note)
    return written_run(tx, run_id)


def carry_out_on_run(tx: Transaction, schedule_id: str, decision: Decision) -> None:
    """Carry out a decision about an existing run."""
    match decision:
        case Supersede():
            end_waiting(tx, schedule_id, decision.run, decision.reason, newer=decision.newer)
        case Release():
            release(tx, schedule_id, decision.run)
        case RequestCancel():
            _request_cancel(tx, schedule_id, decision)
        case _:
            raise AssertionError(f"{decision} is about a tick")


def _request_cancel(tx: Transaction, schedule_id: str, step: RequestCancel, note: str = "") -> None:
    change = apply(step.run, step, now=tx.now)
    after, sql = change.after, RECALL if change.after.detached else REQUEST_CANCEL
    write(tx, sql, change, tx.now, step.reason, after.deadline_at)
    run_id, run_at = after.run_id, after.run_at
    tx.emit(RunCancelRequested(schedule_id, run_id, run_at, step.reason, storable_text(note)))
