"""`onbeat timer`: the timer of flows, with the command line of its origin.

The timer is an ordinary node that also reads the exposes of a panel.
"""

import sys

import click
from msgspec.structs import asdict, replace

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli.apply import ApplyOptions
from onbeat.cli.exit_codes import FAILED, UNAVAILABLE
from onbeat.cli.nodes import stop_nodes
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.up import FILE, run_node, start_in_background
from onbeat.cli.verbs import Verb
from onbeat.service.service import Service
from onbeat.systems.flows.config import TIMER_NAME, ScheduleStatus, TimerStatus, schedule_id_of
from onbeat.systems.flows.settings import FlowsSettings
from onbeat.systems.flows.system import schedules_of, status_of
from onbeat.systems.flows.template import META_TEMPLATE

EXPOSES = "./data/expose.db"  # where a panel keeps them
NOT_RUNNING = TimerStatus(TIMER_NAME, None, False, 0, "", "", 0, 0, {})  # noqa: FBT003
PASSED_ON = ("database", "config")  # options of the node as well


def _in_seconds(_: click.Context, __: click.Parameter, value: int | None) -> str | None:
    return None if value is None else f"{value}s"


@click.command(
    cls=Verb, examples=["onbeat timer --start --exposes ./data/expose.db", "onbeat timer --status"]
)
@click.option(
    "--start/--stop",
    "start",
    default=True,
    help="--start: start the timer (default); --stop: stop it.",
)
@click.option("--block", is_flag=True, help="Start the timer in the foreground.")
@click.option(
    "--status", is_flag=True, help="Show whether the timer is running, and list its flows."
)
@click.option(
    "--template",
    is_flag=True,
    help="Print an example of a `schedule:` block for a flow's metadata.",
)
@click.option(
    "--interval",
    "flows_interval",
    type=click.IntRange(1, 86_400),
    callback=_in_seconds,
    metavar="N",
    help="Seconds between two reads of the exposed flows. [default: 60]",
)
@click.option(
    "--exposes",
    "flows_exposes",
    metavar="PATH",
    help=f"Where Kodosumi exposes its flows: expose.db, or a folder. [default: {EXPOSES}]",
)
@JSON
@with_settings("flows_interval", "flows_exposes", flows_exposes=EXPOSES)
def timer(
    settings: Settings, start: bool, block: bool, status: bool, template: bool, as_json: bool
) -> None:
    """Start, stop or inspect the timer, which launches Kodosumi flows by their schedules.

    This is the spelling of the flows system. The timer is a node like that of `onbeat up`.
    """
    if template:
        click.echo(META_TEMPLATE, nl=False)
    elif status:
        _show_status(settings, as_json=as_json)
    elif start:
        _start(settings, block=block, as_json=as_json)
    else:
        _stop(settings, as_json=as_json)


def _start(settings: Settings, *, block: bool, as_json: bool) -> None:
    found, _ = _find_timer(settings)
    if found.pid is not None:
        click.echo(f"timer already running, pid={found.pid}. Exiting.", err=True)
        sys.exit(UNAVAILABLE)
    if block:
        file = FILE if FILE.exists() else None
        run_node(settings, file, ApplyOptions(), as_json=as_json)
        return
    given = click.get_current_context().params
    arguments = [
        f"--{name.replace('_', '-')}={given[name]}" for name in PASSED_ON if given[name] is not None
    ]
    arguments.append(f"--flows-exposes={settings.of(FlowsSettings).exposes}")
    interval = given["flows_interval"]
    environment = {} if interval is None else {"ONBEAT_FLOWS_INTERVAL": interval}
    pid, log, _ = start_in_background(settings, arguments, environment=environment)
    if as_json:
        write_json({"database": settings.database_shown, "pid": pid, "log": str(log)})
    else:
        click.echo(f"timer started (pid={pid}).")


def _stop(settings: Settings, *, as_json: bool) -> None:
    found, name = _find_timer(settings)
    if found.pid is not None:
        stop_nodes(settings, [name] if settings.is_postgres else [])
    if as_json:
        write_json({"stopped": found.pid is not None, "pid": found.pid})
    elif found.pid is None:
        click.echo("no timer found")
    else:
        click.echo(f"timer stopped with pid={found.pid}")


def _show_status(settings: Settings, *, as_json: bool) -> None:
    found, _ = _find_timer(settings)
    listed: list[ScheduleStatus] = []
    if found.pid is not None:
        listed = with_service(settings, schedules_of)
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


def _find_timer(settings: Settings) -> tuple[TimerStatus, str]:
    """Return the status of the timer, and the name of its node if it is up."""
    path = settings.database_path
    if path is not None and not (path.exists() and path.stat().st_size):
        return NOT_RUNNING, ""

    async def look(service: Service) -> tuple[TimerStatus, list[str]]:
        seen = await service.overview()
        up = [node.name for node in seen.nodes if node.alive_until > seen.now]
        return await status_of(service), up

    found, up = with_service(settings, look)
    if not settings.is_postgres:
        held = lock_holder(settings)
        up = [] if held is None else [f"{held.name.rpartition(':')[0]}:{held.pid}"]
    for name in up:
        if name.rpartition(":")[2] == str(found.pid):
            return found, name
    return replace(found, pid=None, running=False, problems=[]), ""
