"""`onbeat token create`, `list`, `revoke` and `link`: who may come in over HTTP."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from msgspec.structs import asdict

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli.session import JSON, ask, with_settings, write_json, write_table
from onbeat.cli.times import moment
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
from onbeat.web.security.first_token import link_of


@click.group()
def token() -> None:
    """Say who may come in over HTTP, and what they may do there."""


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    type=click.Choice(SCOPES),
    default="read",
    show_default=True,
    help="Each may what those before it may.",
)
@click.option("--owner", default="", help="They see and define only schedules of this owner.")
@click.option("--expires", metavar="LENGTH", help="Such as 90d. [default: never]")
@JSON
@with_settings()
def create(
    settings: Settings, name: str, scope: Scope, owner: str, expires: str | None, as_json: bool
) -> None:
    """Make a token, and show its secret: this once, as nothing but a digest is kept."""
    lasts = None if expires is None else _length(expires)
    row, secret = ask(
        settings,
        lambda service: service.tokens.create(name, scope, owner, lasts),
        create=True,
    )
    if as_json:
        write_json({**asdict(token_fields(row)), "secret": secret})
        return
    click.echo(secret)
    click.echo("keep it: it is not shown again", err=True)


@token.command("list")
@JSON
@with_settings()
def list_(settings: Settings, as_json: bool) -> None:
    """Show tokens and open sessions, never a secret."""

    async def work(service: Service) -> tuple[list[TokenRow], int]:
        return await service.tokens.all(), service.clock.now()

    found, now = ask(settings, work)
    if as_json:
        write_json([token_fields(row) for row in found])
    elif found:
        heading = ("TOKEN", "SCOPE", "OWNER", "BY", "CREATED", "EXPIRES")
        write_table(heading, [_cells(row, now) for row in found])
    else:
        click.echo("no tokens (onbeat token create NAME makes one)")


@token.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@with_settings()
def revoke(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Let nobody in by these tokens or sessions any more, nor by what they were used to open."""

    async def work(service: Service) -> list[TokenRow]:
        return [await service.tokens.revoke(name) for name in names]

    gone = ask(settings, work)
    if as_json:
        write_json([token_fields(row) for row in gone])
    for row in () if as_json else gone:
        click.echo(f"revoked {row.token_id}")


@token.command()
@click.option("--scope", type=click.Choice(SCOPES), help="Of the session. [default: admin]")
@JSON
@with_settings()
def link(settings: Settings, scope: Scope | None, as_json: bool) -> None:
    """Print a link that opens the dashboard, once, within ten minutes.

    The link names an address that a node of this database serves: that is checked first.
    """

    async def work(service: Service) -> tuple[str, str, int]:
        found = await service.overview()
        signer = await service.tokens.signer()
        where = await asyncio.to_thread(_where, settings, _addresses(settings, found), signer)
        return where, await service.tokens.link(scope), found.now + LINK_LASTS

    where, code, until = ask(settings, work)
    told = link_of(where, code)
    if as_json:
        write_json({"link": told, "expires_at": rfc3339_ms(until)})
    else:
        click.echo(told)


def _addresses(settings: Settings, found: Overview) -> list[str]:
    """Return where nodes that are up have the API, those of this machine first."""
    up = [row for row in found.nodes if row.alive_until > found.now and row.address]
    if not settings.is_postgres:
        held = lock_holder(settings)
        up = [row for row in up if held is not None and held.node_id == row.node_id]
    here = f"{socket.gethostname()}:"
    up.sort(key=lambda row: (not row.name.startswith(here), -row.started_at))
    return [row.address for row in up]


def _where(settings: Settings, addresses: Sequence[str], signer: Signer) -> str:
    """Return the URL of an API that a node of this database serves, or refuse to name one."""
    own = replace(settings, public_url="").api_url  # of a process that is no node, with roles=api
    refused = []
    for url in dict.fromkeys((*addresses, own)):
        if settings.tls_client_ca and url.startswith("https:"):
            found = not_certified(url, Path(settings.tls_cert))
        else:
            found = not_served(url, signer)
        if found is None:
            return _public(settings.public_url, signer) if settings.public_url else url
        refused.append(found.why)
    if settings.public_url and addresses:  # it is up, and cannot be reached from here
        return _public(settings.public_url, signer)
    hint = "onbeat up starts a node; onbeat status shows those that are up"
    raise ApiUnavailable(f"no link: no node of this database serves the API: {refused[0]} ({hint})")


def _public(url: str, signer: Signer) -> str:
    """Return the public URL, unless it leads to something else than a node of this database."""
    found = not_served(url, signer, is_proxied=True)
    if found is not None and found.answers:
        raise ApiUnavailable(f"no link: {found.why} (public_url has to lead to the API)")
    if found is not None:
        click.echo(f"onbeat: not checked from here: {found.why}", err=True)
    return url


def _cells(row: TokenRow, now: int) -> tuple[str, ...]:
    until = "never" if row.expires_at is None else moment(row.expires_at, now)
    made = moment(row.created_at, now)
    return row.token_id, row.scope, row.owner or "-", row.created_by or "-", made, until


def _length(text: str) -> int:
    try:
        return parse_duration(text).elapsed * 1000
    except InvalidSchedule as refused:
        raise InvalidSettings("--expires", refused.problem, hint=refused.hint) from None
