"""The matching days of a year as one integer: bit 0 is January 1.

Only fourteen kinds of year exist (leap or not, beginning on one of seven weekdays), so a set of
days without listed years is at most fourteen integers, each computed when first needed.
"""

from bisect import bisect_right
from collections.abc import Iterable
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from typing import NamedTuple

from onbeat.core.time.zones import days_before_year

ALL_MONTHS = (1 << 13) - 2  # bits 1..12
ALL_DATES = (1 << 32) - 2  # bits 1..31
ALL_WEEKDAYS = (1 << 7) - 1  # bits 0..6, Sunday is 0
LAST_YEAR = 9999


class FromEnd(NamedTuple):
    """`L` and `L-3`: a number of days before the last day of the month."""

    days: int


class Workday(NamedTuple):
    """`15W`: the workday nearest to a date, in its month; 0 is `LW`, the last workday."""

    date: int


class NthWeekday(NamedTuple):
    """`MON#2`: the n-th such weekday of the month; 0 is `5L`, the last one."""

    weekday: int
    nth: int


Special = FromEnd | Workday | NthWeekday


class Year(NamedTuple):
    """A year: its first day number, the one after its last, and its kind (of fourteen)."""

    number: int
    start: int
    end: int
    kind: int


class DaySet:
    """The matching days. With `either` the date or the weekday must match, otherwise both."""

    __slots__ = (
        "_by_kind", "dates", "either", "last_year", "months",
        "special_dates", "special_weekdays", "weekdays", "years",
    )  # fmt: skip

    def __init__(
        self,
        *,
        months: int = ALL_MONTHS,
        dates: int = ALL_DATES,
        weekdays: int = ALL_WEEKDAYS,
        special_dates: tuple[Special, ...] = (),
        special_weekdays: tuple[Special, ...] = (),
        either: bool = False,
        years: frozenset[int] | None = None,
    ) -> None:
        self.months, self.dates, self.weekdays = months, dates, weekdays
        self.special_dates, self.special_weekdays = special_dates, special_weekdays
        self.either, self.years = either, years
        self.last_year = LAST_YEAR if years is None else max(years)
        self._by_kind: list[int | None] = [None] * 14

    @property
    def never(self) -> bool:
        """Whether no day of any year matches."""
        if self.years is not None:
            return not any(self.in_year(year_of(number)) for number in self.years)
        if self.dates & _IN_EVERY_MONTH and self.weekdays:
            return False  # each such date exists, and falls on every weekday in some year
        return not any(self.in_year(year_of(number)) for number in _ONE_OF_EACH_KIND)

    @property
    def few(self) -> bool:
        """Whether so few days match that clock changes could remove all their times."""
        open_weekdays = self.dates == ALL_DATES and not self.special_weekdays
        return not open_weekdays and self.in_year(_SOME_YEAR).bit_count() <= 2

    def in_year(self, year: Year) -> int:
        """Return the matching days of a year as bits."""
        if self.years is not None and year.number not in self.years:
            return 0
        found = self._by_kind[year.kind]
        if found is None:
            found = self._by_kind[year.kind] = self._compute(year.kind)
        return found

    def count(self, first: int, last: int) -> int:
        """Return how many days match from day number `first` until before `last`."""
        total, day = 0, first
        while day < last:
            year = year_around(day)
            bits = self.in_year(year) >> day - year.start
            if last < year.end:
                bits &= (1 << last - day) - 1
            total += bits.bit_count()
            day = year.end
        return total

    def has(self, day: int) -> bool:
        """Return whether this day number matches."""
        year = year_around(day)
        return bool(self.in_year(year) >> day - year.start & 1)

    def _compute(self, kind: int) -> int:
        leap, begins_on = divmod(kind, 7)
        dates = weekdays = whole = _YEAR[leap]
        if self.dates != ALL_DATES:
            dates = _special_days(self.special_dates, leap, begins_on)
            for date in bits_of(self.dates):
                dates |= _DATES[leap][date]
        if self.weekdays != ALL_WEEKDAYS:
            week = (self.weekdays >> begins_on | self.weekdays << 7 - begins_on) & ALL_WEEKDAYS
            weekdays = week * _EVERY_WEEK & whole
            weekdays |= _special_days(self.special_weekdays, leap, begins_on)
        found = dates | weekdays if self.either else dates & weekdays
        if self.months != ALL_MONTHS:
            found &= reduce(or_, (_MONTHS[leap][month] for month in bits_of(self.months)))
        return found


def year_of(number: int) -> Year:
    """Return the year with this number."""
    start, end = days_before_year(number), days_before_year(number + 1)
    return Year(number, start, end, (start + 4) % 7 + 7 * (end - start == 366))


def year_around(day: int) -> Year:
    """Return the year that day number `day` falls in."""
    if _STARTS[0] <= day < _STARTS[-1]:
        return _YEARS[bisect_right(_STARTS, day) - 1]
    year = year_of(
        1970 + day * 400 // 146_097
    )  # by the mean length of a year: exact, or off by one
    if day < year.start:
        return year_of(year.number - 1)
    return year if day < year.end else year_of(year.number + 1)


def bits_of(number: int) -> list[int]:
    """Return the positions of the bits set in `number`, lowest first."""
    found, text = [], f"{number:b}"[::-1]
    at = text.find("1")
    while at >= 0:
        found.append(at)
        at = text.find("1", at + 1)
    return found


def lowest_bit(number: int) -> int:
    """Return the position of the lowest bit set in `number`, which is not 0."""
    return (number & -number).bit_length() - 1


def bits_from(positions: Iterable[int]) -> int:
    """Return the number with just these bits set."""
    number = 0
    for position in positions:
        number |= 1 << position
    return number


def _special_days(specials: tuple[Special, ...], leap: int, begins_on: int) -> int:
    """Return the days of a year for some specials."""
    found, starts = 0, _MONTH_STARTS[leap]
    for special in specials:
        for month in range(1, 13):
            start, length = starts[month], starts[month + 1] - starts[month]
            found |= _special_day(special, length, (begins_on + start) % 7) << start
    return found


def _special_day(special: Special, length: int, begins_on: int) -> int:
    """Return the day of a special in such a month as a bit, or 0."""
    match special:
        case FromEnd(days):
            return 1 << length - 1 - days if days < length else 0
        case NthWeekday(weekday, 0):
            return 1 << length - 1 - (begins_on + length - 1 - weekday) % 7
        case NthWeekday(weekday, nth):
            day = (weekday - begins_on) % 7 + 7 * (nth - 1)
            return 1 << day if day < length else 0
        case Workday(wanted):
            if wanted > length:
                return 0
            day = (wanted or length) - 1
            weekday = (begins_on + day) % 7
            if weekday == 6:
                day += -1 if day > 0 else 2
            elif weekday == 0:
                day += 1 if day < length - 1 else -2
            return 1 << day


def _month_starts(february: int) -> tuple[int, ...]:
    lengths = (31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return (0, 0, *accumulate(lengths))  # of month 1..13 at [1]..[13]


# Index 0 is a common year, index 1 a leap year: the starts of the months, and as bits the whole
# year, the days of months 1..12, and the days with date 1..31.
_MONTH_STARTS = (_month_starts(28), _month_starts(29))
_YEAR = ((1 << 365) - 1, (1 << 366) - 1)
_MONTHS = [[0, *((1 << b) - (1 << a) for a, b in pairwise(starts[1:]))] for starts in _MONTH_STARTS]
_DATES = [
    [0, *(bits_from(a + d for a, b in pairwise(starts[1:]) if a + d < b) for d in range(31))]
    for starts in _MONTH_STARTS
]
_EVERY_WEEK = bits_from(range(0, 366, 7))
_IN_EVERY_MONTH = (1 << 29) - 2
_ONE_OF_EACH_KIND = range(2000, 2028)  # 28 years in a row without a century hold all fourteen

_YEARS = [year_of(number) for number in range(1900, 2201)]  # the usual range, computed in advance
_STARTS = [year.start for year in _YEARS]
_SOME_YEAR = year_of(2026)
