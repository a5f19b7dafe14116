"""`onbeat init`, `list`, `show` and `delete`: schedules."""

import sys
from pathlib import Path

import click
from msgspec.structs import asdict

from onbeat.app.settings import Settings
from onbeat.cli.completion import complete_schedules
from onbeat.cli.exit_codes import FAILED
from onbeat.cli.format import Cell, Times, duration, elapsed
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json, write_json_list
from onbeat.cli.tables import (
    WIDE,
    Column,
    Table,
    paint,
    status_cell,
    write_table,
    write_zone,
)
from onbeat.cli.terminal import table_zone
from onbeat.cli.verbs import Verb
from onbeat.core.explain.preview import NO_MORE
from onbeat.core.runs.phase import Status
from onbeat.ports.rows import Overview, RunFilter, RunRow, ScheduleRow
from onbeat.service.serialize import idle_reason, run_fields, schedule_fields, schedule_words
from onbeat.service.service import Service

FILE = Path("onbeat.yaml")

FIRST_FILE = """\
# Schedules. Preview them: onbeat next -f onbeat.yaml; then run them: onbeat up
timezone: UTC

schedules:
  hello: # every ten seconds, a command
    every: 10s
    run: {command: [echo, "hello from onbeat"]}

  report: # on workdays at nine; a run that fails is retried
    cron: "0 9 * * MON-FRI"
    run: {command: [date, --iso-8601=seconds]}
    retry: [30s, 2m, 10m]
"""


SCHEDULES = (
    Column("SCHEDULE", least=12),
    Column("NEXT", least=16),
    Column("LAST", least=10),
    Column("WHEN", least=16, drop=1),
)
RUNS = (
    "RUN",
    Column("SCHEDULE", least=12),
    "RUN AT",
    "STATUS",
    Column("ATTEMPT", drop=2),
    Column("TOOK", drop=1),
    Column("NOTE", least=12, drop=3),
)


@click.command(cls=Verb, examples=["onbeat init", "onbeat init reports.yaml"])
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@JSON
def init(file: Path, as_json: bool) -> None:
    """Write an example file of schedules, to be edited."""
    try:
        with file.open("x") as new:
            new.write(FIRST_FILE)
    except FileExistsError:
        click.echo(f"onbeat: {file} already exists: nothing was changed", err=True)
        sys.exit(FAILED)
    except OSError as broken:
        click.echo(f"onbeat: {file} cannot be written: {broken.strerror}", err=True)
        sys.exit(FAILED)
    if as_json:
        write_json({"file": str(file)})
    else:
        option = "" if file == FILE else f" -f {file}"
        click.echo(f"wrote {file}: onbeat up{option} runs it")


@click.command("list", cls=Verb, examples=["onbeat list", "onbeat list --wide"])
@WIDE
@JSON
@with_settings()
def list_(settings: Settings, wide: bool, as_json: bool) -> None:
    """List schedules, with their next tick and the outcome of their last run."""

    async def write(service: Service) -> None:
        for name, why in sorted((await service.broken()).items()):
            click.echo(f"{name} is not scheduled: {why}", err=True)
        if as_json:
            await write_json_list(map(schedule_fields, page) async for page in service.pages())
            return
        overview = await service.overview()
        warn_if_closed(overview)
        times = Times(overview.now, table_zone())
        table = Table(*SCHEDULES, wide=wide)
        async for page in service.pages():
            table.write(
                [
                    (row.schedule_id, _next(row, times), _last(row, times), schedule_words(row))
                    for row in page
                ]
            )
        table.end(times, empty="no schedules (onbeat apply FILE creates some)")

    with_service(settings, write)


@click.command(cls=Verb, examples=["onbeat show report"])
@click.argument("name", shell_complete=complete_schedules)
@WIDE
@JSON
@with_settings()
def show(settings: Settings, name: str, wide: bool, as_json: bool) -> None:
    """Show one schedule: its definition, its next tick, and its last runs."""

    async def look(service: Service) -> tuple[ScheduleRow, list[RunRow], Overview]:
        row = await service.schedule(name)
        runs = await service.runs(RunFilter(name), limit=5)
        return row, runs, await service.overview()

    row, runs, overview = with_service(settings, look)
    if as_json:
        write_json({**asdict(schedule_fields(row)), "runs": [run_fields(run) for run in runs]})
        return
    warn_if_closed(overview)
    times = Times(overview.now, table_zone())
    last = _last(row, times)
    click.echo(f"{row.schedule_id}: {schedule_words(row)}\n")
    click.echo(f"next        {_next(row, times).form(0)}")
    click.echo(f"last        {paint(last.form(0), last.colour)}")
    if row.last_missed_at is not None:
        click.echo(f"last skip   {times.moment(row.last_missed_at)}: {row.last_miss_reason}")
    source = f", from {_relative(row.source)}" if row.source else ""
    click.echo(f"revision    {row.revision}{source}, changed {times.moment(row.updated_at)}")
    click.echo(f"definition  {row.definition}")
    if runs:
        click.echo()
        write_runs(runs, times, wide=wide)
    else:
        write_zone(times)


@click.command(cls=Verb, examples=["onbeat delete report", "onbeat delete report clean"])
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_schedules
)
@JSON
@with_settings()
def delete(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Delete schedules. Runs that wait are canceled; runs that have started finish."""

    async def work(service: Service) -> None:
        for name in names:
            await service.schedule(name)  # if one does not exist, none is deleted
        for name in dict.fromkeys(names):
            await service.delete(name)

    with_service(settings, work)
    if as_json:
        write_json([{"schedule_id": name, "deleted": True} for name in names])
    else:
        click.echo(f"deleted {', '.join(names)}")


def warn_if_closed(overview: Overview) -> None:
    """Write to stderr that the gate is closed: what is shown will not start."""
    if not overview.gate_open:
        click.echo("the gate is CLOSED: nothing is decided and nothing starts", err=True)


def write_runs(runs: list[RunRow], times: Times, *, wide: bool = False) -> None:
    """Write runs as a table."""
    rows = [
        (
            str(run.run_id),
            run.schedule_id,
            times.cell(run.run_at * 1000),
            status_cell(run.status, run.reason),
            str(run.attempt or "-"),
            "-" if run.ended_waiting else elapsed(run.started_at, run.finished_at),
            _note(run, times),
        )
        for run in runs
    ]
    write_table(RUNS, rows, times=times, wide=wide)


def _note(run: RunRow, times: Times) -> str:
    """Return what is unusual about a run."""
    parts = []
    if run.status == Status.ENQUEUED and run.was_tried:
        parts.append(
            f"next attempt {times.distance(run.due_at)}"
            if run.due_at > times.now
            else "next attempt is due"
        )
    if run.stuck_at is not None and run.started_at is not None and run.finished_at is None:
        parts.append(f"stuck, running for {duration((times.now - run.started_at) // 1000)}")
    if run.triggered_by != "timer":
        parts.append(run.triggered_by)
    if run.tick_count > 1:
        events, ticks = f"follows {run.tick_count} events", f"covers {run.tick_count} ticks"
        parts.append(events if run.first_run_at is None else ticks)
    if run.blocked_by is not None:
        parts.append(f"behind run {run.blocked_by}")
    if run.error:
        parts.append(run.error.splitlines()[0])
    return ", ".join(parts)


def _next(row: ScheduleRow, times: Times) -> Cell:
    if row.paused:
        note = f": {row.pause_note}" if row.pause_note else ""
        if row.paused_until is None:
            return Cell((f"paused{note}",), "yellow")
        return times.cell(row.paused_until, "paused until ", note)._replace(colour="yellow")
    if (idle := idle_reason(row, times.now)) is not None:
        return Cell((idle,))
    return times.cell(row.next_due_at) if row.next_due_at is not None else Cell((NO_MORE,))


def _last(row: ScheduleRow, times: Times) -> Cell:
    if row.last_run_at is None:
        if row.last_missed_at is None:
            return Cell(("-",))
        missed = f"{row.last_miss_reason} {times.distance(row.last_missed_at)}"
        return Cell((missed,), "bright_black")
    ago = times.distance(row.last_run_at)
    if row.last_success_at == row.last_run_at:
        return Cell((f"ok {ago}",), "green")
    if row.consecutive_failures:
        return Cell((f"failed x{row.consecutive_failures} {ago}",), "red")
    return Cell((f"ran {ago}",))  # at its target, which has not reported the outcome


def _relative(path: str) -> str:
    """Return a path relative to the current folder, if it is below that."""
    here = f"{Path.cwd()}/"
    return path.removeprefix(here)
