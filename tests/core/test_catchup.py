"""Missed ticks by catchup policy: once, none, all and spread."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat.core.decide.plan import decide_edit, is_plain, plan
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import Due, Launch, Tick
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.testing import a_schedule
from tests.core.plans import (
    DAY,
    MINUTE,
    SECOND,
    a_run,
    at,
    clock,
    decided,
    lines,
    ms,
    queued,
    retrying,
    words,
)

QUEUE_LIMIT = Policy().queue_limit


class TestCatchingUp:
    def test_catchup_once_runs_the_latest_missed_tick_for_all(self):
        (launch,) = decided(a_schedule(), now="17:30").decisions
        assert launch == Launch(Tick(at("17:00"), ms("17:00"), at("13:00"), 5), "catchup")

    def test_missed_day_is_caught_up_with_one_run(self):
        assert lines(decided(a_schedule(), now=ms("13:00") + DAY)) == [
            "catchup 13:00..2026-01-02T13:00 (25)"
        ]

    def test_after_a_catch_up_the_due_row_is_the_next_future_tick(self):
        assert decided(a_schedule(), now="17:30").due == Due(at("18:00"), ms("18:00"))

    def test_single_missed_tick_is_not_a_range(self):
        (launch,) = decided(a_schedule(), now="13:30").decisions
        assert launch == Launch(Tick(at("13:00"), ms("13:00")), "catchup")

    def test_tick_on_time_covers_the_missed_ticks_before_it(self):
        assert lines(decided(a_schedule(), now="15:00")) == ["catchup 13:00..15:00 (3)"]

    def test_catch_up_uses_one_of_the_allowance(self):
        assert decided(a_schedule(), now="17:30", allowance=1).catchups == 1
        assert decided(a_schedule(), now="13:00").catchups == 0

    def test_catch_up_without_allowance_waits_for_a_second(self):
        found = decided(a_schedule(), now="17:30", allowance=0)
        assert (found.decisions, found.due.run_at) == ((), at("13:00"))
        assert ms("17:30:01") <= found.due.due_at < ms("17:30:01") + 100

    def test_waiting_catch_ups_are_due_again_at_staggered_times(self):
        def order(now):
            found = {
                name: decided(a_schedule(name), now=now, allowance=0).due.due_at for name in "abcde"
            }
            return sorted(found, key=found.get)

        assert {order(ms("17:30") + i)[0] for i in range(100)} == set("abcde")

    def test_a_tick_on_time_needs_no_allowance(self):
        assert lines(decided(a_schedule(), now="13:00", allowance=0)) == ["launch 13:00"]

    def test_ticks_that_stay_missed_need_no_allowance(self):
        found = decided(a_schedule(catchup="none"), now="13:30", allowance=0)
        assert lines(found) == ["skip 13:00 missed"]

    def test_catch_up_that_does_not_start_uses_no_allowance(self):
        found = decided(a_schedule(), a_run(), now="17:30")
        assert lines(found) == ["skip 13:00..17:00 (5) overlap 12:00"]
        assert found.catchups == 0

    def test_catch_up_is_queued_like_any_tick(self):
        found = decided(a_schedule(overlap="queue"), a_run(), now="17:30")
        assert [(d.behind, d.triggered_by) for d in found.decisions] == [(at("12:00"), "catchup")]
        assert found.catchups == 1

    def test_catchup_none_skips_missed_ticks_as_one_range_and_runs_ticks_on_time(self):
        found = decided(a_schedule(catchup="none"), now=ms("17:00") + 30 * SECOND)
        assert lines(found) == ["skip 13:00..16:00 (4) missed", "launch 17:00"]

    def test_catchup_none_may_skip_all_due_ticks(self):
        found = decided(a_schedule(catchup="none"), now="17:30")
        assert lines(found) == ["skip 13:00..17:00 (5) missed"]
        assert found.due == Due(at("18:00"), ms("18:00"))

    def test_catchup_none_runs_a_tick_at_the_end_of_its_grace(self):
        schedule = a_schedule(every="20s", catchup="none", overlap="allow")
        assert lines(decided(schedule, now="13:02")) == [
            "skip 13:00..13:00:40 (3) missed",
            "launch 13:01", "launch 13:01:20", "launch 13:01:40", "launch 13:02",
        ]  # fmt: skip

    def test_catchup_window_defaults_to_a_day(self):
        assert lines(decided(a_schedule(), now=ms("13:30") + 2 * DAY)) == [
            "skip 13:00..2026-01-02T13:00 (25) missed",
            "catchup 2026-01-02T14:00..2026-01-03T13:00 (24)",
        ]

    def test_ticks_due_before_the_window_are_skipped_as_one_range(self):
        assert lines(decided(a_schedule(catchup_window="2h"), now="17:30")) == [
            "skip 13:00..15:00 (3) missed", "catchup 16:00..17:00 (2)",
        ]  # fmt: skip

    def test_catchup_window_includes_a_tick_of_exactly_its_age(self):
        schedule = a_schedule(catchup_window="2h")
        assert lines(decided(schedule, now="17:00")) == [
            "skip 13:00..14:00 (2) missed", "catchup 15:00..17:00 (3)",
        ]  # fmt: skip
        assert lines(decided(schedule, now=ms("17:00") + 1)) == [
            "skip 13:00..15:00 (3) missed", "catchup 16:00..17:00 (2)",
        ]  # fmt: skip

    def test_nothing_runs_if_all_ticks_are_older_than_the_window(self):
        found = decided(a_schedule(daily="13:00", catchup_window="2h"), now="17:30")
        assert lines(found) == ["skip 13:00 missed"]
        assert found.catchups == 0
        assert clock(found.due.run_at) == "2026-01-02T13:00"

    def test_catchup_window_is_measured_from_the_due_time(self):
        hours = {"hours": "15:00-18:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours, catchup_window="2h")
        assert lines(decided(schedule, now="17:00")) == ["catchup 13:00"]
        assert lines(decided(schedule, now=ms("17:00") + 1)) == ["skip 13:00 missed"]

    def test_range_has_the_due_time_of_its_latest_tick(self):
        hours = {"hours": "18:00-20:00", "outside": "move"}
        schedule = a_schedule(cron="0 13,19 * * *", within=hours)
        (launch,) = decided(schedule, now="19:30").decisions
        assert launch.tick == Tick(at("19:00"), ms("19:00"), at("13:00"), 2)


class TestCatchingUpAll:
    """Each missed tick is decided as one on time would be."""

    def test_catchup_all_runs_every_missed_tick_separately(self):
        found = decided(a_schedule(catchup="all", overlap="allow"), now="15:30")
        assert lines(found) == ["catchup 13:00", "catchup 14:00", "catchup 15:00"]
        assert found.catchups == 3
        assert found.due == Due(at("16:00"), ms("16:00"))

    def test_ticks_on_time_do_not_count_as_catch_ups(self):
        found = decided(a_schedule(catchup="all", overlap="allow"), now="15:00", allowance=2)
        assert lines(found) == ["catchup 13:00", "catchup 14:00", "launch 15:00"]

    @pytest.mark.parametrize(
        ("overlap", "becomes"),
        [("skip", "skip {} overlap 13:00"), ("queue", "queue {} behind 13:00")],
    )
    def test_catchup_all_ticks_follow_the_overlap_policy(self, overlap, becomes):
        found = decided(a_schedule(catchup="all", overlap=overlap), now="15:30")
        assert lines(found) == ["catchup 13:00", becomes.format("14:00"), becomes.format("15:00")]

    def test_catchup_all_skips_ticks_before_the_window_as_one_range(self):
        schedule = a_schedule(catchup="all", catchup_window="2h", overlap="allow")
        assert lines(decided(schedule, now="17:30")) == [
            "skip 13:00..15:00 (3) missed", "catchup 16:00", "catchup 17:00",
        ]  # fmt: skip

    def test_missed_ticks_over_the_allowance_wait_and_so_do_later_ticks(self):
        found = decided(a_schedule(catchup="all", overlap="allow"), now="17:00", allowance=2)
        assert lines(found) == ["catchup 13:00", "catchup 14:00"]
        assert found.due.run_at == at("15:00")
        assert ms("17:00:01") <= found.due.due_at < ms("17:00:01") + 100

    @pytest.mark.parametrize(("catchup", "allowance", "is_short"), [
        ("all", 0, True), ("all", 2, True), ("all", 3, False),
        ("spread", 0, True), ("spread", 1, False),
    ])  # fmt: skip
    def test_plan_is_short_only_if_more_ticks_would_have_started(
        self, catchup, allowance, is_short
    ):
        schedule = a_schedule(catchup=catchup, overlap="allow")
        assert decided(schedule, now="15:30", allowance=allowance).is_short is is_short

    def test_missed_ticks_wait_while_the_queue_is_full(self):
        queue = [queued(at("12:00") + i) for i in range(1, QUEUE_LIMIT)]
        schedule = a_schedule(catchup="all", overlap="queue")
        found = decided(schedule, a_run(), *queue, now="15:30")
        assert lines(found) == ["queue 13:00 behind 12:00"]
        assert (found.due.run_at, found.due.due_at >= ms("15:30:01")) == (at("14:00"), True)
        assert not found.is_short

    def test_edit_catches_up_nothing_even_with_room_in_the_queue(self):
        queue = [queued(at("12:00") + i) for i in range(1, QUEUE_LIMIT)]
        schedule = a_schedule(catchup="all", overlap="queue")
        found = decide_edit(schedule, at("13:00"), [a_run(), *queue], NO_PAST, now=ms("15:30"))
        assert lines(found) == ["skip 13:00..15:00 (3) edited"]


class TestSpreading:
    """Missed ticks start one after another over the next minute, or until the next tick."""

    def played(self, schedule, now, *unfinished, first="13:00", **asked):
        """Plan like a store until nothing is due; return when ticks were decided (ms from now)."""
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

    def test_spread_ticks_start_evenly_over_the_look_ahead(self):
        assert self.played(a_schedule(catchup="spread"), "15:30") == {
            "catchup 13:00": 0, "catchup 14:00": 20_000, "catchup 15:00": 40_000,
        }  # fmt: skip

    def test_due_row_while_spreading_is_the_next_spread_tick(self):
        found = decided(a_schedule(catchup="spread"), now="15:30")
        assert found.due == Due(at("14:00"), ms("15:30:20"))
        assert (found.catchups, found.spread_until) == (1, ms("15:31"))

    def test_spread_ticks_have_started_before_the_next_tick(self):
        assert self.played(a_schedule(catchup="spread"), "15:59:51") == {
            "catchup 13:00": 0, "catchup 14:00": 3000, "catchup 15:00": 6000,
        }  # fmt: skip

    def test_tick_on_time_is_the_last_of_the_spread_ticks(self):
        assert self.played(a_schedule(catchup="spread"), "15:00") == {
            "catchup 13:00": 0, "catchup 14:00": 20_000, "launch 15:00": 40_000,
        }  # fmt: skip

    def test_ticks_on_time_are_spread_like_missed_ones(self):
        schedule = a_schedule(every="20s", catchup="spread", overlap="allow", catchup_window="90s")
        assert self.played(schedule, "13:02:10", first="13:00:20") == {
            "skip 13:00:20 missed": 0, "catchup 13:00:40": 0, "catchup 13:01": 2000,
            "launch 13:01:20": 4000, "launch 13:01:40": 6000, "launch 13:02": 8000,
        }  # fmt: skip

    def test_after_spreading_the_due_row_is_the_next_tick(self):
        spreading = replace(NO_PAST, spread_until=ms("15:31"))
        found = decided(a_schedule(catchup="spread"), now="15:30:40", first="15:00", past=spreading)
        assert (found.due, found.spread_until) == (Due(at("16:00"), ms("16:00")), 0)

    def test_spread_ticks_that_missed_their_turn_are_spread_again(self):
        spreading = replace(NO_PAST, spread_until=ms("15:31"))
        found = decided(a_schedule(catchup="spread"), now="15:40", first="14:00", past=spreading)
        assert found.due == Due(at("15:00"), ms("15:40:30"))

    def test_equal_schedules_with_spread_ticks_may_have_different_plans(self):
        assert is_plain(a_schedule(catchup="all"))
        assert not is_plain(a_schedule(catchup="spread"))

    def test_spread_tick_that_leaves_the_window_while_waiting_still_runs(self):
        given = {"catchup": "spread", "overlap": "allow", "catchup_window": "10m"}
        found = self.played(a_schedule(cron="0-29 0 13 * * *", **given), "13:09:50")
        assert len(found) == 30
        assert all(decision.startswith("catchup") for decision in found)

    def test_spreading_shares_the_time_among_the_runs_left_by_max_runs(self):
        schedule = a_schedule(every="5m", catchup="spread", overlap="allow", max_runs=3)
        assert decided(schedule, now="14:00").due == Due(at("13:05"), ms("14:00:20"))

    def test_spreading_uses_the_look_ahead_without_a_next_tick(self):
        times = ["2026-01-01T13:00:00Z", "2026-01-01T13:10:00Z"]
        found = self.played(a_schedule(at=times, catchup="spread"), "13:30")
        assert found == {"catchup 13:00": 0, "catchup 13:10": 30_000}

    def test_spreading_uses_the_look_ahead_if_the_search_for_a_tick_gives_up(self):
        silent = {"start_at": "2026-01-01T13:25:00Z", "end_at": "2027-01-01T00:00:00Z"}
        parts = [{"every": "10m"}, {"cron": "*/10 * * * *"} | silent]
        schedule = a_schedule(minus=parts, catchup="spread")
        assert schedule.trigger.look(at("13:20"), NO_PAST)[0] is None, "or it is no such case"
        assert decided(schedule, now="13:30").due == Due(at("13:10"), ms("13:30:20"))

    def test_catchup_spread_skips_ticks_before_the_window_as_one_range(self):
        schedule = a_schedule(catchup="spread", catchup_window="2h")
        assert self.played(schedule, "17:30") == {
            "skip 13:00..15:00 (3) missed": 0, "catchup 16:00": 0, "catchup 17:00": 30_000,
        }  # fmt: skip

    def test_spread_tick_is_decided_by_the_runs_in_flight_at_its_start(self):
        found = decided(a_schedule(catchup="spread"), a_run(), now="14:30")
        assert lines(found) == ["skip 13:00 overlap 12:00"]
        found = decided(a_schedule(catchup="spread", overlap="queue"), a_run(), now="14:30")
        assert lines(found) == ["queue 13:00 behind 12:00"]

    def test_spread_tick_supersedes_a_waiting_retry(self):
        found = decided(a_schedule(catchup="spread"), retrying(), now="14:30")
        assert lines(found) == ["supersede 12:00", "catchup 13:00"]

    def test_only_spread_ticks_that_start_use_the_allowance(self):
        past = Past(runs_used=0)
        schedule = a_schedule(catchup="spread", max_runs=2)
        found = decided(schedule, a_run(), now="16:30", past=past)
        assert (lines(found), found.due.run_at) == (["skip 13:00 overlap 12:00"], at("14:00"))

    def test_spread_ticks_over_the_allowance_wait_for_a_second(self):
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
    def test_spread_ticks_within_a_tenth_of_a_second_start_together(self, every, now, count):
        schedule = a_schedule(every=every, catchup="spread", overlap="allow")
        assert len(decided(schedule, now=now).decisions) == count

    @given(st.sampled_from(["20s", "1m", "7m", "1h"]), st.integers(61, 7200), st.integers(0, 999))
    @example("20s", 4119, 800)  # more in 200 ms than one plan decides
    def test_spread_ticks_are_even_for_any_number(self, every, seconds, more):
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
