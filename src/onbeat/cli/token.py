"""`onbeat token create`, `list`, `revoke` and `link`: API tokens."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from msgspec.structs import asdict

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli.format import Cell, Times
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.terminal import table_zone
from onbeat.cli.verbs import VerbGroup
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import rfc3339_ms
from onbeat.errors import ApiUnavailable, InvalidSchedule, InvalidSettings
from onbeat.ports.rows import Overview, TokenRow
from onbeat.service.access import SCOPES, Scope
from onbeat.service.serialize import token_fields
from onbeat.service.service import Service
from onbeat.service.signed_tokens import Signer
from onbeat.service.tokens import LINK_LASTS
from onbeat.web.identity import not_certified, not_served
from onbeat.web.security.first_token import login_url

COLUMNS = (
    Column("TOKEN", least=12),
    "SCOPE",
    Column("OWNER", least=8),
    Column("BY", least=8, drop=1),
    "CREATED",
    "EXPIRES",
)


@click.group(
    cls=VerbGroup, examples=["onbeat token create pipeline --scope define", "onbeat token link"]
)
def token() -> None:
    """Manage API tokens, and links that open the dashboard."""


@token.command(examples=["onbeat token create pipeline --scope define --expires 90d"])
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="read",
    show_default=True,
    help="What the token permits; each scope includes those before it.",
)
@click.option("--owner", default="", help="Restrict the token to schedules of this owner.")
@click.option(
    "--expires", metavar="LENGTH", help="Expire after this duration, such as 90d. [default: never]"
)
@JSON
@with_settings()
def create(
    settings: Settings, name: str, scope: Scope, owner: str, expires: str | None, as_json: bool
) -> None:
    """Create a token and print its secret. Only a digest of the secret is stored."""
    lasts = None if expires is None else _length(expires)
    row, secret = with_service(
        settings,
        lambda service: service.tokens.create(name, scope, owner, lasts),
        create=True,
    )
    if as_json:
        write_json({**asdict(token_fields(row)), "secret": secret})
        return
    click.echo(secret)
    click.echo("keep this secret: it is not shown again", err=True)


@token.command("list", examples=["onbeat token list"])
@WIDE
@JSON
@with_settings()
def list_(settings: Settings, wide: bool, as_json: bool) -> None:
    """List tokens and open sessions, without their secrets."""

    async def work(service: Service) -> tuple[list[TokenRow], int]:
        return await service.tokens.all(), service.clock.now()

    found, now = with_service(settings, work)
    if as_json:
        write_json([token_fields(row) for row in found])
    elif found:
        times = Times(now, table_zone())
        write_table(COLUMNS, [_cells(row, times) for row in found], times=times, wide=wide)
    else:
        click.echo("no tokens (onbeat token create NAME creates one)")


@token.command(examples=["onbeat token revoke pipeline"])
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@with_settings()
def revoke(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Revoke tokens or sessions, including sessions that were opened with them."""

    async def work(service: Service) -> list[TokenRow]:
        return [await service.tokens.revoke(name) for name in names]

    gone = with_service(settings, work)
    if as_json:
        write_json([token_fields(row) for row in gone])
    for row in () if as_json else gone:
        click.echo(f"revoked {row.token_id}")


@token.command(examples=["onbeat token link", "onbeat token link --scope read"])
@click.option(
    "--scope", type=click.Choice(SCOPES), help="The scope of the session. [default: admin]"
)
@JSON
@with_settings()
def link(settings: Settings, scope: Scope | None, as_json: bool) -> None:
    """Print a one-time link to the dashboard, valid for ten minutes.

    The command first checks that a node of this database serves the address of the link.
    """

    async def work(service: Service) -> tuple[str, str, int]:
        found = await service.overview()
        signer = await service.tokens.signer()
        where = await asyncio.to_thread(_where, settings, _addresses(settings, found), signer)
        return where, await service.tokens.link(scope), found.now + LINK_LASTS

    where, code, until = with_service(settings, work)
    url = login_url(where, code)
    if as_json:
        write_json({"link": url, "expires_at": rfc3339_ms(until)})
    else:
        click.echo(url)


def _addresses(settings: Settings, found: Overview) -> list[str]:
    """Return the API addresses of the nodes that are up, those of this machine first."""
    up = [row for row in found.nodes if row.alive_until > found.now and row.address]
    if not settings.is_postgres:
        held = lock_holder(settings)
        up = [row for row in up if held is not None and held.node_id == row.node_id]
    here = f"{socket.gethostname()}:"
    up.sort(key=lambda row: (not row.name.startswith(here), -row.started_at))
    return [row.address for row in up]


def _where(settings: Settings, addresses: Sequence[str], signer: Signer) -> str:
    """Return the URL of an API that a node of this database serves, or raise."""
    own = replace(
        settings, public_url=""
    ).api_url  # of a process with roles=api, which is not a node
    refused = []
    for url in dict.fromkeys((*addresses, own)):
        if settings.tls_client_ca and url.startswith("https:"):
            found = not_certified(url, Path(settings.tls_cert))
        else:
            found = not_served(url, signer)
        if found is None:
            return _public(settings.public_url, signer) if settings.public_url else url
        refused.append(found.why)
    if settings.public_url and addresses:  # the node is up, and cannot be reached from here
        return _public(settings.public_url, signer)
    hint = "onbeat up starts a node; onbeat status shows those that are up"
    raise ApiUnavailable(f"no link: no node of this database serves the API: {refused[0]} ({hint})")


def _public(url: str, signer: Signer) -> str:
    """Return the public URL, unless it leads to another program or database."""
    found = not_served(url, signer, is_proxied=True)
    if found is not None and found.answers:
        raise ApiUnavailable(f"no link: {found.why} (public_url must lead to the API)")
    if found is not None:
        click.echo(f"onbeat: not checked from here: {found.why}", err=True)
    return url


def _cells(row: TokenRow, times: Times) -> tuple[Cell | str, ...]:
    expires = "never" if row.expires_at is None else times.cell(row.expires_at)
    created = times.cell(row.created_at)
    return row.token_id, row.scope, row.owner or "-", row.created_by or "-", created, expires


def _length(text: str) -> int:
    try:
        return parse_duration(text).elapsed * 1000
    except InvalidSchedule as refused:
        raise InvalidSettings("--expires", refused.problem, hint=refused.hint) from None
