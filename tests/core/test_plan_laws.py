"""The laws of planning, compared with a walk that decides tick by tick; and its speed."""

import time
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat import InvalidSchedule
from onbeat.core.decide.plan import (
    MOST_DECISIONS,
    catch_up,
    count_starts,
    decide_edit,
    due_at,
    next_due,
    plan,
    set_aside,
)
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import Due, Launch, Plan, Queue, Release, Skip, Supersede
from onbeat.core.runs.phase import STARTED
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.testing import a_schedule
from tests.core.plans import DAY, HOUR, MINUTE, NOON, SECOND, a_run, queued, waiting
from tests.profiles import examples
from tests.timing import LIMIT

QUEUE_LIMIT = Policy().queue_limit


SECONDS = [  # what ticks every few seconds
    {"every": "1s"},
    {"every": "7s"},
    {"cron": "*/10 * * * * *", "timezone": "America/New_York"},
    {"any": [{"every": "7s"}, {"every": "11s"}]},
    {"all": [{"every": "2s"}, {"every": "3s"}]},
    {"minus": [{"every": "1s"}, {"every": "3s"}]},
    {"cron": "* * * * * *", "within": {"hours": "01:00-02:59"}, "timezone": "Europe/Berlin"},
]
HOURS = [  # what ticks several times a day, or every few days
    {"every": "90m"},
    {"every": "1d", "timezone": "Europe/Berlin"},
    {"cron": "*/20 * * * *", "timezone": "Europe/Berlin"},
    {"cron": "30 1,2,3 * * *", "timezone": "Europe/Berlin"},
    {"cron": "30 1,2,3 * * *", "timezone": "Europe/Berlin", "dst": "skip"},
    {"daily": "02:30", "timezone": "America/New_York"},
    {"at": ["2026-01-02T09:00:00Z", "2026-03-29T02:30:00Z", "2026-10-25T00:30:00Z"]},
    {"any": [{"cron": "0 */4 * * *"}, {"daily": "02:30", "timezone": "Europe/Berlin"}]},
    {"any": [{"every": "1h", "within": "09:00-17:00"}, {"at": "2026-03-29T01:10:00Z"}]},
    {"all": [{"every": "40m"}, {"cron": "0 * * * MON-FRI"}]},
    {"minus": [{"cron": "*/30 * * * *"}, {"daily": "02:30"}, {"cron": "0 * * * SUN"}]},
    {"every": "50m", "exclude": ["2026-03-29", "12-25..01-01"], "timezone": "Europe/Berlin"},
    {"every": "50m", "within": {"hours": ["02:15-06:00", "20:00-22:00"], "outside": "move"}},
    {
        "cron": "0 */3 * * *",
        "timezone": "Europe/Berlin",
        "within": {"hours": "09:00-17:00", "days": "MON-FRI", "outside": "move"},
    },
]
BEGINNINGS = [  # New Year, and the nights on which the clocks change in Europe and America
    parse_instant(f"2026-{day}T20:00:00Z") for day in ("01-01", "03-07", "03-28", "10-24", "10-31")
]


@dataclass(frozen=True)
class Case:
    """Something to plan."""

    schedule: Schedule
    first: int
    unfinished: tuple[Run, ...]
    past: Past
    now: int
    max_runs: int | None

    @property
    def policy(self):
        return self.schedule.policy

    def planned(self, **changed):
        case = replaced(self, **changed)
        return plan(case.schedule, case.first, case.unfinished, case.past, now=case.now)

    def ticks(self, until):
        """List every tick planned from the first to `until`, both included."""
        found = []
        tick = self.first
        while tick is not None and tick <= until:
            found.append(tick)
            tick = self.schedule.trigger.next_after(tick, self.past)
        return found

    def start_of(self, tick):
        """Say when a tick is to start, as the design does: planned, moved, and delayed by less than
        was asked for and than the gap to the next."""
        trigger, jitter = self.schedule.trigger, self.policy.jitter
        start = trigger.due_at(tick, self.past) * 1000
        if jitter == 0:
            return start
        following = trigger.next_after(start // 1000, self.past)
        room = min(jitter, following * 1000 - start) if following else jitter
        text = f"jitter:{self.schedule.schedule_id}:{tick}"
        return start + int(sha256(text.encode()).hexdigest()[:16], 16) % room

    def due(self):
        """List every tick that is due, by looking at each."""
        found = []
        tick = self.first
        while tick is not None and self.start_of(tick) <= self.now:
            found.append(tick)
            tick = self.schedule.trigger.next_after(tick, self.past)
        return found


KINDS_OF_RUN = st.lists(
    st.sampled_from(["started", "waiting", "deferred", "retry", "manual", "manual retry"]),
    max_size=3,
)
POLICIES = st.fixed_dictionaries(
    {
        "grace": st.sampled_from(["1s", "60s", "10m", "3h"]),
        "catchup": st.sampled_from(["once", "none", "all", "spread"]),
        "catchup_window": st.sampled_from(["0s", "5m", "6h", "24h"]),
        "overlap": st.sampled_from(["skip", "queue", "allow"]),
        "jitter": st.sampled_from(["0s", "0s", "5s", "2h"]),
    }
)
TIMINGS = st.sampled_from([(given, 20 * MINUTE) for given in SECONDS]) | st.sampled_from(
    [(given, 9 * DAY) for given in HOURS]
)
BEGINS = st.tuples(st.sampled_from(BEGINNINGS), st.integers(0, 14 * 3600)).map(sum)
SHARES = st.integers(0, 1000)  # in thousandths
COUNTS = st.none() | st.sampled_from([(1, 0), (2, 0), (2, 1), (4, 0), (4, 1)])  # max_runs, used
LATE = st.one_of(
    st.tuples(st.sampled_from(["start", "grace", "window"]), st.sampled_from([-1, 0, 1])),
    st.tuples(st.just("share"), SHARES),
    st.tuples(st.just("share"), SHARES),
)


def runs_before(first, kinds, queue, now):
    """Return runs as a store could have them before the tick `first`: a queue has one in flight."""
    made = {
        "started": partial(a_run, attempt=2),
        "waiting": partial(waiting, due_at=now),
        "deferred": partial(waiting, due_at=now + 1),
        "retry": partial(waiting, attempt=1, due_at=now - SECOND),
        "manual": partial(a_run, request_id="by-hand"),
        "manual retry": partial(waiting, attempt=1, request_id="again", due_at=now),
    }
    runs = [made[kind](first - 50 + i) for i, kind in enumerate(kinds)]
    if any(is_in_flight(run, now) for run in runs):
        runs += [queued(first - 20 + i) for i in range(queue)]
    return runs


def is_in_flight(run, now):
    """Return whether a run is in flight: scheduled, and about to start or started."""
    if run.request_id or run.blocked_by is not None:
        return False
    return run.phase in STARTED or (run.attempt == 0 and run.due_at <= now)


@st.composite
def cases(draw, *, counting=True):
    (given, longest), begin, policy = draw(TIMINGS), draw(BEGINS), draw(POLICIES)
    limits, past = {}, Past(created_at=begin)
    match draw(st.sampled_from(["", "", "end", "delay"])):
        case "end":
            limits["end_at"] = rfc3339(begin + draw(SHARES) * longest // 1_000_000)
        case "delay":
            limits["delay"] = "2h"
    count = draw(COUNTS) if counting else None
    if count is not None:
        limits["max_runs"], past = count[0], replace(past, runs_used=count[1])
    try:
        schedule = a_schedule(**given, **limits, **policy)
    except InvalidSchedule as refused:
        assert "end_at" in str(refused), refused
        assume(False)
    first = next_due(schedule, begin, past)
    assume(first is not None)
    edges = {"start": 0, "grace": schedule.policy.grace, "window": schedule.policy.catchup_window}
    edge, nudge = draw(LATE)
    now = first.due_at + (longest * nudge // 1000 if edge == "share" else edges[edge] + nudge)
    assume(now - first.due_at <= 10 * longest)  # the walk looks at every tick
    runs = runs_before(first.run_at, draw(KINDS_OF_RUN), draw(st.integers(0, 2)), now)
    unfinished = tuple(draw(st.sampled_from([runs, runs[::-1]])))
    until = draw(st.none() | st.sampled_from([-1, 0, 1, 500, 40_000, HOUR]))
    past = replace(past, spread_until=0 if until is None else now + until)
    return Case(schedule, first.run_at, unfinished, past, now, count and count[0])


def walk(case):
    """Decide by the docstring of `plan`, in the simplest and slowest way.

    Return verdicts with the ticks each is about, and the first tick that is not decided.
    """
    policy, now = case.policy, case.now
    busy = any(is_in_flight(run, now) or run.blocked_by is not None for run in case.unfinished)
    waits = sum(run.blocked_by is not None for run in case.unfinished)
    retries = [
        run for run in case.unfinished
        if run.attempt and run.phase not in STARTED and not run.request_id
    ]  # fmt: skip
    used, verdicts, decided_ticks = case.past.runs_used, [], []
    for kind, ticks in groups_of(case):
        if not ticks:
            continue
        if len(verdicts) >= MOST_DECISIONS or used == case.max_runs:
            break
        if kind == "each":
            if policy.overlap == "queue" and waits >= QUEUE_LIMIT:
                break
            kind = "catchup"  # noqa: PLW2901 - by its name from here
        decided_ticks += ticks
        if kind == "missed":
            verdicts.append(("missed", ticks))
            continue
        verdicts += [("supersede", [run.run_at]) for run in retries]
        retries = []
        if not busy or policy.overlap == "allow":
            verdicts.append((kind, ticks))
            busy = True
        elif policy.overlap == "skip":
            verdicts.append(("overlap", ticks))
            continue
        elif waits >= QUEUE_LIMIT:
            verdicts.append(("queue_full", ticks))
            continue
        else:
            verdicts.append(("queue", ticks))
            waits += 1
        used += 1
    if used == case.max_runs:
        return verdicts, None
    last = decided_ticks[-1] if decided_ticks else None
    return verdicts, case.schedule.trigger.next_after(last, case.past) if last else case.first


def groups_of(case):
    """Return which due ticks are decided together, and how."""
    policy, now, due = case.policy, case.now, case.due()
    missed = {tick: None for tick in due if case.start_of(tick) < now - policy.grace}
    since = now
    if policy.catchup == "spread" and now < case.past.spread_until <= now + MINUTE:
        since = case.past.spread_until - MINUTE  # it had begun then, or later
    oldest = since - max(policy.catchup_window, policy.grace)
    old = [tick for tick in due if case.start_of(tick) < oldest]
    spreads = policy.catchup == "spread" and case.past.spread_until != 0
    if not missed:
        return [("launch", [tick]) for tick in (due[: at_once(case, due)] if spreads else due)]
    if policy.catchup == "none":
        return [("missed", [*missed]), *(("launch", [tick]) for tick in due[len(missed) :])]
    if policy.catchup == "once":
        return [("missed", old), ("catchup", due[len(old) :])]
    if policy.catchup == "all":
        each = [("each" if tick in missed else "launch", [tick]) for tick in due[len(old) :]]
        return [("missed", old), *each]
    rest = due[len(old) :]
    each = [("each" if tick in missed else "launch", [tick]) for tick in rest]
    return [("missed", old), *each[: at_once(case, rest)]]


def at_once(case, ticks):
    """Return how many of the due ticks start now if they are spread."""
    if not ticks:
        return 0
    end, following = case.now + MINUTE, case.schedule.trigger.look(ticks[-1], case.past)[0]
    if following is not None:
        end = min(end, case.start_of(following))
    if case.now < case.past.spread_until <= case.now + MINUTE:
        end = case.past.spread_until
    count = len(ticks)
    if case.max_runs is not None:
        count = min(count, case.max_runs - case.past.runs_used)
    return max(1, count * 100 // (end - case.now))


def verdict(decision):
    match decision:
        case Launch(triggered_by=by):
            return "launch" if by == "timer" else "catchup"
        case Queue():
            return "queue"
        case Skip():
            return decision.reason
        case Supersede():
            return "supersede"


def about(decisions):
    """Return the ticks of decisions, including those covered by a range."""
    return [
        (
            decision.tick.first_run_at or decision.tick.run_at,
            decision.tick.run_at,
            decision.tick.count,
        )
        for decision in decisions
        if not isinstance(decision, (Supersede, Release))
    ]


def was_cut_short(case, found):
    """Return whether a plan had a reason to leave due ticks."""
    used = case.past.runs_used + count_starts(found.decisions)
    full = len(found.decisions) >= MOST_DECISIONS or used == case.max_runs
    return full or is_postponed(case, found)


def is_postponed(case, found):
    """Return whether a plan leaves a due tick for another plan, now or later."""
    if found.due is None:
        return False
    start = case.start_of(found.due.run_at)
    return start <= case.now and start < found.due.due_at


@given(cases())
@examples(200)
def test_plan_equals_deciding_tick_by_tick(case):
    found = case.planned()
    verdicts, undecided = walk(case)
    assert [verdict(decision) for decision in found.decisions] == [name for name, _ in verdicts]
    assert about(found.decisions) == [
        (ticks[0], ticks[-1], len(ticks)) for name, ticks in verdicts if name != "supersede"
    ]
    assert (found.due and found.due.run_at) == undecided


@given(cases())
def test_every_due_tick_is_covered_exactly_once(case):
    found = case.planned()
    ranges = about(found.decisions)
    ticks = case.ticks(ranges[-1][1]) if ranges else []
    listed = [tick for first, last, _ in ranges for tick in ticks if first <= tick <= last]
    assert listed == ticks
    assert sum(count for _, _, count in ranges) == len(ticks)
    assert was_cut_short(case, found) or ticks == case.due()


@given(cases())
def test_only_due_ticks_are_decided(case):
    for decision in case.planned().decisions:
        if not isinstance(decision, (Supersede, Release)):
            assert decision.tick.due_at == case.start_of(decision.tick.run_at) <= case.now


@given(cases())
def test_due_row_is_the_first_undecided_tick(case):
    found = case.planned()
    past = replace(case.past, runs_used=case.past.runs_used + count_starts(found.decisions))
    ranges = about(found.decisions)
    if not ranges:
        assert found.due == Due(case.first, case.start_of(case.first))
        return
    following = case.schedule.trigger.next_after(ranges[-1][1], past)
    if is_postponed(case, found):
        assert found.due.run_at == following
        assert case.now <= found.due.due_at <= case.now + MINUTE + SECOND
    else:
        assert found.due == (following and Due(following, case.start_of(following)))


@given(cases())
def test_overlap_skip_names_a_run_in_flight(case):
    in_flight = {run.run_at for run in case.unfinished if is_in_flight(run, case.now)}
    for decision in case.planned().decisions:
        match decision:
            case Launch(tick=tick):
                in_flight.add(tick.run_at)
            case Queue(behind=run_at):
                assert run_at in in_flight
            case Skip(reason="overlap" | "queue_full", blocked_by=run_at):
                assert run_at in in_flight
            case Skip(reason=reason, blocked_by=run_at):
                assert (reason, run_at) == ("missed", None)


@given(cases())
def test_starts_never_exceed_max_runs(case):
    started = count_starts(case.planned().decisions)
    assert case.max_runs is None or case.past.runs_used + started <= case.max_runs


@given(cases())
def test_catch_ups_are_counted_and_catchup_once_has_at_most_one(case):
    found = case.planned()
    caught_up = [d for d in found.decisions if getattr(d, "triggered_by", "") == "catchup"]
    most = {"none": 0, "once": 1}.get(case.policy.catchup, MOST_DECISIONS)
    assert len(caught_up) == found.catchups <= most


@given(cases(), st.integers(1, 5))
def test_catch_ups_never_exceed_the_allowance_and_the_rest_waits(case, allowance):
    asked = (case.schedule, case.first, case.unfinished, case.past)
    found, without = case.planned(), plan(*asked, now=case.now, allowance=allowance)
    assert without.catchups == min(found.catchups, allowance)
    assert without.decisions == found.decisions[: len(without.decisions)]
    if without.decisions != found.decisions:
        assert is_postponed(case, without)


@given(cases())
def test_plan_without_allowance_differs_only_in_catch_ups(case):
    asked = (case.schedule, case.first, case.unfinished, case.past)
    found, without = case.planned(), plan(*asked, now=case.now, allowance=0)
    late = case.start_of(case.first) < case.now - case.policy.grace
    if late and case.policy.catchup != "none":
        assert (without.decisions, without.due.run_at) == ((), case.first)
        assert is_postponed(case, without)
    else:
        assert without == found


@given(cases(counting=False))
def test_planning_again_at_the_same_time_decides_nothing(case):
    found = case.planned()
    if found.due is None:
        return
    again = case.planned(first=found.due.run_at)
    assert was_cut_short(case, found) or again == Plan((), found.due)


@given(cases(counting=False), st.floats(0, 1))
def test_additional_plans_in_between_cover_the_same_ticks(case, share):
    middle = min(case.first * 1000 + int((case.now - case.first * 1000) * share), case.now)
    now_and_then, row = [], case.first
    for now in (middle, case.now):
        while row is not None:
            found = case.planned(first=row, now=now)
            now_and_then += about(found.decisions)
            row = found.due and found.due.run_at
            if not was_cut_short(case, found):
                break
    assert sum(count for _, _, count in now_and_then) == len(case.due())
    assert all(earlier[1] < later[0] for earlier, later in pairwise(now_and_then))


@given(cases())
def test_setting_aside_covers_every_tick_planned_up_to_now(case):
    aside = set_aside(case.schedule, case.first, case.past, now=case.now, reason="paused")
    ticks = case.ticks(case.now // 1000)
    assert (aside is None) == (ticks == [])
    if aside is not None:
        assert about([aside]) == [(ticks[0], ticks[-1], len(ticks))]
        assert aside.tick.due_at == case.start_of(ticks[-1])
        (*_, caught_up) = catch_up(case.schedule, aside, case.unfinished, case.past, now=case.now)
        assert caught_up.tick == aside.tick


@given(cases(counting=False))
def test_edit_covers_every_tick_planned_up_to_now(case):
    found = decide_edit(case.schedule, case.first, case.unfinished, case.past, now=case.now)
    ranges = about(found)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(ranges))
    ticks = case.ticks(case.now // 1000)
    assert sum(count for _, _, count in ranges) == len(ticks)
    assert [first for first, _, _ in ranges[:1]] == ticks[:1]
    assert [last for _, last, _ in ranges[-1:]] == ticks[-1:]
    assert all(
        isinstance(decision, Launch) or decision.tick.due_at <= case.now
        for decision in found
        if not isinstance(decision, (Supersede, Release))
    )


@given(cases(counting=False))
def test_edit_starts_no_tick_beyond_its_grace(case):
    found = decide_edit(case.schedule, case.first, case.unfinished, case.past, now=case.now)
    about_ticks = [each for each in found if isinstance(each, (Launch, Queue, Skip))]
    too_late = case.now - case.schedule.policy.lateness
    started = [each for each in about_ticks if not isinstance(each, Skip)]
    assert all(each.tick.due_at >= too_late and each.triggered_by == "timer" for each in started)
    edited = [each for each in about_ticks if isinstance(each, Skip) and each.reason == "edited"]
    assert edited in ([], about_ticks[:1])
    assert all(each.tick.due_at < too_late for each in edited)


@given(cases())
def test_jitter_only_delays_and_keeps_the_order_of_ticks(case):
    ticks = case.schedule.trigger.upcoming(case.first - 1, 50, case.past)
    begin = [due_at(case.schedule, tick, case.past) for tick in ticks]
    assert begin == [case.start_of(tick) for tick in ticks]
    assert all(tick * 1000 <= start for tick, start in zip(ticks, begin, strict=True))
    assert begin == sorted(set(begin))
    assert all(start < tick * 1000 for start, tick in zip(begin, ticks[1:], strict=False))


# -- speed

YEAR = 365 * DAY
OFFICE = {"hours": "09:00-17:00", "days": "MON-FRI"}
EVERY_SECOND = {"cron": "* * * * * *"}


def is_done_within(seconds, call):
    """Return whether one of three calls takes less than this processor time."""
    for _ in range(3):
        began = time.process_time()
        call()
        if time.process_time() - began < seconds:
            return True
    return False


def ways_to_decide(schedule):
    first = next_due(schedule, NOON, NO_PAST).run_at
    asked, now = (schedule, first), first * 1000 + YEAR
    return [
        lambda: plan(*asked, (), NO_PAST, now=now),
        lambda: set_aside(*asked, NO_PAST, now=now, reason="paused"),
    ]


@pytest.mark.parametrize("catchup", ["once", "none", "all", "spread"])
@pytest.mark.parametrize("jitter", ["0s", "10s"])
@pytest.mark.parametrize(
    "given", [{"every": "1s"}, EVERY_SECOND | {"timezone": "America/New_York"}]
)
def test_year_of_missed_seconds_is_decided_quickly(given, catchup, jitter):
    for way in ways_to_decide(a_schedule(**given, catchup=catchup, jitter=jitter)):
        assert is_done_within(LIMIT, way)


@pytest.mark.parametrize("catchup", ["once", "none", "all", "spread"])
@pytest.mark.parametrize(
    "given",
    [
        {"any": [EVERY_SECOND, {"every": "7s"}]},
        {"any": [EVERY_SECOND | {"within": OFFICE}, {"every": "7s", "exclude": ["12-25"]}]},
        {"all": [EVERY_SECOND, {"every": "7s"}]},
        {"minus": [EVERY_SECOND, {"cron": "*/2 * * * * *"}]},
        {"minus": [EVERY_SECOND, {"every": "1s", "within": "00:00-23:59"}]},
        {"minus": [{"any": [{"every": "1s", "within": OFFICE}, {"every": "2s"}]}, {"every": "15s"}]},
        EVERY_SECOND | {"within": OFFICE, "timezone": "America/New_York", "exclude": ["12-25"]},
        EVERY_SECOND | {"within": OFFICE | {"outside": "move"}},
    ],
)  # fmt: skip
def test_year_of_missed_seconds_of_a_combination_is_decided_quickly(given, catchup):
    for way in ways_to_decide(a_schedule(**given, catchup=catchup)):
        assert is_done_within(10 * LIMIT, way)


@pytest.mark.parametrize(
    "policy",
    [
        {"enabled": False}, {"jitter": "10s", "jitter_around": True}, {"jitter": "1h", "jitter_around": True},
        {"overlap": "replace", "catchup": "all"}, {"rate": "3/hour", "catchup": "all"},
        {"overlap": "queue", "queue_limit": 1, "queue_keep": "latest", "catchup": "all"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [{"every": "1s"}, {"any": [EVERY_SECOND, {"every": "7s"}]}])
def test_year_of_missed_seconds_is_decided_quickly_under_any_policy(given, policy):
    for way in ways_to_decide(a_schedule(**given, **policy)):
        assert is_done_within(10 * LIMIT, way)
