"""The kinds of trigger: one frozen class each.

Triggers with equal fields are equal, and `codec` writes and reads the fields. Attributes derived
from the fields (the compiled pattern, the resolved instants) start with `_`.
"""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import ClassVar, Literal

from onbeat.core.time import cron
from onbeat.core.time.days import LAST_YEAR
from onbeat.core.time.durations import Duration
from onbeat.core.time.instants import Instant, canonical_time, resolve, whole_second
from onbeat.core.time.local_patterns import WallPattern
from onbeat.core.time.zones import (
    DAY,
    FIRST_SECOND,
    LAST_SECOND,
    LONGEST_SHIFT,
    Gap,
    Zone,
    date_of,
    day_number,
    zone,
)
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.calendars import parse_time_of_day, time_of_day
from onbeat.core.triggers.past import NO_PAST, OUTCOMES, STARTUP, Ending, Past, TriggerCause
from onbeat.errors import InvalidSchedule, in_field, quote_value

MOST_TIMES = 10_000
Dst = Literal[
    "shift", "skip"
]  # a fixed time in a gap ticks at the first instant after it, or not at all


class LocalPatternTrigger(Trigger):
    """The base of cron, calendar and daily: a pattern of local time."""

    __slots__ = ()
    is_plain: ClassVar[bool] = True
    _pattern: WallPattern

    @property
    def pattern(self) -> WallPattern:
        """The compiled pattern."""
        return self._pattern

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        try:
            return self._pattern.next_after(t)  # type: ignore[arg-type]  # it is usually an int
        except TypeError:
            return self._pattern.next_after(whole_second(t))

    def look(self, t: int, past: Past) -> tuple[int | None, None]:
        return self._pattern.look(t), None

    def upcoming(self, t: Instant, n: int, past: Past = NO_PAST) -> list[int]:
        few = n <= 100  # listing whole days is faster only for many ticks
        first = max(whole_second(t) + 1, FIRST_SECOND)
        ticks = Trigger.iterate if few else LocalPatternTrigger.iterate
        return list(islice(ticks(self, first, LAST_SECOND + 1, past), n))

    def iterate(self, first: int, last: int, past: Past) -> Iterator[int]:
        return chain.from_iterable(self._pattern.ticks(first, last))

    def count(self, first: int, last: int, past: Past) -> int:
        return self._pattern.count(first, last)

    def bits(self, first: int, last: int, past: Past) -> int:
        return self._pattern.bits(first, last)


@dataclass(frozen=True, slots=True)
class Cron(LocalPatternTrigger):
    """`cron: "0 9 * * MON-FRI"`. `H` hashes `key`, the id of its schedule."""

    cron: str
    timezone: str = "UTC"
    dst: Dst = "shift"
    key: str = ""
    _pattern: WallPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        typed, text = self.cron, cron.canonical(self.cron)
        if text != self.cron:
            _set(self, "cron", text)
        if self.key and not cron.uses_hash(text):
            _set(self, "key", "")
        check_dst(self.dst)
        where = zone(self.timezone).name
        try:
            pattern = cron.compile_cron(text, where, keep_gaps=self.dst == "shift", key=self.key)
        except InvalidSchedule as refused:
            raise cron.as_typed(refused, typed) from None
        _set(self, "_pattern", pattern)


@dataclass(frozen=True, slots=True)
class Calendar(LocalPatternTrigger):
    """`calendar: {hour: 9, day_of_week: MON}`: all listed fields must match.

    A field that is left out matches anything, except that times finer than the finest field are 0.
    """

    second: str | None = None
    minute: str | None = None
    hour: str | None = None
    day_of_month: str | None = None
    month: str | None = None
    day_of_week: str | None = None
    year: str | None = None
    timezone: str = "UTC"
    dst: Dst = "shift"
    _pattern: WallPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_dst(self.dst)
        texts: list[str | None] = [getattr(self, each.name) for each in cron.FIELDS]
        if all(text is None for text in texts):
            names = ", ".join(each.name for each in cron.FIELDS)
            raise InvalidSchedule(
                "calendar", "the calendar has no fields", hint=f"one or more of {names}"
            )
        finest = next(i for i, text in enumerate(texts) if text is not None)
        filled = [
            "0" if i < finest and i < 3 else "*" if text is None else text
            for i, text in enumerate(texts)
        ]
        zone(self.timezone)
        with in_field("calendar"):
            pattern = cron.compile_fields(
                filled, self.timezone, either=False, keep_gaps=self.dst == "shift"
            )
        _set(self, "_pattern", pattern)


@dataclass(frozen=True, slots=True)
class Daily(LocalPatternTrigger):
    """`daily: "17:00"`: once a day."""

    daily: str
    timezone: str = "UTC"
    dst: Dst = "shift"
    _pattern: WallPattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_dst(self.dst)
        with in_field("daily"):
            second = parse_time_of_day(self.daily)
        _set(self, "daily", time_of_day(second))
        texts = [str(second % 60), str(second // 60 % 60), str(second // 3600), "*", "*", "*", "*"]
        _set(
            self,
            "_pattern",
            cron.compile_fields(texts, self.timezone, either=False, keep_gaps=self.dst == "shift"),
        )


@dataclass(frozen=True, slots=True)
class Every(Trigger):
    """`every: 90m`: a grid through `start_at`, or through the start of 1970 in UTC or in the zone.

    Seconds, minutes and hours are elapsed time. Days, weeks, months and years keep the wall time of
    the anchor. In a month without the day of the anchor the tick is on the last day.
    """

    is_plain: ClassVar[bool] = True
    every: Duration
    timezone: str = "UTC"
    start_at: str | None = None
    dst: Dst = "shift"
    _zone: Zone = field(init=False, repr=False, compare=False)
    _anchor: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_dst(self.dst)
        length, parts = self.every, [self.every.months, self.every.days, self.every.seconds]
        if length == Duration():
            raise InvalidSchedule("every", "'0s' is not an interval", hint="1s or more")
        if sum(part > 0 for part in parts) != 1:
            hint = "either s, m, h or d, w or mo, y: 36h, 1d or 1mo"
            raise InvalidSchedule(
                "every",
                f"{quote_value(str(length))} mixes units that cannot be combined",
                hint=hint,
            )
        _set(self, "_zone", zone(self.timezone))
        if self.start_at is not None:
            with in_field("start_at"):
                _set(self, "start_at", canonical_time(self.start_at))
                _set(self, "_anchor", resolve(self.start_at, self._zone))
        elif length.seconds:
            _set(self, "_anchor", 0)
        else:
            _set(self, "_anchor", _instant(self._zone, 0) or 0)

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        t = max(whole_second(t), FIRST_SECOND - 1)
        if self.start_at is not None and t < self._anchor:
            return self._anchor
        if self.every.seconds:
            step = self.every.seconds
            tick = t - (t - self._anchor) % step + step
            return tick if tick <= LAST_SECOND else None
        return self._next_on_calendar(t)

    def count(self, first: int, last: int, past: Past) -> int:
        if not self.every.seconds:
            return Trigger.count(self, first, last, past)
        head = self.next_after(first - 1)
        return (
            len(range(head, min(last, LAST_SECOND + 1), self.every.seconds))
            if head is not None
            else 0
        )

    def iterate(self, first: int, last: int, past: Past) -> Iterator[int]:
        if not self.every.seconds:
            return Trigger.iterate(self, first, last, past)
        head = self.next_after(first - 1)
        return iter(
            range(head, min(last, LAST_SECOND + 1), self.every.seconds) if head is not None else ()
        )

    def bits(self, first: int, last: int, past: Past) -> int:
        if not self.every.seconds:
            return Trigger.bits(self, first, last, past)
        head, n = self.next_after(first - 1), self.count(first, last, past)
        if head is None or not n:
            return 0
        bits, length = 1, self.every.seconds
        while length < self.every.seconds * n:
            bits, length = bits | bits << length, 2 * length
        return (bits & (1 << self.every.seconds * n) - 1) << head - first

    def walls(self, first: int, last: int) -> list[int]:
        """Return the wall times `first <= w < last` of a calendar grid, ignoring clock changes."""
        return list(
            takewhile(
                lambda wall: wall < last, (w for w in self._walls_from(first // DAY) if w >= first)
            )
        )

    def _next_on_calendar(self, t: int) -> int | None:
        t = min(max(t, FIRST_SECOND + 2 * DAY), LAST_SECOND)
        for wall in self._walls_from((t + self._zone.offset(t)) // DAY):
            tick = _instant(self._zone, wall, keep_gaps=self.dst == "shift")
            if tick is not None and t < tick <= LAST_SECOND:
                return tick
        return None

    def _walls_from(self, today: int) -> Iterator[int]:
        """Yield the wall times of a calendar grid, starting at most two steps before `today`."""
        anchor_day, second = divmod(self._anchor + self._zone.offset(self._anchor), DAY)
        if self.every.days:
            n = (today - anchor_day) // self.every.days - 1
        else:
            anchor, now = date_of(anchor_day), date_of(min(today, LAST_SECOND // DAY))
            n = ((now.year - anchor.year) * 12 + now.month - anchor.month) // self.every.months - 1
        if self.start_at is not None:
            n = max(n, 0)
        while (day := self._nth_day(anchor_day, n)) is not None:
            yield day * DAY + second
            n += 1

    def _nth_day(self, anchor_day: int, n: int) -> int | None:
        """Return the day number of the n-th step, or None after the year 9999."""
        if self.every.days:
            day = anchor_day + n * self.every.days
            return day if day <= LAST_SECOND // DAY else None
        anchor = date_of(anchor_day)
        year, month = divmod(anchor.year * 12 + anchor.month - 1 + n * self.every.months, 12)
        if year > LAST_YEAR:
            return None
        if year < 1:
            return FIRST_SECOND // DAY - 1
        return day_number(year, month + 1, min(anchor.day, monthrange(year, month + 1)[1]))


@dataclass(frozen=True, slots=True)
class At(Trigger):
    """`at: 2026-12-01T09:00`, or several times, once each. Local times are the first pass."""

    is_plain: ClassVar[bool] = True
    at: tuple[str, ...]
    timezone: str = "UTC"
    _instants: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.at:
            raise InvalidSchedule("at", "the list is empty", hint="such as 2026-12-01T09:00")
        where = zone(self.timezone)
        with in_field("at"):
            times = {resolve(text, where): text for text in map(canonical_time, self.at)}
        _set(self, "_instants", tuple(sorted(times)))
        _set(self, "at", tuple(times[instant] for instant in self._instants))

    def walls(self, first: int, last: int) -> list[int]:
        """Return the local times `first <= w < last`, those without an offset."""
        local = [resolve(f"{text}Z", zone("UTC")) for text in self.at if not text.endswith("Z")]
        return [wall for wall in sorted(local) if first <= wall < last]

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        i = bisect_right(self._instants, whole_second(t))
        return self._instants[i] if i < len(self._instants) else None

    def count(self, first: int, last: int, past: Past) -> int:
        return max(bisect_left(self._instants, last) - bisect_left(self._instants, first), 0)


@dataclass(frozen=True, slots=True)
class Startup(Trigger):
    """`startup: 30s`: once per start of the scheduler, with this delay."""

    startup: Duration = Duration()

    def __post_init__(self) -> None:
        with in_field("startup"):
            self.startup.elapsed  # noqa: B018 - refuses months

    @property
    def needs_past(self) -> bool:
        return True

    def causes(self) -> Iterator[str]:
        yield f"{STARTUP}:{self.startup.elapsed}"

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        (cause,) = self.causes()
        return _later(past.happened.get(cause), self.startup, t)


@dataclass(frozen=True, slots=True)
class After(Trigger):
    """`after: {success: 30m}`: with this delay after a run of this schedule, or of `schedule`."""

    outcome: Ending
    delay: Duration = Duration()
    schedule: str | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None and not isinstance(self.schedule, str):
            raise InvalidSchedule(
                "after.schedule",
                f"{quote_value(self.schedule)} is not the id of a schedule",
                hint="a string",
            )
        with in_field("after"):
            self.delay.elapsed  # noqa: B018 - refuses months
        if self.outcome not in OUTCOMES:
            outcomes = ", ".join(OUTCOMES)
            raise InvalidSchedule(
                "after.outcome",
                f"no outcome is called {quote_value(self.outcome)}",
                hint=f"known: {outcomes}",
            )

    @property
    def needs_past(self) -> bool:
        return True

    def causes(self) -> Iterator[str]:
        yield f"{self.schedule or ''}:{self.outcome}:{self.delay.elapsed}"

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        (cause,) = self.causes()
        return _later(past.happened.get(cause), self.delay, t)


@dataclass(frozen=True, slots=True)
class Manual(Trigger):
    """`manual: true`: no ticks; it runs only when it is started manually or by a program."""

    manual: bool = True

    def __post_init__(self) -> None:
        if self.manual is not True:
            hint = "manual: true, or another trigger"
            raise InvalidSchedule("manual", f"{quote_value(self.manual)} is not true", hint=hint)

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        return None


def _set(value: object, name: str, content: object) -> None:
    object.__setattr__(value, name, content)  # only while a frozen value is constructed


def check_dst(dst: object) -> None:
    """Refuse an invalid value of `dst`."""
    if dst not in ("shift", "skip"):
        raise InvalidSchedule(
            "dst", f"{quote_value(dst)} is not a valid value", hint="shift or skip"
        )


def _instant(where: Zone, wall: int, *, keep_gaps: bool = True) -> int | None:
    """Return the instant of a fixed wall time, or None where a gap drops it."""
    found = where.first_pass(wall)
    if isinstance(found, Gap):
        return found.at if keep_gaps and found.last - found.first <= LONGEST_SHIFT else None
    return found


def _later(event: TriggerCause | None, delay: Duration, t: Instant) -> int | None:
    if event is None:
        return None
    tick = event.at + delay.elapsed
    return tick if tick > whole_second(t) else None
