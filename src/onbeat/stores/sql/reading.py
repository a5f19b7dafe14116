"""Reading what is kept. Nothing here changes anything, but for what `prune` removes."""

import msgspec

from onbeat.events import AnyEvent, HistoryPruned, decode_events
from onbeat.ports import GroupRow, NodeRow, Overview, RunRow, ScheduleRow
from onbeat.stores.sql.rows import GROUPS, KEEP, gate_is_open
from onbeat.stores.sql.transaction import Row, Transaction

ALL_SCHEDULES = """
SELECT s.schedule_id, s.definition, s.revision, s.source, s.user_id, s.paused, s.pause_note,
       s.paused_until, s.created_at, s.updated_at, CASE WHEN s.paused = 0 THEN d.run_at END,
       CASE WHEN s.paused = 0 THEN d.due_at END, t.runs_used, t.iteration, t.last_run_at,
       t.last_success_at, t.last_failure_at, t.last_exit, t.last_missed_at, t.last_miss_reason,
       t.consecutive_failures
  FROM schedules s JOIN schedule_state t USING (schedule_id) LEFT JOIN due d USING (schedule_id)
 WHERE s.deleted_at IS NULL
 ORDER BY s.schedule_id
"""
ONE_SCHEDULE = ALL_SCHEDULES.replace("WHERE", "WHERE s.schedule_id = ?1 AND")
SCHEDULES_OF = ALL_SCHEDULES.replace("WHERE", "WHERE s.source = ?1 AND")

NEXT_DUE = """
SELECT min(at) FROM (
    SELECT min(due_at) AS at FROM due WHERE due_at >= ?2
    UNION ALL
    SELECT min(due_at) FROM schedule_runs
     WHERE status = 'ENQUEUED' AND leased_by IS NULL AND blocked_by IS NULL AND due_at > ?1
    UNION ALL
    SELECT min(deadline_at) FROM schedule_runs
     WHERE deadline_at IS NOT NULL AND leased_by IS NULL AND finished_at IS NULL) AS next
"""

RUN_COLUMNS = ", ".join(RunRow.__dataclass_fields__)

NODES = """
SELECT n.node_id, n.name, n.roles, n.offers, n.started_at, n.alive_until, n.version, n.tz,
       coalesce(r.running, 0), n.stop_asked
  FROM nodes n LEFT JOIN (
       SELECT leased_by, count(*) AS running FROM schedule_runs
        WHERE finished_at IS NULL AND status = 'STARTED' GROUP BY leased_by) r
    ON r.leased_by = n.node_id
 ORDER BY n.started_at, n.node_id
"""

WAITING_IN_GROUPS = """
SELECT grp, count(*) FROM schedule_runs INDEXED BY runs_in_group
 WHERE grp IS NOT NULL AND finished_at IS NULL AND status = 'ENQUEUED' AND leased_by IS NULL
 GROUP BY grp
"""

PRUNE = """
DELETE FROM schedule_runs WHERE run_id IN (
    SELECT run_id FROM (SELECT run_id, finished_at FROM schedule_runs ORDER BY run_id LIMIT ?2) r
     WHERE finished_at < ?1)
"""

FORGET_DELETED = """
DELETE FROM {table} WHERE schedule_id IN (
    SELECT s.schedule_id FROM schedules s
     WHERE s.deleted_at < ?1
       AND NOT EXISTS (SELECT 1 FROM schedule_runs r WHERE r.schedule_id = s.schedule_id))
"""


def schedules(tx: Transaction, *, source: str | None = None) -> list[ScheduleRow]:
    """Return the schedules there are, or those of one source."""
    rows = tx.all(ALL_SCHEDULES) if source is None else tx.all(SCHEDULES_OF, (source,))
    return [_schedule(row) for row in rows]


def schedule(tx: Transaction, schedule_id: str) -> ScheduleRow | None:
    """Return one schedule."""
    row = tx.one(ONE_SCHEDULE, (schedule_id,))
    return None if row is None else _schedule(row)


def runs(
    tx: Transaction,
    *,
    schedule_id: str | None,
    status: str | None,
    before: int | None,
    limit: int,
) -> list[RunRow]:
    """Return runs, latest first."""
    asked = {"schedule_id =": schedule_id, "status =": status, "run_id <": before}
    given = {clause: value for clause, value in asked.items() if value is not None}
    where = " AND ".join(f"{clause} ?{n}" for n, clause in enumerate(given, 2)) or "TRUE"
    sql = f"SELECT {RUN_COLUMNS} FROM schedule_runs WHERE {where} ORDER BY run_id DESC LIMIT ?1"
    return [_run(row) for row in tx.all(sql, (limit, *given.values()))]


def run(tx: Transaction, run_id: int) -> RunRow | None:
    """Return one run."""
    row = tx.one(f"SELECT {RUN_COLUMNS} FROM schedule_runs WHERE run_id = ?1", (run_id,))
    return None if row is None else _run(row)


def events(tx: Transaction, *, after: int, limit: int) -> list[tuple[int, int, AnyEvent]]:
    """Return what happened: what concerns one schedule in the order of commits."""
    rows = tx.all(
        "SELECT event_id, at, body FROM events WHERE event_id > ?1 ORDER BY event_id LIMIT ?2",
        (after, limit),
    )
    return [(event_id, at, event) for event_id, at, body in rows for event in decode_events(body)]


def next_due(tx: Transaction, *, after: int) -> int | None:
    """Return when something is next to be decided or claimed. The contract is `Store.next_due`."""
    if not gate_is_open(tx):
        return None
    row = tx.one(NEXT_DUE, (after, tx.due_from))
    return None if row is None else row[0]


def overview(tx: Transaction) -> Overview:
    """Return what `status` tells."""
    counted = tx.one(
        "SELECT count(*), coalesce(sum(paused), 0) FROM schedules WHERE deleted_at IS NULL"
    )
    due = tx.one("SELECT count(*) FILTER (WHERE due_at <= ?1), min(due_at) FROM due", (tx.now,))
    unfinished = tx.all(
        "SELECT status, count(*) FROM schedule_runs WHERE finished_at IS NULL GROUP BY status"
    )
    assert counted is not None, "a count has a row"
    assert due is not None, "a count has a row"
    return Overview(
        tx.now,
        gate_open=gate_is_open(tx),
        schedules=counted[0],
        paused=counted[1],
        due=due[0],
        next_due_at=due[1],
        runs=dict(unfinished),
        nodes=nodes(tx),
    )


def nodes(tx: Transaction) -> list[NodeRow]:
    """Return the nodes there are, the oldest first."""
    return [_node(row) for row in tx.all(NODES)]


def groups(tx: Transaction) -> list[GroupRow]:
    """Return the groups there are, by name."""
    waiting: dict[str, int] = dict(tx.all(WAITING_IN_GROUPS))
    rows = sorted(tx.all(GROUPS))
    return [GroupRow(name, places, used, waiting.get(name, 0)) for name, places, used in rows]


def prune(tx: Transaction, *, before: int, limit: int) -> int:
    """Remove finished runs and events older than `before`. The contract is `Store.prune`."""
    tx.hold_definitions()
    removed = tx.run(PRUNE, (before, limit))
    gone = tx.run(
        "DELETE FROM events WHERE event_id IN (SELECT event_id FROM "
        "(SELECT event_id, at FROM events ORDER BY event_id LIMIT ?2) e WHERE at < ?1)",
        (before, limit),
    )
    tx.run("DELETE FROM past_definitions WHERE until_at < ?1", (before,))
    for table in ("schedule_state", "schedules"):
        tx.run(FORGET_DELETED.format(table=table), (before,))
    if removed or gone:
        tx.run(KEEP, ("history_from", str(before)))
    if removed:
        tx.tell(HistoryPruned(before, removed))
    return removed


def _schedule(row: Row) -> ScheduleRow:
    values = list(row)
    values[5] = bool(values[5])
    return ScheduleRow(*values)


def _run(row: Row) -> RunRow:
    found = dict(zip(RunRow.__dataclass_fields__, row, strict=True))
    for name in ("result", "inputs", "rendered"):
        if found[name] is not None:
            found[name] = msgspec.json.decode(found[name])
    return RunRow(**found)


def _node(row: Row) -> NodeRow:
    found = dict(zip(NodeRow.__dataclass_fields__, row, strict=True))
    for name in ("roles", "offers"):
        found[name] = frozenset(msgspec.json.decode(found[name], type=list[str]))
    return NodeRow(**found | {"is_stopping": bool(found["is_stopping"])})
