"""After a backup was put back: what was planned since it was made is missed, and does not run.

Nobody knows what ran in the meantime. So nothing of it is started, waiting runs and started ones of
the backup are over, and run ids go on beyond those that may have been given since. It is done in
steps, each a transaction; until the last of them is done no node joins.
"""

from onbeat.core.decide.plan import next_due
from onbeat.core.explain.reasons import RESTORED
from onbeat.core.runs.run import Status
from onbeat.errors import StoreHeld, StoreUnusable
from onbeat.events import RunFailed, RunSkipped, StoreRestored
from onbeat.stores.sql.finish import END, NOTE_FAILURE
from onbeat.stores.sql.pause import go_on_after_rest, reopen
from onbeat.stores.sql.rows import KEEP, RUN_OF_SCHEDULE, as_run, end_waiting, failures_of
from onbeat.stores.sql.schedule_rows import StoredSchedule, find_all
from onbeat.stores.sql.transaction import Row, Transaction

IDS_LEFT_OUT = 1_000_000  # run ids, and numbers of event rows, that may have been given since
AT_ONCE = 500  # schedules in one transaction

UP = "SELECT name FROM nodes WHERE alive_until >= ?1 ORDER BY name LIMIT 1"

# Each side reads an index from the last id on: a batch costs the same however many there are.
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
SELECT {RUN_OF_SCHEDULE}, fence FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id IN (?1[])
 ORDER BY schedule_id, run_id
"""

SAY_WHY = "UPDATE schedule_runs SET error = ?1 WHERE run_id IN (?2[])"

DOUBT_MESSAGES = """
UPDATE outbox SET state = 'in_doubt', error = ?1 WHERE state IN ('waiting', 'sending')
"""


def record_gap(tx: Transaction, *, after: str) -> str | None:
    """Record what was planned up to now as missed. The contract is `Store.record_gap`."""
    if not after:
        _begin(tx)
    tx.hold_definitions()
    ids = [row[0] for row in tx.all(BEHIND, (after, tx.now // 1000, tx.now, AT_ONCE))]
    tx.hold(ids)
    for row in tx.all(UNFINISHED, (ids,)):
        _end(tx, row)
    known = [each for each in find_all(tx, ids) if not each.deleted]
    over = [each.schedule_id for each in known if _rests_no_more(each, tx.now)]
    go_on_after_rest(tx, over)
    live = [each for each in find_all(tx, ids) if not (each.paused or each.deleted)]
    reopen(tx, live, "missed")
    for each in find_all(tx, [each.schedule_id for each in live]):
        _leave_what_was_due_early(tx, each)
    skipped = [e.run_id for e in tx.events if isinstance(e, RunSkipped) and e.reason == "missed"]
    tx.run(SAY_WHY, (RESTORED, skipped))
    if len(ids) == AT_ONCE:
        return str(ids[-1])
    tx.run("DELETE FROM meta WHERE name = 'restoring'")
    return None


def refuse_half_restored(tx: Transaction) -> None:
    """Refuse to go on where a gap was begun to be recorded, and not all of it is."""
    if tx.one("SELECT 1 FROM meta WHERE name = 'restoring'") is not None:
        problem = "a backup was put back, and not all of what was missed since is recorded"
        raise StoreUnusable(f"{problem} (onbeat up --restored does the rest)")


def _begin(tx: Transaction) -> None:
    """Make sure that nobody else is there, and that no number is given a second time."""
    up = tx.one(UP, (tx.now,)) if tx.is_shared else None
    if up is not None:
        hint = "stop it first, or wait until the lease is over that the backup tells of"
        raise StoreHeld(f"{up[0]} is up, and would run what is to be recorded as missed ({hint})")
    if tx.one("SELECT 1 FROM meta WHERE name = 'restoring'") is not None:
        return  # it was broken off, and is done again
    tx.run(KEEP, ("restoring", "1"))
    tx.leave_out_ids(IDS_LEFT_OUT)
    # What was to be told may have been since.
    tx.run("UPDATE events SET to_notify = NULL WHERE to_notify IS NOT NULL")
    tx.run(DOUBT_MESSAGES, (RESTORED,))
    tx.tell(StoreRestored(IDS_LEFT_OUT))


def _end(tx: Transaction, row: Row) -> None:
    """End a run that had not ended when the backup was made; nothing follows from it."""
    *columns, fence = row
    run, schedule_id = as_run(tuple(columns)), row[0]
    if run.status is Status.ENQUEUED:
        end_waiting(tx, schedule_id, run, "missed")
        tx.run(SAY_WHY, (RESTORED, [run.run_id]))
        return
    ended = (Status.FAILED, "lost", RESTORED, None, None, tx.now, None)
    tx.run(END, (run.run_id, fence, *ended))
    tx.run(NOTE_FAILURE, (tx.now, None, schedule_id))
    failures = failures_of(tx, schedule_id)
    told = (schedule_id, run.run_id, run.run_at, run.attempt, "lost", RESTORED, failures)
    tx.tell(RunFailed(*told))


def _rests_no_more(known: StoredSchedule, now: int) -> bool:
    """Return whether a pause was to end in the meantime."""
    return known.paused and known.paused_until is not None and known.paused_until <= now


def _leave_what_was_due_early(tx: Transaction, known: StoredSchedule) -> None:
    """Leave out ticks that are planned for later and were due already: jitter can be early."""
    schedule, end = known.schedule(), None
    due = None if schedule is None else next_due(schedule, tx.now // 1000, known.state.past)
    while schedule is not None and due is not None and due.due_at <= tx.now:
        end = due.run_at * 1000
        due = next_due(schedule, due.run_at, known.state.past)
    if end is not None:
        reopen(tx, [known], "missed", end)
