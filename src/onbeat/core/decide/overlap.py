"""One tick after another, by the policy of its schedule."""

from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from onbeat.core.decide.follow import events_at
from onbeat.core.decide.outcomes import displace
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import Decision, Launch, Queue, Release, Skip, Supersede, Tick
from onbeat.core.runs.run import Reason, ReasonDetail, Run, Status
from onbeat.core.runs.stable_hash import stable_share
from onbeat.core.schedule import Schedule
from onbeat.core.triggers.past import Past

POSTPONED = 1000  # how long a catch-up waits that was over the allowance, or a little longer
LOOKAHEAD = 60_000  # over how long missed ticks are spread, at most
TriggeredBy = Literal["timer", "catchup"]


class OverlapPlanner:
    """The decisions of one plan so far, and what they leave in flight and waiting."""

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
        self.rest_at: int | None = None  # when what is due and not to start now is due again
        self.spread_until, self.is_short = 0, False
        self._flying: list[Run] = []
        self._retries: list[Run] = []
        self._queue: list[Run] = []  # those that wait, the first to start first
        # What was decided here and is not written yet: where in `decisions` each is.
        self._launched: list[int] = []
        self._queued: list[int] = []
        for run in sorted(unfinished, key=lambda run: run.run_at):
            if run.in_flight(now):
                self._flying.append(run)
            elif run.awaits_retry and not run.is_asked_for:  # one that has to queue for it too
                self._retries.append(run)
            elif run.blocked_by is not None:
                self._queue.append(run)

    def skip(self, tick: Tick, reason: Reason, detail: ReasonDetail | None = None) -> None:
        """Decide against a tick, or against several of them."""
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
        """Return when to look again at what there was no room for: not all at one time."""
        text = f"later:{self.schedule.schedule_id}:{self.now}"
        return self.now + POSTPONED + stable_share(text, max(self._waits, POSTPONED // 10))

    def decide(
        self, tick: Tick, triggered_by: TriggeredBy, detail: ReasonDetail | None = None
    ) -> None:
        """Decide one fresh tick: by the rate, then by what else there is."""
        if self.schedule.trigger.needs_past:
            count = events_at(self.schedule.trigger, tick.run_at, self.past)
            tick = replace(tick, count=max(tick.count, count))
        if is_rated(self._policy, self.past, self.now):
            self.decisions.append(Skip(tick, "rate"))
            return
        self.decisions += (Supersede(run, newer=tick.run_at) for run in self._retries)
        self._retries.clear()
        waiting = self._queue_only()
        makes_way = self._policy.overlap == "replace"
        if waiting and not self._flying and not makes_way:  # what they wait for was a retry
            self._queue.remove(waiting[0])
            self.decisions.append(Release(waiting[0]))
            self._flying.append(waiting[0])
        if self._begin(tick, triggered_by, detail):
            self.catchups += triggered_by == "catchup"
            self._count(1)

    @property
    def _waiting(self) -> int:
        return sum(not run.is_backfill for run in self._queue) + len(self._queued)

    @property
    def _blocker(self) -> int | None:
        """The `run_at` of the latest that is in flight."""
        if self._launched:
            return self._run_at(self._launched[-1])
        return self._flying[-1].run_at if self._flying else None

    def _begin(self, tick: Tick, triggered_by: TriggeredBy, detail: ReasonDetail | None) -> bool:
        """Decide a tick by the overlap policy; return whether it is to start, now or later."""
        policy, blocker = self._policy, self._blocker
        if policy.overlap == "replace":
            blocker = self._make_way(tick)
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

    def _make_way(self, tick: Tick) -> int | None:
        """Have everything else end; return the `run_at` of one that has to be waited for."""
        decided, left = displace((*self._flying, *self._queue_only()), newer=tick.run_at)
        self.decisions += decided
        self._queue = [run for run in self._queue if run.is_backfill]
        self._flying = [
            replace(run, ending="superseded")  # they are asked once
            for run in self._flying
            if run.status is Status.STARTED
        ]
        for place in (*self._launched, *self._queued):
            self._unmake(place, "superseded", tick)
        self._launched.clear()
        self._queued.clear()
        return None if left is None else left.run_at

    def _queue_only(self) -> list[Run]:
        return [run for run in self._queue if not run.is_backfill]

    def _drop_first(self, tick: Tick) -> None:
        """Give the place of the one that has waited longest to another."""
        waiting = self._queue_only()
        if waiting:
            self.decisions.append(Supersede(waiting[0], "queue_full", tick.run_at))
            self._queue.remove(waiting[0])
        else:
            self._unmake(self._queued.pop(0), "queue_full", tick)

    def _unmake(self, place: int, reason: Reason, newer: Tick) -> None:
        """Decide against a tick after all that was just to start, for a newer one."""
        made = self.decisions[place]
        assert isinstance(made, (Launch, Queue)), "only these are to start"
        self.decisions[place] = Skip(made.tick, reason, detail=ReasonDetail(newer=newer.run_at))
        self.catchups -= made.triggered_by == "catchup"
        self._count(-1)

    def _count(self, n: int) -> None:
        """Count runs that are to start, or not any more: for the rate and for `max_runs`."""
        if self._policy.rate is not None:
            kept = self.past.rated
            kept = (*kept, self.now) if n > 0 else kept[:-1]
            self.past = replace(self.past, rated=kept)
        if self.schedule.trigger.counts_runs:
            self.past = replace(self.past, runs_used=self.past.runs_used + n)

    def _run_at(self, place: int) -> int:
        made = self.decisions[place]
        assert isinstance(made, Launch), "what is in flight was launched"
        return made.tick.run_at


def is_rated(policy: Policy, past: Past, now: int) -> bool:
    """Return whether as many runs as the rate allows were decided within its length."""
    rate = policy.rate
    if rate is None:
        return False
    # Those of a clock that was ahead count as well, but not for longer than that.
    since, until = now - rate.length, now + rate.length
    return sum(since < at <= until for at in past.rated) >= rate.most
