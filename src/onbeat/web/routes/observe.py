"""Observation over HTTP: event streams, the output of runs, metrics and health checks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated

import msgspec
from litestar import MediaType, Response, get
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from onbeat.errors import StoreFailed, StoreUnusable
from onbeat.ports.rows import EventRow, RunRow
from onbeat.service.access import Caller
from onbeat.service.service import Service
from onbeat.web.live import EventStreams, follow_events, retry_store, while_authorized
from onbeat.web.output import Output
from onbeat.web.params import ApiRequest, RunId, problem_responses, read_event_id
from onbeat.web.problems import PROBLEM_JSON
from onbeat.web.problems import problem as make_problem
from onbeat.web.security.credentials import NODES

ANSWERS_WITHIN = 2.0  # seconds: clients of readiness checks do not wait for long
LAGGING = 10_000  # milliseconds that a tick may be due and undecided before readiness fails

STREAM = ResponseSpec(
    str,
    description="Events, until the client disconnects.",
    media_type="text/event-stream",
    generate_examples=False,
)
OUTPUT = ResponseSpec(
    str,
    description="The output of the run.",
    media_type="text/plain",
    generate_examples=False,
)


class Health(msgspec.Struct, frozen=True):
    """Whether the process is alive or ready; `problem` says why it is not."""

    ok: bool
    problem: str = ""


NOT_READY = ResponseSpec(
    Health, description="Not ready: `problem` says why.", generate_examples=False
)


@get(
    "/events",
    operation_id="follow_events",
    media_type="text/event-stream",
    responses={**problem_responses("event", 422), 200: STREAM},
)
async def events(
    service: NamedDependency[Service],
    request: ApiRequest,
    *,
    state: State,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID",
            required=False,
            max_length=40,
            description="Continue after this event. A browser that reconnects sends it by itself.",
            schema_extra={"pattern": "^[0-9]{1,18}(\\.[0-9]{1,9})?$"},
        ),
    ] = None,
    after: Annotated[
        str | None,
        QueryParameter(
            max_length=40,
            description="The same as Last-Event-ID, for clients that cannot set headers.",
            schema_extra={"pattern": "^[0-9]{1,18}(\\.[0-9]{1,9})?$"},
        ),
    ] = None,
    schedule_id: Annotated[str | None, QueryParameter(max_length=200)] = None,
    name: Annotated[
        str | None,
        QueryParameter(max_length=40, description="Only events of this name, such as run.failed."),
    ] = None,
) -> Stream | Response[bytes]:
    """Stream events as server-sent events, from now on or after a given event.

    Each event has an id, its name and its fields, as in the audit log. If several nodes share the
    database, a client that resumes receives the events of the last ten seconds again: drop the ids
    that you have seen.
    """
    resume_id = last_event_id or after
    begin = None if resume_id is None else read_event_id("Last-Event-ID", resume_id)
    live: EventStreams = state.live
    await service.newest_event()  # refuses a caller without access before the stream begins
    if (refused := _refuse_stream(request, live)) is not None:
        return refused

    def is_wanted(row: EventRow) -> bool:
        return (schedule_id is None or getattr(row.event, "schedule_id", None) == schedule_id) and (
            name is None or row.event.name == name
        )

    chunks = follow_events(service, live, after=begin, is_wanted=is_wanted)
    return Stream(_stream(request, live, chunks), media_type="text/event-stream")


@get(
    "/runs/{run_id:int}/log",
    operation_id="get_log",
    media_type=MediaType.TEXT,
    responses={**problem_responses("run", 404), 200: OUTPUT},
)
async def log(
    service: NamedDependency[Service],
    request: ApiRequest,
    *,
    state: State,
    run_id: RunId,
    follow: Annotated[bool, QueryParameter(description="Stream until the run has ended.")] = False,
    here: Annotated[
        bool, QueryParameter(description="Only the output on this node; contact no other node.")
    ] = False,
) -> Stream | Response[bytes]:
    """Return the output of a run. If the run is on another node, it is fetched from there.

    With `follow` the output of later attempts follows, each after a line such as [attempt 2].
    """
    run, output, live = await service.run(run_id), _output(state), state.live

    async def reload() -> RunRow:
        return await retry_store(lambda: service.run(run_id), live)

    if not follow:
        return Stream(output.read(run, reload, here=here), media_type="text/plain")
    if (refused := _refuse_stream(request, live)) is not None:
        return refused
    chunks = output.follow_here(run, reload) if here else output.follow(run, reload)
    return Stream(_stream(request, live, chunks), media_type="text/plain")


@get(
    "/metrics",
    operation_id="metrics",
    media_type=MediaType.TEXT,
    responses=problem_responses("store"),
)
async def metrics(service: NamedDependency[Service], state: State) -> Response[str]:
    """Return metrics in the Prometheus text format."""
    text = await state.render_metrics(service)
    return Response(text, media_type="text/plain; version=0.0.4")


@get("/healthz", operation_id="healthz", security=[])
async def healthz() -> Health:
    """Liveness check: the process answers."""
    return Health(ok=True)


@get(
    "/readyz",
    operation_id="readyz",
    security=[],
    responses={503: NOT_READY},
)
async def readyz(state: State) -> Response[Health]:
    """Readiness check: the database answers, and no tick is overdue for planning."""
    service: Service = state.service
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            found = await service.overview()
    except (StoreFailed, StoreUnusable, TimeoutError):
        return Response(Health(ok=False, problem="the database does not answer"), status_code=503)
    late = 0 if found.next_due_at is None else found.now - found.next_due_at
    if found.gate_open and late > LAGGING:
        problem = f"due ticks have not been decided for {late // 1000} s"
        return Response(Health(ok=False, problem=problem), status_code=503)
    return Response(Health(ok=True))


def _refuse_stream(request: ApiRequest, live: EventStreams) -> Response[bytes] | None:
    """Return the refusal of a stream beyond the limits, or None."""
    name = _counted_name(request)
    if live.is_full:
        refused = make_problem(503, "too many streams are open", hint="try again later")
    elif live.is_full_for(name):
        text = f"{name} has too many open streams"
        refused = make_problem(429, text, hint="close another one first")
    else:
        return None
    return Response(refused.as_json(), status_code=refused.status, media_type=PROBLEM_JSON)


async def _stream(
    request: ApiRequest, live: EventStreams, chunks: AsyncGenerator[bytes, None]
) -> AsyncIterator[bytes]:
    """Yield chunks while the caller is authorized, and count the stream meanwhile."""
    if _refuse_stream(request, live) is not None:
        return  # concurrent requests have reached the limit first
    # Not counted earlier: this never runs for a client that disconnects immediately.
    with live.counted(_counted_name(request)):
        async for each in while_authorized(chunks, request.scope["state"]["is_still_authorized"]):
            yield each


def _counted_name(request: ApiRequest) -> str:
    """Return the name by which streams are counted; none for a node, which acts for clients."""
    caller: Caller = request.scope["state"]["caller"]
    return "" if caller == NODES else caller.name


def _output(state: State) -> Output:
    output: Output = state.output
    return output


ROUTES = [events, log, metrics, healthz, readyz]
ROOT_PATHS = {"/metrics", "/healthz", "/readyz"}  # also served without the prefix, as is usual
