"""Ticks that follow events: events before such a tick is decided share it."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from onbeat import after, startup
from onbeat.core.decide import follow
from onbeat.core.decide.follow import (
    ENDINGS,
    count_events,
    decode_happened,
    encode_happened,
    find_cycle,
)
from onbeat.core.decide.plan import decide_edit, due_at, next_due, plan
from onbeat.core.runs.decisions import Due, Launch, Tick
from onbeat.core.runs.phase import Status
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.past import NO_PAST, Past, TriggerCause
from onbeat.testing import a_schedule
from tests.core.plans import NOON, a_run, at, lines, ms
from tests.profiles import examples

EARLIER = at("11:00")  # up to where everything is decided when tests begin


def ended(trigger, past=NO_PAST, schedule="", status=Status.SUCCESS, *, now="12:00", until=EARLIER):
    """Return the past in which a run has ended as well."""
    now = ms(now) if isinstance(now, str) else now
    happened = follow.causes_after_end(trigger, past, schedule, status, now=now, until=until)
    return replace(past, happened=happened)


def started(trigger, past=NO_PAST, *, now="12:00", until=EARLIER):
    """Return the past in which the scheduler has started as well."""
    happened = follow.causes_after_start(trigger, past, now=ms(now), until=until)
    return replace(past, happened=happened)


class TestEvents:
    HALF = after("success", "30m")

    def test_first_event_is_stored_with_its_second(self):
        past = ended(self.HALF, now=ms("12:00") + 999)
        assert past.happened == {":success:1800": TriggerCause(at("12:00"))}

    def test_tick_follows_its_event_by_the_delay(self):
        assert self.HALF.next_after(EARLIER, ended(self.HALF)) == at("12:30")

    def test_schedule_that_follows_events_has_no_tick_before_the_first(self):
        assert self.HALF.next_after(EARLIER, NO_PAST) is None

    def test_event_before_the_tick_is_decided_joins_it(self):
        past = ended(self.HALF, ended(self.HALF), now="12:10")
        assert past.happened == {":success:1800": TriggerCause(at("12:00"), 2)}

    def test_event_joins_a_due_tick_that_is_undecided(self):
        past = ended(self.HALF, ended(self.HALF), now="12:45")
        assert past.happened == {":success:1800": TriggerCause(at("12:00"), 2)}

    def test_event_after_a_decided_tick_causes_another_tick(self):
        past = ended(self.HALF, ended(self.HALF), now="12:40", until=at("12:30"))
        assert past.happened == {":success:1800": TriggerCause(at("12:40"))}

    def test_event_in_a_decided_second_causes_a_tick_a_second_later(self):
        at_once = after("success", "0s")
        past = ended(at_once, ended(at_once), now=ms("12:00") + 500, until=at("12:00"))
        assert past.happened == {":success:0": TriggerCause(at("12:00") + 1)}

    def test_tick_of_an_event_is_later_than_decided_ticks_if_the_clock_moved_backward(self):
        past = ended(self.HALF, now="12:00", until=at("14:00"))
        assert self.HALF.next_after(at("14:00"), past) == at("14:00") + 1

    @pytest.mark.parametrize(
        ("outcome", "follows"),
        [
            ("success", [Status.SUCCESS]),
            ("failure", [Status.FAILED]),
            ("completion", [Status.SUCCESS, Status.FAILED]),
        ],
    )
    def test_each_outcome_has_its_events(self, outcome, follows):
        trigger = after(outcome, "5m")
        heard = [status for status in ENDINGS if ended(trigger, status=status).happened]
        assert heard == follows

    def test_canceled_and_skipped_runs_cause_no_tick(self):
        assert ENDINGS.keys() == {Status.SUCCESS, Status.FAILED}

    def test_event_of_another_schedule_is_ignored(self):
        assert ended(self.HALF, schedule="backup").happened == {}
        other = after("success", "30m", schedule="backup")
        assert ended(other).happened == {}
        assert ended(other, schedule="backup").happened == {
            "backup:success:1800": TriggerCause(NOON)
        }

    def test_event_of_a_schedule_with_a_longer_name_is_ignored(self):
        other = after("success", schedule="backup-of-all")
        assert ended(other, schedule="backup").happened == {}

    def test_starts_and_ends_are_separate_causes(self):
        soon = startup("30s")
        assert started(soon).happened == {"@startup:30": TriggerCause(NOON)}
        assert ended(soon).happened == started(self.HALF).happened == {}

    def test_two_delays_on_the_same_event_are_independent(self):
        both = after("success", "10m") | after("success", "30m")
        past = ended(both)
        assert both.upcoming(EARLIER, 9, past) == [at("12:10"), at("12:30")]
        past = ended(both, past, now="12:15", until=at("12:10"))
        assert past.happened == {
            ":success:600": TriggerCause(at("12:15")),
            ":success:1800": TriggerCause(at("12:00"), 2),
        }

    def test_events_no_longer_followed_are_dropped(self):
        past = ended(after("failure", "1m"), status=Status.FAILED)
        assert ended(self.HALF, past).happened.keys() == {":success:1800"}

    def test_earlier_events_are_kept(self):
        both = self.HALF | after("failure", "1m")
        past = ended(both, ended(both, status=Status.FAILED), now="12:10")
        assert past.happened.keys() == {":failure:60", ":success:1800"}

    @given(
        st.dictionaries(
            st.text(), st.builds(TriggerCause, st.integers(), st.integers()), max_size=3
        )
    )
    def test_stored_events_survive_a_round_trip(self, happened):
        assert decode_happened(encode_happened(happened)) == happened


class TestCounting:
    def test_clock_tick_counts_as_one_event(self):
        trigger = a_schedule(any=[{"after": {"success": "30m"}}, {"daily": "13:00"}]).trigger
        assert count_events(trigger, at("13:00"), ended(trigger)) == 1

    def test_tick_counts_the_events_that_joined_it(self):
        trigger = after("success", "30m")
        past = ended(trigger, ended(trigger, ended(trigger), now="12:01"), now="12:02")
        assert count_events(trigger, at("12:30"), past) == 3

    def test_events_of_several_causes_are_counted_together_for_one_tick(self):
        trigger = after("success", "10m") | startup("20m")
        past = started(trigger, ended(trigger, now="12:10"), now="12:00")
        assert count_events(trigger, at("12:20"), past) == 2

    def test_events_of_different_ticks_are_counted_separately(self):
        trigger = after("success", "10m") | startup("30m")
        past = started(trigger, ended(trigger, now="12:10"), now="12:00")
        assert [count_events(trigger, at(t), past) for t in ("12:20", "12:30")] == [1, 1]


class TestPlanning:
    def planned(self, schedule, past, *unfinished, now, **asked):
        row = next_due(schedule, EARLIER, past)
        return plan(schedule, row.run_at, unfinished, past, now=ms(now), **asked)

    def test_no_due_row_without_an_event(self):
        for when in ({"after": {"success": "30m"}}, {"startup": "30s"}):
            assert next_due(a_schedule(**when), EARLIER, NO_PAST) is None

    def test_success_causes_a_due_row(self):
        schedule = a_schedule(after={"success": "30m"})
        past = ended(schedule.trigger)
        assert next_due(schedule, EARLIER, past) == Due(at("12:30"), ms("12:30"))
        assert lines(self.planned(schedule, past, now="12:29")) == []
        found = self.planned(schedule, past, now="12:30")
        assert found.decisions == (Launch(Tick(at("12:30"), ms("12:30"))),)

    def test_due_row_of_a_follower_is_empty_until_the_next_event(self):
        schedule = a_schedule(after={"success": "30m"})
        assert self.planned(schedule, ended(schedule.trigger), now="12:30").due is None

    def test_launch_counts_the_events_that_it_follows(self):
        schedule = a_schedule(after={"success": "30m"})
        past = ended(schedule.trigger, ended(schedule.trigger), now="12:10")
        (launch,) = self.planned(schedule, past, now="12:30").decisions
        assert launch == Launch(Tick(at("12:30"), ms("12:30"), None, 2))

    @pytest.mark.parametrize(("overlap", "reason"), [("skip", "overlap"), ("allow", "rate")])
    def test_skip_counts_its_events_and_consumes_them(self, overlap, reason):
        schedule = a_schedule(after={"success": "30m"}, overlap=overlap, rate="1/hour")
        past = ended(schedule.trigger, ended(schedule.trigger), now="12:10")
        past = replace(past, rated=(ms("12:00"),) * (reason == "rate"))
        found = self.planned(schedule, past, a_run(), now="12:30")
        assert [(skip.reason, skip.tick.count) for skip in found.decisions] == [(reason, 2)]
        assert found.due is None

    @pytest.mark.parametrize("status", [Status.SUCCESS, Status.FAILED])
    def test_completion_follows_any_outcome_of_another_schedule(self, status):
        schedule = a_schedule(after={"schedule": "backup", "outcome": "completion"})
        past = ended(schedule.trigger, schedule="backup", status=status)
        (launch,) = self.planned(schedule, past, now="12:00").decisions
        assert launch == Launch(Tick(at("12:00"), ms("12:00")))

    def test_startup_tick_follows_each_start_once(self):
        schedule = a_schedule(startup="30s")
        past = started(schedule.trigger)
        found = self.planned(schedule, past, now="12:00:30")
        assert (lines(found), found.due) == (["launch 12:00:30"], None)
        again = started(schedule.trigger, past, now="12:20", until=at("12:00:30"))
        assert next_due(schedule, at("12:00:30"), again).run_at == at("12:20:30")

    def test_starts_before_the_startup_tick_share_it(self):
        schedule = a_schedule(startup="30s")
        past = started(schedule.trigger, started(schedule.trigger), now="12:00:20")
        (launch,) = self.planned(schedule, past, now="12:00:30").decisions
        assert launch.tick == Tick(at("12:00:30"), ms("12:00:30"), None, 2)

    def test_missed_event_tick_is_caught_up(self):
        schedule = a_schedule(after={"success": "30m"})
        found = self.planned(schedule, ended(schedule.trigger), now="15:00")
        assert lines(found) == ["catchup 12:30"]

    def test_due_row_is_the_earlier_of_event_and_clock(self):
        schedule = a_schedule(any=[{"after": {"success": "30m"}}, {"daily": "13:00"}], grace="2h", overlap="allow")  # fmt: skip
        past = ended(schedule.trigger, ended(schedule.trigger), now="12:05")
        found = self.planned(schedule, past, now="13:00")
        assert lines(found) == ["launch 12:30", "launch 13:00"]
        assert [launch.tick.count for launch in found.decisions] == [2, 1]

    def test_event_and_clock_ticks_at_one_instant_are_one_tick(self):
        schedule = a_schedule(any=[{"after": {"success": "30m"}}, {"daily": "13:00"}])
        past = ended(schedule.trigger, ended(schedule.trigger, now="12:30"), now="12:40")
        found = self.planned(schedule, past, now="13:00")
        assert found.decisions == (Launch(Tick(at("13:00"), ms("13:00"), None, 2)),)

    def test_disabled_schedule_skips_and_consumes_an_event(self):
        schedule = a_schedule(after={"success": "30m"}, enabled=False)
        found = self.planned(schedule, ended(schedule.trigger), now="12:30")
        assert (lines(found), found.due) == (["skip 12:30 disabled"], None)

    def test_edit_counts_the_events_of_a_tick_due_later(self):
        schedule = a_schedule(after={"success": "30m"}, jitter="50m")
        past = ended(schedule.trigger, ended(schedule.trigger), now="12:10")
        start = due_at(schedule, at("12:30"), past)
        found = decide_edit(schedule, at("12:30"), [], past, now=ms("12:30"))
        assert found == (Launch(Tick(at("12:30"), start, None, 2)),)

    def test_max_runs_ends_a_schedule_that_follows_events(self):
        schedule = a_schedule(after={"success": "30m"}, max_runs=1)
        past = replace(ended(schedule.trigger), runs_used=1)
        assert next_due(schedule, EARLIER, past) is None

    @pytest.mark.parametrize(
        "limit",
        [{"within": "09:00-12:15"}, {"exclude": ["2026-01-01"]}, {"start_at": "2026-01-02T00:00Z"}],
    )
    def test_event_with_an_excluded_tick_blocks_no_other(self, limit):
        schedule = a_schedule(after={"success": "30m"}, **limit)
        tomorrow = ms("11:00") + 86_400_000
        past = ended(schedule.trigger, ended(schedule.trigger, now="12:00"), now=tomorrow)
        due = next_due(schedule, EARLIER, past)
        assert due is not None
        assert rfc3339(due.run_at) == "2026-01-02T11:30:00Z"

    def test_missed_tick_counts_its_events(self):
        schedule = a_schedule(after={"success": "30m"}, catchup="none")
        past = ended(schedule.trigger, ended(schedule.trigger), now="12:10")
        (skip,) = self.planned(schedule, past, now="15:00").decisions
        assert (skip.tick, skip.reason) == (Tick(at("12:30"), ms("12:30"), None, 2), "missed")


# -- the law: each event is followed


PARTS = st.lists(
    st.sampled_from(
        [
            {"after": {"success": "0s"}}, {"after": {"success": "10s"}}, {"after": {"failure": "3s"}},
            {"after": {"completion": "10s"}}, {"startup": "0s"}, {"startup": "7s"},
            {"after": {"schedule": "other", "outcome": "completion", "delay": "4s"}},
        ]
    ),
    min_size=2, max_size=5, unique_by=str,
)  # fmt: skip
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["success", "failure", "other", "start", "plan", "plan"]),
        st.sampled_from([0, 1, 400, 999, 1000, 2500, 9000, 20_000, -3000]),  # ms after the last
    ),
    max_size=25,
)


class Follower:
    """Keeps a schedule as a store does: what has happened, up to where it is decided, its due row."""

    def __init__(self, schedule):
        self.schedule, self.past, self.until, self.decided = schedule, NO_PAST, EARLIER, Counter()

    def hear(self, kind, now):
        """Take note of an event."""
        trigger = self.schedule.trigger
        if kind == "start":
            happened = follow.causes_after_start(trigger, self.past, now=now, until=self.until)
        else:
            status = Status.FAILED if kind == "failure" else Status.SUCCESS
            name = "other" if kind == "other" else ""
            happened = follow.causes_after_end(
                trigger, self.past, name, status, now=now, until=self.until
            )
        self.past = Past(happened=decode_happened(encode_happened(happened)))

    def plan(self, now):
        """Decide what is due."""
        row = next_due(self.schedule, self.until, self.past)
        while row is not None and row.due_at <= now:
            found = plan(self.schedule, row.run_at, [], self.past, now=now)
            for decision in found.decisions:
                assert isinstance(decision, Launch)
                assert decision.tick.run_at > self.until
                self.until = decision.tick.run_at
                self.decided[self.until] += decision.tick.count
            row = found.due

    def ticks(self):
        """Return the tick of each cause, by what has happened."""
        happened = self.past.happened.items()
        return {cause: event.at + int(cause.rpartition(":")[2]) for cause, event in happened}


def heard_by(trigger, kind):
    """Return the causes that an event of this kind is."""
    names = {
        "success": (":success:", ":completion:"),
        "failure": (":failure:", ":completion:"),
        "other": ("other:completion:",),
        "start": ("@startup:",),
    }
    return [cause for cause in trigger.causes() if cause.startswith(names[kind])]


@given(PARTS, EVENTS)
@example([{"startup": "0s"}, {"startup": "7s"}], [("start", 0), ("plan", 0), ("start", 0)])
@examples(300)
def test_each_event_causes_a_tick_or_joins_an_undecided_one(parts, events):
    schedule = a_schedule(any=parts, overlap="allow", grace="24h")
    follower, now, heard = Follower(schedule), ms("12:00"), 0
    for kind, later in events:
        now += later
        if kind == "plan":
            follower.plan(now)
            continue
        before = follower.ticks()
        follower.hear(kind, now)
        for cause in heard_by(schedule.trigger, kind):
            tick, delay = follower.ticks()[cause], int(cause.rpartition(":")[2])
            is_joined = before.get(cause, 0) > follower.until
            assert tick == before[cause] if is_joined else tick >= now // 1000 + delay
            assert tick > follower.until
            heard += 1
        unheard = before.keys() - set(heard_by(schedule.trigger, kind))
        assert all(follower.ticks()[cause] == before[cause] for cause in unheard)
    follower.plan(now + 3_600_000)
    assert next_due(schedule, follower.until, follower.past) is None
    assert follower.decided.total() == heard


@given(EVENTS)
def test_no_tick_is_undone_or_moved_by_a_later_event(events):
    schedule = a_schedule(after={"completion": "10s"}, overlap="allow", grace="24h")
    follower, now, row = Follower(schedule), ms("12:00"), None
    for kind, later in events:
        now += later
        if kind == "plan":
            follower.plan(now)
            row = None
        else:
            follower.hear(kind, now)
        found = next_due(schedule, follower.until, follower.past)
        assert row is None or found == row
        row = found


class Counting(dict):
    """What schedules follow, and how often that was asked for."""

    asked = 0

    def get(self, name, default=None):
        self.asked += 1
        return super().get(name, default)


class TestCycles:
    def test_every_schedule_of_a_chain_is_visited_once(self):
        followed = Counting({f"s{n:05}": {f"s{n - 1:05}"} for n in range(1, 5000)})
        assert find_cycle(followed, sorted(followed)) == []
        assert followed.asked == 5000

    def test_every_schedule_of_many_paths_is_visited_once(self):
        """Each of a hundred layers of ten follows all ten of the next."""
        followed = Counting({(n, m): {(n + 1, k) for k in range(10)} for n in range(100) for m in range(10)})  # fmt: skip
        assert find_cycle(followed, followed) == []
        assert followed.asked == 1010

    def test_cycle_begins_and_ends_with_the_same_schedule(self):
        followed = {"a": {"b"}, "b": {"c", "x"}, "c": {"d"}, "d": {"b"}}
        assert find_cycle(followed, ["a"]) == ["b", "c", "d", "b"]

    def test_schedule_that_follows_itself_directly_is_not_a_cycle(self):
        assert find_cycle({"a": {"a", "b"}, "b": {"b"}}, ["a", "b"]) == []
