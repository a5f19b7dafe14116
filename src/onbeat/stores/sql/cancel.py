"""Cancel runs."""

from onbeat.core.runs.decisions import Decision, Release, RequestCancel, Supersede
from onbeat.core.runs.run import Canceled, Reason, Run, Status
from onbeat.errors import RunIsOver
from onbeat.events import RunEndAsked
from onbeat.stores.sql.finish import end, held_run, release_next
from onbeat.stores.sql.rows import GOES_ON, as_run, cancel_waiting, end_waiting, plain, release
from onbeat.stores.sql.transaction import Transaction

ASK_TO_END = """
UPDATE schedule_runs
   SET end_asked_at = ?2, reason = ?3, updated_at = ?2,
       deadline_at = CASE WHEN leased_by IS NULL THEN ?2 ELSE deadline_at END
 WHERE run_id = ?1 AND status = 'STARTED' AND end_asked_at IS NULL
"""

# One that is only to be found is found for that: whoever has claimed it for more claims it anew.
ASK_FOUND_TO_END = f"""
UPDATE schedule_runs
   SET end_asked_at = ?2, reason = ?3, updated_at = ?2, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND status = 'ENQUEUED' AND end_asked_at IS NULL AND {GOES_ON}
"""


def cancel(tx: Transaction, run_id: int, *, note: str) -> None:
    """Have a run end. The contract is `Store.cancel`."""
    row = held_run(tx, run_id)
    run, schedule_id, told = as_run(tuple(row[:-1])), row[0], note or "canceled by hand"
    if run.detached:
        _ask_to_end(tx, schedule_id, run, "canceled", note)
    elif run.status is Status.ENQUEUED:
        cancel_waiting(tx, schedule_id, run, told)
        release_next(tx, schedule_id)
    elif run.is_accepted:
        end(tx, row, Canceled(f"{told}; its target was not told: it had accepted it"))
    elif run.status is Status.STARTED:
        _ask_to_end(tx, schedule_id, run, "canceled", note)
    else:
        raise RunIsOver(run_id, run.status)


def carry_out_about(tx: Transaction, schedule_id: str, decision: Decision) -> None:
    """Carry out a decision about a run that is there."""
    match decision:
        case Supersede():
            end_waiting(tx, schedule_id, decision.run, decision.reason, newer=decision.newer)
        case Release():
            release(tx, schedule_id, decision.run)
        case RequestCancel():
            _ask_to_end(tx, schedule_id, decision.run, "superseded")
        case _:
            raise AssertionError(f"{decision} is about a tick")


def _ask_to_end(
    tx: Transaction, schedule_id: str, run: Run, reason: Reason, note: str = ""
) -> None:
    sql = ASK_FOUND_TO_END if run.detached else ASK_TO_END
    if tx.run(sql, (run.run_id, tx.now, reason)):
        tx.tell(RunEndAsked(schedule_id, run.run_id, run.run_at, reason, plain(note)))
