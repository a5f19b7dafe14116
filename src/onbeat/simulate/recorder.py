"""The recorder of a simulation: it counts every tick and every run.

Nothing is counted before `since`, nor of schedules that are not reported.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from onbeat.core.runs.decisions import Finish, Tick
from onbeat.core.runs.phase import Phase, Status
from onbeat.core.runs.run import Reason, Run
from onbeat.simulate.counters import ConcurrencyLoad, Counters, DayCounters, Times
from onbeat.simulate.schedule_state import ScheduleState


class SimulatedRun(msgspec.Struct, frozen=True):
    """A finished run, or skipped ticks, with the fields that the store would have."""

    schedule_id: str
    run_at: int
    status: Status
    reason: Reason | None
    started_at: int | None
    finished_at: int
    tick_count: int = 1


Witness = Callable[[SimulatedRun], None]


class Recorder:
    """Counts ticks and runs. The `witness` is called for every run that is simulated one by one."""

    def __init__(self, days: DayCounters, *, since: int, witness: Witness | None = None) -> None:
        self._since, self._days, self._witness = since, days, witness
        self.load = ConcurrencyLoad(since)
        self.groups: dict[str, Counters] = {}
        self._finished: list[tuple[str, int, int]] = []  # schedule, start and end of runs

    def group(self, name: str) -> Counters:
        """Return the counters of a group."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Counters()
        return found

    # -- simulated one by one

    def decide(self, state: ScheduleState, tick: Tick, *, now: int) -> None:
        """Record decided ticks."""
        if self._counts(state, now):
            state.count.ticks += _ticks_of(tick)

    def skip(self, state: ScheduleState, tick: Tick, reason: Reason, *, now: int) -> None:
        """Record skipped ticks."""
        number = _ticks_of(tick)
        first = tick.run_at if tick.first_run_at is None else tick.first_run_at
        if self._witness is not None:
            self._witness(_skipped(state, tick.run_at, reason, now, number))
        self._count_skipped(state, first, tick.run_at, number, reason, now=now)

    def add_coalesced(self, state: ScheduleState, tick: Tick, *, now: int) -> None:
        """Record the ticks that are coalesced into the run of the latest one."""
        if tick.first_run_at is not None:
            number = tick.count - 1
            self._count_skipped(state, tick.first_run_at, tick.run_at, number, "coalesced", now=now)

    def drop(self, state: ScheduleState, ended: Run, reason: Reason, *, now: int) -> None:
        """Record the end of a waiting run that does not start."""
        ids = state.schedule_id, ended.run_at
        if self._witness is not None:
            self._witness(SimulatedRun(*ids, ended.status, reason, None, now))
        if ended.phase is Phase.SKIPPED:
            self._count_skipped(state, ended.run_at, ended.run_at, 1, reason, now=now)

    def start(self, state: ScheduleState, run: Run, *, now: int) -> None:
        """Record the start of a run."""
        wait = now - max(run.due_at, run.created_at)
        self._run(state, run, now, wait, now=now)
        if self._counts(state, now):
            state.count.fires += 1
            self._days.fires[self._days.of(now // 1000)] += 1

    def resume_run(self, state: ScheduleState, run: Run, started_at: int, *, now: int) -> None:
        """Record a run that started before the simulation, or before it was simulated."""
        self._run(state, run, started_at, 0, now=now)

    def end(self, state: ScheduleState, run: Run, found: Finish, *, now: int) -> None:
        """Record the end of a run."""
        started_at = state.started_at.pop(run.run_id)
        state.count.running -= 1
        if state.schedule.policy.group is not None:
            self.group(state.schedule.policy.group).running -= 1
        if self._witness is not None:
            ids = state.schedule_id, run.run_at
            self._witness(SimulatedRun(*ids, found.status, found.reason, started_at, now))
        if state.is_reported:
            self.load.remove(now)
            self._finished.append((state.schedule_id, started_at, now))
        if found.status is Status.CANCELED and self._counts(state, now):
            state.count.ended_early += 1

    # -- counted in spans

    def count(
        self, state: ScheduleState, fires: Sequence[int], by_day: Iterable[tuple[int, int]]
    ) -> None:
        """Record ticks that start a run each."""
        counted, days = state.count, self._days.fires
        counted.ticks += len(fires)
        counted.fires += len(fires)
        for day, of_day in by_day:
            days[day] += of_day
        if not counted.peak:
            counted.peak, counted.peak_at = 1, fires[0] * 1000

    def count_skips(
        self, state: ScheduleState, number: int, reason: Reason, by_day: Iterable[tuple[int, int]]
    ) -> None:
        """Record ticks that are skipped for the same reason."""
        state.count.ticks += number
        state.count.skips[reason] += number
        for day, of_day in by_day:
            self._days.skips[day] += of_day

    # -- reading

    def times(self, states: Iterable[ScheduleState], first: int, last: int) -> Times:
        """Return the starts and ends of simulated runs in `first <= t < last`."""
        found = self._played(states, first, last)
        return [since - first for _, since, _ in found], [until - first for _, _, until in found]

    def runs_by_schedule(
        self, states: Iterable[ScheduleState], first: int, last: int
    ) -> Counter[str]:
        """Return the number of those runs by schedule."""
        return Counter(schedule_id for schedule_id, _, _ in self._played(states, first, last))

    def _played(
        self, states: Iterable[ScheduleState], first: int, last: int
    ) -> list[tuple[str, int, int]]:
        found = [run for run in self._finished if run[1] < last and run[2] > first]
        for state in states:
            if state.is_reported:
                running = (since for since in state.started_at.values() if since < last)
                found += [(state.schedule_id, since, last) for since in running]
        return found

    def forget_finished(self) -> None:
        """Forget finished runs, which are not needed any more."""
        self._finished.clear()

    def _counts(self, state: ScheduleState, now: int) -> bool:
        return state.is_reported and now >= self._since

    def _run(self, state: ScheduleState, run: Run, started_at: int, wait: int, *, now: int) -> None:
        state.started_at[run.run_id] = started_at
        state.count.begin(now, wait=wait, is_reported=self._counts(state, now))
        group = state.schedule.policy.group
        if group is not None:
            self.group(group).begin(now, wait=wait, is_reported=now >= self._since)
        if state.is_reported:
            self.load.add(now)

    def _count_skipped(
        self, state: ScheduleState, first: int, last: int, number: int, reason: Reason, *, now: int
    ) -> None:
        """Count skipped ticks on the days for which they were planned."""
        if not number or not self._counts(state, now):
            return
        state.count.skips[reason] += number
        day, begins = self._days.of(first), self._days.begins
        while day + 1 < len(begins) and begins[day + 1] <= last:
            of_day = min(state.schedule.trigger.count(first, begins[day + 1], state.past), number)
            self._days.skips[day] += of_day
            day, first, number = day + 1, begins[day + 1], number - of_day
        self._days.skips[day] += number


def _ticks_of(tick: Tick) -> int:
    """Return the number of ticks; further events of one tick do not count."""
    return 1 if tick.first_run_at is None else tick.count


def _skipped(
    state: ScheduleState, run_at: int, reason: Reason, now: int, number: int
) -> SimulatedRun:
    return SimulatedRun(state.schedule_id, run_at, Status.SKIPPED, reason, None, now, number)
