"""After a backup was restored: ticks planned since it was made are missed, and do not run.

What ran in the meantime is unknown. So past ticks do not start, unfinished runs of the backup are
ended, and run ids skip those that may have been given since. This is done in steps of one
transaction each; no node may join before the last one.
"""

from onbeat.core.decide.plan import next_due
from onbeat.core.explain.reasons import RESTORED
from onbeat.core.runs.apply import apply
from onbeat.core.runs.decisions import Finish
from onbeat.core.runs.phase import UNANNOUNCED, UNSTARTED_END, Status
from onbeat.errors import StoreHeld, StoreUnusable
from onbeat.events import RunFailed, RunSkipped, StoreRestored
from onbeat.stores.sql.finish import END, NOTE_FAILURE
from onbeat.stores.sql.pause import reopen, resume_after_pause
from onbeat.stores.sql.rows import (
    KEEP,
    end_waiting,
    failures_of,
    listed,
    stored_runs,
    write,
)
from onbeat.stores.sql.schedule_rows import StoredSchedule, find_all
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction

IDS_LEFT_OUT = 1_000_000  # run ids and event row ids that may have been given since
BATCH = 500  # schedules in one transaction

UP = "SELECT name FROM nodes WHERE alive_until >= ?1 ORDER BY name LIMIT 1"

# Each part reads an index from the last id on: the cost of a batch does not depend on their number.
BEHIND = """
SELECT schedule_id FROM (
       SELECT schedule_id FROM due
        WHERE schedule_id > ?1 AND (run_at <= ?2 OR due_at <= ?3)
        ORDER BY schedule_id LIMIT ?4) AS owed
 UNION
SELECT schedule_id FROM (
       SELECT DISTINCT schedule_id FROM schedule_runs INDEXED BY unfinished_runs
        WHERE finished_at IS NULL AND schedule_id > ?1
        ORDER BY schedule_id LIMIT ?4) AS unfinished
 ORDER BY schedule_id LIMIT ?4
"""

UNFINISHED = f"""
SELECT {RUN_COLUMNS} FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id IN (?1[])
 ORDER BY schedule_id, run_id
"""

SET_ERROR = f"""
UPDATE schedule_runs SET error = ?1 WHERE run_id IN (?2[]) AND phase IN ({listed(UNSTARTED_END)})
"""

DOUBT_MESSAGES = """
UPDATE outbox SET state = 'in_doubt', error = ?1 WHERE state IN ('waiting', 'sending')
"""


def record_gap(tx: Transaction, *, after: str = "") -> str | None:
    """Record ticks planned up to now as missed. The contract is `Store.record_gap`."""
    if not after:
        _begin(tx)
    tx.hold_definitions()
    ids = tx.column(BEHIND, (after, tx.now // 1000, tx.now, BATCH))
    tx.hold(ids)
    for unfinished in stored_runs(tx, UNFINISHED, (ids,)):
        _end(tx, unfinished)
    stored = [each for each in find_all(tx, ids) if not each.deleted]
    ended = [each.schedule_id for each in stored if _pause_has_ended(each, tx.now)]
    resume_after_pause(tx, ended)
    live = [each for each in find_all(tx, ids) if not (each.paused or each.deleted)]
    reopen(tx, live, "missed")
    for each in find_all(tx, [each.schedule_id for each in live]):
        _skip_ticks_due_early(tx, each)
    skipped = [e.run_id for e in tx.events if isinstance(e, RunSkipped) and e.reason == "missed"]
    tx.run(SET_ERROR, (RESTORED, skipped))
    if len(ids) == BATCH:
        *_, last = ids
        return str(last)
    tx.run("DELETE FROM meta WHERE name = 'restoring'")
    return None


def refuse_half_restored(tx: Transaction) -> None:
    """Refuse a store on which `record_gap` was begun and not completed."""
    if tx.one("SELECT 1 FROM meta WHERE name = 'restoring'") is not None:
        problem = "a backup was restored, and the ticks missed since are not all recorded"
        raise StoreUnusable(f"{problem} (onbeat up --restored completes it)")


def _begin(tx: Transaction) -> None:
    """Refuse if a node is up; make sure that no id is given a second time."""
    up = tx.value(UP, (tx.now,)) if tx.is_shared else None
    if up is not None:
        hint = "stop it first, or wait until its lease in the backup has expired"
        raise StoreHeld(f"node {up} is up, and would run ticks that are to be missed ({hint})")
    if tx.one("SELECT 1 FROM meta WHERE name = 'restoring'") is not None:
        return  # it was interrupted, and is continued
    tx.run(KEEP, ("restoring", "1"))
    tx.leave_out_ids(IDS_LEFT_OUT)
    # Pending notifications may have been sent since.
    tx.run("UPDATE events SET to_notify = NULL WHERE to_notify IS NOT NULL")
    tx.run(DOUBT_MESSAGES, (RESTORED,))
    tx.emit(StoreRestored(IDS_LEFT_OUT))


def _end(tx: Transaction, stored: StoredRun) -> None:
    """End a run that had not ended when the backup was made; nothing follows from it."""
    run, schedule_id = stored.run, stored.schedule_id
    if run.phase in UNANNOUNCED:
        end_waiting(tx, schedule_id, run, "missed")
        tx.run(SET_ERROR, (RESTORED, [run.run_id]))
        return
    change = apply(run, Finish(Status.FAILED, "lost"), now=tx.now)
    write(tx, END, change, stored.fence, "lost", RESTORED, None, None, tx.now, None)
    tx.run(NOTE_FAILURE, (tx.now, None, schedule_id))
    failures = failures_of(tx, schedule_id)
    tx.emit(RunFailed(*stored.ids, run.attempt, "lost", RESTORED, failures))


def _pause_has_ended(stored: StoredSchedule, now: int) -> bool:
    """Return whether the schedule is paused and its pause has ended."""
    return stored.paused and stored.paused_until is not None and stored.paused_until <= now


def _skip_ticks_due_early(tx: Transaction, stored: StoredSchedule) -> None:
    """Skip ticks planned for later that were due already: jitter can make them early."""
    schedule, end = stored.schedule(), None
    due = None if schedule is None else next_due(schedule, tx.now // 1000, stored.state.past)
    while schedule is not None and due is not None and due.due_at <= tx.now:
        end = due.run_at * 1000
        due = next_due(schedule, due.run_at, stored.state.past)
    if end is not None:
        reopen(tx, [stored], "missed", end)
