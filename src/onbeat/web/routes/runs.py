"""Runs over HTTP: read and cancel runs, and receive reports from targets."""

from typing import Annotated, Literal

import msgspec
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import Accepted, Failed, Reason, Succeeded, TriggeredBy
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import RunFilter
from onbeat.service.serialize import RunFields, run_fields
from onbeat.service.service import Service
from onbeat.web.params import Instant, Limit, RunId, decode_segment, problem_responses, read_instant
from onbeat.web.routes.schedules import RunPage, runs_page


class CancelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note for the audit log."""

    note: Annotated[str, msgspec.Meta(max_length=2000)] = ""


class RunReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of an accepted run; or that it has started at its target, as `run_id`.

    A failure is retried by the policy of the schedule, unless it is `final`.
    """

    status: Literal["STARTED", "SUCCESS", "FAILED"]
    result: object = None
    error: Annotated[str, msgspec.Meta(max_length=65_536)] = ""
    final: bool = False
    run_id: Annotated[str, msgspec.Meta(max_length=200)] = ""


RunKey = Annotated[
    str,
    PathParameter(
        description="The number or the idempotency key of a run.",
        min_length=1,
        max_length=200,
        schema_extra={"pattern": "^([0-9]{1,18}|[0-9a-f]{64})$", "max_length": 64},
    ),
]


@get("/runs", operation_id="list_runs", responses=problem_responses("schedule", 404, 422))
async def list_runs(
    service: NamedDependency[Service],
    *,
    limit: Limit = 50,
    cursor: Annotated[int | None, QueryParameter(ge=1, le=2**62)] = None,
    schedule_id: Annotated[str | None, QueryParameter(max_length=200)] = None,
    status: Annotated[Status | None, QueryParameter()] = None,
    reason: Annotated[Reason | None, QueryParameter()] = None,
    triggered_by: Annotated[TriggeredBy | None, QueryParameter()] = None,
    since: Instant = None,
    until: Instant = None,
    stuck: Annotated[
        bool, QueryParameter(description="Only runs in flight that are stuck.")
    ] = False,
) -> RunPage:
    """Return runs, latest first: those planned from `since` on, and before `until`."""
    which = RunFilter(
        schedule_id,
        status,
        reason,
        triggered_by,
        None if since is None else read_instant("since", since),
        None if until is None else read_instant("until", until),
        cursor,
        is_stuck=stuck,
    )
    return await runs_page(service, which, limit)


@get("/runs/{run_id:int}", operation_id="get_run", responses=problem_responses("run", 404))
async def get_run(service: NamedDependency[Service], run_id: RunId) -> RunFields:
    """Return one run."""
    return run_fields(await service.run(run_id))


@post(
    "/runs/{run_id:int}/cancel",
    operation_id="cancel_run",
    status_code=200,
    responses=problem_responses("run", 404, 409),
)
async def cancel_run(
    service: NamedDependency[Service], run_id: RunId, data: JSONBody[CancelRequest | None] = None
) -> RunFields:
    """Cancel a run: a waiting one immediately, a started one as soon as its node can end it."""
    return run_fields(await service.cancel(run_id, note=(data or CancelRequest()).note))


@post(
    "/runs/{key:str}/status",
    operation_id="report_run",
    status_code=200,
    responses=problem_responses("run", 404, 409, 422),
)
async def report_run(
    service: NamedDependency[Service], key: RunKey, data: JSONBody[RunReport]
) -> RunFields:
    """Report the outcome of an accepted run. Repeating the same report changes nothing."""
    return await record_report(service, key, data)


async def record_report(service: Service, key: str, data: RunReport) -> RunFields:
    """Record the report of a target, and return the run."""
    if data.status != "FAILED" and (data.error or data.final):
        name = "error" if data.error else "final"
        problem = f"`{name}` is only allowed with status FAILED"
        raise InvalidSchedule(name, problem, hint="status: FAILED")
    if data.status != "SUCCESS" and data.result is not None:
        raise InvalidSchedule(
            "result", "`result` is only allowed with status SUCCESS", hint="error"
        )
    outcome: Succeeded | Failed | Accepted = Succeeded(data.result)
    if data.status == "STARTED":
        outcome = Accepted()
    elif data.status == "FAILED":
        outcome = Failed(data.error or "the target reported a failure", retryable=not data.final)
    which = int(key) if key.isascii() and key.isdigit() and len(key) < 19 else decode_segment(key)
    return run_fields(await service.report(which, outcome, external_id=data.run_id))


ROUTES = [list_runs, get_run, cancel_run, report_run]
