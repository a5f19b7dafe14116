"""The facts about a schedule and an instant that `why` explains, read in one transaction."""

from msgspec.structs import replace

from onbeat.core.explain.facts import (
    DefinitionSpan,
    Facts,
    GroupFacts,
    NodeFacts,
    RunFacts,
    UpFacts,
)
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.phase import Phase
from onbeat.core.schedule import Schedule, from_definition
from onbeat.errors import InvalidSchedule
from onbeat.stores.sql.queries import nodes
from onbeat.stores.sql.rows import HOLDS_PLACE, read_detail, read_tried
from onbeat.stores.sql.schedule_rows import StoredSchedule, existing, find, is_foreign
from onbeat.stores.sql.transaction import Row, Transaction

RUN_FACTS = ", ".join(RunFacts.__struct_fields__)

OWN = f"""
SELECT {RUN_FACTS} FROM schedule_runs
 WHERE run_at = ?2 AND schedule_id = ?1 AND request_id = ''
"""

RANGE = f"""
SELECT {RUN_FACTS} FROM schedule_runs
 WHERE schedule_id = ?1 AND request_id = '' AND first_run_at <= ?2 AND run_at > ?2
 ORDER BY run_at LIMIT 1
"""

MANUAL = f"""
SELECT {RUN_FACTS} FROM schedule_runs
 WHERE run_at = ?2 AND schedule_id = ?1 AND request_id <> '' ORDER BY run_id DESC LIMIT 1
"""

LATEST = "SELECT max(run_at) FROM schedule_runs WHERE schedule_id = ?1 AND run_at <= ?2"

BEFORE = """
SELECT max(run_at) FROM schedule_runs
 WHERE schedule_id = ?1 AND request_id = '' AND run_at < ?2
"""
AFTER = """
SELECT min(run_at) FROM schedule_runs
 WHERE schedule_id = ?1 AND request_id = '' AND run_at > ?2
"""

ONE = f"SELECT {RUN_FACTS} FROM schedule_runs WHERE run_id = ?1"

EARLIER_BEHIND = """
SELECT 1 FROM schedule_runs
 WHERE schedule_id = ?1 AND phase = 'SKIPPED' AND reason = 'overlap' AND blocked_by = ?2
   AND run_at < ?3
 LIMIT 1
"""

PAST_DEFINITIONS = """
SELECT definition, until_at FROM past_definitions
 WHERE schedule_id = ?1 ORDER BY until_at, revision
"""

BEGAN = "SELECT max(until_at) FROM past_definitions WHERE schedule_id = ?1 AND revision = ?2 - 1"

OF_REVISION = """
SELECT definition FROM past_definitions
 WHERE schedule_id = ?1 AND revision = ?2 AND definition <> ''
"""

IN_GROUP = f"""
SELECT {RUN_FACTS} FROM schedule_runs INDEXED BY runs_in_group
 WHERE grp = ?1 AND grp IS NOT NULL AND finished_at IS NULL
   AND {HOLDS_PLACE}
 ORDER BY run_id LIMIT 100
"""

# Nodes that were up between a tick and its decision, and the last planner that was up before.
UP = """
SELECT name, started_at, ended_at, plans FROM node_times
 WHERE started_at <= ?2 AND (ended_at IS NULL OR ended_at >= ?1)
 ORDER BY started_at DESC LIMIT 500
"""
UP_BEFORE = """
SELECT name, started_at, ended_at, plans FROM node_times
 WHERE ended_at < ?1 AND plans = 1
 ORDER BY ended_at DESC LIMIT 1
"""

OWN_OF = "SELECT schedule_id FROM schedules WHERE user_id = ?1 AND schedule_id IN (?2[])"

META = "SELECT name, value FROM meta WHERE name IN ('gate_closed_at', 'history_from')"


def facts(tx: Transaction, schedule_id: str, at: int | None) -> Facts:
    """Return the facts. The contract is `Store.facts`."""
    stored = find(tx, schedule_id)
    if stored is None or is_foreign(tx, stored.state.user_id):
        stored = existing(tx, schedule_id)
    if at is None:
        at = _latest(tx, stored)
    spans = _definition_spans(tx, stored)
    then = next((each for each in spans if each.until is None or at <= each.until), None)
    schedule = None if then is None or at <= then.after else then.schedule
    row = tx.one(OWN, (schedule_id, at))
    if row is None and _is_tick(schedule, at, stored):  # a range covers ticks, not all instants
        row = tx.one(RANGE, (schedule_id, at))
    elif row is None:
        row = tx.one(MANUAL, (schedule_id, at))
    run = None if row is None else _run(row)
    if run is not None:
        schedule = _as_decided(tx, stored, run.revision)
    before, after = _rows_around(tx, schedule, schedule_id, at)
    meta = {name: int(value) for name, value in tx.all(META)}
    blocker = None
    if run is not None and run.blocked_by is not None:
        found = tx.one(ONE, (run.blocked_by,))
        blocker = None if found is None else _run(found)
    due = tx.one("SELECT run_at, due_at FROM due WHERE schedule_id = ?1", (schedule_id,))
    return Facts(
        schedule_id,
        at,
        tx.now,
        schedule,
        created_at=stored.state.created_at,
        decided_until=stored.state.decided_until,
        due=None if due is None or stored.paused else Due(*due),
        is_paused=stored.paused,
        pause_note=stored.pause_note,
        paused_until=stored.paused_until,
        gate_closed_at=meta.get("gate_closed_at"),
        history_from=meta.get("history_from", 0),
        past=stored.state.past,
        run=run,
        blocker=blocker,
        is_first_blocked=run is None
        or tx.one(EARLIER_BEHIND, (schedule_id, run.blocked_by, run.run_at)) is None,
        group=_group(tx, schedule),
        nodes=_alive(tx),
        definition_spans=spans,
        revision=stored.state.revision,
        row_before=before,
        row_after=after,
        was_moved=run is not None and _was_moved(tx, stored, run),
        up=_up(tx, run, at),
        paused_at=stored.paused_at,
        paused_by=stored.paused_by,
    )


def _alive(tx: Transaction) -> list[NodeFacts]:
    """Return the nodes that are up."""
    return [
        NodeFacts(node.name, node.offers, node.node_id)
        for node in nodes(tx)
        if node.alive_until > tx.now
    ]


def _rows_around(
    tx: Transaction, schedule: Schedule | None, schedule_id: str, at: int
) -> tuple[int | None, int | None]:
    """Return the ticks with a row before and after an instant, if they cannot be computed."""
    if schedule is None or not schedule.trigger.needs_past:
        return None, None
    before, after = (tx.value(each, (schedule_id, at)) for each in (BEFORE, AFTER))
    return before, after


def _up(tx: Transaction, run: RunFacts | None, at: int) -> list[UpFacts]:
    """Return which nodes were up around a tick that was missed."""
    if run is None or run.reason != "missed":
        return []
    due = run.due_at if at == run.run_at else at * 1000
    decided = run.created_at if run.finished_at is None else run.finished_at
    rows = [*tx.all(UP_BEFORE, (due,)), *tx.all(UP, (due, max(due, decided)))]
    found = [UpFacts(name, began, ended, bool(plans)) for name, began, ended, plans in rows]
    return sorted(found, key=lambda each: each.started_at)


def _latest(tx: Transaction, stored: StoredSchedule) -> int:
    """Return the latest tick or manual run that has a row, else the next tick, else now."""
    latest = tx.value(LATEST, (stored.schedule_id, tx.now // 1000))
    if latest is not None:
        return int(latest)
    return tx.now // 1000 if stored.run_at is None else stored.run_at


def _definition_spans(tx: Transaction, stored: StoredSchedule) -> list[DefinitionSpan]:
    """Return the definitions of a schedule with the time that each was in force, in order."""
    found: list[DefinitionSpan] = []
    rows = tx.all(PAST_DEFINITIONS, (stored.schedule_id,))
    was_deleted = any(not text for text, _ in rows)  # then a row has when it was first defined
    after = 0 if was_deleted else stored.state.created_at // 1000
    for text, until_at in rows:
        until = until_at // 1000
        past = _read(stored, text)
        found.append(DefinitionSpan(past, after, until, is_unreadable=bool(text) and past is None))
        after = until
    if stored.deleted:
        return [*found, DefinitionSpan(None, after)]
    schedule = _read(stored, stored.text)
    if not found and schedule is not None and schedule.ticks_once:
        after = 0  # single times may be past when they are defined
    return [*found, DefinitionSpan(schedule, after, is_unreadable=schedule is None)]


def _was_moved(tx: Transaction, stored: StoredSchedule, run: RunFacts) -> bool:
    """Return whether a run is older than its revision: an edit moved it there."""
    if run.triggered_by == "backfill":  # it has the revision at the time of the backfill
        return False
    began = tx.value(BEGAN, (stored.schedule_id, run.revision))
    return began is not None and run.created_at < began


def _is_tick(schedule: Schedule | None, at: int, stored: StoredSchedule) -> bool:
    every_run = replace(stored.state.past, runs_used=0)
    return schedule is not None and schedule.trigger.has(at, every_run)


def _as_decided(tx: Transaction, stored: StoredSchedule, revision: int) -> Schedule | None:
    """Return a schedule as defined when a tick was decided."""
    return _read(stored, tx.value(OF_REVISION, (stored.schedule_id, revision)) or stored.text)


def _read(stored: StoredSchedule, text: str) -> Schedule | None:
    try:
        return from_definition(stored.schedule_id, text) if text else None
    except InvalidSchedule:
        return None


def _group(tx: Transaction, schedule: Schedule | None) -> GroupFacts | None:
    name = None if schedule is None else schedule.policy.group
    if name is None:
        return None
    places = tx.value("SELECT places FROM groups WHERE name = ?1", (name,))
    used = [_run(found) for found in tx.all(IN_GROUP, (name,))]
    if tx.only_owner is not None:  # runs of other owners are counted and not named
        ids = sorted({run.schedule_id for run in used})
        own = set(tx.column(OWN_OF, (tx.only_owner, ids)))
        used = [run if run.schedule_id in own else replace(run, schedule_id="") for run in used]
    return GroupFacts(name, 1 if places is None else places, used)


def _run(row: Row) -> RunFacts:
    found = dict(zip(RunFacts.__struct_fields__, row, strict=True))
    decoded = {"detail": read_detail(found["detail"]), "tried": read_tried(found["tried"])}
    return RunFacts(**found | decoded | {"phase": Phase(found["phase"])})
