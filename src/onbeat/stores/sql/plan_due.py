"""Decide ticks: due rows in, run rows and the next due rows out, in one transaction."""

from onbeat.core.runs.decisions import Due
from onbeat.core.schedule import from_definition
from onbeat.events import RunCancelRequested, ScheduleParked
from onbeat.ports.store import Node, PlanFunction, PlanResult
from onbeat.stores.sql import zone_data
from onbeat.stores.sql.lost import end_lost_and_expired
from onbeat.stores.sql.pause import resume_after_pause
from onbeat.stores.sql.rows import (
    gate_is_open,
    may_start,
    unfinished_of,
    write_due,
)
from onbeat.stores.sql.transaction import Transaction
from onbeat.stores.sql.write_decisions import Decided, carry_out

LONGEST_PROBLEM = 500  # characters of why a definition cannot be planned
PARKED = 5 * 60_000  # milliseconds until a definition that cannot be planned is tried again


def plan_due(
    tx: Transaction, plan: PlanFunction, *, limit: int, node: Node | None = None, slots: int = 0
) -> PlanResult:
    """Decide up to `limit` due rows, in time order. The contract is `Store.plan_due`.

    Pauses that have ended are resumed first, and lost or expired runs are ended.
    """
    starts_for = node if node is not None and may_start(tx, node) else None
    if starts_for is None:
        tx.keep_gate()
        if not gate_is_open(tx):
            return PlanResult(0)
    zones = zone_data.ZoneDataState(tx)
    if zones.is_newer:
        return PlanResult(0, is_outdated=True)
    taken = tx.take_due(limit)
    is_full = len(taken) == limit
    if zones.cursor is not None:  # some due rows may be of older zone data
        taken = zone_data.follow_taken(tx, zones.cursor, taken)
    paused = [row.schedule_id for row in taken if row.paused]
    resume_after_pause(tx, paused)
    rows = [row for row in taken if not row.paused] if paused else taken
    unfinished = unfinished_of(tx, [row.schedule_id for row in rows]) if rows else {}
    changed, out = end_lost_and_expired(tx, unfinished, node)
    rows = [row for row in rows if row.schedule_id not in out] if out else rows
    if not rows:
        return PlanResult(len(paused), is_full=bool(paused))
    if changed:
        unfinished = unfinished_of(tx, [row.schedule_id for row in rows])
    decided: list[Decided] = []
    due: list[tuple[str, Due | None]] = []
    needed: set[str] = set()
    for row in rows:
        schedule_id = row.schedule_id
        left = unfinished.get(schedule_id, ())
        try:
            schedule = from_definition(schedule_id, row.definition)
            found = plan(schedule, row.run_at, left, row.state.past, tx.now)
        except Exception as broken:  # noqa: BLE001 - one poisoned definition must not hurt the others
            problem = f"{type(broken).__name__}: {broken}"
            tx.emit(ScheduleParked(schedule_id, problem[:LONGEST_PROBLEM]))
            due.append((schedule_id, Due(row.run_at, tx.now + PARKED)))
            continue
        due.append((schedule_id, found.due))
        needed.add(schedule.needs)
        if found.decisions:
            decided.append(Decided(schedule, row.state, found.decisions, left, found.spread_until))
    done = carry_out(tx, decided, starts_for, slots)
    write_due(tx, due)
    return PlanResult(
        len(rows) + len(paused),
        is_full or bool(paused),  # resumed schedules may have ticks that are due
        done.attempts,
        done.enqueued,
        frozenset(needed - node.offers) if node is not None else frozenset(),
        has_cancel_requests=any(isinstance(event, RunCancelRequested) for event in tx.events),
    )
