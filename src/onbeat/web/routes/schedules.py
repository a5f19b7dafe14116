"""Schedules over HTTP: read, define, edit and control them, and explain their runs."""

import hashlib
from typing import Annotated, Literal
from urllib.parse import quote

import msgspec
from litestar import Response, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from onbeat.core.decide.backfill import REFUSALS, Add, Choice, Refuse, Revive
from onbeat.core.explain.preview import preview
from onbeat.core.runs.phase import Status
from onbeat.core.schedule import check_id, definition, from_definition, read_schedule
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import zone
from onbeat.errors import InvalidSchedule, RevisionConflict, ScheduleExists, in_field
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
    LocalOrInstant,
    ScheduleId,
    Search,
    UpdateWaiting,
    etag,
    problem_responses,
    read_future_ms,
    read_instant,
    read_revision,
    read_schedule_id,
)

LONGEST_PREVIEW = 1000
TRIES = 5  # for an edit that conflicts with others

Definition = dict[str, object]  # `web/openapi.py` adds its schema to the OpenAPI document


class SchedulePage(msgspec.Struct, frozen=True):
    """Schedules by id, and the cursor of the next page; null on the last page."""

    schedules: list[ScheduleFields]
    next_cursor: str | None


class RunPage(msgspec.Struct, frozen=True):
    """Runs, latest first, and the cursor of the next page; null on the last page."""

    runs: list[RunFields]
    next_cursor: str | None


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule to create. Without `schedule_id`, an id is generated."""

    definition: Definition
    schedule_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._/-]{1,200}$")] | None = None


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note for the pause, and the instant at which the schedule resumes automatically."""

    note: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    until: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `catchup`, the latest tick that the pause skipped runs once."""

    catchup: bool = False


class StartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs by name, which override those of the schedule."""

    inputs: dict[str, object] = {}


class BackfillRequest(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"first": "from", "last": "to"},
):
    """The range of past ticks to run; with `dry_run` nothing is changed."""

    first: Annotated[str, msgspec.Meta(max_length=64)]
    last: Annotated[str, msgspec.Meta(max_length=64)]
    dry_run: bool = False


class TickToBackfill(msgspec.Struct, frozen=True):
    """What a backfill does with a tick: `enqueue`, or `refuse` with a reason."""

    run_at: str
    action: Literal["enqueue", "refuse"]
    why: str = ""


class BackfillFields(msgspec.Struct, frozen=True):
    """The result of a backfill; `following` is where to continue if the limit was reached."""

    dry_run: bool
    enqueued: int
    refused: int
    following: str | None
    waiting: int
    ticks: list[TickToBackfill]


class BulkFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects the schedules that meet all given conditions, or `all`."""

    ids: Annotated[list[str], msgspec.Meta(max_length=10_000)] | None = None
    source: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    owner: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    paused: bool | None = None
    failing: bool | None = None
    q: Annotated[str, msgspec.Meta(max_length=200)] = ""
    all: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has no condition, and so would select all schedules unintentionally."""
        return self == BulkFilter()


class BulkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action on many schedules; with `dry_run` they are only listed."""

    action: Literal["pause", "resume", "delete"]
    which: BulkFilter
    dry_run: bool = False
    note: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class BulkResult(msgspec.Struct, frozen=True):
    """The schedules that were or would be changed, and those already in the wanted state."""

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
    """Return a page of schedules, ordered by id."""
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
    """Create a schedule.

    Repeating the request with the same id or Idempotency-Key creates nothing and returns 200;
    another definition under the same id or key is refused with 409.
    """
    schedule_id = data.schedule_id or _generated_id(service, idempotency_key)
    schedule = read_schedule(check_id(schedule_id), data.definition)
    try:
        (done,) = await service.define([schedule], expected={schedule_id: None})
    except RevisionConflict:
        row = await service.schedule(schedule_id)
        if row.definition != definition(service.as_allowed(schedule)):
            raise ScheduleExists(schedule_id) from None
        done = Upserted(schedule_id, "unchanged", row.revision)
    return await _schedule_response(service, done)


@get(
    "/schedules/{schedule_id:str}",
    operation_id="get_schedule",
    responses=problem_responses("schedule", 404, 422),
)
async def get_schedule(
    service: NamedDependency[Service], schedule_id: ScheduleId
) -> Response[ScheduleFields]:
    """Return a schedule. Its ETag can be sent as If-Match."""
    row = await service.schedule(read_schedule_id(schedule_id))
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
    """Create a schedule or replace its definition. A pause is kept.

    The same definition creates no revision. An edit starts no past tick: if the ticks change,
    those that are overdue beyond their grace are recorded as missed (`edited`).
    """
    name = read_schedule_id(schedule_id)
    schedule, expected = read_schedule(name, data), await _expected(service, name, if_match)
    (done,) = await service.define([schedule], expected=expected, update_waiting=update_waiting)
    return await _schedule_response(service, done)


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
    """Change fields of a definition, as a JSON Merge Patch: null removes a field."""
    name, expected = read_schedule_id(schedule_id), read_revision(if_match)
    for _ in range(TRIES):
        row = await service.schedule(name)
        if expected is not None and row.revision != expected:
            raise RevisionConflict(name, expected, row.revision)
        current = msgspec.json.decode(row.definition, type=dict[str, object])
        schedule = read_schedule(name, merge_patch(current, data))
        try:
            (done,) = await service.define(
                [schedule], expected={name: row.revision}, update_waiting=update_waiting
            )
        except RevisionConflict:
            continue
        return await _schedule_response(service, done)
    raise RevisionConflict(name, row.revision, row.revision)


@delete(
    "/schedules/{schedule_id:str}",
    operation_id="delete_schedule",
    responses=problem_responses("schedule", 404, 412, 422),
)
async def delete_schedule(
    service: NamedDependency[Service], schedule_id: ScheduleId, if_match: IfMatch = None
) -> None:
    """Delete a schedule. Waiting runs are canceled, started ones finish."""
    await service.delete(read_schedule_id(schedule_id), expected=read_revision(if_match))


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
    """Return the next ticks of a schedule and its trigger in words, also if it is paused."""
    row = await service.schedule(read_schedule_id(schedule_id))
    schedule = from_definition(row.schedule_id, row.definition)
    now = service.clock.now() // 1000
    since = now if after is None else read_instant("after", after)
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
    """Return the next ticks of a definition and its trigger in words, without storing it."""
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
    """Return the runs of a schedule, latest first."""
    return await runs_page(
        service, RunFilter(read_schedule_id(schedule_id), status, before=cursor), limit
    )


@get(
    "/schedules/{schedule_id:str}/why",
    operation_id="why",
    responses=problem_responses("schedule", 404, 422),
)
async def why(
    service: NamedDependency[Service], schedule_id: ScheduleId, at: LocalOrInstant = None
) -> WhyFields:
    """Explain why a schedule ran or did not run at an instant, by default at its latest tick."""
    with in_field("at"):
        return why_fields(await service.why(read_schedule_id(schedule_id), at))


@post(
    "/schedules/{schedule_id:str}/run",
    operation_id="start_run",
    responses=problem_responses("schedule", 404, 422),
)
async def start_run(
    service: NamedDependency[Service],
    schedule_id: ScheduleId,
    data: JSONBody[StartRequest | None] = None,
    idempotency_key: IdempotencyKey = None,
) -> RunFields:
    """Start a manual run now. A repeated Idempotency-Key returns the same run."""
    inputs = None if data is None else data.inputs
    name = read_schedule_id(schedule_id)
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
    data: JSONBody[PauseRequest | None] = None,
) -> ScheduleFields:
    """Pause a schedule. Started runs finish."""
    name, pause = read_schedule_id(schedule_id), data or PauseRequest()
    until = pause.until and read_future_ms("until", pause.until, now=service.clock.now())
    await service.pause(name, note=pause.note, until=until or None)
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
    data: JSONBody[ResumeRequest | None] = None,
) -> ScheduleFields:
    """Resume a schedule from now on."""
    name = read_schedule_id(schedule_id)
    await service.resume(name, catchup=(data or ResumeRequest()).catchup)
    return schedule_fields(await service.schedule(name))


@post(
    "/schedules/{schedule_id:str}/backfill",
    operation_id="backfill",
    status_code=200,
    responses=problem_responses("schedule", 404, 422),
)
async def backfill(
    service: NamedDependency[Service], schedule_id: ScheduleId, data: JSONBody[BackfillRequest]
) -> BackfillFields:
    """Run past ticks, each once. With `dry_run`, only return what would happen to each."""
    name = read_schedule_id(schedule_id)
    first, last = read_instant("from", data.first), read_instant("to", data.last)
    if data.dry_run:
        choices = await service.preview_backfill(name, first=first, last=last)
        ticks = [_tick_fields(each) for each in choices]
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
async def bulk(service: NamedDependency[Service], data: JSONBody[BulkRequest]) -> BulkResult:
    """Pause, resume or delete many schedules.

    Each is changed by itself: one that was deleted in the meantime is left out.
    """
    wanted = data.which
    if wanted.is_empty:
        problem = "no condition selects schedules"
        raise InvalidSchedule("which", problem, hint="such as source, or all: true")
    which = ScheduleFilter(
        wanted.source, wanted.owner, wanted.paused, wanted.failing, wanted.q, wanted.ids
    )
    changed, unchanged = await service.bulk(
        data.action, which, note=data.note, dry_run=data.dry_run
    )
    return BulkResult(data.action, data.dry_run, changed, unchanged)


def merge_patch(fields: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    """Apply a JSON Merge Patch (RFC 7396)."""
    merged = dict(fields)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            before = merged.get(name)
            merged[name] = merge_patch(before if isinstance(before, dict) else {}, value)
        else:
            merged[name] = value
    return merged


async def runs_page(service: Service, which: RunFilter, limit: int) -> RunPage:
    """Return a page of runs."""
    found = await service.runs(which, limit=limit + 1)
    more = str(found[limit - 1].run_id) if len(found) > limit else None
    return RunPage([run_fields(row) for row in found[:limit]], more)


async def _expected(
    service: Service, schedule_id: str, if_match: str | None
) -> dict[str, int | None]:
    """Return the revision that an edit expects; `*` is the current one."""
    if if_match is None:
        return {}
    revision = read_revision(if_match)
    if revision is None:
        revision = (await service.schedule(schedule_id)).revision
    return {schedule_id: revision}


async def _schedule_response(service: Service, done: Upserted) -> Response[ScheduleFields]:
    row, is_new = await service.schedule(done.schedule_id), done.change == "created"
    path = f"/api/v1/schedules/{quote(row.schedule_id, safe='')}"
    location = {"Location": path} if is_new else {}
    return Response(
        schedule_fields(row),
        status_code=201 if is_new else 200,
        headers={"ETag": etag(row.revision), **location},
    )


def _generated_id(service: Service, key: str | None) -> str:
    """Return an id for a schedule: the same for the same key of the same caller."""
    if key is None:
        return f"api/{service.new_id()}"
    digest = hashlib.sha256(f"{service.caller.name}\n{key}".encode()).hexdigest()
    return f"api/{digest[:32]}"


def _tick_fields(choice: Choice) -> TickToBackfill:
    match choice:
        case Revive() | Add():
            return TickToBackfill(rfc3339(choice.run_at), "enqueue")
        case Refuse():
            return TickToBackfill(rfc3339(choice.run_at), "refuse", REFUSALS[choice.why])


ROUTES = [
    list_schedules, create_schedule, get_schedule, put_schedule, patch_schedule, delete_schedule,
    get_next, preview_definition, list_runs_of, why, start_run, pause_schedule, resume_schedule,
    backfill, bulk,
]  # fmt: skip
