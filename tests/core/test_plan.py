"""Decisions about due ticks, and the next due row.

It is noon on New Year's Day; schedules are hourly by default. Missed ticks are in
`test_catchup`, other policies in `test_overlap`, laws in `test_plan_laws`.
"""

import pytest

from onbeat.core.decide.plan import (
    MOST_DECISIONS,
    MOST_ON_TIME,
    catch_up,
    count_starts,
    decide_edit,
    due_at,
    next_due,
    plan,
    set_aside,
)
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import Due, Launch, Plan, Queue, Skip, Supersede, Tick
from onbeat.core.runs.run import ReasonDetail
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.kinds import LocalPatternTrigger
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
    lines,
    ms,
    queued,
    retrying,
    waiting,
    words,
)

QUEUE_LIMIT = Policy().queue_limit


class TestOnTime:
    def test_tick_is_not_decided_before_it_is_due(self):
        assert decided(a_schedule(), now=ms("13:00") - 1) == Plan((), Due(at("13:00"), ms("13:00")))

    def test_tick_is_launched_in_the_millisecond_it_is_due(self):
        found = decided(a_schedule(), now="13:00")
        assert found.decisions == (Launch(Tick(at("13:00"), ms("13:00"))),)

    def test_the_due_row_becomes_the_next_tick(self):
        assert decided(a_schedule(), now="13:00").due == Due(at("14:00"), ms("14:00"))

    def test_schedule_has_no_due_row_after_its_last_tick(self):
        assert decided(a_schedule(at="2026-01-01T13:00:00Z"), now="13:00").due is None

    def test_ticks_within_their_grace_are_decided_separately_in_order(self):
        found = decided(a_schedule(every="20s", overlap="allow"), now="13:01")
        assert lines(found) == [
            "launch 13:00", "launch 13:00:20", "launch 13:00:40", "launch 13:01",
        ]  # fmt: skip

    @pytest.mark.parametrize("grace", ["1s", "60s", "2h"])
    def test_a_tick_decided_within_its_grace_is_on_time(self, grace):
        schedule = a_schedule(grace=grace)
        end = ms("13:00") + schedule.policy.grace
        assert lines(decided(schedule, now=end))[0] == "launch 13:00"

    @pytest.mark.parametrize(("catchup", "becomes"), [("once", "catchup"), ("none", "skip")])
    def test_tick_is_missed_a_millisecond_after_its_grace(self, catchup, becomes):
        found = decided(a_schedule(catchup=catchup), now=ms("13:01") + 1)
        assert lines(found)[0].startswith(becomes)

    def test_grace_counts_from_the_due_time_not_the_planned_time(self):
        schedule = a_schedule(jitter="50m", catchup="none")
        start = due_at(schedule, at("13:00"), NO_PAST)
        assert start > ms("13:01")
        assert lines(decided(schedule, now=start + MINUTE)) == ["launch 13:00"]
        assert lines(decided(schedule, now=start + MINUTE + 1)) == ["skip 13:00 missed"]

    def test_tick_waits_for_its_jittered_due_time(self):
        schedule = a_schedule(jitter="50m")
        start = due_at(schedule, at("13:00"), NO_PAST)
        assert decided(schedule, now=start - 1) == Plan((), Due(at("13:00"), start))
        assert lines(decided(schedule, now=start)) == ["launch 13:00"]

    def test_moved_tick_waits_for_the_opening_and_keeps_its_run_at(self):
        hours = {"hours": "15:00-17:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours)
        assert decided(schedule, now="14:59") == Plan((), Due(at("13:00"), ms("15:00")))
        (launch,) = decided(schedule, now="15:00").decisions
        assert launch == Launch(Tick(at("13:00"), ms("15:00")))

    def test_ticks_of_several_triggers_are_merged_and_equal_instants_are_one(self):
        schedule = a_schedule(any=[{"every": "20m"}, {"every": "30m"}], grace="2h", overlap="allow")
        assert lines(decided(schedule, now="14:00")) == [
            "launch 13:00", "launch 13:20", "launch 13:30", "launch 13:40", "launch 14:00",
        ]  # fmt: skip

    def test_only_ticks_between_start_and_end_are_decided(self):
        bounds = {"start_at": "2026-01-01T13:00:00Z", "end_at": "2026-01-01T15:00:00Z"}
        schedule = a_schedule(cron="0 * * * *", **bounds)
        first = next_due(schedule, 0, NO_PAST)
        found = plan(schedule, first.run_at, (), NO_PAST, now=ms("20:00"))
        assert lines(found) == ["catchup 13:00..15:00 (3)"]
        assert found.due is None

    def test_ticks_over_a_clock_change_follow_local_time(self):
        schedule = a_schedule(
            cron="30 1,2,3 * * *", timezone="Europe/Berlin", grace="24h", overlap="allow"
        )
        first = parse_instant("2026-03-28T23:00:00Z")
        due = next_due(schedule, first, NO_PAST)
        found = plan(schedule, due.run_at, (), NO_PAST, now=first * 1000 + 12 * HOUR)
        assert lines(found) == [  # 01:30, 02:30 which is not there and so 03:00, and 03:30
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
def test_shortcut_for_plain_triggers_gives_the_same_plan(when, monkeypatch):
    schedule = a_schedule(**when)
    trigger = schedule.trigger
    first, *_, last = trigger.upcoming(NOON, 3)
    nows = [t * 1000 + ms for t in (first, last) for ms in (-1, 0, 1, MINUTE, MINUTE + 1, HOUR)]
    ways = []
    for plain in (True, False):
        assert trigger.is_plain is plain
        ways.append([plan(schedule, first, [], NO_PAST, now=now) for now in nows])
        monkeypatch.setattr(type(trigger), "is_plain", False)
        monkeypatch.setattr(LocalPatternTrigger, "is_plain", False)
    assert ways[0] == ways[1]
    assert {type(d) for found in ways[0] for d in found.decisions} >= {Launch}


class TestDecisionLimit:
    def test_plan_decides_at_most_its_limit_and_leaves_the_rest_due(self):
        schedule = a_schedule(every="1s", grace="10m", overlap="allow")
        found = decided(schedule, now="13:05")
        assert len(found.decisions) == MOST_DECISIONS
        rest = at("13:00") + MOST_DECISIONS
        assert found.due == Due(rest, rest * 1000)

    def test_ticks_beyond_the_limit_are_decided_by_further_plans(self):
        schedule = a_schedule(every="1s", grace="10m", overlap="allow")
        row, ticks = at("13:00"), []
        while row * 1000 <= ms("13:05"):
            found = plan(schedule, row, (), NO_PAST, now=ms("13:05"))
            ticks += [decision.tick.run_at for decision in found.decisions]
            row = found.due.run_at
        assert ticks == list(range(at("13:00"), at("13:05") + 1))

    def test_range_of_missed_ticks_counts_as_one_decision(self):
        found = decided(a_schedule(every="1s", catchup="none", overlap="allow"), now="14:00")
        missed, *launched = lines(found)
        assert missed == "skip 13:00..13:58:59 (3540) missed"
        assert (launched[0], launched[-1], len(launched)) == (
            "launch 13:59", "launch 14:00", 61,
        )  # fmt: skip


class TestOverlap:
    def test_tick_is_skipped_while_a_run_is_in_flight(self):
        assert lines(decided(a_schedule(), a_run(), now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_waiting_run_blocks_the_next_tick(self):
        assert lines(decided(a_schedule(), waiting(), now="13:00")) == ["skip 13:00 overlap 12:00"]

    def test_tick_is_skipped_for_one_launched_in_the_same_plan(self):
        found = decided(a_schedule(every="20s"), now="13:00:40")
        assert lines(found) == [
            "launch 13:00", "skip 13:00:20 overlap 13:00", "skip 13:00:40 overlap 13:00",
        ]  # fmt: skip

    def test_skipped_tick_does_not_delay_the_due_row(self):
        assert clock(decided(a_schedule(), a_run(), now="13:00").due.run_at) == "14:00"

    def test_manual_run_blocks_no_tick(self):
        by_hand = a_run(request_id="by-hand")
        assert lines(decided(a_schedule(), by_hand, now="13:00")) == ["launch 13:00"]

    def test_run_due_later_blocks_no_tick(self):
        deferred = waiting(due_at=ms("13:30"))
        assert lines(decided(a_schedule(), deferred, now="13:00")) == ["launch 13:00"]
        assert lines(decided(a_schedule(), deferred, now="13:30"))[0].startswith("skip")

    def test_due_run_blocks_ticks_even_if_the_clock_moves_backward(self):
        early = waiting("13:30", created_at=ms("13:30"))
        assert lines(decided(a_schedule(), early, now="13:00")) == ["skip 13:00 overlap 13:30"]

    def test_overlap_allow_launches_every_tick(self):
        found = decided(a_schedule(overlap="allow", every="20s"), a_run(), now="13:00:40")
        assert lines(found) == ["launch 13:00", "launch 13:00:20", "launch 13:00:40"]

    def test_overlap_queue_queues_a_tick_behind_the_run_in_flight(self):
        found = decided(a_schedule(overlap="queue"), a_run(), now="13:00")
        assert found.decisions == (Queue(Tick(at("13:00"), ms("13:00")), at("12:00")),)

    def test_overlap_queue_launches_the_first_tick_and_queues_the_others(self):
        found = decided(a_schedule(overlap="queue", every="20s"), now="13:00:40")
        assert lines(found) == [
            "launch 13:00", "queue 13:00:20 behind 13:00", "queue 13:00:40 behind 13:00",
        ]  # fmt: skip

    def test_tick_is_queued_behind_the_run_in_flight_even_if_others_wait(self):
        found = decided(a_schedule(overlap="queue"), a_run("11:00"), queued("12:00"), now="13:00")
        assert lines(found) == ["queue 13:00 behind 11:00"]

    @pytest.mark.parametrize(("waiting_runs", "left"), [(QUEUE_LIMIT - 1, 1), (QUEUE_LIMIT, 0)])
    def test_tick_is_skipped_when_the_queue_is_full(self, waiting_runs, left):
        queue = [queued(at("12:00") + i) for i in range(1, waiting_runs + 1)]
        found = decided(a_schedule(overlap="queue", every="20s"), a_run(), *queue, now="13:00:20")
        full = ["skip 13:00 queue_full 12:00", "skip 13:00:20 queue_full 12:00"]
        room = ["queue 13:00 behind 12:00", "queue 13:00:20 behind 12:00"]
        assert lines(found) == room[:left] + full[left:]

    def test_queue_limit_is_a_hundred_by_default(self):
        assert QUEUE_LIMIT == 100


class TestSuperseding:
    def test_new_tick_supersedes_a_waiting_retry(self):
        found = decided(a_schedule(), retrying("12:00"), now="13:00")
        assert lines(found) == ["supersede 12:00", "launch 13:00"]

    def test_every_waiting_retry_is_superseded_once(self):
        found = decided(
            a_schedule(overlap="allow", every="20s"),
            retrying("11:00"),
            retrying("12:00"),
            now="13:00:20",
        )
        assert lines(found) == [
            "supersede 11:00", "supersede 12:00", "launch 13:00", "launch 13:00:20",
        ]  # fmt: skip

    def test_run_with_a_due_retry_is_superseded(self):
        found = decided(a_schedule(), retrying(due="12:30"), now="13:00")
        assert lines(found) == ["supersede 12:00", "launch 13:00"]

    def test_catch_up_supersedes_a_waiting_retry(self):
        found = decided(a_schedule(), retrying(), now="13:30")
        assert lines(found) == ["supersede 12:00", "catchup 13:00"]

    def test_missed_ticks_supersede_nothing(self):
        found = decided(a_schedule(catchup="none"), retrying(), now="13:30")
        assert lines(found) == ["skip 13:00 missed"]

    def test_new_tick_does_not_supersede_a_manual_retry(self):
        by_hand = retrying(request_id="by-hand")
        assert lines(decided(a_schedule(), by_hand, now="13:00")) == ["launch 13:00"]

    def test_plan_without_a_due_tick_supersedes_nothing(self):
        assert lines(decided(a_schedule(), retrying(), now="12:59")) == []

    def test_superseding_a_retry_releases_the_queue_behind_it(self):
        # a second attempt was handed back after a tick had queued behind it
        found = decided(
            a_schedule(overlap="queue"),
            retrying("11:00", due="11:30"),
            queued("12:00"),
            now="13:00",
        )
        assert lines(found) == ["supersede 11:00", "release 12:00", "queue 13:00 behind 12:00"]

    def test_queued_retry_is_superseded(self):
        # several ran side by side until an edit made them a queue
        queue, last = a_schedule(overlap="queue"), queued("11:00", attempt=1)
        found = decided(queue, a_run("12:00"), last, queued("12:30"), now="13:00")
        assert lines(found) == ["supersede 11:00", "queue 13:00 behind 12:00"]
        found = decided(queue, retrying("10:00"), last, now="13:00")
        assert lines(found) == ["supersede 10:00", "supersede 11:00", "launch 13:00"]


class TestMaxRuns:
    def test_schedule_ends_with_its_last_start(self):
        found = decided(a_schedule(max_runs=3), now="13:00", past=Past(runs_used=2))
        assert lines(found) == ["launch 13:00"]
        assert found.due is None

    def test_max_runs_counts_starts_of_the_same_plan(self):
        found = decided(a_schedule(every="20s", overlap="allow", max_runs=2), now="13:01")
        assert lines(found) == ["launch 13:00", "launch 13:00:20"]
        assert found.due is None

    def test_queued_tick_counts_for_max_runs(self):
        found = decided(a_schedule(every="20s", overlap="queue", max_runs=2), a_run(), now="13:01")
        assert lines(found) == ["queue 13:00 behind 12:00", "queue 13:00:20 behind 12:00"]
        assert found.due is None

    def test_skipped_tick_does_not_count_for_max_runs(self):
        found = decided(a_schedule(max_runs=1), a_run(), now="13:00")
        assert lines(found) == ["skip 13:00 overlap 12:00"]
        assert clock(found.due.run_at) == "14:00"

    def test_missed_tick_does_not_count_for_max_runs(self):
        found = decided(a_schedule(max_runs=1, catchup="none"), now="17:30")
        assert clock(found.due.run_at) == "18:00"

    def test_catch_up_of_several_ticks_counts_as_one_start(self):
        found = decided(a_schedule(max_runs=2), now="17:30")
        assert lines(found) == ["catchup 13:00..17:00 (5)"]
        assert clock(found.due.run_at) == "18:00"

    def test_starts_are_launches_and_queued_runs(self):
        tick = Tick(NOON, NOON * 1000)
        decisions = [Supersede(a_run()), Launch(tick), Queue(tick, 0), Skip(tick, "missed")]
        assert count_starts(decisions) == 2

    def test_max_runs_of_a_part_limits_its_ticks(self):
        schedule = a_schedule(
            any=[{"every": "20s", "max_runs": 2}, {"daily": "03:00"}], overlap="allow"
        )
        assert lines(decided(schedule, now="13:01")) == ["launch 13:00", "launch 13:00:20"]


class TestSettingAside:
    def test_no_tick_is_set_aside_before_the_first(self):
        now = ms("13:00") - 1
        assert set_aside(a_schedule(), at("13:00"), NO_PAST, now=now, reason="paused") is None

    def test_set_aside_ticks_become_one_range(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("15:59"), reason="gate_off")
        assert aside == Skip(Tick(at("15:00"), ms("15:00"), at("13:00"), 3), "gate_off")

    def test_single_tick_is_not_a_range(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("13:00"), reason="canceled")
        assert aside == Skip(Tick(at("13:00"), ms("13:00")), "canceled")

    def test_set_aside_ticks_are_selected_by_planned_time_not_due_time(self):
        schedule = a_schedule(jitter="50m")
        aside = set_aside(schedule, at("13:00"), NO_PAST, now=ms("14:00"), reason="paused")
        assert words(aside) == "skip 13:00..14:00 (2) paused"
        assert aside.tick.due_at == due_at(schedule, at("14:00"), NO_PAST) > ms("14:00")

    def test_only_real_ticks_are_set_aside_after_an_exhausted_search(self):
        schedule = a_schedule(all=[{"every": "20m"}, {"every": "30m"}])
        aside = set_aside(schedule, at("13:10"), NO_PAST, now=ms("15:30"), reason="paused")
        assert words(aside) == "skip 14:00..15:00 (2) paused"
        assert set_aside(schedule, at("13:10"), NO_PAST, now=ms("13:50"), reason="paused") is None

    def test_resume_with_catchup_launches_the_range_as_one_run(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("15:59"), reason="paused")
        found = catch_up(a_schedule(), aside, [], NO_PAST, now=ms("15:59"))
        assert found == (Launch(aside.tick, "catchup", ReasonDetail(rule="resumed")),)

    @pytest.mark.parametrize(
        ("overlap", "becomes"),
        [
            ("skip", "skip 13:00..15:00 (3) overlap 12:00"),
            ("queue", "queue 13:00..15:00 (3) behind 12:00"),
            ("allow", "catchup 13:00..15:00 (3)"),
        ],
    )
    def test_resume_with_catchup_follows_the_overlap_policy(self, overlap, becomes):
        schedule = a_schedule(overlap=overlap)
        aside = set_aside(schedule, at("13:00"), NO_PAST, now=ms("15:59"), reason="paused")
        found = catch_up(schedule, aside, [a_run()], NO_PAST, now=ms("15:59"))
        assert lines(found) == [becomes]

    def test_resume_with_catchup_supersedes_a_waiting_retry(self):
        aside = set_aside(a_schedule(), at("13:00"), NO_PAST, now=ms("13:00"), reason="paused")
        found = catch_up(a_schedule(), aside, [retrying()], NO_PAST, now=ms("13:00"))
        assert lines(found) == ["supersede 12:00", "catchup 13:00"]


class TestDecidingBeforeAnEdit:
    def all_of(self, schedule, *unfinished, now, first="13:00", past=NO_PAST):
        return lines(decide_edit(schedule, at(first), unfinished, past, now=ms(now)))

    def test_edit_before_the_next_tick_decides_nothing(self):
        assert self.all_of(a_schedule(), now="12:59") == []

    def test_edit_decides_a_tick_within_its_grace_as_usual(self):
        assert self.all_of(a_schedule(), now="13:00") == ["launch 13:00"]
        assert self.all_of(a_schedule(), now="13:01") == ["launch 13:00"]
        assert self.all_of(a_schedule(), a_run(), now="13:00") == ["skip 13:00 overlap 12:00"]

    @pytest.mark.parametrize("catchup", ["once", "none", "all", "spread"])
    def test_edit_skips_ticks_beyond_their_grace_as_one_range(self, catchup):
        found = self.all_of(a_schedule(catchup=catchup), now="17:30")
        assert found == ["skip 13:00..17:00 (5) edited"]
        assert self.all_of(a_schedule(catchup=catchup), now="13:01:01") == ["skip 13:00 edited"]

    def test_edit_launches_a_tick_within_its_grace_after_the_skipped_range(self):
        assert self.all_of(a_schedule(), now="17:00:59") == [
            "skip 13:00..16:00 (4) edited", "launch 17:00",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("off", "reason"),
        [({"enabled": False}, "disabled"),
         ({"run": {"command": ["true"], "enabled": False}}, "disabled_target")],
    )  # fmt: skip
    def test_edit_skips_ticks_of_a_disabled_schedule_or_target_with_that_reason(self, off, reason):
        assert self.all_of(a_schedule(**off), now="17:30") == [f"skip 13:00..17:00 (5) {reason}"]

    def test_edit_skips_the_earliest_of_too_many_ticks_on_time(self):
        found = self.all_of(a_schedule(every="1s", grace="1h", overlap="allow"), now="13:20")
        assert len(found) == 1 + MOST_ON_TIME
        assert found[:2] == ["skip 13:00..13:03:20 (201) edited", "launch 13:03:21"]
        assert found[-1] == "launch 13:20"

    def test_edit_enqueues_a_tick_for_its_later_due_time(self):
        schedule = a_schedule(jitter="50m")
        start = due_at(schedule, at("13:00"), NO_PAST)
        found = decide_edit(schedule, at("13:00"), [], NO_PAST, now=ms("13:00"))
        assert found == (Launch(Tick(at("13:00"), start)),)

    def test_edit_may_launch_due_ticks_and_enqueue_a_later_one(self):
        schedule = a_schedule(jitter="50m", grace="6h", overlap="allow")
        found = decide_edit(schedule, at("13:00"), [], NO_PAST, now=ms("15:00"))
        assert lines(found) == ["launch 13:00", "launch 14:00", "launch 15:00"]
        assert found[-1].tick.due_at > ms("15:00")

    def test_edit_enqueues_a_moved_tick_for_the_opening(self):
        hours = {"hours": "15:00-17:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours)
        found = decide_edit(schedule, at("13:00"), [], NO_PAST, now=ms("14:00"))
        assert found == (Launch(Tick(at("13:00"), ms("15:00"))),)

    def test_edit_never_exceeds_max_runs(self):
        schedule = a_schedule(every="1s", overlap="allow", max_runs=2, jitter="1s")
        assert len(self.all_of(schedule, now="13:00:30")) == 2


class TestJitter:
    def test_tick_has_no_jitter_by_default(self):
        assert due_at(a_schedule(), at("13:00"), NO_PAST) == ms("13:00")

    def test_jitter_only_delays_and_is_below_its_limit(self):
        schedule = a_schedule(jitter="10m")
        delays = [due_at(schedule, t, NO_PAST) - t * 1000 for t in range(NOON, NOON + 10**6, 3600)]
        assert 0 <= min(delays) < MINUTE
        assert 9 * MINUTE < max(delays) < 10 * MINUTE

    def test_jitter_is_spread_evenly_over_its_length(self):
        schedule = a_schedule(jitter="10m")
        hours = range(NOON, NOON + 1000 * 3600, 3600)
        minutes = [(due_at(schedule, t, NO_PAST) - t * 1000) // MINUTE for t in hours]
        assert all(60 < minutes.count(minute) < 140 for minute in range(10))

    def test_jitter_is_shorter_than_the_gap_to_the_next_tick(self):
        schedule = a_schedule(every="10s", jitter="1h")
        starts_at = [due_at(schedule, t, NO_PAST) for t in range(NOON, NOON + 3600, 10)]
        assert all(t * 1000 <= start < (t + 10) * 1000
                   for t, start in zip(range(NOON, NOON + 3600, 10), starts_at, strict=True))  # fmt: skip

    def test_jitter_of_a_moved_tick_counts_from_the_opening(self):
        hours = {"hours": "15:00-17:00", "outside": "move"}
        schedule = a_schedule(daily="13:00", within=hours, jitter="10m")
        assert ms("15:00") < due_at(schedule, at("13:00"), NO_PAST) < ms("15:10")

    def test_jitter_is_stable_across_versions(self):
        schedule = a_schedule("report", jitter="1h")
        assert due_at(schedule, NOON, NO_PAST) - NOON * 1000 == 2_821_348

    def test_jitter_differs_by_schedule_and_by_tick(self):
        names = [a_schedule(f"report-{i}", jitter="1h") for i in range(20)]
        assert len({due_at(schedule, NOON, NO_PAST) for schedule in names}) == 20
        ticks = range(NOON, NOON + 20 * 3600, 3600)
        assert len({due_at(names[0], tick, NO_PAST) - tick * 1000 for tick in ticks}) == 20

    def test_jitter_of_the_last_tick_uses_the_full_length(self):
        schedule = a_schedule(at="2026-01-01T13:00:00Z", jitter="24h")
        assert ms("13:00") < due_at(schedule, at("13:00"), NO_PAST) < ms("13:00") + DAY


class TestNextDue:
    def test_next_due_is_the_first_later_tick(self):
        schedule = a_schedule()
        assert next_due(schedule, at("13:00"), NO_PAST) == Due(at("14:00"), ms("14:00"))
        assert next_due(schedule, at("13:00") - 1, NO_PAST) == Due(at("13:00"), ms("13:00"))

    def test_next_due_has_the_jittered_due_time(self):
        schedule = a_schedule(jitter="50m")
        assert next_due(schedule, NOON, NO_PAST) == Due(
            at("13:00"), due_at(schedule, at("13:00"), NO_PAST)
        )

    def test_next_due_is_none_after_the_last_tick(self):
        assert next_due(a_schedule(at="2026-01-01T13:00:00Z"), at("13:00"), NO_PAST) is None

    def test_no_due_row_once_max_runs_is_used_up(self):
        schedule = a_schedule(max_runs=3)
        assert next_due(schedule, NOON, Past(runs_used=2)) is not None
        assert next_due(schedule, NOON, Past(runs_used=3)) is None

    def test_delay_postpones_the_first_tick(self):
        schedule = a_schedule(delay="90m")
        assert clock(next_due(schedule, NOON, Past(created_at=NOON)).run_at) == "14:00"


def test_a_tick_is_skipped_under_the_default_policy():
    assert Policy().overlap == "skip"
    assert lines(decided(a_schedule(), a_run(), now="13:00")) == ["skip 13:00 overlap 12:00"]
