"""Backfills: which past ticks can still be run, and with which row."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import Reason

WhyNot = Literal["ran", "waits", "canceled", "undecided", "forgotten"]
REFUSALS: dict[WhyNot, str] = {
    "ran": "it ran, or another run covered it",
    "waits": "it is enqueued or running",
    "canceled": "it was canceled",
    "undecided": "it is not decided yet",
    "forgotten": "its history was pruned: whether it ran is not known",
}


class CoveringRow(msgspec.Struct, frozen=True, gc=False):
    """The row of a tick, or of a range of ticks."""

    run_id: int
    run_at: int
    first_run_at: int | None
    tick_count: int
    status: Status
    reason: Reason | None
    revision: int = 0  # of the definition by which it was decided

    @property
    def first(self) -> int:
        return self.run_at if self.first_run_at is None else self.first_run_at


class Revive(msgspec.Struct, frozen=True, gc=False):
    """Enqueue the existing row of a skipped tick again, with the same key."""

    run_at: int
    row: CoveringRow


class Add(msgspec.Struct, frozen=True, gc=False):
    """Create a row for a tick that has none, or that shares one with other ticks."""

    run_at: int
    shared: CoveringRow | None = None


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Refuse to backfill a tick."""

    run_at: int
    why: WhyNot
    run_id: int | None = None


Choice = Revive | Add | Refuse


def decide_backfill(
    ticks: Iterable[int], rows: Sequence[CoveringRow], *, until: int, unknown: tuple[int, int]
) -> list[Choice]:
    """Decide about each tick. The row of the tick itself has precedence over a range.

    Every tick up to `until` is decided. Between the two instants of `unknown` history was pruned.
    """
    own = {row.run_at: row for row in rows}
    ranges = [row for row in rows if row.first_run_at is not None]
    found: list[Choice] = []
    for tick in ticks:
        row = own.get(tick)
        shared = next((each for each in ranges if each.first <= tick < each.run_at), None)
        if tick > until:
            found.append(Refuse(tick, "undecided"))
        elif row is not None:
            refused = _refused(tick, row)
            found.append(refused or Revive(tick, row))
        elif shared is not None:
            refused = _refused(tick, shared)
            found.append(refused or Add(tick, shared))
        elif unknown[0] < tick < unknown[1]:
            found.append(Refuse(tick, "forgotten"))
        else:
            found.append(Add(tick))
    return found


def _refused(tick: int, row: CoveringRow) -> Refuse | None:
    match row.status:
        case Status.SKIPPED:
            return None
        case Status.CANCELED:
            return Refuse(tick, "canceled", row.run_id)
        case Status.ENQUEUED | Status.STARTED:
            return Refuse(tick, "waits", row.run_id)
        case Status.SUCCESS | Status.FAILED:
            return Refuse(tick, "ran", row.run_id)
