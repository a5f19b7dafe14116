"""What targets report of the runs that they have accepted."""

from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.runs.run import Accepted, Failed, Run, Status, Succeeded
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.events import RunNamed, RunReportedLate
from onbeat.stores.sql.finish import LONGEST_TEXT, WHOSE_RUN, end, held_run
from onbeat.stores.sql.rows import as_run, plain
from onbeat.stores.sql.schedule_rows import is_foreign
from onbeat.stores.sql.transaction import Transaction

NAME = """
UPDATE schedule_runs SET external_id = ?2, updated_at = ?3
 WHERE run_id = ?1 AND status = 'STARTED' AND (external_id IS NULL OR external_id <> ?2)
"""

NOTE = "UPDATE schedule_runs SET error = ?2, updated_at = ?3 WHERE run_id = ?1"


def report(
    tx: Transaction, run_id: int, outcome: Succeeded | Failed | Accepted, *, external_id: str
) -> RunIsOver | None:
    """Record what a target reports of a run. The contract is `Store.report`.

    A refusal that is recorded is returned, for the caller to raise once that is committed.
    """
    row = held_run(tx, run_id)
    run, status = as_run(tuple(row[:-1])), Status(row[3])
    has_key = tx.one("SELECT idempotency_key FROM schedule_runs WHERE run_id = ?1", (run_id,))
    if status is Status.STARTED and not run.is_accepted and has_key == (None,):
        raise RunIsHeld(run_id)
    if isinstance(outcome, Accepted):
        external_id = external_id or outcome.external_id
    if external_id and tx.run(NAME, (run_id, plain(external_id), tx.now)):
        tx.tell(RunNamed(row[0], run_id, run.run_at, plain(external_id)))
    if isinstance(outcome, Accepted):
        if status is not Status.STARTED:
            raise RunIsOver(run_id, status)
        return None
    said = Status.SUCCESS if isinstance(outcome, Succeeded) else Status.FAILED
    if status is Status.STARTED:
        end(tx, row, outcome)
        return None
    is_late = status is Status.FAILED and _note_late(tx, row[0], run, outcome, said)
    if status is said:
        return None
    if is_late:
        return RunIsOver(run_id, status, is_late=True)
    raise RunIsOver(run_id, status)


def _note_late(
    tx: Transaction, schedule_id: str, run: Run, outcome: Succeeded | Failed, said: Status
) -> bool:
    """Note the first report after a run's deadline with its error; return whether it was late."""
    (found,) = tx.one("SELECT error FROM schedule_runs WHERE run_id = ?1", (run.run_id,)) or ("",)
    if not (found or "").startswith(UNREPORTED):
        return False
    if found == UNREPORTED:
        error = plain(outcome.error[:LONGEST_TEXT]) if isinstance(outcome, Failed) else ""
        told = f"{UNREPORTED}; it reported {said} at {rfc3339_ms(tx.now)}"
        told = f"{told}: {error}"[:LONGEST_TEXT] if error else told
        tx.run(NOTE, (run.run_id, told, tx.now))
        tx.tell(RunReportedLate(schedule_id, run.run_id, run.run_at, said, error))
    return True


def run_of_key(tx: Transaction, key: str) -> int:
    """Return the id of the run that has this key."""
    row = tx.one("SELECT run_id FROM schedule_runs WHERE idempotency_key = ?1", (key,))
    whose = None if row is None else tx.one(WHOSE_RUN, (row[0],))
    if row is None or whose is None or is_foreign(tx, whose[1] or ""):
        raise NoSuchRun(key, is_key=True)
    return int(row[0])
