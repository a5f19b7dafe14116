"""The state of the installation, gate, groups, nodes, and the audit log."""

from typing import Annotated, Literal

import msgspec
from litestar import Request, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from onbeat.core.policy_values import GROUP_FORM
from onbeat.ports.rows import GroupRow
from onbeat.service.serialize import (
    EventFields,
    GroupFields,
    NodeFields,
    OverviewFields,
    event_fields,
    group_fields,
    node_fields,
    overview_fields,
)
from onbeat.service.service import Service
from onbeat.web.params import Limit, decode_segment, problem_responses, read_event_id


class GateFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The main switch: while the gate is closed, no tick is decided and no run starts."""

    gate: Literal["open", "closed"]


class GroupLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The concurrency limit of a group."""

    places: Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class NodePage(msgspec.Struct, frozen=True):
    """The registered nodes, oldest first."""

    nodes: list[NodeFields]


class GroupPage(msgspec.Struct, frozen=True):
    """All groups, by name."""

    groups: list[GroupFields]


class AuditPage(msgspec.Struct, frozen=True):
    """Audit events, latest first, and the cursor of the next page."""

    events: list[EventFields]
    next_cursor: str | None


class StopRequested(msgspec.Struct, frozen=True):
    """Whether the node is registered and will receive the request."""

    asked: bool


class CallerFields(msgspec.Struct, frozen=True):
    """The caller and its scope; `csrf_token` is that of a session."""

    name: str
    scope: str
    owner: str
    csrf_token: str | None


@get("/session", operation_id="get_session", responses=problem_responses("session"))
async def get_session(
    service: NamedDependency[Service], request: Request[object, object, State]
) -> CallerFields:
    """Return the caller. A browser sends `csrf_token` with changes, in the header X-CSRF-Token."""
    caller, csrf = service.caller, request.scope["state"]["csrf"]
    return CallerFields(caller.name, caller.scope, caller.owner, csrf or None)


@get("/overview", operation_id="overview", responses=problem_responses("store"))
async def get_overview(service: NamedDependency[Service]) -> OverviewFields:
    """Return the current state; for a caller with an owner, that of its schedules only."""
    return overview_fields(await service.overview())


@get("/gate", operation_id="get_gate", responses=problem_responses("gate"))
async def get_gate(service: NamedDependency[Service]) -> GateFields:
    """Return whether the gate is open."""
    return GateFields("open" if (await service.overview()).gate_open else "closed")


@put("/gate", operation_id="put_gate", responses=problem_responses("gate"))
async def put_gate(service: NamedDependency[Service], data: JSONBody[GateFields]) -> GateFields:
    """Open or close the gate. Ticks that were missed while it was closed do not run."""
    await service.set_gate(is_open=data.gate == "open")
    return data


@get("/groups", operation_id="list_groups", responses=problem_responses("group"))
async def list_groups(service: NamedDependency[Service]) -> GroupPage:
    """Return all groups with their limit and usage."""
    return GroupPage([group_fields(row) for row in await service.groups()])


@put("/groups/{name:str}", operation_id="put_group", responses=problem_responses("group", 422))
async def put_group(
    service: NamedDependency[Service],
    name: Annotated[
        str,
        PathParameter(
            min_length=1,
            max_length=300,
            description="The name of a group; a slash in it is sent as %2F.",
            schema_extra={"pattern": f"^{GROUP_FORM.pattern}$", "max_length": 100},
        ),
    ],
    data: JSONBody[GroupLimit],
) -> GroupFields:
    """Set the concurrency limit of a group."""
    group = decode_segment(name)
    await service.set_group(group, places=data.places)
    rows = {row.name: row for row in await service.groups()}
    return group_fields(rows.get(group, GroupRow(group, data.places, 0, 0)))


@get("/nodes", operation_id="list_nodes", responses=problem_responses("node"))
async def list_nodes(service: NamedDependency[Service]) -> NodePage:
    """Return the nodes: roles, number of runs, and whether each is alive."""
    now = service.clock.now()
    return NodePage([node_fields(row, now) for row in await service.nodes()])


@post(
    "/nodes/{node_id:str}/stop",
    operation_id="stop_node",
    status_code=202,
    responses=problem_responses("node", 404),
)
async def stop_node(
    service: NamedDependency[Service],
    node_id: Annotated[str, PathParameter(min_length=1, max_length=100)],
) -> StopRequested:
    """Request a node to stop gracefully. It receives the request with its next heartbeat."""
    return StopRequested(bool(await service.request_stop([decode_segment(node_id)])))


@get("/audit", operation_id="audit", responses=problem_responses("event", 422))
async def audit(
    service: NamedDependency[Service],
    limit: Limit = 50,
    cursor: Annotated[str | None, QueryParameter(max_length=40)] = None,
    schedule_id: Annotated[str | None, QueryParameter(max_length=200)] = None,
) -> AuditPage:
    """Return the audit log, latest first: who did what, and when."""
    before = None if cursor is None else read_event_id("cursor", cursor)
    found = await service.audit(schedule_id=schedule_id, before=before, limit=limit)
    events = [event_fields(row) for row in found]
    return AuditPage(events, events[-1].event_id if len(events) >= limit else None)


ROUTES = [
    get_session, get_overview, get_gate, put_gate, list_groups, put_group, list_nodes, stop_node,
    audit,
]  # fmt: skip
