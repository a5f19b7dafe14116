"""What is known of a schedule and an instant: all that `why` needs, read at one moment."""

from onbeat.core.decisions import Due
from onbeat.core.runs import Status
from onbeat.core.schedules import Schedule, from_definition
from onbeat.core.why import Facts, GroupFacts, NodeFacts, RunFacts
from onbeat.errors import InvalidSchedule
from onbeat.stores.sql.known import Known, existing, find
from onbeat.stores.sql.reading import nodes
from onbeat.stores.sql.transaction import Row, Transaction

RUN_FACTS = ", ".join(RunFacts.__struct_fields__)

OWN = f"""
SELECT revision, {RUN_FACTS} FROM schedule_runs
 WHERE run_at = ?2 AND schedule_id = ?1 AND request_id = ''
"""

RANGE = f"""
SELECT revision, {RUN_FACTS} FROM schedule_runs
 WHERE schedule_id = ?1 AND request_id = '' AND first_run_at <= ?2 AND run_at > ?2
 ORDER BY run_at LIMIT 1
"""

LATEST = """
SELECT max(run_at) FROM schedule_runs WHERE schedule_id = ?1 AND request_id = '' AND run_at <= ?2
"""

ONE = f"SELECT {RUN_FACTS} FROM schedule_runs WHERE run_id = ?1"

EARLIER_BEHIND = """
SELECT 1 FROM schedule_runs
 WHERE schedule_id = ?1 AND status = 'SKIPPED' AND blocked_by = ?2 AND run_at < ?3 LIMIT 1
"""

THEN = """
SELECT definition FROM past_definitions
 WHERE schedule_id = ?1 AND until_at > ?2 ORDER BY until_at, revision LIMIT 1
"""

OF_REVISION = """
SELECT definition FROM past_definitions
 WHERE schedule_id = ?1 AND revision = ?2 AND definition <> ''
"""

IN_GROUP = f"""
SELECT {RUN_FACTS} FROM schedule_runs INDEXED BY runs_in_group
 WHERE grp = ?1 AND grp IS NOT NULL AND finished_at IS NULL
   AND (leased_by IS NOT NULL OR status = 'STARTED')
 ORDER BY run_id LIMIT 100
"""

META = "SELECT name, value FROM meta WHERE name IN ('gate_closed_at', 'history_from')"


def facts(tx: Transaction, schedule_id: str, at: int | None) -> Facts:
    """Return what is known. The contract is `Store.facts`."""
    known = find(tx, schedule_id) or existing(tx, schedule_id)
    if at is None:
        at = _latest(tx, known)
    row = tx.one(OWN, (schedule_id, at)) or tx.one(RANGE, (schedule_id, at))
    run = None if row is None else _run(row[1:])
    schedule = _as_it_was(tx, known, at, None if row is None else row[0])
    meta = {name: int(value) for name, value in tx.all(META)}
    blocker = None
    if run is not None and run.blocked_by is not None:
        found = tx.one(ONE, (run.blocked_by,))
        blocker = None if found is None else _run(found)
    due = tx.one("SELECT run_at, due_at FROM due WHERE schedule_id = ?1", (schedule_id,))
    about = tx.one(
        "SELECT pause_note, created_at FROM schedules WHERE schedule_id = ?1", (schedule_id,)
    )
    assert about is not None, "a schedule that is known has a row"
    return Facts(
        schedule_id,
        at,
        tx.now,
        schedule,
        created_at=about[1],
        decided_until=known.state.decided_until,
        due=None if due is None or known.paused else Due(*due),
        is_paused=known.paused,
        pause_note=about[0],
        paused_until=known.paused_until,
        gate_closed_at=meta.get("gate_closed_at"),
        history_from=meta.get("history_from", 0),
        past=known.state.past,
        run=run,
        blocker=blocker,
        is_first_behind=run is None
        or tx.one(EARLIER_BEHIND, (schedule_id, run.blocked_by, run.run_at)) is None,
        group=_group(tx, schedule),
        nodes=[
            NodeFacts(node.name, node.offers) for node in nodes(tx) if node.alive_until > tx.now
        ],
    )


def _latest(tx: Transaction, known: Known) -> int:
    """Return the latest tick that has a row, else the next, else now."""
    row = tx.one(LATEST, (known.schedule_id, tx.now // 1000))
    if row is not None and row[0] is not None:
        return int(row[0])
    return tx.now // 1000 if known.run_at is None else known.run_at


def _as_it_was(tx: Transaction, known: Known, at: int, revision: int | None) -> Schedule | None:
    """Return what a schedule said when a tick was decided, or at an instant."""
    row = None
    if revision is not None:
        row = tx.one(OF_REVISION, (known.schedule_id, revision))
    else:
        row = tx.one(THEN, (known.schedule_id, at * 1000))
    if row is None and known.deleted and revision is None:
        return None
    try:
        return from_definition(known.schedule_id, known.text if row is None else row[0])
    except InvalidSchedule:
        return None


def _group(tx: Transaction, schedule: Schedule | None) -> GroupFacts | None:
    name = None if schedule is None else schedule.policy.group
    if name is None:
        return None
    row = tx.one("SELECT places FROM groups WHERE name = ?1", (name,))
    used = [_run(found) for found in tx.all(IN_GROUP, (name,))]
    return GroupFacts(name, 1 if row is None else row[0], used)


def _run(row: Row) -> RunFacts:
    found = dict(zip(RunFacts.__struct_fields__, row, strict=True))
    return RunFacts(**found | {"status": Status(found["status"])})
