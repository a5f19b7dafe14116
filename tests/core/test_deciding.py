"""Ticks decided by policies: switched off, replaced, queued, bounded, rated, and varied around.

What is there is told as in `plans`: it is New Year's Day, and the first undecided tick is at 13:00.
"""

from functools import partial

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat.core.decide.plan import (
    catch_up,
    decide_edit,
    due_at,
    is_plain,
    next_due,
    plan,
    set_aside,
    starts,
)
from onbeat.core.runs.decisions import (
    Due,
    Launch,
    Plan,
    Queue,
    Release,
    RequestCancel,
    Skip,
    Supersede,
    Tick,
)
from onbeat.core.runs.run import Status
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.testing import a_schedule
from tests.core.plans import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    a_run,
    at,
    clock,
    decided,
    ms,
    queued,
    retrying,
    told,
    waiting,
)
from tests.core.test_plan_laws import HOURS, SECONDS
from tests.profiles import examples

often = partial(a_schedule, every="20s")
OFF = [
    ({"enabled": False}, "disabled"),
    ({"run": {"command": ["true"], "enabled": False}}, "disabled_target"),
]


class TestSwitchedOff:
    """A schedule, or its target, that is not enabled: each tick is skipped, and says so."""

    @pytest.mark.parametrize(("off", "reason"), OFF)
    @pytest.mark.parametrize("catchup", ["once", "none", "all", "spread"])
    @pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "replace"])
    def test_all_that_are_due_are_one_skip(self, off, reason, catchup, overlap):
        found = decided(a_schedule(**off, catchup=catchup, overlap=overlap), now="15:30")
        assert told(found) == [f"skip 13:00..15:00 (3) {reason}"]
        assert found.due == Due(at("16:00"), ms("16:00"))

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_one_on_time_is_skipped_alone(self, off, reason):
        assert told(decided(a_schedule(**off), now="13:00")) == [f"skip 13:00 {reason}"]

    def test_before_it_is_due_nothing_is_decided(self):
        off = a_schedule(enabled=False)
        assert decided(off, now=ms("13:00") - 1) == Plan((), Due(at("13:00"), ms("13:00")))

    def test_the_schedule_comes_before_its_target(self):
        both = a_schedule(enabled=False, run={"command": ["true"], "enabled": False})
        assert told(decided(both, now="13:00")) == ["skip 13:00 disabled"]

    def test_what_runs_or_waits_is_let_be(self):
        runs = [a_run("11:00"), queued("11:30"), waiting("12:00")]
        off = a_schedule(enabled=False, overlap="queue")
        assert told(decided(off, *runs, now="13:00")) == ["skip 13:00 disabled"]

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_what_is_to_be_attempted_again_ends_and_is_not_gone_on_with_later(self, off, reason):
        runs = [retrying("12:00"), retrying("12:30", request_id="by-hand")]
        found = decided(a_schedule(**off), *runs, now="13:00")
        assert told(found) == [f"drop ({reason}) 12:00", f"skip 13:00 {reason}"]

    def test_what_waited_for_that_attempt_has_its_turn_to_be_judged(self):
        off = a_schedule(enabled=False, overlap="queue")
        found = decided(off, retrying("12:00"), queued("12:30"), now="13:00")
        wanted = ["drop (disabled) 12:00", "release 12:30", "skip 13:00 disabled"]
        assert told(found) == wanted
        behind = decided(off, a_run("11:00"), retrying("12:00"), queued("12:30"), now="13:00")
        assert told(behind) == ["drop (disabled) 12:00", "skip 13:00 disabled"]

    def test_it_takes_no_allowance_and_uses_up_no_runs(self):
        found = decided(a_schedule(enabled=False, max_runs=1), now="15:30", allowance=0)
        assert (told(found), found.catchups) == (["skip 13:00..15:00 (3) disabled"], 0)
        assert clock(found.due.run_at) == "16:00"

    def test_there_is_no_short_way_for_it(self):
        assert is_plain(a_schedule())
        for off, _ in OFF:
            assert not is_plain(a_schedule(**off))

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_nothing_starts_by_an_edit_either(self, off, reason):
        decide = partial(decide_edit, a_schedule(**off), at("13:00"), [], NO_PAST)
        assert told(decide(now=ms("15:30"))) == [f"skip 13:00..15:00 (3) {reason}"]

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_nor_does_a_tick_of_an_edit_whose_time_is_to_come(self, off, reason):
        jittered = a_schedule(**off, jitter="50m")
        found = decide_edit(jittered, at("13:00"), [], NO_PAST, now=ms("13:00"))
        assert told(found) == [f"skip 13:00 {reason}"]

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_nor_by_catching_up_what_was_set_aside(self, off, reason):
        schedule = a_schedule(**off)
        aside = set_aside(schedule, at("13:00"), NO_PAST, now=ms("15:30"), reason="paused")
        found = catch_up(schedule, aside, [], NO_PAST, now=ms("15:30"))
        assert told(found) == [f"skip 13:00..15:00 (3) {reason}"]


class TestReplacing:
    """Under `overlap: replace` the newest tick is the one that runs."""

    def test_with_nothing_in_its_way_it_is_launched(self):
        assert told(decided(a_schedule(overlap="replace"), now="13:00")) == ["launch 13:00"]

    def test_a_started_run_is_asked_to_end_and_waited_for(self):
        found = decided(a_schedule(overlap="replace"), a_run(), now="13:00")
        assert told(found) == ["end 12:00", "queue 13:00 behind 12:00"]
        assert found.decisions[0] == RequestCancel(a_run())

    def test_one_that_was_asked_before_is_not_asked_again(self):
        asked = a_run(ending="superseded")
        found = decided(a_schedule(overlap="replace"), asked, now="13:00")
        assert told(found) == ["queue 13:00 behind 12:00"]

    def test_however_many_ticks_are_decided_it_is_asked_once(self):
        found = decided(often(overlap="replace"), a_run(), now="13:00:40")
        assert told(found) == [
            "end 12:00",
            "skip 13:00 superseded",
            "skip 13:00:20 superseded",
            "queue 13:00:40 behind 12:00",
        ]

    def test_each_of_several_is_asked_and_the_latest_waited_for(self):
        runs = [a_run("11:00"), a_run("12:00")]
        found = decided(a_schedule(overlap="replace"), *runs, now="13:00")
        assert told(found) == ["end 11:00", "end 12:00", "queue 13:00 behind 12:00"]

    def test_older_ones_that_wait_are_superseded(self):
        runs = [a_run("10:00", ending="superseded"), queued("11:00"), queued("12:00")]
        found = decided(a_schedule(overlap="replace"), *runs, now="13:00")
        assert told(found) == ["supersede 11:00", "supersede 12:00", "queue 13:00 behind 10:00"]

    def test_one_that_is_not_started_yet_makes_way_at_once(self):
        found = decided(a_schedule(overlap="replace"), waiting(), now="13:00")
        assert told(found) == ["supersede 12:00", "launch 13:00"]

    def test_nor_is_a_retry_waited_for(self):
        found = decided(a_schedule(overlap="replace"), retrying(), now="13:00")
        assert told(found) == ["supersede 12:00", "launch 13:00"]

    def test_a_manual_run_is_left_alone(self):
        runs = [a_run(request_id="by-hand"), retrying("12:30", request_id="again")]
        assert told(decided(a_schedule(overlap="replace"), *runs, now="13:00")) == ["launch 13:00"]

    def test_of_several_ticks_only_the_newest_starts(self):
        assert told(decided(often(overlap="replace"), now="13:00:40")) == [
            "skip 13:00 superseded", "skip 13:00:20 superseded", "launch 13:00:40",
        ]  # fmt: skip

    def test_so_it_is_with_those_that_are_caught_up(self):
        found = decided(a_schedule(overlap="replace", catchup="all"), now="15:30")
        assert told(found) == [
            "skip 13:00 superseded", "skip 14:00 superseded", "catchup 15:00",
        ]  # fmt: skip

    def test_only_what_really_starts_uses_up_runs(self):
        found = decided(often(overlap="replace", max_runs=2), now="13:00:40")
        assert starts(found.decisions) == 1
        assert clock(found.due.run_at) == "13:01"
        found = decided(
            often(overlap="replace", max_runs=3), now="13:00:40", past=Past(runs_used=1)
        )
        assert clock(found.due.run_at) == "13:01"

    def test_and_only_that_is_rated(self):
        found = decided(often(overlap="replace", rate="2/hour"), now="13:01:40", first="13:01")
        assert told(found)[-1] == "launch 13:01:40"
        assert starts(found.decisions) == 1

    def test_catching_up_what_was_set_aside_replaces_too(self):
        aside = Skip(Tick(at("15:00"), ms("15:00"), at("13:00"), 3), "paused")
        found = catch_up(a_schedule(overlap="replace"), aside, [a_run()], NO_PAST, now=ms("15:30"))
        assert told(found) == ["end 12:00", "queue 13:00..15:00 (3) behind 12:00"]

    def test_a_tick_that_somebody_asked_for_afterwards_goes_on_waiting(self):
        runs = [a_run(), queued("09:00", is_backfill=True)]
        found = decided(a_schedule(overlap="replace"), *runs, now="13:00")
        assert told(found) == ["end 12:00", "queue 13:00 behind 12:00"]

    @pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
    def test_if_it_was_asked_for_just_now_it_lets_the_present_go_first(self, overlap):
        asked_for = waiting("09:00", is_backfill=True, due_at=ms("12:59"), created_at=ms("12:59"))
        found = decided(a_schedule(overlap=overlap), asked_for, now="13:00")
        assert told(found) == ["launch 13:00"]

    @pytest.mark.parametrize("beside", [[], [waiting("12:00")]])
    def test_nor_is_it_released_or_dropped_when_nothing_else_is_started(self, beside):
        asked_for = queued("09:00", is_backfill=True)
        found = decided(often(overlap="replace"), asked_for, *beside, now="13:00:20")
        assert not [line for line in told(found) if "09:00" in line]
        assert told(found)[-1] == "launch 13:00:20"

    def test_nobody_is_released_only_to_be_dropped(self):
        found = decided(a_schedule(overlap="replace"), queued("11:00"), now="13:00")
        assert told(found) == ["supersede 11:00", "launch 13:00"]

    def test_only_what_really_starts_takes_of_the_allowance(self):
        assert decided(a_schedule(overlap="replace", catchup="all"), now="15:30").catchups == 1


class TestQueueLimit:
    """When one more comes than may wait."""

    few = staticmethod(partial(often, overlap="queue", queue_limit=2))
    latest = staticmethod(partial(often, overlap="queue", queue_limit=2, queue_keep="latest"))

    def test_the_first_stay_unless_told(self):
        assert told(decided(self.few(), a_run(), now="13:00:40")) == [
            "queue 13:00 behind 12:00",
            "queue 13:00:20 behind 12:00",
            "skip 13:00:40 queue_full 12:00",
        ]

    def test_those_that_wait_already_count(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        assert told(decided(self.few(), *runs, now="13:00")) == ["skip 13:00 queue_full 11:00"]

    def test_or_the_latest_do_and_the_one_that_has_waited_longest_is_dropped(self):
        runs = [a_run("11:00"), queued("12:00"), queued("11:30")]
        found = decided(self.latest(), *runs, now="13:00")
        assert told(found) == ["drop (queue_full) 11:30", "queue 13:00 behind 11:00"]

    def test_one_after_another_if_there_are_several(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        assert told(decided(self.latest(), *runs, now="13:00:20")) == [
            "drop (queue_full) 11:30",
            "queue 13:00 behind 11:00",
            "drop (queue_full) 12:00",
            "queue 13:00:20 behind 11:00",
        ]

    def test_it_may_have_been_queued_in_the_same_plan(self):
        assert told(decided(self.latest(), a_run(), now="13:01")) == [
            "skip 13:00 queue_full",
            "skip 13:00:20 queue_full",
            "queue 13:00:40 behind 12:00",
            "queue 13:01 behind 12:00",
        ]

    def test_the_one_that_was_launched_stays(self):
        assert told(decided(self.latest(), now="13:01")) == [
            "launch 13:00",
            "skip 13:00:20 queue_full",
            "queue 13:00:40 behind 13:00",
            "queue 13:01 behind 13:00",
        ]

    def test_only_what_really_waits_uses_up_runs_and_is_rated(self):
        found = decided(self.latest(max_runs=3), a_run(), now="13:01")
        assert (starts(found.decisions), clock(found.due.run_at)) == (2, "13:01:20")
        found = decided(self.latest(rate="3/hour"), a_run(), now="13:01")
        assert told(found)[-1] == "queue 13:01 behind 12:00"

    def test_those_asked_for_afterwards_do_not_count(self):
        asked_for = [queued(at("09:00") + i, is_backfill=True) for i in range(5)]
        found = decided(self.few(), a_run(), *asked_for, now="13:00:20")
        assert told(found) == ["queue 13:00 behind 12:00", "queue 13:00:20 behind 12:00"]

    def test_nor_are_they_dropped(self):
        runs = [a_run("11:00"), queued("09:00", is_backfill=True), queued("11:30"), queued("12:00")]
        found = decided(self.latest(), *runs, now="13:00")
        assert told(found) == ["drop (queue_full) 11:30", "queue 13:00 behind 11:00"]

    def test_missed_ticks_wait_for_a_place_where_the_first_stay(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        found = decided(self.few(catchup="all"), *runs, now="13:05")
        assert (told(found), found.due.run_at) == ([], at("13:00"))

    def test_where_the_latest_stay_there_is_always_one(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        found = decided(self.latest(every="1h", catchup="all"), *runs, now="14:30")
        assert told(found) == [
            "drop (queue_full) 11:30",
            "queue 13:00 behind 11:00",
            "drop (queue_full) 12:00",
            "queue 14:00 behind 11:00",
        ]

    def test_only_those_that_stay_take_of_the_allowance(self):
        found = decided(self.latest(every="1h", catchup="all"), a_run(), now="17:30")
        assert found.catchups == starts(found.decisions)


class TestMaxActive:
    two = staticmethod(partial(often, overlap="allow", max_active=2))

    def test_the_one_beyond_is_skipped_for_the_latest_in_flight(self):
        runs = [a_run("11:00"), a_run("12:00")]
        assert told(decided(self.two(), *runs, now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_those_of_the_same_plan_count(self):
        assert told(decided(self.two(), a_run(), now="13:00:40")) == [
            "launch 13:00", "skip 13:00:20 overlap 13:00", "skip 13:00:40 overlap 13:00",
        ]  # fmt: skip

    def test_one_that_waits_to_start_counts_and_others_do_not(self):
        beside = [a_run("10:00", request_id="by-hand"), queued("10:30", is_backfill=True)]
        assert told(decided(self.two(), waiting(), *beside, now="13:00")) == ["launch 13:00"]
        found = decided(self.two(), waiting("11:00"), waiting("12:00"), *beside, now="13:00")
        assert told(found) == ["skip 13:00 overlap 12:00"]

    def test_an_accepted_run_counts_until_its_deadline(self):
        runs = [a_run("11:00", deadline_at=ms("13:00")), a_run("12:00")]
        assert told(decided(self.two(), *runs, now="13:00")) == ["launch 13:00"]
        still = [replace(runs[0], deadline_at=ms("13:00") + 1), runs[1]]
        assert told(decided(self.two(), *still, now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_what_is_skipped_uses_up_no_runs(self):
        found = decided(self.two(max_runs=2), a_run(), now="13:00:40")
        assert clock(found.due.run_at) == "13:01"


class TestRate:
    """So many decisions to start in any stretch of that length."""

    def rated(self, *when, now="13:00", **given):
        """Say what becomes of the tick at 13:00 when runs were decided at these times."""
        return told(decided(a_schedule(**given), now=now, past=Past(rated=tuple(map(ms, when)))))

    def test_a_tick_is_skipped_when_so_many_were_decided_within_that_time(self):
        assert self.rated("12:30", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("12:30", rate="2/hour") == ["launch 13:00"]
        assert self.rated("12:10", "12:30", rate="2/hour") == ["skip 13:00 rate"]

    def test_it_goes_by_the_time_between_not_by_the_clock(self):
        assert self.rated("12:59:59", rate="1/minute") == ["skip 13:00 rate"]
        assert self.rated("12:59", rate="1/minute") == ["launch 13:00"]
        assert self.rated("12:00:01", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("12:00", rate="1/hour") == ["launch 13:00"]
        assert self.rated("00:00", rate="1/day") == ["skip 13:00 rate"]

    def test_ticks_in_one_plan_are_rated_too(self):
        found = decided(often(overlap="allow", rate="2/hour"), now="13:00:40")
        assert told(found) == ["launch 13:00", "launch 13:00:20", "skip 13:00:40 rate"]

    def test_a_queued_run_was_decided_to_start(self):
        found = decided(often(overlap="queue", rate="1/hour"), a_run(), now="13:00:20")
        assert told(found) == ["queue 13:00 behind 12:00", "skip 13:00:20 rate"]

    def test_what_does_not_start_is_not_rated(self):
        found = decided(often(rate="1/hour"), a_run(), now="13:00:20")
        assert told(found) == ["skip 13:00 overlap 12:00", "skip 13:00:20 overlap 12:00"]

    def test_the_schedule_goes_on(self):
        past = Past(rated=(ms("12:30"),))
        assert decided(a_schedule(rate="1/hour"), now="13:00", past=past).due.run_at == at("14:00")

    def test_a_tick_that_is_skipped_for_it_uses_up_no_runs(self):
        past = Past(rated=(ms("12:30"),), runs_used=1)
        found = decided(a_schedule(rate="1/hour", max_runs=2), now="13:00", past=past)
        assert (told(found), clock(found.due.run_at)) == (["skip 13:00 rate"], "14:00")

    def test_nor_does_it_supersede_what_waits_for_a_retry(self):
        past = Past(rated=(ms("12:30"),))
        found = decided(a_schedule(rate="1/hour"), retrying(), now="13:00", past=past)
        assert told(found) == ["skip 13:00 rate"]

    @pytest.mark.parametrize("overlap", ["queue", "replace"])
    def test_nor_does_it_drop_or_end_or_release_anything(self, overlap):
        past = Past(rated=(ms("12:30"),))
        schedule = a_schedule(rate="1/hour", overlap=overlap)
        for runs in ([a_run(), queued("12:30")], [queued("12:30")], [waiting()]):
            assert told(decided(schedule, *runs, now="13:00", past=past)) == ["skip 13:00 rate"]

    def test_what_is_caught_up_is_rated_like_any_other(self):
        assert self.rated("15:00", now="15:30", rate="1/hour") == ["skip 13:00..15:00 (3) rate"]
        assert self.rated(now="15:30", rate="1/hour") == ["catchup 13:00..15:00 (3)"]

    def test_so_is_what_was_set_aside(self):
        schedule, past = a_schedule(rate="1/hour"), Past(rated=(ms("15:00"),))
        aside = set_aside(schedule, at("13:00"), past, now=ms("15:30"), reason="paused")
        found = catch_up(schedule, aside, [], past, now=ms("15:30"))
        assert told(found) == ["skip 13:00..15:00 (3) rate"]

    def test_those_of_a_clock_that_was_ahead_count_but_not_for_longer_than_that(self):
        assert self.rated("13:30", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("14:00", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("14:00:01", rate="1/hour") == ["launch 13:00"]

    def test_there_is_no_short_way_for_it(self):
        assert not is_plain(a_schedule(rate="1/hour"))

    def test_a_tick_of_an_edit_whose_time_is_to_come_is_rated(self):
        jittered, past = a_schedule(jitter="50m", rate="1/hour"), Past(rated=(ms("12:30"),))
        found = decide_edit(jittered, at("13:00"), [], past, now=ms("13:00"))
        assert told(found) == ["skip 13:00 rate"]

    @given(
        st.lists(st.integers(0, 86_399), min_size=1, max_size=60, unique=True),
        st.integers(1, 5),
        st.sampled_from(["minute", "hour", "day"]),
        st.sampled_from(["allow", "queue"]),
        st.lists(st.sampled_from([0, 0, 1, 900, MINUTE, HOUR]), min_size=60, max_size=60),
    )
    @examples(200)
    def test_in_no_stretch_are_there_more_and_none_is_skipped_while_there_are_fewer(
        self, seconds, most, per, overlap, late
    ):
        times = [rfc3339(at("00:00") + second) for second in seconds]
        rate, catchup = f"{most}/{per}", {"catchup": "all", "catchup_window": "2d"}
        schedule = a_schedule(at=times, rate=rate, overlap=overlap, **catchup)
        length, started, past, now = schedule.policy.rate.length, [], NO_PAST, 0
        row = next_due(schedule, 0, NO_PAST)
        while row is not None:
            now = max(now, row.due_at) + late.pop()
            found = plan(schedule, row.run_at, [], past, now=now)
            for decision in found.decisions:
                within = sum(now - length < start <= now for start in started)
                if isinstance(decision, Skip):
                    assert (decision.reason, within) == ("rate", most)
                else:
                    started.append(now)
            past = replace(past, rated=tuple(started)[-most:])  # as a store keeps it
            row = found.due
        assert started
        assert all(b - a >= length for a, b in zip(started, started[most:], strict=False))


def early_and_late(**given):
    """Return two schedules: one whose tick at 13:00 is due minutes before, one minutes after it."""
    made = (a_schedule(f"s{i}", jitter="30m", jitter_around=True, **given) for i in range(100))
    found = {due_at(schedule, at("13:00"), NO_PAST): schedule for schedule in made}
    return found[min(found)], found[max(found)]


class TestJitterAround:
    def test_a_tick_may_be_due_before_or_after_it_is_planned(self):
        for schedule, sign in zip(early_and_late(), (-1, 1), strict=True):
            assert sign * (due_at(schedule, at("13:00"), NO_PAST) - ms("13:00")) > 25 * MINUTE

    def test_one_is_as_likely_as_the_other_and_all_of_it_is_used(self):
        schedule = a_schedule(jitter="10m", jitter_around=True)
        hours = range(NOON, NOON + 2000 * 3600, 3600)
        minutes = [(due_at(schedule, t, NO_PAST) - t * 1000) // MINUTE for t in hours]
        assert all(60 < minutes.count(minute) < 140 for minute in range(-10, 10))
        assert 900 < sum(minute < 0 for minute in minutes) < 1100

    def test_without_it_no_tick_is_early(self):
        schedule = a_schedule(jitter="10m")
        hours = range(NOON, NOON + 500 * 3600, 3600)
        assert all(due_at(schedule, t, NO_PAST) >= t * 1000 for t in hours)

    def test_it_is_the_same_in_every_version_of_the_program(self):
        schedule = a_schedule("report", jitter="30m", jitter_around=True)
        for tick, after in [(NOON, 1_021_348), (NOON + 3600, -66_207), (NOON + 10_800, -759_153)]:
            assert due_at(schedule, tick, NO_PAST) - tick * 1000 == after

    def test_a_tick_is_decided_when_it_is_due_though_that_is_early(self):
        early, _ = early_and_late()
        start = due_at(early, at("13:00"), NO_PAST)
        assert decided(early, now=start - 1) == Plan((), Due(at("13:00"), start))
        found = decided(early, now=start)
        assert found.decisions == (Launch(Tick(at("13:00"), start)),)

    def test_and_not_again_when_its_planned_time_comes(self):
        early, _ = early_and_late()
        start = due_at(early, at("13:00"), NO_PAST)
        row = decided(early, now=start).due
        assert row == Due(at("14:00"), due_at(early, at("14:00"), NO_PAST))
        assert plan(early, row.run_at, [], NO_PAST, now=ms("13:00")) == Plan((), row)

    def test_one_that_is_late_waits_past_its_planned_time(self):
        _, late = early_and_late()
        start = due_at(late, at("13:00"), NO_PAST)
        assert decided(late, now="13:20") == Plan((), Due(at("13:00"), start))
        assert told(decided(late, now=start)) == ["launch 13:00"]

    def test_an_edit_decides_one_that_is_due_early(self):
        early, _ = early_and_late()
        found = decide_edit(
            early, at("13:00"), [], NO_PAST, now=due_at(early, at("13:00"), NO_PAST)
        )
        assert told(found) == ["launch 13:00"]

    def test_what_is_set_aside_goes_by_what_was_planned(self):
        early, _ = early_and_late()
        assert set_aside(early, at("13:00"), NO_PAST, now=ms("12:50"), reason="paused") is None
        aside = set_aside(early, at("13:00"), NO_PAST, now=ms("13:00"), reason="paused")
        assert told([aside]) == ["skip 13:00 paused"]

    def test_none_is_missed_before_its_planned_time(self):
        early, _ = early_and_late(catchup="none")
        assert told(decided(early, now="12:55")) == ["launch 13:00"]

    @given(
        st.sampled_from(SECONDS + HOURS),
        st.sampled_from(["1ms", "1500ms", "5s", "10m", "2h", "3d"]),
        st.booleans(),
        st.integers(0, 300 * 86_400),
    )
    @examples(200)
    def test_no_tick_is_further_from_its_time_and_their_order_never_changes(
        self, timing, jitter, around, begin
    ):
        schedule = a_schedule(**timing, jitter=jitter, jitter_around=around)
        ticks = schedule.trigger.upcoming(NOON + begin, 30)
        assume(ticks)
        begins = [due_at(schedule, tick, NO_PAST) for tick in ticks]
        assert begins == sorted(set(begins))
        most = schedule.policy.jitter
        for tick, start in zip(ticks, begins, strict=True):
            planned = schedule.trigger.due_at(tick) * 1000
            assert planned - (most if around else 0) <= start < planned + most

    @given(
        st.sampled_from(HOURS),
        st.sampled_from(["1500ms", "10m", "2h"]),
        st.sampled_from(["once", "none", "all"]),
        st.integers(0, 10**7),
        st.integers(0, 2 * DAY),
    )
    @examples(200)
    def test_one_that_is_late_covers_each_tick_that_is_due_and_no_other(
        self, timing, jitter, catchup, begin, late
    ):
        given = {"jitter": jitter, "jitter_around": True, "catchup": catchup, "overlap": "allow"}
        schedule = a_schedule(**timing, **given)
        row = next_due(schedule, NOON + begin, NO_PAST)
        assume(row is not None)
        now, ticks = row.due_at + late, schedule.trigger.upcoming(row.run_at - 1, 200)
        due = [tick for tick in ticks if due_at(schedule, tick, NO_PAST) <= now]
        assume(len(due) < 90)
        found = plan(schedule, row.run_at, [], NO_PAST, now=now)
        ranges = [decision.tick for decision in found.decisions]
        assert sum(tick.count for tick in ranges) == len(due)
        assert (ranges[0].first_run_at or ranges[0].run_at, ranges[-1].run_at) == (due[0], due[-1])
        assert (found.due and found.due.run_at) == schedule.trigger.next_after(due[-1])

    @given(st.sampled_from(HOURS), st.sampled_from(["1500ms", "10m", "2h"]), st.integers(0, 10**7))
    @examples(100)
    def test_a_planner_that_is_never_late_decides_each_tick_once_when_it_is_due(
        self, timing, jitter, begin
    ):
        schedule = a_schedule(**timing, jitter=jitter, jitter_around=True, overlap="allow")
        row, ticks = next_due(schedule, NOON + begin, NO_PAST), []
        while row is not None and len(ticks) < 30:
            found = plan(schedule, row.run_at, [], NO_PAST, now=row.due_at)
            assert [type(decision) for decision in found.decisions] == [Launch]
            assert found.decisions[0].tick == Tick(row.run_at, row.due_at)
            ticks.append(row.run_at)
            row = found.due
        assert ticks == schedule.trigger.upcoming(NOON + begin, 30)


# -- laws of overlapping, whatever is there already


KINDS = st.lists(
    st.sampled_from(["started", "asked", "waiting", "retry", "manual", "queued", "asked for"]),
    max_size=6,
)


def there(kinds):
    """Return runs as a store could have them before 13:00: a queue has one in flight before it."""
    made = {
        "started": a_run,
        "asked": partial(a_run, ending="superseded"),
        "waiting": waiting,
        "retry": retrying,
        "manual": partial(a_run, request_id="by-hand"),
        "queued": queued,
        "asked for": partial(queued, is_backfill=True),
    }
    runs = [made[kind](at("12:00") + i) for i, kind in enumerate(kinds)]
    assume(in_flight(runs) or not any(run.blocked_by for run in runs))
    return runs


def runs_in(decisions, kind):
    return [decision.run for decision in decisions if isinstance(decision, kind)]


def ticks_in(decisions, *kinds):
    return [d.tick.run_at for d in decisions if isinstance(d, kinds)]


def in_flight(runs):
    return [run for run in runs if run.in_flight(ms("13:00"))]


def in_queue(runs):
    return [run for run in runs if run.blocked_by is not None and not run.is_backfill]


OVERLAPS = st.one_of(
    st.fixed_dictionaries({"overlap": st.sampled_from(["skip", "replace"])}),
    st.fixed_dictionaries(
        {"overlap": st.just("allow")}, optional={"max_active": st.integers(1, 4)}
    ),
    st.fixed_dictionaries(
        {
            "overlap": st.just("queue"),
            "queue_limit": st.integers(1, 4),
            "queue_keep": st.sampled_from(["first", "latest"]),
        }
    ),
)
TICKS = st.integers(1, 6)


def overlapped(overlap, kinds, count):
    """Decide so many ticks at once, a second apart; return them, what was there and the decisions."""
    runs, ticks = there(kinds), [at("13:00") + i for i in range(count)]
    schedule = a_schedule(every="1s", grace="10m", **overlap)
    return runs, ticks, decided(schedule, *runs, now=ticks[-1] * 1000).decisions


@given(OVERLAPS, KINDS, TICKS)
@examples(300)
def test_every_tick_has_one_decision_and_no_run_has_two(overlap, kinds, count):
    _, ticks, decisions = overlapped(overlap, kinds, count)
    assert ticks_in(decisions, Launch, Queue, Skip) == ticks
    about = runs_in(decisions, (Supersede, RequestCancel, Release))
    assert len(about) == len(set(about))
    assert not any(run.request_id or run.is_backfill for run in about)


@given(st.integers(1, 4), KINDS, TICKS)
@examples(200)
def test_no_more_are_in_flight_than_may_be(most, kinds, count):
    runs, ticks, decisions = overlapped({"overlap": "allow", "max_active": most}, kinds, count)
    room = max(most - len(in_flight(runs)), 0)
    assert ticks_in(decisions, Launch) == ticks[:room]
    blockers = {run.run_at for run in in_flight(runs)} | set(ticks[:room])
    skips = [decision for decision in decisions if isinstance(decision, Skip)]
    assert all(skip.reason == "overlap" and skip.blocked_by in blockers for skip in skips)


@given(st.integers(1, 4), st.sampled_from(["first", "latest"]), KINDS, TICKS)
@example(
    2, "latest", ["started", "queued", "queued", "queued"], 1
)  # an edit made the limit smaller
@examples(300)
def test_of_those_that_wait_the_first_or_the_latest_stay(limit, keep, kinds, count):
    overlap = {"overlap": "queue", "queue_limit": limit, "queue_keep": keep}
    runs, ticks, decisions = overlapped(overlap, kinds, count)
    before = [run.run_at for run in in_queue(runs)]
    dropped = [
        drop.run.run_at
        for drop in decisions
        if isinstance(drop, Supersede) and drop.reason == "queue_full"
    ]
    waits = [run_at for run_at in before if run_at not in dropped] + ticks_in(decisions, Queue)
    wanting = before + (ticks if in_flight(runs) else ticks[1:])
    if keep == "first":
        assert waits == wanting[: max(limit, len(before))]
    else:
        assert waits == wanting[-max(limit, len(before)) :]


@given(KINDS, TICKS)
@examples(200)
def test_the_newest_replaces_all_that_is_there(kinds, count):
    runs, ticks, decisions = overlapped({"overlap": "replace"}, kinds, count)
    flying = in_flight(runs)
    started = [run for run in flying if run.status is Status.STARTED]
    assert runs_in(decisions, RequestCancel) == [run for run in started if run.ending is None]
    dropped = {run for run in runs if run.status is Status.ENQUEUED and not run.is_backfill}
    assert set(runs_in(decisions, Supersede)) == dropped
    assert ticks_in(decisions, Queue if started else Launch) == ticks[-1:]
    assert starts(decisions) == 1
    assert ticks_in(decisions, Skip) == ticks[:-1]
