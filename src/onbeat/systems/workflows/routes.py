"""Schedules of workflows, with the routes and fields of their original API.

Invalid values are refused with 400, as its clients expect; the rest of the API uses 422.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response, Router, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter
from litestar.types import ControllerRouterHandler

from onbeat.core.schedule import ID
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service.serialize import RunFields
from onbeat.service.service import Service
from onbeat.systems.field_names import check_fields
from onbeat.systems.workflows.registrar import check_given, check_one_of
from onbeat.systems.workflows.system import Workflows, check_deployed
from onbeat.web.params import ApiRequest, Limit, decode_segment, problem_responses, read_schedule_id
from onbeat.web.problems import PROBLEM_JSON, problem
from onbeat.web.routes.runs import RunKey, RunReport, record_report

LONGEST_JITTER = 7 * 86_400_000
STATUSES = ("STARTED", "SUCCESS", "FAILED")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
Instant = Annotated[str, msgspec.Meta(max_length=64)]
Jitter = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_JITTER)]
Id = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=600,  # percent-encoded; the schema states the length after decoding
        description="The id of a schedule of a workflow; a slash in it is sent as %2F.",
        schema_extra={"pattern": f"^{ID.pattern}$", "max_length": 200},
    ),
]
WorkflowId = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=2400,  # percent-encoded; the schema states the length after decoding
        description="The id of a workflow; a slash in it is sent as %2F.",
        schema_extra={"max_length": 200},
    ),
]
VersionInPath = Annotated[int, PathParameter(ge=0, le=2**53 - 1)]
Cascade = Annotated[
    bool, QueryParameter(description="Whether to delete the schedules that use it, too.")
]
After = Annotated[str, QueryParameter(max_length=2400, description="`next` of the previous page.")]
Only = Annotated[str | None, QueryParameter(min_length=1, max_length=200)]
Owner = Annotated[
    str | None,
    QueryParameter(
        max_length=200, description="The owner of the workflows; empty: those without an owner."
    ),
]


class WorkflowUpsertRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of a workflow. Missing and null fields have their defaults."""

    workflow_id: Text
    version: Version
    user_id: Text
    cron_expr: Text
    timezone: Text
    schedule_id: Text | None = None
    start_at: Instant | None = None
    end_at: Instant | None = None
    jitter_ms: Jitter | None = None
    overlap_policy: Literal["allow", "skip", "queue"] | None = None
    catchup_policy: Literal["none", "fire_immediately", "spread"] | None = None


class WorkflowRegistered(msgspec.Struct, frozen=True):
    """A defined schedule. `next_run_at` is null if it is paused or has no further tick."""

    schedule_id: str
    next_run_at: str | None


class WorkflowPauseByIdRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to pause or to resume a schedule."""

    paused: bool


class WorkflowPauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule to pause or to resume."""

    schedule_id: Text
    paused: bool


class WorkflowPaused(msgspec.Struct, frozen=True):
    """A schedule that was paused or resumed."""

    schedule_id: str
    paused: bool


class WorkflowSchedule(msgspec.Struct, frozen=True):
    """A schedule of a workflow. `cron_expr` is null if it was edited to another trigger."""

    schedule_id: str
    workflow_id: str
    version: int
    user_id: str
    cron_expr: str | None
    timezone: str
    start_at: str | None
    end_at: str | None
    next_run_at: str | None
    paused: bool
    jitter_ms: int
    overlap_policy: str
    catchup_policy: str
    updated_at: str


class WorkflowPreview(msgspec.Struct, frozen=True):
    """A schedule and its next five ticks, under both names that clients read."""

    schedule: WorkflowSchedule
    preview: list[str]
    next_fire_times: list[str]


class WorkflowRun(msgspec.Struct, frozen=True):
    """A run. `run_id` is the id that the executor reported, `number` that of Onbeat.

    A run for several ticks has the last of them as `run_at` and the first as `first_run_at`.
    """

    idempotency_key: str
    schedule_id: str
    run_at: str
    status: str
    run_id: str | None
    number: int
    tick_count: int
    first_run_at: str | None
    reason: str | None
    error: str | None
    created_at: str
    updated_at: str


class WorkflowDeployRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DAG. Its id, version and user may be in the DAG or in the other fields."""

    dag: dict[str, object]
    workflow_id: Text | None = None
    version: Version | None = None
    user_id: Text | None = None


class WorkflowDeployed(msgspec.Struct, frozen=True):
    """A stored DAG, the schedules of its triggers, and those that were removed."""

    workflow_id: str
    version: int
    schedules: list[WorkflowRegistered]
    removed: list[str]


class WorkflowStartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workflow to start immediately."""

    workflow_id: Text
    version: Version
    user_id: Text
    scheduled_for: Instant
    idempotency_key: Text
    inputs: dict[str, object] | None = None


class WorkflowStarted(msgspec.Struct, frozen=True):
    """Whether the executor accepted it."""

    started: bool


class WorkflowVersion(msgspec.Struct, frozen=True):
    """A version of a workflow; `user_id` is null if it has no owner."""

    workflow_id: str
    version: int
    user_id: str | None
    updated_at: str


class WorkflowPage(msgspec.Struct, frozen=True):
    """Versions of workflows; `next` is the `after` of the next page, null on the last."""

    workflows: list[WorkflowVersion]
    next: str | None


class WorkflowUse(WorkflowVersion, frozen=True):
    """A version of a workflow, and the schedules that use it."""

    schedules: list[str]


class WorkflowVersions(msgspec.Struct, frozen=True):
    """A workflow and its versions."""

    workflow_id: str
    versions: list[WorkflowUse]


class WorkflowDag(WorkflowUse, frozen=True):
    """A version of a workflow, with its DAG."""

    dag: dict[str, object]


class WorkflowDeleted(msgspec.Struct, frozen=True):
    """The versions that were deleted, and the schedules that were deleted with them."""

    deleted: list[WorkflowVersion]
    schedules: list[str]


def check_report(body: object) -> None:
    """Refuse a report of a run with unknown fields or an invalid status."""
    check_fields(body, set(RunReport.__struct_fields__))
    assert isinstance(body, Mapping), "`check_fields` refuses other types"
    if "status" not in body:
        raise InvalidSchedule("status", "it is missing", hint=" or ".join(STATUSES))
    check_one_of("status", STATUSES, body["status"])


def with_messages_of(check: Callable[[Any], object]) -> Callable[[Any, Any], Awaitable[None]]:
    """Return a guard that refuses a body of the wrong type with the messages of `check`.

    They are more precise than those of the types. What `check` accepts is left to the types.
    """

    async def refuse(request: ApiRequest, handler: HTTPRouteHandler) -> None:
        wanted, body = handler.parsed_data_field, await request.body()
        assert wanted is not None, "the guard is for operations with a body"
        try:
            msgspec.json.decode(body, type=wanted.annotation)
        except msgspec.ValidationError:
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                check(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return  # not JSON: refused elsewhere

    return refuse


@post(
    "/schedules/upsert",
    operation_id="workflow_upsert",
    guards=[with_messages_of(check_given)],
    status_code=200,
    responses=problem_responses("schedule", 412),
)
async def upsert(
    workflows: NamedDependency[Workflows], data: JSONBody[WorkflowUpsertRequest]
) -> WorkflowRegistered:
    """Define a schedule of a workflow. A pause is kept."""
    fields = msgspec.structs.asdict(data)
    return msgspec.convert(await workflows.registrar.upsert_schedule(fields), WorkflowRegistered)


@post(
    "/schedules/pause",
    operation_id="workflow_pause",
    status_code=200,
    responses=problem_responses("schedule", 404),
)
async def pause(
    workflows: NamedDependency[Workflows], data: JSONBody[WorkflowPauseRequest]
) -> WorkflowPaused:
    """Pause a schedule of a workflow, or resume it from now on."""
    await workflows.registrar.pause_schedule(data.schedule_id, data.paused)
    return WorkflowPaused(data.schedule_id, data.paused)


@post(
    "/schedules/{id:str}/pause",
    operation_id="workflow_pause_by_id",
    status_code=200,
    responses=problem_responses("schedule", 404),
)
async def pause_by_id(
    workflows: NamedDependency[Workflows],
    id: Id,  # noqa: A002 - as its users call it
    data: JSONBody[WorkflowPauseByIdRequest],
) -> WorkflowPaused:
    """Pause a schedule of a workflow, or resume it from now on."""
    schedule_id = read_schedule_id(id)
    await workflows.registrar.pause_schedule(schedule_id, data.paused)
    return WorkflowPaused(schedule_id, data.paused)


@delete(
    "/schedules/{id:str}",
    operation_id="workflow_delete",
    responses=problem_responses("schedule", 404),
)
async def remove(workflows: NamedDependency[Workflows], id: Id) -> None:  # noqa: A002 - as before
    """Delete a schedule of a workflow. Its started runs finish."""
    await workflows.registrar.delete_schedule(read_schedule_id(id))


@get(
    "/schedules/{id:str}", operation_id="workflow_get", responses=problem_responses("schedule", 404)
)
async def get_one(workflows: NamedDependency[Workflows], id: Id) -> WorkflowPreview:  # noqa: A002 - as before
    """Return a schedule of a workflow with its next five ticks."""
    return msgspec.convert(
        await workflows.registrar.get_schedule(read_schedule_id(id)), WorkflowPreview
    )


@get("/schedules", operation_id="workflow_list", responses=problem_responses(""))
async def get_all(
    workflows: NamedDependency[Workflows],
    *,
    user_id: Only = None,
    workflow_id: Only = None,
    limit: Limit = 100,
) -> list[WorkflowSchedule]:
    """Return the schedules of a user, of a workflow, or of all workflows, ordered by id."""
    found = await workflows.registrar.list_schedules(
        user_id=user_id, workflow_id=workflow_id, limit=limit
    )
    return msgspec.convert(found, list[WorkflowSchedule])


@get(
    "/schedules/{id:str}/runs",
    operation_id="workflow_runs",
    responses=problem_responses("schedule", 404),
)
async def get_runs(
    workflows: NamedDependency[Workflows],
    id: Id,  # noqa: A002 - as before
    *,
    limit: Limit = 10,
) -> list[WorkflowRun]:
    """Return the last runs of a schedule of a workflow, latest first."""
    found = await workflows.registrar.runs(read_schedule_id(id), limit=limit)
    return msgspec.convert(found, list[WorkflowRun])


@post(
    "/schedules/deploy",
    operation_id="workflow_deploy",
    guards=[with_messages_of(check_deployed)],
    status_code=200,
    responses=problem_responses(""),
)
async def deploy(
    workflows: NamedDependency[Workflows], data: JSONBody[WorkflowDeployRequest]
) -> WorkflowDeployed:
    """Store a DAG, and define the schedules of its `schedule_based` triggers."""
    found = await workflows.deploy(
        data.dag, workflow_id=data.workflow_id, version=data.version, user_id=data.user_id
    )
    return msgspec.convert(found, WorkflowDeployed)


@post(
    "/run-launcher/start",
    operation_id="run_launcher_start",
    status_code=200,
    responses=problem_responses("executor", 409),
)
async def start(
    workflows: NamedDependency[Workflows], data: JSONBody[WorkflowStartRequest]
) -> WorkflowStarted:
    """Start a workflow on the executor immediately, with a few quick retries. Records no run."""
    return WorkflowStarted(await workflows.start_workflow(**msgspec.structs.asdict(data)))


@get("/workflows", operation_id="workflow_dags", responses=problem_responses(""))
async def get_dags(
    workflows: NamedDependency[Workflows],
    *,
    workflow_id: Only = None,
    user_id: Owner = None,
    after: After = "",
    limit: Limit = 100,
) -> WorkflowPage:
    """Return the versions of the stored workflows by id, without their DAGs."""
    found = await workflows.catalog.list_workflows(
        workflow_id=workflow_id, user_id=user_id, after=after, limit=limit
    )
    return msgspec.convert(found, WorkflowPage)


@get(
    "/workflows/{id:str}",
    operation_id="workflow_versions",
    responses=problem_responses("workflow", 404),
)
async def get_workflow(
    workflows: NamedDependency[Workflows],
    id: WorkflowId,  # noqa: A002 - as before
    *,
    user_id: Owner = None,
) -> WorkflowVersions:
    """Return the versions of a workflow, each with the schedules that use it."""
    found = await workflows.catalog.get_workflow(decode_segment(id), user_id=user_id)
    return msgspec.convert(found, WorkflowVersions)


@get(
    "/workflows/{id:str}/versions/{version:int}",
    operation_id="workflow_dag",
    responses=problem_responses("workflow", 404),
)
async def get_dag(
    workflows: NamedDependency[Workflows],
    id: WorkflowId,  # noqa: A002 - as before
    version: VersionInPath,
    *,
    user_id: Owner = None,
) -> WorkflowDag:
    """Return a version of a workflow: its DAG, and the schedules that use it."""
    found = await workflows.catalog.get_version(decode_segment(id), version, user_id=user_id)
    return msgspec.convert(found, WorkflowDag)


@delete(
    "/workflows/{id:str}",
    operation_id="workflow_delete_dags",
    status_code=200,
    responses=problem_responses("workflow", 404, 409),
)
async def delete_workflow(
    workflows: NamedDependency[Workflows],
    id: WorkflowId,  # noqa: A002 - as before
    *,
    user_id: Owner = None,
    cascade: Cascade = False,
) -> WorkflowDeleted:
    """Delete all versions of a workflow; refused with 409 if schedules use it, unless `cascade`."""
    found = await workflows.catalog.delete_workflow(
        decode_segment(id), user_id=user_id, cascade=cascade
    )
    return msgspec.convert(found, WorkflowDeleted)


@delete(
    "/workflows/{id:str}/versions/{version:int}",
    operation_id="workflow_delete_dag",
    status_code=200,
    responses=problem_responses("workflow", 404, 409),
)
async def delete_version(
    workflows: NamedDependency[Workflows],
    id: WorkflowId,  # noqa: A002 - as before
    version: VersionInPath,
    *,
    user_id: Owner = None,
    cascade: Cascade = False,
) -> WorkflowDeleted:
    """Delete a version of a workflow; refused with 409 if schedules use it, unless `cascade`."""
    found = await workflows.catalog.delete_workflow(
        decode_segment(id), version, user_id=user_id, cascade=cascade
    )
    return msgspec.convert(found, WorkflowDeleted)


@post(
    "/runs/{key:str}/status",
    operation_id="report_run_shortly",
    guards=[with_messages_of(check_report)],
    status_code=200,
    responses=problem_responses("run", 404, 409),
)
async def report(
    service: NamedDependency[Service], key: RunKey, data: JSONBody[RunReport]
) -> RunFields:
    """Report the start or the outcome of a run, like `POST /api/v1/runs/{key}/status`."""
    return await record_report(service, key, data)


async def provide_workflows(service: NamedDependency[Service], state: State) -> Workflows:
    """Return the workflows system with the rights of the caller."""
    workflows: Workflows = state.systems["workflows"]
    return workflows.of(service)


def _refused(_: ApiRequest, refused: InvalidSchedule) -> Response[bytes]:
    found = problem(400, refused.problem, field=refused.field or "body", hint=refused.hint)
    return Response(found.as_json(), status_code=400, media_type=PROBLEM_JSON)


def _not_configured(_: ApiRequest, refused: InvalidSettings) -> Response[bytes]:
    found = problem(409, refused.problem, field=refused.field, hint=refused.hint)
    return Response(found.as_json(), status_code=409, media_type=PROBLEM_JSON)


ROUTES: list[ControllerRouterHandler] = [
    Router(
        "/",
        route_handlers=[
            upsert, pause, pause_by_id, remove, get_one, get_all, get_runs, deploy, start, report,
            get_dags, get_workflow, get_dag, delete_workflow, delete_version,
        ],
        dependencies={"workflows": Provide(provide_workflows)},
        exception_handlers={InvalidSchedule: _refused, InvalidSettings: _not_configured},
    )
]  # fmt: skip
