"""The planner's decisions about due ticks, as values.

These functions are pure. A store calls them inside the transaction that carries the decisions out,
so that their arguments are still true when it commits.

Ticks are planned in seconds (`run_at`), everything else is in milliseconds.
"""

from collections.abc import Iterable, Sequence

from onbeat.core.decide.follow import count_events
from onbeat.core.decide.outcomes import to_release
from onbeat.core.decide.overlap import LOOKAHEAD, OverlapPlanner, is_rated
from onbeat.core.runs.decisions import (
    Decision,
    Due,
    Launch,
    Plan,
    Queue,
    Release,
    Skip,
    Supersede,
    Tick,
)
from onbeat.core.runs.phase import UNANNOUNCED
from onbeat.core.runs.run import Reason, ReasonDetail, Run
from onbeat.core.runs.stable_hash import stable_share
from onbeat.core.schedule import Schedule
from onbeat.core.triggers.past import Past

MOST_DECISIONS = 100  # of one schedule in one plan: the rest is due again immediately
MOST_ON_TIME = 1000  # ticks that an edit decides one by one: earlier ones join its range
STEP = 100  # milliseconds: spread runs that would start within this start together


def plan(
    schedule: Schedule,
    run_at: int,
    unfinished: Sequence[Run],
    past: Past,
    *,
    now: int,
    allowance: int = MOST_DECISIONS,
    waits: int = 0,
    lookahead: int = LOOKAHEAD,
) -> Plan:
    """Decide the due ticks of a schedule. `run_at` is its first undecided tick.

    1. If the first tick is within its grace, each is decided separately, in order.
    2. Otherwise ticks have been missed. With catchup `none` they are skipped as one range, and the
       ticks on time are decided as in 1. Otherwise the ticks due before the catch-up window are
       skipped as one range. Of the rest, with `once` the latest due tick runs and covers the
       others; with `all` each is decided as in 1; with `spread` they start one after another,
       evenly over the `lookahead` or until the next tick.
    3. The due row becomes the first undecided tick. Ticks for which the allowance or the queue has
       no room are not dropped: they are due again in a second, or up to `waits` later.
    """
    policy, trigger = schedule.policy, schedule.trigger
    if not unfinished and is_plain(schedule):  # the common case, decided quickly
        due, (then, _) = run_at * 1000, trigger.look(run_at, past)
        if now - policy.grace <= due <= now and (then is None or then * 1000 > now):
            following = None if then is None else Due(then, then * 1000)
            return Plan((Launch(Tick(run_at, due)),), following)
    if not _is_tick(schedule, run_at, past):  # the search for a tick had given up here
        found = trigger.following(run_at, past, now // 1000 + 1)
        if found is None:
            return Plan((), next_due(schedule, max(run_at, now // 1000), past))
        run_at = found
    if (reason := switched_off(schedule)) is not None:
        return _skip_all_due(schedule, run_at, unfinished, past, now=now, reason=reason)
    deciding = OverlapPlanner(
        schedule, unfinished, past, now=now, allowance=allowance, waits=waits, lookahead=lookahead
    )
    tick: int | None = run_at
    is_missed = due_at(schedule, run_at, past) < now - policy.lateness
    if is_missed and policy.catchup != "none" and not deciding.is_allowed():
        return Plan((), Due(run_at, deciding.later()), is_short=True)
    if is_missed:
        tick = _skip_missed(deciding, run_at)
    if is_missed and policy.catchup == "once":
        tick = _catch_up_once(deciding, tick)
    if policy.catchup == "spread" and (is_missed or past.spread_until):
        tick = _spread(deciding, tick)
    else:
        tick = _decide_each(deciding, tick)
    return _planned(deciding, run_at, tick)


def _planned(deciding: OverlapPlanner, run_at: int, tick: int | None) -> Plan:
    """Return the plan of what was decided; `tick` is the first undecided tick."""
    schedule = deciding.schedule
    if tick is not None and deciding.rest_at is not None:
        return Plan(
            tuple(deciding.decisions),
            Due(tick, deciding.rest_at),
            deciding.catchups,
            deciding.spread_until,
            deciding.is_short,
        )
    if not deciding.decisions:
        return Plan((), Due(run_at, due_at(schedule, run_at, deciding.past)))
    last_decided = deciding.decisions[-1]
    assert isinstance(last_decided, (Launch, Queue, Skip)), (
        "decisions about runs precede those about ticks"
    )
    following = next_due(schedule, last_decided.tick.run_at, deciding.past)
    return Plan(tuple(deciding.decisions), following, deciding.catchups)


def is_plain(schedule: Schedule) -> bool:
    """Return whether a plan without unfinished runs depends on trigger, policy and time alone.

    Then, unless it catches up, it is the same for all schedules with the same trigger and policy.
    """
    return schedule.trigger.is_plain and schedule.policy.is_plain and schedule.target.is_enabled


def set_aside(
    schedule: Schedule,
    run_at: int,
    past: Past,
    *,
    now: int,
    reason: Reason,
    detail: ReasonDetail | None = None,
) -> Skip | None:
    """Skip every tick from `run_at` up to now as one range, or return None if there is none.

    This decides the ticks of a pause, a closed gate and a deletion: by `run_at`, not by `due_at`.
    """
    if run_at * 1000 > now:
        return None
    ticks = schedule.trigger.between(run_at, now // 1000 + 1, past)
    first, last = _tick_from(schedule, run_at, past, now), ticks.last
    if first is None:
        return None
    tick = _ticks(schedule, first, first if last is None else last, past)
    return Skip(tick, reason, detail=detail)


def split_stale(
    schedule: Schedule, unfinished: Iterable[Run], *, now: int
) -> tuple[list[Run], list[Run]]:
    """Return the runs that waited longer than their grace, which a pause ends; and the rest."""
    stale: list[Run] = []
    others: list[Run] = []
    for run in unfinished:
        waits = run.phase in UNANNOUNCED and not run.is_requested
        late = run.due_at < now - schedule.policy.grace
        (stale if waits and late else others).append(run)
    return stale, others


def defined_late(schedule: Schedule, past: Past, *, now: int) -> tuple[Skip | None, int]:
    """Skip single times that were past when they were defined; return also the last one decided.

    Times within their grace are still on time, and left to the planner.
    """
    first = schedule.trigger.between(0, now // 1000 + 1, past).first
    if first is None:
        return None, now // 1000
    limit = now - schedule.policy.lateness
    if due_at(schedule, first, past) >= limit:
        return None, first - 1
    last = _last_due_before(schedule, first, past, limit)
    late = ReasonDetail(rule="at_definition")
    return Skip(_ticks(schedule, first, last, past), "missed", detail=late), last


def decide_edit(
    schedule: Schedule, run_at: int, unfinished: Sequence[Run], past: Past, *, now: int
) -> tuple[Decision, ...]:
    """Decide every tick planned up to now, before another definition takes over.

    1. Ticks beyond their grace are skipped as one range, `edited`, whatever `catchup` is: an edit
       starts nothing of the past.
    2. Ticks within their grace are on time: each is decided separately, in order. If there are more
       than MOST_ON_TIME, the earliest join the range.
    3. A tick with a past `run_at` and a later `due_at` is enqueued for that time.

    Ticks of a disabled schedule or target are skipped for that reason.
    """
    first = _tick_from(schedule, run_at, past, now)
    if first is None:
        return ()
    decisions: list[Decision]
    if switched_off(schedule) is not None:
        found = plan(schedule, first, unfinished, past, now=now)
        decisions, following = list(found.decisions), found.due
    else:
        deciding = OverlapPlanner(schedule, unfinished, past, now=now, allowance=0)
        last = _decide_owed(deciding, first)
        decisions, past = deciding.decisions, deciding.past
        following = (
            Due(first, due_at(schedule, first, past))
            if last is None
            else next_due(schedule, last, past)
        )
    if following is None or following.run_at * 1000 > now:
        return tuple(decisions)
    if following.due_at > now and _is_tick(schedule, following.run_at, past):
        decisions.append(_decide_ahead(schedule, following, past, now))
    return tuple(decisions)


def _decide_owed(deciding: OverlapPlanner, first: int) -> int | None:
    """Decide the due ticks before an edit; return the latest of them."""
    schedule, past, now = deciding.schedule, deciding.past, deciding.now
    tick: int | None = first
    late, last = _last_too_late(schedule, first, past, now), None
    if late is not None:
        deciding.skip(_ticks(schedule, first, late, past), "edited")
        tick, last = _next_planned(deciding, late), late
    while tick is not None and (at := due_at(schedule, tick, deciding.past)) <= now:
        deciding.decide(Tick(tick, at), "timer")
        last, tick = tick, _next_planned(deciding, tick)
    return last


def _last_too_late(schedule: Schedule, first: int, past: Past, now: int) -> int | None:
    """Return the latest tick that an edit skips as part of the range, if there is one."""
    trigger, limit = schedule.trigger, now - schedule.policy.lateness
    late, end = None, now // 1000 + 1 + _early(schedule)
    if due_at(schedule, first, past) < limit:
        late = _last_due_before(schedule, first, past, limit)
    if trigger.count(first if late is None else late + 1, end, past) <= MOST_ON_TIME:
        return late
    tick: int | None = end
    for _ in range(MOST_ON_TIME + 1):
        tick = None if tick is None else trigger.between(first, tick, past).last
    return late if tick is None else tick


def _decide_ahead(schedule: Schedule, due: Due, past: Past, now: int) -> Decision:
    """Decide a tick before it is due: its overlap is rechecked when it is."""
    tick = Tick(due.run_at, due.due_at, count=count_events(schedule.trigger, due.run_at, past))
    if (reason := switched_off(schedule)) is not None:
        return Skip(tick, reason)
    return Skip(tick, "rate") if is_rated(schedule.policy, past, now) else Launch(tick)


def catch_up(
    schedule: Schedule, aside: Skip, unfinished: Sequence[Run], past: Past, *, now: int
) -> tuple[Decision, ...]:
    """Decide to run a range that was set aside: its latest tick covers the rest."""
    if (reason := switched_off(schedule)) is not None:
        return (Skip(aside.tick, reason),)
    deciding = OverlapPlanner(schedule, unfinished, past, now=now, allowance=1)
    deciding.decide(aside.tick, "catchup", ReasonDetail(rule="resumed"))
    return tuple(deciding.decisions)


def count_starts(decisions: Iterable[Decision]) -> int:
    """Return how many starts these decisions count for `max_runs`."""
    return sum(isinstance(decision, (Launch, Queue)) for decision in decisions)


def next_due(schedule: Schedule, after: int, past: Past) -> Due | None:
    """Return the due row of the first tick later than `after`, or of where to search on."""
    run_at, reached = schedule.trigger.look(after, past)
    if reached is not None:
        return Due(reached, reached * 1000)
    return None if run_at is None else Due(run_at, due_at(schedule, run_at, past))


def due_at(schedule: Schedule, run_at: int, past: Past) -> int:
    """Return when the tick planned for `run_at` is due: `run_at` plus jitter.

    Jitter is derived from the tick, so it is the same after a restart. It is less than the gap to
    the next tick, so it never changes their order. With `jitter_around` a tick may be due before
    its `run_at`; the same holds then, shifted by the jitter.
    """
    at = schedule.trigger.due_at(run_at, past) * 1000
    jitter, around = schedule.policy.jitter, schedule.policy.jitter_around
    if not jitter:
        return at
    most = 2 * jitter if around else jitter
    following = schedule.trigger.next_after(at // 1000, past)
    room = most if following is None else min(most, following * 1000 - at)
    begin = at - jitter if around else at
    return begin + stable_share(f"jitter:{schedule.schedule_id}:{run_at}", room)


def switched_off(schedule: Schedule) -> Reason | None:
    """Return the reason why no run of a schedule starts, if its definition disables it."""
    if not schedule.policy.enabled:
        return "disabled"
    return None if schedule.target.is_enabled else "disabled_target"


def _skip_all_due(
    schedule: Schedule,
    run_at: int,
    unfinished: Sequence[Run],
    past: Past,
    *,
    now: int,
    reason: Reason,
) -> Plan:
    """Skip every due tick as one range, and end the runs that wait for a retry.

    Otherwise a schedule that is enabled again would continue with an attempt at an older tick.
    """
    if due_at(schedule, run_at, past) > now:
        return Plan((), Due(run_at, due_at(schedule, run_at, past)))
    last = _last_due_before(schedule, run_at, past, now + 1)
    found = Skip(_ticks(schedule, run_at, last, past), reason)
    ended = [run for run in unfinished if run.awaits_retry and not run.is_requested]
    decisions: list[Decision] = [Supersede(run, reason) for run in ended]
    left = to_release([run for run in unfinished if run not in ended], now=now) if ended else None
    if left is not None:  # it waited for the retry
        decisions.append(Release(left))
    return Plan((*decisions, found), next_due(schedule, last, past))


def _early(schedule: Schedule) -> int:
    """Return by how many seconds a tick may be due before it is planned."""
    return -(-schedule.policy.jitter // 1000) if schedule.policy.jitter_around else 0


def _next_planned(deciding: OverlapPlanner, tick: int) -> int | None:
    """Return the next tick after this one, if it can be due by now."""
    schedule = deciding.schedule
    last = deciding.now // 1000 + 1 + _early(schedule)
    return schedule.trigger.following(tick, deciding.past, last)


def _skip_missed(deciding: OverlapPlanner, run_at: int) -> int | None:
    """Skip the ticks that are too late to run as one range; return the first later tick."""
    schedule, policy, past = deciding.schedule, deciding.schedule.policy, deciding.past
    window = 0 if policy.catchup == "none" else policy.catchup_window
    since = deciding.now
    if policy.catchup == "spread" and _is_spreading(deciding):
        # Ticks that were not too late when the spreading began still run.
        since = past.spread_until - deciding.lookahead
    limit = since - max(window, policy.lateness)
    if due_at(schedule, run_at, past) >= limit:
        return run_at
    missed = _last_due_before(schedule, run_at, past, limit)
    rule = ReasonDetail(rule="catchup" if policy.catchup == "none" else "window")
    deciding.skip(_ticks(schedule, run_at, missed, past), "missed", rule)
    return _next_planned(deciding, missed)


def _catch_up_once(deciding: OverlapPlanner, tick: int | None) -> int | None:
    """Decide the ticks from `tick` on as one: the latest due tick covers them. Return the next."""
    schedule, past = deciding.schedule, deciding.past
    if tick is None or due_at(schedule, tick, past) > deciding.now:
        return tick
    last = _last_due_before(schedule, tick, past, deciding.now + 1)
    deciding.decide(_ticks(schedule, tick, last, past), "catchup")
    return _next_planned(deciding, last)


def _spread(deciding: OverlapPlanner, tick: int | None) -> int | None:
    """Decide the due ticks that start now if all start evenly spaced; return the next tick.

    The spreading ends with the look-ahead, or with the next tick if that is sooner. The rest is due
    again in its turn, and spread anew if that is missed too.
    """
    schedule, trigger, now = deciding.schedule, deciding.schedule.trigger, deciding.now
    if tick is None or due_at(schedule, tick, deciding.past) > now:
        return tick
    last = _last_due_before(schedule, tick, deciding.past, now + 1)
    count = 1 + trigger.count(tick + 1, last + 1, deciding.past)
    left = trigger.runs_left(deciding.past)
    count = count if left is None else min(count, left)
    until = deciding.past.spread_until
    if not _is_spreading(deciding):
        following, until = trigger.look(last, deciding.past)[0], now + deciding.lookahead
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


def _is_spreading(deciding: OverlapPlanner) -> bool:
    """Return whether missed ticks are being spread; not if the clock was moved backward."""
    now = deciding.now
    return now < deciding.past.spread_until <= now + deciding.lookahead


def _decide_each(
    deciding: OverlapPlanner, tick: int | None, *, most: int = MOST_DECISIONS
) -> int | None:
    """Decide up to `most` due ticks, each separately; return the first undecided tick.

    A missed tick without room waits, and so do all later ones.
    """
    schedule, now = deciding.schedule, deciding.now
    while (
        most > 0
        and tick is not None
        and len(deciding.decisions) < MOST_DECISIONS
        and (at := due_at(schedule, tick, deciding.past)) <= now
    ):
        is_missed = at < now - schedule.policy.lateness
        if is_missed and not deciding.has_room():
            deciding.rest_at, deciding.is_short = deciding.later(), not deciding.is_allowed()
            break
        deciding.decide(Tick(tick, at), "catchup" if is_missed else "timer")
        tick = _next_planned(deciding, tick)
        most -= 1
    return tick


def _is_tick(schedule: Schedule, run_at: int, past: Past) -> bool:
    return schedule.trigger.cost == 1 or schedule.trigger.has(run_at, past)


def _tick_from(schedule: Schedule, run_at: int, past: Past, now: int) -> int | None:
    """Return the first tick at or after a due row, if it is not later than now."""
    if _is_tick(schedule, run_at, past):
        return run_at
    return schedule.trigger.following(run_at, past, now // 1000 + 1)


def _ticks(schedule: Schedule, first: int, last: int, past: Past) -> Tick:
    """Return the ticks from `first` to `last`, counted without listing them."""
    due = due_at(schedule, last, past)
    if first == last:
        return Tick(last, due, count=count_events(schedule.trigger, last, past))
    return Tick(last, due, first, 1 + schedule.trigger.count(first + 1, last + 1, past))


def _last_due_before(schedule: Schedule, first: int, past: Past, limit: int) -> int:
    """Return the latest tick from `first` on that is due before `limit`, as `first` is."""
    last = schedule.trigger.between(first, limit // 1000 + 1 + _early(schedule), past).last
    while last is not None and last > first and due_at(schedule, last, past) >= limit:
        last = schedule.trigger.between(first, last, past).last
    return first if last is None else max(last, first)
