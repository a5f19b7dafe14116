"""Time zones as whole numbers: the offset for each range of instants.

A zone is a list of segments. Within a segment the wall clock runs evenly; between two it jumps,
forward over a *gap* or back into a *fold*. `seen` is the latest wall time that the clock of the
zone showed before the segment began: a wall time below it has already been shown or jumped over.

The data is that of the `tzdata` package alone, read through the import system. The zone files of
the machine are never read, so all nodes with the same `tzdata` have the same results.
"""

import pkgutil
import re
import struct
from bisect import bisect_right
from datetime import date
from difflib import get_close_matches
from functools import cache, lru_cache
from hashlib import sha256
from typing import NamedTuple

import tzdata

from onbeat.errors import InvalidSchedule, quote_value

VERSION: str = tzdata.IANA_VERSION

DAY = 86_400
LONGEST_SHIFT = 3 * 3600  # a wall time in a longer gap (a skipped day) is dropped, not run after it

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
# The calendar ends where the local date of some zone would leave the years 1 to 9999.
FIRST_SECOND = (date.min.toordinal() - _EPOCH_ORDINAL + 1) * DAY
LAST_SECOND = (date.max.toordinal() - _EPOCH_ORDINAL + 1) * DAY - 15 * 3600
END_OF_TIME = LAST_SECOND + 400 * DAY  # later than every tick


class Segment(NamedTuple):
    """A range of time, `start <= t < end`, in which wall time is `t + offset`."""

    start: int
    end: int
    offset: int
    seen: int


class Gap(NamedTuple):
    """Wall times `first <= w < last` that the clock jumps over at instant `at`."""

    at: int
    first: int
    last: int


class Zone:
    """One time zone. Use `zone(name)`, which returns one object per name."""

    __slots__ = ("_rule", "_table", "name")

    def __init__(
        self, name: str, starts: list[int], offsets: list[int], rule: "_Rule | None"
    ) -> None:
        self.name = name
        self._rule = rule
        table_end = END_OF_TIME if rule is None else starts[-1]
        self._table = (starts, _segments(starts, offsets), table_end)  # replaced as one

    def segment(self, t: int) -> Segment:
        """Return the segment that holds the instant `t`."""
        starts, segments, _ = self._table_until(t)
        return segments[max(bisect_right(starts, t) - 1, 0)]

    def offset(self, t: int) -> int:
        """Return the seconds that wall time is ahead of UTC at the instant `t`."""
        return self.segment(t).offset

    def first_pass(self, wall: int) -> int | Gap:
        """Return the first instant at which the clock shows `wall`, or the gap that contains it."""
        _, segments, _ = self._table_until(wall + 2 * DAY)
        i = max(bisect_right(segments, wall, key=_seen) - 1, 0)
        segment = segments[i]
        instant = wall - segment.offset
        if instant >= segment.start:
            return instant
        before = segments[i - 1]
        return Gap(segment.start, before.end + before.offset, segment.start + segment.offset)

    def reached(self, wall: int) -> int:
        """Return the first instant at which the clock shows `wall`, or has jumped over it."""
        found = self.first_pass(wall)
        return found.at if isinstance(found, Gap) else found

    def jumps(self, first: int, last: int) -> list[tuple[Segment, Segment]]:
        """Return the pairs of segments that meet at an instant in `first <= t < last`."""
        segment, found = self.segment(first - 1), []
        while segment.end < last:
            following = self.segment(segment.end)
            found.append((segment, following))
            segment = following
        return found

    def _table_until(self, t: int) -> tuple[list[int], list[Segment], int]:
        """Return the table of segments, extended by the yearly rule beyond `t`."""
        table = self._table
        if t < table[2] or table[2] == END_OF_TIME:
            return table
        assert self._rule is not None, "a zone without a rule lists all its segments"
        starts, offsets = list(table[0]), [segment.offset for segment in table[1]]
        year = _year_of(max(starts[-1], self._rule.after))
        until = min(max(_year_of(t), year) + 2 * len(starts), date.max.year)
        for y in range(year, until + 1):
            for start, offset in self._rule.transitions(y):
                if start > starts[-1] and offset != offsets[-1]:
                    starts.append(start)
                    offsets.append(offset)
        table_end = END_OF_TIME if until == date.max.year else starts[-1]
        self._table = (starts, _segments(starts, offsets), table_end)
        return self._table


@cache  # bounded by the list of names
def _load(name: str) -> Zone:
    data = pkgutil.get_data("tzdata", f"zoneinfo/{name}")
    assert data is not None, f"tzdata lists {name} but does not contain it"
    return Zone(name, *_parse_tzif(data))


def zone(name: object) -> Zone:
    """Return the zone with this IANA name. Other names are refused, with similar names."""
    if not isinstance(name, str) or name not in names():
        raise InvalidSchedule(
            "timezone", f"no zone is called {quote_value(name)}", hint=_nearest(name)
        )
    return _load(name)


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """Return every name of the zone data: the names that `zone` accepts."""
    listed = pkgutil.get_data("tzdata", "zones")
    assert listed is not None, "the tzdata package has no list of zones"
    return frozenset(listed.decode("ascii").split())


def digests() -> dict[str, str]:
    """Return a short digest of the rules of each zone, to compare two versions of the data.

    It reads every zone, which takes about 40 ms.
    """
    found: dict[str, str] = {}
    for name in sorted(names()):
        rules = pkgutil.get_data("tzdata", f"zoneinfo/{name}")
        assert rules is not None, f"tzdata lists {name} but does not contain it"
        found[name] = sha256(rules).hexdigest()[:12]
    return found


def days_before_year(year: int) -> int:
    """Return the days from 1970-01-01 to January 1 of `year`."""
    past = year - 1
    return past * 365 + past // 4 - past // 100 + past // 400 - (_EPOCH_ORDINAL - 1)


def day_number(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to this date."""
    return date(year, month, day).toordinal() - _EPOCH_ORDINAL


def date_of(day: int) -> date:
    """Return the date that is `day` days after 1970-01-01."""
    return date.fromordinal(day + _EPOCH_ORDINAL)


class _Change(NamedTuple):
    """The `week`-th `weekday` (Sunday is 0) of `month`, plus `time` seconds."""

    month: int
    week: int
    weekday: int
    time: int

    def wall(self, year: int) -> int:
        first = day_number(year, self.month, 1)
        day = first + (self.weekday - (first + 4)) % 7 + 7 * (self.week - 1)
        if self.week == 5:  # the last one: the fifth week may be in the next month
            following = day_number(year + self.month // 12, self.month % 12 + 1, 1)
            day -= 7 * (day >= following)
        return day * DAY + self.time


class _Rule(NamedTuple):
    """The rule that applies after the last listed transition, which was at `after`."""

    after: int
    standard: int
    summer: int
    begins: _Change
    ends: _Change

    def transitions(self, year: int) -> list[tuple[int, int]]:
        changes = [
            (self.begins.wall(year) - self.standard, self.summer),
            (self.ends.wall(year) - self.summer, self.standard),
        ]
        return sorted(change for change in changes if change[0] > self.after)


def _segments(starts: list[int], offsets: list[int]) -> list[Segment]:
    found, seen = [], FIRST_SECOND - 2 * DAY
    for start, end, offset in zip(starts, [*starts[1:], END_OF_TIME], offsets, strict=True):
        found.append(Segment(start, end, offset, seen))
        seen = max(seen, end + offset)
    return found


def _seen(segment: Segment) -> int:
    return segment.seen


def _parse_tzif(data: bytes) -> tuple[list[int], list[int], _Rule | None]:
    """Read the 64-bit part of a TZif file (RFC 8536): starts, offsets, and the rule at its end."""
    isut, isstd, leap, times, types, chars = struct.unpack_from(">6L", data, 20)
    at = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    isut, isstd, leap, times, types, chars = struct.unpack_from(">6L", data, at + 20)
    at += 44
    instants = struct.unpack_from(f">{times}q", data, at)
    kinds = struct.unpack_from(f">{times}B", data, at + times * 8)
    at += times * 9
    offset_of = [struct.unpack_from(">l", data, at + 6 * i)[0] for i in range(types)]
    at += types * 6 + chars + leap * 12 + isstd + isut
    starts, offsets = [FIRST_SECOND - 2 * DAY], [offset_of[0]]
    for instant, kind in zip(instants, kinds, strict=True):
        if (
            instant > starts[0] and offset_of[kind] != offsets[-1]
        ):  # a change of the abbreviation alone is not a jump
            starts.append(instant)
            offsets.append(offset_of[kind])
    return (
        starts,
        offsets,
        _parse_rule(
            data[at:].decode("ascii").strip(), after=instants[-1] if instants else starts[0]
        ),
    )


_OFFSET = r"([+-]?\d+)(?::(\d+))?(?::(\d+))?"
_NAME = r"(?:[A-Za-z]+|<[^>]+>)"
_CHANGE = rf",M(\d+)\.(\d)\.(\d)(?:/{_OFFSET})?"
_FOOTER = re.compile(rf"{_NAME}{_OFFSET}(?:{_NAME}(?:{_OFFSET})?{_CHANGE}{_CHANGE})?")


def _parse_rule(text: str, *, after: int) -> _Rule | None:
    match = _FOOTER.fullmatch(text)
    assert match is not None, f"this tz data has a rule of an unknown form: {text!r}"
    found = match.groups()
    if found[6] is None:
        return None
    standard = -_clock(found[0:3], 0)
    summer = -_clock(found[3:6], -(standard + 3600))
    begins, ends = (
        _Change(int(part[0]), int(part[1]), int(part[2]), _clock(part[3:6], 2 * 3600))
        for part in (found[6:12], found[12:18])
    )
    return _Rule(after, standard, summer, begins, ends)


def _clock(parts: "tuple[str | None, ...]", default: int) -> int:
    hours, minutes, seconds = parts
    if hours is None:
        return default
    size = abs(int(hours)) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return -size if hours.startswith("-") else size


def _year_of(t: int) -> int:
    return date_of(min(max(t, FIRST_SECOND), LAST_SECOND) // DAY).year


def _nearest(name: object) -> str:
    """Return a hint with similar names: by other case, by the city alone, or by spelling."""
    text = str(name)[:64].strip().replace(" ", "_").lower()
    offset = re.fullmatch(r"(?:utc|gmt)?([+-])0?(\d{1,2})(?::?00)?", text, re.ASCII)
    if offset and f"Etc/GMT{'-' if offset[1] == '+' else '+'}{offset[2]}" in names():
        west = "-" if offset[1] == "+" else "+"  # the sign in these names is inverted
        fixed = f"Etc/GMT{west}{offset[2]} for a fixed {offset[1]}{offset[2]}:00"
        return f"a place such as Europe/Berlin, or {fixed}"
    lowered = {known.lower(): known for known in sorted(names())}
    cities = [known for low, known in lowered.items() if text and low.endswith(f"/{text}")]
    close = [lowered[low] for low in get_close_matches(text, lowered, n=3, cutoff=0.75)]
    found = [lowered[text]] if text in lowered else cities[:3] or close
    return f"did you mean {', '.join(found)}?" if found else "an IANA name such as Europe/Berlin"
