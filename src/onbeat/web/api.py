"""The Litestar application: routes, error responses, and the OpenAPI document."""

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from onbeat.errors import OnbeatError, did_you_mean
from onbeat.host.plugs import PlugError, guard, is_from_package, load_all, plugs
from onbeat.ports.plug import Plug
from onbeat.service.service import Service
from onbeat.web import pages
from onbeat.web.live import EventStreams
from onbeat.web.openapi import complete, query_names
from onbeat.web.output import Output
from onbeat.web.params import ApiRequest, provide_service
from onbeat.web.problems import (
    PROBLEM_JSON,
    RETRY_AFTER,
    Problem,
    as_problem,
    problem,
    unreadable,
    wrong_type,
)
from onbeat.web.routes import control, definitions, observe, runs, schedules, tokens
from onbeat.web.security.asgi import App, Receive, Scope, Send
from onbeat.web.security.middleware import LARGEST_FILE

log = logging.getLogger("onbeat.web")

PREFIX = "/api/v1"
Routes = Sequence[Any]  # the framework refuses what it cannot serve
ROUTE_MODULES = (schedules, runs, definitions, control, tokens, observe)


@dataclass(frozen=True, slots=True)
class RouteDependencies:
    """What the routes work with."""

    service: Service
    live: EventStreams
    output: Output
    render_metrics: Callable[[Service], Awaitable[str]]
    systems: Mapping[str, object]  # by name


def make_api(dependencies: RouteDependencies) -> App:
    """Return the application. The security middleware must have set the caller of a request."""
    description, provided = ApiDescription(), {"service": Provide(provide_service)}
    handlers = _described_handlers(description, provided)
    app = Litestar(
        handlers,
        dependencies=provided,
        exception_handlers={
            OnbeatError: _refused,
            HTTPException: _invalid_request,
            Exception: _internal_error,
        },
        before_request=description.refuse,
        request_max_body_size=LARGEST_FILE,  # the security middleware has limits of at most this
        openapi_config=None,  # served by our own route, which needs authentication
        state=State(
            {
                "service": dependencies.service,
                "live": dependencies.live,
                "output": dependencies.output,
                "render_metrics": dependencies.render_metrics,
                "systems": dependencies.systems,
            }
        ),
        logging_config=None,
        pdb_on_exception=False,
        debug=False,
    )
    return _with_encoded_paths(app)


def root_names() -> frozenset[str]:
    """Return the first parts of the paths that plugs serve outside the prefix of the API."""
    found: set[str] = set()
    for plug in plugs():
        if plug.root_routes:
            with guard(plug, "root_routes"):
                found |= {path.split("/")[1] for _, path in _endpoints("/", _routes_of(plug)[1])}
    return frozenset(found - {""})


def _described_handlers(
    description: "ApiDescription", provided: dict[str, Provide]
) -> list[ControllerRouterHandler]:
    """Return all handlers, which are in the document. Those of a broken package are left out."""
    own = [route for each in ROUTE_MODULES for route in each.ROUTES]
    below, root = [*own, description.route], list[ControllerRouterHandler](pages.ROUTES)
    packages = [each for each in plugs() if is_from_package(each)]
    for plug in plugs():
        if plug not in packages:
            of_plug = _routes_of(plug)
            below, root = [*below, *of_plug[0]], [*root, *of_plug[1]]
    for plug in packages:
        if plug.routes or plug.root_routes:
            with guard(plug, "routes"):
                of_plug = _routes_of(plug)
                _refuse_taken(_all_endpoints(below, root), _all_endpoints(*of_plug))
                more = [*below, *of_plug[0]], [*root, *of_plug[1]]
                description.read(_handlers(*more), provided)
                below, root = more
    handlers = _handlers(below, root)
    if not description.document:
        description.read(handlers, provided)
    return handlers


def _handlers(below: Routes, root: Routes) -> list[ControllerRouterHandler]:
    return [Router(PREFIX, route_handlers=below), *root]


def _routes_of(plug: Plug) -> tuple[Routes, Routes]:
    """Return the routes of a plug: below the prefix of the API, and outside."""
    return (
        load_all(plug.routes, object) if plug.routes else (),
        load_all(plug.root_routes, object) if plug.root_routes else (),
    )


def _all_endpoints(below: Routes, root: Routes) -> list[tuple[str, str]]:
    return [*_endpoints(PREFIX, below), *_endpoints("/", root)]


def _endpoints(prefix: str, handlers: Routes) -> Iterator[tuple[str, str]]:
    """Yield the method and the path of each route. A parameter of a path has no name."""
    for handler in handlers:
        for route in Router(prefix, route_handlers=[handler]).routes:
            for method in sorted({*route.methods} - {"OPTIONS"}):
                yield method, re.sub("{[^}]*}", "{}", route.path)


def _refuse_taken(taken: list[tuple[str, str]], wanted: list[tuple[str, str]]) -> None:
    """Refuse a second route, which the framework would ignore."""
    for n, each in enumerate(wanted):
        if each in taken or each in wanted[:n]:
            raise PlugError(f"{' '.join(each)} is another route (choose another path)")


class ApiDescription:
    """The OpenAPI document of the application, which requests are checked against."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self._names: dict[tuple[str, str], dict[str, bool]] = {}

        @get("/openapi.json", operation_id="openapi", media_type=MediaType.JSON)
        async def document() -> dict[str, Any]:
            """Return the OpenAPI document."""
            return self.document

        self.route = document

    def read(self, handlers: list[ControllerRouterHandler], provided: dict[str, Provide]) -> None:
        """Build the document of an application with these routes."""
        config = OpenAPIConfig(
            title="Onbeat",
            version=onbeat.__version__,
            description="A durable scheduler for agents, workflows and oneshot jobs.",
            use_handler_docstrings=True,
        )
        app = Litestar(handlers, dependencies=provided, openapi_config=config, logging_config=None)
        self.document = complete(app)
        self._names = query_names(self.document)

    async def refuse(self, request: ApiRequest) -> Response[bytes] | None:
        """Refuse a request that violates the document where the framework is lenient."""
        return self._refuse_query(request) or await _refuse_body(request)

    def _refuse_query(self, request: ApiRequest) -> Response[bytes] | None:
        """Refuse query parameters that the framework would ignore.

        Those are unknown and repeated ones, and nulls.
        """
        parameters = self._names.get((request.method, request.scope["path_template"]))
        if parameters is None:
            return None
        for name, values in request.query_params.dict().items():
            if name not in parameters:
                hint = did_you_mean(name, parameters)
                return _respond(
                    request, problem(400, "no parameter has this name", field=name, hint=hint)
                )
            if len(values) > 1:
                hint = "send it once"
                return _respond(request, problem(400, "it is repeated", field=name, hint=hint))
            if values == ["null"] and not parameters[name]:
                hint = "leave it out"
                return _respond(request, problem(400, "null is not allowed", field=name, hint=hint))
        return None


async def _refuse_body(request: ApiRequest) -> Response[bytes] | None:
    """Refuse a body that the framework would convert: 1 is not a boolean."""
    wanted = request.route_handler.parsed_data_field
    if wanted is None or not (body := await request.body()):
        return None
    try:
        msgspec.json.decode(body, type=wanted.annotation)
    except msgspec.ValidationError as refused:
        return _respond(request, wrong_type(refused))
    return None


def _with_encoded_paths(app: Litestar) -> App:
    """Route by the encoded path, so that a slash in an id, sent as %2F, does not split it."""

    async def encoded(scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")  # only requests have one
        if raw is not None:
            path = raw.partition(b"?")[0].decode("latin-1")
            scope["path"] = f"{PREFIX}{path}" if path in observe.ROOT_PATHS else path
        await app(scope, receive, send)  # type: ignore[arg-type]  # the same types, named otherwise

    return encoded


def _refused(request: ApiRequest, refused: OnbeatError) -> Response[bytes]:
    return _respond(request, as_problem(refused))


def _invalid_request(request: ApiRequest, refused: HTTPException) -> Response[bytes]:
    """Respond to a request that the framework refuses."""
    match refused:
        case ValidationException(extra=[*errors]):
            found = unreadable([each for each in errors if isinstance(each, dict)])
        case NotFoundException():
            hint = f"{PREFIX}/openapi.json lists all routes"
            found = problem(404, "no route has this path", hint=hint)
        case MethodNotAllowedException():
            allowed = (refused.headers or {}).get("allow", "")
            found = problem(405, "this route does not support the method", hint=allowed)
        case _:
            found = problem(refused.status_code, refused.detail)
    return _respond(request, found, refused.headers)


def _internal_error(request: ApiRequest, failure: Exception) -> Response[bytes]:
    log.error("request failed with an unexpected error", exc_info=failure)
    return _respond(request, problem(500, "internal error of Onbeat: see its log"))


def _respond(
    request: ApiRequest, found: Problem, headers: dict[str, str] | None = None
) -> Response[bytes]:
    body = found.as_json(request.scope["path"])
    headers = dict(headers or {})
    if found.status == SERVICE_UNAVAILABLE:
        headers.setdefault("Retry-After", str(RETRY_AFTER))
    return Response(body, status_code=found.status, media_type=PROBLEM_JSON, headers=headers)
