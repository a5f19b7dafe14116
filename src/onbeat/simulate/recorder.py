"""The books of a simulation: every tick and every run is entered here, and counted.

Before `since`, and of schedules that are not told of, nothing is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from onbeat.core.runs.decisions import Finish, Tick
from onbeat.core.runs.run import Reason, Run, Status
from onbeat.simulate.counters import ConcurrencyLoad, Counters, DayCounters, Times
from onbeat.simulate.schedule_state import ScheduleState


class SimulatedRun(msgspec.Struct, frozen=True):
    """A run that is over, or ticks that were decided against: as the store would keep it."""

    schedule_id: str
    run_at: int
    status: Status
    reason: Reason | None
    started_at: int | None
    finished_at: int
    tick_count: int = 1


Witness = Callable[[SimulatedRun], None]


class Recorder:
    """All that is counted. Whoever is the `witness` hears of everything that is played."""

    def __init__(self, days: DayCounters, *, since: int, witness: Witness | None = None) -> None:
        self._since, self._days, self._witness = since, days, witness
        self.load = ConcurrencyLoad(since)
        self.groups: dict[str, Counters] = {}
        self._over: list[tuple[str, int, int]] = []  # runs that have ended: whose, from, until

    def group(self, name: str) -> Counters:
        """Return what is counted of a group."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Counters()
        return found

    # -- what is played

    def decide(self, lane: ScheduleState, tick: Tick, *, now: int) -> None:
        """Enter ticks that are decided."""
        if self._counts(lane, now):
            lane.count.ticks += _ticks_of(tick)

    def skip(self, lane: ScheduleState, tick: Tick, reason: Reason, *, now: int) -> None:
        """Enter ticks that were decided against."""
        number = _ticks_of(tick)
        first = tick.run_at if tick.first_run_at is None else tick.first_run_at
        if self._witness is not None:
            self._witness(_skipped(lane, tick.run_at, reason, now, number))
        self._leave_out(lane, first, tick.run_at, number, reason, now=now)

    def coalesce(self, lane: ScheduleState, tick: Tick, *, now: int) -> None:
        """Enter the ticks for which the run of the latest stands."""
        if tick.first_run_at is not None:
            number = tick.count - 1
            self._leave_out(lane, tick.first_run_at, tick.run_at, number, "coalesced", now=now)

    def give_up(self, lane: ScheduleState, run: Run, reason: Reason, *, now: int) -> None:
        """Enter the end of a run that waited, and will not start."""
        status = run.unstarted_end
        if self._witness is not None:
            self._witness(SimulatedRun(lane.schedule_id, run.run_at, status, reason, None, now))
        if status is Status.SKIPPED:
            self._leave_out(lane, run.run_at, run.run_at, 1, reason, now=now)

    def start(self, lane: ScheduleState, run: Run, *, now: int) -> None:
        """Enter a run that starts."""
        wait = now - max(run.due_at, run.created_at)
        self._run(lane, run, now, wait, now=now)
        if self._counts(lane, now):
            lane.count.fires += 1
            self._days.fires[self._days.of(now // 1000)] += 1

    def go_on(self, lane: ScheduleState, run: Run, started_at: int, *, now: int) -> None:
        """Enter a run that was started before."""
        self._run(lane, run, started_at, 0, now=now)

    def end(self, lane: ScheduleState, run: Run, found: Finish, *, now: int) -> None:
        """Enter the end of a run."""
        started_at = lane.started_at.pop(run.run_id)
        lane.count.running -= 1
        if lane.schedule.policy.group is not None:
            self.group(lane.schedule.policy.group).running -= 1
        if self._witness is not None:
            ids = lane.schedule_id, run.run_at
            self._witness(SimulatedRun(*ids, found.status, found.reason, started_at, now))
        if lane.is_told:
            self.load.remove(now)
            self._over.append((lane.schedule_id, started_at, now))
        if found.status is Status.CANCELED and self._counts(lane, now):
            lane.count.ended_early += 1

    # -- what is counted without being played

    def count(
        self, lane: ScheduleState, fires: Sequence[int], by_day: Iterable[tuple[int, int]]
    ) -> None:
        """Enter ticks that start a run each."""
        counted, days = lane.count, self._days.fires
        counted.ticks += len(fires)
        counted.fires += len(fires)
        for day, of_day in by_day:
            days[day] += of_day
        if not counted.peak:
            counted.peak, counted.peak_at = 1, fires[0] * 1000

    def count_skips(
        self, lane: ScheduleState, number: int, reason: Reason, by_day: Iterable[tuple[int, int]]
    ) -> None:
        """Enter ticks that are skipped, all for one reason."""
        lane.count.ticks += number
        lane.count.skips[reason] += number
        for day, of_day in by_day:
            self._days.skips[day] += of_day

    # -- looking back

    def times(self, lanes: Iterable[ScheduleState], first: int, last: int) -> Times:
        """Return when runs that were played start and end, those in `first <= t < last`."""
        found = self._played(lanes, first, last)
        return [since - first for _, since, _ in found], [until - first for _, _, until in found]

    def who_runs(self, lanes: Iterable[ScheduleState], first: int, last: int) -> Counter[str]:
        """Return whose runs those are."""
        return Counter(whose for whose, _, _ in self._played(lanes, first, last))

    def _played(
        self, lanes: Iterable[ScheduleState], first: int, last: int
    ) -> list[tuple[str, int, int]]:
        found = [run for run in self._over if run[1] < last and run[2] > first]
        for lane in lanes:
            if lane.is_told:
                running = (since for since in lane.started_at.values() if since < last)
                found += [(lane.schedule_id, since, last) for since in running]
        return found

    def turn_the_page(self) -> None:
        """Forget the runs that have ended: nobody will look back at them."""
        self._over.clear()

    def _counts(self, lane: ScheduleState, now: int) -> bool:
        return lane.is_told and now >= self._since

    def _run(self, lane: ScheduleState, run: Run, started_at: int, wait: int, *, now: int) -> None:
        lane.started_at[run.run_id] = started_at
        lane.count.begin(now, wait=wait, is_told=self._counts(lane, now))
        group = lane.schedule.policy.group
        if group is not None:
            self.group(group).begin(now, wait=wait, is_told=now >= self._since)
        if lane.is_told:
            self.load.add(now)

    def _leave_out(
        self, lane: ScheduleState, first: int, last: int, number: int, reason: Reason, *, now: int
    ) -> None:
        """Count skipped ticks, each on the day it was planned for."""
        if not number or not self._counts(lane, now):
            return
        lane.count.skips[reason] += number
        day, begins = self._days.of(first), self._days.begins
        while day + 1 < len(begins) and begins[day + 1] <= last:
            of_day = min(lane.schedule.trigger.count(first, begins[day + 1], lane.past), number)
            self._days.skips[day] += of_day
            day, first, number = day + 1, begins[day + 1], number - of_day
        self._days.skips[day] += number


def _ticks_of(tick: Tick) -> int:
    """Return how many ticks there are; further events of one are none."""
    return 1 if tick.first_run_at is None else tick.count


def _skipped(
    lane: ScheduleState, run_at: int, reason: Reason, now: int, number: int
) -> SimulatedRun:
    return SimulatedRun(lane.schedule_id, run_at, Status.SKIPPED, reason, None, now, number)
