"""`onbeat simulate`: what schedules would do, before they do it."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from onbeat.app.launchers import check_target
from onbeat.app.settings import Settings
from onbeat.app.stores import SystemClock
from onbeat.cli.session import JSON, ask, with_settings, write_json, write_table
from onbeat.cli.times import took
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
SHOWN, SHOWN_NAMES = 14, 8  # days, and schedules of the busiest minute, in words


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--until", metavar="TIME", help="A time, or a length: 30d. [default: one week]")
@click.option("--from", "since", metavar="TIME", help="What is before is left out. [default: now]")
@click.option(
    "--with",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="As if this file of schedules were applied.",
)
@click.option(
    "--run-length", metavar="LENGTH", help="Of schedules that have not run yet. [default: 1s]"
)
@click.option("--tz", metavar="ZONE", default="UTC", help="Whose days and times. [default: UTC]")
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
    as_json: bool,
) -> None:
    """Show what schedules would do: what starts, what is skipped and why, and how much at once.

    Every tick is decided as a node would decide it, from where the schedules stand now. A run is
    taken to succeed, after as long as the last ones took. With --from in the past it is as if all
    had been defined then.
    """
    where = _zone(tz)
    lasts = RUN_LENGTH if run_length is None else _length("--run-length", run_length)
    found = _standings(settings, file)
    begin = found.now if since is None else _instant("--from", since, where)
    end = begin + WEEK if until is None else _instant("--until", until, where, begin=begin)
    if end <= begin:
        problem = f"{_moment(end, where)} is {'past' if since is None else 'before --from'}"
        raise InvalidSettings("--until", problem, hint=f"later than {_moment(begin, where)}")
    if begin > found.now + LONGEST:
        raise InvalidSettings("--from", "that is too far off", hint="five years at most")
    if begin < found.now:
        found = as_of(found, begin)
    known = [standing.schedule.schedule_id for standing in found.standings]
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
    _tell_besides(found, forecast, where)
    if as_json:
        write_json(forecast_fields(forecast))
    else:
        _show(forecast, where)


def _standings(settings: Settings, file: Path | None) -> Snapshot:
    """Return how things stand, or would if the file were applied; no database is none yet."""
    schedules = None if file is None else read_file(file, check_target).schedules
    path = settings.database_path
    is_there = path is None or (path.exists() and path.stat().st_size)
    if schedules is not None and (settings.is_in_memory or not is_there):
        found = Snapshot(SystemClock().now(), is_up=False)
    else:

        async def work(service: Service) -> Snapshot:
            return await service.standings()

        found = ask(settings, work)
    return found if schedules is None else with_definitions(found, schedules)


def _run(simulation: Simulation) -> None:
    """Simulate, and show how far it is: on a terminal only."""
    if not sys.stderr.isatty():
        for _ in simulation.steps():
            pass
        return
    with click.progressbar(length=1000, label="simulating", file=sys.stderr) as bar:
        for done in simulation.steps():
            bar.update(max(round(done * 1000) - bar.pos, 0))


def _tell_besides(found: Snapshot, forecast: Forecast, where: Zone) -> None:
    """Say on stderr what a reader has to know besides."""
    if not found.gate_is_open:
        click.echo("the gate is CLOSED: this is what would happen if it were open", err=True)
    for name in found.unreadable:
        click.echo(f"{name} is left out: its definition cannot be read", err=True)
    if forecast.cut_off:
        last = _moment(forecast.last, where)
        click.echo(f"cut off at {last}: {forecast.cut_off} (ask for less)", err=True)


def _show(found: Forecast, where: Zone) -> None:
    first, last = _moment(found.first, where), _moment(found.last, where)
    click.echo(f"from {first} until {last}")
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
        heading = ("SCHEDULE", "TICKS", "FIRES", "SKIPS", "WAITS", "AT ONCE", "RUN LENGTH")
        write_table(heading, [_row(each) for each in found.schedules])
    else:
        click.echo("no schedules (onbeat apply FILE defines some)")
    if found.groups:
        click.echo()
        write_table(
            ("GROUP", "PLACES", "USED", "WAITS"),
            [
                (
                    each.name,
                    str(each.places),
                    str(each.peak),
                    _waits(each.waited, each.longest_wait),
                )
                for each in found.groups
            ],
        )
    if found.days:
        click.echo()
        days = [(each.date, str(each.fires), str(each.skips)) for each in found.days[:SHOWN]]
        write_table(("DAY", "FIRES", "SKIPS"), days)
        if len(found.days) > SHOWN:
            click.echo(f"... and {len(found.days) - SHOWN} more days (--json lists all)")


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
        took(0, found.length) + ("" if found.is_length_known else " (assumed)"),
    )


def _waits(waited: int, longest: int) -> str:
    return f"{waited}, up to {took(0, longest)}" if waited else "-"


def _reasons(skips: Mapping[Reason, int]) -> str:
    by_number = sorted(skips.items(), key=lambda each: (-each[1], each[0]))
    return ", ".join(f"{reason} {number}" for reason, number in by_number)


def _names(busiest: Mapping[str, int]) -> str:
    told = [f"{name} x{n}" if n > 1 else name for name, n in busiest.items()]
    more = f" and {len(told) - SHOWN_NAMES} more" if len(told) > SHOWN_NAMES else ""
    return f"{', '.join(told[:SHOWN_NAMES])}{more}"


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
    """Read a time in the zone, a date, or, counted from `begin`, a length."""
    if begin is not None and LENGTH.fullmatch(text):
        return begin + _length(option, text)
    try:
        return resolve(f"{text}T00:00" if DATE.fullmatch(text) else text, where) * 1000
    except InvalidSchedule as refused:
        raise InvalidSettings(option, refused.problem, hint=refused.hint) from None
