"""The effect of clock changes on a trigger: one note for each relevant night."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from onbeat.core.explain.describe import listing
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import DAY, LONGEST_SHIFT, Gap, Segment, Zone, date_of, zone
from onbeat.core.triggers.base import AllOf, Combined, Minus, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import Within, time_of_day
from onbeat.core.triggers.kinds import At, Every, LocalPatternTrigger

YEAR = 366 * DAY


class ClockChange(NamedTuple):
    """The effect of a clock change on some times of a trigger."""

    at: int  # the instant of the ticks, or of the change if they are dropped
    usual: int  # the instant of the ticks on the day before
    ticks: bool  # whether the times are ticks
    times: str  # the times and the change, as text
    effect: str


def clock_change_notes(trigger: Trigger, first: int, last: int) -> list[str]:
    """Return a sentence for each clock change in `first <= t < last` that affects the trigger."""
    nights = _nights(trigger, first, last)
    return list(dict.fromkeys(f"{night.times}: {night.effect}" for night in nights))


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
                    t = night.at if night.ticks else night.usual
                    if all(other.next_after(t - 1) == t for other in others):
                        yield night
        case Minus():
            for night in _nights(trigger.trigger, first, last):
                if not (night.ticks and trigger.without.next_after(night.at - 1) == night.at):
                    yield night
        case Combined():
            for part in trigger.parts:
                yield from _nights(part, first, last)
        case LocalPatternTrigger(pattern=pattern):
            keeps = pattern.keep_gaps and not pattern.wild
            even = pattern.wild and pattern.texts[2] == "*"
            yield from _Rule(pattern.zone, pattern.walls, keeps, pattern.wild, even).nights(
                first, last
            )
        case Every() if not trigger.every.seconds:
            keeps = trigger.dst == "shift"
            rule = _Rule(zone(trigger.timezone), trigger.walls, keeps, repeats=False, even=False)
            yield from rule.nights(first, last)
        case At():
            rule = _Rule(
                zone(trigger.timezone), trigger.walls, keeps=False, repeats=False, even=False
            )
            yield from rule.nights(first, last)
        case _:
            return


def _in_hours(night: ClockChange, within: Within | None) -> Iterator[ClockChange]:
    """Yield the night if its times are in the hours, or if only the change moves them outside."""
    if within is None or within.outside == "move" or not within.closed(night.at, night.at + 1):
        yield night
    elif night.ticks and not within.closed(night.usual, night.usual + 1):
        yield night._replace(ticks=False, effect="no tick, since it is outside the hours then")


class _Rule(NamedTuple):
    """How a trigger handles the clock changes of a zone."""

    zone: Zone
    walls: Callable[[int, int], list[int]]
    keeps: bool  # a time in a gap ticks after it
    repeats: bool  # a time in a fold ticks twice
    even: bool  # the same minutes every hour: a change by whole hours has no effect

    def nights(self, first: int, last: int) -> Iterator[ClockChange]:
        for before, after in self.zone.jumps(first, last):
            closes, opens = before.end + before.offset, after.start + after.offset
            walls = self.walls(min(closes, opens), max(closes, opens))
            if walls and not (self.even and (opens - closes) % 3600 == 0):
                yield self._night(before, after, walls)

    def _night(self, before: Segment, after: Segment, walls: list[int]) -> ClockChange:
        closes, opens = before.end + before.offset, after.start + after.offset
        times = [time_of_day(wall % DAY) for wall in walls]
        text = listing(times if len(times) <= 3 else [*times[:2], f"{len(times) - 2} more"])
        one, usual = len(times) == 1, self.zone.first_pass(walls[0] - DAY)
        where = f"in {self.zone.name} (clocks go from {_change(closes, opens)})"
        text = f"{date_of(walls[0] // DAY)}: {text}"
        if opens < closes:
            text = f"{text} happen{'s' * one} twice {where}"
            effect = f"run{'s' * one} {'both times' if self.repeats else 'the first time only'}"
            at, ticks = walls[0] - before.offset, True
        else:
            text = f"{text} do{'es' * one} not exist {where}"
            at, ticks = after.start, self.keeps and opens - closes <= LONGEST_SHIFT
            effect = f"{'runs' if one else 'one run'} at {rfc3339(at, self.zone)[11:]} instead"
            if opens - closes > LONGEST_SHIFT:
                effect = "dropped, since the change is longer than 3 hours"
            elif not ticks:
                effect = "no tick"
        usual_at = usual.at if isinstance(usual, Gap) else usual
        return ClockChange(at, usual_at, ticks, text, effect)


def _change(closes: int, opens: int) -> str:
    """Return `02:00 to 03:00`, with dates if the change skips to another day."""
    times = [time_of_day(wall % DAY) for wall in (closes, opens)]
    dates = [date_of(wall // DAY) for wall in (closes, opens)]
    if abs(opens - closes) > LONGEST_SHIFT:
        times = [f"{day} {time}" for day, time in zip(dates, times, strict=True)]
    return " to ".join(times)
