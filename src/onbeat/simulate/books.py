"""The books of a simulation: every tick and every run is entered here, and counted.

Before `since`, and of schedules that are not told of, nothing is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from onbeat.core.decisions import Ended, Tick
from onbeat.core.runs import Reason, Run, Status
from onbeat.simulate.lanes import Lane
from onbeat.simulate.tally import Count, Days, Load, Times


class Played(msgspec.Struct, frozen=True):
    """A run that is over, or ticks that were decided against: as the store would keep it."""

    schedule_id: str
    run_at: int
    status: Status
    reason: Reason | None
    started_at: int | None
    finished_at: int
    tick_count: int = 1


Witness = Callable[[Played], None]


class Books:
    """All that is counted. Whoever is the `witness` hears of everything that is played."""

    def __init__(self, days: Days, *, since: int, witness: Witness | None = None) -> None:
        self._since, self._days, self._witness = since, days, witness
        self.load = Load(since)
        self.groups: dict[str, Count] = {}
        self._over: list[tuple[str, int, int]] = []  # runs that have ended: whose, from, until

    def group(self, name: str) -> Count:
        """Return what is counted of a group."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Count()
        return found

    # -- what is played

    def decide(self, lane: Lane, tick: Tick, *, now: int) -> None:
        """Enter ticks that are decided."""
        if self._counts(lane, now):
            lane.count.ticks += _ticks_of(tick)

    def skip(self, lane: Lane, tick: Tick, reason: Reason, *, now: int) -> None:
        """Enter ticks that were decided against."""
        number = _ticks_of(tick)
        first = tick.run_at if tick.first_run_at is None else tick.first_run_at
        if self._witness is not None:
            self._witness(_skipped(lane, tick.run_at, reason, now, number))
        self._leave_out(lane, first, tick.run_at, number, reason, now=now)

    def coalesce(self, lane: Lane, tick: Tick, *, now: int) -> None:
        """Enter the ticks for which the run of the latest stands."""
        if tick.first_run_at is not None:
            number = tick.count - 1
            self._leave_out(lane, tick.first_run_at, tick.run_at, number, "coalesced", now=now)

    def give_up(self, lane: Lane, run: Run, reason: Reason, *, now: int) -> None:
        """Enter the end of a run that waited, and will not start."""
        status = run.unstarted_end
        if self._witness is not None:
            self._witness(Played(lane.schedule_id, run.run_at, status, reason, None, now))
        if status is Status.SKIPPED:
            self._leave_out(lane, run.run_at, run.run_at, 1, reason, now=now)

    def start(self, lane: Lane, run: Run, *, now: int) -> None:
        """Enter a run that starts."""
        wait = now - max(run.due_at, run.created_at)
        self._run(lane, run, now, wait, now=now)
        if self._counts(lane, now):
            lane.count.fires += 1
            self._days.fires[self._days.of(now // 1000)] += 1

    def go_on(self, lane: Lane, run: Run, started_at: int, *, now: int) -> None:
        """Enter a run that was started before."""
        self._run(lane, run, started_at, 0, now=now)

    def end(self, lane: Lane, run: Run, found: Ended, *, now: int) -> None:
        """Enter the end of a run."""
        started_at = lane.started_at.pop(run.run_id)
        lane.count.running -= 1
        if lane.schedule.policy.group is not None:
            self.group(lane.schedule.policy.group).running -= 1
        if self._witness is not None:
            ids = lane.schedule_id, run.run_at
            self._witness(Played(*ids, found.status, found.reason, started_at, now))
        if lane.is_told:
            self.load.remove(now)
            self._over.append((lane.schedule_id, started_at, now))
        if found.status is Status.CANCELED and self._counts(lane, now):
            lane.count.ended_early += 1

    # -- what is counted without being played

    def count(self, lane: Lane, fires: Sequence[int], by_day: Iterable[tuple[int, int]]) -> None:
        """Enter ticks that start a run each."""
        counted, days = lane.count, self._days.fires
        counted.ticks += len(fires)
        counted.fires += len(fires)
        for day, of_day in by_day:
            days[day] += of_day
        if not counted.peak:
            counted.peak, counted.peak_at = 1, fires[0] * 1000

    def count_skips(
        self, lane: Lane, number: int, reason: Reason, by_day: Iterable[tuple[int, int]]
    ) -> None:
        """Enter ticks that are skipped, all for one reason."""
        lane.count.ticks += number
        lane.count.skips[reason] += number
        for day, of_day in by_day:
            self._days.skips[day] += of_day

    # -- looking back

    def times(self, lanes: Iterable[Lane], first: int, last: int) -> Times:
        """Return when runs that were played start and end, those in `first <= t < last`."""
        found = self._played(lanes, first, last)
        return [since - first for _, since, _ in found], [until - first for _, _, until in found]

    def who_runs(self, lanes: Iterable[Lane], first: int, last: int) -> Counter[str]:
        """Return whose runs those are."""
        return Counter(whose for whose, _, _ in self._played(lanes, first, last))

    def _played(self, lanes: Iterable[Lane], first: int, last: int) -> list[tuple[str, int, int]]:
        found = [run for run in self._over if run[1] < last and run[2] > first]
        for lane in lanes:
            if lane.is_told:
                running = (since for since in lane.started_at.values() if since < last)
                found += [(lane.schedule_id, since, last) for since in running]
        return found

    def turn_the_page(self) -> None:
        """Forget the runs that have ended: nobody will look back at them."""
        self._over.clear()

    def _counts(self, lane: Lane, now: int) -> bool:
        return lane.is_told and now >= self._since

    def _run(self, lane: Lane, run: Run, started_at: int, wait: int, *, now: int) -> None:
        lane.started_at[run.run_id] = started_at
        lane.count.begin(now, wait=wait, is_told=self._counts(lane, now))
        group = lane.schedule.policy.group
        if group is not None:
            self.group(group).begin(now, wait=wait, is_told=now >= self._since)
        if lane.is_told:
            self.load.add(now)

    def _leave_out(
        self, lane: Lane, first: int, last: int, number: int, reason: Reason, *, now: int
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


def _skipped(lane: Lane, run_at: int, reason: Reason, now: int, number: int) -> Played:
    return Played(lane.schedule_id, run_at, Status.SKIPPED, reason, None, now, number)
