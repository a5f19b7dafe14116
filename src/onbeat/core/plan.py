"""What is done with ticks and with runs that end: the decisions, as values.

Nothing here acts. A store calls these functions inside the transaction that carries the decisions
out, so that what they were told is still true when it commits.

Ticks are planned in seconds (`run_at`), everything else is in milliseconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace as with_fields
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.core.model import Past
from onbeat.core.runs import Canceled, Failed, Lost, Outcome, Reason, Run, Status, Succeeded
from onbeat.core.schedules import Policy, Schedule

MOST_DECISIONS = 100  # of one schedule in one plan: the rest is due again at once
QUEUE_LIMIT = 100
MOST_LOST = 5  # attempts beyond a policy's own for a run whose nodes fall silent: it may be why
POSTPONED = 1000  # how long a catch-up waits that was over the allowance, or a little longer
LOOKAHEAD = 60_000  # over how long missed ticks are spread, at most
STEP = 100  # those that would start within so long of each other start together


class Tick(msgspec.Struct, frozen=True, gc=False):
    """One planned instant, or a range of them that one row stands for."""

    run_at: int  # of the latest
    due_at: int
    first_run_at: int | None = None  # of the earliest, if there are several
    count: int = 1


class Launch(msgspec.Struct, frozen=True, gc=False):
    """Start a run as soon as its `due_at` is reached."""

    tick: Tick
    triggered_by: Literal["timer", "catchup"] = "timer"


class Queue(msgspec.Struct, frozen=True, gc=False):
    """Start a run when those before it have ended. `behind` is the `run_at` of one in flight."""

    tick: Tick
    behind: int
    triggered_by: Literal["timer", "catchup"] = "timer"


class Skip(msgspec.Struct, frozen=True, gc=False):
    """Start nothing, for a reason. `blocked_by` is the `run_at` of the run in the way."""

    tick: Tick
    reason: Reason
    blocked_by: int | None = None


class Supersede(msgspec.Struct, frozen=True, gc=False):
    """End a run that waits for a retry: a fresh tick is here."""

    run: Run


class Release(msgspec.Struct, frozen=True, gc=False):
    """Let a queued run start: what it waited for was superseded."""

    run: Run


Decision = Launch | Queue | Skip | Supersede | Release


class Due(msgspec.Struct, frozen=True, gc=False):
    """The due row of a schedule: its next undecided tick and when that is to be decided."""

    run_at: int
    due_at: int


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What becomes of the ticks that are due, and of the schedule's due row."""

    decisions: tuple[Decision, ...]
    due: Due | None  # None: there are no more ticks
    catchups: int = 0  # how much of the allowance it takes
    spread_until: int = 0  # milliseconds: by then the missed ticks that are left are to start
    is_short: bool = False  # it would take more of the allowance


def plan(
    schedule: Schedule,
    run_at: int,
    unfinished: Sequence[Run],
    past: Past,
    *,
    now: int,
    allowance: int = MOST_DECISIONS,
    waits: int = 0,
) -> Plan:
    """Decide the ticks of a schedule that are due, `run_at` being the first undecided one.

    1. While the first is within its grace, each is decided by itself, in order.
    2. Otherwise ticks have been missed. Under `none` they are skipped as one range, and those on
       time decided as in 1. Under the others those due before the catch-up window are, and of the
       rest under `once` the latest of all that are due runs and stands for the others; under `all`
       each is decided as in 1; under `spread` the first is, and the others one after another,
       evenly over the look-ahead or until the next tick.
    3. The due row becomes the first tick that is not decided. What the allowance, or the queue, has
       no room for is due again in a second, or up to `waits` later: it is not dropped.
    """
    policy, trigger = schedule.policy, schedule.trigger
    if not unfinished and is_plain(schedule):  # the common case, without ado
        due, (then, _) = run_at * 1000, trigger.look(run_at, past)
        if now - policy.grace <= due <= now and (then is None or then * 1000 > now):
            following = None if then is None else Due(then, then * 1000)
            return Plan((Launch(Tick(run_at, due)),), following)
    if not _is_tick(schedule, run_at, past):  # the search had given up here
        found = trigger.following(run_at, past, now // 1000 + 1)
        if found is None:
            return Plan((), next_due(schedule, max(run_at, now // 1000), past))
        run_at = found
    deciding = _Deciding(schedule, unfinished, past, now=now, allowance=allowance, waits=waits)
    tick: int | None = run_at
    is_missed = due_at(schedule, run_at, past) < now - policy.grace
    if is_missed and policy.catchup != "none" and not deciding.is_allowed():
        return Plan((), Due(run_at, deciding.later()), is_short=True)
    if is_missed:
        tick = _leave_missed(deciding, run_at)
    if is_missed and policy.catchup == "once":
        tick = _catch_up_once(deciding, tick)
    if policy.catchup == "spread" and (is_missed or past.spread_until):
        tick = _spread(deciding, tick)
    else:
        tick = _decide_each(deciding, tick)
    if tick is not None and deciding.rest_at is not None:
        return Plan(
            tuple(deciding.decisions),
            Due(tick, deciding.rest_at),
            deciding.catchups,
            deciding.spread_until,
            deciding.is_short,
        )
    if not deciding.decisions:
        return Plan((), Due(run_at, due_at(schedule, run_at, past)))
    last_decided = deciding.decisions[-1]
    assert not isinstance(last_decided, (Supersede, Release)), "they are followed by a tick"
    following = next_due(schedule, last_decided.tick.run_at, deciding.past)
    return Plan(tuple(deciding.decisions), following, deciding.catchups)


def is_plain(schedule: Schedule) -> bool:
    """Return whether a plan without unfinished runs depends on its trigger, policy and time alone.

    Unless it catches up, which takes of an allowance, it is then the same for all schedules alike.
    """
    policy = schedule.policy
    return schedule.trigger.is_plain and not policy.jitter and policy.catchup != "spread"


def set_aside(
    schedule: Schedule, run_at: int, past: Past, *, now: int, reason: Reason
) -> Skip | None:
    """Decide every tick from `run_at` up to now as one skipped range, if there is any.

    This is how a pause, a closed gate and a deletion end: by what was planned, not what was due.
    """
    if run_at * 1000 > now:
        return None
    ticks = schedule.trigger.between(run_at, now // 1000 + 1, past)
    first, last = _tick_from(schedule, run_at, past, now), ticks.last
    if first is None:
        return None
    return Skip(_ticks(schedule, first, first if last is None else last, past), reason)


def split_stale(
    schedule: Schedule, unfinished: Iterable[Run], *, now: int
) -> tuple[list[Run], list[Run]]:
    """Return the runs that waited beyond their grace, which a pause ends; and the others."""
    stale: list[Run] = []
    others: list[Run] = []
    for run in unfinished:
        waits = run.status is Status.ENQUEUED and not run.request_id
        late = run.due_at < now - schedule.policy.grace
        (stale if waits and late else others).append(run)
    return stale, others


def defined_late(schedule: Schedule, past: Past, *, now: int) -> tuple[Skip | None, int]:
    """Decide the single times that were past when they were defined; return up to where.

    Those within their grace are still meant, and left to be planned.
    """
    first = schedule.trigger.between(0, now // 1000 + 1, past).first
    if first is None:
        return None, now // 1000
    limit = now - schedule.policy.grace
    if due_at(schedule, first, past) >= limit:
        return None, first - 1
    last = _last_due_before(schedule, first, past, limit)
    return Skip(_ticks(schedule, first, last, past), "missed"), last


def decide_all(
    schedule: Schedule, run_at: int, unfinished: Sequence[Run], past: Past, *, now: int
) -> tuple[Decision, ...]:
    """Decide every tick planned up to now, before another definition takes over.

    What is due is decided as ever, what would be spread at once; what one plan does not reach is
    missed; a tick whose time to start is still to come is enqueued for then.
    """
    if schedule.policy.catchup == "spread":
        schedule = replace(schedule, policy=with_fields(schedule.policy, catchup="all"))
    found = plan(schedule, run_at, unfinished, past, now=now)
    decisions, due = list(found.decisions), found.due
    past = replace(past, runs_used=past.runs_used + starts(decisions))
    while due is not None and min(due.due_at, due_at(schedule, due.run_at, past)) <= now:
        first = _tick_from(schedule, due.run_at, past, now)
        if first is None:
            return tuple(decisions)
        last = _last_due_before(schedule, first, past, now + 1)
        decisions.append(Skip(_ticks(schedule, first, last, past), "missed"))
        due = next_due(schedule, last, past)
    if due is not None and due.run_at * 1000 <= now and _is_tick(schedule, due.run_at, past):
        decisions.append(Launch(Tick(due.run_at, due.due_at)))
    return tuple(decisions)


def catch_up(
    schedule: Schedule, aside: Skip, unfinished: Sequence[Run], past: Past, *, now: int
) -> tuple[Decision, ...]:
    """Decide to run what was set aside after all: the latest of its ticks stands for the rest."""
    deciding = _Deciding(schedule, unfinished, past, now=now, allowance=1)
    deciding.decide(aside.tick, "catchup")
    return tuple(deciding.decisions)


def starts(decisions: Iterable[Decision]) -> int:
    """Return how many of `max_runs` these decisions consume."""
    return sum(isinstance(decision, (Launch, Queue)) for decision in decisions)


def next_due(schedule: Schedule, after: int, past: Past) -> Due | None:
    """Return the due row of the first tick later than `after`, or of where to look again."""
    run_at, reached = schedule.trigger.look(after, past)
    if reached is not None:
        return Due(reached, reached * 1000)
    return None if run_at is None else Due(run_at, due_at(schedule, run_at, past))


def due_at(schedule: Schedule, run_at: int, past: Past) -> int:
    """Return when the tick planned for `run_at` is to start: only ever later, never earlier.

    Jitter is the tick's own, so it is the same after a restart, and less than the gap to the next
    tick, so it never changes their order.
    """
    at = schedule.trigger.due_at(run_at, past) * 1000
    jitter = schedule.policy.jitter
    if not jitter:
        return at
    following = schedule.trigger.next_after(at // 1000, past)
    room = jitter if following is None else min(jitter, following * 1000 - at)
    return at + _share(f"jitter:{schedule.schedule_id}:{run_at}", room)


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A run is over."""

    status: Status
    reason: Reason | None = None
    release: Run | None = None  # the queued run that may start now


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A run is to be attempted again, under the same key."""

    due_at: int
    reason: Reason  # why the attempt before it failed


def after(
    schedule: Schedule | None, run: Run, outcome: Outcome, unfinished: Sequence[Run], *, now: int
) -> Ended | Retry:
    """Decide what follows the outcome of an attempt. `unfinished` has the schedule's other runs.

    A failure is attempted again while the policy has delays left, unless a newer tick waits in the
    queue: that one takes its turn. So is a lost one under `on_lost: retry`, but not for ever: what
    it runs may be what ends its nodes. A schedule that was deleted, or cannot be read, is None:
    nothing of it is attempted again.
    """
    policy = schedule.policy if schedule is not None else Policy()
    release = to_release([other for other in unfinished if other.run_id != run.run_id], now=now)
    superseded = not run.request_id and any(other.blocked_by is not None for other in unfinished)
    match outcome:
        case Succeeded():
            return Ended(Status.SUCCESS, None, release)
        case Canceled():
            return Ended(Status.CANCELED, "canceled", release)
        case Lost():
            may_again = policy.on_lost == "retry" and run.attempt <= len(policy.retry) + MOST_LOST
            if may_again and not superseded:
                return Retry(now, "lost")
            return Ended(Status.FAILED, "lost", release)
        case Failed():
            if outcome.retryable and not superseded and run.attempt <= len(policy.retry):
                return Retry(now + policy.retry[run.attempt - 1], outcome.reason)
            return Ended(Status.FAILED, outcome.reason, release)


def to_release(unfinished: Iterable[Run], *, now: int) -> Run | None:
    """Return the first in the queue, if no run is in flight before it.

    One that is later and to be judged yet is not before it: it will find the other in flight.
    """
    runs = list(unfinished)
    waiting = [run for run in runs if run.blocked_by is not None]
    first = min(waiting, key=lambda run: run.run_at, default=None)
    if first is None:
        return None
    before = [run for run in runs if not (run.awaits_judgement and run.run_at > first.run_at)]
    return None if any(run.in_flight(now) for run in before) else first


def judge(
    schedule: Schedule, run: Run, unfinished: Sequence[Run], *, now: int
) -> Launch | Queue | Skip:
    """Decide again about a run that was decided before it was due, now that it is.

    Others that were, and come after it, are not in its way: they will be judged themselves.
    """
    tick, place = Tick(run.run_at, run.due_at), (run.due_at, run.run_at)
    others = [
        other
        for other in unfinished
        if other.run_id != run.run_id
        and other.in_flight(now)
        and not (other.awaits_judgement and (other.due_at, other.run_at) > place)
    ]
    if not others or run.request_id or schedule.policy.overlap == "allow":
        return Launch(tick)
    if schedule.policy.overlap == "queue":
        return Queue(tick, others[0].run_at)
    return Skip(tick, "superseded" if run.attempt else "overlap", others[0].run_at)


class _Deciding:
    """The decisions of one plan so far, and what they leave in flight."""

    def __init__(
        self,
        schedule: Schedule,
        unfinished: Sequence[Run],
        past: Past,
        *,
        now: int,
        allowance: int,
        waits: int = 0,
    ) -> None:
        self.schedule, self._policy, self.past, self.now = schedule, schedule.policy, past, now
        self.decisions: list[Decision] = []
        self.catchups, self._allowance, self._waits = 0, allowance, waits
        self.rest_at: int | None = None  # when what is due and not to start now is due again
        self.spread_until, self.is_short = 0, False
        self._blocker: int | None = None
        self._retries: list[Run] = []
        self._queue: list[Run] = []  # those that wait, if what they wait for is a retry
        self._queued = 0
        for run in unfinished:
            if run.in_flight(now):
                self._blocker = run.run_at
            elif run.awaits_retry and not run.request_id:  # one that has to queue for it too
                self._retries.append(run)
            elif run.blocked_by is not None:
                self._queued += 1
                self._queue.append(run)
        if self._blocker is not None:
            self._queue.clear()
        elif self._queue:
            self._blocker = self._queue[0].run_at

    def skip(self, tick: Tick, reason: Reason) -> None:
        self.decisions.append(Skip(tick, reason))

    def is_allowed(self) -> bool:
        """Return whether the allowance has room for one more missed tick."""
        return self.catchups < self._allowance

    def has_room(self) -> bool:
        """Return whether one more missed tick may be caught up now."""
        is_full = self._policy.overlap == "queue" and self._queued >= QUEUE_LIMIT
        return not is_full and self.is_allowed()

    def later(self) -> int:
        """Return when to look again at what there was no room for: not all at one time."""
        text = f"later:{self.schedule.schedule_id}:{self.now}"
        return self.now + POSTPONED + _share(text, max(self._waits, POSTPONED // 10))

    def next_planned(self, tick: int) -> int | None:
        """Return the tick after this one, if it is not later than now."""
        return self.schedule.trigger.following(tick, self.past, self.now // 1000 + 1)

    def decide(self, tick: Tick, triggered_by: Literal["timer", "catchup"]) -> None:
        """Decide one fresh tick by the overlap policy."""
        self.decisions += map(Supersede, self._retries)
        self._retries.clear()
        if self._queue:
            first = min(self._queue, key=lambda run: run.run_at)
            self.decisions.append(Release(first))
            self._blocker = first.run_at
            self._queue.clear()
        if self._blocker is None or self._policy.overlap == "allow":
            self.decisions.append(Launch(tick, triggered_by))
            self._blocker = tick.run_at
        elif self._policy.overlap == "skip":
            self.decisions.append(Skip(tick, "overlap", self._blocker))
            return
        elif self._queued >= QUEUE_LIMIT:
            self.decisions.append(Skip(tick, "queue_full", self._blocker))
            return
        else:
            self.decisions.append(Queue(tick, self._blocker, triggered_by))
            self._queued += 1
        self.catchups += triggered_by == "catchup"
        if self.schedule.trigger.counts_runs:
            self.past = replace(self.past, runs_used=self.past.runs_used + 1)


def _leave_missed(deciding: _Deciding, run_at: int) -> int | None:
    """Skip the ticks that are too late to run as one range; return the first that is not."""
    schedule, policy, past = deciding.schedule, deciding.schedule.policy, deciding.past
    window = 0 if policy.catchup == "none" else policy.catchup_window
    since = deciding.now
    if policy.catchup == "spread" and _is_spreading(past, since):
        since = past.spread_until - LOOKAHEAD  # what was not too late then has its turn to come
    limit = since - max(window, policy.grace)
    if due_at(schedule, run_at, past) >= limit:
        return run_at
    missed = _last_due_before(schedule, run_at, past, limit)
    deciding.skip(_ticks(schedule, run_at, missed, past), "missed")
    return deciding.next_planned(missed)


def _catch_up_once(deciding: _Deciding, tick: int | None) -> int | None:
    """Let the latest that is due stand for the ticks from `tick` on; return the next."""
    schedule, past = deciding.schedule, deciding.past
    if tick is None or due_at(schedule, tick, past) > deciding.now:
        return tick
    last = _last_due_before(schedule, tick, past, deciding.now + 1)
    deciding.decide(_ticks(schedule, tick, last, past), "catchup")
    return deciding.next_planned(last)


def _spread(deciding: _Deciding, tick: int | None) -> int | None:
    """Decide as many as are to start now, if all that are due start evenly; return the next.

    They end with the look-ahead or with the next tick, if that is sooner. The rest is due again
    when its turn comes, and spread anew if that is missed too.
    """
    schedule, trigger, now = deciding.schedule, deciding.schedule.trigger, deciding.now
    if tick is None or due_at(schedule, tick, deciding.past) > now:
        return tick
    last = _last_due_before(schedule, tick, deciding.past, now + 1)
    count = 1 + trigger.count(tick + 1, last + 1, deciding.past)
    left = trigger.runs_left(deciding.past)
    count = count if left is None else min(count, left)
    until = deciding.past.spread_until
    if not _is_spreading(deciding.past, now):
        following, until = trigger.look(last, deciding.past)[0], now + LOOKAHEAD
        if following is not None:
            until = min(until, due_at(schedule, following, deciding.past))
        assert until > now, "the next tick is not due"
    at_once = min(max(1, count * STEP // (until - now)), MOST_DECISIONS)
    tick = _decide_each(deciding, tick, most=at_once)
    if tick is not None and tick <= last:
        deciding.spread_until = until
        if deciding.rest_at is None:
            deciding.rest_at = now + at_once * (until - now) // count
    return tick


def _is_spreading(past: Past, now: int) -> bool:
    """Return whether missed ticks have a pace to keep: not if that, or the clock, was set back."""
    return now < past.spread_until <= now + LOOKAHEAD


def _decide_each(
    deciding: _Deciding, tick: int | None, *, most: int = MOST_DECISIONS
) -> int | None:
    """Decide up to `most` ticks that are due, each by itself; return the first that is not decided.

    One that is missed waits if there is no room for it, and with it those after it.
    """
    schedule, now = deciding.schedule, deciding.now
    while (
        most > 0
        and tick is not None
        and len(deciding.decisions) < MOST_DECISIONS
        and (at := due_at(schedule, tick, deciding.past)) <= now
    ):
        is_missed = at < now - schedule.policy.grace
        if is_missed and not deciding.has_room():
            deciding.rest_at, deciding.is_short = deciding.later(), not deciding.is_allowed()
            break
        deciding.decide(Tick(tick, at), "catchup" if is_missed else "timer")
        tick = deciding.next_planned(tick)
        most -= 1
    return tick


def _share(text: str, room: int) -> int:
    """Return a part of `room` that is always the same for the same text."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") % room


def _is_tick(schedule: Schedule, run_at: int, past: Past) -> bool:
    return schedule.trigger.cost == 1 or schedule.trigger.has(run_at, past)


def _tick_from(schedule: Schedule, run_at: int, past: Past, now: int) -> int | None:
    """Return the first tick that a due row stands for, if it is not later than now."""
    if _is_tick(schedule, run_at, past):
        return run_at
    return schedule.trigger.following(run_at, past, now // 1000 + 1)


def _ticks(schedule: Schedule, first: int, last: int, past: Past) -> Tick:
    """Return the ticks from `first` to `last`, counted without listing them."""
    due = due_at(schedule, last, past)
    if first == last:
        return Tick(last, due)
    return Tick(last, due, first, 1 + schedule.trigger.count(first + 1, last + 1, past))


def _last_due_before(schedule: Schedule, first: int, past: Past, limit: int) -> int:
    """Return the latest tick from `first` on that is due before `limit`; `first` itself is."""
    last = schedule.trigger.between(first, limit // 1000 + 1, past).last
    while last is not None and last > first and due_at(schedule, last, past) >= limit:
        last = schedule.trigger.between(first, last, past).last
    return first if last is None else max(last, first)
