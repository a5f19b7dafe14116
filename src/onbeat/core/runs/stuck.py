"""Stuck runs: how long a run may take before it is reported as stuck.

A schedule can set the limit itself (`warn_after`). Otherwise it is three times the 99th percentile
of its last successful runs, once there are enough of them. A stuck run is reported once and is not
canceled; `timeout` cancels runs.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

MOST_LENGTHS = 100  # the last rows of a schedule that are considered
ENOUGH = 20  # successful runs needed among them
TIMES = 3
LEAST = 10_000  # milliseconds: the least limit that is derived from past runs


class Limit(NamedTuple):
    """How long a run may take before it is stuck, in milliseconds, and by which rule."""

    length: int
    rule: Literal["warn_after", "p99"]


def stuck_after(warn_after: int | None, lengths: Sequence[int]) -> Limit | None:
    """Return the limit after which a run is stuck, or None if too few runs are known.

    `lengths` are the durations of the last successful runs of its schedule, in any order.
    """
    if warn_after is not None:
        return Limit(warn_after, "warn_after")
    if len(lengths) < ENOUGH:
        return None
    return Limit(max(TIMES * p99(lengths), LEAST), "p99")


def p99(lengths: Sequence[int]) -> int:
    """Return the 99th percentile of these lengths."""
    return sorted(lengths)[-(-99 * len(lengths) // 100) - 1]


def is_stuck(limit: Limit | None, *, started_at: int, now: int) -> bool:
    """Return whether an unfinished run that started at `started_at` is stuck now."""
    return limit is not None and now - started_at > limit.length
