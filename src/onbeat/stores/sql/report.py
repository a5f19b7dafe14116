"""Reports of targets about runs that they have accepted."""

from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.runs.phase import STARTED, Status
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.events import RunNamed, RunReportedLate
from onbeat.stores.sql.finish import LONGEST_TEXT, end, hold_run, schedule_of_run
from onbeat.stores.sql.rows import storable_text
from onbeat.stores.sql.taken_rows import StoredRun
from onbeat.stores.sql.transaction import Transaction

NAME = """
UPDATE schedule_runs SET external_id = ?2, updated_at = ?3
 WHERE run_id = ?1 AND phase = ?4 AND (external_id IS NULL OR external_id <> ?2)
"""

NOTE = "UPDATE schedule_runs SET error = ?2, updated_at = ?3 WHERE run_id = ?1 AND phase = 'FAILED'"


def report(
    tx: Transaction, run_id: int, outcome: Succeeded | Failed | Accepted, *, external_id: str
) -> RunIsOver | None:
    """Record what a target reports about a run. The contract is `Store.report`.

    A refusal that is recorded is returned: the caller raises it once the transaction is committed.
    """
    stored = hold_run(tx, run_id)
    run = stored.run
    status, is_started = run.status, run.phase in STARTED
    key = tx.value("SELECT idempotency_key FROM schedule_runs WHERE run_id = ?1", (run_id,))
    if is_started and not run.is_accepted and key is None:
        raise RunIsHeld(run_id)
    if isinstance(outcome, Accepted):
        external_id = external_id or outcome.external_id
    external_id = storable_text(external_id)
    naming = (run_id, external_id, tx.now, run.phase)
    if external_id and is_started and tx.run(NAME, naming):
        tx.emit(RunNamed(*stored.ids, external_id))
    if isinstance(outcome, Accepted):
        if not is_started:
            raise RunIsOver(run_id, status)
        return None
    reported = Status.SUCCESS if isinstance(outcome, Succeeded) else Status.FAILED
    if is_started:
        end(tx, stored, outcome)
        return None
    is_late = status is Status.FAILED and _note_late(tx, stored, outcome, reported)
    if status is reported:
        return None
    if is_late:
        return RunIsOver(run_id, status, is_late=True)
    raise RunIsOver(run_id, status)


def _note_late(
    tx: Transaction, stored: StoredRun, outcome: Succeeded | Failed, reported: Status
) -> bool:
    """Add the first report after a run's deadline to its error; return whether it is late."""
    run_id = stored.run_id
    found = tx.value("SELECT error FROM schedule_runs WHERE run_id = ?1", (run_id,))
    if not (found or "").startswith(UNREPORTED):
        return False
    if found == UNREPORTED:
        error = storable_text(outcome.error[:LONGEST_TEXT]) if isinstance(outcome, Failed) else ""
        note = f"{UNREPORTED}; it reported {reported} at {rfc3339_ms(tx.now)}"
        note = f"{note}: {error}"[:LONGEST_TEXT] if error else note
        tx.run(NOTE, (run_id, note, tx.now))
        tx.emit(RunReportedLate(*stored.ids, reported, error))
    return True


def run_of_key(tx: Transaction, key: str) -> int:
    """Return the id of the run that has this key."""
    run_id = tx.value("SELECT run_id FROM schedule_runs WHERE idempotency_key = ?1", (key,))
    if run_id is None or schedule_of_run(tx, run_id) is None:
        raise NoSuchRun(key, is_key=True)
    return int(run_id)
