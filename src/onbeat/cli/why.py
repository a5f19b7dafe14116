"""`onbeat why`: what happened at an instant, or did not, and why."""

from contextlib import suppress

import click

from onbeat.cli.session import JSON, ask, with_settings, write_json
from onbeat.core.instants import resolve, rfc3339
from onbeat.core.schedules import from_definition
from onbeat.core.why import Why
from onbeat.core.zones import zone
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service import Service
from onbeat.settings import Settings
from onbeat.telling import why_fields


@click.command()
@click.argument("name")
@click.argument("time", required=False)
@JSON
@with_settings()
def why(settings: Settings, name: str, time: str | None, as_json: bool) -> None:
    """Say why a schedule ran, or did not, at TIME: an instant, or a local time in its zone.

    Without TIME it is the latest tick, or start by hand.
    """

    async def work(service: Service) -> Why:
        at = None if time is None else await _instant(service, name, time)
        return await service.why(name, at)

    found = ask(settings, work)
    if as_json:
        write_json(why_fields(found))
        return
    where = zone(found.timezone)
    click.echo(f"{name} at {rfc3339(found.at, where)}: {found.headline}")
    for sentence in found.sentences:
        click.echo(f"  {sentence}")
    if found.instead is not None:
        click.echo(f"  {found.instead}")
    near = [("before", found.previous), ("after", found.following)]
    for side, tick in near:
        if tick is not None:
            click.echo(f"  {rfc3339(tick, where)} is the tick {side} it")


async def _instant(service: Service, name: str, text: str) -> int:
    row = await service.find(name)
    where = zone("UTC")
    if row is not None:
        with suppress(InvalidSchedule):  # else the instant says its offset, or is in UTC
            where = zone(from_definition(name, row.definition).timezone)
    try:
        return resolve(text, where)
    except InvalidSchedule as refused:
        raise InvalidSettings("TIME", refused.problem, hint=refused.hint) from None
