"""Simulation of single ticks and runs on a virtual clock, with the decisions of the engine.

At each instant ticks are decided first, then runs that waited too long expire, then runs start, and
only then runs end: a real run starts a little later than it is due, and so ends a little later too.
The consequences of an end happen at the same instant.
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import count

from msgspec.structs import replace

from onbeat.core.decide.follow import ENDINGS, causes_after_end
from onbeat.core.decide.outcomes import next_step, recheck_overlap, to_release
from onbeat.core.decide.plan import next_due, plan, set_aside, split_stale
from onbeat.core.decide.start import check_start
from onbeat.core.runs.apply import apply, first_phase
from onbeat.core.runs.decisions import (
    Announce,
    Claim,
    Decision,
    Finish,
    HandBack,
    Launch,
    Queue,
    Release,
    RequestCancel,
    Requeue,
    Skip,
    Supersede,
)
from onbeat.core.runs.phase import CLAIMABLE, DETACHED, STARTED, UNSTARTED, Phase, Status
from onbeat.core.runs.run import Canceled, Reason, Run, Succeeded
from onbeat.core.snapshot import ScheduleSnapshot
from onbeat.simulate.recorder import Recorder
from onbeat.simulate.schedule_state import ScheduleState

SLICE = 500  # instants that are simulated between two yields


class Simulator:
    """The simulated schedules and their clock."""

    def __init__(self, recorder: Recorder, places: Mapping[str, int], *, now: int) -> None:
        self.now, self._recorder, self._places = now, recorder, places
        self.decided = 0  # the number of decided ticks
        self._ids = count(1)
        self._due: list[tuple[int, str, ScheduleState]] = []  # these four are heaps, next first
        self._deadlines: list[tuple[int, int, ScheduleState]] = []
        self._later: list[tuple[int, int, ScheduleState]] = []  # waiting runs that are due later
        self._ends: list[tuple[int, int, ScheduleState]] = []
        # Runs that may start, by group, as heaps; and the groups in which a run may start now.
        self._waiting: dict[str | None, list[tuple[int, int, int, str, int, ScheduleState]]] = {}
        self._ready_groups: set[str | None] = set()

    # -- entering schedules

    def enter(self, state: ScheduleState, entry: ScheduleSnapshot) -> None:
        """Add a schedule with its unfinished runs."""
        ids = {run.run_id: next(self._ids) for run in entry.unfinished}
        for run in entry.unfinished:
            blocked_by = None if run.blocked_by is None else ids.get(run.blocked_by, 0)
            copy = replace(run, run_id=ids[run.run_id], blocked_by=blocked_by)
            if copy.phase in CLAIMABLE & DETACHED:
                copy = apply(copy, Claim(), now=self.now).after
            if copy.detached:  # it is reattached at once
                copy = apply(copy, Announce(), now=self.now).after
            if copy.phase in STARTED:
                started_at = min(entry.started_at.get(run.run_id, self.now), self.now)
                deadline = run.deadline_at if run.is_accepted else None
                self._resume_run(state, copy, started_at, deadline)
            else:
                if (
                    copy.leased
                ):  # it has no place in its group yet, and waits for one like the others
                    copy = apply(copy, HandBack(), now=self.now).after
                state.runs[copy.run_id] = copy
                self._wait(state, copy)

    def play_from_now(self, state: ScheduleState) -> None:
        """Simulate a schedule whose ticks were counted up to now."""
        state.is_counted = False
        if not state.is_paused:
            state.update_due()
        if state.last_end > self.now:
            run_at = state.last_run // 1000
            of_run = next(self._ids), run_at, Phase.RUNNING, state.last_run, state.last_run
            run = Run(*of_run, attempt=1)
            self._resume_run(state, run, state.last_run)
        self.await_due(state)

    def await_due(self, state: ScheduleState) -> None:
        """Plan a schedule when it is due."""
        if state.due is not None:
            heappush(self._due, (state.due.due_at, state.schedule_id, state))

    def _resume_run(
        self, state: ScheduleState, run: Run, started_at: int, deadline: int | None = None
    ) -> None:
        """Add a run that has started: it ends after its length, or by its deadline if accepted."""
        state.runs[run.run_id] = run
        ends_at = started_at + state.length
        if deadline is not None:
            ends_at = min(ends_at, deadline)
        self._end_at(state, run.run_id, max(ends_at, self.now))
        self._recorder.resume_run(state, run, started_at, now=self.now)

    # -- playing

    def play(self, until: int, most: int) -> Iterator[int]:
        """Simulate up to `until`; yield the current instant from time to time.

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
            self._finish_due()
            self._start_waiting()
            if played % SLICE == 0:
                yield self.now

    def next_at(self) -> int | None:
        """Return the instant of the next change, or None."""
        heaps = (self._due, self._deadlines, self._later, self._ends)
        return min((heap[0][0] for heap in heaps if heap), default=None)

    def _plan_due(self) -> None:
        """Decide due ticks, in the order of due rows."""
        while self._due and self._due[0][0] <= self.now:
            at, _, state = heappop(self._due)
            if state.is_counted or state.due is None or state.due.due_at != at:
                continue  # it has moved since
            if state.is_paused:
                self._resume(state)
            else:
                self._plan(state, state.due.run_at)
            self.await_due(state)

    def _plan(self, state: ScheduleState, run_at: int) -> None:
        found = plan(state.schedule, run_at, list(state.runs.values()), state.past, now=self.now)
        state.due = found.due
        if not found.decisions:
            return
        started = 0
        for decision in found.decisions:
            match decision:
                case Launch() | Queue():
                    started += 1
                    self._begin(state, decision)
                case Skip():
                    self._skip(state, decision)
                case _:
                    self._apply(state, decision)
                    continue
            state.decided_until = max(state.decided_until, decision.tick.run_at)
        if found.spread_until != state.past.spread_until:
            state.past = replace(state.past, spread_until=found.spread_until)
        if started:
            self._note_starts(state, started)

    def _note_starts(self, state: ScheduleState, started: int) -> None:
        """Count started runs, for triggers and policies that limit them."""
        if state.schedule.trigger.counts_runs:
            state.past = replace(state.past, runs_used=state.past.runs_used + started)
        rate = state.schedule.policy.rate
        if rate is not None:
            rated = (*state.past.rated, *[self.now] * started)[-rate.most :]
            state.past = replace(state.past, rated=rated)

    def _begin(self, state: ScheduleState, decision: Launch | Queue) -> None:
        """Create the run of a tick, which starts immediately unless it has to wait."""
        tick, policy = decision.tick, state.schedule.policy
        self.decided += 1
        self._recorder.decide(state, tick, now=self.now)
        self._recorder.add_coalesced(state, tick, now=self.now)
        blocker = None
        if isinstance(decision, Queue):
            blocker = next(
                (id_ for id_, run in state.runs.items() if run.run_at == decision.behind), 0
            )
        wait = policy.start_deadline
        deadline = None if wait is None else max(tick.due_at, self.now) + wait
        run = Run(
            next(self._ids), tick.run_at, first_phase(tick.due_at, blocker, now=self.now),
            tick.due_at, self.now, blocked_by=blocker, deadline_at=deadline,
            reattachable=state.schedule.target.reattachable,
        )  # fmt: skip
        state.runs[run.run_id] = run
        if blocker is None and policy.group is None and tick.due_at <= self.now:
            self._start(state, run)
        else:
            self._wait(state, run)

    def _skip(self, state: ScheduleState, decision: Skip) -> None:
        self.decided += 1
        self._recorder.decide(state, decision.tick, now=self.now)
        self._recorder.skip(state, decision.tick, decision.reason, now=self.now)

    def _apply(self, state: ScheduleState, decision: Decision) -> None:
        """Apply a decision about an existing run."""
        match decision:
            case Supersede(run=run, reason=reason):
                self._end_waiting(state, run, reason)
            case Release(run=run):
                self._release(state, run)
            case RequestCancel(run=run):
                state.runs[run.run_id] = apply(run, decision, now=self.now).after
                self._end_at(state, run.run_id, self.now)
            case _:
                raise AssertionError(f"{decision} is about a tick")

    def _resume(self, state: ScheduleState) -> None:
        """Resume a schedule at the end of its pause."""
        assert state.paused_until is not None, "a pause without end has no due row"
        state.is_paused, end = False, state.paused_until - 1
        stale, others = split_stale(state.schedule, state.runs.values(), now=end)
        for run in stale:
            self._end_waiting(state, run, "paused")
        self._release(state, to_release(others, now=self.now))
        for run in list(state.runs.values()):
            self._wait(state, run)
        state.update_due()
        if state.due is not None and state.due.run_at <= end // 1000:
            self.set_aside(state, end)
            state.decided_until = max(state.decided_until, end // 1000)
            state.update_due()

    def set_aside(self, state: ScheduleState, end: int) -> None:
        """Skip the ticks of a pause up to `end`."""
        due = next_due(state.schedule, state.decided_until, state.past)
        if due is None:
            return
        aside = set_aside(state.schedule, due.run_at, state.past, now=end, reason="paused")
        if aside is not None:
            state.decided_until = max(state.decided_until, aside.tick.run_at)
            self._recorder.decide(state, aside.tick, now=self.now)
            self._recorder.skip(state, aside.tick, aside.reason, now=self.now)

    # -- waiting and starting

    def _wait(self, state: ScheduleState, run: Run) -> None:
        """Queue a run, to start as soon as it may."""
        if run.phase not in UNSTARTED:
            return
        if run.deadline_at is not None:
            heappush(self._deadlines, (run.deadline_at, run.run_id, state))
        if run.blocked_by is not None:
            return
        if run.due_at > self.now:
            heappush(self._later, (run.due_at, run.run_id, state))
            return
        policy = state.schedule.policy
        place = (-policy.priority, run.due_at, run.run_at, state.schedule_id, run.run_id, state)
        heappush(self._waiting.setdefault(policy.group, []), place)
        self._ready_groups.add(policy.group)

    def _become_due(self) -> None:
        while self._later and self._later[0][0] <= self.now:
            _, run_id, state = heappop(self._later)
            run = state.runs.get(run_id)
            if run is not None and run.due_at <= self.now:
                self._wait(state, run)

    def _start_waiting(self) -> None:
        """Start queued runs in groups with a free place."""
        while self._ready_groups:
            group = self._ready_groups.pop()
            queue = self._waiting.get(group, [])
            while queue and self._has_place(group):
                *_, run_id, state = heappop(queue)
                run = state.runs.get(run_id)
                if run is not None and run.phase in CLAIMABLE and self._may_start(state, run):
                    self._start(state, run)

    def _has_place(self, group: str | None) -> bool:
        return group is None or self._recorder.group(group).running < self._places.get(group, 1)

    def _may_start(self, state: ScheduleState, run: Run) -> bool:
        """Check a run again that was decided before it was due, as at a claim."""
        if state.is_paused and not run.is_requested:
            return False
        match check_start(state.schedule, state.schedule, run, now=self.now):
            case "start":
                return True
            case "wait":
                return False
            case "recheck":
                return self._recheck(state, run)
            case Supersede(reason=reason):
                self._end_waiting(state, run, reason)
                self._release_next(state)
                return False

    def _recheck(self, state: ScheduleState, run: Run) -> bool:
        """Decide again about a run, apply the decisions, and return whether it may start."""
        runs = list(state.runs.values())
        about_others, own = recheck_overlap(state.schedule, run, runs, now=self.now)
        for decision in about_others:
            self._apply(state, decision)
        match own:
            case Launch():
                return True
            case Queue():
                state.runs[run.run_id] = apply(run, Requeue(0), now=self.now).after
            case Skip(reason=reason):
                self._end_waiting(state, run, reason)
        return False

    def _start(self, state: ScheduleState, run: Run) -> None:
        claimed = apply(run, Claim(), now=self.now).after
        started = apply(claimed, Announce(), now=self.now).after
        state.runs[run.run_id] = started
        self._end_at(state, run.run_id, self.now + state.length)
        self._recorder.start(state, started, now=self.now)

    def _release(self, state: ScheduleState, run: Run | None) -> None:
        """Unblock the first queued run."""
        if run is not None:
            freed = state.runs[run.run_id] = apply(run, Release(run), now=self.now).after
            self._wait(state, freed)

    def _release_next(self, state: ScheduleState) -> None:
        self._release(state, to_release(state.runs.values(), now=self.now))

    # -- ending

    def _end_at(self, state: ScheduleState, run_id: int, at: int) -> None:
        state.ends[run_id] = at
        heappush(self._ends, (at, run_id, state))

    def _end_waiting(self, state: ScheduleState, run: Run, reason: Reason) -> None:
        """End a waiting run without starting it."""
        del state.runs[run.run_id]
        ended = apply(run, Supersede(run), now=self.now).after
        self._recorder.drop(state, ended, reason, now=self.now)

    def _expire(self) -> None:
        """End runs that have waited too long."""
        late: dict[str, ScheduleState] = {}
        while self._deadlines and self._deadlines[0][0] <= self.now:
            _, run_id, state = heappop(self._deadlines)
            run = state.runs.get(run_id)
            if run is None or run.phase not in UNSTARTED:
                continue
            group = state.schedule.policy.group
            is_full = run.blocked_by is None and not self._has_place(group)
            self._end_waiting(state, run, "group_full" if is_full else "deadline")
            late[state.schedule_id] = state
        for _, state in sorted(late.items()):
            self._release_next(state)

    def _finish_due(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            at, run_id, state = heappop(self._ends)
            if state.ends.get(run_id) == at:  # otherwise its end has changed since
                self._end(state, state.runs[run_id])

    def _end(self, state: ScheduleState, run: Run) -> None:
        """End a run: successfully, unless its cancellation was requested."""
        outcome = Succeeded() if run.ending is None else Canceled("cancellation requested")
        found = next_step(state.schedule, run, outcome, list(state.runs.values()), now=self.now)
        assert isinstance(found, Finish), "nothing fails here"
        del state.runs[run.run_id], state.ends[run.run_id]
        self._recorder.end(state, run, found, now=self.now)
        group = state.schedule.policy.group
        if group is not None:
            self._ready_groups.add(group)
        self._release(state, found.release)
        if found.status in ENDINGS:
            for follower in state.followers:
                self._trigger_follower(follower, state.schedule_id, found.status)

    def _trigger_follower(self, state: ScheduleState, schedule_id: str, status: Status) -> None:
        """Create a tick of a schedule that follows a finished run."""
        own = [""] if state.schedule_id == schedule_id else []
        for name in (*own, schedule_id):
            happened = causes_after_end(
                state.schedule.trigger,
                state.past,
                name,
                status,
                now=self.now,
                until=state.decided_until,
            )
            state.past = replace(state.past, happened=happened)
        if state.is_paused:
            return
        due = next_due(state.schedule, state.decided_until, state.past)
        if due is not None and (state.due is None or due.run_at < state.due.run_at):
            state.due = due
            self.await_due(state)
