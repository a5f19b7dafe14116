"""What happens, live: events as a stream, what a run prints, metrics, and whether all is well."""

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
from onbeat.web.live import EventStreams, follow_events, patiently, while_welcome
from onbeat.web.output import Output
from onbeat.web.params import Asked, RunId, place_of, problem_responses
from onbeat.web.problems import PROBLEM_JSON, problem
from onbeat.web.security.credentials import NODES

ANSWERS_WITHIN = 2.0  # seconds: whoever asks whether it is ready does not wait for long either
LAGGING = 10_000  # milliseconds that a tick may be due and undecided before this is not ready

STREAM = ResponseSpec(
    str,
    description="Events, until whoever listens goes.",
    media_type="text/event-stream",
    generate_examples=False,
)
PRINTED = ResponseSpec(
    str,
    description="What it printed.",
    media_type="text/plain",
    generate_examples=False,
)


class Health(msgspec.Struct, frozen=True):
    """Whether it is alive, or ready; `problem` says what is not as it should be."""

    ok: bool
    problem: str = ""


NOT_READY = ResponseSpec(
    Health, description="It is not ready: `problem` says why.", generate_examples=False
)


@get(
    "/events",
    operation_id="follow_events",
    media_type="text/event-stream",
    responses={**problem_responses("event", 422), 200: STREAM},
)
async def events(
    service: NamedDependency[Service],
    request: Asked,
    *,
    state: State,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID",
            required=False,
            max_length=40,
            description="Go on after this one: a browser that was cut off sends it by itself.",
            schema_extra={"pattern": "^[0-9]{1,18}(\\.[0-9]{1,9})?$"},
        ),
    ] = None,
    after: Annotated[
        str | None,
        QueryParameter(
            max_length=40,
            description="The same, for those who cannot set headers.",
            schema_extra={"pattern": "^[0-9]{1,18}(\\.[0-9]{1,9})?$"},
        ),
    ] = None,
    schedule_id: Annotated[str | None, QueryParameter(max_length=200)] = None,
    name: Annotated[
        str | None, QueryParameter(max_length=40, description="One kind, such as run.failed.")
    ] = None,
) -> Stream | Response[bytes]:
    """Follow what happens, as server-sent events, from now on or from where one was cut off.

    Each has an id, its name, and the fields of the audit. When several nodes share the database,
    whoever resumes hears again of the last ten seconds: drop the ids that are known.
    """
    given = last_event_id or after
    begin = None if given is None else place_of("Last-Event-ID", given)
    live: EventStreams = state.live
    await service.newest_event()  # who may not read is told so, rather than in the middle of it
    if (refused := _no_place(request, live)) is not None:
        return refused

    def is_wanted(row: EventRow) -> bool:
        return (schedule_id is None or getattr(row.event, "schedule_id", None) == schedule_id) and (
            name is None or row.event.name == name
        )

    found = follow_events(service, live, after=begin, is_wanted=is_wanted)
    return Stream(_heard(request, live, found), media_type="text/event-stream")


@get(
    "/runs/{run_id:int}/log",
    operation_id="get_log",
    media_type=MediaType.TEXT,
    responses={**problem_responses("run", 404), 200: PRINTED},
)
async def log(
    service: NamedDependency[Service],
    request: Asked,
    *,
    state: State,
    run_id: RunId,
    follow: Annotated[bool, QueryParameter(description="Go on until it has ended.")] = False,
    here: Annotated[bool, QueryParameter(description="Do not ask its node.")] = False,
) -> Stream | Response[bytes]:
    """Return what a run printed; of one that goes on elsewhere, its node is asked.

    Who follows hears of each attempt from this one on: a line such as [attempt 2] begins the next.
    """
    run, output, live = await service.run(run_id), _output(state), state.live

    async def again() -> RunRow:
        return await patiently(lambda: service.run(run_id), live)

    if not follow:
        return Stream(output.so_far(run, again, here=here), media_type="text/plain")
    if (refused := _no_place(request, live)) is not None:
        return refused
    found = output.followed_here(run, again) if here else output.followed(run, again)
    return Stream(_heard(request, live, found), media_type="text/plain")


@get(
    "/metrics",
    operation_id="metrics",
    media_type=MediaType.TEXT,
    responses=problem_responses("store"),
)
async def metrics(service: NamedDependency[Service], state: State) -> Response[str]:
    """Return figures for Prometheus."""
    text = await state.render_metrics(service)
    return Response(text, media_type="text/plain; version=0.0.4")


@get("/healthz", operation_id="healthz", security=[])
async def healthz() -> Health:
    """Say that the process is alive: it answers."""
    return Health(ok=True)


@get(
    "/readyz",
    operation_id="readyz",
    security=[],
    responses={503: NOT_READY},
)
async def readyz(state: State) -> Response[Health]:
    """Say whether it can be worked with: the database answers, and no tick waits to be decided."""
    service: Service = state.service
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            found = await service.overview()
    except (StoreFailed, StoreUnusable, TimeoutError):
        return Response(Health(ok=False, problem="the database does not answer"), status_code=503)
    late = 0 if found.next_due_at is None else found.now - found.next_due_at
    if found.gate_open and late > LAGGING:
        told_of = f"ticks wait to be decided for {late // 1000} s"
        return Response(Health(ok=False, problem=told_of), status_code=503)
    return Response(Health(ok=True))


def _no_place(request: Asked, live: EventStreams) -> Response[bytes] | None:
    """Return what whoever asks is told if they cannot listen now."""
    name = _who_listens(request)
    if live.is_full:
        refused = problem(503, "as many listen as there may", hint="try again later")
    elif live.has_enough(name):
        refused = problem(429, f"{name} listens as often as one may", hint="close another first")
    else:
        return None
    return Response(refused.as_json(), status_code=refused.status, media_type=PROBLEM_JSON)


async def _heard(
    request: Asked, live: EventStreams, found: AsyncGenerator[bytes, None]
) -> AsyncIterator[bytes]:
    """Yield what somebody listens to, for as long as they may, and count them meanwhile."""
    if _no_place(request, live) is not None:
        return  # many came at once, and others were sooner
    with live.listening(_who_listens(request)):  # not before: who goes at once never comes here
        async for each in while_welcome(found, request.scope["state"]["still_welcome"]):
            yield each


def _who_listens(request: Asked) -> str:
    """Return the name by which a listener is counted; a node, which asks for others, has none."""
    caller: Caller = request.scope["state"]["caller"]
    return "" if caller == NODES else caller.name


def _output(state: State) -> Output:
    output: Output = state.output
    return output


ROUTES = [events, log, metrics, healthz, readyz]
AT_THE_ROOT = {"/metrics", "/healthz", "/readyz"}  # they are there, too, where others look for them
