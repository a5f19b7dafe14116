"""Definitions as code over HTTP: what a set of them would do, and doing it; and what is to come."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence, Sized
from time import monotonic
from typing import Annotated, Any

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec.structs import replace

from onbeat.core.schedule import Schedule, check_id, read_schedule
from onbeat.core.schema import schema_of_file
from onbeat.core.snapshot import with_definitions, with_start
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.zones import zone
from onbeat.core.triggers.calendars import NO_CALENDARS, Exclude
from onbeat.errors import InvalidSchedule, naming
from onbeat.service.apply_plan import ApplyPlan, ChangeFields, change_fields
from onbeat.service.service import Service
from onbeat.simulate.forecasts import forecast_fields
from onbeat.simulate.simulation import RUN_LENGTH, Simulation
from onbeat.web.params import instant_of, problem_responses
from onbeat.web.routes.schedules import Definition

WEEK = 7 * 86_400_000
MOST_SCHEDULES = 10_000  # of one request, or one forecast
MOST_WORK = 100_000  # to count ticks gained and lost: seconds of a thread
MOST_PLAYED, MOST_COUNTED = 100_000, 20_000_000  # ticks of one forecast, which others wait beside
LARGE_PATHS = frozenset({"/api/v1/plan", "/api/v1/apply", "/api/v1/simulate"})

Length = Annotated[str, msgspec.Meta(max_length=64)]


class Definitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All the schedules of a source, as a file would have them.

    `calendars` are lists of dates, by the names that `exclude` has for them. The source owns
    definitions: with `prune`, what it defined before and does not any more goes. Runs that wait
    start by the revision they were decided under, unless `update_waiting` moves them.
    """

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    schedules: dict[str, Definition]
    timezone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    calendars: dict[str, list[str]] = {}
    prune: bool = False
    take_over: bool = False
    update_waiting: bool = False  # runs that wait are moved to the new definitions


class Planned(msgspec.Struct, frozen=True):
    """What applying definitions does, or would do, to each schedule."""

    source: str
    changes: list[ChangeFields]


class Forecasting(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"names": "only"}
):
    """What to forecast: until when, for which schedules, and as if which were defined."""

    until: Length | None = None
    names: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None
    schedules: dict[str, Definition] = {}
    timezone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    run_length: Length | None = None


@post("/plan", operation_id="plan", status_code=200, responses=problem_responses("schedule", 422))
async def plan(service: NamedDependency[Service], data: JSONBody[Definitions]) -> Planned:
    """Return what applying definitions would do: the difference, and ticks gained and lost.

    `past` names what it would start, record as missed, keep waiting and cancel.
    """
    return (await _planned(service, data))[1]


@post(
    "/apply",
    operation_id="apply",
    status_code=200,
    responses=problem_responses("schedule", 409, 412, 422),
)
async def apply(service: NamedDependency[Service], data: JSONBody[Definitions]) -> Planned:
    """Apply definitions, all or none of them. Pauses and positions stay as they are.

    Revisions are told as they are afterwards.
    """
    changes, answer = await _planned(service, data)
    done = await service.apply(changes)
    holds: dict[str, int | None] = {each.schedule_id: each.revision for each in done}
    holds |= {each.schedule_id: each.revision for each in changes.of("keep")}
    told = [replace(each, revision=holds.get(each.schedule_id)) for each in answer.changes]
    return replace(answer, changes=told)


async def _planned(service: Service, data: Definitions) -> tuple[ApplyPlan, Planned]:
    _check_number(data.schedules)
    # What is only computed is done by a thread: the engine has its turn beside it.
    schedules = await asyncio.to_thread(_read, data.schedules, data.timezone, data.calendars)
    changes = await service.plan_changes(
        schedules,
        source=data.source,
        prune=data.prune,
        take_over=data.take_over,
        most=MOST_SCHEDULES,
        work=MOST_WORK,
        update_waiting=data.update_waiting,
    )
    told = await asyncio.to_thread(lambda: [change_fields(each) for each in changes.changes])
    return changes, Planned(data.source, told)


@post(
    "/simulate",
    operation_id="simulate",
    status_code=200,
    responses=problem_responses("schedule", 422),
)
async def simulate(
    service: NamedDependency[Service], data: JSONBody[Forecasting | None] = None
) -> dict[str, Any]:
    """Forecast what schedules will do: starts, skips and why, and how much runs at once."""
    asked = data or Forecasting()
    _check_number(asked.schedules)
    schedules = await asyncio.to_thread(_read, asked.schedules, asked.timezone)
    for n, schedule in enumerate(schedules):
        if n % 100 == 99:
            await asyncio.sleep(0)
        with naming(f"schedules.{schedule.schedule_id}"):
            service.check(schedule)
    standings = await service.standings(most=MOST_SCHEDULES)
    if schedules:
        standings = await asyncio.to_thread(with_definitions, standings, schedules)
    until = standings.now + WEEK
    if asked.until is not None:
        until = _until(asked.until, standings.now)
    length = RUN_LENGTH
    if asked.run_length is not None:
        with naming("run_length"):
            length = parse_duration(asked.run_length).elapsed * 1000
    simulation = await asyncio.to_thread(
        Simulation,
        await asyncio.to_thread(with_start, standings),
        until=until,
        only=asked.names,
        run_length=length,
        timezone=zone(asked.timezone).name,
        most_played=MOST_PLAYED,
        most_counted=MOST_COUNTED,
    )
    steps = simulation.steps()
    while await asyncio.to_thread(_has_more, steps):  # until nobody waits for it any more
        pass
    return await asyncio.to_thread(lambda: forecast_fields(simulation.forecast()))


@get("/schema", operation_id="schema", responses=problem_responses("schema"))
async def schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of definitions, for editors."""
    return dict(schema_of_file())


def _has_more(steps: Iterator[object]) -> bool:
    """Take steps for a moment; return whether there may be more."""
    until = monotonic() + 0.1
    return any(monotonic() > until for _ in steps)


def _check_number(given: Sized) -> None:
    if len(given) > MOST_SCHEDULES:
        hint = f"{MOST_SCHEDULES} at most in one request"
        raise InvalidSchedule("schedules", f"there are {len(given)}", hint=hint)


def _read(
    given: dict[str, Definition], timezone: str, listed: Mapping[str, Sequence[str]] = NO_CALENDARS
) -> list[Schedule]:
    """Return the schedules of definitions, or refuse the first that is wrong."""
    where = zone(timezone).name
    calendars: dict[str, tuple[str, ...]] = {}
    for name, items in listed.items():
        with naming(f"calendars.{name}"):
            calendars[name] = Exclude(tuple(items)).items  # refused here, should one be no date
    found: list[Schedule] = []
    for name, fields in given.items():
        with naming(f"schedules.{name}"):
            found.append(read_schedule(check_id(name), fields, timezone=where, calendars=calendars))
    return found


def _until(given: str, now: int) -> int:
    """Return an instant, or the end of a length from now, in milliseconds."""
    try:
        until = now + parse_duration(given).elapsed * 1000
    except InvalidSchedule:
        until = instant_of("until", given) * 1000
    if until <= now:
        raise InvalidSchedule("until", "it is past", hint="a length such as 30d, or a later time")
    return until


ROUTES = [plan, apply, simulate, schema]
