"""What a doctor sees, and what it finds: values, so that each check is a function of its own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onbeat.app.peers import PeerCheck
from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.stores.sql.diagnostics import DatabaseFacts
from onbeat.stores.sqlite.store import LockHolder

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what would be right if it is not."""

    check: str
    level: Level
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class InstallationFacts:
    """Everything that checks judge. They look at files besides, and at nothing else."""

    now: int  # milliseconds, by the clock of this machine
    python: tuple[int, ...]
    sqlite: str  # the version of the library
    tz: str  # the version of the zone data
    settings: Settings | InvalidSettings
    settings_file: Path | None  # that was read
    looked: DatabaseFacts
    holder: LockHolder | None = None  # of the file
    peers: Sequence[PeerCheck] = ()  # what those answered that settings name
    search: str | None = None  # where programs are looked for; None: as ever

    @property
    def known(self) -> Settings:
        """The settings, or what holds if nobody says otherwise."""
        return Settings() if isinstance(self.settings, InvalidSettings) else self.settings

    @property
    def is_refused(self) -> bool:
        """Whether nobody knows the settings."""
        return isinstance(self.settings, InvalidSettings)


Check = Callable[[InstallationFacts], Finding | None]
"""It returns None where it does not apply."""


def ok(check: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(check, "ok", found)


def warn(check: str, found: str, hint: str) -> Finding:
    """Return what may become a problem, or is one for some."""
    return Finding(check, "warn", found, hint)


def fail(check: str, found: str, hint: str = "") -> Finding:
    """Return what keeps Onbeat from doing its work."""
    return Finding(check, "fail", found, hint)


def names(some: Iterable[str], most: int = 3) -> str:
    """Return a few names, and that there are more."""
    all_of_them: Sequence[str] = list(some)
    rest = len(all_of_them) - most
    return ", ".join(all_of_them[:most]) + (f" and {rest} more" if rest > 0 else "")


def size(n: int) -> str:
    """Return a number of bytes as people read it."""
    amount = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def length(ms: int) -> str:
    """Return a length of time as people read it."""
    for unit, each in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * each:
            return f"{ms // each} {unit}"
    return f"{ms / 1000:g} s" if ms < 10_000 else f"{ms // 1000} s"
