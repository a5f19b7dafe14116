"""`onbeat next`: the coming ticks of a trigger, in words and times, before it is scheduled."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from onbeat.cli import INVALID_DEFINITION
from onbeat.core.explain.describe import WEEKDAYS, describe
from onbeat.core.explain.preview import awaited, preview
from onbeat.core.time.instants import canonical_time, parse_instant, resolve, rfc3339, whole_second
from onbeat.core.time.zones import DAY, Zone, zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.codec import decode
from onbeat.core.triggers.past import Past
from onbeat.errors import InvalidFile, InvalidSchedule, naming
from onbeat.sources.yaml import FileDefinitions, read_definitions


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
    file: Path | None,
    name: str | None,
    tz: str | None,
    after: str | None,
    n: int,
    as_json: bool,
    **given: str | tuple[str, ...] | None,
) -> None:
    """Show the coming ticks of a trigger.

    Give one of --cron, --every, --at and --daily; or a FILE, with the NAME of a schedule in it, or
    without for a line of each.
    """
    asked = {kind: value for kind, value in given.items() if value not in (None, ())}
    if file is not None and asked:
        raise click.UsageError(f"--file and --{next(iter(asked))} are two triggers: give one")
    if file is None and not asked:
        raise click.UsageError("give one of --cron, --every, --at and --daily, or --file FILE")
    if len(asked) > 1:
        raise click.UsageError(f"--{' and --'.join(asked)} are two triggers: give one")
    if file is None and name:
        raise click.UsageError(f"{name!r} is the name of a schedule: give its --file too")
    try:
        t = _now() if after is None else _instant(after, tz)
        if file is None:
            where = "UTC" if tz is None else tz
            _show_one(decode(asked, timezone=where), where, t, n, as_json=as_json)
            return
        with naming(str(file)):
            definitions = read_definitions(file)
            if name is not None:
                where = definitions.zone_of(name) if tz is None else tz
                _show_one(definitions.trigger(name), where, t, n, as_json=as_json)
                return
        _show_all(definitions, tz, t, n, as_json=as_json)
    except InvalidFile as refused:
        click.echo(f"{refused}", err=True)
        sys.exit(INVALID_DEFINITION)
    except InvalidSchedule as refused:
        click.echo(f"onbeat: {refused}", err=True)
        sys.exit(INVALID_DEFINITION)


def _now() -> int:
    return whole_second(datetime.now(UTC))


def _instant(text: str, tz: str | None) -> int:
    """Read `--after`: with an offset, or local in the zone that is given."""
    with naming("after"):
        return parse_instant(text) if tz is None else resolve(canonical_time(text), zone(tz))


def _show_all(
    definitions: FileDefinitions, tz: str | None, t: int, n: int, *, as_json: bool
) -> None:
    """Show a line of each schedule; those that are refused are told of on stderr."""
    triggers: dict[str, Trigger] = {}
    for name in definitions.schedules:
        try:
            triggers[name] = definitions.trigger(name)
        except InvalidFile as refused:
            click.echo(f"{refused}", err=True)
    if as_json:
        told = {name: _told(trigger, t, n) for name, trigger in triggers.items()}
        click.echo(msgspec.json.encode(told))
    width = max(map(len, triggers), default=0)
    for name, trigger in triggers.items() if not as_json else ():
        where = zone(definitions.zone_of(name) if tz is None else tz)
        ticks = preview(trigger, where, after=t, n=1).ticks
        moment = (
            _local(ticks[0][1], where)
            if ticks
            else awaited(trigger, t, Past(created_at=t)).ljust(30)
        )
        click.echo(f"{name:{width}}  {moment}  {describe(trigger)}")
    if not definitions.schedules and not as_json:
        click.echo("no schedules")
    if len(triggers) < len(definitions.schedules):
        sys.exit(INVALID_DEFINITION)


def _show_one(trigger: Trigger, tz: str, t: int, n: int, *, as_json: bool) -> None:
    where = zone(tz)
    if as_json:
        click.echo(msgspec.json.encode(_told(trigger, t, n)))
        return
    found = preview(trigger, where, after=t, n=n)
    click.echo(f"{found.words}\n")
    for tick, due in found.ticks:
        utc = "" if tz == "UTC" else f"   {rfc3339(due)}"
        planned = "" if due == tick else f"   for {_local(tick, where)}"
        click.echo(f"  {_local(due, where)}{utc}{planned}")
    if not found.ticks:
        click.echo(f"  {awaited(trigger, t, Past(created_at=t))}")
    for i, note in enumerate(found.notes):
        click.echo(f"{'' if i else chr(10)}note: {note}")


def _told(trigger: Trigger, t: int, n: int) -> dict[str, object]:
    """Return what is told as JSON: `next` has each `run_at`, `due_at` those that are moved."""
    found = preview(trigger, zone("UTC"), after=t, n=n)
    dues = {rfc3339(tick): rfc3339(due) for tick, due in found.ticks}
    told: dict[str, object] = {"next": list(dues), "words": found.words, "notes": found.notes}
    moved = {run_at: due_at for run_at, due_at in dues.items() if run_at != due_at}
    return {**told, "due_at": moved} if moved else told


def _local(t: int, where: Zone) -> str:
    text = rfc3339(t, where)
    weekday = WEEKDAYS[((t + where.offset(t)) // DAY + 3) % 7][:3]
    return f"{weekday} {text[:10]} {text[11:19]} {text[19:]}"
