"""Definitions as code over HTTP: plan and apply a set of definitions, and forecast schedules."""

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
from onbeat.errors import InvalidSchedule, in_field
from onbeat.service.apply_plan import ApplyPlan, ChangeFields, change_fields
from onbeat.service.service import Service
from onbeat.simulate.forecasts import forecast_fields
from onbeat.simulate.simulation import RUN_LENGTH, Simulation
from onbeat.web.params import problem_responses, read_instant
from onbeat.web.routes.schedules import Definition

WEEK = 7 * 86_400_000
MOST_SCHEDULES = 10_000  # of one request, or one forecast
MOST_WORK = 100_000  # to count ticks gained and lost: some seconds of a thread
MOST_PLAYED, MOST_COUNTED = 100_000, 20_000_000  # ticks of one forecast
LARGE_PATHS = frozenset({"/api/v1/plan", "/api/v1/apply", "/api/v1/simulate"})

Length = Annotated[str, msgspec.Meta(max_length=64)]


class Definitions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All schedules of a source, as in a file of definitions.

    `calendars` are lists of dates, by the names used in `exclude`. With `prune`, schedules of the
    source that are not included are deleted. Waiting runs keep the revision they were decided
    under, unless `update_waiting` moves them to the new one.
    """

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    schedules: dict[str, Definition]
    timezone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    calendars: dict[str, list[str]] = {}
    prune: bool = False
    take_over: bool = False
    update_waiting: bool = False  # waiting runs are moved to the new definitions


class AppliedChanges(msgspec.Struct, frozen=True):
    """The change to each schedule that applying the definitions makes, or would make."""

    source: str
    changes: list[ChangeFields]


class SimulateRequest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"names": "only"}
):
    """What to forecast: until when, for which schedules, and with which further definitions."""

    until: Length | None = None
    names: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None
    schedules: dict[str, Definition] = {}
    timezone: Annotated[str, msgspec.Meta(max_length=100)] = "UTC"
    run_length: Length | None = None


@post("/plan", operation_id="plan", status_code=200, responses=problem_responses("schedule", 422))
async def plan(service: NamedDependency[Service], data: JSONBody[Definitions]) -> AppliedChanges:
    """Return what applying definitions would change, with the ticks gained and lost.

    `past` has the ticks that it would start or record as missed, and the effect on waiting runs.
    """
    return (await _planned(service, data))[1]


@post(
    "/apply",
    operation_id="apply",
    status_code=200,
    responses=problem_responses("schedule", 409, 412, 422),
)
async def apply(service: NamedDependency[Service], data: JSONBody[Definitions]) -> AppliedChanges:
    """Apply definitions atomically. Pauses and positions are not changed.

    The response has the resulting revisions.
    """
    changes, answer = await _planned(service, data)
    done = await service.apply(changes)
    revisions: dict[str, int | None] = {each.schedule_id: each.revision for each in done}
    revisions |= {each.schedule_id: each.revision for each in changes.of("keep")}
    applied = [replace(each, revision=revisions.get(each.schedule_id)) for each in answer.changes]
    return replace(answer, changes=applied)


async def _planned(service: Service, data: Definitions) -> tuple[ApplyPlan, AppliedChanges]:
    _check_number(data.schedules)
    # Computations run in a thread, so that they do not block the engine.
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
    fields = await asyncio.to_thread(lambda: [change_fields(each) for each in changes.changes])
    return changes, AppliedChanges(data.source, fields)


@post(
    "/simulate",
    operation_id="simulate",
    status_code=200,
    responses=problem_responses("schedule", 422),
)
async def simulate(
    service: NamedDependency[Service], data: JSONBody[SimulateRequest | None] = None
) -> dict[str, Any]:
    """Forecast schedules: starts, skipped ticks with the reason, and concurrent runs."""
    wanted = data or SimulateRequest()
    _check_number(wanted.schedules)
    schedules = await asyncio.to_thread(_read, wanted.schedules, wanted.timezone)
    for n, schedule in enumerate(schedules):
        if n % 100 == 99:
            await asyncio.sleep(0)
        with in_field(f"schedules.{schedule.schedule_id}"):
            service.check(schedule)
    snapshot = await service.read_snapshot(most=MOST_SCHEDULES)
    if schedules:
        snapshot = await asyncio.to_thread(with_definitions, snapshot, schedules)
    until = snapshot.now + WEEK
    if wanted.until is not None:
        until = _until(wanted.until, snapshot.now)
    length = RUN_LENGTH
    if wanted.run_length is not None:
        with in_field("run_length"):
            length = parse_duration(wanted.run_length).elapsed * 1000
    simulation = await asyncio.to_thread(
        Simulation,
        await asyncio.to_thread(with_start, snapshot),
        until=until,
        only=wanted.names,
        run_length=length,
        timezone=zone(wanted.timezone).name,
        most_played=MOST_PLAYED,
        most_counted=MOST_COUNTED,
    )
    steps = simulation.steps()
    while await asyncio.to_thread(_has_more, steps):  # ends early if the client disconnects
        pass
    return await asyncio.to_thread(lambda: forecast_fields(simulation.forecast()))


@get("/schema", operation_id="schema", responses=problem_responses("schema"))
async def schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of definitions, for editors."""
    return dict(schema_of_file())


def _has_more(steps: Iterator[object]) -> bool:
    """Simulate for a moment; return whether there may be more to do."""
    until = monotonic() + 0.1
    return any(monotonic() > until for _ in steps)


def _check_number(definitions: Sized) -> None:
    if len(definitions) > MOST_SCHEDULES:
        hint = f"{MOST_SCHEDULES} at most in one request"
        raise InvalidSchedule("schedules", f"there are {len(definitions)}", hint=hint)


def _read(
    definitions: dict[str, Definition],
    timezone: str,
    dates: Mapping[str, Sequence[str]] = NO_CALENDARS,
) -> list[Schedule]:
    """Return the schedules of definitions, or refuse the first invalid one."""
    tz = zone(timezone).name
    calendars: dict[str, tuple[str, ...]] = {}
    for name, items in dates.items():
        with in_field(f"calendars.{name}"):
            calendars[name] = Exclude(tuple(items)).items  # refuses items that are not dates
    schedules: list[Schedule] = []
    for name, fields in definitions.items():
        with in_field(f"schedules.{name}"):
            schedule = read_schedule(check_id(name), fields, timezone=tz, calendars=calendars)
            schedules.append(schedule)
    return schedules


def _until(text: str, now: int) -> int:
    """Return an instant, or the end of a duration from now, in milliseconds."""
    try:
        until = now + parse_duration(text).elapsed * 1000
    except InvalidSchedule:
        until = read_instant("until", text) * 1000
    if until <= now:
        hint = "a duration such as 30d, or a later time"
        raise InvalidSchedule("until", "it is in the past", hint=hint)
    return until


ROUTES = [plan, apply, simulate, schema]
