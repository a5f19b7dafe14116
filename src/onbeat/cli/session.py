"""What the verbs share: the settings they take, the store they open, and how they fail."""

import asyncio
import getpass
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import NoReturn, TypeVar

import click
import msgspec

from onbeat.app.client import client
from onbeat.app.settings import CONFIG, FILE, Settings
from onbeat.cli import FAILED, INVALID_DEFINITION, UNAVAILABLE, USAGE
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
from onbeat.service.access import Caller
from onbeat.service.service import Service

T = TypeVar("T")

JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON.")


def with_settings(
    *flags: str, **defaults: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb its settings; what it refuses becomes one line and an exit code.

    `flags` names the options of the verb that are settings, besides `--database`; `defaults` are
    what the verb says where nobody says anything.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @click.option("--database", metavar="URL", help="[default: sqlite:///onbeat.db]")
        @click.option(
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="A file of settings. [default: onbeat.toml, if it is there]",
        )
        @wraps(verb)
        def call(config: Path | None, **options: object) -> None:
            given = {name: options.pop(name) for name in ("database", *flags)}
            try:
                settings = _loaded(given, config)
                unsaid = {name: text for name, text in defaults.items() if not given.get(name)}
                unsaid = {n: text for n, text in unsaid.items() if not getattr(settings, n)}
                verb(_loaded(given | unsaid, config) if unsaid else settings, **options)
            except InvalidFile as refused:
                tell_mistakes(refused, as_json=bool(options.get("as_json")))
                sys.exit(INVALID_DEFINITION)
            except OnbeatError as refused:
                fail(refused)
            except UnicodeEncodeError:
                click.echo("onbeat: what was given is not UTF-8", err=True)
                sys.exit(USAGE)
            except BrokenPipeError:
                raise  # whoever read has seen enough: click ends in silence
            except OSError as broken:
                if broken.filename is None:
                    _write_no_more()
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
    """Return the settings, or why they are refused; and the file that they are read from."""
    named = config or (Path(name) if (name := os.environ.get(CONFIG)) else Path(FILE))
    file = named if named.is_file() else None
    try:
        given = {"database": database}
        found = Settings.load(flags=given, environment=os.environ, file=config, folder=Path())
    except InvalidSettings as refused:
        return refused, file
    return found, file


def _write_no_more() -> None:
    """Let go of what could not be written: it would be tried again, and fail, at the very end."""
    with suppress(OSError):  # a test may have put something else in its place
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell_mistakes(refused: InvalidFile, *, as_json: bool) -> None:
    """Write everything that is wrong with a file: for people on stderr, as JSON on stdout."""
    if as_json:
        write_json([{"file": refused.path} | each._asdict() for each in refused.mistakes])
        return
    click.echo(f"{refused}", err=True)
    n = len(refused.mistakes)
    told = f"{n} mistake{'s' * (n != 1)} in {refused.path}: nothing was changed"
    click.echo(f"onbeat: {told}", err=True)


def fail(refused: OnbeatError) -> NoReturn:
    """Say what is wrong on stderr, and end with the code for it."""
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


def ask(settings: Settings, work: Callable[[Service], Awaitable[T]], *, create: bool = False) -> T:
    """Do something with the store, which has to be there unless it may be made."""
    path = settings.database_path
    if settings.is_in_memory:
        raise StoreUnusable("sqlite:// is memory, gone when the program ends (name a file)")
    if path is not None and not create and not (path.exists() and path.stat().st_size):
        hint = "onbeat up makes one; --database names another"
        what = "is empty" if path.exists() else "does not exist"
        raise StoreUnusable(f"{path} {what} ({hint})")

    async def session() -> T:
        async with client(settings, caller()) as service:
            return await work(service)

    return asyncio.run(session())


def caller() -> Caller:
    """Return who calls from the command line, as events tell of it: they have the database."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        name = str(os.getuid())
    return Caller(f"cli:{name}", "admin", is_local=True)


def is_number(which: str) -> bool:
    """Return whether this is the number of a run, rather than a name."""
    return which.isascii() and which.isdigit() and len(which) < 19


def write_json(told: object) -> None:
    """Write JSON on one line."""
    click.echo(msgspec.json.encode(told))


async def write_json_list(pages: AsyncIterator[Iterable[object]]) -> None:
    """Write one JSON list, on one line, as its items come: a page is in memory at a time."""
    encoder, before = msgspec.json.Encoder(), b"["
    async for page in pages:
        items = b",".join(map(encoder.encode, page))
        if items:
            click.echo(before + items, nl=False)
            before = b","
    click.echo(b"]" if before == b"," else b"[]")


class Table:
    """Rows under a heading, written as they come, in columns as wide as the first ones need."""

    def __init__(self, *heading: str) -> None:
        self._heading, self._widths = heading, [0] * len(heading)
        self.is_empty = True

    def write(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Write some more rows; the first come with the heading."""
        shown = [self._heading, *rows] if self.is_empty else rows
        if not rows:
            return
        if self.is_empty:
            self._widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
            self.is_empty = False
        lines = [
            "  ".join(cell.ljust(n) for cell, n in zip(row, self._widths, strict=True)).rstrip()
            for row in shown
        ]
        click.echo("\n".join(lines))


def write_table(heading: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Write rows under a heading, in columns as wide as they need to be."""
    table = Table(*heading)
    table.write(rows)
    if table.is_empty:
        click.echo("  ".join(heading))
