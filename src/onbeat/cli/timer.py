"""`onbeat timer`: the timer of flows, started, stopped and looked at as its users are used to.

It is a node like any other, with the exposes of a panel beside it.
"""

import sys

import click
from msgspec.structs import asdict, replace

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli import FAILED, UNAVAILABLE
from onbeat.cli.apply import Wish
from onbeat.cli.node import FILE, serve_here, start_in_background, stop_nodes
from onbeat.cli.session import JSON, ask, with_settings, write_json
from onbeat.service.service import Service
from onbeat.systems.flows.config import TIMER_NAME, ScheduleStatus, TimerStatus, schedule_id_of
from onbeat.systems.flows.system import schedules_of, status_of
from onbeat.systems.flows.template import META_TEMPLATE

EXPOSES = "./data/expose.db"  # where a panel has them
NOBODY = TimerStatus(TIMER_NAME, None, False, 0, "", "", 0, 0, {})  # noqa: FBT003 - it is not up
GIVEN = ("database", "config", "flows_interval")  # what is said here is said to the node


def _in_seconds(_: click.Context, __: click.Parameter, value: int | None) -> str | None:
    return None if value is None else f"{value}s"


@click.command()
@click.option("--start/--stop", "start", default=True, help="Start it, or stop it.")
@click.option("--block", is_flag=True, help="Start it in the foreground.")
@click.option("--status", is_flag=True, help="Show whether it is up.")
@click.option("--template", is_flag=True, help="Show the meta of a flow with a schedule in it.")
@click.option(
    "--interval",
    "flows_interval",
    type=click.IntRange(1, 86_400),
    callback=_in_seconds,
    metavar="N",
    help="Seconds between two looks at the exposes. [default: 60]",
)
@click.option(
    "--exposes", "flows_exposes", metavar="PATH", help=f"Where they are. [default: {EXPOSES}]"
)
@JSON
@with_settings("flows_interval", "flows_exposes", flows_exposes=EXPOSES)
def timer(
    settings: Settings, start: bool, block: bool, status: bool, template: bool, as_json: bool
) -> None:
    """Start, stop or look at the timer that launches flows by the schedules in their meta."""
    if template:
        click.echo(META_TEMPLATE, nl=False)
    elif status:
        _tell_status(settings, as_json=as_json)
    elif start:
        _start(settings, block=block, as_json=as_json)
    else:
        _stop(settings, as_json=as_json)


def _start(settings: Settings, *, block: bool, as_json: bool) -> None:
    found, _ = _look(settings)
    if found.pid is not None:
        click.echo(f"timer already running, pid={found.pid}. Exiting.", err=True)
        sys.exit(UNAVAILABLE)
    if block:
        file = FILE if FILE.exists() else None
        serve_here(settings, file, Wish(), as_json=as_json)
        return
    given = click.get_current_context().params
    arguments = [
        f"--{name.replace('_', '-')}={given[name]}" for name in GIVEN if given[name] is not None
    ]
    arguments.append(f"--flows-exposes={settings.flows_exposes}")
    pid, log, _ = start_in_background(settings, arguments)
    if as_json:
        write_json({"database": settings.database_shown, "pid": pid, "log": str(log)})
    else:
        click.echo(f"timer started (pid={pid}).")


def _stop(settings: Settings, *, as_json: bool) -> None:
    found, name = _look(settings)
    if found.pid is not None:
        stop_nodes(settings, [name] if settings.is_postgres else [])
    if as_json:
        write_json({"stopped": found.pid is not None, "pid": found.pid})
    elif found.pid is None:
        click.echo("no timer found")
    else:
        click.echo(f"timer stopped with pid={found.pid}")


def _tell_status(settings: Settings, *, as_json: bool) -> None:
    found, _ = _look(settings)
    listed: list[ScheduleStatus] = []
    if found.pid is not None:
        listed = ask(settings, schedules_of)
        known = {each.key for each in listed}
        wrong = {key: why for key, why in found.invalid.items() if key not in known}
        listed += [ScheduleStatus(key, schedule_id_of(key), invalid=wrong[key]) for key in wrong]
    if as_json:
        write_json({**asdict(found), "schedules": listed})
    elif found.pid is None:
        click.echo("timer actor not found.")
    else:
        click.echo(f"timer (pid={found.pid}) is running")
        click.echo(f"active flows: {found.active}, total flows: {found.total}")
        for key, why in found.invalid.items():
            click.echo(f"left out: {key}: {why}")
        for problem in found.problems:
            click.echo(f"problem: {problem}")
    if found.pid is None or found.problems:
        sys.exit(FAILED)


def _look(settings: Settings) -> tuple[TimerStatus, str]:
    """Return how the timer stands, if there is one that is up, and the name of its node."""
    path = settings.database_path
    if path is not None and not (path.exists() and path.stat().st_size):
        return NOBODY, ""

    async def look(service: Service) -> tuple[TimerStatus, list[str]]:
        seen = await service.overview()
        up = [node.name for node in seen.nodes if node.alive_until > seen.now]
        return await status_of(service), up

    found, up = ask(settings, look)
    if not settings.is_postgres:
        held = lock_holder(settings)
        up = [] if held is None else [f"{held.name.rpartition(':')[0]}:{held.pid}"]
    for name in up:
        if name.rpartition(":")[2] == str(found.pid):
            return found, name
    return replace(found, pid=None, running=False, problems=[]), ""
