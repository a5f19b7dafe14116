"""Counting of ticks that do not influence one another, a span of time in one step.

Ticks are independent while each run of a schedule ends before its next tick, and nothing but the
time decides about them. This is checked for each span, by the ticks themselves.
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
from onbeat.core.triggers.kinds import LocalPatternTrigger
from onbeat.core.triggers.past import Past
from onbeat.simulate.counters import MINUTE, DayCounters, Times
from onbeat.simulate.recorder import Recorder
from onbeat.simulate.schedule_state import ScheduleState

SLICE = 50_000  # ticks that are counted between two yields
DENSE = 1440  # ticks per day: for patterns with more, the times of a day are not cached


class CountedTicks:
    """The ticks of one trigger in a span, which several schedules may share."""

    __slots__ = ("_smallest_gap", "by_day", "ticks")

    def __init__(self, ticks: list[int], days: DayCounters) -> None:
        self.ticks, self.by_day = ticks, days.split(ticks)
        self._smallest_gap: int | None = None

    def since(self, first: int, days: DayCounters) -> "CountedTicks":
        """Return the ticks that are not before `first`."""
        if not self.ticks or self.ticks[0] >= first:
            return self
        return CountedTicks(self.ticks[bisect_left(self.ticks, first) :], days)

    def before(self, last: int, days: DayCounters) -> "CountedTicks":
        """Return the ticks before `last`."""
        if not self.ticks or self.ticks[-1] < last:
            return self
        return CountedTicks(self.ticks[: bisect_left(self.ticks, last)], days)

    def are_further_apart_than(self, length: int) -> bool:
        """Return whether a run of this length always ends before the next tick."""
        if length < 1000:
            return True
        if self._smallest_gap is None:
            gaps = map(sub, islice(self.ticks, 1, None), self.ticks)
            self._smallest_gap = min(gaps, default=1 << 62) * 1000
        return length < self._smallest_gap

    def fires(self, state: ScheduleState, days: DayCounters) -> "CountedTicks | None":
        """Return the ticks that start a run, or None if they have to be decided one by one.

        Ticks that occur during a run are skipped, if that is the policy.
        """
        if state.skip_reason is not None or not self.ticks:
            return NONE
        ticks, length, free_after = self.ticks, state.length, state.last_end
        if ticks[0] * 1000 > free_after and self.are_further_apart_than(length):
            return self
        if state.schedule.policy.overlap != "skip":
            return None
        found, at = [], 0
        while (at := bisect_right(ticks, free_after // 1000, at)) < len(ticks):
            found.append(ticks[at])
            free_after = ticks[at] * 1000 + length
        return CountedTicks(found, days)


class DayTicks:
    """The ticks of a wall-clock pattern, span after span; each day is computed once."""

    __slots__ = ("_days", "_left", "reached")

    def __init__(self, trigger: LocalPatternTrigger, first: int, last: int) -> None:
        self._days = trigger.pattern.ticks(first, last)
        self._left: list[int] = []
        self.reached = first

    def up_to(self, last: int) -> list[int]:
        """Return the ticks from the end of the last call up to `last`."""
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
    """The sources of ticks, by trigger. `last` is the end of the simulation."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._sources: dict[int, DayTicks] = {}  # by trigger, which schedules may share

    def ticks(self, trigger: Trigger, first: int, last: int, past: Past) -> list[int]:
        """Return the ticks in `first <= tick < last`."""
        if not isinstance(trigger, LocalPatternTrigger) or _is_dense(trigger):
            return list(trigger.iterate(first, last, past))
        source = self._sources.get(id(trigger))
        if source is None or source.reached != first:
            source = self._sources[id(trigger)] = DayTicks(trigger, first, self._last)
        return source.up_to(last)


class CountedSchedule(NamedTuple):
    """A schedule whose ticks are counted in a span."""

    state: ScheduleState
    ticks: CountedTicks
    fires: CountedTicks  # the ticks that start a run
    before: int  # the start of the last run before the span: only that one may still be running


class CountedSpan:
    """The schedules whose ticks are counted in `first <= tick < last`, in seconds."""

    def __init__(
        self,
        first: int,
        last: int,
        sources: TickSources,
        recorder: Recorder,
        days: DayCounters,
        *,
        since: int,
    ) -> None:
        self._first, self._last, self._since = first, last, since
        self._sources, self._recorder, self._days = sources, recorder, days
        self._shared: dict[int, CountedTicks] = {}  # by trigger
        self._counted: list[CountedSchedule] = []
        self.size = 0  # the number of ticks

    def take(self, state: ScheduleState) -> bool:
        """Add a schedule if its ticks can be counted in this span; return whether they can."""
        is_free = state.is_countable and not (
            state.runs or state.is_paused or state.past.spread_until
        )
        if not is_free or not (state.is_counted or self._is_on_time(state.due)):
            return False
        ticks = self._ticks_of(state)
        fires = ticks.fires(state, self._days)
        if fires is None:
            return False
        self._counted.append(CountedSchedule(state, ticks, fires, state.last_run))
        self.size += len(ticks.ticks)
        return True

    def end_at(self, last: int) -> None:
        """Shorten the span: the simulation ends at `last`."""
        self._last, days = last, self._days
        self._counted = [
            CountedSchedule(state, ticks.before(last, days), fires.before(last, days), before)
            for state, ticks, fires, before in self._counted
        ]
        self.size = sum(len(each.ticks.ticks) for each in self._counted)

    def count(self) -> Iterator[int]:
        """Record all ticks; yield the number of recorded ticks from time to time."""
        by_bound: dict[int, list[list[int]]] = {}
        reported = done = 0
        for each in self._counted:
            state, fires = each.state, each.fires.ticks
            state.is_counted, state.due = True, None
            state.decided_until = max(state.decided_until, self._last - 1)
            if fires:
                state.last_run = fires[-1] * 1000
            if not state.is_reported:
                continue
            self._enter(each)
            if fires:
                by_bound.setdefault(bound_of(state.length), []).append(fires)
            done += len(each.ticks.ticks)
            if done - reported >= SLICE:
                reported = done
                yield done
        for bound, lists in by_bound.items():
            yield from self._add_load(lists, bound)

    def times(self, first: int, last: int) -> Times:
        """Return the starts and ends of runs in `first <= t < last`; `first` is a full minute."""
        starts: list[int] = []
        ends: list[int] = []
        second = first // 1000
        for state, fires in self._running(first, last):
            length = state.length
            started = [(tick - second) * 1000 for tick in fires]
            starts += started
            ends += [start + length for start in started]
        return starts, ends

    def runs_by_schedule(self, first: int, last: int) -> dict[str, int]:
        """Return the number of those runs by schedule."""
        return {state.schedule_id: len(fires) for state, fires in self._running(first, last)}

    def _running(self, first: int, last: int) -> Iterator[tuple[ScheduleState, list[int]]]:
        after_last = -(-last // 1000)
        for state, _, fires, before in self._counted:
            if not state.is_reported:
                continue
            ticks, since = fires.ticks, first - state.length
            begin = bisect_right(ticks, since // 1000)
            end = bisect_left(ticks, after_last, begin)
            if before > since:
                yield state, [before // 1000, *ticks[begin:end]]
            elif begin < end:
                yield state, ticks[begin:end]

    def _is_on_time(self, due: Due | None) -> bool:
        """Return whether the next tick is not before the span, and is due when planned."""
        return due is None or self._first * 1000 <= due.due_at == due.run_at * 1000

    def _enter(self, each: CountedSchedule) -> None:
        state, days = each.state, self._days
        ticks, fires = each.ticks.since(self._since, days), each.fires.since(self._since, days)
        if fires.ticks:
            self._recorder.count(state, fires.ticks, fires.by_day)
        skipped = len(ticks.ticks) - len(fires.ticks)
        if skipped:
            by_day = Counter(dict(ticks.by_day))
            by_day.subtract(dict(fires.by_day))
            self._recorder.count_skips(
                state, skipped, state.skip_reason or "overlap", by_day.items()
            )

    def _add_load(self, lists: list[list[int]], bound: int) -> Iterator[int]:
        """Record the concurrency of runs of a length of at most `bound`."""
        counted: Counter[int] = Counter()
        done = reported = 0
        for ticks in lists:
            counted.update(ticks)
            done += len(ticks)
            if done - reported >= 4 * SLICE:
                reported = done
                yield done
        self._recorder.load.add_all(counted, bound)
        yield done

    def _ticks_of(self, state: ScheduleState) -> CountedTicks:
        """Return the undecided ticks of a schedule."""
        trigger = state.schedule.trigger
        found = self._shared.get(id(trigger))
        if found is None:
            ticks = self._sources.ticks(trigger, self._first, self._last, state.past)
            found = CountedTicks(ticks, self._days)
            if trigger.is_plain:  # others may depend on when the schedule was created
                self._shared[id(trigger)] = found
        return found.since(state.decided_until + 1, self._days)


NONE = CountedTicks([], DayCounters(0, 0, zone("UTC")))


def bound_of(length: int) -> int:
    """Round a length up to minutes in powers of two, so that there are few different bounds."""
    return MINUTE << max(-(-length // MINUTE) - 1, 0).bit_length()


def _is_dense(trigger: LocalPatternTrigger) -> bool:
    pattern = trigger.pattern
    return pattern.minutes.bit_count() * pattern.seconds.bit_count() > DENSE
