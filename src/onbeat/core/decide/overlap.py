"""The overlap policy: decides one tick after another against the runs in flight."""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from onbeat.core.decide.follow import count_events
from onbeat.core.decide.outcomes import displace
from onbeat.core.policy import Policy
from onbeat.core.runs.apply import apply
from onbeat.core.runs.decisions import Decision, Launch, Queue, Release, Skip, Supersede, Tick
from onbeat.core.runs.phase import UNANNOUNCED
from onbeat.core.runs.run import Reason, ReasonDetail, Run
from onbeat.core.runs.stable_hash import stable_share
from onbeat.core.schedule import Schedule
from onbeat.core.triggers.past import Past

POSTPONED = 1000  # milliseconds, at least, that a catch-up waits if the allowance is used up
LOOKAHEAD = 60_000  # milliseconds over which missed ticks are spread, at most
TriggeredBy = Literal["timer", "catchup"]


class OverlapPlanner:
    """The decisions of one plan so far, and the runs in flight and waiting after them."""

    def __init__(
        self,
        schedule: Schedule,
        unfinished: Sequence[Run],
        past: Past,
        *,
        now: int,
        allowance: int,
        waits: int = 0,
        lookahead: int = LOOKAHEAD,
    ) -> None:
        self.schedule, self._policy, self.past, self.now = schedule, schedule.policy, past, now
        self.decisions: list[Decision] = []
        self.catchups, self._allowance, self._waits = 0, allowance, waits
        self.lookahead = lookahead
        self.rest_at: int | None = None  # when the remaining due ticks are due again
        self.spread_until, self.is_short = 0, False
        self._flying: list[Run] = []
        self._retries: list[Run] = []
        self._queue: list[Run] = []  # waiting runs, in the order of their start
        # Runs decided here and not written yet: their indexes in `decisions`.
        self._launched: list[int] = []
        self._queued: list[int] = []
        for run in sorted(unfinished, key=lambda run: run.run_at):
            if run.in_flight(now):
                self._flying.append(run)
            elif run.awaits_retry and not run.is_requested:  # even if it must queue for the retry
                self._retries.append(run)
            elif run.blocked_by is not None:
                self._queue.append(run)

    def skip(self, tick: Tick, reason: Reason, detail: ReasonDetail | None = None) -> None:
        """Skip a tick, or a range of ticks."""
        self.decisions.append(Skip(tick, reason, detail=detail))

    def is_allowed(self) -> bool:
        """Return whether the allowance has room for one more missed tick."""
        return self.catchups < self._allowance

    def has_room(self) -> bool:
        """Return whether one more missed tick may be caught up now."""
        policy = self._policy
        waits = policy.overlap == "queue" and policy.queue_keep == "first"
        return not (waits and self._waiting >= policy.queue_limit) and self.is_allowed()

    def later(self) -> int:
        """Return when ticks without room are due again, staggered between schedules."""
        text = f"later:{self.schedule.schedule_id}:{self.now}"
        return self.now + POSTPONED + stable_share(text, max(self._waits, POSTPONED // 10))

    def decide(
        self, tick: Tick, triggered_by: TriggeredBy, detail: ReasonDetail | None = None
    ) -> None:
        """Decide one new tick: by the rate, then by the overlap policy."""
        if self.schedule.trigger.needs_past:
            count = count_events(self.schedule.trigger, tick.run_at, self.past)
            tick = replace(tick, count=max(tick.count, count))
        if is_rated(self._policy, self.past, self.now):
            self.decisions.append(Skip(tick, "rate"))
            return
        self.decisions += (Supersede(run, newer=tick.run_at) for run in self._retries)
        self._retries.clear()
        waiting = self._queue_only()
        replaces = self._policy.overlap == "replace"
        if waiting and not self._flying and not replaces:  # they waited for the retry
            self._queue.remove(waiting[0])
            release = Release(waiting[0])
            self.decisions.append(release)
            self._flying.append(apply(waiting[0], release, now=self.now).after)
        if self._apply_overlap(tick, triggered_by, detail):
            self.catchups += triggered_by == "catchup"
            self._count(1)

    @property
    def _waiting(self) -> int:
        return sum(not run.is_backfill for run in self._queue) + len(self._queued)

    @property
    def _blocker(self) -> int | None:
        """The `run_at` of the latest run in flight."""
        if self._launched:
            return self._run_at(self._launched[-1])
        return self._flying[-1].run_at if self._flying else None

    def _apply_overlap(
        self, tick: Tick, triggered_by: TriggeredBy, detail: ReasonDetail | None
    ) -> bool:
        """Decide a tick by the overlap policy; return whether it starts, now or later."""
        policy, blocker = self._policy, self._blocker
        if policy.overlap == "replace":
            blocker = self._displace_others(tick)
        elif policy.overlap == "allow":
            flying = len(self._flying) + len(self._launched)
            if policy.max_active is None or flying < policy.max_active:
                blocker = None
        if blocker is None:
            self._launched.append(len(self.decisions))
            self.decisions.append(Launch(tick, triggered_by, detail))
            return True
        if policy.overlap in ("skip", "allow"):
            self.decisions.append(Skip(tick, "overlap", blocker))
            return False
        if policy.overlap == "queue" and self._waiting >= policy.queue_limit:
            if policy.queue_keep == "first":
                self.decisions.append(Skip(tick, "queue_full", blocker))
                return False
            self._drop_first(tick)
        self._queued.append(len(self.decisions))
        self.decisions.append(Queue(tick, blocker, triggered_by, detail))
        return True

    def _displace_others(self, tick: Tick) -> int | None:
        """End all other runs; return the `run_at` of a run that must end first, if any."""
        decided, left = displace((*self._flying, *self._queue_only()), newer=tick.run_at)
        self.decisions += decided
        self._queue = [run for run in self._queue if run.is_backfill]
        self._flying = [
            replace(run, ending="superseded")  # cancellation is requested once
            for run in self._flying
            if run.phase not in UNANNOUNCED
        ]
        for place in (*self._launched, *self._queued):
            self._unmake(place, "superseded", tick)
        self._launched.clear()
        self._queued.clear()
        return None if left is None else left.run_at

    def _queue_only(self) -> list[Run]:
        return [run for run in self._queue if not run.is_backfill]

    def _drop_first(self, tick: Tick) -> None:
        """Drop the run that has waited longest in favour of another."""
        waiting = self._queue_only()
        if waiting:
            self.decisions.append(Supersede(waiting[0], "queue_full", tick.run_at))
            self._queue.remove(waiting[0])
        else:
            self._unmake(self._queued.pop(0), "queue_full", tick)

    def _unmake(self, place: int, reason: Reason, newer: Tick) -> None:
        """Turn a decision to start a tick into a skip, in favour of a newer tick."""
        made = self.decisions[place]
        assert isinstance(made, (Launch, Queue)), "only these decisions start a run"
        self.decisions[place] = Skip(made.tick, reason, detail=ReasonDetail(newer=newer.run_at))
        self.catchups -= made.triggered_by == "catchup"
        self._count(-1)

    def _count(self, n: int) -> None:
        """Count `n` more starts, or fewer if negative, for the rate and for `max_runs`."""
        if self._policy.rate is not None:
            rated = self.past.rated
            rated = (*rated, self.now) if n > 0 else rated[:-1]
            self.past = replace(self.past, rated=rated)
        if self.schedule.trigger.counts_runs:
            self.past = replace(self.past, runs_used=self.past.runs_used + n)

    def _run_at(self, place: int) -> int:
        made = self.decisions[place]
        assert isinstance(made, Launch), "what is in flight was launched"
        return made.tick.run_at


def is_rated(policy: Policy, past: Past, now: int) -> bool:
    """Return whether the rate is used up."""
    rate = policy.rate
    if rate is None:
        return False
    # Runs decided by a clock that was ahead count too, but for one period at most.
    since, until = now - rate.length, now + rate.length
    return sum(since < at <= until for at in past.rated) >= rate.most
