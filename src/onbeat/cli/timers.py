"""`onbeat timers`, `timers enable` and `timers disable`: the timers of oneshot services."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import click

from onbeat.app.client import client
from onbeat.app.settings import Settings
from onbeat.app.systems import are_timers_on, timers_of
from onbeat.cli import FAILED, INVALID_DEFINITION
from onbeat.cli.session import JSON, ask, caller, with_settings, write_json
from onbeat.errors import InvalidFile
from onbeat.service.service import Service
from onbeat.systems.services.system import TimerSystem
from onbeat.systems.services.timer_list import DISABLED, HEADING, TimerList

T = TypeVar("T")

ROW = "%-16s %-16s %-8s %-12s %-12s %-8s %s"
ENABLE_WITH = "Enable with: timers_enabled: true (and not enabled: false) in %s"


class _Timers(click.Group):
    """A verb that also works without another: what is none of them is refused."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            verbs = " and ".join(f"{verb} ID" for verb in sorted(self.commands, reverse=True))
            ctx.fail(f"timers command does not accept arguments (but for {verbs})")
        return super().resolve_command(ctx, args)


@click.group(cls=_Timers, invoke_without_command=True)
@JSON
@with_settings()
def timers(settings: Settings, as_json: bool) -> None:
    """Show the timers of services, when they ran and run next, and which are wrong."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        # What was asked before the verb holds for the verb, unless that says otherwise.
        context.default_map = dict.fromkeys(timers.commands, context.params)
        return
    try:
        is_on = are_timers_on(settings)
        found = _with_timers(settings, TimerSystem.listed, or_none=True) if is_on else None
    except InvalidFile as refused:
        _tell_wrong(settings, refused, as_json=as_json)
        sys.exit(INVALID_DEFINITION)
    if found is None:
        _tell_disabled(settings, as_json=as_json)
    elif as_json:
        write_json(found.fields())
    else:
        _write(found)


@timers.command()
@click.argument("timer_id", metavar="ID")
@JSON
@with_settings()
def enable(settings: Settings, timer_id: str, as_json: bool) -> None:
    """Have a timer run, whatever its file says."""
    _switch(settings, timer_id, on=True, as_json=as_json)


@timers.command()
@click.argument("timer_id", metavar="ID")
@JSON
@with_settings()
def disable(settings: Settings, timer_id: str, as_json: bool) -> None:
    """Have a timer skip its times, whatever its file says."""
    _switch(settings, timer_id, on=False, as_json=as_json)


def _switch(settings: Settings, timer_id: str, *, on: bool, as_json: bool) -> None:
    changed = None
    if are_timers_on(settings):
        changed = _with_timers(settings, lambda system: system.switch(timer_id, on=on))
    if changed is None:
        _tell_disabled(settings, as_json=as_json)
        sys.exit(FAILED)
    if as_json:
        write_json({"id": timer_id, "enabled": on, "changed": changed})
        return
    word = "enabled" if on else "disabled"
    click.echo(f"{word} {timer_id}" if changed else f"{timer_id} was {word} already")


def _with_timers(
    settings: Settings, work: Callable[[TimerSystem], Awaitable[T]], *, or_none: bool = False
) -> T:
    """Do something with timers and their database; `or_none`: before the first start, without."""

    async def with_service(service: Service) -> T:
        system = timers_of(settings, service)
        assert system is not None, "whether there is a file was asked before"
        return await work(system)

    async def without_database() -> T:
        nowhere = replace(settings, database="sqlite://")  # memory, in which there is nothing
        async with client(nowhere, caller()) as service:
            return await with_service(service)

    path = settings.database_path
    if or_none and path is not None and not (path.exists() and path.stat().st_size):
        return asyncio.run(without_database())
    return ask(settings, with_service)


def _tell_disabled(settings: Settings, *, as_json: bool) -> None:
    if as_json:
        write_json({"status": "disabled", "message": DISABLED})
    else:
        click.echo(f"{DISABLED}.")
        click.echo(ENABLE_WITH % settings.services_file)


def _tell_wrong(settings: Settings, refused: InvalidFile, *, as_json: bool) -> None:
    """Tell what is wrong with the file, below the timers that are at work as it was before."""
    found = _with_timers(settings, TimerSystem.listed_by_store, or_none=True)
    if as_json:
        mistakes = [{"file": refused.path} | each._asdict() for each in refused.mistakes]
        write_json(found.fields() | {"mistakes": mistakes})
        return
    if found.timers:
        _write(found)
        click.echo()
    click.echo(str(refused), err=True)
    n = len(refused.mistakes)
    as_before = "the timers above are those of before" if found.timers else "there are no timers"
    click.echo(f"onbeat: {n} mistake{'s' * (n != 1)} in {refused.path}: {as_before}", err=True)


def _write(found: TimerList) -> None:
    if not found.timers and not found.invalid:
        click.echo("No timers configured.")
        return
    if found.timers:
        click.echo(ROW % HEADING)
        click.echo("-" * 90)
        for each in found.timers:
            click.echo((ROW % each.cells(found.now)).rstrip())
    if found.invalid:
        click.echo("\nInvalid timers:")
        for timer_id, reason in found.invalid.items():
            click.echo(f"  {timer_id}: {reason}")
