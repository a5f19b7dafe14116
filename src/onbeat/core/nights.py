"""What clock changes do to a trigger, told beforehand: one note for each night that matters."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from onbeat.core.calendars import time_of_day
from onbeat.core.instants import rfc3339
from onbeat.core.limits import Limited, Open
from onbeat.core.ticks import Combined, Trigger
from onbeat.core.triggers import Every, OnTheWall
from onbeat.core.words import listing
from onbeat.core.zones import DAY, LONGEST_SHIFT, Zone, date_of, zone

YEAR = 366 * DAY


def night_notes(trigger: Trigger, first: int, last: int) -> list[str]:
    """Return a sentence for each clock change in `first <= t < last` that the trigger meets."""
    return list(dict.fromkeys(_notes(trigger, first, last)))


def _notes(trigger: Trigger, first: int, last: int) -> Iterator[str]:
    match trigger:
        case Limited() | Open():
            yield from _notes(trigger.trigger, first, last)
        case Combined():
            for part in trigger.parts:
                yield from _notes(part, first, last)
        case OnTheWall(pattern=pattern):
            keeps = pattern.keep_gaps and not pattern.wild
            even = pattern.wild and pattern.texts[2] == "*"
            met = _Met(pattern.zone, pattern.walls, keeps=keeps, repeats=pattern.wild, even=even)
            yield from _nights(met, first, last)
        case Every() if not trigger.every.seconds:
            keeps = trigger.dst == "shift"
            met = _Met(
                zone(trigger.timezone), trigger.walls, keeps=keeps, repeats=False, even=False
            )
            yield from _nights(met, first, last)
        case _:
            return


class _Met(NamedTuple):
    """How a trigger meets clock changes."""

    zone: Zone
    walls: Callable[[int, int], list[int]]
    keeps: bool  # a time in a gap runs after it
    repeats: bool  # a time in a fold runs twice
    even: bool  # the same minutes every hour: a change by whole hours is not felt


def _nights(met: _Met, first: int, last: int) -> Iterator[str]:
    for before, after in met.zone.jumps(first, last):
        closes, opens = before.end + before.offset, after.start + after.offset
        walls = met.walls(min(closes, opens), max(closes, opens))
        if walls and not (met.even and (opens - closes) % 3600 == 0):
            yield _night(met, closes, opens, walls, rfc3339(after.start, met.zone))


def _night(met: _Met, closes: int, opens: int, walls: list[int], resumes: str) -> str:
    """Say what becomes of these wall times, which the clock shows twice or never."""
    times = [_clock(wall) for wall in walls]
    told = listing(times if len(times) <= 3 else [*times[:2], f"{len(times) - 2} more"])
    one = len(times) == 1
    night = f"{date_of(walls[0] // DAY)}: {told}"
    change = f"in {met.zone.name} (clocks go from {_clock(closes)} to {_clock(opens)})"
    if opens < closes:
        when = "both times" if met.repeats else "the first time only"
        what = f"run{'s' * one} {when}"
        return f"{night} happen{'s' * one} twice {change}: {what}"
    if opens - closes > LONGEST_SHIFT:
        what = "dropped, the change being longer than 3 hours"
    elif met.keeps:
        what = f"{'runs' if one else 'one run'} at {resumes[11:]} instead"
    else:
        what = "no tick"
    return f"{night} do{'es' * one} not exist {change}: {what}"


def _clock(wall: int) -> str:
    return time_of_day(wall % DAY)
