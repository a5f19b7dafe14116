"""Limits of any trigger: closed times, bounds, a delay, a number of runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from onbeat.core.time.durations import Duration
from onbeat.core.time.instants import Instant, canonical_time, resolve, whole_second
from onbeat.core.time.zones import DAY, FIRST_SECOND, LAST_SECOND, zone
from onbeat.core.triggers.base import Trigger, refuse_if_never, search
from onbeat.core.triggers.calendars import Exclude, Span, Within, clipped
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.errors import InvalidSchedule, in_field, quote_value


@dataclass(frozen=True, slots=True)
class OpenHours(Trigger):
    """The ticks of `trigger` outside closed times. Ticks in closed times are dropped or moved.

    Under `within.outside: move` a tick outside the hours keeps its `run_at` and is due at the next
    opening. Of the ticks moved to one opening only the first is kept, and none if there is a tick
    at the opening itself.
    """

    trigger: Trigger
    exclude: Exclude | None = None
    within: Within | None = None

    def __post_init__(self) -> None:
        where = "within" if self.within is not None else "exclude"
        refuse_if_never(self, where, "no tick is left", hint="other hours or dates")

    @property
    def needs_past(self) -> bool:
        return self.trigger.needs_past

    def causes(self) -> Iterator[str]:
        return self.trigger.causes()

    @property
    def counts_runs(self) -> bool:
        return self.trigger.counts_runs

    @property
    def cost(self) -> int:
        return self.trigger.cost * (200 if self._moves else 32)  # it examines the closed times

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        return self.look(whole_second(t), past)[0]

    def look(self, t: int, past: Past) -> tuple[int | None, int | None]:
        return search(self, t, past)

    def floor(self, t: int, past: Past) -> int | None:
        floor = self.trigger.floor(t, past)
        if floor is None:
            return None
        dropped = self._dropped_until(floor)
        if dropped is not None:
            return self.trigger.floor(dropped - 1, past)
        span = self._closed_span(floor) if self._moves else None
        if span is None:
            return floor
        moved = self._moved(span, past)  # all other ticks of the span are dropped
        is_ahead = moved is not None and moved > t
        return moved if is_ahead else self.trigger.floor(span.last - 1, past)

    def has(self, t: int, past: Past) -> bool:
        if self._dropped_until(t) is not None or not self.trigger.has(t, past):
            return False
        span = self._closed_span(t) if self._moves else None
        return span is None or self._moved(span, past) == t

    def due_at(self, run_at: int, past: Past = NO_PAST) -> int:
        due = self.trigger.due_at(run_at, past)
        span = self._closed_span(due) if self._moves else None
        return due if span is None else span.last

    def count(self, first: int, last: int, past: Past) -> int:
        closed = self._closed(first, last)
        total = self.trigger.count(first, last, past)
        total -= sum(self.trigger.count(span.first, span.last, past) for span in closed)
        return total + len(self._moved_between(closed, first, last, past))

    def bits(self, first: int, last: int, past: Past) -> int:
        found, closed = self.trigger.bits(first, last, past), self._closed(first, last)
        for span in closed:
            found &= ~(((1 << span.last - span.first) - 1) << span.first - first)
        for tick in self._moved_between(closed, first, last, past):
            found |= 1 << tick - first
        return found

    @property
    def _moves(self) -> bool:
        return self.within is not None and self.within.outside == "move"

    def _closed(self, first: int, last: int) -> list[Span]:
        """Return the closed spans of `first <= t < last`."""
        spans = [
            span
            for times in (self.exclude, self.within)
            if times
            for span in times.closed(first, last)
        ]
        return clipped(spans, first, last)

    def _dropped_until(self, tick: int) -> int | None:
        """Return until when ticks are dropped, or None if this one is kept."""
        until = self.exclude.closed_until(tick) if self.exclude is not None else None
        if until is None and self.within is not None and not self._moves:
            until = self.within.closed_until(tick)
        return until

    def _closed_span(self, t: int) -> Span | None:
        """Return the whole closed span around `t`, or None if `t` is open."""
        first = last = t
        while (until := self._closed_until(last)) is not None and until < LAST_SECOND:
            last = until
        while (
            last > t and (since := self._closed_since(first)) is not None and since > FIRST_SECOND
        ):
            first = since
        return Span(first, last) if last > t else None

    def _closed_until(self, t: int) -> int | None:
        """Return an end of a closed span that contains `t`, if there is one."""
        until = self.exclude.closed_until(t) if self.exclude is not None else None
        return self.within.closed_until(t) if until is None and self.within is not None else until

    def _closed_since(self, t: int) -> int | None:
        """Return the start of a closed span that ends at `t`, if there is one."""
        for times, far in ((self.exclude, 400 * DAY), (self.within, 9 * DAY)):
            closed = times.closed(t - far, t) if times is not None else []
            if closed and closed[-1].last == t:
                return closed[-1].first
        return None

    def _moved(self, span: Span, past: Past) -> int | None:
        """Return the tick of a closed span that is moved to its end, if there is one."""
        if self.trigger.has(span.last, past):
            return None
        tick = self.trigger.following(span.first - 1, past, span.last)
        while tick is not None:
            dropped = self._dropped_until(tick)
            if dropped is None:
                return tick
            tick = self.trigger.following(dropped - 1, past, span.last)
        return None

    def _moved_between(self, closed: list[Span], first: int, last: int, past: Past) -> list[int]:
        if not self._moves:
            return []
        spans = {whole for span in closed if (whole := self._closed_span(span.first)) is not None}
        moved = (self._moved(span, past) for span in spans)
        return [tick for tick in moved if tick is not None and first <= tick < last]


@dataclass(frozen=True, slots=True)
class Bounded(Trigger):
    """The ticks of `trigger` from `start_at` to `end_at`, both included, after `delay` has passed.

    `max_runs` counts scheduled starts: once the past contains as many, there are no more ticks. How
    many ticks of a range will start is not known beforehand; `upcoming` assumes that all do.
    """

    trigger: Trigger
    timezone: str = "UTC"
    start_at: str | None = None
    end_at: str | None = None
    delay: Duration | None = None
    max_runs: int | None = None
    _first: int = field(init=False, repr=False, compare=False)
    _last: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first", self._bound("start_at", FIRST_SECOND))
        object.__setattr__(self, "_last", self._bound("end_at", LAST_SECOND))
        if self._last < self._first:
            raise InvalidSchedule(
                "end_at", f"{self.end_at} is before the start", hint=f"after {self.start_at}"
            )
        if self.delay is not None:
            with in_field("delay"):
                self.delay.elapsed  # noqa: B018 - refuses months
        if self.max_runs is not None and (type(self.max_runs) is not int or self.max_runs < 1):
            raise InvalidSchedule(
                "max_runs",
                f"{quote_value(self.max_runs)} is not a number of runs",
                hint="1 or more",
            )
        if self.end_at is not None and not self.needs_past:
            since = self._first if self.start_at is not None else min(0, self._last)
            tick = self.trigger.next_after(since - 1)
            if tick is None or tick > self._last:
                problem = f"{self.end_at} is before every tick"
                raise InvalidSchedule("end_at", problem, hint="a later end")

    @property
    def needs_past(self) -> bool:
        return self.trigger.needs_past

    def causes(self) -> Iterator[str]:
        return self.trigger.causes()

    @property
    def counts_runs(self) -> bool:
        return self.max_runs is not None or self.trigger.counts_runs

    def is_before(self, t: int) -> bool:
        """Return whether `t` is before `start_at`."""
        return t < self._first

    def allows(self, t: int) -> bool:
        """Return whether `t` is between `start_at` and `end_at`."""
        return self._first <= t <= self._last

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        if self.runs_left(past) == 0:
            return None
        tick = self.trigger.next_after(max(whole_second(t), self._opens(past) - 1), past)
        return tick if tick is not None and tick <= self._last else None

    def look(self, t: int, past: Past) -> tuple[int | None, int | None]:
        if self.runs_left(past) == 0:
            return None, None
        tick, reached = self.trigger.look(max(t, self._opens(past) - 1), past)
        return (
            tick if tick is not None and tick <= self._last else None,
            reached if reached is not None and reached < self._last else None,
        )

    @property
    def cost(self) -> int:
        return self.trigger.cost

    def floor(self, t: int, past: Past) -> int | None:
        if self.runs_left(past) == 0:
            return None
        floor = self.trigger.floor(max(t, self._opens(past) - 1), past)
        return floor if floor is not None and floor <= self._last else None

    def has(self, t: int, past: Past) -> bool:
        allowed = self._opens(past) <= t <= self._last and self.runs_left(past) != 0
        return allowed and self.trigger.has(t, past)

    def due_at(self, run_at: int, past: Past = NO_PAST) -> int:
        return self.trigger.due_at(run_at, past)

    def upcoming(self, t: Instant, n: int, past: Past = NO_PAST) -> list[int]:
        left = self.runs_left(past)
        first = max(whole_second(t), self._opens(past) - 1)
        found = self.trigger.upcoming(first, n if left is None else min(n, left), past)
        return [tick for tick in found if tick <= self._last]

    def iterate(self, first: int, last: int, past: Past) -> Iterator[int]:
        return self.trigger.iterate(*self._clip(first, last, past), past)

    def count(self, first: int, last: int, past: Past) -> int:
        first, last = self._clip(first, last, past)
        return self.trigger.count(first, last, past) if first < last else 0

    def bits(self, first: int, last: int, past: Past) -> int:
        begins, ends = self._clip(first, last, past)
        return self.trigger.bits(begins, ends, past) << begins - first if begins < ends else 0

    def _clip(self, first: int, last: int, past: Past) -> tuple[int, int]:
        if self.runs_left(past) == 0:
            return last, last
        return max(first, self._opens(past)), min(last, self._last + 1)

    def _bound(self, name: str, default: int) -> int:
        text = getattr(self, name)
        if text is None:
            return default
        where = zone(self.timezone)
        with in_field(name):
            object.__setattr__(self, name, canonical_time(text))
            return resolve(getattr(self, name), where)

    def _opens(self, past: Past) -> int:
        """Return the first instant that `start_at` and `delay` allow."""
        if self.delay is None or past.created_at is None:
            return self._first
        return max(self._first, past.created_at + self.delay.elapsed)

    def runs_left(self, past: Past) -> int | None:
        return None if self.max_runs is None else max(self.max_runs - past.runs_used, 0)
