"""Artifacts for agents: publish one over HTTP."""

from typing import Annotated

import msgspec
from litestar import Response, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody

from onbeat.app.systems import RunningSystems
from onbeat.service.service import Service
from onbeat.web.params import IdempotencyKey, problem_responses

Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Publishing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact: the name of its type, as the program of its agents knows it, and its fields."""

    type: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    payload: dict[str, object]
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] = []
    correlation_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None


class Published(msgspec.Struct, frozen=True):
    """`published`: agents that consume it have their runs. `offered`: no program took it yet."""

    id: str
    type: str
    state: str


@post(
    "/artifacts",
    operation_id="publish_artifact",
    responses=problem_responses("artifact", 422),
)
async def publish_artifact(
    service: NamedDependency[Service],
    state: State,
    data: JSONBody[Publishing],
    idempotency_key: IdempotencyKey = None,
) -> Response[Published]:
    """Publish an artifact: it triggers the agents without a schedule that consume its type.

    The program of the agents validates it. The same key is the same artifact.
    """
    systems: RunningSystems = state.systems
    artifact_id, offer = await systems.artifacts.publish(
        service,
        data.type,
        data.payload,
        tags=data.tags,
        correlation_id=data.correlation_id,
        key=idempotency_key,
    )
    found = Published(artifact_id, offer.type, offer.state)
    return Response(found, status_code=201 if offer.state == "published" else 202)


ROUTES = [publish_artifact]
