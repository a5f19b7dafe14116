"""`onbeat runs`, `logs` and `run`: what runs, and what shall."""

import asyncio
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
import msgspec
from msgspec.structs import asdict

from onbeat.app.output import output_file
from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli import FAILED
from onbeat.cli.define import tell_if_closed, write_runs
from onbeat.cli.session import JSON, ask, is_number, with_settings, write_json
from onbeat.core.runs.run import Status
from onbeat.errors import InvalidSettings, NoSuchRun, shown
from onbeat.ports.rows import RunFilter, RunRow
from onbeat.service.serialize import run_fields
from onbeat.service.service import Service

LOOK_EVERY = 0.1


@click.command()
@click.argument("name", required=False)
@click.option(
    "--status",
    type=click.Choice([each.value for each in Status], case_sensitive=False),
    help="Only runs in this state.",
)
@click.option("--stuck", is_flag=True, help="Only runs in flight that take too long.")
@click.option("-n", "limit", type=click.IntRange(1, 10_000), default=20, help="[default: 20]")
@click.option(
    "--before", metavar="RUN", type=click.IntRange(1, 2**63 - 1), help="Older ones than this run."
)
@JSON
@with_settings()
def runs(
    settings: Settings,
    name: str | None,
    status: str | None,
    limit: int,
    before: int | None,
    stuck: bool,
    as_json: bool,
) -> None:
    """Show runs, of one schedule or of all, latest first."""

    async def look(service: Service) -> tuple[list[RunRow], int]:
        found = await service.runs(
            RunFilter(name, status, before=before, is_stuck=stuck), limit=limit
        )
        return found, (await service.overview()).now

    found, now = ask(settings, look)
    if as_json:
        write_json([run_fields(run) for run in found])
    elif found:
        write_runs(found, now)
    else:
        click.echo("no runs")


@click.command()
@click.argument("which", metavar="RUN|NAME")
@click.option("-f", "--follow", is_flag=True, help="Go on: to a run's end, or from run to run.")
@JSON
@with_settings()
def logs(settings: Settings, which: str, follow: bool, as_json: bool) -> None:
    """Show what a run printed: one by its number, or the latest of a schedule."""
    one = is_number(which)
    run = ask(settings, partial(_find, which=which, wait=follow and not one))
    if follow and as_json:
        run = ask(settings, partial(_until_ended, run=run))
    if as_json:
        write_json({**asdict(run_fields(run)), "log": _printed(settings, run)})
    elif not follow:
        text = _printed(settings, run)
        click.echo(text, nl=False)
        if not text:
            reason = f" ({run.reason})" if run.reason else ""
            if run.finished_at is not None:
                so_far = "nothing that it printed is kept"
            elif settings.is_postgres:
                so_far = "what it prints is with its node: ask the API, or wait for its end"
            else:
                so_far = "has printed nothing so far"
            told = f"{run.status}{reason}, and {so_far}"
            click.echo(f"run {run.run_id} of {run.schedule_id}: {told}", err=True)
    else:
        with suppress(KeyboardInterrupt):  # that is how it is to end
            _follow(settings, run)
            while not one:
                run = ask(settings, partial(_following, run=run))
                _follow(settings, run)


def _follow(settings: Settings, run: RunRow) -> None:
    """Show what a run prints until it ends."""
    if run.finished_at is None and lock_holder(settings) is None:
        click.echo("no node is up: it waits until one is (onbeat up)", err=True)
    shown_so_far, attempt = 0, run.attempt
    while True:
        ended = run.finished_at is not None
        text = _printed(settings, run)
        if len(text) < shown_so_far or run.attempt != attempt:  # cut, or another one's
            shown_so_far, attempt = 0, run.attempt
        click.echo(text[shown_so_far:], nl=False)
        shown_so_far = len(text)
        if ended:
            return
        time.sleep(LOOK_EVERY)
        run = ask(settings, partial(_again, run=run))


@click.command()
@click.argument("name")
@click.option("--input", "inputs", metavar="NAME=VALUE", multiple=True, help="Repeatable.")
@click.option("--request-id", metavar="ID", help="Makes a repeated call the same run.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit 1 if it did not succeed.")
@JSON
@with_settings()
def run(
    settings: Settings,
    name: str,
    inputs: tuple[str, ...],
    request_id: str | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Start a run of a schedule now, beside its ticks."""
    given = dict(map(_input, inputs))

    async def work(service: Service) -> RunRow:
        found = await service.start(name, inputs=given or None, request_id=request_id)
        if not as_json:
            tell_if_closed(await service.overview())
        if not as_json and found.finished_at is None and lock_holder(settings) is None:
            click.echo("no node is up: it waits until one is (onbeat up)", err=True)
        while wait and found.finished_at is None:
            await asyncio.sleep(LOOK_EVERY)
            found = await service.run(found.run_id)
        return found

    found = ask(settings, work)
    reason = f" ({found.reason})" if found.reason else ""
    if as_json:
        write_json(run_fields(found))
    elif wait:
        error = f": {found.error.splitlines()[0]}" if found.error else ""
        click.echo(f"run {found.run_id} of {name}: {found.status}{reason}{error}")
    elif found.status == Status.ENQUEUED:
        click.echo(f"run {found.run_id} of {name} is enqueued (onbeat logs -f {found.run_id})")
    else:
        click.echo(f"run {found.run_id} of {name} was asked for before: {found.status}{reason}")
    if wait and found.status != Status.SUCCESS:
        sys.exit(FAILED)


async def _find(service: Service, which: str, *, wait: bool = False) -> RunRow:
    """Return the run of a number, or the latest of a schedule that printed or prints something."""
    if is_number(which):
        return await service.run(int(which))
    told = False
    while not (found := await service.runs(RunFilter(which), limit=100)):
        if not wait:
            raise NoSuchRun(which)
        if not told:
            click.echo(f"{which} has not run yet: waiting", err=True)
        told = True
        await asyncio.sleep(LOOK_EVERY)
    return next((run for run in found if run.attempt), found[0])


async def _again(service: Service, run: RunRow) -> RunRow:
    return await service.run(run.run_id)


async def _until_ended(service: Service, run: RunRow) -> RunRow:
    while run.finished_at is None:
        await asyncio.sleep(LOOK_EVERY)
        run = await service.run(run.run_id)
    return run


async def _following(service: Service, run: RunRow) -> RunRow:
    """Wait for the next run of the same schedule that starts, and return it."""
    while True:
        found = await service.runs(RunFilter(run.schedule_id), limit=100)
        later = [other for other in found if other.run_id > run.run_id and other.attempt]
        if later:
            return later[-1]
        await asyncio.sleep(LOOK_EVERY)


def _printed(settings: Settings, run: RunRow) -> str:
    """Return what a run printed: from its file while that is there, else what was kept of it."""
    path: Path | None = output_file(settings, run.run_id, run.attempt)
    if path is not None and path.exists():
        return path.read_text(errors="replace")
    return run.log_tail or ""


def _input(text: str) -> tuple[str, object]:
    """Read `limit=100`: JSON where it is JSON, else a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidSettings("--input", f"{shown(text)} is not NAME=VALUE", hint="limit=100")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return name, value
