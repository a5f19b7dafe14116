"""Queries of what is stored, and `prune`, which removes old history."""

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from onbeat.core.runs.phase import UNSTARTED, Phase, phases_of
from onbeat.events import GateChanged, HistoryPruned, decode_events
from onbeat.ports.rows import (
    AwaitedRow,
    EventRow,
    GroupRow,
    NodeRow,
    Overview,
    RunFilter,
    RunRow,
    ScheduleFilter,
    ScheduleRow,
    StoreFigures,
)
from onbeat.ports.store import ALL, ALL_RUNS
from onbeat.stores.sql import zone_data
from onbeat.stores.sql.outbox import forget as forget_messages
from onbeat.stores.sql.rows import GROUPS, IS_STARTED, KEEP, gate_is_open, is_claimable, listed
from onbeat.stores.sql.transaction import Bindings, Row, Transaction, Value

SCHEDULES = """
SELECT s.schedule_id, s.definition, s.revision, s.source, s.user_id, s.paused, s.pause_note,
       s.paused_until, s.created_at, s.updated_at, CASE WHEN s.paused = 0 THEN d.run_at END,
       CASE WHEN s.paused = 0 THEN d.due_at END, t.runs_used, t.iteration, t.last_run_at,
       t.last_success_at, t.last_failure_at, t.last_exit, t.last_missed_at, t.last_miss_reason,
       t.consecutive_failures, s.base
  FROM schedules s JOIN schedule_state t USING (schedule_id) LEFT JOIN due d USING (schedule_id)
 WHERE s.deleted_at IS NULL
"""

NEXT_DUE = f"""
SELECT min(at) FROM (
    SELECT min(due_at) AS at FROM due WHERE due_at >= ?2
    UNION ALL
    SELECT min(due_at) FROM schedule_runs INDEXED BY waiting_runs
     WHERE {is_claimable()} AND due_at > ?1
    UNION ALL
    SELECT min(deadline_at) FROM schedule_runs
     WHERE deadline_at IS NOT NULL AND leased_by IS NULL AND finished_at IS NULL) AS next
"""

USER = "coalesce((SELECT user_id FROM schedules s WHERE s.schedule_id = r.schedule_id), '')"
COLUMNS = [USER if name == "user" else name for name in RunRow.__dataclass_fields__]
RUNS = f"SELECT {', '.join(COLUMNS)} FROM schedule_runs r WHERE TRUE"

SCHEDULES_OF_OWNER = "SELECT schedule_id FROM schedules WHERE user_id = ?1 AND user_id <> ''"
SCHEDULES_OF_SOURCE = "SELECT schedule_id FROM schedules WHERE source = ?1"
FEW = 100  # schedules owner runs are read by schedule rather than by descending run id

PLANNED_BETWEEN = (
    "SELECT run_id FROM schedule_runs INDEXED BY run_of_tick WHERE run_at >= {} AND run_at < {}"
)

EVENTS = "SELECT event_id, at, body FROM events WHERE TRUE"

AUDIT = """
SELECT event_id, at, body FROM events
 WHERE asked_by IS NOT NULL AND event_id <= ?1 ORDER BY event_id DESC LIMIT ?2
"""

SEARCHED = [f"lower(s.{column}) LIKE {{0}} ESCAPE '\\'" for column in ("schedule_id", "definition")]

FAR = 2**62
MOST_AWAITED = 5  # accepted runs that the overview lists

UNFINISHED = ("ENQUEUED", "STARTED")
STUCK = f"finished_at IS NULL AND {IS_STARTED} AND stuck_at IS NOT NULL"  # not between retries
ENDED_OTHERWISE = ("FAILED", "SKIPPED", "CANCELED")  # each has an index: they are mostly few

COUNT_SCHEDULES = """
SELECT (SELECT count(*) FROM schedules WHERE {own})
       - (SELECT count(*) FROM schedules WHERE deleted_at IS NOT NULL AND {own}),
       (SELECT count(*) FROM schedules WHERE paused = 1 AND deleted_at IS NULL AND {own})
"""

COUNT_DUE = """
SELECT (SELECT count(*) FROM due WHERE due_at <= {now} AND {own}),
       (SELECT min(due_at) FROM due WHERE {own})
"""

NODES = f"""
SELECT n.node_id, n.name, n.roles, n.offers, n.started_at, n.alive_until, n.version, n.tz,
       coalesce(r.running, 0), n.stop_asked, n.address
  FROM nodes n LEFT JOIN (
       SELECT leased_by, count(*) AS running FROM schedule_runs
        WHERE finished_at IS NULL AND {IS_STARTED} GROUP BY leased_by) r
    ON r.leased_by = n.node_id
 ORDER BY n.started_at, n.node_id
"""

WAITING_IN_GROUPS = f"""
SELECT grp, count(*) FROM schedule_runs INDEXED BY runs_in_group
 WHERE grp IS NOT NULL AND finished_at IS NULL AND phase IN ({listed(UNSTARTED)})
 GROUP BY grp
"""

COUNT_FAILING = """
SELECT count(*) FROM schedule_state INDEXED BY failing_schedules JOIN schedules USING (schedule_id)
 WHERE consecutive_failures > 0 AND deleted_at IS NULL
"""

WAITING_SINCE = f"""
SELECT min(due_at) FROM schedule_runs INDEXED BY waiting_runs
 WHERE {is_claimable()}
"""

COUNT_TO_NOTIFY = "SELECT count(*) FROM events WHERE to_notify IS NOT NULL"

PRUNE = """
DELETE FROM schedule_runs WHERE run_id IN (
    SELECT run_id FROM (SELECT run_id, finished_at FROM schedule_runs ORDER BY run_id LIMIT ?2) r
     WHERE finished_at < ?1)
"""

# The definition of an unfinished run is kept: it starts and is retried by it. So is the mark that
# its schedule was deleted since: then it is not retried.
FORGET_DEFINITIONS = """
DELETE FROM past_definitions WHERE until_at < ?1 AND NOT EXISTS (
    SELECT 1 FROM schedule_runs r
     WHERE r.finished_at IS NULL AND r.schedule_id = past_definitions.schedule_id
       AND (r.revision = past_definitions.revision
            OR (past_definitions.definition = '' AND r.revision < past_definitions.revision)))
"""

FORGET_DELETED = """
DELETE FROM {table} WHERE schedule_id IN (
    SELECT s.schedule_id FROM schedules s
     WHERE s.deleted_at < ?1
       AND NOT EXISTS (SELECT 1 FROM schedule_runs r WHERE r.schedule_id = s.schedule_id))
"""


def schedules(
    tx: Transaction, which: ScheduleFilter = ALL, *, after: str = "", limit: int | None = None
) -> list[ScheduleRow]:
    """Return schedules, by id. The contract is `Store.schedules`."""
    conditions, select = _Conditions(), SCHEDULES
    conditions.add_if("s.source = {}", which.source)
    for owner in (which.owner, tx.only_owner):
        # The condition of the index, which has only schedules with an owner.
        conditions.add_if(
            "s.user_id = {} AND s.user_id <> ''" if owner else "s.user_id = {}", owner
        )
    conditions.add_if("s.schedule_id > {}", after or None)
    if which.paused is not None:
        conditions.add("s.paused = " + ("1" if which.paused else "0"))
    if which.failing:
        select = select.replace("schedule_state t", "schedule_state t INDEXED BY failing_schedules")
    if which.failing is not None:
        conditions.add("t.consecutive_failures " + ("> 0" if which.failing else "= 0"))
    if which.ids is not None:
        conditions.add("s.schedule_id IN ({}[])", list(which.ids))
    if which.search:
        like = f"%{_escaped(which.search.lower())}%"
        conditions.add(f"({' OR '.join(SEARCHED)})", like)
    bounded = "" if limit is None else f"LIMIT {conditions.number(limit)}"
    sql = f"{select} {conditions.where} ORDER BY s.schedule_id {bounded}"
    return [_schedule(row) for row in tx.all(sql, conditions.values)]


def schedule(tx: Transaction, schedule_id: str) -> ScheduleRow | None:
    """Return one schedule."""
    return next(iter(schedules(tx, ScheduleFilter(ids=[schedule_id]))), None)


def runs(tx: Transaction, which: RunFilter = ALL_RUNS, *, limit: int = 50) -> list[RunRow]:
    """Return runs, latest first."""
    conditions, select = _Conditions(), RUNS
    conditions.add_if("schedule_id = {}", which.schedule_id)
    if which.status in ENDED_OTHERWISE:
        conditions.add(f"phase = '{which.status}'")  # the condition of its index
    elif which.status is not None:
        conditions.add(f"phase IN ({listed(phases_of(which.status)) or 'NULL'})")
    if which.status in UNFINISHED:
        select = select.replace("runs r", "runs r INDEXED BY unfinished_runs")
        conditions.add("finished_at IS NULL")
    is_between = which.since is not None and which.until is not None
    if is_between and which.schedule_id is None:
        planned = PLANNED_BETWEEN.format(
            conditions.number(which.since), conditions.number(which.until)
        )
        if tx.is_shared:  # else PostgreSQL would scan all later runs
            first = f"({planned} OFFSET 0) AS planned JOIN schedule_runs r USING (run_id)"
            select = select.replace("schedule_runs r", first)
        else:
            conditions.add(f"run_id IN ({planned})")
    if which.reason is not None:
        conditions.add("reason = {} AND reason IS NOT NULL", which.reason)
    conditions.add_if("triggered_by = {}", which.triggered_by)
    if which.triggered_by not in (None, "timer"):
        conditions.add("triggered_by <> 'timer'")
    conditions.add_if("run_at >= {}", which.since)
    conditions.add_if("run_at < {}", which.until)
    conditions.add_if("run_id < {}", which.before)
    if which.is_stuck:
        conditions.add(STUCK)
    for ids_of, value in ((SCHEDULES_OF_SOURCE, which.source), (SCHEDULES_OF_OWNER, tx.only_owner)):
        if value is None:
            continue
        ids = tx.column(f"{ids_of} LIMIT ?2", (value, FEW + 1))
        if len(ids) > FEW:
            conditions.add(f"schedule_id IN ({ids_of.replace('?1', '{}')})", value)
        else:  # their runs are fewer than all runs
            conditions.add("schedule_id IN ({}[])", ids)
            if "INDEXED" not in select:
                select = select.replace("runs r", "runs r INDEXED BY runs_of_schedule")
    bounded = conditions.number(limit)
    sql = f"{select} {conditions.where} ORDER BY run_id DESC LIMIT {bounded}"
    return [_run(row) for row in tx.all(sql, conditions.values)]


def run(tx: Transaction, run_id: int) -> RunRow | None:
    """Return one run."""
    conditions = _Conditions()
    conditions.add("run_id = {}", run_id)
    if tx.only_owner is not None:
        conditions.add(f"schedule_id IN ({SCHEDULES_OF_OWNER.replace('?1', '{}')})", tx.only_owner)
    row = tx.one(f"{RUNS} {conditions.where}", conditions.values)
    return None if row is None else _run(row)


def written_run(tx: Transaction, run_id: int) -> RunRow:
    """Return a run that this transaction has written."""
    found = run(tx, run_id)
    assert found is not None, "its schedule is held"
    return found


class _Conditions:
    """The conditions of a WHERE clause, and their values."""

    def __init__(self) -> None:
        self._clauses: list[str] = []
        self.values: list[Value | Sequence[Value]] = []

    def add_if(self, clause: str, value: Value) -> None:
        if value is not None:
            self.add(clause, value)

    def add(self, clause: str, *values: Value | Sequence[Value]) -> None:
        self._clauses.append(clause.format(*map(self.number, values)))

    def number(self, value: Value | Sequence[Value]) -> str:
        self.values.append(value)
        return f"?{len(self.values)}"

    @property
    def where(self) -> str:
        return "".join(f" AND {clause}" for clause in self._clauses)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def events(
    tx: Transaction, *, after: int = 0, but: Collection[int] = (), limit: int = 1000
) -> list[EventRow]:
    """Return events; those of one schedule are in the order of commits. See `Store.events`."""
    found: list[EventRow] = []
    while True:  # a restricted caller may have to skip many events of others
        conditions = _Conditions()
        conditions.add("event_id > {}", after)
        if but:
            conditions.add("NOT event_id IN ({}[])", list(but))
        bounded = conditions.number(limit)
        rows = tx.all(
            f"{EVENTS} {conditions.where} ORDER BY event_id LIMIT {bounded}", conditions.values
        )
        found += _own(tx, _events(rows))
        own = sorted({row.event_id for row in found})
        if len(rows) < limit or len(own) >= limit:
            return [row for row in found if row.event_id in own[:limit]]
        *_, (after, _, _) = rows


def newest_event(tx: Transaction, *, before: int | None = None) -> int:
    """Return the newest event row. The contract is `Store.newest_event`."""
    writer = None if before is None else tx.oldest_writer(before)
    if before is not None and writer is not None:
        before = min(before, writer)
    newest = tx.value(
        "SELECT event_id FROM (SELECT event_id, at FROM events ORDER BY event_id DESC LIMIT 100000)"
        " AS e WHERE at < ?1 ORDER BY event_id DESC LIMIT 1",
        (FAR if before is None else before,),
    )
    return newest or 0


def audit(
    tx: Transaction,
    *,
    schedule_id: str | None = None,
    before: tuple[int, int] | None = None,
    limit: int = 50,
) -> list[EventRow]:
    """Return events that a caller caused. The contract is `Store.audit`."""
    found: list[EventRow] = []
    last, _ = before = (FAR, 0) if before is None else before
    while len(found) < limit:
        rows = tx.all(AUDIT, (last, limit))
        some = sorted(_own(tx, _events(rows)), key=_place, reverse=True)
        found += [
            each for each in some if _place(each) < before and schedule_id in (None, about(each))
        ]
        if len(rows) < limit:
            break
        *_, (oldest, _, _) = rows
        last = oldest - 1
    return found[:limit]


def _place(row: EventRow) -> tuple[int, int]:
    return row.event_id, row.n


def _events(rows: Sequence[Row]) -> list[EventRow]:
    return [
        EventRow(event_id, n, at, event)
        for event_id, at, body in rows
        for n, event in enumerate(decode_events(body))
    ]


def about(row: EventRow) -> str | None:
    """Return the id of the schedule that an event is about, if any."""
    found: str | None = getattr(row.event, "schedule_id", None)
    return found


def _own(tx: Transaction, found: list[EventRow]) -> list[EventRow]:
    """Return the events that the caller may see: of its schedules, and of the gate."""
    if tx.only_owner is None:
        return found
    ids = {about(each) for each in found} - {None}
    sql = "SELECT schedule_id FROM schedules WHERE user_id = ?1 AND schedule_id IN (?2[])"
    own = set(tx.column(sql, (tx.only_owner, sorted(ids, key=str)))) if ids else set()
    return [each for each in found if isinstance(each.event, GateChanged) or about(each) in own]


def next_due(tx: Transaction, *, after: int) -> int | None:
    """Return when something is next to be decided or claimed. The contract is `Store.next_due`."""
    if not gate_is_open(tx):
        return None
    found: int | None = tx.value(NEXT_DUE, (after, tx.due_from))
    return found


def overview(tx: Transaction) -> Overview:
    """Return the overview that `onbeat status` shows."""
    own = "TRUE" if tx.only_owner is None else f"schedule_id IN ({SCHEDULES_OF_OWNER})"
    owner: Bindings = () if tx.only_owner is None else (tx.only_owner,)
    ((total, paused),) = tx.all(COUNT_SCHEDULES.format(own=own), owner)
    now = f"?{len(owner) + 1}"
    ((due, next_due_at),) = tx.all(COUNT_DUE.format(own=own, now=now), (*owner, tx.now))
    unfinished: Counter[str] = Counter()
    counting = (
        f"SELECT phase, count(*) FROM schedule_runs WHERE finished_at IS NULL AND {own} "
        "GROUP BY phase"
    )
    for phase, n in tx.all(counting, owner):
        unfinished[Phase(phase).facts.status] += n
    return Overview(
        tx.now,
        gate_open=gate_is_open(tx),
        schedules=total,
        paused=paused,
        due=due,
        next_due_at=next_due_at,
        runs=dict(unfinished),
        nodes=nodes(tx) if tx.only_owner is None else [],
        awaited=[
            AwaitedRow(*row)
            for row in tx.all(
                "SELECT run_id, schedule_id, started_at, deadline_at, coalesce(external_id, '') "
                "FROM schedule_runs WHERE deadline_at IS NOT NULL AND leased_by IS NULL "
                f"AND finished_at IS NULL AND {IS_STARTED} AND {own} "
                f"ORDER BY deadline_at LIMIT {MOST_AWAITED}",
                owner,
            )
        ],
        following=zone_data.following(tx) if tx.only_owner is None else None,
        stuck=tx.value(f"SELECT count(*) FROM schedule_runs WHERE {STUCK} AND {own}", owner),
    )


def figures(tx: Transaction) -> StoreFigures:
    """Return figures for metrics. The contract is `Store.figures`."""
    counts = (COUNT_FAILING, WAITING_SINCE, COUNT_TO_NOTIFY, tx.SIZE)
    failing, waiting_since, to_notify, size = map(tx.value, counts)
    outbox: dict[str, int] = dict(tx.all("SELECT state, count(*) FROM outbox GROUP BY state"))
    return StoreFigures(failing, waiting_since, to_notify, outbox, size)


def nodes(tx: Transaction) -> list[NodeRow]:
    """Return all nodes, the oldest first."""
    return [_node(row) for row in tx.all(NODES)]


def groups(tx: Transaction) -> list[GroupRow]:
    """Return all groups, by name."""
    waiting: dict[str, int] = dict(tx.all(WAITING_IN_GROUPS))
    rows = sorted(tx.all(GROUPS))
    return [GroupRow(name, places, used, waiting.get(name, 0)) for name, places, used in rows]


def prune(tx: Transaction, *, before: int, limit: int = 10_000) -> int:
    """Remove finished runs and events older than `before`. The contract is `Store.prune`."""
    tx.hold_definitions()
    removed = tx.run(PRUNE, (before, limit))
    gone = tx.run(
        "DELETE FROM events WHERE event_id IN (SELECT event_id FROM "
        "(SELECT event_id, at FROM events ORDER BY event_id LIMIT ?2) e WHERE at < ?1)",
        (before, limit),
    )
    tx.run(FORGET_DEFINITIONS, (before,))
    tx.run("DELETE FROM node_times WHERE ended_at < ?1", (before,))
    forget_messages(tx, before)
    for table in ("schedule_state", "schedules"):
        tx.run(FORGET_DELETED.format(table=table), (before,))
    if removed or gone:
        tx.run(KEEP, ("history_from", str(before)))
    if removed:
        tx.emit(HistoryPruned(before, removed))
    return removed


def _schedule(row: Row) -> ScheduleRow:
    found = dict(zip(ScheduleRow.__dataclass_fields__, row, strict=True))
    return ScheduleRow(**found | {"paused": bool(found["paused"])})


def _run(row: Row) -> RunRow:
    found = dict(zip(RunRow.__dataclass_fields__, row, strict=True))
    for name in ("result", "inputs", "rendered"):
        if found[name] is not None:
            found[name] = msgspec.json.decode(found[name])
    return RunRow(**found | {"phase": Phase(found["phase"])})


def _node(row: Row) -> NodeRow:
    found = dict(zip(NodeRow.__dataclass_fields__, row, strict=True))
    for name in ("roles", "offers"):
        found[name] = frozenset(msgspec.json.decode(found[name], type=list[str]))
    return NodeRow(**found | {"is_stopping": bool(found["is_stopping"])})
