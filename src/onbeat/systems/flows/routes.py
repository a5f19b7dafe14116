"""The flow timer: its status, its schedules and its runs."""

from typing import Annotated

import msgspec
from litestar import Response, Router, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.params import PathParameter
from litestar.types import ControllerRouterHandler

from onbeat.core.schedule import ID
from onbeat.errors import InvalidSettings
from onbeat.ports.rows import RunRow
from onbeat.service.serialize import RunFields, run_fields
from onbeat.service.service import Service
from onbeat.systems.flows.config import ScheduleStatus, TimerStatus
from onbeat.systems.flows.system import FlowTimer
from onbeat.web.html import table
from onbeat.web.params import ApiRequest, Limit, problem_responses, read_schedule_id
from onbeat.web.problems import PROBLEM_JSON, problem

FlowId = Annotated[
    str,
    PathParameter(
        min_length=1,
        max_length=600,  # percent-encoded; the schema states the length after decoding
        description="The schedule_id of a flow, such as expose/url; a slash in it is sent as %2F.",
        schema_extra={"pattern": f"^{ID.pattern}$", "max_length": 200},
    ),
]


class FlowRun(msgspec.Struct, frozen=True):
    """A run of a flow; `fid` is the id of the launch on the panel."""

    run_id: int
    schedule_key: str
    schedule_id: str
    user: str
    triggered_by: str
    status: str
    reason: str | None
    run_at: str
    started_at: str | None
    finished_at: str | None
    fid: str | None
    error: str | None
    result: object


@get("/timer", operation_id="timer_status", responses=problem_responses("timer", 409))
async def get_status(
    service: NamedDependency[Service], timer: NamedDependency[FlowTimer]
) -> TimerStatus:
    """Return the status of the timer."""
    return await timer.status(service)


@get("/timer/schedules", operation_id="timer_schedules", responses=problem_responses("timer", 409))
async def get_schedules(
    service: NamedDependency[Service], timer: NamedDependency[FlowTimer]
) -> list[ScheduleStatus]:
    """Return the scheduled flows by key, and those that are not scheduled, with the reason."""
    return await timer.schedules(service)


@post(
    "/timer/schedules/{flow:str}/run",
    operation_id="timer_run",
    status_code=200,
    responses=problem_responses("flow", 404, 409, 422),
)
async def run(
    service: NamedDependency[Service], timer: NamedDependency[FlowTimer], flow: FlowId
) -> RunFields:
    """Start a run of a flow now, in addition to its schedule."""
    return run_fields(await timer.run(service, read_schedule_id(flow)))


@post(
    "/timer/schedules/{flow:str}/pause",
    operation_id="timer_pause",
    status_code=200,
    responses=problem_responses("flow", 404, 409, 422),
)
async def pause(
    service: NamedDependency[Service], timer: NamedDependency[FlowTimer], flow: FlowId
) -> ScheduleStatus:
    """Pause a flow. Its definition in the expose is not changed."""
    return await timer.pause(service, read_schedule_id(flow), paused=True)


@post(
    "/timer/schedules/{flow:str}/resume",
    operation_id="timer_resume",
    status_code=200,
    responses=problem_responses("flow", 404, 409, 422),
)
async def resume(
    service: NamedDependency[Service], timer: NamedDependency[FlowTimer], flow: FlowId
) -> ScheduleStatus:
    """Resume a flow from now on."""
    return await timer.pause(service, read_schedule_id(flow), paused=False)


@get("/timer/runs", operation_id="timer_runs", responses=problem_responses("timer", 409))
async def get_runs(
    service: NamedDependency[Service], timer: NamedDependency[FlowTimer], *, limit: Limit = 50
) -> list[FlowRun]:
    """Return the runs of flows, latest first."""
    rows = await timer.runs(service, limit=limit)
    keys = await timer.keys(service)
    return [_run(row, keys.get(row.schedule_id, row.schedule_id)) for row in rows]


def _run(row: RunRow, key: str) -> FlowRun:
    fields = run_fields(row)
    return FlowRun(
        fields.run_id,
        key,
        fields.schedule_id,
        fields.user,
        fields.triggered_by,
        fields.status,
        fields.reason,
        fields.run_at,
        fields.started_at,
        fields.finished_at,
        fields.external_id,
        fields.error,
        fields.result,
    )


async def provide_timer(state: State) -> FlowTimer:
    """Return the flow timer, or refuse the request if it is not configured."""
    timer: FlowTimer | None = state.systems.get("flows")
    if timer is None:
        hint = 'exposes = "data/expose.db" in [flows]'
        raise InvalidSettings("flows_exposes", "the flow timer is not configured", hint=hint)
    return timer


def _not_configured(_: ApiRequest, refused: InvalidSettings) -> Response[bytes]:
    found = problem(409, refused.problem, field=refused.field, hint=refused.hint)
    return Response(found.as_json(), status_code=409, media_type=PROBLEM_JSON)


async def section(service: Service, timer: FlowTimer) -> str:
    """Return the section of the dashboard: flows that are not scheduled; empty without any."""
    invalid = (await timer.status(service)).invalid
    if not invalid:
        return ""
    return f"<h2>Flows not scheduled</h2>\n{table(('Flow', 'Reason'), list(invalid.items()))}"


ROUTES: list[ControllerRouterHandler] = [
    Router(
        "/",
        route_handlers=[get_status, get_schedules, run, pause, resume, get_runs],
        dependencies={"timer": Provide(provide_timer)},
        exception_handlers={InvalidSettings: _not_configured},
    )
]
