"""Snapshots of schedules: the starting point of a forecast.

Ticks are in seconds, everything else is in milliseconds.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from onbeat.core.decide.follow import causes_after_start, cycle_problem, find_cycle
from onbeat.core.decide.plan import defined_late, next_due
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule, follows
from onbeat.core.triggers.past import STARTUP, Past
from onbeat.errors import InvalidSchedule

NO_TIMES: Mapping[int, int] = MappingProxyType({})
NO_PLACES: Mapping[str, int] = MappingProxyType({})


class ScheduleSnapshot(msgspec.Struct, frozen=True):
    """A schedule, its position, and its unfinished runs."""

    schedule: Schedule
    decided_until: int  # every tick up to here is decided
    decided_run_at: int = 0  # the latest tick that has a row
    past: Past = Past()
    due: Due | None = None  # its due row; if it is paused, when it resumes automatically
    unfinished: tuple[Run, ...] = ()
    started_at: Mapping[int, int] = NO_TIMES  # of the started runs, by run id
    is_paused: bool = False
    paused_until: int | None = None
    length: int | None = None  # the usual duration of its runs, if known


class Snapshot(msgspec.Struct, frozen=True):
    """The state of all schedules at one instant: everything that a forecast depends on."""

    now: int
    schedules: tuple[ScheduleSnapshot, ...] = ()
    places: Mapping[str, int] = NO_PLACES  # concurrency limits by group; 1 for others
    gate_is_open: bool = True
    is_up: bool = True  # a node is alive: `startup` ticks have been caused
    unreadable: tuple[str, ...] = ()  # schedules whose definition cannot be read


def newly_defined(schedule: Schedule, *, now: int) -> ScheduleSnapshot:
    """Return the snapshot of a schedule that is defined now, as `Store.upsert` would leave it."""
    past, until = Past(created_at=now // 1000), now // 1000
    if schedule.ticks_once:
        _, until = defined_late(schedule, past, now=now)
    return ScheduleSnapshot(schedule, until, past=past, due=next_due(schedule, until, past))


def redefined(snapshot: ScheduleSnapshot, schedule: Schedule, *, now: int) -> ScheduleSnapshot:
    """Return the snapshot of a schedule that is edited now, as `Store.upsert` would leave it.

    It keeps its past, its runs and its pause, and also its position if its timing is unchanged.
    """
    if schedule.is_timed_like(snapshot.schedule):
        return replace(snapshot, schedule=schedule)
    until = max(snapshot.decided_run_at, now // 1000)
    due = snapshot.due if snapshot.is_paused else next_due(schedule, until, snapshot.past)
    return replace(snapshot, schedule=schedule, decided_until=until, due=due)


def with_definitions(state: Snapshot, schedules: Iterable[Schedule]) -> Snapshot:
    """Return the snapshot that would result if these schedules were defined now."""
    by_id = {snapshot.schedule.schedule_id: snapshot for snapshot in state.schedules}
    for schedule in schedules:
        existing = by_id.get(schedule.schedule_id)
        by_id[schedule.schedule_id] = (
            newly_defined(schedule, now=state.now)
            if existing is None
            else redefined(existing, schedule, now=state.now)
        )
    _check_followed({name: follows(snapshot.schedule) for name, snapshot in by_id.items()})
    return replace(state, schedules=tuple(by_id.values()))


def as_of(state: Snapshot, at: int) -> Snapshot:
    """Return the snapshot that would result if all schedules had been defined at that time.

    A tick at that very instant is to come. No run is unfinished, and no schedule is paused.
    """
    past, until = Past(created_at=at // 1000), -(-at // 1000) - 1
    new = (
        ScheduleSnapshot(
            each.schedule,
            until,
            past=past,
            due=next_due(each.schedule, until, past),
            length=each.length,
        )
        for each in state.schedules
    )
    return replace(state, now=at, schedules=tuple(new), is_up=False)


def with_start(state: Snapshot) -> Snapshot:
    """Return the snapshot that would result if the scheduler started now, unless it is up."""
    if state.is_up:
        return state
    return replace(
        state, schedules=tuple(_started(each, now=state.now) for each in state.schedules)
    )


def _started(snapshot: ScheduleSnapshot, *, now: int) -> ScheduleSnapshot:
    schedule, until = snapshot.schedule, snapshot.decided_until
    if STARTUP not in follows(schedule):
        return snapshot
    happened = causes_after_start(schedule.trigger, snapshot.past, now=now, until=until)
    past = replace(snapshot.past, happened=happened)
    due = snapshot.due if snapshot.is_paused else next_due(schedule, until, past)
    return replace(snapshot, past=past, due=due)


def _check_followed(followed: Mapping[str, set[str]]) -> None:
    """Refuse what the store would refuse: following an unknown schedule, or a cycle."""
    for name in sorted(followed):
        for other in sorted(followed[name] - followed.keys() - {STARTUP}):
            problem = f"schedule {name} follows {other!r}, which does not exist"
            raise InvalidSchedule("after.schedule", problem, hint="define that one first, or both")
    if cycle := find_cycle(followed, sorted(followed)):
        raise InvalidSchedule("after.schedule", cycle_problem(cycle), hint="remove one of these")
