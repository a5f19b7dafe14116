"""Ticks that cannot influence one another, counted a stretch of time at once.

That is so while each run of a schedule has ended before its next tick, and nothing else decides
about it than the time. Whether it is so is looked at for each stretch, by the ticks themselves.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from operator import sub
from typing import NamedTuple

from onbeat.core.runs.decisions import Due
from onbeat.core.time.zones import zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.kinds import OnTheWall
from onbeat.core.triggers.past import Past
from onbeat.simulate.counters import MINUTE, DayCounters, Times
from onbeat.simulate.recorder import Recorder
from onbeat.simulate.schedule_state import ScheduleState

SLICE = 50_000  # ticks that are counted in one go
DENSE = 1440  # ticks a day: of patterns with more, the times of a day are not kept


class CountedTicks:
    """The ticks of one trigger in a stretch, with what many schedules may ask of them."""

    __slots__ = ("_smallest_gap", "by_day", "ticks")

    def __init__(self, ticks: list[int], days: DayCounters) -> None:
        self.ticks, self.by_day = ticks, days.split(ticks)
        self._smallest_gap: int | None = None

    def since(self, first: int, days: DayCounters) -> "CountedTicks":
        """Return those that are not before `first`."""
        if not self.ticks or self.ticks[0] >= first:
            return self
        return CountedTicks(self.ticks[bisect_left(self.ticks, first) :], days)

    def before(self, last: int, days: DayCounters) -> "CountedTicks":
        """Return those that are before `last`."""
        if not self.ticks or self.ticks[-1] < last:
            return self
        return CountedTicks(self.ticks[: bisect_left(self.ticks, last)], days)

    def are_further_apart_than(self, length: int) -> bool:
        """Return whether a run of this length has always ended before the next tick."""
        if length < 1000:
            return True
        if self._smallest_gap is None:
            gaps = map(sub, islice(self.ticks, 1, None), self.ticks)
            self._smallest_gap = min(gaps, default=1 << 62) * 1000
        return length < self._smallest_gap

    def fires(self, lane: ScheduleState, days: DayCounters) -> "CountedTicks | None":
        """Return those that start a run, or None if that is not just a matter of counting.

        While a run is in flight ticks are skipped, unless the policy has other plans for them.
        """
        if lane.off is not None or not self.ticks:
            return NONE
        ticks, length, free_after = self.ticks, lane.length, lane.last_end
        if ticks[0] * 1000 > free_after and self.are_further_apart_than(length):
            return self
        if lane.schedule.policy.overlap != "skip":
            return None
        found, at = [], 0
        while (at := bisect_right(ticks, free_after // 1000, at)) < len(ticks):
            found.append(ticks[at])
            free_after = ticks[at] * 1000 + length
        return CountedTicks(found, days)


class DayTicks:
    """The ticks of a pattern of the wall clock, stretch after stretch, each day read once."""

    __slots__ = ("_days", "_left", "reached")

    def __init__(self, trigger: OnTheWall, first: int, last: int) -> None:
        self._days = trigger.pattern.ticks(first, last)
        self._left: list[int] = []
        self.reached = first

    def up_to(self, last: int) -> list[int]:
        """Return the ticks from where it is up to `last`."""
        found = [self._left]
        while not found[-1] or found[-1][-1] < last:
            of_day = next(self._days, None)
            if of_day is None:
                break
            found.append(of_day)
        at = bisect_left(found[-1], last)
        found[-1], self._left = found[-1][:at], found[-1][at:]
        self.reached = last
        return list(chain.from_iterable(found))


class TickSources:
    """Where the ticks of triggers come from. `last` is the end of all."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._feeds: dict[int, DayTicks] = {}  # by trigger: many schedules may have the same

    def ticks(self, trigger: Trigger, first: int, last: int, past: Past) -> list[int]:
        """Return the ticks in `first <= tick < last`."""
        if not isinstance(trigger, OnTheWall) or _is_dense(trigger):
            return list(trigger.iterate(first, last, past))
        feed = self._feeds.get(id(trigger))
        if feed is None or feed.reached != first:
            feed = self._feeds[id(trigger)] = DayTicks(trigger, first, self._last)
        return feed.up_to(last)


class CountedSchedule(NamedTuple):
    """A schedule whose ticks are counted in a stretch."""

    lane: ScheduleState
    ticks: CountedTicks
    fires: CountedTicks  # those that start a run
    before: int  # when the last run before them began: at most that one has not ended


class CountedSpan:
    """The schedules whose ticks are just counted in `first <= tick < last`, in seconds."""

    def __init__(
        self,
        first: int,
        last: int,
        feeds: TickSources,
        books: Recorder,
        days: DayCounters,
        *,
        since: int,
    ) -> None:
        self._first, self._last, self._since = first, last, since
        self._feeds, self._books, self._days = feeds, books, days
        self._shared: dict[int, CountedTicks] = {}  # by trigger
        self._counted: list[CountedSchedule] = []
        self.size = 0  # how many ticks there are

    def take(self, lane: ScheduleState) -> bool:
        """Return whether a schedule can be counted here; it is then part of it."""
        is_free = lane.is_countable and not (lane.runs or lane.is_paused or lane.past.spread_until)
        if not is_free or not (lane.is_counted or self._is_on_time(lane.due)):
            return False
        ticks = self._ticks_of(lane)
        fires = ticks.fires(lane, self._days)
        if fires is None:
            return False
        self._counted.append(CountedSchedule(lane, ticks, fires, lane.last_run))
        self.size += len(ticks.ticks)
        return True

    def end_at(self, last: int) -> None:
        """Leave out what is not before `last`: there the simulation ends."""
        self._last, days = last, self._days
        self._counted = [
            CountedSchedule(lane, ticks.before(last, days), fires.before(last, days), before)
            for lane, ticks, fires, before in self._counted
        ]
        self.size = sum(len(each.ticks.ticks) for each in self._counted)

    def count(self) -> Iterator[int]:
        """Enter it all in the books; yield how many ticks were, now and then."""
        by_bound: dict[int, list[list[int]]] = {}
        told = done = 0
        for each in self._counted:
            lane, fires = each.lane, each.fires.ticks
            lane.is_counted, lane.due = True, None
            lane.decided_until = max(lane.decided_until, self._last - 1)
            if fires:
                lane.last_run = fires[-1] * 1000
            if not lane.is_told:
                continue
            self._enter(each)
            if fires:
                by_bound.setdefault(bound_of(lane.length), []).append(fires)
            done += len(each.ticks.ticks)
            if done - told >= SLICE:
                told = done
                yield done
        for bound, lists in by_bound.items():
            yield from self._add_load(lists, bound)

    def times(self, first: int, last: int) -> Times:
        """Return when runs start and end, those in `first <= t < last`; `first` is a minute."""
        starts: list[int] = []
        ends: list[int] = []
        second = first // 1000
        for lane, fires in self._running(first, last):
            length = lane.length
            begun = [(tick - second) * 1000 for tick in fires]
            starts += begun
            ends += [start + length for start in begun]
        return starts, ends

    def who_runs(self, first: int, last: int) -> dict[str, int]:
        """Return whose runs those are."""
        return {lane.schedule_id: len(fires) for lane, fires in self._running(first, last)}

    def _running(self, first: int, last: int) -> Iterator[tuple[ScheduleState, list[int]]]:
        after_last = -(-last // 1000)
        for lane, _, fires, before in self._counted:
            if not lane.is_told:
                continue
            ticks, since = fires.ticks, first - lane.length
            begin = bisect_right(ticks, since // 1000)
            end = bisect_left(ticks, after_last, begin)
            if before > since:
                yield lane, [before // 1000, *ticks[begin:end]]
            elif begin < end:
                yield lane, ticks[begin:end]

    def _is_on_time(self, due: Due | None) -> bool:
        """Return whether the next tick is not before the stretch, and due as planned."""
        return due is None or self._first * 1000 <= due.due_at == due.run_at * 1000

    def _enter(self, each: CountedSchedule) -> None:
        lane, days = each.lane, self._days
        ticks, fires = each.ticks.since(self._since, days), each.fires.since(self._since, days)
        if fires.ticks:
            self._books.count(lane, fires.ticks, fires.by_day)
        skipped = len(ticks.ticks) - len(fires.ticks)
        if skipped:
            by_day = Counter(dict(ticks.by_day))
            by_day.subtract(dict(fires.by_day))
            self._books.count_skips(lane, skipped, lane.off or "overlap", by_day.items())

    def _add_load(self, lists: list[list[int]], bound: int) -> Iterator[int]:
        """Enter how many may run at the same time, of runs that last so long at most."""
        counted: Counter[int] = Counter()
        done = told = 0
        for ticks in lists:
            counted.update(ticks)
            done += len(ticks)
            if done - told >= 4 * SLICE:
                told = done
                yield done
        self._books.load.add_all(counted, bound)
        yield done

    def _ticks_of(self, lane: ScheduleState) -> CountedTicks:
        """Return the ticks of a schedule that are not decided."""
        trigger = lane.schedule.trigger
        found = self._shared.get(id(trigger))
        if found is None:
            ticks = self._feeds.ticks(trigger, self._first, self._last, lane.past)
            found = CountedTicks(ticks, self._days)
            if trigger.is_plain:  # else it may depend on when the schedule was made
                self._shared[id(trigger)] = found
        return found.since(lane.decided_until + 1, self._days)


NONE = CountedTicks([], DayCounters(0, 0, zone("UTC")))


def bound_of(length: int) -> int:
    """Return a length that is not less, of which there are few: minutes, by powers of two."""
    return MINUTE << max(-(-length // MINUTE) - 1, 0).bit_length()


def _is_dense(trigger: OnTheWall) -> bool:
    pattern = trigger.pattern
    return pattern.minutes.bit_count() * pattern.seconds.bit_count() > DENSE
