"""`onbeat next`: preview the next ticks of a trigger."""

import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from onbeat.cli.exit_codes import INVALID_DEFINITION
from onbeat.cli.tables import WIDE, cut
from onbeat.cli.terminal import table_width
from onbeat.cli.verbs import Verb
from onbeat.core.explain.describe import WEEKDAYS, describe
from onbeat.core.explain.preview import describe_wait, preview
from onbeat.core.time.instants import canonical_time, parse_instant, resolve, rfc3339, whole_second
from onbeat.core.time.zones import DAY, Zone, zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.codec import decode
from onbeat.core.triggers.past import Past
from onbeat.errors import InvalidFile, InvalidSchedule, in_field
from onbeat.sources.yaml import FileDefinitions, read_definitions


@click.command(
    "next",
    cls=Verb,
    examples=[
        'onbeat next --cron "0 9 * * MON-FRI" --tz Europe/Berlin',
        "onbeat next -f onbeat.yaml",
    ],
)
@click.option("--cron", metavar="EXPR", help='A cron expression: "0 9 * * MON-FRI".')
@click.option("--every", metavar="LENGTH", help="An interval: 90m, 1d, 1mo.")
@click.option(
    "--at", metavar="TIME", multiple=True, help="A point in time: 2026-12-01T09:00. Repeatable."
)
@click.option("--daily", metavar="HH:MM", help="A time of day: 17:00.")
@click.option(
    "-f", "--file", metavar="FILE", type=click.Path(path_type=Path), help="A file of schedules."
)
@click.argument("name", required=False)
@click.option(
    "--tz",
    metavar="ZONE",
    help="The IANA zone of the trigger; with a file, of the times shown. "
    "[default: the file's, or UTC]",
)
@click.option("--after", metavar="RFC3339", help="Only ticks later than this. [default: now]")
@click.option("-n", "n", type=click.IntRange(1, 100_000), default=5, help="How many. [default: 5]")
@WIDE
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def next_ticks(
    file: Path | None,
    name: str | None,
    tz: str | None,
    after: str | None,
    n: int,
    wide: bool,
    as_json: bool,
    **given: str | tuple[str, ...] | None,
) -> None:
    """Preview the next ticks of a trigger.

    The trigger is one of --cron, --every, --at and --daily, or the schedule NAME of a FILE. A FILE
    without NAME shows the next tick of each of its schedules.
    """
    triggers = {kind: value for kind, value in given.items() if value not in (None, ())}
    if file is not None and triggers:
        raise click.UsageError(f"--file and --{next(iter(triggers))} are two triggers: give one")
    if file is None and not triggers:
        raise click.UsageError("give one of --cron, --every, --at and --daily, or --file FILE")
    if len(triggers) > 1:
        raise click.UsageError(f"--{' and --'.join(triggers)} are two triggers: give one")
    if file is None and name:
        raise click.UsageError(f"{name!r} is the name of a schedule: it needs --file")
    try:
        t = _now() if after is None else _instant(after, tz)
        if file is None:
            where = "UTC" if tz is None else tz
            _show_one(decode(triggers, timezone=where), where, t, n, as_json=as_json)
            return
        with in_field(str(file)):
            definitions = read_definitions(file)
            if name is not None:
                where = definitions.zone_of(name) if tz is None else tz
                _show_one(definitions.trigger(name), where, t, n, as_json=as_json)
                return
        _show_all(definitions, tz, t, n, wide=wide, as_json=as_json)
    except InvalidFile as refused:
        click.echo(f"{refused}", err=True)
        sys.exit(INVALID_DEFINITION)
    except InvalidSchedule as refused:
        click.echo(f"onbeat: {refused}", err=True)
        sys.exit(INVALID_DEFINITION)


def _now() -> int:
    return whole_second(datetime.now(UTC))


def _instant(text: str, tz: str | None) -> int:
    """Parse `--after`: an instant with an offset, or a local time in the zone of `--tz`."""
    with in_field("after"):
        return parse_instant(text) if tz is None else resolve(canonical_time(text), zone(tz))


def _show_all(
    definitions: FileDefinitions, tz: str | None, t: int, n: int, *, wide: bool, as_json: bool
) -> None:
    """Show a line for each schedule, with times in one zone; report invalid ones on stderr."""
    triggers: dict[str, Trigger] = {}
    for name in definitions.schedules:
        try:
            triggers[name] = definitions.trigger(name)
        except InvalidFile as refused:
            click.echo(f"{refused}", err=True)
    if as_json:
        fields = {name: _fields(trigger, t, n) for name, trigger in triggers.items()}
        click.echo(msgspec.json.encode(fields))
    else:
        zones = Counter(map(definitions.zone_of, triggers)).most_common(1)
        _write_all(triggers, zone(tz or (zones[0][0] if zones else "UTC")), t, wide=wide)
        if not definitions.schedules:
            click.echo("no schedules")
    if len(triggers) < len(definitions.schedules):
        sys.exit(INVALID_DEFINITION)


def _write_all(triggers: Mapping[str, Trigger], where: Zone, t: int, *, wide: bool) -> None:
    limit = None if wide else table_width()
    width = max(map(len, triggers), default=0)
    has_times = False
    for name, trigger in triggers.items():
        ticks = preview(trigger, where, after=t, n=1).ticks
        has_times |= bool(ticks)
        moment = (
            _local(ticks[0][1], where) if ticks else describe_wait(trigger, t, Past(created_at=t))
        )
        click.echo(cut(f"{name:{width}}  {moment:<30}  {describe(trigger)}", limit))
    if has_times:
        click.echo(f"times in {where.name}")


def _show_one(trigger: Trigger, tz: str, t: int, n: int, *, as_json: bool) -> None:
    where = zone(tz)
    if as_json:
        click.echo(msgspec.json.encode(_fields(trigger, t, n)))
        return
    found = preview(trigger, where, after=t, n=n)
    click.echo(f"{found.words}\n")
    for tick, due in found.ticks:
        utc = "" if tz == "UTC" else f"   {rfc3339(due)}"
        planned = "" if due == tick else f"   for {_local(tick, where)}"
        click.echo(f"  {_local(due, where)}{utc}{planned}")
    if not found.ticks:
        click.echo(f"  {describe_wait(trigger, t, Past(created_at=t))}")
    for i, note in enumerate(found.notes):
        click.echo(f"{'' if i else chr(10)}note: {note}")


def _fields(trigger: Trigger, t: int, n: int) -> dict[str, object]:
    """Return a preview as JSON has it: `next` has each `run_at`, `due_at` those that are moved."""
    found = preview(trigger, zone("UTC"), after=t, n=n)
    dues = {rfc3339(tick): rfc3339(due) for tick, due in found.ticks}
    fields: dict[str, object] = {"next": list(dues), "words": found.words, "notes": found.notes}
    moved = {run_at: due_at for run_at, due_at in dues.items() if run_at != due_at}
    return {**fields, "due_at": moved} if moved else fields


def _local(t: int, where: Zone) -> str:
    text = rfc3339(t, where)
    weekday = WEEKDAYS[((t + where.offset(t)) // DAY + 3) % 7][:3]
    return f"{weekday} {text[:10]} {text[11:19]} {text[19:]}"
