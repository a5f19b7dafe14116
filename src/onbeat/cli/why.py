"""`onbeat why`: explain what happened at an instant, or did not."""

import click

from onbeat.app.settings import Settings
from onbeat.cli.completion import complete_schedules
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.verbs import Verb
from onbeat.core.explain.why import Why
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import zone
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service.serialize import why_fields
from onbeat.service.service import Service


@click.command(cls=Verb, examples=["onbeat why report", "onbeat why report 2026-03-29T02:30"])
@click.argument("name", shell_complete=complete_schedules)
@click.argument("time", required=False)
@JSON
@with_settings()
def why(settings: Settings, name: str, time: str | None, as_json: bool) -> None:
    """Explain why a schedule did or did not run at TIME (with a UTC offset, or local to its zone).

    The default is the latest tick or start. A local time that a clock change skips means the first
    instant after the gap; a local time that occurs twice is explained for both instants.
    """

    async def work(service: Service) -> list[Why]:
        try:
            found = await service.why(name, time)
        except InvalidSchedule as refused:
            raise InvalidSettings("TIME", refused.problem, hint=refused.hint) from None
        return [found, *[await service.why(name, at) for at in found.also]]

    found, *others = with_service(settings, work)
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
