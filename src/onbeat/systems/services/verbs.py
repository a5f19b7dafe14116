"""`onbeat timers`, `timers enable` and `timers disable`: the timers of oneshot services."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import click

from onbeat.app.client import client
from onbeat.app.settings import Settings
from onbeat.cli.exit_codes import FAILED, INVALID_DEFINITION
from onbeat.cli.runtime import JSON, caller, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, cut
from onbeat.cli.terminal import table_width
from onbeat.cli.verbs import ListingGroup, hand_down_options
from onbeat.errors import InvalidFile
from onbeat.service.service import Service
from onbeat.systems.services.part import are_timers_on, timers_of
from onbeat.systems.services.settings import ServicesSettings
from onbeat.systems.services.system import TimerSystem
from onbeat.systems.services.timer_list import DISABLED, HEADING, TimerList

T = TypeVar("T")

ROW = "%-16s %-16s %-8s %-12s %-12s %-8s %s"
ENABLE_WITH = "Enable with: timers_enabled: true (and not enabled: false) in %s"


class _Timers(ListingGroup):
    """A group that rejects unknown verbs in the words of its origin."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            verbs = " and ".join(f"{verb} ID" for verb in sorted(self.commands, reverse=True))
            ctx.fail(f"timers command does not accept arguments (but for {verbs})")
        return super().resolve_command(ctx, args)


@click.group(cls=_Timers, examples=["onbeat timers", "onbeat timers disable nightly"])
@WIDE
@JSON
@with_settings()
def timers(settings: Settings, wide: bool, as_json: bool) -> None:
    """List the timers of services: their last and next runs, and mistakes in their file.

    This is the spelling of the services system; `onbeat list` lists all schedules.
    """
    if hand_down_options(timers):
        return
    try:
        is_on = are_timers_on(settings.of(ServicesSettings))
        found = _with_timers(settings, TimerSystem.listed, is_optional=True) if is_on else None
    except InvalidFile as refused:
        _show_mistakes(settings, refused, wide=wide, as_json=as_json)
        sys.exit(INVALID_DEFINITION)
    if found is None:
        _show_disabled(settings, as_json=as_json)
    elif as_json:
        write_json(found.fields())
    else:
        _write(found, wide=wide)


@timers.command(examples=["onbeat timers enable nightly"])
@click.argument("timer_id", metavar="ID")
@JSON
@with_settings()
def enable(settings: Settings, timer_id: str, as_json: bool) -> None:
    """Enable a timer, even if its file disables it."""
    _switch(settings, timer_id, on=True, as_json=as_json)


@timers.command(examples=["onbeat timers disable nightly"])
@click.argument("timer_id", metavar="ID")
@JSON
@with_settings()
def disable(settings: Settings, timer_id: str, as_json: bool) -> None:
    """Disable a timer, even if its file enables it."""
    _switch(settings, timer_id, on=False, as_json=as_json)


def _switch(settings: Settings, timer_id: str, *, on: bool, as_json: bool) -> None:
    changed = None
    if are_timers_on(settings.of(ServicesSettings)):
        changed = _with_timers(settings, lambda system: system.switch(timer_id, on=on))
    if changed is None:
        _show_disabled(settings, as_json=as_json)
        sys.exit(FAILED)
    if as_json:
        write_json({"id": timer_id, "enabled": on, "changed": changed})
        return
    word = "enabled" if on else "disabled"
    click.echo(f"{word} {timer_id}" if changed else f"{timer_id} was already {word}")


def _with_timers(
    settings: Settings, work: Callable[[TimerSystem], Awaitable[T]], *, is_optional: bool = False
) -> T:
    """Call `work` with the timers; without a database too, if that `is_optional`."""

    async def connected(service: Service) -> T:
        system = timers_of(settings.of(ServicesSettings), service)
        assert system is not None, "the callers have checked that there is a file"
        return await work(system)

    async def without_database() -> T:
        empty = replace(settings, database="sqlite://")  # in memory
        async with client(empty, caller()) as service:
            return await connected(service)

    path = settings.database_path
    if is_optional and path is not None and not (path.exists() and path.stat().st_size):
        return asyncio.run(without_database())
    return with_service(settings, connected)


def _show_disabled(settings: Settings, *, as_json: bool) -> None:
    if as_json:
        write_json({"status": "disabled", "message": DISABLED})
    else:
        click.echo(f"{DISABLED}.")
        click.echo(ENABLE_WITH % settings.of(ServicesSettings).file)


def _show_mistakes(settings: Settings, refused: InvalidFile, *, wide: bool, as_json: bool) -> None:
    """Show the mistakes in the file, below the timers in effect, which are those of before."""
    found = _with_timers(settings, TimerSystem.listed_by_store, is_optional=True)
    if as_json:
        mistakes = [{"file": refused.path} | each._asdict() for each in refused.mistakes]
        write_json(found.fields() | {"mistakes": mistakes})
        return
    if found.timers:
        _write(found, wide=wide)
        click.echo()
    click.echo(str(refused), err=True)
    n = len(refused.mistakes)
    in_effect = "the timers above stay in effect" if found.timers else "no timers are in effect"
    click.echo(f"onbeat: {n} mistake{'s' * (n != 1)} in {refused.path}: {in_effect}", err=True)


def _write(found: TimerList, *, wide: bool) -> None:
    limit = None if wide else table_width()
    if not found.timers and not found.invalid:
        click.echo("No timers configured.")
        return
    if found.timers:
        click.echo(ROW % HEADING)
        click.echo("-" * 90)
        for each in found.timers:
            click.echo(cut((ROW % each.cells(found.now)).rstrip(), limit))
    if found.invalid:
        click.echo("\nInvalid timers:")
        for timer_id, reason in found.invalid.items():
            click.echo(f"  {timer_id}: {reason}")
