"""What a diagnosis reads and what it reports: plain values, so that a check is a function."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.ports.system import PeerCheck
from onbeat.stores.sql.diagnostics import DatabaseFacts, StoreFacts
from onbeat.stores.sqlite.store import LockHolder

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `hint` is the way to fix it."""

    check: str
    level: Level
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """The input of all checks. Apart from it they read only files."""

    now: int  # milliseconds, by the clock of this machine
    python: tuple[int, ...]
    sqlite: str  # the version of the library
    zone_data: str  # the version of the zone data
    settings: Settings | InvalidSettings
    settings_file: Path | None  # the file that the settings were read from
    database: DatabaseFacts
    lock_holder: LockHolder | None = None  # of a SQLite file
    peers: Sequence[PeerCheck] = ()
    program_path: str | None = None  # where programs are searched; None: the PATH of this process

    @property
    def usable_settings(self) -> Settings:
        """The settings; the defaults if they are invalid."""
        return Settings() if isinstance(self.settings, InvalidSettings) else self.settings

    @property
    def settings_are_invalid(self) -> bool:
        return isinstance(self.settings, InvalidSettings)

    @property
    def store(self) -> StoreFacts | None:
        """What was read from the tables; None if they could not be read."""
        return self.database.standing


Check = Callable[[InstallationFacts], Finding | None]
"""A check returns None where it does not apply."""


def ok(check: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, hint: str) -> Finding:
    """Return a problem that does not stop the installation, or not yet."""
    return Finding(check, "warn", found, hint)


def fail(check: str, found: str, hint: str = "") -> Finding:
    """Return a problem that keeps Onbeat from working."""
    return Finding(check, "fail", found, hint)


def names(items: Iterable[str], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    listed: Sequence[str] = list(items)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


def size(n: int) -> str:
    """Format a number of bytes."""
    amount = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def length(ms: int) -> str:
    """Format a duration."""
    for unit, each in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * each:
            return f"{ms // each} {unit}"
    return f"{ms / 1000:g} s" if ms < 10_000 else f"{ms // 1000} s"
