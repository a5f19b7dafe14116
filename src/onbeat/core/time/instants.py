"""Instants at the edge: RFC 3339 and datetimes in, whole UTC seconds inside, RFC 3339 out.

A fraction of a second may have any number of digits. It is rounded down: to the second, or to the
millisecond where those are stored.
"""

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from onbeat.core.time.zones import DAY, FIRST_SECOND, LAST_SECOND, Gap, Zone, date_of, day_number
from onbeat.errors import InvalidSchedule, quote_value

Instant = int | float | datetime  # what callers may pass; internally it is an int

_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_FRACTION = re.compile(r"(?<=:\d\d:\d\d)\.(\d+)", re.ASCII)  # of a second
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - zones are removed before it is used


def whole_second(t: Instant) -> int:
    """Return `t` as UTC seconds, rounded down: the next tick after either is the same."""
    if isinstance(t, datetime):
        if t.tzinfo is None:
            raise TypeError(
                f"{t!r} has no zone, so it is not an instant: set one, such as tzinfo=UTC"
            )
        return (t.replace(tzinfo=None) - _EPOCH - (t.utcoffset() or timedelta(0))) // timedelta(
            seconds=1
        )
    try:
        return int(t // 1)
    except (TypeError, ValueError, OverflowError):
        problem = f"{t!r} is not an instant: pass UTC seconds, or a datetime with a zone"
        raise TypeError(problem) from None


def next_whole_second(t: Instant) -> int:
    """Return `t` as UTC seconds, rounded up: the first second that is not before it."""
    second = whole_second(t)
    exact = t.microsecond == 0 if isinstance(t, datetime) else t == second
    return second if exact else second + 1


def rfc3339(t: int, zone: Zone | None = None) -> str:
    """Return the instant as text, in `zone` with its offset, or in UTC with `Z`."""
    offset = zone.offset(t) if zone is not None else 0
    day, second = divmod(t + offset, DAY)
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return f"{_date_text(day)}T{clock}{_offset_text(offset) if zone is not None else 'Z'}"


@lru_cache(maxsize=1024)
def _date_text(day: int) -> str:
    return str(date_of(day))


def rfc3339_ms(t: int) -> str:
    """Return an instant in milliseconds as text in UTC."""
    second, ms = divmod(t, 1000)
    return f"{rfc3339(second)[:-1]}.{ms:03}Z"


def canonical_time(value: object) -> str:
    """Return the canonical text of a date and time: local if it has no offset, otherwise UTC."""
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return rfc3339(_inside(whole_second(value), value))
        value = value.isoformat(timespec="seconds")
    wall, offset = _parse(value)
    return rfc3339(wall - offset) if offset is not None else rfc3339(wall)[:-1]


def resolve(text: str, zone: Zone) -> int:
    """Return the instant of a canonical time: for a local time the first occurrence in `zone`.

    A local time that the clocks jump over is refused, with the times before and after the gap.
    """
    wall, offset = _parse(text)
    if offset is not None:
        return wall - offset
    found = zone.first_pass(wall)
    if isinstance(found, Gap):
        size = found.last - found.first
        earlier, later = (rfc3339(w)[:-1] for w in (wall - size, wall + size))
        problem = f"{text} does not exist in {zone.name}: the clocks move forward over it"
        raise InvalidSchedule("", problem, hint=f"{earlier} or {later}")
    return _inside(found, text)


class TypedTime(NamedTuple):
    """A typed time: its instant, the second instant if the clocks show it twice, and a note."""

    at: int
    again: int | None = None
    note: str = ""


def read_typed(text: str, zone: Zone) -> TypedTime:
    """Return the instant of a time typed in a query.

    A local time that the clocks jump over means the first instant after the gap, as it does for a
    trigger that shifts it. A time that they show twice means both instants.
    """
    wall, offset = _parse(text)
    if offset is not None:
        return TypedTime(wall - offset)
    found = zone.first_pass(wall)
    where = f"in {zone.name} on {_date_text(wall // DAY)}"
    if isinstance(found, Gap):
        change = f"clocks go from {_clock_text(found.first)} to {_clock_text(found.last)}"
        missing = f"{_clock_text(wall)} does not exist {where} ({change})"
        first = rfc3339(found.at, zone)
        return TypedTime(found.at, None, f"{missing}: showing {first}, the first instant after it")
    at = _inside(found, text)
    again = _second_pass(wall, at, zone)
    if again is None:
        return TypedTime(at)
    both = f"at {rfc3339(at, zone)} and again at {rfc3339(again, zone)}"
    return TypedTime(at, again, f"{_clock_text(wall)} happens twice {where}: {both}")


def _second_pass(wall: int, first: int, zone: Zone) -> int | None:
    """Return the second instant at which the clock shows `wall`, if there is one."""
    for _, after in zone.jumps(first + 1, first + DAY):
        instant = wall - after.offset
        if after.start <= instant < after.end:
            return instant
    return None


def _clock_text(wall: int) -> str:
    return rfc3339(wall)[11:16]


def parse_instant(value: object) -> int:
    """Return the instant of an RFC 3339 text with an offset."""
    wall, offset = _parse(value, hint="such as 2026-12-01T09:00:00Z")
    if offset is None:
        hint = f"{value}Z, or +01:00 and the like"
        raise InvalidSchedule("", f"{quote_value(value)} has no UTC offset", hint=hint)
    return wall - offset


def parse_instant_ms(value: object) -> int:
    """Return the instant of an RFC 3339 text with an offset, in milliseconds."""
    whole = parse_instant(value) * 1000
    match = _FRACTION.search(value) if isinstance(value, str) else None
    return whole if match is None else whole + int(match[1][:3].ljust(3, "0"))


def _parse(value: object, *, hint: str = "such as 2026-12-01T09:00") -> tuple[int, int | None]:
    """Return wall seconds and the offset, if the text has one."""
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 100 else None
    if match is None:
        raise InvalidSchedule("", f"{quote_value(value)} is not a date and time", hint=hint)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    try:
        wall = day_number(year, month, day) * DAY
    except ValueError:
        raise InvalidSchedule(
            "", f"{quote_value(value)} is not an existing date", hint="year-month-day"
        ) from None
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidSchedule(
            "", f"{quote_value(value)} has an invalid time of day", hint="00:00:00 to 23:59:59"
        )
    wall += hour * 3600 + minute * 60 + second
    mark = match[7]
    if mark is None:
        return wall, None
    offset = 0
    if mark not in "Zz":
        hours, minutes = int(mark[1:3]), int(mark[4:6])
        if hours > 23 or minutes > 59:
            raise InvalidSchedule(
                "", f"{quote_value(mark)} is not a UTC offset", hint="such as +01:00"
            )
        offset = (hours * 3600 + minutes * 60) * (-1 if mark[0] == "-" else 1)
    _inside(wall - offset, value)
    return wall, offset


def _inside(t: int, value: object) -> int:
    if not FIRST_SECOND <= t <= LAST_SECOND:
        problem = f"{quote_value(str(value))} is outside the calendar"
        raise InvalidSchedule(
            "", problem, hint="the years 1 to 9999, without the first and last hours"
        )
    return t


def _offset_text(offset: int) -> str:
    sign, size = ("-", -offset) if offset < 0 else ("+", offset)
    seconds = (
        f":{size % 60:02}" if size % 60 else ""
    )  # local mean time, before standard time was introduced
    return f"{sign}{size // 3600:02}:{size // 60 % 60:02}{seconds}"
