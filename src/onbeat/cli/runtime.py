"""What all verbs share: settings, the store, JSON output, and exit codes."""

import asyncio
import getpass
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import msgspec

from onbeat.app.client import client
from onbeat.app.setting_sources import FILE
from onbeat.app.settings import Settings
from onbeat.cli.exit_codes import FAILED, INVALID_DEFINITION, UNAVAILABLE, USAGE
from onbeat.errors import (
    ApiUnavailable,
    InvalidFile,
    InvalidSchedule,
    InvalidSettings,
    OnbeatError,
    StoreFailed,
    StoreHeld,
    StoreUnusable,
)
from onbeat.host.own_names import CONFIG
from onbeat.service.access import Caller
from onbeat.service.service import Service

T = TypeVar("T")

JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
DATABASE = click.option(
    "--database", metavar="URL", help="The database. [default: sqlite:///onbeat.db]"
)
CONFIG_FILE = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file of settings. [default: onbeat.toml, if it exists]",
)


def with_settings(
    *flags: str, **defaults: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass the settings to a verb, and turn its errors into one line and an exit code.

    `flags` names the options of the verb that are settings, besides `--database`. `defaults` are
    settings that the verb has if no flag, variable or file sets them.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @DATABASE
        @CONFIG_FILE
        @wraps(verb)
        def call(config: Path | None, **options: object) -> None:
            given = {name: options.pop(name) for name in ("database", *flags)}
            try:
                settings = _loaded(given, config)
                unset = {name: text for name, text in defaults.items() if not given.get(name)}
                unset = {n: text for n, text in unset.items() if not settings.value(n)}
                verb(_loaded(given | unset, config) if unset else settings, **options)
            except InvalidFile as refused:
                write_mistakes(refused, as_json=bool(options.get("as_json")))
                sys.exit(INVALID_DEFINITION)
            except OnbeatError as refused:
                fail(refused)
            except UnicodeEncodeError:
                click.echo("onbeat: an argument is not UTF-8", err=True)
                sys.exit(USAGE)
            except BrokenPipeError:
                raise  # the reader of a pipe has closed it: click exits silently
            except OSError as broken:
                if broken.filename is None:
                    _discard_output()
                where = f"{broken.filename}: " if broken.filename else ""
                click.echo(f"onbeat: {where}{broken.strerror}", err=True)
                sys.exit(UNAVAILABLE)

        return call

    return decorate


def _loaded(given: Mapping[str, object], config: Path | None) -> Settings:
    return Settings.load(flags=given, environment=os.environ, file=config, folder=Path())


def settings_or_refusal(
    database: str | None, config: Path | None
) -> tuple[Settings | InvalidSettings, Path | None]:
    """Return the settings, or the error in them; and the file that they are read from."""
    named = config or (Path(name) if (name := os.environ.get(CONFIG)) else Path(FILE))
    file = named if named.is_file() else None
    try:
        given = {"database": database}
        found = Settings.load(flags=given, environment=os.environ, file=config, folder=Path())
    except InvalidSettings as refused:
        return refused, file
    return found, file


def _discard_output() -> None:
    """Discard what could not be written: Python would try, and fail, again when it exits."""
    with suppress(OSError):  # a test may have replaced stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_mistakes(refused: InvalidFile, *, as_json: bool) -> None:
    """Write all mistakes in a file: as text to stderr, or as JSON to stdout."""
    if as_json:
        write_json([{"file": refused.path} | each._asdict() for each in refused.mistakes])
        return
    click.echo(f"{refused}", err=True)
    n = len(refused.mistakes)
    summary = f"{n} mistake{'s' * (n != 1)} in {refused.path}: nothing was changed"
    click.echo(f"onbeat: {summary}", err=True)


def fail(refused: OnbeatError) -> NoReturn:
    """Write an error to stderr, and exit with its code."""
    click.echo(f"onbeat: {refused}", err=True)
    match refused:
        case InvalidSchedule():
            sys.exit(INVALID_DEFINITION)
        case InvalidSettings():
            sys.exit(USAGE)
        case ApiUnavailable() | StoreHeld() | StoreUnusable() | StoreFailed():
            sys.exit(UNAVAILABLE)
        case _:
            sys.exit(FAILED)


def with_service(
    settings: Settings, work: Callable[[Service], Awaitable[T]], *, create: bool = False
) -> T:
    """Open the database, call `work` with the use cases, and return its result.

    A database that does not exist is an error, unless it may be created.
    """
    path = settings.database_path
    if settings.is_in_memory:
        raise StoreUnusable(
            "sqlite:// is a database in memory, which is lost when this command ends (name a file)"
        )
    if path is not None and not create and not (path.exists() and path.stat().st_size):
        hint = "onbeat up creates it; --database names another"
        what = "is empty" if path.exists() else "does not exist"
        raise StoreUnusable(f"{path} {what} ({hint})")

    async def connected() -> T:
        async with client(settings, caller()) as service:
            return await work(service)

    return asyncio.run(connected())


def caller() -> Caller:
    """Return the user of the command line as events record it, with all rights."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        name = str(os.getuid())
    return Caller(f"cli:{name}", "admin", is_local=True)


def is_number(which: str) -> bool:
    """Return whether an argument is the number of a run, not a name."""
    return which.isascii() and which.isdigit() and len(which) < 19


def write_json(value: object) -> None:
    """Write JSON on one line."""
    click.echo(msgspec.json.encode(value))


async def write_json_list(pages: AsyncIterator[Iterable[object]]) -> None:
    """Write one JSON list on one line, with one page in memory at a time."""
    encoder, before = msgspec.json.Encoder(), b"["
    async for page in pages:
        items = b",".join(map(encoder.encode, page))
        if items:
            click.echo(before + items, nl=False)
            before = b","
    click.echo(b"]" if before == b"," else b"[]")
