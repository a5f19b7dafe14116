"""What schedules would do: the production `plan()` on a virtual clock.

Nothing is read, written or started. Every tick is decided by the functions that the engine decides
with, given where schedules stand; a run is taken to succeed after the length that is usual for its
schedule. Ticks that cannot influence one another are only counted: see `counting`.

    simulation = Simulation(standings, until=until)
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
MOST_PLAYED = 500_000  # ticks that are decided one by one: they take longest
MOST_COUNTED = 100_000_000  # ticks that are only counted
RUN_LENGTH = 1000  # of schedules that have not run yet
FIRST_STRETCH, LONGEST_STRETCH = 3600, 28 * 86_400  # seconds
ENOUGH = 500_000  # ticks in one stretch: so many are held in memory


class Simulation:
    """One forecast in the making: `steps` makes it, `forecast` tells it."""

    def __init__(
        self,
        standings: Snapshot,
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
        """Begin where schedules stand, and count from `since` on, for those in `only` alone.

        Days are those of `timezone`. Without `counts` everything is played, and the witness told.
        """
        self._first = standings.now
        self._since = self._first if since is None else max(since, self._first)
        self._asked = until
        self._last, self._cut_off = min(until, self._since + LONGEST), ""
        if self._last < until:
            self._cut_off = "five years are the longest that is simulated"
        self._places = standings.places
        self._days = DayCounters(self._since // 1000, -(-self._last // 1000), zone(timezone))
        self._books = Recorder(self._days, since=self._since, witness=witness)
        self._world = Simulator(self._books, standings.places, now=self._first)
        self._most_played, self._most_counted, self._counts = most_played, most_counted, counts
        self._counted, self._feeds = 0, TickSources(-(-self._last // 1000))
        self._busiest: Mapping[str, int] = {}
        self._part = 0.0  # how much of it is done
        self._lanes: dict[str, ScheduleState] = {}
        self._enter(standings, only, run_length)

    def steps(self) -> Iterator[float]:
        """Go on, and yield how much of it is done: from 0 to 1, every few hundredths of a second.

        A stretch of time after the other, so that memory is bounded: what is played of it first,
        then what is only counted, then how many runs there are at the same time.
        """
        first, length = -(-self._first // 1000), FIRST_STRETCH
        while first * 1000 < self._last and not self._has_counted_enough(first):
            last = min((first + length) // 60 * 60, -(-self._last // 1000))
            stretch, before = self._stretch(first, last), self._world.decided
            for _ in self._divide(stretch, first):
                yield self._done(first * 1000)
            for at in self._world.play(min(last * 1000, self._last), self._most_played):
                yield self._done(at)
            if self._has_played_enough(first):
                last = -(-self._last // 1000)
                stretch.end_at(last)
            for _ in stretch.count():
                yield self._done(first * 1000)
            for at in self._look_at_load(stretch, min(last * 1000, self._last)):
                yield self._done(at)
            self._counted += stretch.size
            size = max(stretch.size + self._world.decided - before, 1)
            length = max(60, min(8 * length, (last - first) * ENOUGH // size, LONGEST_STRETCH))
            first = last
            yield self._done(first * 1000)
        self._set_aside()

    def forecast(self) -> Forecast:
        """Return what was found."""
        schedules = tuple(_told(lane) for _, lane in sorted(self._lanes.items()) if lane.is_told)
        skips: dict[Reason, int] = {}
        for each in schedules:
            for reason, number in each.skips.items():
                skips[reason] = skips.get(reason, 0) + number
        load = self._books.load
        return Forecast(
            first=self._since,
            last=self._last,
            asked=self._asked,
            cut_off=self._cut_off,
            schedules=schedules,
            days=self._days.forecasts(),
            groups=tuple(
                GroupForecast(
                    name, self._places.get(name, 1), each.peak, each.peak_at, each.waited,
                    each.longest_wait,
                )
                for name, each in sorted(self._books.groups.items())
            ),
            ticks=sum(each.ticks for each in schedules),
            fires=sum(each.fires for each in schedules),
            skips=skips,
            peak=load.peak,
            peak_at=load.peak_at,
            busiest=dict(sorted(self._busiest.items(), key=lambda each: (-each[1], each[0]))),
        )  # fmt: skip

    def _enter(self, standings: Snapshot, only: Collection[str] | None, run_length: int) -> None:
        """Have a lane for each schedule that is asked for, or that those depend on."""
        played = list(standings.standings)
        if only is not None:
            concerned = _concerned(standings, only)
            played = [each for each in played if each.schedule.schedule_id in concerned]
        for standing in played:
            schedule_id = standing.schedule.schedule_id
            is_told = only is None or schedule_id in only
            self._lanes[schedule_id] = ScheduleState(
                standing, run_length=run_length, is_told=is_told
            )
        link(self._lanes, {s.schedule.schedule_id: follows(s.schedule) for s in played})
        for standing in played:
            lane = self._lanes[standing.schedule.schedule_id]
            self._world.enter(lane, standing)
            self._world.await_due(lane)

    def _stretch(self, first: int, last: int) -> CountedSpan:
        since = -(-self._since // 1000)
        return CountedSpan(first, last, self._feeds, self._books, self._days, since=since)

    def _divide(self, stretch: CountedSpan, first: int) -> Iterator[int]:
        """Find the schedules that are only counted in a stretch; see that the others are played.

        A schedule may be counted in one stretch and played in the next.
        """
        told = 0
        for number, lane in enumerate(self._lanes.values(), 1):
            if self._counts and stretch.take(lane):
                lane.is_counted = True
            elif lane.is_counted:
                self._world.now = max(self._world.now, first * 1000)
                self._world.take_over(lane)
            if stretch.size - told >= SLICE or number % 250 == 0:
                told = stretch.size
                yield told

    def _look_at_load(self, stretch: CountedSpan, until: int) -> Iterator[int]:
        """Find out whether there is a new peak, and who runs then."""
        books, lanes = self._books, self._lanes.values()
        before = books.load.peak_at

        def find(first: int, last: int) -> Times:
            played, counted = books.times(lanes, first, last), stretch.times(first, last)
            return played[0] + counted[0], played[1] + counted[1]

        yield from books.load.look(until, find)
        at = books.load.peak_at
        if at is not None and at != before:
            first = at // MINUTE * MINUTE
            found = books.who_runs(lanes, first, first + MINUTE)
            found.update(stretch.who_runs(first, first + MINUTE))
            self._busiest = found
        books.turn_the_page()

    def _has_played_enough(self, first: int) -> bool:
        """Return whether too many ticks had to be decided one by one: then it ends where it is."""
        at = self._world.next_at()
        if self._world.decided < self._most_played or at is None or at >= self._last:
            return False
        self._last = max(at, first * 1000)
        self._cut_off = f"{self._most_played} ticks had to be decided one by one"
        return True

    def _has_counted_enough(self, first: int) -> bool:
        """Return whether too many ticks were counted: then it ends before the next stretch."""
        if self._counted < self._most_counted:
            return False
        self._last = first * 1000
        self._cut_off = f"{self._most_counted} ticks were counted"
        return True

    def _set_aside(self) -> None:
        """Skip the ticks of those that are still paused."""
        self._world.now = self._last
        for lane in self._lanes.values():
            if lane.is_paused:
                self._world.set_aside(lane, self._last - 1)

    def _done(self, at: int) -> float:
        part = (at - self._first) / max(self._last - self._first, 1)
        self._part = min(max(part, self._part), 1.0)
        return self._part


def _concerned(standings: Snapshot, only: Collection[str]) -> set[str]:
    """Return these schedules and those whose runs they follow, or share a group with."""
    found, new = set[str](), set(only)
    by_id = {standing.schedule.schedule_id: standing.schedule for standing in standings.standings}
    while new:
        found |= new
        schedules = [by_id[name] for name in new if name in by_id]
        groups = {schedule.policy.group for schedule in schedules} - {None}
        new = set[str]().union(*(follows(schedule) for schedule in schedules))
        new |= {name for name, each in by_id.items() if each.policy.group in groups}
        new -= found
    return found


def _told(lane: ScheduleState) -> ScheduleForecast:
    counted = lane.count
    return ScheduleForecast(
        lane.schedule_id,
        lane.length,
        lane.is_length_known,
        counted.ticks,
        counted.fires,
        dict(counted.skips),
        lane.waiting(),
        counted.ended_early,
        counted.waited,
        counted.longest_wait,
        counted.longest_wait_at,
        counted.peak,
        counted.peak_at,
    )
