"""`onbeat simulate`: what schedules will start and skip."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from onbeat.app.parts import check_target
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.cli.completion import complete_schedules
from onbeat.cli.format import elapsed
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table
from onbeat.cli.verbs import Verb
from onbeat.core.runs.run import Reason
from onbeat.core.snapshot import Snapshot, as_of, with_definitions, with_start
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import resolve, rfc3339
from onbeat.core.time.zones import Zone, zone
from onbeat.errors import InvalidSchedule, InvalidSettings, NoSuchSchedule
from onbeat.service.service import Service
from onbeat.simulate.forecasts import Forecast, ScheduleForecast, forecast_fields
from onbeat.simulate.simulation import LONGEST, RUN_LENGTH, Simulation
from onbeat.sources.yaml import read_file

WEEK = 7 * 86_400_000
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
LENGTH = re.compile(r" *[0-9]+ *[a-z]+.*")
MOST_DAYS, MOST_NAMES = 14, 8  # days, and schedules of the busiest minute, that are shown
SCHEDULES = (
    Column("SCHEDULE", least=12),
    "TICKS",
    Column("FIRES", least=8),
    Column("SKIPS", least=10),
    Column("WAITS", least=10, drop=1),
    "PEAK",
    Column("RUN LENGTH", drop=2),
)


@click.command(
    cls=Verb,
    examples=[
        "onbeat simulate --until 30d",
        "onbeat simulate --with schedules.yaml --tz Europe/Berlin",
    ],
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_schedules)
@click.option(
    "--until", metavar="TIME", help="A time, or a duration such as 30d. [default: one week]"
)
@click.option(
    "--from", "since", metavar="TIME", help="Where to begin: a time or a date. [default: now]"
)
@click.option(
    "--with",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Simulate as if FILE had been applied.",
)
@click.option(
    "--run-length",
    metavar="LENGTH",
    help="Run length of schedules that have not run yet. [default: 1s]",
)
@click.option(
    "--tz", metavar="ZONE", default="UTC", help="The time zone of days and times. [default: UTC]"
)
@WIDE
@JSON
@with_settings()
def simulate(
    settings: Settings,
    names: tuple[str, ...],
    until: str | None,
    since: str | None,
    file: Path | None,
    run_length: str | None,
    tz: str,
    wide: bool,
    as_json: bool,
) -> None:
    """Simulate what schedules will start and skip, why, and how many runs are concurrent.

    Every tick is decided as a node would decide it, from the present state of the schedules. Runs
    are assumed to succeed, in the time that the last ones took. With --from in the past, all
    schedules are assumed to have been created then.
    """
    where = _zone(tz)
    lasts = RUN_LENGTH if run_length is None else _length("--run-length", run_length)
    found = _snapshot(settings, file)
    begin = found.now if since is None else _instant("--from", since, where)
    end = begin + WEEK if until is None else _instant("--until", until, where, begin=begin)
    if end <= begin:
        problem = f"{_moment(end, where)} is {'past' if since is None else 'before --from'}"
        raise InvalidSettings("--until", problem, hint=f"later than {_moment(begin, where)}")
    if begin > found.now + LONGEST:
        raise InvalidSettings(
            "--from", "the time is too far in the future", hint="five years at most"
        )
    if begin < found.now:
        found = as_of(found, begin)
    known = [standing.schedule.schedule_id for standing in found.schedules]
    for name in names:
        if name not in known:
            raise NoSuchSchedule(name, known)
    simulation = Simulation(
        with_start(found),
        until=end,
        since=begin,
        only=names or None,
        run_length=lasts,
        timezone=tz,
    )
    _run(simulation)
    forecast = simulation.forecast()
    _write_notes(found, forecast, where)
    if as_json:
        write_json(forecast_fields(forecast))
    else:
        _show(forecast, where, wide=wide)


def _snapshot(settings: Settings, file: Path | None) -> Snapshot:
    """Return the state of the schedules, as it is or as it would be with a file applied."""
    schedules = None if file is None else read_file(file, check_target).schedules
    path = settings.database_path
    is_there = path is None or (path.exists() and path.stat().st_size)
    if schedules is not None and (settings.is_in_memory or not is_there):
        found = Snapshot(SystemClock().now(), is_up=False)
    else:

        async def work(service: Service) -> Snapshot:
            return await service.read_snapshot()

        found = with_service(settings, work)
    return found if schedules is None else with_definitions(found, schedules)


def _run(simulation: Simulation) -> None:
    """Simulate, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        for _ in simulation.steps():
            pass
        return
    with click.progressbar(length=1000, label="simulating", file=sys.stderr) as bar:
        for done in simulation.steps():
            bar.update(max(round(done * 1000) - bar.pos, 0))


def _write_notes(found: Snapshot, forecast: Forecast, where: Zone) -> None:
    """Write to stderr what limits the forecast."""
    if not found.gate_is_open:
        click.echo("the gate is CLOSED: the simulation assumes that it is open", err=True)
    for name in found.unreadable:
        click.echo(f"{name} is left out: its definition cannot be read", err=True)
    if forecast.cut_off:
        last = _moment(forecast.last, where)
        click.echo(f"cut off at {last}: {forecast.cut_off} (simulate a shorter time)", err=True)


def _show(found: Forecast, where: Zone, *, wide: bool) -> None:
    first, last = _moment(found.first, where), _moment(found.last, where)
    click.echo(f"from {first} until {last} ({where.name})")
    left_out = sum(found.skips.values())
    click.echo(
        f"{found.ticks} ticks: {found.fires} runs start, {left_out} ticks are skipped"
        f"{f' ({_reasons(found.skips)})' if left_out else ''}"
    )
    if found.peak_at is not None:
        at = _moment(found.peak_at, where)
        runs = f"{found.peak} run{'s' * (found.peak != 1)}"
        click.echo(f"at most {runs} at the same time, first at {at}")
        click.echo(f"in that minute: {_names(found.busiest)}")
    if found.schedules:
        click.echo()
        write_table(SCHEDULES, [_row(each) for each in found.schedules], wide=wide)
    else:
        click.echo("no schedules (onbeat apply FILE creates some)")
    if found.groups:
        click.echo()
        write_table(
            (Column("GROUP", least=12), "PLACES", "USED", "WAITS"),
            [
                (
                    each.name,
                    str(each.places),
                    str(each.peak),
                    _waits(each.waited, each.longest_wait),
                )
                for each in found.groups
            ],
            wide=wide,
        )
    if found.days:
        click.echo()
        days = [(each.date, str(each.fires), str(each.skips)) for each in found.days[:MOST_DAYS]]
        write_table(("DAY", "FIRES", "SKIPS"), days)
        if len(found.days) > MOST_DAYS:
            click.echo(f"... and {len(found.days) - MOST_DAYS} more days (--json lists all)")


def _row(found: ScheduleForecast) -> tuple[str, ...]:
    waits = _waits(found.waited, found.longest_wait)
    if found.waiting:
        waits = f"{waits}; {found.waiting} still" if found.waited else f"{found.waiting} still"
    return (
        found.schedule_id,
        str(found.ticks),
        str(found.fires) + (f" ({found.ended_early} ended early)" if found.ended_early else ""),
        _reasons(found.skips) or "-",
        waits,
        str(found.peak),
        elapsed(0, found.length) + ("" if found.is_length_known else " (assumed)"),
    )


def _waits(waited: int, longest: int) -> str:
    return f"{waited}, up to {elapsed(0, longest)}" if waited else "-"


def _reasons(skips: Mapping[Reason, int]) -> str:
    by_number = sorted(skips.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{reason} {number}" for reason, number in by_number)


def _names(busiest: Mapping[str, int]) -> str:
    names = [f"{name} x{n}" if n > 1 else name for name, n in busiest.items()]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


def _moment(at: int, where: Zone) -> str:
    return rfc3339(at // 1000, None if where.name == "UTC" else where).replace("T", " ")


def _zone(name: str) -> Zone:
    try:
        return zone(name)
    except InvalidSchedule as refused:
        raise InvalidSettings("--tz", refused.problem, hint=refused.hint) from None


def _length(option: str, text: str) -> int:
    try:
        return parse_duration(text).elapsed * 1000
    except InvalidSchedule as refused:
        raise InvalidSettings(option, refused.problem, hint=refused.hint) from None


def _instant(option: str, text: str, where: Zone, *, begin: int | None = None) -> int:
    """Parse a local time, a date, or a duration that counts from `begin`."""
    if begin is not None and LENGTH.fullmatch(text):
        return begin + _length(option, text)
    try:
        return resolve(f"{text}T00:00" if DATE.fullmatch(text) else text, where) * 1000
    except InvalidSchedule as refused:
        raise InvalidSettings(option, refused.problem, hint=refused.hint) from None
