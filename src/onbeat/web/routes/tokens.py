"""Manage API tokens over HTTP, as an admin."""

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from onbeat.core.time.durations import parse_duration
from onbeat.errors import in_field
from onbeat.service.access import Scope
from onbeat.service.serialize import TokenFields, token_fields
from onbeat.service.service import Service
from onbeat.web.params import decode_segment, problem_responses


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to create: its scope, the owner that it is restricted to, and its lifetime."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._@-]{1,100}$")]
    scope: Scope
    owner: Annotated[str, msgspec.Meta(max_length=200)] = ""
    expires_in: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class CreatedToken(msgspec.Struct, frozen=True):
    """A created token. Its secret is returned only here."""

    token: TokenFields
    secret: str


class TokenPage(msgspec.Struct, frozen=True):
    """All tokens and open sessions."""

    tokens: list[TokenFields]


@get("/tokens", operation_id="list_tokens", responses=problem_responses("token"))
async def list_tokens(service: NamedDependency[Service]) -> TokenPage:
    """Return all tokens and open sessions, without their secrets."""
    return TokenPage([token_fields(row) for row in await service.tokens.all()])


@post("/tokens", operation_id="create_token", responses=problem_responses("token", 422))
async def create_token(service: NamedDependency[Service], data: JSONBody[NewToken]) -> CreatedToken:
    """Create a token. Its secret is returned only in this response, and is not stored."""
    lifetime = None
    if data.expires_in is not None:
        with in_field("expires_in"):
            lifetime = parse_duration(data.expires_in).elapsed * 1000
    row, secret = await service.tokens.create(data.name, data.scope, data.owner, lifetime)
    return CreatedToken(token_fields(row), secret)


@delete(
    "/tokens/{name:str}",
    operation_id="revoke_token",
    responses=problem_responses("token", 404, 422),
)
async def revoke_token(
    service: NamedDependency[Service],
    name: Annotated[
        str,
        PathParameter(min_length=1, max_length=300, description="The name or the id of the token."),
    ],
) -> None:
    """Revoke a token or a session, and all sessions opened with it."""
    await service.tokens.revoke(decode_segment(name))


ROUTES = [list_tokens, create_token, revoke_token]
