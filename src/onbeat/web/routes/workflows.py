"""Schedules of workflows, at the routes and in the shapes that their system has.

What is refused here is 400, as its users know it; the rest of the API has 422 for that.
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

from onbeat.app.systems import RunningSystems
from onbeat.core.schedule import ID
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service.serialize import RunFields
from onbeat.service.service import Service
from onbeat.systems.field_names import check_fields
from onbeat.systems.workflows.registrar import check_given, check_one_of
from onbeat.systems.workflows.system import Workflows, check_deployed
from onbeat.web.params import Asked, Limit, name_of, problem_responses, schedule_id_of
from onbeat.web.problems import PROBLEM_JSON, problem
from onbeat.web.routes.runs import Ending, RunKey, heard_of

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
        max_length=600,  # as it is sent; what is promised is what it stands for
        description="The id of a schedule of a workflow; a slash in it is sent as %2F.",
        schema_extra={"pattern": f"^{ID.pattern}$", "max_length": 200},
    ),
]
WorkflowId = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=2400,  # as it is sent; what is promised is what it stands for
        description="The id of a workflow; a slash in it is sent as %2F.",
        schema_extra={"max_length": 200},
    ),
]
VersionInPath = Annotated[int, PathParameter(ge=0, le=2**53 - 1)]
Cascade = Annotated[
    bool, QueryParameter(description="Whether to delete the schedules that use it as well.")
]
After = Annotated[str, QueryParameter(max_length=2400, description="`next` of the page before.")]
Only = Annotated[str | None, QueryParameter(min_length=1, max_length=200)]
Owner = Annotated[
    str | None,
    QueryParameter(max_length=200, description="Whose workflows; empty: those without an owner."),
]


class UpsertInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of a workflow; what is left out, or null, is at its default."""

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
    """A schedule that is there from now on; none that is paused, or over, has a next time."""

    schedule_id: str
    next_run_at: str | None


class WorkflowPausingById(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a schedule is to rest."""

    paused: bool


class WorkflowPausing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which schedule is to rest, or to go on."""

    schedule_id: Text
    paused: bool


class WorkflowPaused(msgspec.Struct, frozen=True):
    """A schedule that rests, or goes on."""

    schedule_id: str
    paused: bool


class WorkflowSchedule(msgspec.Struct, frozen=True):
    """A schedule of a workflow. What was edited elsewhere may have no `cron_expr`."""

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
    """A schedule, and the next five times at which it fires: by either name."""

    schedule: WorkflowSchedule
    preview: list[str]
    next_fire_times: list[str]


class WorkflowRun(msgspec.Struct, frozen=True):
    """A run; its `run_id` is the executor's, where that has told one, and its `number` ours.

    One that stands for several ticks has the last of them as `run_at`, and tells of the first.
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


class DeployInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DAG; its id, version and user may stand in it, or beside it."""

    dag: dict[str, object]
    workflow_id: Text | None = None
    version: Version | None = None
    user_id: Text | None = None


class WorkflowDeployed(msgspec.Struct, frozen=True):
    """A DAG that is kept, the schedules that its triggers have, and those that are gone."""

    workflow_id: str
    version: int
    schedules: list[WorkflowRegistered]
    removed: list[str]


class StartInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workflow that is to be handed over at once."""

    workflow_id: Text
    version: Version
    user_id: Text
    scheduled_for: Instant
    idempotency_key: Text
    inputs: dict[str, object] | None = None


class WorkflowStarted(msgspec.Struct, frozen=True):
    """Whether the executor has it."""

    started: bool


class WorkflowVersion(msgspec.Struct, frozen=True):
    """A version of a workflow; `user_id` is null if it is everybody's."""

    workflow_id: str
    version: int
    user_id: str | None
    updated_at: str


class WorkflowPage(msgspec.Struct, frozen=True):
    """Versions of workflows; `next` is the `after` of the next page, null on the last."""

    workflows: list[WorkflowVersion]
    next: str | None


class WorkflowUsed(WorkflowVersion, frozen=True):
    """A version of a workflow, and the schedules that use it."""

    schedules: list[str]


class WorkflowRead(msgspec.Struct, frozen=True):
    """A workflow: its versions."""

    workflow_id: str
    versions: list[WorkflowUsed]


class WorkflowDag(WorkflowUsed, frozen=True):
    """A version of a workflow, with its DAG."""

    dag: dict[str, object]


class WorkflowDeleted(msgspec.Struct, frozen=True):
    """The versions that were deleted, and the schedules that were deleted with them."""

    deleted: list[WorkflowVersion]
    schedules: list[str]


def check_ending(given: object) -> None:
    """Refuse what can be seen to be wrong in what is told of a run."""
    check_fields(given, set(Ending.__struct_fields__))
    assert isinstance(given, Mapping), "it was checked"
    if "status" not in given:
        raise InvalidSchedule("status", "it is missing", hint=" or ".join(STATUSES))
    check_one_of("status", STATUSES, given["status"])


def in_words(check: Callable[[Any], object]) -> Callable[[Any, Any], Awaitable[None]]:
    """Have a body that is not of its type be refused by `check`, which says more of it than types.

    What that does not refuse is left to those.
    """

    async def refuse(request: Asked, handler: HTTPRouteHandler) -> None:
        wanted, body = handler.parsed_data_field, await request.body()
        assert wanted is not None, "it has a body"
        try:
            msgspec.json.decode(body, type=wanted.annotation)
        except msgspec.ValidationError:
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                check(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return  # it is no JSON, which is told elsewhere

    return refuse


@post(
    "/schedules/upsert",
    operation_id="workflow_upsert",
    guards=[in_words(check_given)],
    status_code=200,
    responses=problem_responses("schedule", 412),
)
async def upsert(
    workflows: NamedDependency[Workflows], data: JSONBody[UpsertInput]
) -> WorkflowRegistered:
    """Define the schedule of a workflow. One that is paused stays so."""
    given = msgspec.structs.asdict(data)
    return msgspec.convert(await workflows.registrar.upsert_schedule(given), WorkflowRegistered)


@post(
    "/schedules/pause",
    operation_id="workflow_pause",
    status_code=200,
    responses=problem_responses("schedule", 404),
)
async def pause(
    workflows: NamedDependency[Workflows], data: JSONBody[WorkflowPausing]
) -> WorkflowPaused:
    """Let the schedule of a workflow rest, or go on from now."""
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
    data: JSONBody[WorkflowPausingById],
) -> WorkflowPaused:
    """Let the schedule of a workflow rest, or go on from now."""
    schedule_id = schedule_id_of(id)
    await workflows.registrar.pause_schedule(schedule_id, data.paused)
    return WorkflowPaused(schedule_id, data.paused)


@delete(
    "/schedules/{id:str}",
    operation_id="workflow_delete",
    responses=problem_responses("schedule", 404),
)
async def remove(workflows: NamedDependency[Workflows], id: Id) -> None:  # noqa: A002 - as before
    """Take the schedule of a workflow away; its started runs finish."""
    await workflows.registrar.delete_schedule(schedule_id_of(id))


@get(
    "/schedules/{id:str}", operation_id="workflow_get", responses=problem_responses("schedule", 404)
)
async def get_one(workflows: NamedDependency[Workflows], id: Id) -> WorkflowPreview:  # noqa: A002 - as before
    """Return the schedule of a workflow, with the next five times at which it fires."""
    return msgspec.convert(
        await workflows.registrar.get_schedule(schedule_id_of(id)), WorkflowPreview
    )


@get("/schedules", operation_id="workflow_list", responses=problem_responses(""))
async def get_all(
    workflows: NamedDependency[Workflows],
    *,
    user_id: Only = None,
    workflow_id: Only = None,
    limit: Limit = 100,
) -> list[WorkflowSchedule]:
    """Return the schedules of workflows by id: of a user, of a workflow, or all."""
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
    """Return the last runs of the schedule of a workflow, the latest first."""
    found = await workflows.registrar.runs(schedule_id_of(id), limit=limit)
    return msgspec.convert(found, list[WorkflowRun])


@post(
    "/schedules/deploy",
    operation_id="workflow_deploy",
    guards=[in_words(check_deployed)],
    status_code=200,
    responses=problem_responses(""),
)
async def deploy(
    workflows: NamedDependency[Workflows], data: JSONBody[DeployInput]
) -> WorkflowDeployed:
    """Keep a DAG, and have the schedules that its `schedule_based` triggers ask for."""
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
    workflows: NamedDependency[Workflows], data: JSONBody[StartInput]
) -> WorkflowStarted:
    """Hand a workflow to the executor at once, with a few quick tries; no run is recorded."""
    return WorkflowStarted(await workflows.start(**msgspec.structs.asdict(data)))


@get("/workflows", operation_id="workflow_dags", responses=problem_responses(""))
async def get_dags(
    workflows: NamedDependency[Workflows],
    *,
    workflow_id: Only = None,
    user_id: Owner = None,
    after: After = "",
    limit: Limit = 100,
) -> WorkflowPage:
    """Return the workflows that are kept, by name: each version without its DAG."""
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
) -> WorkflowRead:
    """Return the versions of a workflow, each with the schedules that use it."""
    found = await workflows.catalog.get_workflow(name_of(id), user_id=user_id)
    return msgspec.convert(found, WorkflowRead)


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
    found = await workflows.catalog.get_version(name_of(id), version, user_id=user_id)
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
    found = await workflows.catalog.delete_workflow(name_of(id), user_id=user_id, cascade=cascade)
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
        name_of(id), version, user_id=user_id, cascade=cascade
    )
    return msgspec.convert(found, WorkflowDeleted)


@post(
    "/runs/{key:str}/status",
    operation_id="report_run_shortly",
    guards=[in_words(check_ending)],
    status_code=200,
    responses=problem_responses("run", 404, 409),
)
async def report(
    service: NamedDependency[Service], key: RunKey, data: JSONBody[Ending]
) -> RunFields:
    """Tell that a run has begun, or of its end, as `POST /api/v1/runs/{key}/status` does."""
    return await heard_of(service, key, data)


async def provide_workflows(service: NamedDependency[Service], state: State) -> Workflows:
    """Return what whoever asks may have of this system."""
    systems: RunningSystems = state.systems
    return systems.workflows.of(service)


def _refused(_: Asked, refused: InvalidSchedule) -> Response[bytes]:
    found = problem(400, refused.problem, field=refused.field or "body", hint=refused.hint)
    return Response(found.as_json(), status_code=400, media_type=PROBLEM_JSON)


def _not_set_up(_: Asked, refused: InvalidSettings) -> Response[bytes]:
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
        exception_handlers={InvalidSchedule: _refused, InvalidSettings: _not_set_up},
    )
]  # fmt: skip
