"""The difference between two definitions: ticks gained and lost, and fields that differ.

Ticks are compared day by day as bits, so that a schedule with a tick every second is as fast as any
other.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from onbeat.core.schedule import Schedule, definition
from onbeat.core.time.days import lowest_bit
from onbeat.core.time.zones import DAY
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.past import NO_PAST, Past

WEEK = 7 * DAY
FEW = 3  # ticks gained, and ticks lost, that are listed


class TickDifference(NamedTuple):
    """The ticks that an edit adds and removes."""

    gained: int = 0
    lost: int = 0
    first_gained: tuple[int, ...] = ()
    first_lost: tuple[int, ...] = ()
    is_known: bool = True  # False: ticks that follow runs are not included


class Difference(NamedTuple):
    """A field that differs, such as `run.command[1]`. LEFT_OUT means its default."""

    field: str
    old: object
    new: object


LEFT_OUT = msgspec.UNSET


def tick_difference(
    old: Schedule | None,
    new: Schedule | None,
    *,
    now: int,
    past: Past = NO_PAST,
    horizon: int = WEEK,
) -> TickDifference:
    """Return the difference of ticks in the `horizon` of seconds after `now` in milliseconds.

    A schedule that is None or disabled has no ticks. `past` is that of the old schedule.
    """
    before, after = _trigger_of(old), _trigger_of(new)
    is_known = not any(each is not None and each.needs_past for each in (before, after))
    if before == after:
        return TickDifference(is_known=is_known)
    first = now // 1000 + 1
    gained = lost = 0
    first_gained: list[int] = []
    first_lost: list[int] = []
    for begins, was, will_be in _days(before, after, past, first, first + horizon):
        more, less = will_be & ~was, was & ~will_be
        gained, lost = gained + more.bit_count(), lost + less.bit_count()
        first_gained += [begins + bit for bit in _lowest(more, FEW - len(first_gained))]
        first_lost += [begins + bit for bit in _lowest(less, FEW - len(first_lost))]
    return TickDifference(gained, lost, tuple(first_gained), tuple(first_lost), is_known)


def differences(old: Schedule | None, new: Schedule | None) -> list[Difference]:
    """Return the fields in which two definitions differ, in their order."""
    return differing(_fields(old), _fields(new))


def differing(old: object, new: object, field: str = "") -> list[Difference]:
    """Return where two plain values differ, as deep as both have the same shape."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        dot = "." if field else ""
        pairs = [
            (f"{field}{dot}{name}", old.get(name, LEFT_OUT), new.get(name, LEFT_OUT))
            for name in dict.fromkeys([*old, *new])
        ]
        return [found for name, a, b in pairs for found in differing(a, b, name)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{field}[{i}]", *both) for i, both in enumerate(zip(old, new, strict=True))]
        return [found for name, a, b in pairs for found in differing(a, b, name)]
    is_same = type(old) is type(new) and old == new  # 1 is not true, and not 1.0
    return [] if is_same else [Difference(field, old, new)]


def _fields(schedule: Schedule | None) -> object:
    return {} if schedule is None else msgspec.json.decode(definition(schedule))


def _trigger_of(schedule: Schedule | None) -> Trigger | None:
    """Return the trigger of a schedule, or None if it is disabled."""
    if schedule is None or not (schedule.policy.enabled and schedule.target.is_enabled):
        return None
    return schedule.trigger


def _days(
    before: Trigger | None, after: Trigger | None, past: Past, first: int, last: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the start of each day and the ticks of it, before and after, as bits."""
    old, new = (_bits(trigger, past, first, last) for trigger in (before, after))
    yield from zip(range(first, last, DAY), old, new, strict=True)


def _bits(trigger: Trigger | None, past: Past, first: int, last: int) -> Iterator[int]:
    left = None if trigger is None else trigger.runs_left(past)
    for begins in range(first, last, DAY):
        ends = min(begins + DAY, last)
        bits = 0 if trigger is None else trigger.bits(begins, ends, past)
        if left is not None:  # each tick is assumed to start, up to `max_runs`
            bits = sum(1 << bit for bit in _lowest(bits, left)) if bits.bit_count() > left else bits
            left -= bits.bit_count()
        yield bits


def _lowest(bits: int, n: int) -> list[int]:
    """Return the numbers of the lowest `n` bits that are set."""
    found: list[int] = []
    while bits and len(found) < n:
        found.append(lowest_bit(bits))
        bits &= bits - 1
    return found
