"""`onbeat backfill`: run past ticks that were not run."""

import asyncio
import re
import sys

import click

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli.completion import complete_schedules
from onbeat.cli.format import Times
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.terminal import table_zone
from onbeat.cli.verbs import Verb
from onbeat.core.decide.backfill import REFUSALS, Add, Choice, Refuse
from onbeat.core.runs.run import run_key
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import read_typed, rfc3339
from onbeat.core.time.zones import Zone, zone
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service.service import Service

MOST_SHOWN = 20  # ticks of a preview in a table
POLL_EVERY = 0.2  # seconds
COLUMNS = ("RUN AT", "ACTION", Column("KEY", drop=1), Column("WHY", least=16))
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@click.command(
    cls=Verb,
    examples=[
        "onbeat backfill report --from 2026-01-01 --to 2026-01-31 --preview",
        "onbeat backfill report --from 2026-01-01T09:00 --to 2026-01-02T09:00",
    ],
)
@click.argument("name", shell_complete=complete_schedules)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    required=True,
    help="Where to begin: a time or a date, inclusive.",
)
@click.option(
    "--to",
    "until",
    metavar="TIME",
    required=True,
    help="Where to end: a time or a date, inclusive.",
)
@click.option("--preview", is_flag=True, help="Only show what would be run.")
@WIDE
@JSON
@with_settings()
def backfill(
    settings: Settings,
    name: str,
    since: str,
    until: str,
    preview: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """Run past ticks that were skipped, or never planned.

    Ticks that ran, wait, or are not decided yet are left unchanged, so the same command continues
    where it was interrupted. The runs start one after another, while the schedule has no other run.
    """

    async def work(service: Service) -> None:
        row = await service.schedule(name)
        where = zone(from_definition(name, row.definition).timezone)
        first, last = (
            _instant(option, text, where) for option, text in (("--from", since), ("--to", until))
        )
        found = await service.preview_backfill(name, first=first, last=last)
        if preview:
            times = Times(service.clock.now(), table_zone())
            _show(name, found, times, wide=wide, as_json=as_json)
            return
        done = await _run(service, settings, name, first, last, quiet=as_json)
        if as_json:
            write_json({"schedule_id": name, "enqueued": done[0], "refused": done[1]})
        else:
            runs = f"{done[0]} run{'s' * (done[0] != 1)} enqueued"
            ticks = f"{done[1]} tick{'s' * (done[1] != 1)} left unchanged"
            click.echo(f"{runs}, {ticks}")

    with_service(settings, work)


async def _run(
    service: Service, settings: Settings, name: str, first: int, last: int, *, quiet: bool
) -> tuple[int, int]:
    """Enqueue the runs as there is room; return how many, and how many ticks are left unchanged."""
    enqueued = refused = 0
    following: int | None = first
    while following is not None:
        done = await service.backfill(name, first=following, last=last)
        enqueued, refused = enqueued + done.enqueued, refused + done.refused
        if done.following is not None and done.waiting and not (done.enqueued or done.refused):
            if lock_holder(settings) is None and not settings.is_postgres:
                waiting = f"{done.waiting} runs wait and no node is up"
                click.echo(f"{waiting}: start one, and repeat this command", err=True)
                break
            await asyncio.sleep(POLL_EVERY)
        following = done.following
        if not quiet and sys.stderr.isatty():
            click.echo(f"\r{enqueued} enqueued, {refused} left unchanged ", nl=False, err=True)
    if not quiet and sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)  # the caller prints the totals
    return enqueued, refused


def _show(name: str, choices: list[Choice], times: Times, *, wide: bool, as_json: bool) -> None:
    refused = [choice for choice in choices if isinstance(choice, Refuse)]
    if as_json:
        write_json([_fields(name, choice) for choice in choices])
        return
    runs = len(choices) - len(refused)
    click.echo(f"{len(choices)} ticks: {runs} would run, {len(refused)} would be left unchanged")
    rows = [
        (
            times.clock(choice.run_at * 1000),
            str(each["action"]),
            str(each["key"])[:12],
            str(each["why"] or ""),
        )
        for choice, each in ((each, _fields(name, each)) for each in choices[:MOST_SHOWN])
    ]
    if rows:
        write_table(COLUMNS, rows, times=times, wide=wide)
    if len(choices) > MOST_SHOWN:
        click.echo(f"... and {len(choices) - MOST_SHOWN} more (--json lists all)")


def _fields(name: str, choice: Choice) -> dict[str, object]:
    """Return what would be done with a tick, as JSON has it."""
    refused = isinstance(choice, Refuse)
    return {
        "run_at": rfc3339(choice.run_at),
        "key": run_key(name, choice.run_at),
        "action": "refuse" if refused else "add" if isinstance(choice, Add) else "revive",
        "why": REFUSALS[choice.why] if isinstance(choice, Refuse) else None,
    }


def _instant(option: str, text: str, where: Zone) -> int:
    """Parse a time, or a date: its first or its last second."""
    if DATE.fullmatch(text):
        text += "T00:00" if option == "--from" else "T23:59:59"
    try:
        found = read_typed(text, where)
    except InvalidSchedule as refused:
        raise InvalidSettings(option, refused.problem, hint=refused.hint) from None
    return found.at if option == "--from" or found.again is None else found.again
