"""`onbeat up`, `down`, `status` and `gate`: the node, and how things stand."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import click

from onbeat import __version__, logs
from onbeat.app import Onbeat, holder
from onbeat.cli import FAILED, UNAVAILABLE
from onbeat.cli.define import apply_definitions, read_file
from onbeat.cli.session import JSON, ask, with_settings, write_json
from onbeat.cli.times import moment
from onbeat.errors import StoreUnusable
from onbeat.service import overview_fields
from onbeat.settings import Settings

FILE = Path("onbeat.yaml")
START_LIMIT = 20.0  # seconds in which a node in the background has to be up


@click.command()
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="Apply a file of schedules first. [default: onbeat.yaml, if it is there]",
)
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
@click.option(
    "--concurrency", metavar="N", help=f"Runs at once. [default: {Settings().concurrency}]"
)
@click.option("--stop-grace", metavar="LENGTH", help="How long runs may finish. [default: 30s]")
@click.option("--output", metavar="FOLDER", help="For what runs print. [default: by the database]")
@click.option("--lease", metavar="LENGTH", help="How long a silent node keeps runs. [default: 5s]")
@click.option("--catchup-per-second", metavar="N", help="Missed ticks to start. [default: 100]")
@click.option("--keep", metavar="LENGTH", help="How long history is kept. [default: 30d]")
@click.option("--pass-env", metavar="NAMES", help="Variables that commands get, with commas.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="auto, text or json.")
@JSON
@with_settings(*(name for name in Settings.__dataclass_fields__ if name != "database"))
def up(settings: Settings, file: Path | None, detach: bool, as_json: bool) -> None:
    """Plan and run schedules, until stopped by Ctrl-C or `onbeat down`."""
    if settings.database_path is None and detach:
        raise StoreUnusable("sqlite:// is memory: nothing could reach it in the background")
    if file is None and FILE.exists():
        file = FILE
    if detach:
        _start_in_background(settings, as_json=as_json)
        return
    logs.set_up(level=settings.log_level, as_json=settings.logs_json)
    sys.path.insert(0, str(Path.cwd()))  # `python: "reports:build"` is beside the file
    asyncio.run(_serve(settings, file, as_json=as_json))


async def _serve(settings: Settings, file: Path | None, *, as_json: bool) -> None:
    beat = Onbeat(settings=settings)
    stopped = beat.catch_signals()
    definitions = None if file is None else read_file(file)  # before anything is touched
    service = await beat.open()
    try:
        await beat.begin(client=False)
        if definitions is not None:
            await apply_definitions(service, definitions)
        found = await service.overview()
        if as_json:
            write_json(
                {"database": settings.database, "pid": os.getpid(), **overview_fields(found)}
            )
        else:
            n = f"{found.schedules} schedule{'s' * (found.schedules != 1)}"
            click.echo(f"onbeat {__version__} is up on {settings.database}: {n}")
        sys.stdout.flush()
        await beat.until(stopped)
    finally:
        await beat.close()


def _start_in_background(settings: Settings, *, as_json: bool) -> None:
    """Start this very command again, without the terminal, and wait until it is up."""
    path = settings.database_path
    assert path is not None, "memory was refused"
    held = holder(settings)
    if held is not None:
        click.echo(f"onbeat: {path} is held by process {held.pid} (stop it: onbeat down)", err=True)
        sys.exit(UNAVAILABLE)
    log = path.with_name(f"{path.name}.log")
    given = click.get_current_context().params
    arguments = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
        if value is not None and name not in ("detach", "as_json")
    ]
    if not log.parent.is_dir():
        raise StoreUnusable(f"{log.parent} does not exist (make the folder first)")
    with open(log, "ab", opener=partial(os.open, mode=0o600)) as output:  # it may tell secrets
        begins = output.tell()
        child = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", "onbeat", "up", *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    limit = time.monotonic() + START_LIMIT
    while b" is up on " not in (told := log.read_bytes()[begins:]):
        if child.poll() is not None:
            click.echo(told.decode(errors="replace").strip(), err=True)
            sys.exit(child.returncode or FAILED)
        if time.monotonic() > limit:
            slow = f"process {child.pid} is not up after {START_LIMIT:.0f} s"
            click.echo(f"onbeat: {slow} (its log is {log}; onbeat down stops it)", err=True)
            sys.exit(FAILED)
        time.sleep(0.02)
    if as_json:
        write_json({"database": settings.database, "pid": child.pid, "log": str(log)})
    else:
        click.echo(f"onbeat is up in the background: process {child.pid}, log {log}")


@click.command()
@JSON
@with_settings()
def down(settings: Settings, as_json: bool) -> None:
    """Stop the node of a database: runs may finish, nothing new starts."""
    held = holder(settings)
    if held is None:
        if as_json:
            write_json({"stopped": False})
        else:
            click.echo(f"nothing is up on {settings.database}")
        return
    with contextlib.suppress(ProcessLookupError):  # it went by itself
        os.kill(held.pid, signal.SIGTERM)
    limit = time.monotonic() + settings.stop_grace / 1000 + START_LIMIT
    while (still := holder(settings)) is not None and still.pid == held.pid:
        if time.monotonic() > limit:
            click.echo(f"onbeat: process {held.pid} is still up", err=True)
            sys.exit(FAILED)
        time.sleep(0.02)
    if as_json:
        write_json({"stopped": True, "pid": held.pid})
    else:
        click.echo(f"stopped process {held.pid}")


@click.command()
@JSON
@with_settings()
def status(settings: Settings, as_json: bool) -> None:
    """Show whether a node is up, what is due and what runs."""
    held = holder(settings)
    found = ask(settings, lambda service: service.overview())
    if as_json:
        up_as = None if held is None else {"pid": held.pid, "name": held.name}
        fields = {"database": settings.database, "node": up_as, **overview_fields(found)}
        write_json(fields if held is not None else fields | {"nodes": []})
        return
    click.echo(f"database   {settings.database}")
    click.echo(f"node       {f'up: {held.name}, process {held.pid}' if held else 'none is up'}")
    if not found.gate_open:
        click.echo("gate       CLOSED: nothing is decided and nothing starts (onbeat gate on)")
    paused = f", {found.paused} paused" if found.paused else ""
    click.echo(f"schedules  {found.schedules}{paused}")
    told = ", ".join(f"{n} {name.lower()}" for name, n in sorted(found.runs.items()))
    click.echo(f"runs       {told or 'none unfinished'}")
    click.echo(f"due        {found.due} now, next {moment(found.next_due_at, found.now)}")


@click.command()
@click.argument("position", type=click.Choice(["on", "off"]))
@JSON
@with_settings()
def gate(settings: Settings, position: str, as_json: bool) -> None:
    """Stop everything (off), or let it go on (on). What was missed behind it does not run."""
    changed = ask(settings, lambda service: service.set_gate(is_open=position == "on"))
    if as_json:
        write_json({"gate": "open" if position == "on" else "closed", "changed": changed})
    else:
        told = "open" if position == "on" else "CLOSED: nothing is decided and nothing starts"
        click.echo(f"the gate {'is now' if changed else 'was already'} {told}")
