"""What is decided about ticks, and about runs that end: the rules first, then the laws.

It is noon on New Year's Day; schedules are hourly unless a test says otherwise. Decisions are put
into words: `launch 13:00`, `catchup 13:00..17:00 (5)`, `skip 14:00 overlap 13:00`.
"""

import time
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat import InvalidSchedule
from onbeat.core.instants import parse_instant, rfc3339
from onbeat.core.model import NO_PAST, Past
from onbeat.core.plan import (
    MOST_DECISIONS,
    MOST_LOST,
    QUEUE_LIMIT,
    Due,
    Ended,
    Launch,
    Plan,
    Queue,
    Release,
    Retry,
    Skip,
    Supersede,
    Tick,
    after,
    catch_up,
    decide_all,
    due_at,
    is_plain,
    judge,
    next_due,
    plan,
    set_aside,
    starts,
    to_release,
)
from onbeat.core.runs import Canceled, Failed, Lost, Run, Status, Succeeded
from onbeat.core.schedules import Policy, Schedule
from onbeat.core.triggers import OnTheWall
from onbeat.testing import a_schedule
from tests.timing import LIMIT

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
NOON = parse_instant("2026-01-01T12:00:00Z")
BROKEN = Failed("it broke")


def at(text):
    """Return an instant of the day in the seconds of a `run_at`: `13:00`, or `13:00:05`."""
    return parse_instant(f"2026-01-01T{text if len(text) > 5 else text + ':00'}Z")


def ms(text):
    """Return an instant of the day in milliseconds."""
    return at(text) * 1000


def clock(run_at):
    """Return an instant as tests write it, with its date if it is not New Year's Day."""
    text = rfc3339(run_at).removesuffix("Z").removesuffix(":00")
    return text.removeprefix("2026-01-01T")


def words(decision):
    """Put one decision into words."""
    if isinstance(decision, Supersede):
        return f"supersede {clock(decision.run.run_at)}"
    if isinstance(decision, Release):
        return f"release {clock(decision.run.run_at)}"
    tick = decision.tick
    ticks = clock(tick.run_at)
    if tick.first_run_at is not None:
        ticks = f"{clock(tick.first_run_at)}..{ticks} ({tick.count})"
    match decision:
        case Launch(triggered_by=by):
            return f"{'launch' if by == 'timer' else by} {ticks}"
        case Queue():
            return f"queue {ticks} behind {clock(decision.behind)}"
        case Skip(blocked_by=None):
            return f"skip {ticks} {decision.reason}"
        case Skip():
            return f"skip {ticks} {decision.reason} {clock(decision.blocked_by)}"


def told(decisions):
    return list(map(words, decisions.decisions if isinstance(decisions, Plan) else decisions))


def decided(schedule, *unfinished, now, first="13:00", past=NO_PAST, **asked):
    """Plan a schedule whose first undecided tick is `first`; an instant is a text or a number."""
    run_at, now = (at(first), ms(now) if isinstance(now, str) else now)
    return plan(schedule, run_at, unfinished, past, now=now, **asked)


def a_run(when="12:00", status=Status.STARTED, **fields):
    """Return an unfinished run of the tick at `when`: one that was started, unless told."""
    run_at = at(when) if isinstance(when, str) else when
    attempt = 1 if status is Status.STARTED else 0
    given = {"due_at": run_at * 1000, "created_at": run_at * 1000, "attempt": attempt} | fields
    return Run(run_at % 86_400, run_at, status, **given)


def waiting(when="12:00", **fields):
    """Return a run that waits to be claimed."""
    return a_run(when, Status.ENQUEUED, **fields)


def retrying(when="12:00", *, due="14:30", **fields):
    """Return a run that failed once and is to be attempted again."""
    return waiting(when, attempt=1, due_at=ms(due), **fields)


def queued(when="12:00", *, behind=1, **fields):
    """Return a run that waits for another to end."""
    return waiting(when, blocked_by=behind, **fields)


class TestOnTime:
    def test_before_it_is_due_nothing_is_decided_about_a_tick(self):
        assert decided(a_schedule(), now=ms("13:00") - 1) == Plan((), Due(at("13:00"), ms("13:00")))

    def test_a_tick_is_launched_in_the_millisecond_it_is_due(self):
        found = decided(a_schedule(), now="13:00")
        assert found.decisions == (Launch(Tick(at("13:00"), ms("13:00"))),)

    @pytest.mark.req("W54")
    def test_the_due_row_becomes_the_next_tick(self):
        assert decided(a_schedule(), now="13:00").due == Due(at("14:00"), ms("14:00"))

    def test_after_its_last_tick_a_schedule_has_no_due_row(self):
        assert decided(a_schedule(at="2026-01-01T13:00:00Z"), now="13:00").due is None

    def test_ticks_within_their_grace_are_decided_each_by_itself_in_order(self):
        found = decided(a_schedule(every="20s", overlap="allow"), now="13:01")
        assert told(found) == [
            "launch 13:00", "launch 13:00:20", "launch 13:00:40", "launch 13:01",
        ]  # fmt: skip

    @pytest.mark.parametrize("grace", ["1s", "60s", "2h"])
    def test_a_tick_decided_within_its_grace_is_on_time(self, grace):
        schedule = a_schedule(grace=grace)
        end = ms("13:00") + schedule.policy.grace
        assert told(decided(schedule, now=end))[0] == "launch 13:00"

    @pytest.mark.parametrize(("catchup", "becomes"), [("once", "catchup"), ("none", "skip")])
    def test_a_millisecond_later_it_was_missed(self, catchup, becomes):
        found = decided(a_schedule(catchup=catchup), now=ms("13:01") + 1)
        assert told(found)[0].startswith(becomes)

    def test_grace_counts_from_when_a_tick_was_to_start_not_from_when_it_was_planned(self):
        schedule = a_schedule(jitter="50m", catchup="none")
        start = due_at(schedule, at("13:00"), NO_PAST)
        assert start > ms("13:01")
        assert told(decided(schedule, now=start + MINUTE)) == ["launch 13:00"]
        assert told(decided(schedule, now=start + MINUTE + 1)) == ["skip 13:00 missed"]

    @pytest.mark.req("W84")
    def test_a_tick_whose_jittered_time_is_to_come_waits_until_then(self):
        schedule = a_schedule(jitter="50m")
        start = due_at(schedule, at("13:00"), NO_PAST)
        assert decided(schedule, now=start - 1) == Plan((), Due(at("13:00"), start))
        assert told(decided(schedule, now=start)) == ["launch 13:00"]

    def test_a_moved_tick_waits_for_the_opening_and_keeps_its_run_at(self):
        hours = {"hours": "15:00-17:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours)
        assert decided(schedule, now="14:59") == Plan((), Due(at("13:00"), ms("15:00")))
        (launch,) = decided(schedule, now="15:00").decisions
        assert launch == Launch(Tick(at("13:00"), ms("15:00")))

    @pytest.mark.req("S32")
    def test_of_several_triggers_the_earliest_wins_and_equal_instants_are_one_tick(self):
        schedule = a_schedule(any=[{"every": "20m"}, {"every": "30m"}], grace="2h", overlap="allow")
        assert told(decided(schedule, now="14:00")) == [
            "launch 13:00", "launch 13:20", "launch 13:30", "launch 13:40", "launch 14:00",
        ]  # fmt: skip

    @pytest.mark.req("W82")
    def test_only_ticks_between_start_and_end_are_decided(self):
        bounds = {"start_at": "2026-01-01T13:00:00Z", "end_at": "2026-01-01T15:00:00Z"}
        schedule = a_schedule(cron="0 * * * *", **bounds)
        first = next_due(schedule, 0, NO_PAST)
        found = plan(schedule, first.run_at, (), NO_PAST, now=ms("20:00"))
        assert told(found) == ["catchup 13:00..15:00 (3)"]
        assert found.due is None

    @pytest.mark.req("W45")
    def test_what_is_due_over_a_clock_change_is_what_the_wall_clock_shows(self):
        schedule = a_schedule(
            cron="30 1,2,3 * * *", timezone="Europe/Berlin", grace="24h", overlap="allow"
        )
        first = parse_instant("2026-03-28T23:00:00Z")
        due = next_due(schedule, first, NO_PAST)
        found = plan(schedule, due.run_at, (), NO_PAST, now=first * 1000 + 12 * HOUR)
        assert told(found) == [  # 01:30, 02:30 which is not there and so 03:00, and 03:30
            "launch 2026-03-29T00:30", "launch 2026-03-29T01:00", "launch 2026-03-29T01:30",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "when",
    [
        {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"}, {"cron": "*/20 * * * * *"},
        {"calendar": {"minute": [0, 30]}}, {"daily": "13:00"}, {"every": "90s"}, {"every": "P1M"},
        {"at": ["2026-01-01T13:00", "2026-01-01T13:01"]},
    ],
    ids=str,
)  # fmt: skip
def test_the_short_way_of_a_plain_trigger_comes_to_the_same(when, monkeypatch):
    schedule = a_schedule(**when)
    trigger = schedule.trigger
    first, *_, last = trigger.upcoming(NOON, 3)
    nows = [t * 1000 + ms for t in (first, last) for ms in (-1, 0, 1, MINUTE, MINUTE + 1, HOUR)]
    ways = []
    for plain in (True, False):
        assert trigger.is_plain is plain
        ways.append([plan(schedule, first, [], NO_PAST, now=now) for now in nows])
        monkeypatch.setattr(type(trigger), "is_plain", False)
        monkeypatch.setattr(OnTheWall, "is_plain", False)
    assert ways[0] == ways[1]
    assert {type(d) for found in ways[0] for d in found.decisions} >= {Launch}


class TestMost:
    @pytest.mark.req("W72")
    def test_one_plan_decides_so_many_ticks_and_leaves_the_rest_due(self):
        schedule = a_schedule(every="1s", grace="10m", overlap="allow")
        found = decided(schedule, now="13:05")
        assert len(found.decisions) == MOST_DECISIONS
        rest = at("13:00") + MOST_DECISIONS
        assert found.due == Due(rest, rest * 1000)

    def test_the_rest_is_decided_by_further_plans(self):
        schedule = a_schedule(every="1s", grace="10m", overlap="allow")
        row, ticks = at("13:00"), []
        while row * 1000 <= ms("13:05"):
            found = plan(schedule, row, (), NO_PAST, now=ms("13:05"))
            ticks += [decision.tick.run_at for decision in found.decisions]
            row = found.due.run_at
        assert ticks == list(range(at("13:00"), at("13:05") + 1))

    def test_a_range_of_missed_ticks_counts_as_one(self):
        found = decided(a_schedule(every="1s", catchup="none", overlap="allow"), now="14:00")
        missed, *launched = told(found)
        assert missed == "skip 13:00..13:58:59 (3540) missed"
        assert (launched[0], launched[-1], len(launched)) == (
            "launch 13:59", "launch 14:00", 61,
        )  # fmt: skip


class TestCatchingUp:
    @pytest.mark.req("K17", "S41")
    def test_the_latest_missed_tick_runs_and_stands_for_the_rest(self):
        (launch,) = decided(a_schedule(), now="17:30").decisions
        assert launch == Launch(Tick(at("17:00"), ms("17:00"), at("13:00"), 5), "catchup")

    @pytest.mark.req("C4")
    def test_a_day_offline_is_one_run(self):
        assert told(decided(a_schedule(), now=ms("13:00") + DAY)) == [
            "catchup 13:00..2026-01-02T13:00 (25)"
        ]

    @pytest.mark.req("K18")
    def test_afterwards_the_next_tick_is_the_first_to_come(self):
        assert decided(a_schedule(), now="17:30").due == Due(at("18:00"), ms("18:00"))

    def test_a_single_missed_tick_is_no_range(self):
        (launch,) = decided(a_schedule(), now="13:30").decisions
        assert launch == Launch(Tick(at("13:00"), ms("13:00")), "catchup")

    def test_one_that_is_on_time_stands_for_the_missed_ones_before_it(self):
        assert told(decided(a_schedule(), now="15:00")) == ["catchup 13:00..15:00 (3)"]

    def test_it_takes_one_of_the_allowance(self):
        assert decided(a_schedule(), now="17:30", allowance=1).catchups == 1
        assert decided(a_schedule(), now="13:00").catchups == 0

    @pytest.mark.req("W72")
    def test_without_allowance_everything_waits_for_a_second(self):
        found = decided(a_schedule(), now="17:30", allowance=0)
        assert (found.decisions, found.due.run_at) == ((), at("13:00"))
        assert ms("17:30:01") <= found.due.due_at < ms("17:30:01") + 100

    def test_those_that_wait_do_not_all_come_back_in_the_same_order(self):
        def order(now):
            found = {
                name: decided(a_schedule(name), now=now, allowance=0).due.due_at for name in "abcde"
            }
            return sorted(found, key=found.get)

        assert {order(ms("17:30") + i)[0] for i in range(100)} == set("abcde")

    def test_a_tick_on_time_needs_no_allowance(self):
        assert told(decided(a_schedule(), now="13:00", allowance=0)) == ["launch 13:00"]

    def test_ticks_that_stay_missed_need_no_allowance(self):
        found = decided(a_schedule(catchup="none"), now="13:30", allowance=0)
        assert told(found) == ["skip 13:00 missed"]

    def test_a_catch_up_that_does_not_start_takes_none_of_the_allowance(self):
        found = decided(a_schedule(), a_run(), now="17:30")
        assert told(found) == ["skip 13:00..17:00 (5) overlap 12:00"]
        assert found.catchups == 0

    def test_a_catch_up_queues_like_any_tick(self):
        found = decided(a_schedule(overlap="queue"), a_run(), now="17:30")
        assert [(d.behind, d.triggered_by) for d in found.decisions] == [(at("12:00"), "catchup")]
        assert found.catchups == 1

    def test_under_none_the_missed_ones_are_one_range_and_those_on_time_run(self):
        found = decided(a_schedule(catchup="none"), now=ms("17:00") + 30 * SECOND)
        assert told(found) == ["skip 13:00..16:00 (4) missed", "launch 17:00"]

    def test_under_none_all_may_have_been_missed(self):
        found = decided(a_schedule(catchup="none"), now="17:30")
        assert told(found) == ["skip 13:00..17:00 (5) missed"]
        assert found.due == Due(at("18:00"), ms("18:00"))

    def test_under_none_the_oldest_of_those_on_time_is_at_the_end_of_its_grace(self):
        schedule = a_schedule(every="20s", catchup="none", overlap="allow")
        assert told(decided(schedule, now="13:02")) == [
            "skip 13:00..13:00:40 (3) missed",
            "launch 13:01", "launch 13:01:20", "launch 13:01:40", "launch 13:02",
        ]  # fmt: skip

    @pytest.mark.req("S42")
    def test_the_window_is_a_day_unless_told(self):
        assert told(decided(a_schedule(), now=ms("13:30") + 2 * DAY)) == [
            "skip 13:00..2026-01-02T13:00 (25) missed",
            "catchup 2026-01-02T14:00..2026-01-03T13:00 (24)",
        ]

    @pytest.mark.req("S42")
    def test_ticks_due_before_the_window_are_skipped_as_one_range(self):
        assert told(decided(a_schedule(catchup_window="2h"), now="17:30")) == [
            "skip 13:00..15:00 (3) missed", "catchup 16:00..17:00 (2)",
        ]  # fmt: skip

    def test_the_window_begins_with_the_tick_that_is_exactly_as_old(self):
        schedule = a_schedule(catchup_window="2h")
        assert told(decided(schedule, now="17:00")) == [
            "skip 13:00..14:00 (2) missed", "catchup 15:00..17:00 (3)",
        ]  # fmt: skip
        assert told(decided(schedule, now=ms("17:00") + 1)) == [
            "skip 13:00..15:00 (3) missed", "catchup 16:00..17:00 (2)",
        ]  # fmt: skip

    def test_where_all_are_older_than_the_window_nothing_runs(self):
        found = decided(a_schedule(daily="13:00", catchup_window="2h"), now="17:30")
        assert told(found) == ["skip 13:00 missed"]
        assert found.catchups == 0
        assert clock(found.due.run_at) == "2026-01-02T13:00"

    def test_the_window_is_measured_by_when_a_tick_was_to_start(self):
        hours = {"hours": "15:00-18:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours, catchup_window="2h")
        assert told(decided(schedule, now="17:00")) == ["catchup 13:00"]
        assert told(decided(schedule, now=ms("17:00") + 1)) == ["skip 13:00 missed"]

    def test_a_range_is_due_when_its_latest_was(self):
        hours = {"hours": "18:00-20:00", "outside": "move"}
        schedule = a_schedule(cron="0 13,19 * * *", within=hours)
        (launch,) = decided(schedule, now="19:30").decisions
        assert launch.tick == Tick(at("19:00"), ms("19:00"), at("13:00"), 2)


class TestCatchingUpAll:
    """Each missed tick is decided as one on time would be."""

    def test_every_missed_tick_runs_for_itself(self):
        found = decided(a_schedule(catchup="all", overlap="allow"), now="15:30")
        assert told(found) == ["catchup 13:00", "catchup 14:00", "catchup 15:00"]
        assert found.catchups == 3
        assert found.due == Due(at("16:00"), ms("16:00"))

    def test_those_on_time_are_no_catch_ups(self):
        found = decided(a_schedule(catchup="all", overlap="allow"), now="15:00", allowance=2)
        assert told(found) == ["catchup 13:00", "catchup 14:00", "launch 15:00"]

    @pytest.mark.parametrize(
        ("overlap", "becomes"),
        [("skip", "skip {} overlap 13:00"), ("queue", "queue {} behind 13:00")],
    )
    def test_they_overlap_like_any_others(self, overlap, becomes):
        found = decided(a_schedule(catchup="all", overlap=overlap), now="15:30")
        assert told(found) == ["catchup 13:00", becomes.format("14:00"), becomes.format("15:00")]

    def test_those_before_the_window_are_missed_as_one_range(self):
        schedule = a_schedule(catchup="all", catchup_window="2h", overlap="allow")
        assert told(decided(schedule, now="17:30")) == [
            "skip 13:00..15:00 (3) missed", "catchup 16:00", "catchup 17:00",
        ]  # fmt: skip

    @pytest.mark.req("W72")
    def test_those_over_the_allowance_wait_and_with_them_those_after_them(self):
        found = decided(a_schedule(catchup="all", overlap="allow"), now="17:00", allowance=2)
        assert told(found) == ["catchup 13:00", "catchup 14:00"]
        assert found.due.run_at == at("15:00")
        assert ms("17:00:01") <= found.due.due_at < ms("17:00:01") + 100

    @pytest.mark.parametrize(("catchup", "allowance", "is_short"), [
        ("all", 0, True), ("all", 2, True), ("all", 3, False),
        ("spread", 0, True), ("spread", 1, False),
    ])  # fmt: skip
    def test_it_is_short_of_allowance_only_where_more_would_have_started(
        self, catchup, allowance, is_short
    ):
        schedule = a_schedule(catchup=catchup, overlap="allow")
        assert decided(schedule, now="15:30", allowance=allowance).is_short is is_short

    def test_those_a_full_queue_has_no_room_for_wait_too(self):
        queue = [queued(at("12:00") + i) for i in range(1, QUEUE_LIMIT)]
        schedule = a_schedule(catchup="all", overlap="queue")
        found = decided(schedule, a_run(), *queue, now="15:30")
        assert told(found) == ["queue 13:00 behind 12:00"]
        assert (found.due.run_at, found.due.due_at >= ms("15:30:01")) == (at("14:00"), True)
        assert not found.is_short

    def test_an_edit_leaves_what_waits_as_missed(self):
        queue = [queued(at("12:00") + i) for i in range(1, QUEUE_LIMIT)]
        schedule = a_schedule(catchup="all", overlap="queue")
        found = decide_all(schedule, at("13:00"), [a_run(), *queue], NO_PAST, now=ms("15:30"))
        assert told(found) == ["queue 13:00 behind 12:00", "skip 14:00..15:00 (2) missed"]


class TestSpreading:
    """Missed ticks start one after another over the next minute, or until the next tick."""

    def played(self, schedule, now, *unfinished, first="13:00", **asked):
        """Plan as a store does until nothing is due; say when ticks were decided, in ms from now."""
        found, run_at, past = {}, at(first), NO_PAST
        then = begin = ms(now)
        while run_at * 1000 <= begin:
            planned = plan(schedule, run_at, unfinished, past, now=then, **asked)
            for decision in planned.decisions:
                found[words(decision)] = then - begin
            past = replace(past, spread_until=planned.spread_until)
            if planned.due is None:
                break
            run_at, then = planned.due.run_at, planned.due.due_at
        return found

    @pytest.mark.req("W51")
    def test_they_start_evenly_over_the_look_ahead(self):
        assert self.played(a_schedule(catchup="spread"), "15:30") == {
            "catchup 13:00": 0, "catchup 14:00": 20_000, "catchup 15:00": 40_000,
        }  # fmt: skip

    def test_until_then_the_due_row_is_of_the_next_of_them(self):
        found = decided(a_schedule(catchup="spread"), now="15:30")
        assert found.due == Due(at("14:00"), ms("15:30:20"))
        assert (found.catchups, found.spread_until) == (1, ms("15:31"))

    def test_all_have_started_when_the_next_tick_comes(self):
        assert self.played(a_schedule(catchup="spread"), "15:59:51") == {
            "catchup 13:00": 0, "catchup 14:00": 3000, "catchup 15:00": 6000,
        }  # fmt: skip

    def test_one_on_time_is_the_last_of_them(self):
        assert self.played(a_schedule(catchup="spread"), "15:00") == {
            "catchup 13:00": 0, "catchup 14:00": 20_000, "launch 15:00": 40_000,
        }  # fmt: skip

    def test_several_on_time_are_spread_like_the_others(self):
        schedule = a_schedule(every="20s", catchup="spread", overlap="allow", catchup_window="90s")
        assert self.played(schedule, "13:02:10", first="13:00:20") == {
            "skip 13:00:20 missed": 0, "catchup 13:00:40": 0, "catchup 13:01": 2000,
            "launch 13:01:20": 4000, "launch 13:01:40": 6000, "launch 13:02": 8000,
        }  # fmt: skip

    def test_afterwards_the_due_row_is_the_next_tick(self):
        spreading = replace(NO_PAST, spread_until=ms("15:31"))
        found = decided(a_schedule(catchup="spread"), now="15:30:40", first="15:00", past=spreading)
        assert (found.due, found.spread_until) == (Due(at("16:00"), ms("16:00")), 0)

    def test_those_whose_turn_was_missed_too_are_spread_anew(self):
        spreading = replace(NO_PAST, spread_until=ms("15:31"))
        found = decided(a_schedule(catchup="spread"), now="15:40", first="14:00", past=spreading)
        assert found.due == Due(at("15:00"), ms("15:40:30"))

    def test_so_schedules_that_are_alike_need_not_have_one_plan(self):
        assert is_plain(a_schedule(catchup="all"))
        assert not is_plain(a_schedule(catchup="spread"))

    def test_one_that_leaves_the_window_while_it_waits_has_its_turn(self):
        given = {"catchup": "spread", "overlap": "allow", "catchup_window": "10m"}
        found = self.played(a_schedule(cron="0-29 0 13 * * *", **given), "13:09:50")
        assert len(found) == 30
        assert all(decision.startswith("catchup") for decision in found)

    def test_of_those_that_max_runs_leaves_each_has_its_share_of_the_time(self):
        schedule = a_schedule(every="5m", catchup="spread", overlap="allow", max_runs=3)
        assert decided(schedule, now="14:00").due == Due(at("13:05"), ms("14:00:20"))

    def test_without_a_next_tick_there_is_the_look_ahead(self):
        times = ["2026-01-01T13:00:00Z", "2026-01-01T13:10:00Z"]
        found = self.played(a_schedule(at=times, catchup="spread"), "13:30")
        assert found == {"catchup 13:00": 0, "catchup 13:10": 30_000}

    def test_nor_where_the_search_for_it_gives_up(self):
        silent = {"start_at": "2026-01-01T13:25:00Z", "end_at": "2027-01-01T00:00:00Z"}
        parts = [{"every": "10m"}, {"cron": "*/10 * * * *"} | silent]
        schedule = a_schedule(minus=parts, catchup="spread")
        assert schedule.trigger.look(at("13:20"), NO_PAST)[0] is None, "or it is no such case"
        assert decided(schedule, now="13:30").due == Due(at("13:10"), ms("13:30:20"))

    def test_those_before_the_window_are_missed_as_one_range(self):
        schedule = a_schedule(catchup="spread", catchup_window="2h")
        assert self.played(schedule, "17:30") == {
            "skip 13:00..15:00 (3) missed": 0, "catchup 16:00": 0, "catchup 17:00": 30_000,
        }  # fmt: skip

    def test_each_is_decided_by_what_is_in_its_way_then(self):
        found = decided(a_schedule(catchup="spread"), a_run(), now="14:30")
        assert told(found) == ["skip 13:00 overlap 12:00"]
        found = decided(a_schedule(catchup="spread", overlap="queue"), a_run(), now="14:30")
        assert told(found) == ["queue 13:00 behind 12:00"]

    def test_each_is_a_fresh_tick_to_a_retry(self):
        found = decided(a_schedule(catchup="spread"), retrying(), now="14:30")
        assert told(found) == ["supersede 12:00", "catchup 13:00"]

    def test_only_those_that_start_are_counted(self):
        past = Past(runs_used=0)
        schedule = a_schedule(catchup="spread", max_runs=2)
        found = decided(schedule, a_run(), now="16:30", past=past)
        assert (told(found), found.due.run_at) == (["skip 13:00 overlap 12:00"], at("14:00"))

    def test_those_over_the_allowance_wait_for_a_second(self):
        assert decided(a_schedule(catchup="spread"), now="15:30", allowance=0).due.run_at == at(
            "13:00"
        )
        schedule = a_schedule(every="1s", catchup="spread", overlap="allow")
        found = decided(schedule, now="13:05", allowance=7)
        assert (len(found.decisions), found.catchups) == (7, 7)
        assert ms("13:05:01") <= found.due.due_at < ms("13:05:01") + 100

    @pytest.mark.parametrize(
        ("every", "now", "count"),
        [("1m", "13:19:50", 1), ("10s", "13:19:55", 2), ("5s", "13:19:56", 6)],
    )
    def test_those_within_a_tenth_of_a_second_start_together(self, every, now, count):
        schedule = a_schedule(every=every, catchup="spread", overlap="allow")
        assert len(decided(schedule, now=now).decisions) == count

    @given(st.sampled_from(["20s", "1m", "7m", "1h"]), st.integers(61, 7200), st.integers(0, 999))
    @example("20s", 4119, 800)  # more in 200 ms than one plan decides
    def test_they_are_even_however_many_there_are(self, every, seconds, more):
        schedule = a_schedule(every=every, catchup="spread", overlap="allow")
        begin = at("13:00") * 1000 + seconds * 1000 + more
        then, run_at, past, starts_at = begin, at("13:00"), NO_PAST, []
        while run_at * 1000 <= begin:
            found = plan(schedule, run_at, (), past, now=then, allowance=1000)
            starts_at += [then] * len(found.decisions)
            past = replace(past, spread_until=found.spread_until)
            run_at, then = found.due.run_at, found.due.due_at
        end = min(begin + MINUTE, run_at * 1000)
        gap = (end - begin) / len(starts_at)
        for i, start in enumerate(starts_at):
            assert abs(start - (begin + i * gap)) <= max(100, len(starts_at))


class TestOverlap:
    @pytest.mark.req("K19", "S33", "W47", "C52")
    def test_a_tick_is_skipped_while_the_last_run_is_going(self):
        assert told(decided(a_schedule(), a_run(), now="13:00")) == ["skip 13:00 overlap 12:00"]

    @pytest.mark.req("W83")
    def test_a_run_that_waits_to_start_is_in_the_way_too(self):
        assert told(decided(a_schedule(), waiting(), now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_a_tick_is_skipped_for_one_decided_in_the_same_plan(self):
        found = decided(a_schedule(every="20s"), now="13:00:40")
        assert told(found) == [
            "launch 13:00", "skip 13:00:20 overlap 13:00", "skip 13:00:40 overlap 13:00",
        ]  # fmt: skip

    def test_the_next_tick_is_not_held_up_by_one_that_was_skipped(self):
        assert clock(decided(a_schedule(), a_run(), now="13:00").due.run_at) == "14:00"

    def test_a_manual_run_is_in_nobody_s_way(self):
        by_hand = a_run(request_id="by-hand")
        assert told(decided(a_schedule(), by_hand, now="13:00")) == ["launch 13:00"]

    def test_nor_is_a_run_whose_time_is_still_to_come(self):
        deferred = waiting(due_at=ms("13:30"))
        assert told(decided(a_schedule(), deferred, now="13:00")) == ["launch 13:00"]
        assert told(decided(a_schedule(), deferred, now="13:30"))[0].startswith("skip")

    def test_one_that_was_due_when_it_was_decided_stays_so_if_the_clock_is_set_back(self):
        early = waiting("13:30", created_at=ms("13:30"))
        assert told(decided(a_schedule(), early, now="13:00")) == ["skip 13:00 overlap 13:30"]

    @pytest.mark.req("W46")
    def test_under_allow_every_tick_is_launched(self):
        found = decided(a_schedule(overlap="allow", every="20s"), a_run(), now="13:00:40")
        assert told(found) == ["launch 13:00", "launch 13:00:20", "launch 13:00:40"]

    @pytest.mark.req("W48")
    def test_under_queue_a_tick_waits_behind_the_run_in_flight(self):
        found = decided(a_schedule(overlap="queue"), a_run(), now="13:00")
        assert found.decisions == (Queue(Tick(at("13:00"), ms("13:00")), at("12:00")),)

    def test_under_queue_the_first_is_launched_and_the_others_wait(self):
        found = decided(a_schedule(overlap="queue", every="20s"), now="13:00:40")
        assert told(found) == [
            "launch 13:00", "queue 13:00:20 behind 13:00", "queue 13:00:40 behind 13:00",
        ]  # fmt: skip

    def test_the_queue_is_joined_behind_the_run_in_flight_whoever_waits_already(self):
        found = decided(a_schedule(overlap="queue"), a_run("11:00"), queued("12:00"), now="13:00")
        assert told(found) == ["queue 13:00 behind 11:00"]

    @pytest.mark.parametrize(("waiting_runs", "left"), [(QUEUE_LIMIT - 1, 1), (QUEUE_LIMIT, 0)])
    def test_a_full_queue_skips(self, waiting_runs, left):
        queue = [queued(at("12:00") + i) for i in range(1, waiting_runs + 1)]
        found = decided(a_schedule(overlap="queue", every="20s"), a_run(), *queue, now="13:00:20")
        full = ["skip 13:00 queue_full 12:00", "skip 13:00:20 queue_full 12:00"]
        room = ["queue 13:00 behind 12:00", "queue 13:00:20 behind 12:00"]
        assert told(found) == room[:left] + full[left:]

    def test_a_queue_holds_a_hundred(self):
        assert QUEUE_LIMIT == 100


class TestSuperseding:
    def test_a_fresh_tick_ends_a_run_that_waits_for_its_retry(self):
        found = decided(a_schedule(), retrying("12:00"), now="13:00")
        assert told(found) == ["supersede 12:00", "launch 13:00"]

    def test_it_ends_every_one_of_them_once(self):
        found = decided(
            a_schedule(overlap="allow", every="20s"),
            retrying("11:00"),
            retrying("12:00"),
            now="13:00:20",
        )
        assert told(found) == [
            "supersede 11:00", "supersede 12:00", "launch 13:00", "launch 13:00:20",
        ]  # fmt: skip

    def test_one_whose_retry_is_due_already_is_superseded_too(self):
        found = decided(a_schedule(), retrying(due="12:30"), now="13:00")
        assert told(found) == ["supersede 12:00", "launch 13:00"]

    def test_a_catch_up_is_a_fresh_tick(self):
        found = decided(a_schedule(), retrying(), now="13:30")
        assert told(found) == ["supersede 12:00", "catchup 13:00"]

    def test_missed_ticks_supersede_nothing(self):
        found = decided(a_schedule(catchup="none"), retrying(), now="13:30")
        assert told(found) == ["skip 13:00 missed"]

    def test_a_manual_run_keeps_its_retries(self):
        by_hand = retrying(request_id="by-hand")
        assert told(decided(a_schedule(), by_hand, now="13:00")) == ["launch 13:00"]

    def test_no_tick_supersedes_nothing(self):
        assert told(decided(a_schedule(), retrying(), now="12:59")) == []

    def test_a_queue_is_never_left_with_nothing_in_flight_before_it(self):
        # a second attempt was handed back after a tick had queued behind it
        found = decided(
            a_schedule(overlap="queue"),
            retrying("11:00", due="11:30"),
            queued("12:00"),
            now="13:00",
        )
        assert told(found) == ["supersede 11:00", "release 12:00", "queue 13:00 behind 12:00"]

    def test_a_retry_that_has_to_queue_is_superseded_where_it_waits(self):
        # several ran side by side until an edit made them a queue
        queue, last = a_schedule(overlap="queue"), queued("11:00", attempt=1)
        found = decided(queue, a_run("12:00"), last, queued("12:30"), now="13:00")
        assert told(found) == ["supersede 11:00", "queue 13:00 behind 12:00"]
        found = decided(queue, retrying("10:00"), last, now="13:00")
        assert told(found) == ["supersede 10:00", "supersede 11:00", "launch 13:00"]


class TestMaxRuns:
    def test_the_last_start_is_the_end(self):
        found = decided(a_schedule(max_runs=3), now="13:00", past=Past(runs_used=2))
        assert told(found) == ["launch 13:00"]
        assert found.due is None

    def test_starts_in_one_plan_are_counted(self):
        found = decided(a_schedule(every="20s", overlap="allow", max_runs=2), now="13:01")
        assert told(found) == ["launch 13:00", "launch 13:00:20"]
        assert found.due is None

    def test_what_waits_in_the_queue_was_a_start(self):
        found = decided(a_schedule(every="20s", overlap="queue", max_runs=2), a_run(), now="13:01")
        assert told(found) == ["queue 13:00 behind 12:00", "queue 13:00:20 behind 12:00"]
        assert found.due is None

    def test_what_is_skipped_uses_none(self):
        found = decided(a_schedule(max_runs=1), a_run(), now="13:00")
        assert told(found) == ["skip 13:00 overlap 12:00"]
        assert clock(found.due.run_at) == "14:00"

    def test_what_was_missed_uses_none(self):
        found = decided(a_schedule(max_runs=1, catchup="none"), now="17:30")
        assert clock(found.due.run_at) == "18:00"

    def test_a_catch_up_is_one_start_however_many_it_stands_for(self):
        found = decided(a_schedule(max_runs=2), now="17:30")
        assert told(found) == ["catchup 13:00..17:00 (5)"]
        assert clock(found.due.run_at) == "18:00"

    def test_starts_are_launches_and_queued_runs(self):
        tick = Tick(NOON, NOON * 1000)
        decisions = [Supersede(a_run()), Launch(tick), Queue(tick, 0), Skip(tick, "missed")]
        assert starts(decisions) == 2

    def test_a_part_of_a_combination_has_its_end_too(self):
        schedule = a_schedule(
            any=[{"every": "20s", "max_runs": 2}, {"daily": "03:00"}], overlap="allow"
        )
        assert told(decided(schedule, now="13:01")) == ["launch 13:00", "launch 13:00:20"]


class TestSettingAside:
    def test_before_the_first_tick_there_is_nothing_to_set_aside(self):
        now = ms("13:00") - 1
        assert set_aside(a_schedule(), at("13:00"), NO_PAST, now=now, reason="paused") is None

    def test_all_ticks_up_to_now_become_one_range(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("15:59"), reason="gate_off")
        assert aside == Skip(Tick(at("15:00"), ms("15:00"), at("13:00"), 3), "gate_off")

    def test_one_tick_is_no_range(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("13:00"), reason="canceled")
        assert aside == Skip(Tick(at("13:00"), ms("13:00")), "canceled")

    def test_it_goes_by_what_was_planned_not_by_what_was_due(self):
        schedule = a_schedule(jitter="50m")
        aside = set_aside(schedule, at("13:00"), NO_PAST, now=ms("14:00"), reason="paused")
        assert words(aside) == "skip 13:00..14:00 (2) paused"
        assert aside.tick.due_at == due_at(schedule, at("14:00"), NO_PAST) > ms("14:00")

    def test_where_the_search_had_given_up_only_real_ticks_are_set_aside(self):
        schedule = a_schedule(all=[{"every": "20m"}, {"every": "30m"}])
        aside = set_aside(schedule, at("13:10"), NO_PAST, now=ms("15:30"), reason="paused")
        assert words(aside) == "skip 14:00..15:00 (2) paused"
        assert set_aside(schedule, at("13:10"), NO_PAST, now=ms("13:50"), reason="paused") is None

    def test_asked_to_catch_up_the_latest_stands_for_the_rest(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("15:59"), reason="paused")
        found = catch_up(a_schedule(), aside, [], NO_PAST, now=ms("15:59"))
        assert found == (Launch(aside.tick, "catchup"),)

    @pytest.mark.parametrize(
        ("overlap", "becomes"),
        [
            ("skip", "skip 13:00..15:00 (3) overlap 12:00"),
            ("queue", "queue 13:00..15:00 (3) behind 12:00"),
            ("allow", "catchup 13:00..15:00 (3)"),
        ],
    )
    def test_catching_up_keeps_to_the_overlap_policy(self, overlap, becomes):
        schedule = a_schedule(overlap=overlap)
        aside = set_aside(schedule, at("13:00"), NO_PAST, now=ms("15:59"), reason="paused")
        found = catch_up(schedule, aside, [a_run()], NO_PAST, now=ms("15:59"))
        assert told(found) == [becomes]

    def test_catching_up_supersedes_a_run_that_waits_for_its_retry(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("13:00"), reason="paused")
        found = catch_up(a_schedule(), aside, [retrying()], NO_PAST, now=ms("13:00"))
        assert told(found) == ["supersede 12:00", "catchup 13:00"]


class TestDecidingBeforeAnEdit:
    def all_of(self, schedule, *unfinished, now, first="13:00", past=NO_PAST):
        return told(decide_all(schedule, at(first), unfinished, past, now=ms(now)))

    def test_with_no_tick_up_to_now_there_is_nothing_to_decide(self):
        assert self.all_of(a_schedule(), now="12:59") == []

    def test_what_is_due_is_decided_as_ever(self):
        assert self.all_of(a_schedule(), now="13:00") == ["launch 13:00"]
        assert self.all_of(a_schedule(), now="17:30") == ["catchup 13:00..17:00 (5)"]
        assert self.all_of(a_schedule(), a_run(), now="13:00") == ["skip 13:00 overlap 12:00"]

    def test_what_one_plan_does_not_reach_is_missed(self):
        found = self.all_of(a_schedule(every="1s", grace="10m", overlap="allow"), now="13:05")
        assert len(found) == MOST_DECISIONS + 1
        assert found[-1] == "skip 13:01:40..13:05 (201) missed"

    def test_a_tick_whose_time_to_start_is_to_come_is_enqueued_for_then(self):
        schedule = a_schedule(jitter="50m")
        start = due_at(schedule, at("13:00"), NO_PAST)
        found = decide_all(schedule, at("13:00"), [], NO_PAST, now=ms("13:00"))
        assert found == (Launch(Tick(at("13:00"), start)),)

    def test_both_may_come_in_one_edit(self):
        schedule = a_schedule(jitter="50m", grace="6h", overlap="allow")
        found = decide_all(schedule, at("13:00"), [], NO_PAST, now=ms("15:00"))
        assert told(found) == ["launch 13:00", "launch 14:00", "launch 15:00"]
        assert found[-1].tick.due_at > ms("15:00")

    def test_a_moved_tick_is_enqueued_for_the_opening(self):
        hours = {"hours": "15:00-17:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours)
        found = decide_all(schedule, at("13:00"), [], NO_PAST, now=ms("14:00"))
        assert found == (Launch(Tick(at("13:00"), ms("15:00"))),)

    def test_max_runs_ends_it_all_the_same(self):
        schedule = a_schedule(every="1s", overlap="allow", max_runs=2, jitter="1s")
        assert len(self.all_of(schedule, now="13:00:30")) == 2


class TestJitter:
    @pytest.mark.req("W20")
    def test_there_is_none_unless_told(self):
        assert due_at(a_schedule(), at("13:00"), NO_PAST) == ms("13:00")

    def test_it_only_ever_delays_by_less_than_was_asked_for(self):
        schedule = a_schedule(jitter="10m")
        delays = [due_at(schedule, t, NO_PAST) - t * 1000 for t in range(NOON, NOON + 10**6, 3600)]
        assert 0 <= min(delays) < MINUTE
        assert 9 * MINUTE < max(delays) < 10 * MINUTE

    def test_it_is_spread_over_all_of_it(self):
        schedule = a_schedule(jitter="10m")
        hours = range(NOON, NOON + 1000 * 3600, 3600)
        minutes = [(due_at(schedule, t, NO_PAST) - t * 1000) // MINUTE for t in hours]
        assert all(60 < minutes.count(minute) < 140 for minute in range(10))

    def test_it_is_less_than_the_gap_to_the_next_tick(self):
        schedule = a_schedule(every="10s", jitter="1h")
        starts_at = [due_at(schedule, t, NO_PAST) for t in range(NOON, NOON + 3600, 10)]
        assert all(t * 1000 <= start < (t + 10) * 1000
                   for t, start in zip(range(NOON, NOON + 3600, 10), starts_at, strict=True))  # fmt: skip

    def test_a_moved_tick_is_delayed_from_the_opening(self):
        hours = {"hours": "15:00-17:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours, jitter="10m")
        assert ms("15:00") < due_at(schedule, at("13:00"), NO_PAST) < ms("15:10")

    def test_it_is_the_same_in_every_version_of_the_program(self):
        schedule = a_schedule("report", jitter="1h")
        assert due_at(schedule, NOON, NO_PAST) - NOON * 1000 == 2_821_348

    def test_it_differs_from_schedule_to_schedule_and_from_tick_to_tick(self):
        names = [a_schedule(f"report-{i}", jitter="1h") for i in range(20)]
        assert len({due_at(schedule, NOON, NO_PAST) for schedule in names}) == 20
        ticks = range(NOON, NOON + 20 * 3600, 3600)
        assert len({due_at(names[0], tick, NO_PAST) - tick * 1000 for tick in ticks}) == 20

    def test_the_last_tick_has_all_the_room(self):
        schedule = a_schedule(at="2026-01-01T13:00:00Z", jitter="24h")
        assert ms("13:00") < due_at(schedule, at("13:00"), NO_PAST) < ms("13:00") + DAY


class TestNextDue:
    def test_it_is_the_first_tick_later_than_that(self):
        schedule = a_schedule()
        assert next_due(schedule, at("13:00"), NO_PAST) == Due(at("14:00"), ms("14:00"))
        assert next_due(schedule, at("13:00") - 1, NO_PAST) == Due(at("13:00"), ms("13:00"))

    def test_it_is_due_when_its_tick_is_to_start(self):
        schedule = a_schedule(jitter="50m")
        assert next_due(schedule, NOON, NO_PAST) == Due(
            at("13:00"), due_at(schedule, at("13:00"), NO_PAST)
        )

    def test_after_the_last_tick_there_is_none(self):
        assert next_due(a_schedule(at="2026-01-01T13:00:00Z"), at("13:00"), NO_PAST) is None

    def test_once_max_runs_are_used_there_is_none(self):
        schedule = a_schedule(max_runs=3)
        assert next_due(schedule, NOON, Past(runs_used=2)) is not None
        assert next_due(schedule, NOON, Past(runs_used=3)) is None

    def test_a_delay_holds_back_the_first(self):
        schedule = a_schedule(delay="90m")
        assert clock(next_due(schedule, NOON, Past(created_at=NOON)).run_at) == "14:00"


class TestAfter:
    def follows(self, outcome, *others, attempt=1, request_id="", **given):
        run = a_run(attempt=attempt, request_id=request_id)
        return after(a_schedule(**given), run, outcome, [run, *others], now=ms("13:00"))

    def test_a_success_is_the_end(self):
        assert self.follows(Succeeded(), retry=["30s"]) == Ended(Status.SUCCESS)

    def test_so_is_a_cancellation(self):
        assert self.follows(Canceled("asked to"), retry=["30s"]) == Ended(
            Status.CANCELED, "canceled"
        )

    def test_a_failure_is_the_end_unless_retries_were_asked_for(self):
        assert self.follows(BROKEN) == Ended(Status.FAILED, "error")

    @pytest.mark.parametrize(("attempt", "delay"), [(1, 30), (2, 120), (3, 600)])
    def test_each_failure_has_its_delay(self, attempt, delay):
        found = self.follows(BROKEN, attempt=attempt, retry=["30s", "2m", "10m"])
        assert found == Retry(ms("13:00") + delay * SECOND, "error")

    def test_after_the_last_delay_it_has_failed(self):
        found = self.follows(BROKEN, attempt=4, retry=["30s", "2m", "10m"])
        assert found == Ended(Status.FAILED, "error")

    @pytest.mark.req("S37")
    def test_a_fresh_tick_has_all_its_retries_whatever_the_last_one_used(self):
        schedule = a_schedule(retry=["30s", "2m"])
        spent = retrying("12:00")
        _, launch = decided(schedule, replace(spent, attempt=2), now="13:00").decisions
        fresh = Run(2, launch.tick.run_at, Status.STARTED, launch.tick.due_at, attempt=1)
        assert after(schedule, fresh, BROKEN, [], now=ms("13:05")) == Retry(
            ms("13:05") + 30 * SECOND, "error"
        )

    def test_the_reason_of_a_failure_is_kept(self):
        timeout = Failed("too long", "timeout")
        assert self.follows(timeout) == Ended(Status.FAILED, "timeout")
        assert self.follows(timeout, retry=["30s"]).reason == "timeout"

    def test_what_no_attempt_can_mend_is_not_attempted_again(self):
        gone = Failed("no such program", "launch_failed", retryable=False)
        assert self.follows(gone, retry=["30s"]) == Ended(Status.FAILED, "launch_failed")

    def test_a_lost_run_has_failed_unless_it_may_run_twice(self):
        assert self.follows(Lost(), retry=["30s"]) == Ended(Status.FAILED, "lost")
        assert self.follows(Lost(), on_lost="retry") == Retry(ms("13:00"), "lost")

    @pytest.mark.parametrize("retry", [[], ["30s", "2m"]])
    def test_a_run_that_takes_its_node_down_again_and_again_has_failed(self, retry):
        lose = partial(self.follows, Lost(), on_lost="retry", retry=retry)
        most = len(retry) + MOST_LOST
        assert {lose(attempt=n) for n in range(1, most + 1)} == {Retry(ms("13:00"), "lost")}
        assert lose(attempt=most + 1) == Ended(Status.FAILED, "lost")

    @pytest.mark.parametrize(
        ("outcome", "ended"),
        [
            (BROKEN, Ended(Status.FAILED, "error", queued("12:30"))),
            (Lost(), Ended(Status.FAILED, "lost", queued("12:30"))),
        ],
    )
    def test_a_tick_that_waits_in_the_queue_takes_the_turn_of_a_retry(self, outcome, ended):
        found = self.follows(
            outcome, queued("12:30"), overlap="queue", retry=["30s"], on_lost="retry"
        )
        assert found == ended

    def test_a_manual_run_leaves_its_turn_to_nobody(self):
        found = self.follows(BROKEN, queued("12:30"), request_id="by-hand", retry=["30s"])
        assert found == Retry(ms("13:00") + 30 * SECOND, "error")

    @pytest.mark.req("W48")
    @pytest.mark.parametrize("outcome", [Succeeded(), BROKEN, Canceled("asked to"), Lost()])
    def test_whatever_ends_a_run_the_first_of_the_queue_is_released(self, outcome):
        found = self.follows(outcome, queued("12:40"), queued("12:20"), queued("12:30"))
        assert found.release == queued("12:20")

    def test_nobody_is_released_while_another_run_is_in_flight(self):
        assert self.follows(Succeeded(), a_run("12:10"), queued("12:20")).release is None


class TestReleasing:
    def test_an_empty_queue_releases_nobody(self):
        assert to_release([], now=ms("13:00")) is None
        assert to_release([retrying(), waiting(due_at=ms("14:00"))], now=ms("13:00")) is None

    def test_the_earliest_tick_is_first_in_whatever_order_they_come(self):
        runs = [queued("12:30"), queued("12:10"), queued("12:20")]
        assert to_release(runs, now=ms("13:00")) == queued("12:10")

    @pytest.mark.parametrize("before", [a_run(), waiting()])
    def test_one_in_flight_holds_the_queue(self, before):
        assert to_release([before, queued("12:30")], now=ms("13:00")) is None

    @pytest.mark.parametrize(
        "beside", [a_run(request_id="by-hand"), retrying(), waiting(due_at=ms("13:00") + 1)]
    )
    def test_what_is_not_in_flight_holds_nobody(self, beside):
        assert to_release([beside, queued("12:30")], now=ms("13:00")) == queued("12:30")

    def test_one_that_is_later_and_to_be_judged_yet_keeps_nobody_waiting(self):
        later = waiting("12:50", created_at=ms("12:55"), due_at=ms("12:58"))
        assert to_release([later, queued("12:30")], now=ms("13:00")) == queued("12:30")
        assert to_release([later, queued("12:55")], now=ms("13:00")) is None
        claimed = replace(later, leased=True)
        assert to_release([claimed, queued("12:30")], now=ms("13:00")) is None


class TestJudging:
    """A run that was decided before it was due is judged again when it is."""

    def judged(self, run, *others, **given):
        return judge(a_schedule(**given), run, [run, *others], now=ms("13:00"))

    def test_with_nothing_in_its_way_it_is_launched(self):
        run = waiting("12:50", due_at=ms("13:00"))
        assert self.judged(run) == Launch(Tick(at("12:50"), ms("13:00")))
        assert self.judged(run, a_run(request_id="by-hand"), queued("12:55")) == Launch(
            Tick(at("12:50"), ms("13:00"))
        )

    @pytest.mark.parametrize(
        ("overlap", "becomes"),
        [
            ("skip", "skip 12:50 overlap 12:55"),
            ("queue", "queue 12:50 behind 12:55"),
            ("allow", "launch 12:50"),
        ],
    )
    def test_one_in_flight_is_in_its_way_as_the_policy_says(self, overlap, becomes):
        found = self.judged(waiting("12:50"), a_run("12:55"), overlap=overlap)
        assert words(found) == becomes

    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    def test_one_that_is_to_be_judged_after_it_is_not_in_its_way(self, overlap):
        first = waiting("12:50", due_at=ms("12:58"))
        second = waiting("12:55", due_at=ms("12:59"))
        assert words(self.judged(first, second, overlap=overlap)) == "launch 12:50"
        found = words(self.judged(second, first, overlap=overlap))
        assert found in ("skip 12:55 overlap 12:50", "queue 12:55 behind 12:50")

    def test_one_that_was_to_be_judged_and_is_claimed_is(self):
        first = waiting("12:50", due_at=ms("12:58"))
        second = waiting("12:55", due_at=ms("12:59"), leased=True)
        assert words(self.judged(first, second)) == "skip 12:50 overlap 12:55"

    def test_a_manual_run_goes_ahead(self):
        by_hand = waiting("12:50", request_id="by-hand")
        assert words(self.judged(by_hand, a_run("12:55"))) == "launch 12:50"

    def test_a_retry_is_judged_like_any_other(self):
        retry = retrying("12:50", due="13:00")
        assert words(self.judged(retry)) == "launch 12:50"
        assert words(self.judged(retry, a_run("12:55"))) == "skip 12:50 superseded 12:55"


@pytest.mark.req("W21", "W76")
def test_a_tick_is_skipped_under_the_default_policy():
    assert Policy().overlap == "skip"
    assert told(decided(a_schedule(), a_run(), now="13:00")) == ["skip 13:00 overlap 12:00"]


# -- the laws, held against a walk that decides tick by tick and counts by listing


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
    """Say whether a run is, in the words of the design: scheduled, and about to start or started."""
    if run.request_id or run.blocked_by is not None:
        return False
    return run.status is Status.STARTED or (run.attempt == 0 and run.due_at <= now)


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
    """Decide as the docstring of `plan` says, in the slowest way there is.

    Return verdicts with the ticks each is about, and the first tick that is not decided.
    """
    policy, now = case.policy, case.now
    busy = any(is_in_flight(run, now) or run.blocked_by is not None for run in case.unfinished)
    waits = sum(run.blocked_by is not None for run in case.unfinished)
    retries = [
        run for run in case.unfinished
        if run.attempt and run.status is Status.ENQUEUED and not run.request_id
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
    """Say which ticks that are due are decided together, and as what."""
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
    """Say how many of the ticks that are due start now, if they are spread."""
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
    """Return the ticks that decisions are about, with those that a range stands for."""
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
    """Say whether a plan had a reason to leave ticks that are due."""
    used = case.past.runs_used + starts(found.decisions)
    full = len(found.decisions) >= MOST_DECISIONS or used == case.max_runs
    return full or is_postponed(case, found)


def is_postponed(case, found):
    """Say whether a plan leaves a tick that is due for another plan, now or later."""
    if found.due is None:
        return False
    start = case.start_of(found.due.run_at)
    return start <= case.now and start < found.due.due_at


@pytest.mark.req("W4")
@given(cases())
@settings(max_examples=200)
def test_a_plan_is_what_deciding_tick_by_tick_comes_to(case):
    found = case.planned()
    verdicts, undecided = walk(case)
    assert [verdict(decision) for decision in found.decisions] == [name for name, _ in verdicts]
    assert about(found.decisions) == [
        (ticks[0], ticks[-1], len(ticks)) for name, ticks in verdicts if name != "supersede"
    ]
    assert (found.due and found.due.run_at) == undecided


@given(cases())
def test_every_tick_that_is_due_is_covered_exactly_once(case):
    found = case.planned()
    ranges = about(found.decisions)
    ticks = case.ticks(ranges[-1][1]) if ranges else []
    listed = [tick for first, last, _ in ranges for tick in ticks if first <= tick <= last]
    assert listed == ticks
    assert sum(count for _, _, count in ranges) == len(ticks)
    assert was_cut_short(case, found) or ticks == case.due()


@given(cases())
def test_nothing_is_decided_that_is_not_due(case):
    for decision in case.planned().decisions:
        if not isinstance(decision, (Supersede, Release)):
            assert decision.tick.due_at == case.start_of(decision.tick.run_at) <= case.now


@given(cases())
def test_the_due_row_is_the_first_tick_that_is_not_decided(case):
    found = case.planned()
    past = replace(case.past, runs_used=case.past.runs_used + starts(found.decisions))
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
def test_a_skip_for_overlap_names_a_run_in_flight(case):
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
def test_no_more_is_started_than_max_runs_leaves(case):
    started = starts(case.planned().decisions)
    assert case.max_runs is None or case.past.runs_used + started <= case.max_runs


@given(cases())
def test_catch_ups_are_counted_and_under_once_there_is_one(case):
    found = case.planned()
    caught_up = [d for d in found.decisions if getattr(d, "triggered_by", "") == "catchup"]
    most = {"none": 0, "once": 1}.get(case.policy.catchup, MOST_DECISIONS)
    assert len(caught_up) == found.catchups <= most


@given(cases(), st.integers(1, 5))
def test_no_more_is_caught_up_than_allowed_and_what_is_left_waits(case, allowance):
    asked = (case.schedule, case.first, case.unfinished, case.past)
    found, without = case.planned(), plan(*asked, now=case.now, allowance=allowance)
    assert without.catchups == min(found.catchups, allowance)
    assert without.decisions == found.decisions[: len(without.decisions)]
    if without.decisions != found.decisions:
        assert is_postponed(case, without)


@given(cases())
def test_without_allowance_nothing_is_caught_up_and_nothing_else_is_different(case):
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
def test_planning_in_between_covers_the_same_ticks(case, share):
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
def test_setting_aside_covers_what_was_planned_up_to_now(case):
    aside = set_aside(case.schedule, case.first, case.past, now=case.now, reason="paused")
    ticks = case.ticks(case.now // 1000)
    assert (aside is None) == (ticks == [])
    if aside is not None:
        assert about([aside]) == [(ticks[0], ticks[-1], len(ticks))]
        assert aside.tick.due_at == case.start_of(ticks[-1])
        (*_, caught_up) = catch_up(case.schedule, aside, case.unfinished, case.past, now=case.now)
        assert caught_up.tick == aside.tick


@given(cases(counting=False))
def test_an_edit_covers_what_was_planned_up_to_now(case):
    found = decide_all(case.schedule, case.first, case.unfinished, case.past, now=case.now)
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


@given(cases())
def test_jitter_delays_and_changes_no_order(case):
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
    """Say whether a call takes so little processor time, at the third attempt at the latest."""
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
def test_a_tick_a_second_that_is_a_year_late_is_decided_at_once(given, catchup, jitter):
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
def test_so_is_whatever_is_made_of_them(given, catchup):
    for way in ways_to_decide(a_schedule(**given, catchup=catchup)):
        assert is_done_within(10 * LIMIT, way)
