"""`onbeat backfill`: ticks of the past, run after all."""

import asyncio
import re
import sys

import click

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli.session import JSON, ask, with_settings, write_json, write_table
from onbeat.core.decide.backfill import TELLS, Add, Choice, Refuse
from onbeat.core.runs.run import run_key
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import read_typed, rfc3339
from onbeat.core.time.zones import Zone, zone
from onbeat.errors import InvalidSchedule, InvalidSettings
from onbeat.service.service import Service

SHOWN = 20  # ticks of a preview, in words
LOOK_EVERY = 0.2
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@click.command()
@click.argument("name")
@click.option(
    "--from", "since", metavar="TIME", required=True, help="The first tick, or before it."
)
@click.option("--to", "until", metavar="TIME", required=True, help="The last tick, or after it.")
@click.option("--preview", is_flag=True, help="Say what would be done, and do nothing.")
@JSON
@with_settings()
def backfill(
    settings: Settings, name: str, since: str, until: str, preview: bool, as_json: bool
) -> None:
    """Run ticks of the past after all: those that were skipped, or never planned.

    What ran, waits or is not decided yet is left as it is; so the same command goes on where it was
    broken off. They run one after another, when nothing else of the schedule does.
    """

    async def work(service: Service) -> None:
        row = await service.schedule(name)
        where = zone(from_definition(name, row.definition).timezone)
        first, last = (
            _instant(option, text, where) for option, text in (("--from", since), ("--to", until))
        )
        found = await service.preview_backfill(name, first=first, last=last)
        if preview:
            _show(name, found, as_json=as_json)
            return
        done = await _run(service, settings, name, first, last, quiet=as_json)
        if as_json:
            write_json({"schedule_id": name, "enqueued": done[0], "refused": done[1]})
        else:
            runs = "run is" if done[0] == 1 else "runs are"
            ticks = "tick was left as it is" if done[1] == 1 else "ticks were left as they are"
            click.echo(f"{done[0]} {runs} enqueued, {done[1]} {ticks}")

    ask(settings, work)


async def _run(
    service: Service, settings: Settings, name: str, first: int, last: int, *, quiet: bool
) -> tuple[int, int]:
    """Enqueue all that is to run, as there is room; return how many, and how many are not."""
    enqueued = refused = 0
    following: int | None = first
    while following is not None:
        done = await service.backfill(name, first=following, last=last)
        enqueued, refused = enqueued + done.enqueued, refused + done.refused
        if done.following is not None and done.waiting and not (done.enqueued or done.refused):
            if lock_holder(settings) is None and not settings.is_postgres:
                told = f"{done.waiting} wait and no node is up: start one, and do this again"
                click.echo(told, err=True)
                break
            await asyncio.sleep(LOOK_EVERY)
        following = done.following
        if not quiet and sys.stderr.isatty():
            click.echo(f"\r{enqueued} enqueued, {refused} refused ", nl=False, err=True)
    if not quiet and sys.stderr.isatty():
        click.echo(err=True)
    return enqueued, refused


def _show(name: str, choices: list[Choice], *, as_json: bool) -> None:
    refused = [choice for choice in choices if isinstance(choice, Refuse)]
    if as_json:
        write_json([_fields(name, choice) for choice in choices])
        return
    runs = len(choices) - len(refused)
    click.echo(f"{len(choices)} ticks: {runs} would run, {len(refused)} would be left as they are")
    rows = [
        (str(each["run_at"]), str(each["action"]), str(each["key"])[:12], str(each["why"] or ""))
        for each in (_fields(name, choice) for choice in choices[:SHOWN])
    ]
    if rows:
        write_table(("RUN AT", "ACTION", "KEY", "WHY"), rows)
    if len(choices) > SHOWN:
        click.echo(f"... and {len(choices) - SHOWN} more (--json lists all)")


def _fields(name: str, choice: Choice) -> dict[str, object]:
    """Return what would become of a tick, as JSON tells it."""
    refused = isinstance(choice, Refuse)
    return {
        "run_at": rfc3339(choice.run_at),
        "key": run_key(name, choice.run_at),
        "action": "refuse" if refused else "add" if isinstance(choice, Add) else "revive",
        "why": TELLS[choice.why] if isinstance(choice, Refuse) else None,
    }


def _instant(option: str, text: str, where: Zone) -> int:
    """Read a time, or a date: all of it."""
    if DATE.fullmatch(text):
        text += "T00:00" if option == "--from" else "T23:59:59"
    try:
        found = read_typed(text, where)
    except InvalidSchedule as refused:
        raise InvalidSettings(option, refused.problem, hint=refused.hint) from None
    return found.at if option == "--from" or found.again is None else found.again
