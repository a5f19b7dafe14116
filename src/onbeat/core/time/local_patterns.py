"""Patterns of local time: which seconds of a zone's local time match, found by shifting bits.

A pattern is its days (a `DaySet`), the minutes of a day as 1440 bits and the seconds of a minute
as 60 bits. The rule for clock changes is that of Debian's cron, coalesced:

- a *wild* pattern has a tick at every real instant that matches in wall time: at both passes of a
  fold, none in a gap;
- a *fixed* pattern has a tick for every matching wall time, at the first instant at which the clock
  reaches or passes it: the first pass of a fold, the end of a gap. Times in a gap of more than
  three hours (a skipped day) are dropped.

Equal instants are one tick. The answer depends on `t` alone: `_window` only caches the range of one
offset and one year in which the last answer was found.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from onbeat.core.time.days import (
    LAST_YEAR,
    DaySet,
    Year,
    bits_from,
    bits_of,
    lowest_bit,
    year_around,
)
from onbeat.core.time.zones import (
    DAY,
    FIRST_SECOND,
    LAST_SECOND,
    LONGEST_SHIFT,
    Segment,
    Zone,
    days_before_year,
)

CYCLE = 401 * 366 * DAY  # the calendar, and with it every yearly rule, repeats after 400 years
RULES_ONLY = days_before_year(2100) * DAY  # from here on every zone changes by its rule only
NEVER = (days_before_year(LAST_YEAR + 1) + 800) * DAY  # a wall time after every other


class LocalRange(NamedTuple):
    """Wall times `first <= w < last` under one offset.

    With `after_gap` the instant of `first` is a tick although its wall time does not match: it is
    the tick of the wall times in the gap before it.
    """

    first: int
    last: int
    offset: int
    after_gap: bool


class WallPattern:
    """The compiled form of cron, calendar and daily. `texts` are its seven fields, as parsed."""

    __slots__ = (
        "_day_bits", "_day_starts", "_last", "_second", "_window",
        "days", "keep_gaps", "minutes", "seconds", "texts", "wild", "zone",
    )  # fmt: skip

    def __init__(
        self,
        zone: Zone,
        days: DaySet,
        *,
        minutes: int,
        seconds: int,
        wild: bool,
        keep_gaps: bool,
        texts: tuple[str, ...],
    ) -> None:
        self.zone, self.days, self.texts = zone, days, texts
        self.minutes, self.seconds = minutes, seconds
        self.wild, self.keep_gaps = wild, keep_gaps
        self._second = lowest_bit(seconds)
        self._day_starts = lowest_bit(minutes) * 60  # the second is part of the window's base
        self._window = (0, 0, 0, 0)  # lo <= t < hi, the instant the year began, its days
        self._last: tuple[int | None, int | None] = (
            None,
            None,
        )  # the last argument of `look`, and its result
        self._day_bits: int | None = None

    def next_after(self, t: int) -> int | None:
        """Return the first tick later than `t`, or None when the calendar ends before one."""
        lo, hi, base, days = self._window
        if lo <= t < hi:
            minute = (t - base) // 60 + 1  # of the year
            day = minute // 1440
            if days >> day & 1 and (rest := self.minutes >> minute - day * 1440):
                tick = base + (minute + (rest & -rest).bit_length() - 1) * 60
            elif left := days >> day + 1:
                tick = base + (day + (left & -left).bit_length()) * DAY + self._day_starts
            else:
                return self._search(t)
            if tick < hi:
                return tick
        return self._search(t)

    def look(self, t: int) -> int | None:
        """Return the same as `next_after`, cached for schedules that are due together."""
        last_t, tick = self._last
        if t != last_t:
            tick = self.next_after(t)
            self._last = (t, tick)
        return tick

    def ticks(self, first: int, last: int) -> Iterator[list[int]]:
        """Yield the ticks in `first <= t < last` in order, in lists of one day at most."""
        minutes, seconds = [60 * minute for minute in bits_of(self.minutes)], bits_of(self.seconds)
        times = [minute + second for minute in minutes for second in seconds]
        for part in self._ranges(first, last):
            if part.after_gap:
                yield [part.first - part.offset]
            first_day, last_day = part.first // DAY, (part.last - 1) // DAY
            for day in self._days_between(first_day, last_day):
                begins = day * DAY
                found = times
                if day in (first_day, last_day):
                    a, b = (
                        bisect_left(times, part.first - begins),
                        bisect_left(times, part.last - begins),
                    )
                    found = times[a:b]
                base = begins - part.offset
                yield [base + time for time in found]

    def count(self, first: int, last: int) -> int:
        """Return how many ticks there are in `first <= t < last`, without listing them."""
        return sum(
            self._count_walls(part.first, part.last) + part.after_gap
            for part in self._ranges(first, last)
        )

    def bits(self, first: int, last: int) -> int:
        """Return the ticks in `first <= t < last`, a day or two, as bits: bit 0 is `first`."""
        found = 0
        for part in self._ranges(first, last):
            shift = first + part.offset
            if part.after_gap:
                found |= 1 << part.first - shift
            for day in self._days_between(part.first // DAY, (part.last - 1) // DAY):
                begins = max(part.first - day * DAY, 0)
                ends = min(part.last - day * DAY, DAY)
                bits = (self._bits_of_day() & (1 << ends) - 1) >> begins
                found |= bits << begins + day * DAY - shift
        return found

    def walls(self, first: int, last: int) -> list[int]:
        """Return the matching wall times `first <= w < last`, ignoring clock changes."""
        found, wall = [], self._next_wall(first)[0]
        while wall < last:
            found.append(wall)
            wall = self._next_wall(wall + 1)[0]
        return found

    def _search(self, t: int) -> int | None:
        """Find the first tick later than any `t`, across years and clock changes."""
        if t.__class__ is not int:
            raise TypeError(f"{t!r} is not in whole seconds")
        if not FIRST_SECOND <= t < LAST_SECOND:
            if t >= LAST_SECOND:
                return None
            t = FIRST_SECOND
        segment = self.zone.segment(t)
        wall = t + segment.offset + 1
        while True:
            if not self.wild and wall < segment.seen:
                wall = segment.seen
            found, year = self._next_wall(wall)
            closes = segment.end + segment.offset
            if found < closes:
                return self._remember(found, year, segment)
            if segment.end > min(max(t, RULES_ONLY) + CYCLE, LAST_SECOND):
                return None
            following = self.zone.segment(segment.end)
            opens = following.start + following.offset
            if found == NEVER and opens >= days_before_year(self.days.last_year + 1) * DAY:
                return None
            if not self.wild and found < opens and self._keeps(opens - closes):
                return following.start
            if found < NEVER and wall <= opens and found - 3 * DAY > following.end:
                following = self.zone.segment(found - 3 * DAY)  # no day until then matches
                opens = following.start + following.offset
            segment, wall = following, opens

    def _remember(self, wall: int, year: Year, segment: Segment) -> int | None:
        """Return the tick at `wall`, and cache the window that contains it."""
        start, end, offset, seen = segment
        lo, hi = year.start * DAY - offset, year.end * DAY - offset
        base = lo + self._second
        lo = max(lo, start)
        if not self.wild and lo < seen - offset - 1:
            lo = seen - offset - 1
        hi = min(hi, end)
        if hi > LAST_SECOND:
            hi = LAST_SECOND + 1
        self._window = (lo, hi, base, self.days.in_year(year))
        tick = wall - offset
        return tick if tick <= LAST_SECOND else None

    def _next_wall(self, wall: int) -> tuple[int, Year]:
        """Return the first matching wall time at or after `wall`, or NEVER, and its year.

        Clock changes are ignored.
        """
        day, second = divmod(wall, DAY)
        year = year_around(day)
        left = self.days.in_year(year) >> day - year.start
        if left & 1:
            found = self._next_in_day(second)
            if found is not None:
                return day * DAY + found, year
            left -= 1
        while not left:
            if year.number >= self.days.last_year:
                return NEVER, year
            day = year.end
            year = year_around(day)
            left = self.days.in_year(year)
        day += (left & -left).bit_length() - 1
        return day * DAY + self._day_starts + self._second, year

    def _bits_of_day(self) -> int:
        if self._day_bits is None:
            minute, none = f"{self.seconds:060b}", "0" * 60
            text = "".join(minute if bit == "1" else none for bit in f"{self.minutes:01440b}")
            self._day_bits = int(text, 2)
        return self._day_bits

    def _next_in_day(self, second: int) -> int | None:
        minute, second = divmod(second, 60)
        rest = self.minutes >> minute
        if rest & 1 and (found := self.seconds >> second):
            return minute * 60 + second + lowest_bit(found)
        if rest := rest >> 1:
            return (minute + 1 + lowest_bit(rest)) * 60 + self._second
        return None

    def _ranges(self, first: int, last: int) -> Iterator[LocalRange]:
        """Yield the ranges of wall time in which each match is a tick in `first <= t < last`."""
        first, last = max(first, FIRST_SECOND), min(last, LAST_SECOND + 1)
        segment = self.zone.segment(first - 1)
        while True:
            begins, ends = first + segment.offset, min(segment.end, last) + segment.offset
            if not self.wild:
                begins = max(begins, segment.seen)
            after_gap = first == segment.start and self._has_tick_of_gap(segment)
            if begins < ends or after_gap:
                yield LocalRange(begins, max(begins, ends), segment.offset, after_gap)
            if segment.end >= last:
                return
            first = max(first, segment.end)
            segment = self.zone.segment(segment.end)

    def _has_tick_of_gap(self, segment: Segment) -> bool:
        if self.wild:
            return False
        before = self.zone.segment(segment.start - 1)
        closes, opens = before.end + before.offset, segment.start + segment.offset
        if not opens - closes > 0 or not self._keeps(opens - closes):
            return False
        return self._next_wall(segment.seen)[0] < opens != self._next_wall(opens)[0]

    def _keeps(self, gap: int) -> bool:
        return self.keep_gaps and gap <= LONGEST_SHIFT

    def _days_between(self, first: int, last: int) -> Iterator[int]:
        """Yield the matching day numbers `first <= day <= last`."""
        while first <= last:
            year = year_around(first)
            if year.number > self.days.last_year:
                return
            for bit in bits_of(self.days.in_year(year) >> first - year.start):
                if first + bit > last:
                    return
                yield first + bit
            first = year.end

    def _count_walls(self, first: int, last: int) -> int:
        if first >= last:
            return 0
        first_day, from_second = divmod(first, DAY)
        last_day, until_second = divmod(last, DAY)
        total = (
            self.days.count(first_day, last_day)
            * self.minutes.bit_count()
            * self.seconds.bit_count()
        )
        if self.days.has(first_day):
            total -= self._count_in_day(from_second)
        if until_second and self.days.has(last_day):
            total += self._count_in_day(until_second)
        return total

    def _count_in_day(self, until: int) -> int:
        minute, second = divmod(until, 60)
        whole = (self.minutes & (1 << minute) - 1).bit_count() * self.seconds.bit_count()
        partly = (self.seconds & (1 << second) - 1).bit_count() if self.minutes >> minute & 1 else 0
        return whole + partly


class SecondsPattern(WallPattern):
    """A pattern with several seconds in a minute."""

    __slots__ = ()

    def next_after(self, t: int) -> int | None:
        """Return the first tick later than `t`, or None when the calendar ends before one."""
        lo, hi, base, days = self._window
        if lo <= t < hi:
            minute, second = divmod(t - base + self._second + 1, 60)
            day, minute = divmod(minute, 1440)
            if days >> day & 1 and self.minutes >> minute & 1 and (found := self.seconds >> second):
                second += lowest_bit(found) - self._second
                tick = base + day * DAY + minute * 60 + second
                if tick < hi:
                    return tick
        return self._search(t)


def minutes_of_day(hours: int, minutes: int) -> int:
    """Return the 1440 bits of a day for these hours (24 bits) and minutes (60 bits)."""
    return minutes * _hour_starts(hours)


@lru_cache(maxsize=1024)
def _hour_starts(hours: int) -> int:
    return bits_from(60 * hour for hour in bits_of(hours))
