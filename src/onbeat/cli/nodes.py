"""`onbeat down`, `status` and `nodes`: stop nodes, and show what they do."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import click
from msgspec.structs import asdict

from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder
from onbeat.cli.exit_codes import FAILED
from onbeat.cli.format import Cell, Times
from onbeat.cli.runtime import JSON, with_service, with_settings, write_json
from onbeat.cli.tables import WIDE, Column, write_table, write_zone
from onbeat.cli.terminal import table_zone
from onbeat.cli.verbs import Verb
from onbeat.ports.rows import NodeRow, Overview
from onbeat.service.serialize import node_fields, overview_fields
from onbeat.service.wait_reasons import WaitReasons, wait_reasons

STOP_LIMIT = 20.0  # seconds beyond the grace of its runs in which a node has to be down
NODES = (
    Column("NODE", least=12),
    Column("DOES", least=8, drop=2),
    "RUNNING",
    Column("OFFERS", least=8, drop=3),
    Column("UP SINCE", drop=1),
    "STATE",
)


@click.command(cls=Verb, examples=["onbeat down", "onbeat down --all"])
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("--all", "everywhere", is_flag=True, help="Also stop nodes on other machines.")
@JSON
@with_settings()
def down(settings: Settings, names: tuple[str, ...], everywhere: bool, as_json: bool) -> None:
    """Stop nodes: runs may finish, nothing new starts.

    The default is every node on this machine. `onbeat nodes` shows the names.
    """
    if names and not settings.is_postgres:
        raise click.UsageError("a SQLite file has one node: leave out the name")
    stopped = stop_nodes(settings, names, everywhere=everywhere)
    if as_json:
        write_json({"stopped": bool(stopped), "nodes": stopped})
    elif not stopped:
        click.echo(f"no node is up on {settings.database_shown}")
    for name in stopped if not as_json else ():
        click.echo(f"stopped {name}")


def stop_nodes(settings: Settings, names: Sequence[str], *, everywhere: bool = False) -> list[str]:
    """Stop nodes of a database and wait until they have stopped; return their names."""
    if settings.is_postgres:
        return _request_stop(settings, names, everywhere=everywhere)
    return _signal_to_stop(settings)


def _signal_to_stop(settings: Settings) -> list[str]:
    """Stop the node that holds a file; return its name."""
    held = lock_holder(settings)
    if held is None:
        return []
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(held.pid, signal.SIGTERM)

    def is_up() -> bool:
        still = lock_holder(settings)
        return still is not None and still.pid == held.pid

    _wait_while(is_up, settings, held.name)
    return [held.name]


def _request_stop(settings: Settings, names: Sequence[str], *, everywhere: bool) -> list[str]:
    """Request in the database that nodes stop; return their names."""
    found = with_service(settings, lambda service: service.overview())
    up = {row.node_id: row.name for row in found.nodes if row.alive_until > found.now}
    if unknown := [name for name in names if name not in {*up, *up.values()}]:
        known = ", ".join(sorted(up.values())) or "none"
        raise click.UsageError(f"no node is called {unknown[0]!r} (up: {known})")
    here = f"{socket.gethostname()}:"
    chosen = {
        node_id: name
        for node_id, name in up.items()
        if (names and {node_id, name} & set(names))
        or (not names and (everywhere or name.startswith(here)))
    }
    if not chosen and up:
        others = ", ".join(sorted(up.values()))
        click.echo(f"no node is up on this machine (--all stops the others: {others})", err=True)
    with_service(settings, lambda service: service.request_stop(list(chosen)))

    def is_up() -> bool:
        left = with_service(settings, lambda service: service.overview()).nodes
        return bool(chosen.keys() & {row.node_id for row in left})

    _wait_while(is_up, settings, ", ".join(chosen.values()), pause=0.2)
    return sorted(chosen.values())


def _wait_while(
    is_up: Callable[[], bool], settings: Settings, name: str, *, pause: float = 0.02
) -> None:
    limit = time.monotonic() + settings.stop_grace / 1000 + STOP_LIMIT
    while is_up():
        if time.monotonic() > limit:
            click.echo(f"onbeat: {name} is still up", err=True)
            sys.exit(FAILED)
        time.sleep(pause)


@click.command(cls=Verb, examples=["onbeat status", "onbeat status --json"])
@JSON
@with_settings()
def status(settings: Settings, as_json: bool) -> None:
    """Show nodes, due ticks, unfinished runs, and runs that wait for another system or a node."""
    found = _overview(settings)
    waiting = with_service(settings, lambda service: wait_reasons(service, found))
    if as_json:
        about = {"database": settings.database_shown, **asdict(overview_fields(found))}
        write_json({**about, "waiting": waiting})
        return
    for name, text in _status_lines(
        settings, found, waiting, times := Times(found.now, table_zone())
    ):
        click.echo(f"{name:<11}{text}")
    write_zone(times)


def _status_lines(
    settings: Settings, found: Overview, waiting: Sequence[WaitReasons], times: Times
) -> Iterator[tuple[str, str]]:
    up = [row for row in found.nodes if row.alive_until > found.now]
    yield "database", settings.database_shown
    yield "nodes", " ".join([f"{len(up)} up:", *(row.name for row in up)]) if up else "none is up"
    if api := [row.address for row in up if row.address]:
        yield "api", f"{' '.join(api)} (onbeat token link opens the dashboard)"
    if not found.gate_open:
        yield "gate", "CLOSED: nothing is decided and nothing starts (onbeat gate open)"
    paused = f", {found.paused} paused" if found.paused else ""
    yield "schedules", f"{found.schedules}{paused}"
    runs = ", ".join(f"{n} {name.lower()}" for name, n in sorted(found.runs.items()))
    yield "runs", runs or "none unfinished"
    for row in found.awaited:
        until = f"in flight until its outcome is reported, or {times.moment(row.deadline_at)}"
        yield "accepted", f"run {row.run_id} of {row.schedule_id}: {until}"
    for each in waiting:
        n = f"{each.runs} run{'s' * (each.runs != 1)}"
        yield "waiting", f"{n} ({each.schedule_id}): {each.why}"
    if found.stuck:
        yield "stuck", f"{found.stuck} longer than usual (onbeat runs --stuck)"
    yield "due", f"{found.due} now, next {times.moment(found.next_due_at)}"
    if (zones := found.following) is not None:
        done = f"{zones.done} of {zones.total} schedules, {zones.moved} ticks moved"
        yield "zones", f"recomputing due ticks with time zone data {zones.version}: {done}"


@click.command(cls=Verb, examples=["onbeat nodes", "onbeat nodes --wide"])
@WIDE
@JSON
@with_settings()
def nodes(settings: Settings, wide: bool, as_json: bool) -> None:
    """List nodes: roles, number of runs, what they can launch, and when they started."""
    found = _overview(settings)
    if as_json:
        write_json([node_fields(row, found.now) for row in found.nodes])
        return
    if not found.nodes:
        click.echo(f"no node is up on {settings.database_shown} (onbeat up starts one)")
        return
    times = Times(found.now, table_zone())
    rows = [
        (
            row.name,
            ",".join(sorted(row.roles)),
            str(row.running),
            ",".join(sorted(row.offers)) or "-",
            times.cell(row.started_at),
            _state(row, found.now),
        )
        for row in found.nodes
    ]
    write_table(NODES, rows, times=times, wide=wide)


def _state(row: NodeRow, now: int) -> Cell:
    if row.alive_until <= now:
        return Cell((f"silent, lease expired {(now - row.alive_until) // 1000} s ago",), "red")
    return Cell(("stopping",), "yellow") if row.is_stopping else Cell(("up",), "green")


def _overview(settings: Settings) -> Overview:
    """Return nodes, schedules and runs. The lock of a SQLite file shows whether its node is up."""
    found = with_service(settings, lambda service: service.overview())
    if settings.is_postgres or lock_holder(settings) is not None:
        return found
    return replace(found, nodes=[])
