"""`onbeat up`, `down`, `status`, `nodes` and `gate`: the nodes, and how things stand."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from onbeat import __version__
from onbeat.app import logs
from onbeat.app.launchers import check_target
from onbeat.app.onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.app.stores import lock_holder, move_to_postgres
from onbeat.cli import FAILED, UNAVAILABLE
from onbeat.cli.apply import Wish, apply_definitions, source_of, with_wish
from onbeat.cli.session import JSON, ask, caller, with_settings, write_json, write_table
from onbeat.cli.supervisor import supervised
from onbeat.cli.times import moment
from onbeat.cli.watch import kept_applied
from onbeat.engine.store_retry import until_answered
from onbeat.errors import (
    ApiUnavailable,
    InvalidSettings,
    OnbeatError,
    StoreFailed,
    StoreUnusable,
)
from onbeat.ports.rows import NodeRow, Overview
from onbeat.service.serialize import node_fields, overview_fields
from onbeat.service.service import Service
from onbeat.service.wait_reasons import wait_reasons
from onbeat.sources.watch import Watched
from onbeat.sources.yaml import read_file
from onbeat.web.security.first_token import link_of

if TYPE_CHECKING:
    from onbeat.web.api_server import ApiAddress, ApiServer

log = logging.getLogger("onbeat.doctor")

FILE = Path("onbeat.yaml")
NO_FLAGS = {"database", "notify"}  # one that every verb has, and one that only a file can say
START_LIMIT = 20.0  # seconds in which a node in the background has to be up


@click.command()
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="Apply a file of schedules, again when it changes. [default: onbeat.yaml, if there]",
)
@with_wish
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
@click.option("--restored", is_flag=True, help="A backup was put back: leave out what is since.")
@click.option(
    "--concurrency", metavar="N", help=f"Runs at once. [default: {Settings().concurrency}]"
)
@click.option("--stop-grace", metavar="LENGTH", help="How long runs may finish. [default: 30s]")
@click.option("--output", metavar="FOLDER", help="For what runs print. [default: by the database]")
@click.option("--roles", metavar="ROLES", help="What this node does. [default: plan,run,api]")
@click.option("--lease", metavar="LENGTH", help="How long a silent node keeps runs. [default: 5s]")
@click.option("--catchup-per-second", metavar="N", help="Missed ticks to start. [default: 100]")
@click.option("--keep", metavar="LENGTH", help="How long history is kept. [default: 30d]")
@click.option("--http-targets", metavar="WHICH", help="any, or public: no private addresses.")
@click.option("--pass-env", metavar="NAMES", help="Variables that commands get, with commas.")
@click.option("--secrets", metavar="FOLDER", help="Whose files secret://NAME names.")
@click.option("--listen", metavar="HOST:PORT", help="Of the API. [default: 127.0.0.1:8585]")
@click.option("--public-url", metavar="URL", help="Where others find the API.")
@click.option("--hosts", metavar="NAMES", help="Under which the API answers, with commas.")
@click.option("--cors-origins", metavar="ORIGINS", help="Whose pages may use the API, by comma.")
@click.option("--trusted-proxies", metavar="NETWORKS", help="That say for whom they ask.")
@click.option("--rate-limit", metavar="N", help="Requests of a caller in a second.")
@click.option("--tls-cert", metavar="FILE", help="The certificate, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The key of the certificate.")
@click.option("--tls-client-ca", metavar="FILE", help="Who signs the certificates of clients.")
@click.option("--jwt-key", metavar="FILE", help="What JSON Web Tokens are checked with.")
@click.option("--jwt-algorithm", metavar="NAME", help="RS256, ES256, EdDSA or HS256.")
@click.option("--jwt-issuer", metavar="TEXT", help="The iss that they have.")
@click.option("--jwt-audience", metavar="TEXT", help="The aud that they have.")
@click.option("--services-file", metavar="FILE", help="Services and timers.")
@click.option("--sessions-url", metavar="URL", help="The chat server that prompts are sent to.")
@click.option("--workflows-executor", metavar="URL", help="Where the DAGs of workflows go.")
@click.option("--ray-address", metavar="HOST:PORT", help="The Ray cluster for `on: ray`.")
@click.option("--ray-lease", metavar="LENGTH", hidden=True)
@click.option("--ray-working-dir", metavar="FOLDER", hidden=True)
@click.option("--flows-exposes", metavar="PATH", help="expose.db, or a folder of exposes.")
@click.option("--flows-panel", metavar="URL", help="The panel that flows are launched on.")
@click.option("--lookahead", metavar="LENGTH", hidden=True)
@click.option("--sessions-folder", metavar="FOLDER", hidden=True)
@click.option("--sessions-cwd", metavar="FOLDER", hidden=True)
@click.option("--sessions-check", metavar="LENGTH", hidden=True)
@click.option("--sessions-busy-delay", metavar="LENGTH", hidden=True)
@click.option("--sessions-minimum", metavar="LENGTH", hidden=True)
@click.option("--sessions-most", metavar="N", hidden=True)
@click.option("--workflows-folder", metavar="FOLDER", hidden=True)
@click.option("--workflows-token", metavar="REFERENCE", hidden=True)
@click.option("--workflows-feedback", metavar="YES", hidden=True)
@click.option("--workflows-timeout", metavar="LENGTH", hidden=True)
@click.option("--workflows-overlap-policy", metavar="POLICY", hidden=True)
@click.option("--workflows-catchup-policy", metavar="POLICY", hidden=True)
@click.option("--workflows-jitter-ms", metavar="N", hidden=True)
@click.option("--flows-user", metavar="NAME", hidden=True)
@click.option("--flows-password", metavar="REFERENCE", hidden=True)
@click.option("--flows-interval", metavar="LENGTH", hidden=True)
@click.option("--flows-log-file", metavar="FILE", hidden=True)
@click.option("--flows-log-file-level", metavar="LEVEL", hidden=True)
@click.option("--flows-std-level", metavar="LEVEL", hidden=True)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="auto, text or json.")
@JSON
@with_settings(*(name for name in Settings.__dataclass_fields__ if name not in NO_FLAGS))
def up(
    settings: Settings,
    file: Path | None,
    prune: bool,
    take_over: bool,
    source: str | None,
    detach: bool,
    restored: bool,
    as_json: bool,
) -> None:
    """Plan and run schedules, until stopped by Ctrl-C or `onbeat down`."""
    if settings.is_in_memory and detach:
        raise StoreUnusable("sqlite:// is memory: nothing could reach it in the background")
    if file is None and FILE.exists():
        file = FILE
    if detach:
        _start_in_background(settings, as_json=as_json)
        return
    wish = Wish(prune, take_over, source)
    serve_here(settings, file, wish, as_json=as_json, restored=restored)


def serve_here(
    settings: Settings, file: Path | None, wish: Wish, *, as_json: bool, restored: bool = False
) -> None:
    """Be a node in this process, until it is stopped."""
    logs.set_up(level=settings.log_level, as_json=settings.logs_json)
    sys.path.insert(0, str(Path.cwd()))  # `python: "reports:build"` is beside the file
    if file is not None and wish.source is None:
        wish = wish._replace(source=source_of(file, settings.database_path))
    asyncio.run(_serve(settings, file, wish, as_json=as_json, restored=restored))


async def _serve(
    settings: Settings, file: Path | None, wish: Wish, *, as_json: bool, restored: bool
) -> None:
    front = _front(settings) if "api" in settings.roles else None
    beat = Onbeat(settings=settings, address="" if front is None else front.address)
    stopped = beat.catch_signals()
    watched = None if file is None else Watched(file)
    definitions = None if file is None else read_file(file, check_target)  # nothing is touched yet
    checking: asyncio.Task[None] | None = None
    service = (await beat.open_patiently()).of(caller())  # who starts it has its file applied
    try:

        async def define(_: Service) -> None:
            if restored:
                await service.record_gap()
            if definitions is not None:
                await apply_definitions(service, definitions, wish)

        if set(settings.roles) == {"api"} and not settings.is_postgres:
            await define(service)  # a client of the file: its node is another process
        else:
            await beat.begin(client=False, apply_files=define)
        # From here on the node is up: it waits for the database, for as long as that takes.
        with _unless_stopped(stopped):
            welcome = None if front is None else await front.start(beat, stopped)
            found = await until_answered(
                service.overview, "the node waits to say that it is up", unless=stopped
            )
            await _say_up(settings, service, welcome, found, as_json=as_json)
        checking = asyncio.create_task(_warn_of(settings, beat))
        async with kept_applied(service, watched, wish), supervised():
            await beat.until(stopped)
    finally:
        if checking is not None:
            checking.cancel()
        if front is not None:
            await front.stop()
        await beat.close()


async def _warn_of(settings: Settings, beat: Onbeat) -> None:
    """Log a warning for each peer that does not answer, and for definitions that are corrupt.

    It runs beside the node, which neither waits for it nor fails because of it.
    """
    from onbeat.doctor.diagnose import look_at_start  # noqa: PLC0415 - it loads a client for each peer

    try:
        for each in await look_at_start(settings, beat.service.clock):
            hint = f" ({each.hint})" if each.hint else ""
            log.warning("%s: %s%s", each.check, each.found, hint)
    except Exception:
        log.exception("the check at the start failed: this is a defect")


@contextlib.contextmanager
def _unless_stopped(stopped: asyncio.Event) -> Iterator[None]:
    """Leave out the rest if the database does not answer and the node is to stop anyway."""
    try:
        yield
    except StoreFailed:
        if not stopped.is_set():
            raise


async def _say_up(
    settings: Settings,
    service: Service,
    welcome: "ApiAddress | None",
    found: Overview,
    *,
    as_json: bool,
) -> None:
    """Print where the node is, and how things stand."""
    if as_json:
        api = {} if welcome is None else {"api": welcome.url}
        about = {"database": settings.database_shown, "pid": os.getpid(), **api}
        write_json({**about, **asdict(overview_fields(found))})
    else:
        if welcome is not None:
            await _tell_of_api(welcome, service)
        n = f"{found.schedules} schedule{'s' * (found.schedules != 1)}"
        click.echo(f"onbeat {__version__} is up on {settings.database_shown}: {n}")
    sys.stdout.flush()


def _front(settings: Settings) -> "ApiServer | None":
    """Return the API, bound; or say why there is none: schedules run without it, too."""
    refused: OnbeatError
    try:
        from onbeat.web.api_server import ApiServer  # noqa: PLC0415 - an extra, and half a second

        front = ApiServer(settings)
    except ModuleNotFoundError as missing:
        refused = StoreUnusable(f"the API needs {missing.name} (pip install 'onbeat[server]')")
    except (ApiUnavailable, InvalidSettings) as wrong:
        if settings.is_exposed or settings.listen or settings.public_url:
            raise  # the operator asked for it: to be there, and safe
        refused = StoreUnusable(f"there is no API: {wrong}")
    else:
        if front.in_use:
            there = front.settings.listen
            told = f"{front.in_use}: the API is at {there} (--listen HOST:PORT chooses another)"
            click.echo(f"onbeat: {told}", err=True)
        return front
    if set(settings.roles) == {"api"}:
        raise refused
    click.echo(f"onbeat: {refused}", err=True)
    return None


async def _tell_of_api(welcome: "ApiAddress", service: Service) -> None:
    """Say where the API is. A link that opens it is for a person, and for no log."""
    if welcome.token_file is not None:
        click.echo(f"token      {welcome.token_file} has the first, with every right")
    click.echo(f"api        {welcome.url}/api/v1")
    if sys.stdout.isatty():
        link = link_of(welcome.url, await until_answered(service.tokens.link, "a link waits"))
        click.echo(f"dashboard  {link} (opens once, within ten minutes)")
    else:
        click.echo(f"dashboard  {welcome.url} (onbeat token link opens it)")


def _start_in_background(settings: Settings, *, as_json: bool) -> None:
    """Start this very command again, without the terminal, and wait until it is up."""
    given = click.get_current_context().params
    arguments = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in given.items()
        if value not in (None, False) and name not in ("detach", "as_json")
    ]
    pid, log, told = start_in_background(settings, arguments)
    if as_json:
        write_json({"database": settings.database_shown, "pid": pid, "log": str(log)})
    else:
        click.echo(f"onbeat is up in the background: process {pid}, log {log}")
        _tell_again(settings, told)


def start_in_background(settings: Settings, arguments: Sequence[str]) -> tuple[int, Path, str]:
    """Start `onbeat up` without the terminal; return its process, its log, and what that says."""
    path, held = settings.database_path, lock_holder(settings)
    if held is not None and set(settings.roles) != {"api"}:
        click.echo(f"onbeat: {path} is held by process {held.pid} (stop it: onbeat down)", err=True)
        sys.exit(UNAVAILABLE)
    log = Path("onbeat.log") if path is None else path.with_name(f"{path.name}.log")
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
    return child.pid, log, told.decode(errors="replace")


def _tell_again(settings: Settings, log: str) -> None:
    """Say what a node in the background has said to nobody: where its API is, or why not."""
    for line in log.splitlines():
        if line.startswith("onbeat: "):
            click.echo(line, err=True)
        elif line.startswith(("token  ", "api  ")):
            click.echo(line)
        elif line.startswith("dashboard  "):
            link = link_of(line.split()[1], ask(settings, lambda service: service.tokens.link()))
            click.echo(f"dashboard  {link} (opens once, within ten minutes)")


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("--all", "everywhere", is_flag=True, help="Stop nodes on other machines, too.")
@JSON
@with_settings()
def down(settings: Settings, names: tuple[str, ...], everywhere: bool, as_json: bool) -> None:
    """Stop the nodes of a database: runs may finish, nothing new starts.

    Without names, those of this machine. A node is named as `onbeat nodes` shows it.
    """
    if names and not settings.is_postgres:
        raise click.UsageError("a SQLite file has one node at a time: it needs no name")
    stopped = stop_nodes(settings, names, everywhere=everywhere)
    if as_json:
        write_json({"stopped": bool(stopped), "nodes": stopped})
    elif not stopped:
        click.echo(f"nothing is up on {settings.database_shown}")
    for name in stopped if not as_json else ():
        click.echo(f"stopped {name}")


def stop_nodes(settings: Settings, names: Sequence[str], *, everywhere: bool = False) -> list[str]:
    """Stop nodes of a database, and wait until they have; return their names."""
    if settings.is_postgres:
        return _ask_to_stop(settings, names, everywhere=everywhere)
    return _signal_to_stop(settings)


def _signal_to_stop(settings: Settings) -> list[str]:
    """Stop the node that holds a file; return its name."""
    held = lock_holder(settings)
    if held is None:
        return []
    with contextlib.suppress(ProcessLookupError):  # it went by itself
        os.kill(held.pid, signal.SIGTERM)

    def is_up() -> bool:
        still = lock_holder(settings)
        return still is not None and still.pid == held.pid

    _wait_while(is_up, settings, held.name)
    return [held.name]


def _ask_to_stop(settings: Settings, names: Sequence[str], *, everywhere: bool) -> list[str]:
    """Have nodes stop by a word in their database; return their names."""
    found = ask(settings, lambda service: service.overview())
    up = {row.node_id: row.name for row in found.nodes if row.alive_until > found.now}
    if unknown := [name for name in names if name not in {*up, *up.values()}]:
        told = ", ".join(sorted(up.values())) or "none"
        raise click.UsageError(f"no node is called {unknown[0]!r} (those that are up: {told})")
    here = f"{socket.gethostname()}:"
    chosen = {
        node_id: name
        for node_id, name in up.items()
        if (names and {node_id, name} & set(names))
        or (not names and (everywhere or name.startswith(here)))
    }
    if not chosen and up:
        told = ", ".join(sorted(up.values()))
        click.echo(f"nothing is up on this machine (--all stops the others: {told})", err=True)
    ask(settings, lambda service: service.ask_to_stop(list(chosen)))

    def is_up() -> bool:
        left = ask(settings, lambda service: service.overview()).nodes
        return bool(chosen.keys() & {row.node_id for row in left})

    _wait_while(is_up, settings, ", ".join(chosen.values()), pause=0.2)
    return sorted(chosen.values())


def _wait_while(
    is_up: Callable[[], bool], settings: Settings, name: str, *, pause: float = 0.02
) -> None:
    limit = time.monotonic() + settings.stop_grace / 1000 + START_LIMIT
    while is_up():
        if time.monotonic() > limit:
            click.echo(f"onbeat: {name} is still up", err=True)
            sys.exit(FAILED)
        time.sleep(pause)


@click.command()
@JSON
@with_settings()
def status(settings: Settings, as_json: bool) -> None:
    """Show which nodes are up, what is due, what runs, and what waits for a peer or a node."""
    found = _overview(settings)
    waiting = ask(settings, lambda service: wait_reasons(service, found))
    if as_json:
        about = {"database": settings.database_shown, **asdict(overview_fields(found))}
        write_json({**about, "waiting": waiting})
        return
    up = [row.name for row in found.nodes if row.alive_until > found.now]
    click.echo(f"database   {settings.database_shown}")
    click.echo(f"nodes      {' '.join([str(len(up)), 'up:', *up]) if up else 'none is up'}")
    api = [row.address for row in found.nodes if row.alive_until > found.now and row.address]
    if api:
        click.echo(f"api        {' '.join(api)} (onbeat token link opens the dashboard)")
    if not found.gate_open:
        click.echo("gate       CLOSED: nothing is decided and nothing starts (onbeat gate on)")
    paused = f", {found.paused} paused" if found.paused else ""
    click.echo(f"schedules  {found.schedules}{paused}")
    told = ", ".join(f"{n} {name.lower()}" for name, n in sorted(found.runs.items()))
    click.echo(f"runs       {told or 'none unfinished'}")
    for row in found.awaited:
        until = f"in flight until it is reported, or {moment(row.deadline_at, found.now)}"
        click.echo(f"accepted   run {row.run_id} of {row.schedule_id}: {until}")
    for each in waiting:
        n = f"{each.runs} run{'s' * (each.runs != 1)}"
        click.echo(f"waiting    {n} ({each.schedule_id}): {each.why}")
    if found.stuck:
        click.echo(f"stuck      {found.stuck}: they take too long (onbeat runs --stuck)")
    click.echo(f"due        {found.due} now, next {moment(found.next_due_at, found.now)}")
    if (zones := found.following) is not None:
        done = f"{zones.done} of {zones.total} schedules, {zones.moved} ticks moved"
        click.echo(f"zones      following time zone data {zones.version}: {done}")


@click.command()
@JSON
@with_settings()
def nodes(settings: Settings, as_json: bool) -> None:
    """Show the nodes: what each does, how many runs it has, and since when it is up."""
    found = _overview(settings)
    if as_json:
        write_json([node_fields(row, found.now) for row in found.nodes])
        return
    if not found.nodes:
        click.echo(f"no node is up on {settings.database_shown} (onbeat up starts one)")
        return
    write_table(
        ("NODE", "DOES", "RUNNING", "OFFERS", "UP SINCE", "STATE"),
        [
            (
                row.name,
                ",".join(sorted(row.roles)),
                str(row.running),
                ",".join(sorted(row.offers)) or "-",
                moment(row.started_at, found.now),
                _state(row, found.now),
            )
            for row in found.nodes
        ],
    )


def _state(row: NodeRow, now: int) -> str:
    if row.alive_until <= now:
        return f"silent for {(now - row.alive_until) // 1000} s beyond its lease"
    return "stopping" if row.is_stopping else "up"


def _overview(settings: Settings) -> Overview:
    """Return how things stand. Of a file, its lock tells whether its node is up."""
    found = ask(settings, lambda service: service.overview())
    if settings.is_postgres or lock_holder(settings) is not None:
        return found
    return replace(found, nodes=[])


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


@click.command()
@click.argument("to", metavar="postgresql://USER@HOST/NAME")
@JSON
@with_settings()
def move(settings: Settings, to: str, as_json: bool) -> None:
    """Move everything from the SQLite file to PostgreSQL: schedules, positions, runs and events.

    The file must have no node (onbeat down). It is kept, and refused from then on.
    """
    target, path = settings.at(to), settings.database_path
    if path is not None and not path.exists():
        raise StoreUnusable(f"{path} does not exist (--database names another)")
    moved = asyncio.run(move_to_postgres(settings, target))
    if as_json:
        write_json({"from": settings.database, "to": target.database_shown, "rows": moved})
        return
    n, m = moved["schedules"], moved["schedule_runs"]
    told = f"{n} schedule{'s' * (n != 1)}, {m} run{'s' * (m != 1)}"
    click.echo(f"moved {told} to {target.database_shown}: start nodes there with --database")
