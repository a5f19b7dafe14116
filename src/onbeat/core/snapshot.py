"""Where schedules stand: what a forecast begins with.

Ticks are in seconds, everything else is in milliseconds.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from onbeat.core.decide.follow import find_cycle, followed_schedules, started
from onbeat.core.decide.plan import defined_late, next_due
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule, follows
from onbeat.core.triggers.past import STARTUP, Past
from onbeat.errors import InvalidSchedule

NO_TIMES: Mapping[int, int] = MappingProxyType({})
NO_PLACES: Mapping[str, int] = MappingProxyType({})


class ScheduleSnapshot(msgspec.Struct, frozen=True):
    """A schedule, where it is, and what of it is under way."""

    schedule: Schedule
    decided_until: int  # every tick up to here is decided
    decided_run_at: int = 0  # the latest tick that has its row
    past: Past = Past()
    due: Due | None = None  # its due row; when it goes on by itself, if it is paused
    unfinished: tuple[Run, ...] = ()
    started_at: Mapping[int, int] = NO_TIMES  # of the runs that were started, by their ids
    is_paused: bool = False
    paused_until: int | None = None
    length: int | None = None  # how long its runs usually take, if that is known


class Snapshot(msgspec.Struct, frozen=True):
    """How things stand at one instant: all that a forecast depends on."""

    now: int
    standings: tuple[ScheduleSnapshot, ...] = ()
    places: Mapping[str, int] = NO_PLACES  # of groups; others have one
    gate_is_open: bool = True
    is_up: bool = True  # a node is alive: what follows a start has had it
    unreadable: tuple[str, ...] = ()  # schedules whose definition cannot be read


def newly_defined(schedule: Schedule, *, now: int) -> ScheduleSnapshot:
    """Return where a schedule stands that is defined now: as `Store.upsert` leaves it."""
    past, until = Past(created_at=now // 1000), now // 1000
    if schedule.ticks_once:
        _, until = defined_late(schedule, past, now=now)
    return ScheduleSnapshot(schedule, until, past=past, due=next_due(schedule, until, past))


def redefined(standing: ScheduleSnapshot, schedule: Schedule, *, now: int) -> ScheduleSnapshot:
    """Return where one stands that is edited now: as `Store.upsert` leaves it.

    It keeps its past, its runs and its pause, and if it is timed as before its position too.
    """
    if schedule.is_timed_like(standing.schedule):
        return replace(standing, schedule=schedule)
    until = max(standing.decided_run_at, now // 1000)
    due = standing.due if standing.is_paused else next_due(schedule, until, standing.past)
    return replace(standing, schedule=schedule, decided_until=until, due=due)


def with_definitions(found: Snapshot, schedules: Iterable[Schedule]) -> Snapshot:
    """Return how things would stand if these schedules were defined now."""
    there = {standing.schedule.schedule_id: standing for standing in found.standings}
    for schedule in schedules:
        known = there.get(schedule.schedule_id)
        there[schedule.schedule_id] = (
            newly_defined(schedule, now=found.now)
            if known is None
            else redefined(known, schedule, now=found.now)
        )
    _check_followed({name: follows(standing.schedule) for name, standing in there.items()})
    return replace(found, standings=tuple(there.values()))


def as_of(found: Snapshot, at: int) -> Snapshot:
    """Return how things would stand if all schedules had been defined, as they are, at that time.

    A tick of that very instant is to come. Nothing is under way then, nor paused.
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
        for each in found.standings
    )
    return replace(found, now=at, standings=tuple(new), is_up=False)


def with_start(found: Snapshot) -> Snapshot:
    """Return how things would stand if the scheduler were started now, unless it is up."""
    if found.is_up:
        return found
    return replace(
        found, standings=tuple(_started(each, now=found.now) for each in found.standings)
    )


def _started(standing: ScheduleSnapshot, *, now: int) -> ScheduleSnapshot:
    schedule, until = standing.schedule, standing.decided_until
    if STARTUP not in follows(schedule):
        return standing
    happened = started(schedule.trigger, standing.past, now=now, until=until)
    past = replace(standing.past, happened=happened)
    due = standing.due if standing.is_paused else next_due(schedule, until, past)
    return replace(standing, past=past, due=due)


def _check_followed(followed: Mapping[str, set[str]]) -> None:
    """Refuse what the store would: to follow what is not there, or oneself through others."""
    for name in sorted(followed):
        for other in sorted(followed[name] - followed.keys() - {STARTUP}):
            problem = f"{name} follows {other!r}, which is not there"
            raise InvalidSchedule("after.schedule", problem, hint="define that one first, or both")
    if circle := find_cycle(followed, sorted(followed)):
        raise InvalidSchedule(
            "after.schedule", followed_schedules(circle), hint="leave one of these out"
        )
