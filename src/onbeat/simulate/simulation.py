"""Simulation of schedules: the production `plan()` on a virtual clock.

Nothing is read, written or started. Starting from a snapshot, every tick is decided by the
functions of the engine; a run is assumed to succeed after the usual length of its schedule. Ticks
that do not influence one another are only counted: see `counted_ticks`.

    simulation = Simulation(snapshot, until=until)
    for done in simulation.steps():  # a few hundredths of a second each
        ...
    simulation.forecast()

Instants and lengths are milliseconds.
"""

from collections.abc import Collection, Iterator, Mapping

from onbeat.core.runs.run import Reason
from onbeat.core.schedule import follows
from onbeat.core.snapshot import Snapshot
from onbeat.core.time.zones import zone
from onbeat.simulate.counted_ticks import SLICE, CountedSpan, TickSources
from onbeat.simulate.counters import MINUTE, DayCounters, Times
from onbeat.simulate.forecasts import (
    DayForecast,
    Forecast,
    GroupForecast,
    ScheduleForecast,
    forecast_fields,
)
from onbeat.simulate.recorder import Recorder, SimulatedRun, Witness
from onbeat.simulate.schedule_state import ScheduleState, link
from onbeat.simulate.simulator import Simulator

__all__ = [
    "LONGEST",
    "MOST_COUNTED",
    "MOST_PLAYED",
    "RUN_LENGTH",
    "DayForecast",
    "Forecast",
    "GroupForecast",
    "ScheduleForecast",
    "SimulatedRun",
    "Simulation",
    "forecast_fields",
]

LONGEST = 5 * 366 * 86_400_000
MOST_PLAYED = 500_000  # ticks that are decided one by one, which takes longest
MOST_COUNTED = 100_000_000  # ticks that are only counted
RUN_LENGTH = 1000  # of schedules without past runs
FIRST_SPAN, LONGEST_SPAN = 3600, 28 * 86_400  # seconds
MOST_PER_SPAN = 500_000  # ticks in one span, which are held in memory


class Simulation:
    """A simulation: `steps` runs it, `forecast` returns the result."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        until: int,
        since: int | None = None,
        only: Collection[str] | None = None,
        run_length: int = RUN_LENGTH,
        timezone: str = "UTC",
        most_played: int = MOST_PLAYED,
        most_counted: int = MOST_COUNTED,
        counts: bool = True,
        witness: Witness | None = None,
    ) -> None:
        """Start from a snapshot, and report from `since` on, for the schedules in `only`.

        Days are those of `timezone`. Without `counts` every tick is decided one by one, and passed
        to the witness.
        """
        self._first = snapshot.now
        self._since = self._first if since is None else max(since, self._first)
        self._until = until
        self._last, self._cut_off = min(until, self._since + LONGEST), ""
        if self._last < until:
            self._cut_off = "a simulation covers at most five years"
        self._places = snapshot.places
        self._days = DayCounters(self._since // 1000, -(-self._last // 1000), zone(timezone))
        self._recorder = Recorder(self._days, since=self._since, witness=witness)
        self._simulator = Simulator(self._recorder, snapshot.places, now=self._first)
        self._most_played, self._most_counted, self._counts = most_played, most_counted, counts
        self._counted, self._sources = 0, TickSources(-(-self._last // 1000))
        self._busiest: Mapping[str, int] = {}
        self._part = 0.0  # the completed part
        self._states: dict[str, ScheduleState] = {}
        self._enter(snapshot, only, run_length)

    def steps(self) -> Iterator[float]:
        """Run the simulation; yield the completed part, 0 to 1, every few hundredths of a second.

        It proceeds in spans of time, so that memory is bounded. In each span, ticks are first
        decided one by one, then counted, and then the maximum number of concurrent runs is updated.
        """
        first, length = -(-self._first // 1000), FIRST_SPAN
        while first * 1000 < self._last and not self._has_counted_enough(first):
            last = min((first + length) // 60 * 60, -(-self._last // 1000))
            span, before = self._make_span(first, last), self._simulator.decided
            for _ in self._divide(span, first):
                yield self._done(first * 1000)
            for at in self._simulator.play(min(last * 1000, self._last), self._most_played):
                yield self._done(at)
            if self._has_played_enough(first):
                last = -(-self._last // 1000)
                span.end_at(last)
            for _ in span.count():
                yield self._done(first * 1000)
            for at in self._find_peak(span, min(last * 1000, self._last)):
                yield self._done(at)
            self._counted += span.size
            size = max(span.size + self._simulator.decided - before, 1)
            length = max(60, min(8 * length, (last - first) * MOST_PER_SPAN // size, LONGEST_SPAN))
            first = last
            yield self._done(first * 1000)
        self._set_aside()

    def forecast(self) -> Forecast:
        """Return the result."""
        schedules = tuple(
            _forecast(state) for _, state in sorted(self._states.items()) if state.is_reported
        )
        skips: dict[Reason, int] = {}
        for each in schedules:
            for reason, number in each.skips.items():
                skips[reason] = skips.get(reason, 0) + number
        load = self._recorder.load
        return Forecast(
            first=self._since,
            last=self._last,
            asked=self._until,
            cut_off=self._cut_off,
            schedules=schedules,
            days=self._days.forecasts(),
            groups=tuple(
                GroupForecast(
                    name, self._places.get(name, 1), each.peak, each.peak_at, each.waited,
                    each.longest_wait,
                )
                for name, each in sorted(self._recorder.groups.items())
            ),
            ticks=sum(each.ticks for each in schedules),
            fires=sum(each.fires for each in schedules),
            skips=skips,
            peak=load.peak,
            peak_at=load.peak_at,
            busiest=dict(sorted(self._busiest.items(), key=lambda each: (-each[1], each[0]))),
        )  # fmt: skip

    def _enter(self, snapshot: Snapshot, only: Collection[str] | None, run_length: int) -> None:
        """Create the states of the schedules in `only` and of those that they depend on."""
        selected = list(snapshot.schedules)
        if only is not None:
            needed = _with_dependencies(snapshot, only)
            selected = [each for each in selected if each.schedule.schedule_id in needed]
        for entry in selected:
            schedule_id = entry.schedule.schedule_id
            is_reported = only is None or schedule_id in only
            self._states[schedule_id] = ScheduleState(
                entry, run_length=run_length, is_reported=is_reported
            )
        link(self._states, {s.schedule.schedule_id: follows(s.schedule) for s in selected})
        for entry in selected:
            state = self._states[entry.schedule.schedule_id]
            self._simulator.enter(state, entry)
            self._simulator.await_due(state)

    def _make_span(self, first: int, last: int) -> CountedSpan:
        since = -(-self._since // 1000)
        return CountedSpan(first, last, self._sources, self._recorder, self._days, since=since)

    def _divide(self, span: CountedSpan, first: int) -> Iterator[int]:
        """Choose the schedules that are counted in a span; the others are simulated one by one.

        A schedule may be counted in one span and simulated in the next.
        """
        reported = 0
        for number, state in enumerate(self._states.values(), 1):
            if self._counts and span.take(state):
                state.is_counted = True
            elif state.is_counted:
                self._simulator.now = max(self._simulator.now, first * 1000)
                self._simulator.play_from_now(state)
            if span.size - reported >= SLICE or number % 250 == 0:
                reported = span.size
                yield reported

    def _find_peak(self, span: CountedSpan, until: int) -> Iterator[int]:
        """Update the peak, and the schedules that run at that time."""
        recorder, states = self._recorder, self._states.values()
        before = recorder.load.peak_at

        def find(first: int, last: int) -> Times:
            single, counted = recorder.times(states, first, last), span.times(first, last)
            return single[0] + counted[0], single[1] + counted[1]

        yield from recorder.load.find_peaks(until, find)
        at = recorder.load.peak_at
        if at is not None and at != before:
            first = at // MINUTE * MINUTE
            found = recorder.runs_by_schedule(states, first, first + MINUTE)
            found.update(span.runs_by_schedule(first, first + MINUTE))
            self._busiest = found
        recorder.forget_finished()

    def _has_played_enough(self, first: int) -> bool:
        """End the simulation here if too many ticks were decided one by one."""
        at = self._simulator.next_at()
        if self._simulator.decided < self._most_played or at is None or at >= self._last:
            return False
        self._last = max(at, first * 1000)
        self._cut_off = f"{self._most_played} ticks had to be decided one by one"
        return True

    def _has_counted_enough(self, first: int) -> bool:
        """End the simulation before the next span if too many ticks were counted."""
        if self._counted < self._most_counted:
            return False
        self._last = first * 1000
        self._cut_off = f"{self._most_counted} ticks were counted"
        return True

    def _set_aside(self) -> None:
        """Skip the ticks of schedules that are still paused."""
        self._simulator.now = self._last
        for state in self._states.values():
            if state.is_paused:
                self._simulator.set_aside(state, self._last - 1)

    def _done(self, at: int) -> float:
        part = (at - self._first) / max(self._last - self._first, 1)
        self._part = min(max(part, self._part), 1.0)
        return self._part


def _with_dependencies(snapshot: Snapshot, only: Collection[str]) -> set[str]:
    """Return these schedules, those that they follow, and those in the same groups."""
    found, new = set[str](), set(only)
    by_id = {entry.schedule.schedule_id: entry.schedule for entry in snapshot.schedules}
    while new:
        found |= new
        schedules = [by_id[name] for name in new if name in by_id]
        groups = {schedule.policy.group for schedule in schedules} - {None}
        new = set[str]().union(*(follows(schedule) for schedule in schedules))
        new |= {name for name, each in by_id.items() if each.policy.group in groups}
        new -= found
    return found


def _forecast(state: ScheduleState) -> ScheduleForecast:
    counted = state.count
    return ScheduleForecast(
        state.schedule_id,
        state.length,
        state.is_length_known,
        counted.ticks,
        counted.fires,
        dict(counted.skips),
        state.waiting(),
        counted.ended_early,
        counted.waited,
        counted.longest_wait,
        counted.longest_wait_at,
        counted.peak,
        counted.peak_at,
    )
