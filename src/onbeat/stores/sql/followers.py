"""Ticks that follow an event: the end of a run, or a start of the scheduler.

A transaction in which such an event happens also holds the schedules that follow it, and writes
their due rows.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from onbeat.core.decide.follow import (
    ENDINGS,
    causes_after_end,
    causes_after_start,
    cycle_problem,
    encode_happened,
    find_cycle,
)
from onbeat.core.decide.plan import next_due
from onbeat.core.runs.phase import Status
from onbeat.core.schedule import Schedule, follows
from onbeat.core.triggers.past import STARTUP, TriggerCause
from onbeat.errors import InvalidSchedule
from onbeat.stores.sql.rows import replace_due
from onbeat.stores.sql.schedule_rows import StoredSchedule, find_all
from onbeat.stores.sql.transaction import Transaction, Value
from onbeat.stores.sql.zone_data import follow_held

FOLLOWERS = "SELECT DISTINCT schedule_id FROM follows WHERE followed IN (?1[]) ORDER BY schedule_id"


def followers(tx: Transaction, followed: Collection[str]) -> list[str]:
    """Return the schedules that follow any of these."""
    return tx.column(FOLLOWERS, (list(followed),))


def hold_with_followers(tx: Transaction, schedule_ids: Collection[str]) -> set[str]:
    """Hold schedules and their followers; return which of them are followed."""
    if tx.one("SELECT 1 FROM follows LIMIT 1") is None:
        tx.hold(schedule_ids)
        return set()
    rows = tx.all(
        "SELECT followed, schedule_id FROM follows WHERE followed IN (?1[])", (list(schedule_ids),)
    )
    tx.hold({*schedule_ids, *(follower for _, follower in rows)})
    return {followed for followed, _ in rows}


def cause(tx: Transaction, schedule_id: str, status: Status) -> None:
    """Give ticks to the followers of a schedule, whose run has ended so. All are held."""
    if status not in ENDINGS:
        return
    ids = followers(tx, [schedule_id])
    if ids:
        follow_held(tx, ids)
    for stored in find_all(tx, ids):
        schedule = stored.schedule()
        if schedule is None or stored.deleted:
            continue
        past, until = stored.state.past, stored.state.decided_until
        own = [""] if stored.schedule_id == schedule_id else []  # it may also follow itself by name
        for name in (*own, schedule_id):
            happened = causes_after_end(
                schedule.trigger, past, name, status, now=tx.now, until=until
            )
            past = replace(past, happened=happened)
        happen(tx, stored, schedule, past.happened)


def cause_startup(tx: Transaction) -> None:
    """Give ticks to schedules that follow a start of the scheduler."""
    ids = followers(tx, [STARTUP])
    tx.hold(ids)
    follow_held(tx, ids)
    for stored in find_all(tx, ids):
        schedule = stored.schedule()
        if schedule is not None and not stored.deleted:
            until = stored.state.decided_until
            happened = causes_after_start(
                schedule.trigger, stored.state.past, now=tx.now, until=until
            )
            happen(tx, stored, schedule, happened)


def happen(
    tx: Transaction,
    stored: StoredSchedule,
    schedule: Schedule,
    happened: Mapping[str, TriggerCause],
) -> None:
    """Store what has happened, and move the due row if that gives an earlier tick."""
    tx.run(
        "UPDATE schedule_state SET happened = ?1 WHERE schedule_id = ?2",
        (encode_happened(happened), stored.schedule_id),
    )
    if stored.paused:
        return
    past = replace(stored.state.past, happened=happened)
    due = next_due(schedule, stored.state.decided_until, past)
    if due is not None and (stored.run_at is None or due.run_at < stored.run_at):
        replace_due(tx, [(stored.schedule_id, due)])


def keep_follows(tx: Transaction, schedules: Sequence[Schedule]) -> None:
    """Store what schedules follow; refuse schedules that do not exist, and cycles.

    The definitions are held: no other transaction adds to them.
    """
    if tx.one("SELECT 1 FROM follows LIMIT 1") is not None:
        ids = [schedule.schedule_id for schedule in schedules]
        tx.many("DELETE FROM follows WHERE schedule_id IN ({?text})", ids)
    new: list[Value] = []
    for schedule in schedules:
        for followed in sorted(follows(schedule)):
            new += (followed, schedule.schedule_id)
    if not new:
        return
    tx.many("INSERT INTO follows (followed, schedule_id) VALUES {(?text,?text)}", new)
    found = tx.column(
        "SELECT schedule_id FROM schedules WHERE deleted_at IS NULL AND schedule_id IN (?1[])",
        (sorted({followed for each in schedules for followed in follows(each)}),),
    )
    existing_ids = {STARTUP, *found}
    for schedule in schedules:
        for followed in sorted(follows(schedule) - existing_ids):
            problem = f"schedule {schedule.schedule_id} follows {followed!r}, which does not exist"
            raise InvalidSchedule(
                "after.schedule", problem, hint="define it first, or both together"
            )
    if cycle := _cycle(tx, [schedule.schedule_id for schedule in schedules]):
        raise InvalidSchedule("after.schedule", cycle_problem(cycle), hint="remove one of these")


def _cycle(tx: Transaction, schedule_ids: Sequence[str]) -> list[str]:
    """Return a path by which one of these follows itself, or an empty list.

    A schedule that nothing follows is not part of a cycle. For the others, one statement reads all
    that they follow.
    """
    followed = set(tx.column(FOLLOWED, (list(schedule_ids),)))
    names = [name for name in schedule_ids if name in followed]
    edges: dict[str, list[str]] = {}
    for name, other in tx.all(ALL_FOLLOWED, (names,)) if names else ():
        edges.setdefault(name, []).append(other)
    return find_cycle(edges, names)


FOLLOWED = "SELECT DISTINCT followed FROM follows WHERE followed IN (?1[])"
ALL_FOLLOWED = """
  WITH RECURSIVE up (schedule_id) AS (
       SELECT schedule_id FROM follows WHERE schedule_id IN (?1[])
        UNION
       SELECT f.followed FROM up JOIN follows f USING (schedule_id)
       )
SELECT f.schedule_id, f.followed FROM up JOIN follows f USING (schedule_id)
"""
