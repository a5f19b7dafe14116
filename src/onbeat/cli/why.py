"""`onbeat why`: what happened at an instant, or did not, and why."""

import click

from onbeat.app.settings import Settings
from onbeat.cli.session import JSON, ask, with_settings, write_json
from onbeat.core.explain.why import Why
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import zone
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service.serialize import why_fields
from onbeat.service.service import Service


@click.command()
@click.argument("name")
@click.argument("time", required=False)
@JSON
@with_settings()
def why(settings: Settings, name: str, time: str | None, as_json: bool) -> None:
    """Say why a schedule ran, or did not, at TIME: an instant, or a local time in its zone.

    Without TIME it is the latest tick or start. A local time that the clocks jump over stands for
    the first instant after the gap; of one that they show twice both are answered.
    """

    async def work(service: Service) -> list[Why]:
        try:
            found = await service.why(name, time)
        except InvalidSchedule as refused:
            raise InvalidSettings("TIME", refused.problem, hint=refused.hint) from None
        return [found, *[await service.why(name, at) for at in found.also]]

    found, *others = ask(settings, work)
    if as_json:
        write_json(why_fields(found))
        return
    if found.note:
        click.echo(found.note)
    for each in sorted([found, *others], key=lambda each: each.at):
        _write(name, each)


def _write(name: str, found: Why) -> None:
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
