"""Instants and durations as text for people."""

from typing import NamedTuple

from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import Zone

UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class Cell(NamedTuple):
    """A cell of a table: its text in forms that get shorter, and its colour on a terminal."""

    forms: tuple[str, ...]
    colour: str | None = None

    def form(self, level: int) -> str:
        """Return the text: level 0 is the longest form."""
        return self.forms[min(level, len(self.forms) - 1)]


class Times:
    """Instants of one table or page, all in one zone.

    In UTC each has a `Z`. In another zone they have no offset, and `note` names the zone.
    """

    def __init__(self, now: int, where: Zone | None = None) -> None:
        """`now` and all instants are milliseconds; `where` is None for UTC with a `Z`."""
        self.now, self._where = now, where

    @property
    def note(self) -> str:
        """The line that names the zone; empty if every instant has its `Z`."""
        return "" if self._where is None else f"times in {self._where.name}"

    def moment(self, t: int | None) -> str:
        """Return an instant and its distance from now: `2026-01-01 12:00:00Z (in 5m)`."""
        return "-" if t is None else f"{self.clock(t)} ({self.distance(t)})"

    def cell(self, t: int | None, before: str = "", after: str = "") -> Cell:
        """Return an instant for a table: in full, without today's date, or as a distance only."""
        if t is None:
            return Cell((f"{before}-{after}",))
        full, away = self.clock(t), self.distance(t)
        today = self.clock(self.now)[:10]
        short = full[11:] if full.startswith(today) and self._where is not None else full
        forms = (f"{full} ({away})", f"{short} ({away})", away)
        return Cell(tuple(f"{before}{form}{after}" for form in forms))

    def distance(self, t: int) -> str:
        """Return how far an instant is from now: `5m ago`, or `in 5m`."""
        length = duration(abs(t - self.now) // 1000)
        return f"in {length}" if t > self.now else f"{length} ago"

    def clock(self, t: int) -> str:
        """Return an instant to the second."""
        text = rfc3339(t // 1000, self._where).replace("T", " ")
        return text if self._where is None else text[:19]


def duration(seconds: int) -> str:
    """Return a duration in its two largest units: `1h 5m`."""
    parts = []
    for size, unit in UNITS:
        if seconds >= size:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return " ".join(parts[:2]) or "0s"


def elapsed(started_at: int | None, finished_at: int | None) -> str:
    """Return the time between two instants in milliseconds: `350ms`, `12.4s`, `1h 5m`."""
    if started_at is None or finished_at is None:
        return "-"
    ms = max(finished_at - started_at, 0)
    if ms < 1000:
        return f"{ms}ms"
    return f"{ms / 1000:.1f}s" if ms < 60_000 else duration(ms // 1000)
