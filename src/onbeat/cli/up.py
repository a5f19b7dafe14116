"""`onbeat up`: run a node, in the foreground or in the background."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from onbeat import __version__
from onbeat.app import logs
from onbeat.app.onbeat import Onbeat
from onbeat.app.parts import check_target
from onbeat.app.setting_sources import PREFIX
from onbeat.app.settings import Settings, known_settings, setting_options, shown_default
from onbeat.app.stores import lock_holder
from onbeat.cli.apply import ApplyOptions, apply_definitions, apply_options, source_of
from onbeat.cli.exit_codes import FAILED, UNAVAILABLE
from onbeat.cli.plug_warnings import written
from onbeat.cli.runtime import JSON, caller, with_service, with_settings, write_json
from onbeat.cli.supervisor import supervised
from onbeat.cli.tables import paint
from onbeat.cli.terminal import has_colours, is_terminal
from onbeat.cli.verbs import Verb
from onbeat.cli.watch import kept_applied
from onbeat.engine.store_retry import until_answered
from onbeat.errors import (
    ApiUnavailable,
    InvalidSettings,
    OnbeatError,
    StoreFailed,
    StoreUnusable,
)
from onbeat.host.extras import install_command
from onbeat.ports.rows import Overview
from onbeat.service.serialize import overview_fields
from onbeat.service.service import Service
from onbeat.sources.watch import WatchedFile
from onbeat.sources.yaml import read_file
from onbeat.web.security.first_token import login_url

if TYPE_CHECKING:
    from onbeat.web.api_server import ApiAddress, ApiServer

log = logging.getLogger("onbeat.doctor")

FILE = Path("onbeat.yaml")
START_LIMIT = 20.0  # seconds in which a node in the background has to be up


def with_setting_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each setting that declares one."""
    for name, option in reversed(setting_options().items()):
        default = option.default or shown_default(name)
        text = f"{option.help} [default: {default}]" if default else option.help
        verb = click.option(f"--{name.replace('_', '-')}", metavar=option.metavar, help=text)(verb)
    return verb


class _Up(Verb):
    """`onbeat up`: it names the variable of a setting without an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            name = unknown.option_name.lstrip("-").replace("-", "_")
            if name not in known_settings().fields:
                raise
            variable = f"{PREFIX}{name.upper()}"
            problem = f"{name} is a setting without an option (set the variable {variable})"
            raise click.UsageError(f"No such option {unknown.option_name!r}: {problem}") from None


@click.command(
    cls=_Up,
    examples=[
        "onbeat up",
        "onbeat up -f schedules.yaml --concurrency 64",
        "onbeat up -d --database postgresql://onbeat@db.example/onbeat",
    ],
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="A file to apply, also when it changes. [default: onbeat.yaml, if it exists]",
)
@apply_options
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
@click.option(
    "--restored", is_flag=True, help="Start from a restored backup: skip what was due since."
)
@with_setting_options
@JSON
@with_settings(*setting_options())
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
    """Plan and run schedules, until Ctrl-C or `onbeat down`."""
    if settings.is_in_memory and detach:
        raise StoreUnusable(
            "sqlite:// is a database in memory, which no other process can reach (leave out -d)"
        )
    if file is None and FILE.exists():
        file = FILE
    if detach:
        _detach(settings, as_json=as_json)
        return
    options = ApplyOptions(prune, take_over, source)
    run_node(settings, file, options, as_json=as_json, restored=restored)


def run_node(
    settings: Settings,
    file: Path | None,
    options: ApplyOptions,
    *,
    as_json: bool,
    restored: bool = False,
) -> None:
    """Run a node in this process until it is stopped."""
    logs.set_up(
        level=settings.log_level, as_json=settings.logs_json, has_colours=has_colours(sys.stderr)
    )
    sys.path.insert(0, str(Path.cwd()))  # `python: "reports:build"` is beside the file
    if file is not None and options.source is None:
        options = options._replace(source=source_of(file, settings.database_path))
    asyncio.run(_serve(settings, file, options, as_json=as_json, restored=restored))


async def _serve(
    settings: Settings, file: Path | None, options: ApplyOptions, *, as_json: bool, restored: bool
) -> None:
    front = _front(settings) if "api" in settings.roles else None
    beat = Onbeat(settings=settings, address="" if front is None else front.address)
    stopped = beat.catch_signals()
    watched = None if file is None else WatchedFile(file)
    definitions = None if file is None else read_file(file, check_target)  # before any change
    checks: asyncio.Task[None] | None = None
    service = (await beat.open_patiently()).of(caller())  # the file is applied as this user
    try:

        async def define(_: Service) -> None:
            if restored:
                await service.record_gap()
            if definitions is not None:
                await apply_definitions(service, definitions, options)

        if set(settings.roles) == {"api"} and not settings.is_postgres:
            await define(service)  # a client of the file: its node is another process
        else:
            await beat.begin(client=False, apply_files=define)
        # From here on the node is up, and waits for the database for any length of time.
        with _unless_stopped(stopped):
            welcome = None if front is None else await front.start(beat, stopped)
            overview = await until_answered(
                service.overview, "start-up waits for the database", unless=stopped
            )
            await _write_start(settings, service, welcome, overview, as_json=as_json)
        checks = asyncio.create_task(_log_checks(settings, beat))
        async with kept_applied(service, watched, options), supervised():
            await beat.until(stopped)
    finally:
        if checks is not None:
            checks.cancel()
        if front is not None:
            await front.stop()
        await beat.close()


async def _log_checks(settings: Settings, beat: Onbeat) -> None:
    """Log a warning for each peer that does not answer, and for corrupt definitions.

    It runs beside the node, which neither waits for it nor fails because of it.
    """
    from onbeat.doctor.diagnose import findings_at_start  # noqa: PLC0415 - it loads a client for each peer

    try:
        for each in await findings_at_start(settings, beat.service.clock):
            hint = f" ({each.hint})" if each.hint else ""
            log.warning("%s: %s%s", each.check, each.found, hint)
    except Exception:
        log.exception("the start-up checks crashed: this is a bug of Onbeat, please report it")


@contextlib.contextmanager
def _unless_stopped(stopped: asyncio.Event) -> Iterator[None]:
    """Skip the rest if the database does not answer and the node is being stopped anyway."""
    try:
        yield
    except StoreFailed:
        if not stopped.is_set():
            raise


async def _write_start(
    settings: Settings,
    service: Service,
    welcome: "ApiAddress | None",
    overview: Overview,
    *,
    as_json: bool,
) -> None:
    """Print that the node is up, and where its API is.

    On a terminal this is a separate block, with the dashboard last. A log has the
    line that the node is up last: `up -d` waits for it.
    """
    if as_json:
        api = {} if welcome is None else {"api": welcome.url}
        about = {"database": settings.database_shown, "pid": os.getpid(), **api}
        write_json({**about, **asdict(overview_fields(overview))})
        sys.stdout.flush()
        return
    n = f"{overview.schedules} schedule{'s' * (overview.schedules != 1)}"
    is_up = f"onbeat {__version__} is up on {settings.database_shown}: {n}"
    addresses = [] if welcome is None else await _addresses(welcome, service)
    if is_terminal():
        click.echo("\n".join(["", paint(is_up, "green"), *addresses, ""]))
    else:
        click.echo("\n".join([*addresses, is_up]))
    sys.stdout.flush()


async def _addresses(welcome: "ApiAddress", service: Service) -> list[str]:
    """Return lines with the token file, the API and the dashboard.

    The link with a one-time code is for the user of a terminal: it must not get into a log.
    """
    lines = [f"api        {welcome.url}/api/v1"]
    if welcome.token_file is not None:
        lines.insert(0, f"token      {welcome.token_file} (the first token, scope admin)")
    if is_terminal():
        code = await until_answered(service.tokens.link, "the link waits for the database")
        lines.append(_dashboard(login_url(welcome.url, code)))
    else:
        lines.append(f"dashboard  {welcome.url} (onbeat token link opens it)")
    return lines


def _dashboard(link: str) -> str:
    return f"dashboard  {paint(link, 'cyan')}\n{'':11}(opens once, within 10 minutes)"


def _front(settings: Settings) -> "ApiServer | None":
    """Return the API, bound to its address; without one, schedules run all the same."""
    refused: OnbeatError
    try:
        from onbeat.web.api_server import ApiServer  # noqa: PLC0415 - an extra, and half a second

        front = ApiServer(settings)
    except ModuleNotFoundError as missing:
        hint = install_command("server")
        refused = StoreUnusable(f"the API needs {missing.name} ({hint})")
    except (ApiUnavailable, InvalidSettings) as wrong:
        if settings.is_exposed or settings.listen or settings.public_url:
            raise  # the operator configured it: a node without it would be a surprise
        refused = StoreUnusable(f"the API is not available: {wrong}")
    else:
        if front.in_use:
            where = f"the API is at {front.settings.listen}"
            click.echo(
                f"onbeat: {front.in_use}: {where} (--listen HOST:PORT chooses another)", err=True
            )
        return front
    if set(settings.roles) == {"api"}:
        raise refused
    click.echo(f"onbeat: {refused}", err=True)
    return None


def _detach(settings: Settings, *, as_json: bool) -> None:
    """Run this same command in the background, and wait until its node is up."""
    given = click.get_current_context().params
    arguments = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in given.items()
        if value not in (None, False) and name not in ("detach", "as_json")
    ]
    pid, log_file, output = start_in_background(settings, arguments)
    if as_json:
        write_json({"database": settings.database_shown, "pid": pid, "log": str(log_file)})
    else:
        click.echo(f"onbeat is up in the background: process {pid}, log {log_file}")
        _repeat(settings, output)


def start_in_background(
    settings: Settings, arguments: Sequence[str], *, environment: Mapping[str, str] = {}
) -> tuple[int, Path, str]:
    """Start `onbeat up` without the terminal; return its process, its log, and the log's text.

    `environment` has variables that the process gets besides those of this one.
    """
    path, held = settings.database_path, lock_holder(settings)
    if held is not None and set(settings.roles) != {"api"}:
        click.echo(
            f"onbeat: {path} is in use by process {held.pid} (stop it: onbeat down)", err=True
        )
        sys.exit(UNAVAILABLE)
    log_file = Path("onbeat.log") if path is None else path.with_name(f"{path.name}.log")
    if not log_file.parent.is_dir():
        raise StoreUnusable(f"{log_file.parent} does not exist (make the folder first)")
    private = partial(os.open, mode=0o600)  # errors of runs may contain secrets
    with open(log_file, "ab", opener=private) as output:
        begins = output.tell()
        child = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", "onbeat", "up", *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    limit = time.monotonic() + START_LIMIT
    while b" is up on " not in (logged := log_file.read_bytes()[begins:]):
        if child.poll() is not None:
            click.echo(logged.decode(errors="replace").strip(), err=True)
            sys.exit(child.returncode or FAILED)
        if time.monotonic() > limit:
            slow = f"process {child.pid} is not up after {START_LIMIT:.0f} s"
            click.echo(f"onbeat: {slow} (its log is {log_file}; onbeat down stops it)", err=True)
            sys.exit(FAILED)
        time.sleep(0.02)
    return child.pid, log_file, logged.decode(errors="replace")


def _repeat(settings: Settings, output: str) -> None:
    """Print what a node in the background has logged about its API."""
    for line in output.splitlines():
        if line.startswith("onbeat: ") and line not in written:
            click.echo(line, err=True)
        elif line.startswith(("token  ", "api  ")):
            click.echo(line)
        elif line.startswith("dashboard  "):
            code = with_service(settings, lambda service: service.tokens.link())
            click.echo(_dashboard(login_url(line.split()[1], code)))
