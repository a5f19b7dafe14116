"""`onbeat runs`, `logs` and `run`: list runs, print their output, and start one."""

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
from onbeat.cli.completion import complete_schedules
from onbeat.cli.exit_codes import FAILED
from onbeat.cli.format import Times
from onbeat.cli.runtime import JSON, is_number, with_service, with_settings, write_json
from onbeat.cli.schedules import warn_if_closed, write_runs
from onbeat.cli.tables import WIDE
from onbeat.cli.terminal import table_zone
from onbeat.cli.verbs import Verb
from onbeat.core.runs.phase import Status
from onbeat.errors import InvalidSettings, NoSuchRun, quote_value
from onbeat.ports.rows import RunFilter, RunRow
from onbeat.service.serialize import run_fields
from onbeat.service.service import Service

POLL_EVERY = 0.1  # seconds


@click.command(cls=Verb, examples=["onbeat runs report -n 5", "onbeat runs --status failed --wide"])
@click.argument("name", required=False, shell_complete=complete_schedules)
@click.option(
    "--status",
    type=click.Choice([each.value for each in Status], case_sensitive=False),
    help="Only runs with this status.",
)
@click.option("--stuck", is_flag=True, help="Only runs in flight that take longer than usual.")
@click.option(
    "-n", "limit", type=click.IntRange(1, 10_000), default=20, help="How many. [default: 20]"
)
@click.option(
    "--before",
    metavar="RUN",
    type=click.IntRange(1, 2**63 - 1),
    help="Only runs older than this one.",
)
@WIDE
@JSON
@with_settings()
def runs(
    settings: Settings,
    name: str | None,
    status: str | None,
    limit: int,
    before: int | None,
    stuck: bool,
    wide: bool,
    as_json: bool,
) -> None:
    """List runs, of one schedule or of all, the latest first."""

    async def look(service: Service) -> tuple[list[RunRow], int]:
        found = await service.runs(
            RunFilter(name, status, before=before, is_stuck=stuck), limit=limit
        )
        return found, (await service.overview()).now

    found, now = with_service(settings, look)
    if as_json:
        write_json([run_fields(run) for run in found])
    elif found:
        write_runs(found, Times(now, table_zone()), wide=wide)
    else:
        click.echo("no runs")


@click.command(cls=Verb, examples=["onbeat logs 17", "onbeat logs report -f"])
@click.argument("which", metavar="RUN|NAME", shell_complete=complete_schedules)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print output as it comes: of a run until it ends, of a schedule from run to run.",
)
@JSON
@with_settings()
def logs(settings: Settings, which: str, follow: bool, as_json: bool) -> None:
    """Print the output of a run, by its number, or of the latest run of a schedule."""
    one = is_number(which)
    run = with_service(settings, partial(_find, which=which, wait=follow and not one))
    if follow and as_json:
        run = with_service(settings, partial(_until_ended, run=run))
    if as_json:
        write_json({**asdict(run_fields(run)), "log": _output(settings, run)})
    elif not follow:
        text = _output(settings, run)
        click.echo(text, nl=False)
        if not text:
            reason = f" ({run.reason})" if run.reason else ""
            if run.finished_at is not None:
                output = "no output is kept"
            elif settings.is_postgres:
                output = "its output is on its node until it ends (the API can read it)"
            else:
                output = "no output so far"
            state = f"{run.status}{reason}: {output}"
            click.echo(f"run {run.run_id} of {run.schedule_id}: {state}", err=True)
    else:
        with suppress(KeyboardInterrupt):  # the way to stop following
            _follow(settings, run)
            while not one:
                run = with_service(settings, partial(_following, run=run))
                _follow(settings, run)


def _follow(settings: Settings, run: RunRow) -> None:
    """Print the output of a run until it ends."""
    if run.finished_at is None and lock_holder(settings) is None:
        click.echo("no node is up: the run waits for one (onbeat up)", err=True)
    printed, attempt = 0, run.attempt
    while True:
        ended = run.finished_at is not None
        text = _output(settings, run)
        if len(text) < printed or run.attempt != attempt:  # it was cut, or it is a new attempt's
            printed, attempt = 0, run.attempt
        click.echo(text[printed:], nl=False)
        printed = len(text)
        if ended:
            return
        time.sleep(POLL_EVERY)
        run = with_service(settings, partial(_again, run=run))


@click.command(
    cls=Verb, examples=["onbeat run report --wait", "onbeat run report --input limit=100"]
)
@click.argument("name", shell_complete=complete_schedules)
@click.option(
    "--input",
    "inputs",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set an input of the run. Repeatable.",
)
@click.option(
    "--request-id", metavar="ID", help="Repeated calls with the same id start only one run."
)
@click.option("--wait", is_flag=True, help="Wait until it ends; exit 1 if it did not succeed.")
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
    """Start a run of a schedule now, in addition to its ticks."""
    given = dict(map(_input, inputs))

    async def work(service: Service) -> RunRow:
        found = await service.start(name, inputs=given or None, request_id=request_id)
        if not as_json:
            warn_if_closed(await service.overview())
        if not as_json and found.finished_at is None and lock_holder(settings) is None:
            click.echo("no node is up: the run waits for one (onbeat up)", err=True)
        while wait and found.finished_at is None:
            await asyncio.sleep(POLL_EVERY)
            found = await service.run(found.run_id)
        return found

    found = with_service(settings, work)
    reason = f" ({found.reason})" if found.reason else ""
    if as_json:
        write_json(run_fields(found))
    elif wait:
        error = f": {found.error.splitlines()[0]}" if found.error else ""
        click.echo(f"run {found.run_id} of {name}: {found.status}{reason}{error}")
    elif found.status == Status.ENQUEUED:
        click.echo(f"run {found.run_id} of {name} is enqueued (onbeat logs -f {found.run_id})")
    else:
        click.echo(f"run {found.run_id} of {name} was requested before: {found.status}{reason}")
    if wait and found.status != Status.SUCCESS:
        sys.exit(FAILED)


async def _find(service: Service, which: str, *, wait: bool = False) -> RunRow:
    """Return a run by its number, or the latest run of a schedule that was launched."""
    if is_number(which):
        return await service.run(int(which))
    was_reported = False
    while not (found := await service.runs(RunFilter(which), limit=100)):
        if not wait:
            raise NoSuchRun(which)
        if not was_reported:
            click.echo(f"{which} has not run yet: waiting", err=True)
        was_reported = True
        await asyncio.sleep(POLL_EVERY)
    return next((run for run in found if run.attempt), found[0])


async def _again(service: Service, run: RunRow) -> RunRow:
    return await service.run(run.run_id)


async def _until_ended(service: Service, run: RunRow) -> RunRow:
    while run.finished_at is None:
        await asyncio.sleep(POLL_EVERY)
        run = await service.run(run.run_id)
    return run


async def _following(service: Service, run: RunRow) -> RunRow:
    """Wait until another run of the same schedule starts, and return it."""
    while True:
        found = await service.runs(RunFilter(run.schedule_id), limit=100)
        later = [other for other in found if other.run_id > run.run_id and other.attempt]
        if later:
            return later[-1]
        await asyncio.sleep(POLL_EVERY)


def _output(settings: Settings, run: RunRow) -> str:
    """Return the output of a run: from its file if that exists, else the end that was kept."""
    path: Path | None = output_file(settings, run.run_id, run.attempt)
    if path is not None and path.exists():
        return path.read_text(errors="replace")
    return run.log_tail or ""


def _input(text: str) -> tuple[str, object]:
    """Parse `limit=100`: a value that is not JSON is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidSettings("--input", f"{quote_value(text)} is not NAME=VALUE", hint="limit=100")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.MsgspecError:
        return name, value
