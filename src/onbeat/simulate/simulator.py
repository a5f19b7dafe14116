"""Ticks and runs one by one, on a virtual clock: by the functions that the engine decides with.

At each instant ticks are decided first, then what has waited too long ends, then runs start, and
only then do runs end: one starts a little later than it is due, so that it ends a little later too.
What follows an end happens in the same instant.
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

from msgspec.structs import replace

from onbeat.core.decide.follow import ENDINGS, ended
from onbeat.core.decide.outcomes import next_step, recheck_overlap, to_release
from onbeat.core.decide.plan import next_due, plan, set_aside, split_stale, switched_off
from onbeat.core.runs.decisions import (
    Decision,
    Finish,
    Launch,
    Queue,
    Release,
    RequestCancel,
    Skip,
    Supersede,
)
from onbeat.core.runs.run import Canceled, Reason, Run, Status, Succeeded
from onbeat.core.snapshot import ScheduleSnapshot
from onbeat.simulate.recorder import Recorder
from onbeat.simulate.schedule_state import ScheduleState

SLICE = 500  # instants that are played in one go


class Simulator:
    """All that is played, and the clock it is played by."""

    def __init__(self, books: Recorder, places: Mapping[str, int], *, now: int) -> None:
        self.now, self._books, self._places = now, books, places
        self.decided = 0  # how many ticks were
        self._ids = count(1)
        self._due: list[tuple[int, str, ScheduleState]] = []  # these four are heaps, the next first
        self._deadlines: list[tuple[int, int, ScheduleState]] = []
        self._later: list[tuple[int, int, ScheduleState]] = []  # runs that wait, and are due later
        self._ends: list[tuple[int, int, ScheduleState]] = []
        # Runs that may start, by group, the first to start first; and the groups to look at.
        self._lines: dict[str | None, list[tuple[int, int, int, str, int, ScheduleState]]] = {}
        self._awake: set[str | None] = set()

    # -- coming in

    def enter(self, lane: ScheduleState, standing: ScheduleSnapshot) -> None:
        """Take in what is under way of a schedule, as it stands."""
        ids = {run.run_id: next(self._ids) for run in standing.unfinished}
        for run in standing.unfinished:
            blocked_by = None if run.blocked_by is None else ids.get(run.blocked_by, 0)
            mine = replace(run, run_id=ids[run.run_id], blocked_by=blocked_by, leased=False)
            if run.status is Status.STARTED:
                started_at = min(standing.started_at.get(run.run_id, self.now), self.now)
                deadline = run.deadline_at if run.is_accepted else None
                self._go_on_with(lane, replace(mine, leased=True), started_at, deadline)
            else:
                lane.runs[mine.run_id] = mine
                self._wait(lane, mine)

    def take_over(self, lane: ScheduleState) -> None:
        """Play a schedule whose ticks were counted up to now."""
        lane.is_counted = False
        if not lane.is_paused:
            lane.find_due()
        if lane.last_end > self.now:
            run_at = lane.last_run // 1000
            run = Run(
                next(self._ids), run_at, Status.STARTED, lane.last_run, lane.last_run, attempt=1,
                leased=True,
            )  # fmt: skip
            self._go_on_with(lane, run, lane.last_run)
        self.await_due(lane)

    def await_due(self, lane: ScheduleState) -> None:
        """Look at a schedule again when it is due."""
        if lane.due is not None:
            heappush(self._due, (lane.due.due_at, lane.schedule_id, lane))

    def _go_on_with(
        self, lane: ScheduleState, run: Run, started_at: int, deadline: int | None = None
    ) -> None:
        """Have a run end in its time that was started before; an accepted one by its deadline."""
        lane.runs[run.run_id] = run
        ends_at = started_at + lane.length
        if deadline is not None:
            ends_at = min(ends_at, deadline)
        self._end_at(lane, run.run_id, max(ends_at, self.now))
        self._books.go_on(lane, run, started_at, now=self.now)

    # -- going on

    def play(self, until: int, most: int) -> Iterator[int]:
        """Play what is before `until`; yield where it is, now and then.

        It stops when `most` ticks have been decided.
        """
        for played in count(1):
            at = self.next_at()
            if at is None or at >= until or self.decided >= most:
                return
            self.now = max(at, self.now)
            self._plan_due()
            self._expire()
            self._become_due()
            self._start_waiting()
            self._end_those_over()
            self._start_waiting()
            if played % SLICE == 0:
                yield self.now

    def next_at(self) -> int | None:
        """Return when something happens next."""
        heaps = (self._due, self._deadlines, self._later, self._ends)
        return min((heap[0][0] for heap in heaps if heap), default=None)

    def _plan_due(self) -> None:
        """Decide what is due, in the order of due rows."""
        while self._due and self._due[0][0] <= self.now:
            at, _, lane = heappop(self._due)
            if lane.is_counted or lane.due is None or lane.due.due_at != at:
                continue  # it has moved since
            if lane.is_paused:
                self._resume(lane)
            else:
                self._plan(lane, lane.due.run_at)
            self.await_due(lane)

    def _plan(self, lane: ScheduleState, run_at: int) -> None:
        found = plan(lane.schedule, run_at, list(lane.runs.values()), lane.past, now=self.now)
        lane.due = found.due
        if not found.decisions:
            return
        begun = 0
        for decision in found.decisions:
            match decision:
                case Launch() | Queue():
                    begun += 1
                    self._begin(lane, decision)
                case Skip():
                    self._skip(lane, decision)
                case _:
                    self._carry_out(lane, decision)
                    continue
            lane.decided_until = max(lane.decided_until, decision.tick.run_at)
        if found.spread_until != lane.past.spread_until:
            lane.past = replace(lane.past, spread_until=found.spread_until)
        if begun:
            self._note_starts(lane, begun)

    def _note_starts(self, lane: ScheduleState, begun: int) -> None:
        """Keep what the past has to say of runs that are to start."""
        if lane.schedule.trigger.counts_runs:
            lane.past = replace(lane.past, runs_used=lane.past.runs_used + begun)
        rate = lane.schedule.policy.rate
        if rate is not None:
            rated = (*lane.past.rated, *[self.now] * begun)[-rate.most :]
            lane.past = replace(lane.past, rated=rated)

    def _begin(self, lane: ScheduleState, decision: Launch | Queue) -> None:
        """Have a run for a tick, which starts at once unless it has to wait."""
        tick, policy = decision.tick, lane.schedule.policy
        self.decided += 1
        self._books.decide(lane, tick, now=self.now)
        self._books.coalesce(lane, tick, now=self.now)
        blocker = None
        if isinstance(decision, Queue):
            blocker = next(
                (id_ for id_, run in lane.runs.items() if run.run_at == decision.behind), 0
            )
        wait = policy.start_deadline
        deadline = None if wait is None else max(tick.due_at, self.now) + wait
        run = Run(
            next(self._ids), tick.run_at, Status.ENQUEUED, tick.due_at, self.now,
            blocked_by=blocker, deadline_at=deadline,
        )  # fmt: skip
        lane.runs[run.run_id] = run
        if blocker is None and policy.group is None and tick.due_at <= self.now:
            self._start(lane, run)
        else:
            self._wait(lane, run)

    def _skip(self, lane: ScheduleState, decision: Skip) -> None:
        self.decided += 1
        self._books.decide(lane, decision.tick, now=self.now)
        self._books.skip(lane, decision.tick, decision.reason, now=self.now)

    def _carry_out(self, lane: ScheduleState, decision: Decision) -> None:
        """Carry out a decision about a run that is there."""
        match decision:
            case Supersede(run=run, reason=reason):
                self._end_waiting(lane, run, reason)
            case Release(run=run):
                self._release(lane, run)
            case RequestCancel(run=run):
                lane.runs[run.run_id] = replace(run, ending="superseded")
                self._end_at(lane, run.run_id, self.now)
            case _:
                raise AssertionError(f"{decision} is about a tick")

    def _resume(self, lane: ScheduleState) -> None:
        """Go on with a schedule whose pause is over."""
        assert lane.paused_until is not None, "others have no due row"
        lane.is_paused, end = False, lane.paused_until - 1
        stale, others = split_stale(lane.schedule, lane.runs.values(), now=end)
        for run in stale:
            self._end_waiting(lane, run, "paused")
        self._release(lane, to_release(others, now=self.now))
        for run in list(lane.runs.values()):
            self._wait(lane, run)
        lane.find_due()
        if lane.due is not None and lane.due.run_at <= end // 1000:
            self.set_aside(lane, end)
            lane.decided_until = max(lane.decided_until, end // 1000)
            lane.find_due()

    def set_aside(self, lane: ScheduleState, end: int) -> None:
        """Skip the ticks of a pause up to `end`."""
        due = next_due(lane.schedule, lane.decided_until, lane.past)
        if due is None:
            return
        aside = set_aside(lane.schedule, due.run_at, lane.past, now=end, reason="paused")
        if aside is not None:
            lane.decided_until = max(lane.decided_until, aside.tick.run_at)
            self._books.decide(lane, aside.tick, now=self.now)
            self._books.skip(lane, aside.tick, aside.reason, now=self.now)

    # -- waiting and starting

    def _wait(self, lane: ScheduleState, run: Run) -> None:
        """Have a run start as soon as it may."""
        if run.status is not Status.ENQUEUED:
            return
        if run.deadline_at is not None:
            heappush(self._deadlines, (run.deadline_at, run.run_id, lane))
        if run.blocked_by is not None:
            return
        if run.due_at > self.now:
            heappush(self._later, (run.due_at, run.run_id, lane))
            return
        policy = lane.schedule.policy
        place = (-policy.priority, run.due_at, run.run_at, lane.schedule_id, run.run_id, lane)
        heappush(self._lines.setdefault(policy.group, []), place)
        self._awake.add(policy.group)

    def _become_due(self) -> None:
        while self._later and self._later[0][0] <= self.now:
            _, run_id, lane = heappop(self._later)
            run = lane.runs.get(run_id)
            if run is not None and run.due_at <= self.now:
                self._wait(lane, run)

    def _start_waiting(self) -> None:
        """Start what may, where there is a place."""
        while self._awake:
            group = self._awake.pop()
            line = self._lines.get(group, [])
            while line and self._has_place(group):
                *_, run_id, lane = heappop(line)
                run = lane.runs.get(run_id)
                is_ready = (
                    run is not None and run.status is Status.ENQUEUED and run.blocked_by is None
                )
                if run is not None and is_ready and self._may_start(lane, run):
                    self._start(lane, run)

    def _has_place(self, group: str | None) -> bool:
        return group is None or self._books.group(group).running < self._places.get(group, 1)

    def _may_start(self, lane: ScheduleState, run: Run) -> bool:
        """Judge a run again that was decided before it was due, as whoever claims it does."""
        if run.status is not Status.ENQUEUED or run.blocked_by is not None:
            return False  # it has changed since it was put in line
        if lane.is_paused and not run.is_asked_for:
            return False
        if run.deadline_at is not None and run.deadline_at <= self.now:
            return False
        schedule, policy = lane.schedule, lane.schedule.policy
        off = switched_off(schedule)
        if off == "disabled" and run.is_asked_for and schedule.target.is_enabled:
            off = None
        if off is not None:
            self._end_waiting(lane, run, off)
            self._release_next(lane)
            return False
        is_free = policy.overlap == "allow" and policy.max_active is None
        if run.request_id or not run.was_deferred or is_free:
            return True
        *others, about_it = recheck_overlap(schedule, run, list(lane.runs.values()), now=self.now)
        for decision in others:
            self._carry_out(lane, decision)
        match about_it:
            case Launch():
                return True
            case Queue():
                lane.runs[run.run_id] = replace(run, blocked_by=0)
            case Skip(reason=reason):
                self._end_waiting(lane, run, reason)
            case _:
                raise AssertionError(f"{about_it} is not about the run")
        return False

    def _start(self, lane: ScheduleState, run: Run) -> None:
        started = replace(run, status=Status.STARTED, attempt=run.attempt + 1, leased=True)
        lane.runs[run.run_id] = started
        self._end_at(lane, run.run_id, self.now + lane.length)
        self._books.start(lane, started, now=self.now)

    def _release(self, lane: ScheduleState, run: Run | None) -> None:
        """Let the first in the queue start."""
        if run is not None:
            lane.runs[run.run_id] = freed = replace(run, blocked_by=None)
            self._wait(lane, freed)

    def _release_next(self, lane: ScheduleState) -> None:
        self._release(lane, to_release(lane.runs.values(), now=self.now))

    # -- ending

    def _end_at(self, lane: ScheduleState, run_id: int, at: int) -> None:
        lane.ends[run_id] = at
        heappush(self._ends, (at, run_id, lane))

    def _end_waiting(self, lane: ScheduleState, run: Run, reason: Reason) -> None:
        """End a run that will not start."""
        del lane.runs[run.run_id]
        self._books.give_up(lane, run, reason, now=self.now)

    def _expire(self) -> None:
        """End what has waited too long."""
        late: dict[str, ScheduleState] = {}
        while self._deadlines and self._deadlines[0][0] <= self.now:
            _, run_id, lane = heappop(self._deadlines)
            run = lane.runs.get(run_id)
            if run is None or run.status is not Status.ENQUEUED:
                continue
            group = lane.schedule.policy.group
            is_full = run.blocked_by is None and not self._has_place(group)
            self._end_waiting(lane, run, "group_full" if is_full else "deadline")
            late[lane.schedule_id] = lane
        for _, lane in sorted(late.items()):
            self._release_next(lane)

    def _end_those_over(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            at, run_id, lane = heappop(self._ends)
            if lane.ends.get(run_id) == at:  # else it was asked to end since
                self._end(lane, lane.runs[run_id])

    def _end(self, lane: ScheduleState, run: Run) -> None:
        """End a run: well, unless it was asked to end."""
        outcome = Succeeded() if run.ending is None else Canceled("asked to end")
        found = next_step(lane.schedule, run, outcome, list(lane.runs.values()), now=self.now)
        assert isinstance(found, Finish), "nothing fails here"
        del lane.runs[run.run_id], lane.ends[run.run_id]
        self._books.end(lane, run, found, now=self.now)
        group = lane.schedule.policy.group
        if group is not None:
            self._awake.add(group)
        self._release(lane, found.release)
        if found.status in ENDINGS:
            for follower in lane.followers:
                self._cause(follower, lane.schedule_id, found.status)

    def _cause(self, lane: ScheduleState, schedule_id: str, status: Status) -> None:
        """Give a tick to a schedule that follows a run which has ended."""
        own = [""] if lane.schedule_id == schedule_id else []
        for name in (*own, schedule_id):
            happened = ended(
                lane.schedule.trigger,
                lane.past,
                name,
                status,
                now=self.now,
                until=lane.decided_until,
            )
            lane.past = replace(lane.past, happened=happened)
        if lane.is_paused:
            return
        due = next_due(lane.schedule, lane.decided_until, lane.past)
        if due is not None and (lane.due is None or due.run_at < lane.due.run_at):
            lane.due = due
            self.await_due(lane)
