"""Schedules over HTTP: read, define, edit, operate, and ask why."""

import hashlib
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from onbeat.core.decide.backfill import TELLS, Add, Choice, Refuse, Revive
from onbeat.core.explain.preview import preview
from onbeat.core.runs.run import Status
from onbeat.core.schedule import check_id, definition, from_definition, read_schedule
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import zone
from onbeat.errors import AlreadyThere, ChangedSince, InvalidSchedule, naming
from onbeat.ports.rows import RunFilter, ScheduleFilter
from onbeat.ports.store import Upserted
from onbeat.service.serialize import (
    PreviewFields,
    RunFields,
    ScheduleFields,
    WhyFields,
    preview_fields,
    run_fields,
    schedule_fields,
    why_fields,
)
from onbeat.service.service import Service
from onbeat.web.params import (
    IdempotencyKey,
    IfMatch,
    Instant,
    Limit,
    Moment,
    ScheduleId,
    Search,
    UpdateWaiting,
    etag,
    instant_of,
    milliseconds_of,
    problem_responses,
    revision_of,
    schedule_id_of,
)

LONGEST_PREVIEW = 1000
TRIES = 5  # at an edit that others come before

Definition = dict[str, object]  # its schema is put into the OpenAPI document by `web/openapi.py`


class SchedulePage(msgspec.Struct, frozen=True):
    """Schedules by id, and where to go on: with `cursor`, if there are more."""

    schedules: list[ScheduleFields]
    next_cursor: str | None


class RunPage(msgspec.Struct, frozen=True):
    """Runs, the latest first, and where to go on: with `cursor`, if there are more."""

    runs: list[RunFields]
    next_cursor: str | None


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to be made. Without an id it gets one."""

    definition: Definition
    schedule_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._/-]{1,200}$")] | None = None


class Pausing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, and until when: then it goes on by itself."""

    note: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    until: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class Resuming(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether what the pause left out is run once."""

    catchup: bool = False


class Starting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs in place of those that the schedule has, by name."""

    inputs: dict[str, object] = {}


class Backfilling(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"first": "from", "last": "to"},
):
    """Which ticks of the past are to run after all; with `dry_run` nothing is changed."""

    first: Annotated[str, msgspec.Meta(max_length=64)]
    last: Annotated[str, msgspec.Meta(max_length=64)]
    dry_run: bool = False


class TickToBackfill(msgspec.Struct, frozen=True):
    """What a backfill would do with a tick: `enqueue`, or `refuse` for a reason."""

    run_at: str
    action: Literal["enqueue", "refuse"]
    why: str = ""


class BackfillFields(msgspec.Struct, frozen=True):
    """What a backfill did; `following` is where to go on, as there was no more room."""

    dry_run: bool
    enqueued: int
    refused: int
    following: str | None
    waiting: int
    ticks: list[TickToBackfill]


class BulkWhich(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which schedules: those for which everything holds that is said here; or all of them."""

    ids: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None
    source: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    owner: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    paused: bool | None = None
    failing: bool | None = None
    q: Annotated[str, msgspec.Meta(max_length=200)] = ""
    all: bool = False

    @property
    def says_nothing(self) -> bool:
        """Whether it would mean every schedule without saying so."""
        return self == BulkWhich()


class Bulk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Something to be done to many schedules; with `dry_run` it is only told to which."""

    action: Literal["pause", "resume", "delete"]
    which: BulkWhich
    dry_run: bool = False
    note: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class BulkDone(msgspec.Struct, frozen=True):
    """To which schedules it was done, or would be, and which were so already."""

    action: str
    dry_run: bool
    changed: list[str]
    unchanged: list[str]


@get("/schedules", operation_id="list_schedules", responses=problem_responses("schedule"))
async def list_schedules(
    service: NamedDependency[Service],
    *,
    limit: Limit = 100,
    cursor: Annotated[str | None, QueryParameter(max_length=200)] = None,
    q: Search = "",
    source: Annotated[str | None, QueryParameter(max_length=4096)] = None,
    owner: Annotated[str | None, QueryParameter(max_length=200)] = None,
    paused: Annotated[bool | None, QueryParameter()] = None,
    failing: Annotated[
        bool | None, QueryParameter(description="Whether the last run failed.")
    ] = None,
) -> SchedulePage:
    """Return schedules by id, a page at a time."""
    which = ScheduleFilter(source, owner, paused, failing, q)
    found = await service.schedules(which, after=cursor or "", limit=limit + 1)
    more = found[limit - 1].schedule_id if len(found) > limit else None
    return SchedulePage([schedule_fields(row) for row in found[:limit]], more)


@post(
    "/schedules", operation_id="create_schedule", responses=problem_responses("schedule", 409, 422)
)
async def create_schedule(
    service: NamedDependency[Service],
    data: JSONBody[NewSchedule],
    idempotency_key: IdempotencyKey = None,
) -> Response[ScheduleFields]:
    """Make a schedule that is not there.

    The same again, under the same id or Idempotency-Key, makes nothing and answers 200; another
    definition under them is refused with 409.
    """
    schedule_id = data.schedule_id or _id_of(service, idempotency_key)
    schedule = read_schedule(check_id(schedule_id), data.definition)
    try:
        (done,) = await service.define([schedule], expected={schedule_id: None})
    except ChangedSince:
        row = await service.schedule(schedule_id)
        if row.definition != definition(service.as_allowed(schedule)):
            raise AlreadyThere(schedule_id) from None
        done = Upserted(schedule_id, "unchanged", row.revision)
    return await _shown(service, done)


@get(
    "/schedules/{schedule_id:str}",
    operation_id="get_schedule",
    responses=problem_responses("schedule", 404, 422),
)
async def get_schedule(
    service: NamedDependency[Service], schedule_id: ScheduleId
) -> Response[ScheduleFields]:
    """Return one schedule. Its ETag is what If-Match takes."""
    row = await service.schedule(schedule_id_of(schedule_id))
    return Response(schedule_fields(row), headers={"ETag": etag(row.revision)})


@put(
    "/schedules/{schedule_id:str}",
    operation_id="put_schedule",
    responses=problem_responses("schedule", 404, 409, 412, 422),
)
async def put_schedule(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    data: JSONBody[Definition],
    if_match: IfMatch = None,
    *,
    update_waiting: UpdateWaiting = False,
) -> Response[ScheduleFields]:
    """Define a schedule, or give it another definition: all of it is replaced, but for its pause.

    What changes nothing is not a revision. Nothing of the past is started: if the ticks change,
    those owed beyond their grace are recorded as missed (`edited`).
    """
    name = schedule_id_of(schedule_id)
    schedule, expected = read_schedule(name, data), await _expected(service, name, if_match)
    (done,) = await service.define([schedule], expected=expected, update_waiting=update_waiting)
    return await _shown(service, done)


@patch(
    "/schedules/{schedule_id:str}",
    operation_id="patch_schedule",
    responses=problem_responses("schedule", 404, 409, 412, 422),
)
async def patch_schedule(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    data: JSONBody[Definition],
    if_match: IfMatch = None,
    *,
    update_waiting: UpdateWaiting = False,
) -> Response[ScheduleFields]:
    """Change some fields of a definition, by the rules of JSON Merge Patch: null takes one away."""
    name, expected = schedule_id_of(schedule_id), revision_of(if_match)
    for _ in range(TRIES):
        row = await service.schedule(name)
        if expected is not None and row.revision != expected:
            raise ChangedSince(name, expected, row.revision)
        kept = msgspec.json.decode(row.definition, type=dict[str, object])
        schedule = read_schedule(name, merged(kept, data))
        try:
            (done,) = await service.define(
                [schedule], expected={name: row.revision}, update_waiting=update_waiting
            )
        except ChangedSince:
            continue
        return await _shown(service, done)
    raise ChangedSince(name, row.revision, row.revision)


@delete(
    "/schedules/{schedule_id:str}",
    operation_id="delete_schedule",
    responses=problem_responses("schedule", 404, 412, 422),
)
async def delete_schedule(
    service: NamedDependency[Service], schedule_id: ScheduleId, if_match: IfMatch = None
) -> None:
    """Take a schedule away: what waits is canceled, what has started finishes."""
    await service.delete(schedule_id_of(schedule_id), expected=revision_of(if_match))


@get(
    "/schedules/{schedule_id:str}/next",
    operation_id="get_next",
    responses=problem_responses("schedule", 404, 422),
)
async def get_next(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    n: Annotated[int, QueryParameter(ge=1, le=LONGEST_PREVIEW)] = 5,
    after: Instant = None,
) -> PreviewFields:
    """Return the next ticks of a schedule, in words and times, whether it is paused or not."""
    row = await service.schedule(schedule_id_of(schedule_id))
    schedule = from_definition(row.schedule_id, row.definition)
    now = service.clock.now() // 1000
    since = now if after is None else instant_of("after", after)
    return preview_fields(preview(schedule.trigger, zone(schedule.timezone), after=since, n=n))


@post(
    "/preview",
    operation_id="preview",
    status_code=200,
    responses=problem_responses("schedule", 422),
)
async def preview_definition(
    service: NamedDependency[Service],
    data: JSONBody[Definition],
    n: Annotated[int, QueryParameter(ge=1, le=LONGEST_PREVIEW)] = 10,
) -> PreviewFields:
    """Return what a definition would do, without defining it."""
    schedule = read_schedule("preview", data)
    service.check(schedule)
    now = service.clock.now() // 1000
    return preview_fields(preview(schedule.trigger, zone(schedule.timezone), after=now, n=n))


@get(
    "/schedules/{schedule_id:str}/runs",
    operation_id="list_runs_of",
    responses=problem_responses("schedule", 404, 422),
)
async def list_runs_of(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    limit: Limit = 50,
    cursor: Annotated[int | None, QueryParameter(ge=1, le=2**62)] = None,
    status: Annotated[Status | None, QueryParameter()] = None,
) -> RunPage:
    """Return the runs of a schedule, the latest first."""
    return await runs_page(
        service, RunFilter(schedule_id_of(schedule_id), status, before=cursor), limit
    )


@get(
    "/schedules/{schedule_id:str}/why",
    operation_id="why",
    responses=problem_responses("schedule", 404, 422),
)
async def why(
    service: NamedDependency[Service], schedule_id: ScheduleId, at: Moment = None
) -> WhyFields:
    """Say why a schedule ran, or did not, at an instant: by default of its latest tick."""
    with naming("at"):
        return why_fields(await service.why(schedule_id_of(schedule_id), at))


@post(
    "/schedules/{schedule_id:str}/run",
    operation_id="start_run",
    responses=problem_responses("schedule", 404, 422),
)
async def start_run(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    data: JSONBody[Starting | None] = None,
    idempotency_key: IdempotencyKey = None,
) -> RunFields:
    """Start a run now, beside the schedule's ticks. The same Idempotency-Key is the same run."""
    inputs = None if data is None else data.inputs
    name = schedule_id_of(schedule_id)
    return run_fields(await service.start(name, inputs=inputs, request_id=idempotency_key))


@post(
    "/schedules/{schedule_id:str}/pause",
    operation_id="pause_schedule",
    status_code=200,
    responses=problem_responses("schedule", 404, 422),
)
async def pause_schedule(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    data: JSONBody[Pausing | None] = None,
) -> ScheduleFields:
    """Start nothing more of a schedule by itself; what has started finishes."""
    name, asked = schedule_id_of(schedule_id), data or Pausing()
    until = asked.until and milliseconds_of("until", asked.until, now=service.clock.now())
    await service.pause(name, note=asked.note, until=until or None)
    return schedule_fields(await service.schedule(name))


@post(
    "/schedules/{schedule_id:str}/resume",
    operation_id="resume_schedule",
    status_code=200,
    responses=problem_responses("schedule", 404, 422),
)
async def resume_schedule(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    data: JSONBody[Resuming | None] = None,
) -> ScheduleFields:
    """Let a schedule go on from now."""
    name = schedule_id_of(schedule_id)
    await service.resume(name, catchup=(data or Resuming()).catchup)
    return schedule_fields(await service.schedule(name))


@post(
    "/schedules/{schedule_id:str}/backfill",
    operation_id="backfill",
    status_code=200,
    responses=problem_responses("schedule", 404, 422),
)
async def backfill(
    service: NamedDependency[Service], schedule_id: ScheduleId, data: JSONBody[Backfilling]
) -> BackfillFields:
    """Run ticks of the past after all, each once; `dry_run` tells what would become of each."""
    name = schedule_id_of(schedule_id)
    first, last = instant_of("from", data.first), instant_of("to", data.last)
    if data.dry_run:
        choices = await service.preview_backfill(name, first=first, last=last)
        ticks = [_choice(each) for each in choices]
        refused = sum(each.action == "refuse" for each in ticks)
        return BackfillFields(True, len(ticks) - refused, refused, None, 0, ticks)  # noqa: FBT003
    done = await service.backfill(name, first=first, last=last)
    following = None if done.following is None else rfc3339(done.following)
    return BackfillFields(
        dry_run=False,
        enqueued=done.enqueued,
        refused=done.refused,
        following=following,
        waiting=done.waiting,
        ticks=[],
    )


@post("/bulk", operation_id="bulk", status_code=200, responses=problem_responses("schedule", 422))
async def bulk(service: NamedDependency[Service], data: JSONBody[Bulk]) -> BulkDone:
    """Pause, resume or delete many schedules, chosen by what they are.

    Each is done by itself: one that is gone in the meantime is left out.
    """
    asked = data.which
    if asked.says_nothing:
        problem = "nothing is said about which schedules are meant"
        raise InvalidSchedule("which", problem, hint="such as source, or all: true")
    which = ScheduleFilter(
        asked.source, asked.owner, asked.paused, asked.failing, asked.q, asked.ids
    )
    changed, unchanged = await service.bulk(
        data.action, which, note=data.note, dry_run=data.dry_run
    )
    return BulkDone(data.action, data.dry_run, changed, unchanged)


def merged(kept: dict[str, object], patch: dict[str, object]) -> dict[str, object]:
    """Return fields with others put in their place, or taken away by null (RFC 7396)."""
    found = dict(kept)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            before = found.get(name)
            found[name] = merged(before if isinstance(before, dict) else {}, value)
        else:
            found[name] = value
    return found


async def runs_page(service: Service, which: RunFilter, limit: int) -> RunPage:
    """Return a page of runs."""
    found = await service.runs(which, limit=limit + 1)
    more = str(found[limit - 1].run_id) if len(found) > limit else None
    return RunPage([run_fields(row) for row in found[:limit]], more)


async def _expected(
    service: Service, schedule_id: str, if_match: str | None
) -> dict[str, int | None]:
    """Return the revision that an edit is of, if it says so: `*` is whichever there is."""
    if if_match is None:
        return {}
    revision = revision_of(if_match)
    if revision is None:
        revision = (await service.schedule(schedule_id)).revision
    return {schedule_id: revision}


async def _shown(service: Service, done: Upserted) -> Response[ScheduleFields]:
    row, is_new = await service.schedule(done.schedule_id), done.change == "created"
    there = {"Location": f"/api/v1/schedules/{quote(row.schedule_id, safe='')}"} if is_new else {}
    return Response(
        schedule_fields(row),
        status_code=201 if is_new else 200,
        headers={"ETag": etag(row.revision), **there},
    )


def _id_of(service: Service, key: str | None) -> str:
    """Return the id of a schedule that has none: the same for the same key of the same caller."""
    if key is None:
        return f"api/{service.new_id()}"
    digest = hashlib.sha256(f"{service.caller.name}\n{key}".encode()).hexdigest()
    return f"api/{digest[:32]}"


def _choice(choice: Choice) -> TickToBackfill:
    match choice:
        case Revive() | Add():
            return TickToBackfill(rfc3339(choice.run_at), "enqueue")
        case Refuse():
            return TickToBackfill(rfc3339(choice.run_at), "refuse", TELLS[choice.why])


ROUTES = [
    list_schedules, create_schedule, get_schedule, put_schedule, patch_schedule, delete_schedule,
    get_next, preview_definition, list_runs_of, why, start_run, pause_schedule, resume_schedule,
    backfill, bulk,
]  # fmt: skip
