"""Deciding ticks: due rows in, run rows and the next due rows out, in one transaction."""

from collections.abc import Sequence

from onbeat.core.plan import Due, Plan
from onbeat.core.runs import Run
from onbeat.core.schedules import Schedule, from_definition
from onbeat.core.zones import VERSION
from onbeat.events import ScheduleParked
from onbeat.ports import Node, PlanFunction, Planned
from onbeat.stores.sql.deciding import Decided, carry_out
from onbeat.stores.sql.rows import (
    State,
    gate_is_open,
    may_start,
    replace_due,
    unfinished_of,
    zone_data,
)
from onbeat.stores.sql.running import end_silent
from onbeat.stores.sql.transaction import Row, Transaction

PARKED = 5 * 60_000  # how long a definition rests that cannot be read or planned


def plan_due(
    tx: Transaction, plan: PlanFunction, *, limit: int, node: Node | None, slots: int
) -> Planned:
    """Decide up to `limit` due rows, in time order. The contract is `Store.plan_due`.

    Runs of nodes that have fallen silent are decided first: they stand in nobody's way.
    """
    starts_for = node if node is not None and may_start(tx, node) else None
    if starts_for is None:
        tx.keep_gate()
        if not gate_is_open(tx):
            return Planned(0)
    if zone_data(tx) > VERSION:
        return Planned(0, is_outdated=True)
    rows = tx.take_due(limit)
    if not rows:
        return Planned(0)
    ids = [row[0] for row in rows]
    end_silent(tx, ids, node)
    unfinished = unfinished_of(tx, ids)
    decided: list[Decided] = []
    due: list[tuple[str, Due | None]] = []
    needed: set[str] = set()
    for row in rows:
        schedule_id = row[0]
        left = unfinished.get(schedule_id, ())
        try:
            found, schedule, state = _plan_one(row, plan, left, tx.now)
        except Exception as broken:  # noqa: BLE001 - one poisoned definition must not hurt the others
            tx.tell(ScheduleParked(schedule_id, f"{type(broken).__name__}: {broken}"[:500]))
            due.append((schedule_id, Due(row[1], tx.now + PARKED)))
            continue
        due.append((schedule_id, found.due))
        needed.add(schedule.target.needs)
        if found.decisions:
            decided.append(Decided(schedule, state, found.decisions, left, found.spread_until))
    done = carry_out(tx, decided, starts_for, slots)
    replace_due(tx, due)
    unoffered = frozenset(needed - node.offers) if node is not None else frozenset()
    return Planned(len(rows), len(rows) == limit, done.attempts, done.enqueued, unoffered)


def _plan_one(
    row: Row, plan: PlanFunction, unfinished: Sequence[Run], now: int
) -> tuple[Plan, Schedule, State]:
    schedule = from_definition(row[0], row[2])
    run_at, state = row[1], State(*row[3:])
    return plan(schedule, run_at, unfinished, state.past, now), schedule, state
