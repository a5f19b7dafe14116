"""`onbeat init`, `list`, `show` and `delete`: the schedules there are."""

import sys
from pathlib import Path

import click
from msgspec.structs import asdict

from onbeat.app.settings import Settings
from onbeat.cli import FAILED
from onbeat.cli.session import (
    JSON,
    Table,
    ask,
    with_settings,
    write_json,
    write_json_list,
    write_table,
)
from onbeat.cli.times import length, moment, took
from onbeat.core.explain.preview import NO_MORE
from onbeat.core.runs.run import Status
from onbeat.ports.rows import Overview, RunFilter, RunRow, ScheduleRow
from onbeat.service.serialize import idle_words, run_fields, schedule_fields, words_of
from onbeat.service.service import Service

FILE = Path("onbeat.yaml")

FIRST_FILE = """\
# Schedules. Try them: onbeat next -f onbeat.yaml; then run them: onbeat up
timezone: UTC

schedules:
  hello: # every ten seconds, a command
    every: 10s
    run: {command: [echo, "hello from onbeat"]}

  report: # on workdays at nine; a run that fails is tried again
    cron: "0 9 * * MON-FRI"
    run: {command: [date, --iso-8601=seconds]}
    retry: [30s, 2m, 10m]
"""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=FILE)
@JSON
def init(file: Path, as_json: bool) -> None:
    """Write a first file of schedules, to be changed."""
    try:
        with file.open("x") as new:
            new.write(FIRST_FILE)
    except FileExistsError:
        click.echo(f"onbeat: {file} is there already: nothing was changed", err=True)
        sys.exit(FAILED)
    except OSError as broken:
        click.echo(f"onbeat: {file} cannot be written: {broken.strerror}", err=True)
        sys.exit(FAILED)
    if as_json:
        write_json({"file": str(file)})
    else:
        by_name = "" if file == FILE else f" -f {file}"
        click.echo(f"wrote {file}: onbeat up{by_name} runs it")


@click.command("list")
@JSON
@with_settings()
def list_(settings: Settings, as_json: bool) -> None:
    """Show every schedule, when it runs next, and how it did last."""

    async def write(service: Service) -> None:
        for name, why in sorted((await service.broken()).items()):
            click.echo(f"{name} is not scheduled: {why}", err=True)
        if as_json:
            await write_json_list(map(schedule_fields, page) async for page in service.pages())
            return
        overview = await service.overview()
        tell_if_closed(overview)
        table, now = Table("SCHEDULE", "NEXT", "LAST", "WHEN"), overview.now
        async for page in service.pages():
            table.write(
                [(row.schedule_id, _next(row, now), _last(row, now), words_of(row)) for row in page]
            )
        if table.is_empty:
            click.echo("no schedules (onbeat apply FILE defines some)")

    ask(settings, write)


@click.command()
@click.argument("name")
@JSON
@with_settings()
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show one schedule: what it says, what comes next, and its last runs."""

    async def look(service: Service) -> tuple[ScheduleRow, list[RunRow], Overview]:
        row = await service.schedule(name)
        runs = await service.runs(RunFilter(name), limit=5)
        return row, runs, await service.overview()

    row, runs, overview = ask(settings, look)
    now = overview.now
    if as_json:
        write_json({**asdict(schedule_fields(row)), "runs": [run_fields(run) for run in runs]})
        return
    tell_if_closed(overview)
    click.echo(f"{row.schedule_id}: {words_of(row)}\n")
    click.echo(f"next        {_next(row, now)}")
    click.echo(f"last        {_last(row, now)}")
    if row.last_missed_at is not None:
        click.echo(f"last skip   {moment(row.last_missed_at, now)}: {row.last_miss_reason}")
    source = f", from {_near(row.source)}" if row.source else ""
    click.echo(f"revision    {row.revision}{source}, changed {moment(row.updated_at, now)}")
    click.echo(f"definition  {row.definition}")
    if runs:
        click.echo()
        write_runs(runs, now)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
@with_settings()
def delete(settings: Settings, names: tuple[str, ...], as_json: bool) -> None:
    """Take schedules away. Waiting runs are canceled, started ones finish."""

    async def work(service: Service) -> None:
        for name in names:
            await service.schedule(name)  # all are there, or none is deleted
        for name in dict.fromkeys(names):
            await service.delete(name)

    ask(settings, work)
    if as_json:
        write_json([{"schedule_id": name, "deleted": True} for name in names])
    else:
        click.echo(f"deleted {', '.join(names)}")


def tell_if_closed(overview: Overview) -> None:
    """Say so on stderr if the gate is closed: whatever is shown beside it does not happen."""
    if not overview.gate_open:
        click.echo("the gate is CLOSED: nothing is decided and nothing starts", err=True)


def write_runs(runs: list[RunRow], now: int) -> None:
    """Write runs as a table."""
    rows = [
        (
            str(run.run_id),
            run.schedule_id,
            moment(run.run_at * 1000, now),
            run.status + (f" ({run.reason})" if run.reason else ""),
            str(run.attempt or "-"),
            "-" if run.ended_waiting else took(run.started_at, run.finished_at),
            _note(run, now),
        )
        for run in runs
    ]
    write_table(("RUN", "SCHEDULE", "RUN AT", "STATUS", "ATTEMPT", "TOOK", "NOTE"), rows)


def _note(run: RunRow, now: int) -> str:
    """Return what else there is to say of a run."""
    parts = []
    if run.status == Status.ENQUEUED and run.was_tried:
        parts.append(
            f"tried again {_ago(run.due_at, now)}" if run.due_at > now else "to be tried again"
        )
    if run.stuck_at is not None and run.started_at is not None and run.finished_at is None:
        parts.append(f"stuck, running for {length((now - run.started_at) // 1000)}")
    if run.triggered_by != "timer":
        parts.append(run.triggered_by)
    if run.tick_count > 1:
        events, ticks = f"follows {run.tick_count} events", f"stands for {run.tick_count} ticks"
        parts.append(events if run.first_run_at is None else ticks)
    if run.blocked_by is not None:
        parts.append(f"behind run {run.blocked_by}")
    if run.error:
        parts.append(run.error.splitlines()[0][:60])
    return ", ".join(parts)


def _next(row: ScheduleRow, now: int) -> str:
    if row.paused:
        until = f" until {moment(row.paused_until, now)}" if row.paused_until is not None else ""
        return f"paused{until}{f': {row.pause_note}' if row.pause_note else ''}"
    if (idle := idle_words(row, now)) is not None:
        return idle
    return moment(row.next_due_at, now) if row.next_due_at is not None else NO_MORE


def _last(row: ScheduleRow, now: int) -> str:
    if row.last_run_at is None:
        missed = row.last_missed_at
        return f"{row.last_miss_reason} {_ago(missed, now)}" if missed is not None else "-"
    ok = row.last_success_at == row.last_run_at
    told = "ok" if ok else f"failed x{row.consecutive_failures}"
    if not ok and not row.consecutive_failures:
        told = "ran"  # elsewhere, and nobody has told how that ended
    return f"{told} {_ago(row.last_run_at, now)}"


def _ago(t: int, now: int) -> str:
    """Return how far off an instant is: `5m ago`, or `in 5m`."""
    return moment(t, now).partition("(")[2].rstrip(")")


def _near(path: str) -> str:
    """Return a path as seen from here, if it is below."""
    here = f"{Path.cwd()}/"
    return path.removeprefix(here)
