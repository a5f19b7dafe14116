"""Ticks decided by policies: disabled, replaced, queued, bounded, rated, and varied around.

Notation as in `plans`: it is New Year's Day, and the first undecided tick is at 13:00.
"""

from functools import partial

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat.core.decide.plan import (
    catch_up,
    count_starts,
    decide_edit,
    due_at,
    is_plain,
    next_due,
    plan,
    set_aside,
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
from onbeat.core.runs.phase import UNANNOUNCED, Phase
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.testing import a_schedule
from tests.core.plans import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    a_run,
    accepted,
    at,
    claimed,
    clock,
    decided,
    lines,
    ms,
    queued,
    retrying,
    waiting,
)
from tests.core.test_plan_laws import HOURS, SECONDS
from tests.profiles import examples

often = partial(a_schedule, every="20s")
OFF = [
    ({"enabled": False}, "disabled"),
    ({"run": {"command": ["true"], "enabled": False}}, "disabled_target"),
]


class TestDisabled:
    """A disabled schedule or target: each tick is skipped with that reason."""

    @pytest.mark.parametrize(("off", "reason"), OFF)
    @pytest.mark.parametrize("catchup", ["once", "none", "all", "spread"])
    @pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "replace"])
    def test_disabled_schedule_skips_all_due_ticks_as_one_range(
        self, off, reason, catchup, overlap
    ):
        found = decided(a_schedule(**off, catchup=catchup, overlap=overlap), now="15:30")
        assert lines(found) == [f"skip 13:00..15:00 (3) {reason}"]
        assert found.due == Due(at("16:00"), ms("16:00"))

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_disabled_schedule_skips_a_single_tick_on_time(self, off, reason):
        assert lines(decided(a_schedule(**off), now="13:00")) == [f"skip 13:00 {reason}"]

    def test_disabled_schedule_decides_nothing_before_a_tick_is_due(self):
        off = a_schedule(enabled=False)
        assert decided(off, now=ms("13:00") - 1) == Plan((), Due(at("13:00"), ms("13:00")))

    def test_disabled_schedule_takes_precedence_over_its_disabled_target(self):
        both = a_schedule(enabled=False, run={"command": ["true"], "enabled": False})
        assert lines(decided(both, now="13:00")) == ["skip 13:00 disabled"]

    def test_disabled_schedule_keeps_its_running_and_waiting_runs(self):
        runs = [a_run("11:00"), queued("11:30"), waiting("12:00")]
        off = a_schedule(enabled=False, overlap="queue")
        assert lines(decided(off, *runs, now="13:00")) == ["skip 13:00 disabled"]

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_disabled_schedule_ends_runs_that_wait_for_a_retry(self, off, reason):
        runs = [retrying("12:00"), retrying("12:30", request_id="by-hand")]
        found = decided(a_schedule(**off), *runs, now="13:00")
        assert lines(found) == [f"drop ({reason}) 12:00", f"skip 13:00 {reason}"]

    def test_run_queued_behind_an_ended_retry_is_released(self):
        off = a_schedule(enabled=False, overlap="queue")
        found = decided(off, retrying("12:00"), queued("12:30"), now="13:00")
        wanted = ["drop (disabled) 12:00", "release 12:30", "skip 13:00 disabled"]
        assert lines(found) == wanted
        behind = decided(off, a_run("11:00"), retrying("12:00"), queued("12:30"), now="13:00")
        assert lines(behind) == ["drop (disabled) 12:00", "skip 13:00 disabled"]

    def test_disabled_ticks_use_no_allowance_and_no_max_runs(self):
        found = decided(a_schedule(enabled=False, max_runs=1), now="15:30", allowance=0)
        assert (lines(found), found.catchups) == (["skip 13:00..15:00 (3) disabled"], 0)
        assert clock(found.due.run_at) == "16:00"

    def test_schedule_with_a_disabled_part_is_not_plain(self):
        assert is_plain(a_schedule())
        for off, _ in OFF:
            assert not is_plain(a_schedule(**off))

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_edit_of_a_disabled_schedule_starts_nothing(self, off, reason):
        decide = partial(decide_edit, a_schedule(**off), at("13:00"), [], NO_PAST)
        assert lines(decide(now=ms("15:30"))) == [f"skip 13:00..15:00 (3) {reason}"]

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_edit_of_a_disabled_schedule_skips_a_tick_due_later(self, off, reason):
        jittered = a_schedule(**off, jitter="50m")
        found = decide_edit(jittered, at("13:00"), [], NO_PAST, now=ms("13:00"))
        assert lines(found) == [f"skip 13:00 {reason}"]

    @pytest.mark.parametrize(("off", "reason"), OFF)
    def test_disabled_schedule_catches_up_nothing_after_a_pause(self, off, reason):
        schedule = a_schedule(**off)
        aside = set_aside(schedule, at("13:00"), NO_PAST, now=ms("15:30"), reason="paused")
        found = catch_up(schedule, aside, [], NO_PAST, now=ms("15:30"))
        assert lines(found) == [f"skip 13:00..15:00 (3) {reason}"]


class TestReplacing:
    """Under `overlap: replace` the newest tick runs."""

    def test_replace_launches_an_unblocked_tick(self):
        assert lines(decided(a_schedule(overlap="replace"), now="13:00")) == ["launch 13:00"]

    def test_replace_requests_cancellation_of_a_started_run_and_waits(self):
        found = decided(a_schedule(overlap="replace"), a_run(), now="13:00")
        assert lines(found) == ["end 12:00", "queue 13:00 behind 12:00"]
        assert found.decisions[0] == RequestCancel(a_run())

    def test_replace_requests_cancellation_only_once(self):
        asked = a_run(ending="superseded")
        found = decided(a_schedule(overlap="replace"), asked, now="13:00")
        assert lines(found) == ["queue 13:00 behind 12:00"]

    def test_replace_requests_cancellation_once_for_several_ticks(self):
        found = decided(often(overlap="replace"), a_run(), now="13:00:40")
        assert lines(found) == [
            "end 12:00",
            "skip 13:00 superseded",
            "skip 13:00:20 superseded",
            "queue 13:00:40 behind 12:00",
        ]

    def test_replace_requests_cancellation_of_all_and_waits_for_the_latest(self):
        runs = [a_run("11:00"), a_run("12:00")]
        found = decided(a_schedule(overlap="replace"), *runs, now="13:00")
        assert lines(found) == ["end 11:00", "end 12:00", "queue 13:00 behind 12:00"]

    def test_replace_supersedes_older_waiting_runs(self):
        runs = [a_run("10:00", ending="superseded"), queued("11:00"), queued("12:00")]
        found = decided(a_schedule(overlap="replace"), *runs, now="13:00")
        assert lines(found) == ["supersede 11:00", "supersede 12:00", "queue 13:00 behind 10:00"]

    def test_replace_supersedes_an_unstarted_run_immediately(self):
        found = decided(a_schedule(overlap="replace"), waiting(), now="13:00")
        assert lines(found) == ["supersede 12:00", "launch 13:00"]

    def test_replace_supersedes_a_run_that_waits_for_a_retry(self):
        found = decided(a_schedule(overlap="replace"), retrying(), now="13:00")
        assert lines(found) == ["supersede 12:00", "launch 13:00"]

    def test_replace_keeps_manual_runs(self):
        runs = [a_run(request_id="by-hand"), retrying("12:30", request_id="again")]
        assert lines(decided(a_schedule(overlap="replace"), *runs, now="13:00")) == ["launch 13:00"]

    def test_replace_starts_only_the_newest_of_several_ticks(self):
        assert lines(decided(often(overlap="replace"), now="13:00:40")) == [
            "skip 13:00 superseded", "skip 13:00:20 superseded", "launch 13:00:40",
        ]  # fmt: skip

    def test_only_the_newest_of_several_caught_up_ticks_starts(self):
        found = decided(a_schedule(overlap="replace", catchup="all"), now="15:30")
        assert lines(found) == [
            "skip 13:00 superseded", "skip 14:00 superseded", "catchup 15:00",
        ]  # fmt: skip

    def test_replace_counts_only_starts_for_max_runs(self):
        found = decided(often(overlap="replace", max_runs=2), now="13:00:40")
        assert count_starts(found.decisions) == 1
        assert clock(found.due.run_at) == "13:01"
        found = decided(
            often(overlap="replace", max_runs=3), now="13:00:40", past=Past(runs_used=1)
        )
        assert clock(found.due.run_at) == "13:01"

    def test_replace_counts_only_starts_for_the_rate(self):
        found = decided(often(overlap="replace", rate="2/hour"), now="13:01:40", first="13:01")
        assert lines(found)[-1] == "launch 13:01:40"
        assert count_starts(found.decisions) == 1

    def test_resume_with_catchup_replaces_a_running_run(self):
        aside = Skip(Tick(at("15:00"), ms("15:00"), at("13:00"), 3), "paused")
        found = catch_up(a_schedule(overlap="replace"), aside, [a_run()], NO_PAST, now=ms("15:30"))
        assert lines(found) == ["end 12:00", "queue 13:00..15:00 (3) behind 12:00"]

    def test_replace_keeps_a_waiting_backfill(self):
        runs = [a_run(), queued("09:00", is_backfill=True)]
        found = decided(a_schedule(overlap="replace"), *runs, now="13:00")
        assert lines(found) == ["end 12:00", "queue 13:00 behind 12:00"]

    @pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
    def test_new_backfill_gives_precedence_to_a_new_tick(self, overlap):
        asked_for = waiting("09:00", is_backfill=True, due_at=ms("12:59"), created_at=ms("12:59"))
        found = decided(a_schedule(overlap=overlap), asked_for, now="13:00")
        assert lines(found) == ["launch 13:00"]

    @pytest.mark.parametrize("beside", [[], [waiting("12:00")]])
    def test_replace_neither_releases_nor_drops_a_backfill(self, beside):
        asked_for = queued("09:00", is_backfill=True)
        found = decided(often(overlap="replace"), asked_for, *beside, now="13:00:20")
        assert not [line for line in lines(found) if "09:00" in line]
        assert lines(found)[-1] == "launch 13:00:20"

    def test_replace_does_not_release_a_run_before_dropping_it(self):
        found = decided(a_schedule(overlap="replace"), queued("11:00"), now="13:00")
        assert lines(found) == ["supersede 11:00", "launch 13:00"]

    def test_replace_uses_the_allowance_only_for_starts(self):
        assert decided(a_schedule(overlap="replace", catchup="all"), now="15:30").catchups == 1


class TestQueueLimit:
    """When one more comes than may wait."""

    few = staticmethod(partial(often, overlap="queue", queue_limit=2))
    latest = staticmethod(partial(often, overlap="queue", queue_limit=2, queue_keep="latest"))

    def test_full_queue_keeps_the_first_runs_by_default(self):
        assert lines(decided(self.few(), a_run(), now="13:00:40")) == [
            "queue 13:00 behind 12:00",
            "queue 13:00:20 behind 12:00",
            "skip 13:00:40 queue_full 12:00",
        ]

    def test_queue_limit_counts_runs_already_waiting(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        assert lines(decided(self.few(), *runs, now="13:00")) == ["skip 13:00 queue_full 11:00"]

    def test_queue_keep_latest_drops_the_longest_waiting_run(self):
        runs = [a_run("11:00"), queued("12:00"), queued("11:30")]
        found = decided(self.latest(), *runs, now="13:00")
        assert lines(found) == ["drop (queue_full) 11:30", "queue 13:00 behind 11:00"]

    def test_queue_keep_latest_drops_several_runs_in_order(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        assert lines(decided(self.latest(), *runs, now="13:00:20")) == [
            "drop (queue_full) 11:30",
            "queue 13:00 behind 11:00",
            "drop (queue_full) 12:00",
            "queue 13:00:20 behind 11:00",
        ]

    def test_queue_keep_latest_drops_a_tick_queued_in_the_same_plan(self):
        assert lines(decided(self.latest(), a_run(), now="13:01")) == [
            "skip 13:00 queue_full",
            "skip 13:00:20 queue_full",
            "queue 13:00:40 behind 12:00",
            "queue 13:01 behind 12:00",
        ]

    def test_queue_keep_latest_keeps_the_launched_tick(self):
        assert lines(decided(self.latest(), now="13:01")) == [
            "launch 13:00",
            "skip 13:00:20 queue_full",
            "queue 13:00:40 behind 13:00",
            "queue 13:01 behind 13:00",
        ]

    def test_only_queued_ticks_that_stay_count_for_max_runs_and_rate(self):
        found = decided(self.latest(max_runs=3), a_run(), now="13:01")
        assert (count_starts(found.decisions), clock(found.due.run_at)) == (2, "13:01:20")
        found = decided(self.latest(rate="3/hour"), a_run(), now="13:01")
        assert lines(found)[-1] == "queue 13:01 behind 12:00"

    def test_queue_limit_does_not_count_backfills(self):
        asked_for = [queued(at("09:00") + i, is_backfill=True) for i in range(5)]
        found = decided(self.few(), a_run(), *asked_for, now="13:00:20")
        assert lines(found) == ["queue 13:00 behind 12:00", "queue 13:00:20 behind 12:00"]

    def test_queue_keep_latest_does_not_drop_backfills(self):
        runs = [a_run("11:00"), queued("09:00", is_backfill=True), queued("11:30"), queued("12:00")]
        found = decided(self.latest(), *runs, now="13:00")
        assert lines(found) == ["drop (queue_full) 11:30", "queue 13:00 behind 11:00"]

    def test_missed_ticks_wait_for_room_in_a_full_queue(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        found = decided(self.few(catchup="all"), *runs, now="13:05")
        assert (lines(found), found.due.run_at) == ([], at("13:00"))

    def test_queue_keep_latest_always_has_room_for_missed_ticks(self):
        runs = [a_run("11:00"), queued("11:30"), queued("12:00")]
        found = decided(self.latest(every="1h", catchup="all"), *runs, now="14:30")
        assert lines(found) == [
            "drop (queue_full) 11:30",
            "queue 13:00 behind 11:00",
            "drop (queue_full) 12:00",
            "queue 14:00 behind 11:00",
        ]

    def test_only_queued_catch_ups_that_stay_use_the_allowance(self):
        found = decided(self.latest(every="1h", catchup="all"), a_run(), now="17:30")
        assert found.catchups == count_starts(found.decisions)


class TestMaxActive:
    two = staticmethod(partial(often, overlap="allow", max_active=2))

    def test_tick_beyond_max_active_is_skipped(self):
        runs = [a_run("11:00"), a_run("12:00")]
        assert lines(decided(self.two(), *runs, now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_max_active_counts_ticks_of_the_same_plan(self):
        assert lines(decided(self.two(), a_run(), now="13:00:40")) == [
            "launch 13:00", "skip 13:00:20 overlap 13:00", "skip 13:00:40 overlap 13:00",
        ]  # fmt: skip

    def test_max_active_counts_runs_about_to_start(self):
        beside = [a_run("10:00", request_id="by-hand"), queued("10:30", is_backfill=True)]
        assert lines(decided(self.two(), waiting(), *beside, now="13:00")) == ["launch 13:00"]
        found = decided(self.two(), waiting("11:00"), waiting("12:00"), *beside, now="13:00")
        assert lines(found) == ["skip 13:00 overlap 12:00"]

    def test_accepted_run_counts_for_max_active_until_its_deadline(self):
        runs = [accepted("11:00", deadline_at=ms("13:00")), a_run("12:00")]
        assert lines(decided(self.two(), *runs, now="13:00")) == ["launch 13:00"]
        still = [replace(runs[0], deadline_at=ms("13:00") + 1), runs[1]]
        assert lines(decided(self.two(), *still, now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_tick_skipped_by_max_active_does_not_count_for_max_runs(self):
        found = decided(self.two(max_runs=2), a_run(), now="13:00:40")
        assert clock(found.due.run_at) == "13:01"


class TestRate:
    """So many decisions to start in any stretch of that length."""

    def rated(self, *when, now="13:00", **given):
        """Return the decision about the tick at 13:00 after runs decided at these times."""
        return lines(decided(a_schedule(**given), now=now, past=Past(rated=tuple(map(ms, when)))))

    def test_tick_beyond_the_rate_is_skipped(self):
        assert self.rated("12:30", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("12:30", rate="2/hour") == ["launch 13:00"]
        assert self.rated("12:10", "12:30", rate="2/hour") == ["skip 13:00 rate"]

    def test_rate_is_a_sliding_window(self):
        assert self.rated("12:59:59", rate="1/minute") == ["skip 13:00 rate"]
        assert self.rated("12:59", rate="1/minute") == ["launch 13:00"]
        assert self.rated("12:00:01", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("12:00", rate="1/hour") == ["launch 13:00"]
        assert self.rated("00:00", rate="1/day") == ["skip 13:00 rate"]

    def test_rate_counts_ticks_of_the_same_plan(self):
        found = decided(often(overlap="allow", rate="2/hour"), now="13:00:40")
        assert lines(found) == ["launch 13:00", "launch 13:00:20", "skip 13:00:40 rate"]

    def test_queued_run_counts_for_the_rate(self):
        found = decided(often(overlap="queue", rate="1/hour"), a_run(), now="13:00:20")
        assert lines(found) == ["queue 13:00 behind 12:00", "skip 13:00:20 rate"]

    def test_skipped_tick_does_not_count_for_the_rate(self):
        found = decided(often(rate="1/hour"), a_run(), now="13:00:20")
        assert lines(found) == ["skip 13:00 overlap 12:00", "skip 13:00:20 overlap 12:00"]

    def test_rate_does_not_stop_the_schedule(self):
        past = Past(rated=(ms("12:30"),))
        assert decided(a_schedule(rate="1/hour"), now="13:00", past=past).due.run_at == at("14:00")

    def test_tick_skipped_by_the_rate_does_not_count_for_max_runs(self):
        past = Past(rated=(ms("12:30"),), runs_used=1)
        found = decided(a_schedule(rate="1/hour", max_runs=2), now="13:00", past=past)
        assert (lines(found), clock(found.due.run_at)) == (["skip 13:00 rate"], "14:00")

    def test_tick_skipped_by_the_rate_does_not_supersede_a_retry(self):
        past = Past(rated=(ms("12:30"),))
        found = decided(a_schedule(rate="1/hour"), retrying(), now="13:00", past=past)
        assert lines(found) == ["skip 13:00 rate"]

    @pytest.mark.parametrize("overlap", ["queue", "replace"])
    def test_tick_skipped_by_the_rate_affects_no_other_run(self, overlap):
        past = Past(rated=(ms("12:30"),))
        schedule = a_schedule(rate="1/hour", overlap=overlap)
        for runs in ([a_run(), queued("12:30")], [queued("12:30")], [waiting()]):
            assert lines(decided(schedule, *runs, now="13:00", past=past)) == ["skip 13:00 rate"]

    def test_caught_up_tick_counts_for_the_rate(self):
        assert self.rated("15:00", now="15:30", rate="1/hour") == ["skip 13:00..15:00 (3) rate"]
        assert self.rated(now="15:30", rate="1/hour") == ["catchup 13:00..15:00 (3)"]

    def test_tick_caught_up_after_a_pause_counts_for_the_rate(self):
        schedule, past = a_schedule(rate="1/hour"), Past(rated=(ms("15:00"),))
        aside = set_aside(schedule, at("13:00"), past, now=ms("15:30"), reason="paused")
        found = catch_up(schedule, aside, [], past, now=ms("15:30"))
        assert lines(found) == ["skip 13:00..15:00 (3) rate"]

    def test_runs_decided_by_a_clock_ahead_count_for_one_period(self):
        assert self.rated("13:30", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("14:00", rate="1/hour") == ["skip 13:00 rate"]
        assert self.rated("14:00:01", rate="1/hour") == ["launch 13:00"]

    def test_schedule_with_a_rate_is_not_plain(self):
        assert not is_plain(a_schedule(rate="1/hour"))

    def test_edit_applies_the_rate_to_a_tick_due_later(self):
        jittered, past = a_schedule(jitter="50m", rate="1/hour"), Past(rated=(ms("12:30"),))
        found = decide_edit(jittered, at("13:00"), [], past, now=ms("13:00"))
        assert lines(found) == ["skip 13:00 rate"]

    @given(
        st.lists(st.integers(0, 86_399), min_size=1, max_size=60, unique=True),
        st.integers(1, 5),
        st.sampled_from(["minute", "hour", "day"]),
        st.sampled_from(["allow", "queue"]),
        st.lists(st.sampled_from([0, 0, 1, 900, MINUTE, HOUR]), min_size=60, max_size=60),
    )
    @examples(200)
    def test_rate_is_never_exceeded_and_never_underused(self, seconds, most, per, overlap, late):
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
    def test_jitter_around_moves_a_tick_before_or_after_its_planned_time(self):
        for schedule, sign in zip(early_and_late(), (-1, 1), strict=True):
            assert sign * (due_at(schedule, at("13:00"), NO_PAST) - ms("13:00")) > 25 * MINUTE

    def test_jitter_around_is_spread_evenly_before_and_after(self):
        schedule = a_schedule(jitter="10m", jitter_around=True)
        hours = range(NOON, NOON + 2000 * 3600, 3600)
        minutes = [(due_at(schedule, t, NO_PAST) - t * 1000) // MINUTE for t in hours]
        assert all(60 < minutes.count(minute) < 140 for minute in range(-10, 10))
        assert 900 < sum(minute < 0 for minute in minutes) < 1100

    def test_no_tick_is_early_without_jitter_around(self):
        schedule = a_schedule(jitter="10m")
        hours = range(NOON, NOON + 500 * 3600, 3600)
        assert all(due_at(schedule, t, NO_PAST) >= t * 1000 for t in hours)

    def test_jitter_around_is_stable_across_versions(self):
        schedule = a_schedule("report", jitter="30m", jitter_around=True)
        for tick, after in [(NOON, 1_021_348), (NOON + 3600, -66_207), (NOON + 10_800, -759_153)]:
            assert due_at(schedule, tick, NO_PAST) - tick * 1000 == after

    def test_tick_with_negative_jitter_is_decided_at_its_due_time(self):
        early, _ = early_and_late()
        start = due_at(early, at("13:00"), NO_PAST)
        assert decided(early, now=start - 1) == Plan((), Due(at("13:00"), start))
        found = decided(early, now=start)
        assert found.decisions == (Launch(Tick(at("13:00"), start)),)

    def test_tick_decided_early_is_not_decided_again(self):
        early, _ = early_and_late()
        start = due_at(early, at("13:00"), NO_PAST)
        row = decided(early, now=start).due
        assert row == Due(at("14:00"), due_at(early, at("14:00"), NO_PAST))
        assert plan(early, row.run_at, [], NO_PAST, now=ms("13:00")) == Plan((), row)

    def test_tick_with_positive_jitter_waits_past_its_planned_time(self):
        _, late = early_and_late()
        start = due_at(late, at("13:00"), NO_PAST)
        assert decided(late, now="13:20") == Plan((), Due(at("13:00"), start))
        assert lines(decided(late, now=start)) == ["launch 13:00"]

    def test_edit_decides_a_tick_due_before_its_planned_time(self):
        early, _ = early_and_late()
        found = decide_edit(
            early, at("13:00"), [], NO_PAST, now=due_at(early, at("13:00"), NO_PAST)
        )
        assert lines(found) == ["launch 13:00"]

    def test_set_aside_ticks_are_selected_by_their_planned_time(self):
        early, _ = early_and_late()
        assert set_aside(early, at("13:00"), NO_PAST, now=ms("12:50"), reason="paused") is None
        aside = set_aside(early, at("13:00"), NO_PAST, now=ms("13:00"), reason="paused")
        assert lines([aside]) == ["skip 13:00 paused"]

    def test_no_tick_is_missed_before_its_planned_time(self):
        early, _ = early_and_late(catchup="none")
        assert lines(decided(early, now="12:55")) == ["launch 13:00"]

    @given(
        st.sampled_from(SECONDS + HOURS),
        st.sampled_from(["1ms", "1500ms", "5s", "10m", "2h", "3d"]),
        st.booleans(),
        st.integers(0, 300 * 86_400),
    )
    @examples(200)
    def test_jitter_stays_within_its_length_and_keeps_the_order_of_ticks(
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
    def test_late_planner_covers_each_due_tick_and_no_other(
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
    def test_punctual_planner_decides_each_tick_once_when_due(self, timing, jitter, begin):
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
    st.sampled_from(
        [
            "started",
            "asked",
            "claimed",
            "accepted",
            "detached",
            "reattaching",
            "recalled",
            "waiting",
            "retry",
            "manual",
            "queued",
            "asked for",
        ]
    ),
    max_size=6,
)


def there(kinds):
    """Return runs as a store could have them before 13:00: a queue has one in flight before it."""
    made = {
        "started": a_run,
        "asked": partial(a_run, ending="superseded"),
        "claimed": claimed,
        "accepted": accepted,
        "detached": partial(a_run, phase=Phase.DETACHED, attempt=1),
        "reattaching": partial(a_run, phase=Phase.REATTACHING, attempt=1),
        "recalled": partial(a_run, phase=Phase.RECALLED, attempt=1, ending="canceled"),
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
    """Decide several ticks in one plan, a second apart; return runs, ticks and decisions."""
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
def test_runs_in_flight_never_exceed_the_limit(most, kinds, count):
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
def test_full_queue_keeps_the_first_or_the_latest_runs(limit, keep, kinds, count):
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
def test_newest_tick_replaces_all_runs_of_its_schedule(kinds, count):
    runs, ticks, decisions = overlapped({"overlap": "replace"}, kinds, count)
    flying = in_flight(runs)
    started = [run for run in flying if run.phase not in UNANNOUNCED]
    assert runs_in(decisions, RequestCancel) == [run for run in started if run.ending is None]
    dropped = {run for run in runs if run.phase in UNANNOUNCED and not run.is_backfill}
    assert set(runs_in(decisions, Supersede)) == dropped
    assert ticks_in(decisions, Queue if started else Launch) == ticks[-1:]
    assert count_starts(decisions) == 1
    assert ticks_in(decisions, Skip) == ticks[:-1]
