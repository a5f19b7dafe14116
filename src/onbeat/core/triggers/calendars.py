"""Closed times, in which a trigger has no ticks: excluded days, or times outside allowed hours.

Both `Exclude` and `Within` implement `closed(first, last)`: the closed spans of that range, in
order and disjoint.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from onbeat.core.time import cron
from onbeat.core.time.days import LAST_YEAR, year_around
from onbeat.core.time.instants import canonical_time, resolve
from onbeat.core.time.zones import DAY, END_OF_TIME, Zone, day_number, zone
from onbeat.errors import InvalidSchedule, in_field, quote_value

MOST_ITEMS = 10_000
MOST_HOURS = 24

Calendars = Mapping[str, tuple[str, ...]]  # by name: the items of `exclude` in a calendar
NO_CALENDARS: Calendars = {}


class Span(NamedTuple):
    """The instants `first <= t < last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Exclude:
    """`exclude: [2026-12-25, 12-31, 2026-07-01..2026-07-14, company]`: whole days, or spans.

    An item is a date, a date of every year, two dates or times with `..` between them (the last
    date is included), or the name of one of the `calendars`.
    """

    items: tuple[str, ...]
    timezone: str = "UTC"
    calendars: Calendars = field(default_factory=lambda: NO_CALENDARS, repr=False, compare=False)
    _spans: tuple[Span, ...] = field(init=False, repr=False)
    _yearly: frozenset[tuple[str, str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where, spans, yearly = zone(self.timezone), [], set()
        for item in _resolve_names(self.items, self.calendars):
            if _YEARLY.fullmatch(item):
                yearly.add(_yearly_days(item))
            else:
                spans.append(_span(item, where))
        object.__setattr__(self, "_spans", tuple(_merged(spans)))
        object.__setattr__(self, "_yearly", frozenset(yearly))
        object.__setattr__(self, "calendars", NO_CALENDARS)

    def closed_until(self, t: int) -> int | None:
        """Return an instant until which everything from `t` on is closed, or None if `t` is not."""
        i = bisect_right(self._spans, (t, END_OF_TIME)) - 1
        if i >= 0 and t < self._spans[i].last:
            return self._spans[i].last
        if not self._yearly:
            return None
        where = zone(self.timezone)
        year = year_around((t + where.offset(t)) // DAY).number
        for pair in (
            _in_year(y, *days) for days in self._yearly for y in (year - 1, year) if y > 0
        ):
            span = _day_span(where, *pair) if pair is not None else None
            if span is not None and span.first <= t < span.last:
                return span.last
        return None

    def closed(self, first: int, last: int) -> list[Span]:
        """Return the closed spans of `first <= t < last`."""
        i = max(bisect_right(self._spans, (first, first)) - 1, 0)
        found = []
        while i < len(self._spans) and self._spans[i].first < last:
            found.append(self._spans[i])
            i += 1
        if self._yearly:
            where = zone(self.timezone)
            since, until = year_around(first // DAY).number - 1, year_around(last // DAY).number
            for year in range(max(since, 1), min(until, LAST_YEAR - 1) + 1):
                days = (_in_year(year, *yearly) for yearly in self._yearly)
                found += [_day_span(where, *pair) for pair in days if pair is not None]
        return clipped(found, first, last)


@dataclass(frozen=True, slots=True)
class Within:
    """`within: 09:00-17:00`, on `days`: when ticks are allowed. Others are skipped or moved.

    The end is not included. `22:00-06:00` ends on the next day.
    """

    hours: tuple[str, ...]
    days: str = "*"
    outside: Literal["skip", "move"] = "skip"
    timezone: str = "UTC"
    _ranges: tuple[Span, ...] = field(init=False, repr=False, compare=False)
    _weekdays: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.outside not in ("skip", "move"):
            raise InvalidSchedule(
                "within.outside",
                f"{quote_value(self.outside)} is not a valid value",
                hint="skip or move",
            )
        if not 1 <= len(self.hours) <= MOST_HOURS:
            hint = f'1 to {MOST_HOURS} such as "09:00-17:00"'
            raise InvalidSchedule("within.hours", f"{len(self.hours)} ranges", hint=hint)
        ranges = sorted(_hours(text) for text in self.hours)
        object.__setattr__(self, "hours", tuple(map(_hours_text, ranges)))
        object.__setattr__(self, "_ranges", tuple(ranges))
        typed = self.days
        object.__setattr__(self, "days", typed.upper())
        try:
            weekdays = cron.parse_field(cron.DAY_OF_WEEK, self.days)
        except InvalidSchedule as refused:
            quoting = cron.as_typed(refused, typed)
            raise InvalidSchedule("within.days", quoting.problem, hint=refused.hint) from None
        if weekdays.specials:
            raise InvalidSchedule(
                "within.days",
                f"{quote_value(typed)} is not a list of weekdays",
                hint="such as MON-FRI",
            )
        object.__setattr__(self, "_weekdays", weekdays.bits)

    def closed_until(self, t: int) -> int | None:
        """Return the next opening, if `t` is closed."""
        where, today = zone(self.timezone), t // DAY
        for day in range(today - 3, today + 10):
            if self._weekdays >> (day + 4) % 7 & 1:
                for opens, closes in self._ranges:
                    begins = where.reached(day * DAY + opens)
                    if begins > t:
                        return begins
                    if t < where.reached(day * DAY + closes):
                        return None
        raise AssertionError("every week has an opening")

    def closed(self, first: int, last: int) -> list[Span]:
        """Return the closed spans of `first <= t < last`."""
        where, found, opened_until = zone(self.timezone), [], first
        for day in range(first // DAY - 3, last // DAY + 3):
            if not self._weekdays >> (day + 4) % 7 & 1:
                continue
            for opens, closes in self._ranges:
                begins, ends = (
                    where.reached(day * DAY + opens),
                    where.reached(day * DAY + closes),
                )
                if begins > opened_until:
                    found.append(Span(opened_until, begins))
                opened_until = max(opened_until, ends)
        found.append(Span(opened_until, last))
        return clipped(found, first, last)


def clipped(spans: Iterable[Span], first: int, last: int) -> list[Span]:
    """Return the parts of `spans` in `first <= t < last`, merged and in order."""
    return _merged(Span(max(a, first), min(b, last)) for a, b in spans)


def parse_time_of_day(value: object) -> int:
    """Return the second of the day for `17:00` or `17:00:30`."""
    parts = (
        value.split(":") if isinstance(value, str) and value.isascii() and len(value) <= 8 else []
    )
    if len(parts) not in (2, 3) or not all(part.isdigit() and len(part) <= 2 for part in parts):
        raise InvalidSchedule(
            "", f"{quote_value(value)} is not a time of day", hint='such as "17:00", in quotes'
        )
    hour, minute, second = (*map(int, parts), 0)[:3]
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidSchedule(
            "", f"{quote_value(value)} is not a time of day", hint="00:00 to 23:59"
        )
    return hour * 3600 + minute * 60 + second


def time_of_day(second: int) -> str:
    """Return a second of the day as `17:00`, with seconds unless they are 0."""
    text = f"{second // 3600:02}:{second // 60 % 60:02}"
    return f"{text}:{second % 60:02}" if second % 60 else text


DATES = "2026-12-25, 12-25, 2026-12-24..2026-12-31, or the name of a calendar"
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_YEARLY = re.compile(r"\d\d-\d\d(?:\.\.\d\d-\d\d)?", re.ASCII)


def _resolve_names(items: Iterable[str], calendars: Calendars) -> list[str]:
    found: list[str] = []
    for item in items:
        if not isinstance(item, str):
            hint = DATES
            if isinstance(item, Mapping) and item.keys() & {"ics", "holidays"}:
                hint = "calendars: {closed: {ics: dates.ics}}, and here exclude: closed"
            raise InvalidSchedule("exclude", f"{quote_value(item)} is not a date", hint=hint)
        if item in calendars:
            found += calendars[item]
        elif item[:1].isdigit():
            found.append(item)
        else:
            hint = "define it under `calendars`"
            if calendars:
                hint = f"known: {', '.join(sorted(calendars))}"
            if item[:3].upper() in cron.WEEKDAY_NAMES:
                hint = "for weekdays use within: {days: MON-FRI}"
            raise InvalidSchedule(
                "exclude", f"no calendar is called {quote_value(item)}", hint=hint
            )
    if len(found) > MOST_ITEMS:
        raise InvalidSchedule("exclude", f"{len(found)} items", hint=f"at most {MOST_ITEMS}")
    return found


def _span(item: str, where: Zone) -> Span:
    """Return the instants of one date, of two dates, or of two times."""
    first, dots, last = item.partition("..")
    if _DATE.fullmatch(first) and (not dots or _DATE.fullmatch(last)):
        days = _day(first, item), _day(last or first, item)
        span = _day_span(where, *days) if days[0] <= days[1] else None
    elif dots:
        with in_field("exclude"):
            span = Span(resolve(canonical_time(first), where), resolve(canonical_time(last), where))
    else:
        raise InvalidSchedule("exclude", f"{quote_value(item)} is not a date", hint=DATES)
    if span is None or span.last < span.first:
        problem = f"{quote_value(item)} ends before it begins"
        raise InvalidSchedule("exclude", problem, hint="put the earlier one first")
    return span


def _day(text: str, item: str) -> int:
    """Return the day number of a date written year-month-day."""
    day = _day_in(*map(int, text.split("-")))
    if day is None:
        problem = f"{quote_value(item)} is not an existing date"
        raise InvalidSchedule("exclude", problem, hint="year-month-day")
    return day


def _yearly_days(item: str) -> tuple[str, str]:
    """Return the first and the last day, month-day, that are closed every year."""
    first, _, last = item.partition("..")
    for text in (first, last or first):
        _day(f"2000-{text}", item)
    return first, last or first


def _in_year(year: int, first: str, last: str) -> tuple[int, int] | None:
    """Return the day numbers of a yearly item that starts in `year`, or None in this year."""
    begins = _day_in(year, *map(int, first.split("-")))
    last_year = year + (last < first)
    ends = _day_in(last_year, *map(int, last.split("-")))
    if first == last:
        return None if begins is None else (begins, begins)
    if begins is None:
        begins = day_number(year, 3, 1)
    return begins, day_number(last_year, 3, 1) - 1 if ends is None else ends


def _day_in(year: int, month: int, date: int) -> int | None:
    try:
        return day_number(year, month, date)
    except ValueError:
        return None


def _day_span(where: Zone, first: int, last: int) -> Span:
    return Span(where.reached(first * DAY), where.reached((last + 1) * DAY))


def _hours(text: object) -> Span:
    opens, _, closes = text.partition("-") if isinstance(text, str) else ("", "", "")
    try:
        begins = parse_time_of_day(opens.strip())
        ends = DAY if closes.strip() == "24:00" else parse_time_of_day(closes.strip())
    except InvalidSchedule:
        problem = f"{quote_value(text)} is not a range of hours"
        raise InvalidSchedule("within.hours", problem, hint="09:00-17:00") from None
    if begins == ends:
        problem = f"{quote_value(text)} begins and ends at the same time"
        raise InvalidSchedule("within.hours", problem, hint="00:00-24:00 for the whole day")
    return Span(begins, ends if ends > begins else ends + DAY)


def _hours_text(hours: Span) -> str:
    ends = "24:00" if hours.last == DAY else time_of_day(hours.last % DAY)
    return f"{time_of_day(hours.first)}-{ends}"


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the same instants as ordered, disjoint spans."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if first >= last:
            continue
        if found and first <= found[-1].last:
            found[-1] = Span(found[-1].first, max(found[-1].last, last))
        else:
            found.append(Span(first, last))
    return found
