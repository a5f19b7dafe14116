"""What clock changes do to a trigger, told beforehand: one note for each night that matters."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from onbeat.core.explain.describe import listing
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import DAY, LONGEST_SHIFT, Gap, Segment, Zone, date_of, zone
from onbeat.core.triggers.base import AllOf, Combined, Minus, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import Within, time_of_day
from onbeat.core.triggers.kinds import At, Every, OnTheWall

YEAR = 366 * DAY


class ClockChange(NamedTuple):
    """What becomes of some times on the night of a change."""

    at: int  # when they are had, or the clocks went on without them
    usual: int  # when they were had the day before
    had: bool
    told: str
    what: str


def night_notes(trigger: Trigger, first: int, last: int) -> list[str]:
    """Return a sentence for each clock change in `first <= t < last` that the trigger meets."""
    nights = _nights(trigger, first, last)
    return list(dict.fromkeys(f"{night.told}: {night.what}" for night in nights))


def _nights(trigger: Trigger, first: int, last: int) -> Iterator[ClockChange]:
    match trigger:
        case Bounded():
            for night in _nights(trigger.trigger, first, last):
                runs = len(trigger.between(first, night.at + 1)) if trigger.max_runs else 0
                if trigger.allows(night.at) and runs <= (trigger.max_runs or 0):
                    yield night
        case OpenHours():
            for night in _nights(trigger.trigger, first, last):
                if trigger.exclude is None or not trigger.exclude.closed(night.at, night.at + 1):
                    yield from _in_hours(night, trigger.within)
        case AllOf():
            for part in trigger.triggers:
                others = [other for other in trigger.triggers if other is not part]
                for night in _nights(part, first, last):
                    t = night.at if night.had else night.usual
                    if all(other.next_after(t - 1) == t for other in others):
                        yield night
        case Minus():
            for night in _nights(trigger.trigger, first, last):
                if not (night.had and trigger.without.next_after(night.at - 1) == night.at):
                    yield night
        case Combined():
            for part in trigger.parts:
                yield from _nights(part, first, last)
        case OnTheWall(pattern=pattern):
            keeps = pattern.keep_gaps and not pattern.wild
            even = pattern.wild and pattern.texts[2] == "*"
            yield from _Meeting(pattern.zone, pattern.walls, keeps, pattern.wild, even).nights(
                first, last
            )
        case Every() if not trigger.every.seconds:
            keeps = trigger.dst == "shift"
            meeting = _Meeting(
                zone(trigger.timezone), trigger.walls, keeps, repeats=False, even=False
            )
            yield from meeting.nights(first, last)
        case At():
            meeting = _Meeting(
                zone(trigger.timezone), trigger.walls, keeps=False, repeats=False, even=False
            )
            yield from meeting.nights(first, last)
        case _:
            return


def _in_hours(night: ClockChange, within: Within | None) -> Iterator[ClockChange]:
    """Yield the night if its times are in the hours; say so if only the change put them outside."""
    if within is None or within.outside == "move" or not within.closed(night.at, night.at + 1):
        yield night
    elif night.had and not within.closed(night.usual, night.usual + 1):
        yield night._replace(had=False, what="no tick, the hours being over then")


class _Meeting(NamedTuple):
    """How a trigger meets the changes of a zone."""

    zone: Zone
    walls: Callable[[int, int], list[int]]
    keeps: bool  # a time in a gap is had after it
    repeats: bool  # a time in a fold is had twice
    even: bool  # the same minutes every hour: a change by whole hours is not felt

    def nights(self, first: int, last: int) -> Iterator[ClockChange]:
        for before, after in self.zone.jumps(first, last):
            closes, opens = before.end + before.offset, after.start + after.offset
            walls = self.walls(min(closes, opens), max(closes, opens))
            if walls and not (self.even and (opens - closes) % 3600 == 0):
                yield self._night(before, after, walls)

    def _night(self, before: Segment, after: Segment, walls: list[int]) -> ClockChange:
        closes, opens = before.end + before.offset, after.start + after.offset
        times = [time_of_day(wall % DAY) for wall in walls]
        told = listing(times if len(times) <= 3 else [*times[:2], f"{len(times) - 2} more"])
        one, usual = len(times) == 1, self.zone.first_pass(walls[0] - DAY)
        where = f"in {self.zone.name} (clocks go from {_change(closes, opens)})"
        told = f"{date_of(walls[0] // DAY)}: {told}"
        if opens < closes:
            told = f"{told} happen{'s' * one} twice {where}"
            what = f"run{'s' * one} {'both times' if self.repeats else 'the first time only'}"
            at, had = walls[0] - before.offset, True
        else:
            told = f"{told} do{'es' * one} not exist {where}"
            at, had = after.start, self.keeps and opens - closes <= LONGEST_SHIFT
            what = f"{'runs' if one else 'one run'} at {rfc3339(at, self.zone)[11:]} instead"
            if opens - closes > LONGEST_SHIFT:
                what = "dropped, the change being longer than 3 hours"
            elif not had:
                what = "no tick"
        return ClockChange(at, usual.at if isinstance(usual, Gap) else usual, had, told, what)


def _change(closes: int, opens: int) -> str:
    """Return `02:00 to 03:00`, with the dates where the change leads into another day."""
    times = [time_of_day(wall % DAY) for wall in (closes, opens)]
    dates = [date_of(wall // DAY) for wall in (closes, opens)]
    if abs(opens - closes) > LONGEST_SHIFT:
        times = [f"{day} {time}" for day, time in zip(dates, times, strict=True)]
    return " to ".join(times)
