"""How things stand, and the switches: gate, groups, nodes, and who had what done."""

from typing import Annotated, Literal

import msgspec
from litestar import Request, get, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter

from onbeat.core.policy import GROUP
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
from onbeat.web.params import Limit, name_of, place_of, problem_responses


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The switch that stops everything: behind a closed gate nothing is decided or started."""

    gate: Literal["open", "closed"]


class Places(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many runs of a group may be started at the same time."""

    places: Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class Nodes(msgspec.Struct, frozen=True):
    """The nodes there are, the oldest first."""

    nodes: list[NodeFields]


class Groups(msgspec.Struct, frozen=True):
    """The groups there are, by name."""

    groups: list[GroupFields]


class AuditPage(msgspec.Struct, frozen=True):
    """What somebody had done, the latest first, and where to go on."""

    events: list[EventFields]
    next_cursor: str | None


class StopAsked(msgspec.Struct, frozen=True):
    """Whether a node is there to hear of it."""

    asked: bool


class WhoAsks(msgspec.Struct, frozen=True):
    """Who asks, and what they may; a session sends its token back with every change."""

    name: str
    scope: str
    owner: str
    csrf_token: str | None


@get("/session", operation_id="get_session", responses=problem_responses("session"))
async def get_session(
    service: NamedDependency[Service], request: Request[object, object, State]
) -> WhoAsks:
    """Return who asks. A browser's changes need `csrf_token`, in the header X-CSRF-Token."""
    caller = service.caller
    return WhoAsks(caller.name, caller.scope, caller.owner, request.scope["state"]["csrf"] or None)


@get("/overview", operation_id="overview", responses=problem_responses("store"))
async def get_overview(service: NamedDependency[Service]) -> OverviewFields:
    """Return how things stand: for whoever has an owner, with their own schedules."""
    return overview_fields(await service.overview())


@get("/gate", operation_id="get_gate", responses=problem_responses("gate"))
async def get_gate(service: NamedDependency[Service]) -> Gate:
    """Return whether anything may start at all."""
    return Gate("open" if (await service.overview()).gate_open else "closed")


@put("/gate", operation_id="put_gate", responses=problem_responses("gate"))
async def put_gate(service: NamedDependency[Service], data: JSONBody[Gate]) -> Gate:
    """Open or close the gate. What was missed behind it does not run."""
    await service.set_gate(is_open=data.gate == "open")
    return data


@get("/groups", operation_id="list_groups", responses=problem_responses("group"))
async def list_groups(service: NamedDependency[Service]) -> Groups:
    """Return the groups there are, and how full they are."""
    return Groups([group_fields(row) for row in await service.groups()])


@put("/groups/{name:str}", operation_id="put_group", responses=problem_responses("group", 422))
async def put_group(
    service: NamedDependency[Service],
    name: Annotated[
        str,
        PathParameter(
            min_length=1,
            max_length=300,
            description="The name of a group; a slash in it is sent as %2F.",
            schema_extra={"pattern": f"^{GROUP.pattern}$", "max_length": 100},
        ),
    ],
    data: JSONBody[Places],
) -> GroupFields:
    """Say how many runs of a group may be started at the same time."""
    group = name_of(name)
    await service.set_group(group, places=data.places)
    rows = {row.name: row for row in await service.groups()}
    return group_fields(rows.get(group, GroupRow(group, data.places, 0, 0)))


@get("/nodes", operation_id="list_nodes", responses=problem_responses("node"))
async def list_nodes(service: NamedDependency[Service]) -> Nodes:
    """Return the nodes: what each does, and whether it is alive."""
    now = service.clock.now()
    return Nodes([node_fields(row, now) for row in await service.nodes()])


@post(
    "/nodes/{node_id:str}/stop",
    operation_id="stop_node",
    status_code=202,
    responses=problem_responses("node", 404),
)
async def stop_node(
    service: NamedDependency[Service],
    node_id: Annotated[str, PathParameter(min_length=1, max_length=100)],
) -> StopAsked:
    """Have a node stop in good order: it hears of it with its next heartbeat."""
    return StopAsked(bool(await service.ask_to_stop([name_of(node_id)])))


@get("/audit", operation_id="audit", responses=problem_responses("event", 422))
async def audit(
    service: NamedDependency[Service],
    limit: Limit = 50,
    cursor: Annotated[str | None, QueryParameter(max_length=40)] = None,
    schedule_id: Annotated[str | None, QueryParameter(max_length=200)] = None,
) -> AuditPage:
    """Return what people and programs had done, the latest first: who, what, and when."""
    before = None if cursor is None else place_of("cursor", cursor)
    found = await service.audit(schedule_id=schedule_id, before=before, limit=limit)
    told_of = [event_fields(row) for row in found]
    return AuditPage(told_of, told_of[-1].event_id if len(told_of) >= limit else None)


ROUTES = [
    get_session, get_overview, get_gate, put_gate, list_groups, put_group, list_nodes, stop_node,
    audit,
]  # fmt: skip
