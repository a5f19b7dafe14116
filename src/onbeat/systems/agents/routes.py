"""Publish artifacts for agents over HTTP."""

from typing import Annotated, Any

import msgspec
from litestar import Response, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import JSONBody

from onbeat.service.service import Service
from onbeat.systems.agents.offers import Offers
from onbeat.web.params import IdempotencyKey, problem_responses

Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class PublishRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An artifact: the name of its type in the program of the agents, and its fields."""

    type: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    payload: dict[str, Any]
    tags: Annotated[list[Tag], msgspec.Meta(max_length=100)] = []
    correlation_id: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None


class PublishedArtifact(msgspec.Struct, frozen=True):
    """`published`: the agents that consume it have runs. `offered`: no program has taken it yet."""

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
    data: JSONBody[PublishRequest],
    idempotency_key: IdempotencyKey = None,
) -> Response[PublishedArtifact]:
    """Publish an artifact: it triggers the agents without a schedule that consume its type.

    The program of the agents validates it. A repeated Idempotency-Key publishes nothing new.
    """
    offers: Offers = state.systems["agents"]
    artifact_id, offer = await offers.publish(
        service,
        data.type,
        data.payload,
        tags=data.tags,
        correlation_id=data.correlation_id,
        key=idempotency_key,
    )
    found = PublishedArtifact(artifact_id, offer.type, offer.state)
    return Response(found, status_code=201 if offer.state == "published" else 202)


ROUTES = [publish_artifact]
# The framework leaves out the constraints of list items.
BODIES = {
    "publish_artifact": (
        "PublishRequest",
        msgspec.json.schema(PublishRequest)["$defs"]["PublishRequest"],
    )
}
