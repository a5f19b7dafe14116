"""Decide ticks: due rows in, run rows and the next due rows out, in one transaction."""

from collections.abc import Sequence

from onbeat.core.runs.decisions import Due, Plan
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule, from_definition
from onbeat.events import RunCancelRequested, ScheduleParked
from onbeat.ports.store import Node, PlanFunction, PlanResult
from onbeat.stores.sql import zone_data
from onbeat.stores.sql.lost import end_lost_and_expired
from onbeat.stores.sql.pause import resume_after_pause
from onbeat.stores.sql.rows import (
    State,
    gate_is_open,
    may_start,
    unfinished_of,
    write_due,
)
from onbeat.stores.sql.transaction import Row, Transaction
from onbeat.stores.sql.write_decisions import Decided, carry_out

PARKED = 5 * 60_000  # milliseconds until a definition that cannot be planned is tried again


def plan_due(
    tx: Transaction, plan: PlanFunction, *, limit: int, node: Node | None, slots: int
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
    paused = [row[0] for row in taken if row[-1]]
    resume_after_pause(tx, paused)
    rows = [row for row in taken if not row[-1]] if paused else taken
    unfinished = unfinished_of(tx, [row[0] for row in rows]) if rows else {}
    changed, out = end_lost_and_expired(tx, unfinished, node)
    rows = [row for row in rows if row[0] not in out] if out else rows
    if not rows:
        return PlanResult(len(paused), is_full=bool(paused))
    if changed:
        unfinished = unfinished_of(tx, [row[0] for row in rows])
    decided: list[Decided] = []
    due: list[tuple[str, Due | None]] = []
    needed: set[str] = set()
    for row in rows:
        schedule_id = row[0]
        left = unfinished.get(schedule_id, ())
        try:
            found, schedule, state = _plan_one(row, plan, left, tx.now)
        except Exception as broken:  # noqa: BLE001 - one poisoned definition must not hurt the others
            tx.emit(ScheduleParked(schedule_id, f"{type(broken).__name__}: {broken}"[:500]))
            due.append((schedule_id, Due(row[1], tx.now + PARKED)))
            continue
        due.append((schedule_id, found.due))
        needed.add(schedule.target.needs)
        if found.decisions:
            decided.append(Decided(schedule, state, found.decisions, left, found.spread_until))
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


def _plan_one(
    row: Row, plan: PlanFunction, unfinished: Sequence[Run], now: int
) -> tuple[Plan, Schedule, State]:
    schedule = from_definition(row[0], row[2])
    run_at, state = row[1], State(*row[3:-1])
    return plan(schedule, run_at, unfinished, state.past, now), schedule, state
