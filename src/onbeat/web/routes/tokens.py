"""Tokens over HTTP: who may come in, given and taken by admins."""

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter

from onbeat.core.time.durations import parse_duration
from onbeat.errors import naming
from onbeat.service.access import Scope
from onbeat.service.serialize import TokenFields, token_fields
from onbeat.service.service import Service
from onbeat.web.params import name_of, problem_responses


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token to be made: what its bearer may do, with whose schedules, and for how long."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._@-]{1,100}$")]
    scope: Scope
    owner: Annotated[str, msgspec.Meta(max_length=200)] = ""
    expires_in: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class TokenMade(msgspec.Struct, frozen=True):
    """A token that was made. Its secret is told here and nowhere else."""

    token: TokenFields
    secret: str


class TokenPage(msgspec.Struct, frozen=True):
    """The tokens and sessions there are."""

    tokens: list[TokenFields]


@get("/tokens", operation_id="list_tokens", responses=problem_responses("token"))
async def list_tokens(service: NamedDependency[Service]) -> TokenPage:
    """Return who may come in; never the secrets."""
    return TokenPage([token_fields(row) for row in await service.tokens.all()])


@post("/tokens", operation_id="create_token", responses=problem_responses("token", 422))
async def create_token(service: NamedDependency[Service], data: JSONBody[NewToken]) -> TokenMade:
    """Make a token. Its secret is in this answer, and is not kept."""
    lasts = None
    if data.expires_in is not None:
        with naming("expires_in"):
            lasts = parse_duration(data.expires_in).elapsed * 1000
    row, secret = await service.tokens.create(data.name, data.scope, data.owner, lasts)
    return TokenMade(token_fields(row), secret)


@delete(
    "/tokens/{name:str}",
    operation_id="revoke_token",
    responses=problem_responses("token", 404, 422),
)
async def revoke_token(
    service: NamedDependency[Service],
    name: Annotated[
        str, PathParameter(min_length=1, max_length=300, description="Its name or its id.")
    ],
) -> None:
    """Let nobody in by a token, or a session, any more."""
    await service.tokens.revoke(name_of(name))


ROUTES = [list_tokens, create_token, revoke_token]
