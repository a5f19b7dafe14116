"""The application behind the door: routes, refusals, and its own description."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.client import SERVICE_UNAVAILABLE
from typing import Any

import msgspec
from litestar import Litestar, MediaType, Response, Router, get
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from litestar.openapi import OpenAPIConfig
from litestar.types import ControllerRouterHandler

import onbeat
from onbeat.app.systems import RunningSystems
from onbeat.errors import OnbeatError, meant
from onbeat.service.service import Service
from onbeat.web import pages
from onbeat.web.live import EventStreams
from onbeat.web.openapi import complete, query_names
from onbeat.web.output import Output
from onbeat.web.params import Asked, provide_service
from onbeat.web.problems import (
    PROBLEM_JSON,
    RETRY_AFTER,
    Problem,
    as_problem,
    of_another_type,
    problem,
    unreadable,
)
from onbeat.web.routes import (
    artifacts,
    control,
    definitions,
    observe,
    runs,
    schedules,
    sessions,
    timer,
    tokens,
    workflows,
)
from onbeat.web.security.asgi import App, Receive, Scope, Send
from onbeat.web.security.middleware import LARGEST_FILE

log = logging.getLogger("onbeat.web")

AT = "/api/v1"
GROUPS = (schedules, runs, definitions, control, tokens, artifacts, observe)


@dataclass(frozen=True, slots=True)
class RouteDependencies:
    """What the routes work with."""

    service: Service
    live: EventStreams
    output: Output
    render_metrics: Callable[[Service], Awaitable[str]]
    systems: RunningSystems


def make_api(behind: RouteDependencies) -> App:
    """Return the application: it expects that the door has said who asks."""
    described = Description()
    routes = [route for each in GROUPS for route in each.ROUTES]
    handlers: list[ControllerRouterHandler] = [
        Router(AT, route_handlers=[*routes, described.route]),
        *sessions.ROUTES,
        *workflows.ROUTES,
        *timer.ROUTES,
        *pages.ROUTES,
    ]
    provided = {"service": Provide(provide_service)}
    described.read(handlers, provided)
    app = Litestar(
        handlers,
        dependencies=provided,
        exception_handlers={
            OnbeatError: _refused,
            HTTPException: _not_understood,
            Exception: _broken,
        },
        before_request=described.refuse,
        request_max_body_size=LARGEST_FILE,  # the door has its own bounds, which are no higher
        openapi_config=None,  # whoever has seen the door may have the document, from our own route
        state=State(
            {
                "service": behind.service,
                "live": behind.live,
                "output": behind.output,
                "render_metrics": behind.render_metrics,
                "systems": behind.systems,
            }
        ),
        logging_config=None,
        pdb_on_exception=False,
        debug=False,
    )
    return _with_encoded_paths(app)


class Description:
    """What the application says of itself, which is also what it holds callers to."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self._names: dict[tuple[str, str], dict[str, bool]] = {}

        @get("/openapi.json", operation_id="openapi", media_type=MediaType.JSON)
        async def document() -> dict[str, Any]:
            """Return this document."""
            return self.document

        self.route = document

    def read(self, handlers: list[ControllerRouterHandler], provided: dict[str, Provide]) -> None:
        """Have the description of an application with these routes."""
        config = OpenAPIConfig(
            title="Onbeat",
            version=onbeat.__version__,
            description="A durable scheduler for agents, workflows and oneshot jobs.",
            use_handler_docstrings=True,
        )
        app = Litestar(handlers, dependencies=provided, openapi_config=config, logging_config=None)
        self.document = complete(app)
        self._names = query_names(self.document)

    async def refuse(self, request: Asked) -> Response[bytes] | None:
        """Refuse what does not keep to the description, where the framework would be lenient."""
        return self._odd_query(request) or await _loose_body(request)

    def _odd_query(self, request: Asked) -> Response[bytes] | None:
        """Refuse a query with what the framework would ignore, so that nobody goes by it.

        That is a name that the route does not know, one that is there twice, and a null.
        """
        at = (request.method, request.scope["path_template"])
        known = self._names.get(at)
        if known is None:
            return None
        for name, values in request.query_params.dict().items():
            if name not in known:
                hint = meant(name, known)
                told = "no parameter has this name"
                return _answer(request, problem(400, told, field=name, hint=hint))
            if len(values) > 1:
                told = "it is there twice"
                return _answer(request, problem(400, told, field=name, hint="once"))
            if values == ["null"] and not known[name]:
                told, hint = "null is no value of it", "leave it out"
                return _answer(request, problem(400, told, field=name, hint=hint))
        return None


async def _loose_body(request: Asked) -> Response[bytes] | None:
    """Refuse a body whose types are only near to what is asked for: 1 is neither yes nor no."""
    wanted = request.route_handler.parsed_data_field
    if wanted is None or not (body := await request.body()):
        return None
    try:
        msgspec.json.decode(body, type=wanted.annotation)
    except msgspec.ValidationError as refused:
        return _answer(request, of_another_type(refused))
    return None


def _with_encoded_paths(app: Litestar) -> App:
    """Have paths as they were sent: a slash in an id is %2F, and no end of a part of a path."""

    async def encoded(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")  # what is no request has none
        if raw is not None:
            path = raw.partition(b"?")[0].decode("latin-1")
            scope["path"] = f"{AT}{path}" if path in observe.AT_THE_ROOT else path
        await app(scope, receive, send)  # type: ignore[arg-type]  # the same, said in other words

    return encoded


def _refused(request: Asked, refused: OnbeatError) -> Response[bytes]:
    return _answer(request, as_problem(refused))


def _not_understood(request: Asked, refused: HTTPException) -> Response[bytes]:
    """Tell of what the framework refuses: what cannot be read, and what is not there."""
    match refused:
        case ValidationException(extra=[*found]):
            told = unreadable([each for each in found if isinstance(each, dict)])
        case NotFoundException():
            told = problem(404, "there is nothing here", hint=f"{AT}/openapi.json tells what is")
        case MethodNotAllowedException():
            allowed = (refused.headers or {}).get("allow", "")
            told = problem(405, "this cannot be done here", hint=f"{allowed} can")
        case _:
            told = problem(refused.status_code, refused.detail)
    return _answer(request, told, refused.headers)


def _broken(request: Asked, broken: Exception) -> Response[bytes]:
    log.error("an answer failed", exc_info=broken)
    return _answer(request, problem(500, "this is a defect of Onbeat: its log tells more"))


def _answer(
    request: Asked, told: Problem, headers: dict[str, str] | None = None
) -> Response[bytes]:
    body = told.as_json(request.scope["path"])
    headers = dict(headers or {})
    if told.status == SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", str(RETRY_AFTER))
    return Response(body, status_code=told.status, media_type=PROBLEM_JSON, headers=headers)
