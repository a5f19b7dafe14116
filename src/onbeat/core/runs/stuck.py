"""Runs that take too long: from when on a run counts as stuck.

A schedule may say so itself (`warn_after`). Without that, its own past does: three times the 99th
percentile of its last successful runs, once there are enough of them. A stuck run is not ended, it
is reported once; `timeout` ends runs.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

MOST_LENGTHS = 100  # rows of a schedule that are looked at, the last ones
ENOUGH = 20  # successful runs among them
TIMES = 3
LEAST = 10_000  # milliseconds: what is shorter than this is not stuck by comparison


class Limit(NamedTuple):
    """How long a run may take before it counts as stuck, in milliseconds, and who says so."""

    length: int
    rule: Literal["warn_after", "p99"]


def stuck_after(warn_after: int | None, lengths: Sequence[int]) -> Limit | None:
    """Return from when on a run counts as stuck, or None if that is not known.

    `lengths` are those of the last successful runs of its schedule, in any order.
    """
    if warn_after is not None:
        return Limit(warn_after, "warn_after")
    if len(lengths) < ENOUGH:
        return None
    return Limit(max(TIMES * p99(lengths), LEAST), "p99")


def p99(lengths: Sequence[int]) -> int:
    """Return the shortest of some lengths that 99 of 100 of them do not exceed."""
    return sorted(lengths)[-(-99 * len(lengths) // 100) - 1]


def is_stuck(limit: Limit | None, *, started_at: int, now: int) -> bool:
    """Return whether a run that started then, and has not ended, counts as stuck now."""
    return limit is not None and now - started_at > limit.length
