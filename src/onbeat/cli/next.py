"""`onbeat next`: the coming ticks of a trigger, in words and times, before it is scheduled."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from onbeat.cli import INVALID_DEFINITION
from onbeat.core.codec import decode
from onbeat.core.instants import parse_instant, rfc3339, whole_second
from onbeat.core.model import Past
from onbeat.core.nights import YEAR, night_notes
from onbeat.core.ticks import Trigger
from onbeat.core.words import words
from onbeat.core.zones import DAY, date_of, zone
from onbeat.errors import InvalidSchedule, naming
from onbeat.sources.yaml import Definitions, read_definitions

Told = dict[str, Any]


@click.command("next")
@click.option("--cron", metavar="EXPR", help='A cron text: "0 9 * * MON-FRI".')
@click.option("--every", metavar="LENGTH", help="A grid: 90m, 1d, 1mo.")
@click.option("--at", metavar="TIME", multiple=True, help="A time: 2026-12-01T09:00. Repeatable.")
@click.option("--daily", metavar="HH:MM", help="A time of every day: 17:00.")
@click.option(
    "-f", "--file", metavar="FILE", type=click.Path(path_type=Path), help="A file of schedules."
)
@click.argument("name", required=False)
@click.option("--tz", metavar="ZONE", help="An IANA time zone. [default: UTC, or the file's]")
@click.option("--after", metavar="RFC3339", help="Ticks later than this. [default: now]")
@click.option("-n", "n", type=click.IntRange(1, 100_000), default=5, help="How many. [default: 5]")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def next_ticks(
    file: Path | None, name: str | None, after: str | None, n: int, as_json: bool, **given: Any
) -> None:
    """Show the coming ticks of a trigger.

    Give one of --cron, --every, --at and --daily; or a FILE, with the NAME of a schedule in it, or
    without for a line of each.
    """
    tz = given.pop("tz")
    asked = {kind: value for kind, value in given.items() if value not in (None, ())}
    if (file is None) == (not asked) or (name and file is None):
        raise click.UsageError("give one of --cron, --every, --at and --daily, or --file FILE")
    try:
        t = whole_second(datetime.now(UTC)) if after is None else _instant(after)
        if file is None:
            _show_one(
                decode(_fields(asked), timezone=tz or "UTC"), tz or "UTC", t, n, as_json=as_json
            )
        else:
            with naming(str(file)):
                _show_file(read_definitions(file), name, tz, t, n, as_json=as_json)
    except InvalidSchedule as refused:
        click.echo(f"onbeat: {refused}", err=True)
        sys.exit(INVALID_DEFINITION)


def _fields(asked: dict[str, Any]) -> dict[str, Any]:
    if len(asked) > 1:
        raise click.UsageError(f"--{' and --'.join(asked)} are two triggers: give one")
    return {kind: list(value) if kind == "at" else value for kind, value in asked.items()}


def _instant(text: str) -> int:
    with naming("after"):
        return parse_instant(text)


def _show_file(
    definitions: Definitions, name: str | None, tz: str | None, t: int, n: int, *, as_json: bool
) -> None:
    if name is not None:
        trigger = definitions.trigger(name)
        _show_one(trigger, tz or definitions.zone_of(name), t, n, as_json=as_json)
        return
    triggers = {known: definitions.trigger(known) for known in definitions.schedules}
    if as_json:
        told = {known: _tell(trigger, t, n) for known, trigger in triggers.items()}
        click.echo(msgspec.json.encode(told))
        return
    width = max(map(len, triggers), default=0)
    for known, trigger in triggers.items():
        tick = trigger.next_after(t, _defined(t))
        where = tz or definitions.zone_of(known)
        moment = "no more ticks".ljust(30) if tick is None else _local(tick, where)
        click.echo(f"{known:{width}}  {moment}  {words(trigger)}")


def _show_one(trigger: Trigger, tz: str, t: int, n: int, *, as_json: bool) -> None:
    zone(tz)
    told = _tell(trigger, t, n)
    if as_json:
        click.echo(msgspec.json.encode(told))
        return
    click.echo(f"{told['words']}\n")
    for tick in trigger.upcoming(t, n, _defined(t)):
        click.echo(f"  {_local(tick, tz)}{'' if tz == 'UTC' else f'   {rfc3339(tick)}'}")
    if not told["next"]:
        click.echo("  no more ticks")
    for i, note in enumerate(told["notes"]):
        click.echo(f"{'' if i else chr(10)}note: {note}")


def _tell(trigger: Trigger, t: int, n: int) -> Told:
    ticks = trigger.upcoming(t, n, _defined(t))
    notes = night_notes(trigger, t, t + YEAR)
    for tick in ticks:
        if (due := trigger.due_at(tick)) != tick:
            notes.append(f"{rfc3339(tick)} is due at {rfc3339(due)}")
    if trigger.needs_past:
        notes.append("ticks that depend on runs and starts to come cannot be told beforehand")
    return {"next": [rfc3339(tick) for tick in ticks], "words": words(trigger), "notes": notes}


def _defined(t: int) -> Past:
    """Return the past of a schedule defined at `t` in a scheduler started then."""
    return Past(created_at=t, scheduler_started_at=t)


def _local(tick: int, tz: str) -> str:
    where = zone(tz)
    local = rfc3339(tick, where)
    weekday = date_of((tick + where.offset(tick)) // DAY).strftime("%a")
    return f"{weekday} {local[:10]} {local[11:19]} {local[19:]}"
