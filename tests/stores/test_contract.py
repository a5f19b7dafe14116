"""The contract of every store, in the order of a schedule's life.

It is noon on New Year's Day; schedules are hourly and called `report` by default.
"""

import asyncio
import random
import time
from collections import Counter
from functools import partial
from hashlib import sha256
from itertools import pairwise

import pytest

from onbeat.core.decide.plan import MOST_ON_TIME, due_at
from onbeat.core.policy import Policy
from onbeat.core.runs.run import Accepted, Canceled, Failed, Succeeded, run_key
from onbeat.core.schedule import Schedule, from_definition
from onbeat.core.target import Target
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.past import NO_PAST
from onbeat.errors import NoSuchSchedule, StoreHeld, StoreUnusable
from onbeat.events import (
    NodeLost,
    NodeStarted,
    RunEnqueued,
    RunFailed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    ScheduleChanged,
    ScheduleCreated,
    ScheduleParked,
)
from onbeat.ports.rows import RunFilter, ScheduleFilter
from onbeat.ports.store import Finished, HeartbeatResult
from onbeat.testing import a_schedule
from tests.stores.conftest import Sqlite, a_node, planned

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
BROKEN = Failed("it broke")
QUEUE_LIMIT = Policy().queue_limit


def at(text):
    """Return an instant of the day, in the seconds of a `run_at`."""
    return parse_instant(f"2026-01-01T{text}:00Z")


class Crash(BaseException):
    """The process dies here."""


def failing_at(schedule_id, error):
    """Return a plan function that raises `error` when it comes to one schedule."""

    def decide(schedule, *given):
        if schedule.schedule_id == schedule_id:
            raise error
        return planned(schedule, *given)

    return decide


async def pause(store):
    return await store.pause("report")


async def resume(store):
    return await store.resume("report")


async def delete(store):
    return await store.delete("report")


async def close_the_gate(store):
    return await store.set_gate(is_open=False)


async def start_by_hand(store):
    return await store.enqueue("report", request_id="by-hand")


STOPS = [pause, close_the_gate, delete]


class TestDefining:
    async def test_new_schedule_waits_for_its_next_tick(self, world):
        upserted = await world.define()
        row = await world.schedule()
        assert (upserted.change, upserted.revision) == ("created", 1)
        assert (row.next_run_at, row.next_due_at) == (at("13:00"), at("13:00") * 1000)
        assert not row.paused
        assert from_definition("report", row.definition).policy == Policy()

    async def test_schedules_are_filtered_by_source(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b")], source="one.yaml")
        await world.store.upsert([a_schedule("c")], source="other.yaml")
        await world.store.delete("b")
        assert [
            row.schedule_id
            for row in await world.store.schedules(ScheduleFilter(source="one.yaml"))
        ] == ["a"]
        assert [row.schedule_id for row in await world.store.schedules()] == ["a", "c"]

    async def test_definition_is_stored_with_source_user_and_time(self, world):
        await world.store.upsert([a_schedule("report")], source="onbeat.yaml", user_id="ada")
        row = await world.schedule()
        assert from_definition("report", row.definition) == a_schedule("report")
        assert (row.source, row.user_id) == ("onbeat.yaml", "ada")
        assert row.created_at == row.updated_at == world.clock.now()

    async def test_defining_a_schedule_emits_an_event(self, world):
        await world.define()
        await world.define(every="2h")
        created, changed = await world.new_events()
        assert isinstance(created, ScheduleCreated)
        assert isinstance(changed, ScheduleChanged)
        assert (created.run_at, changed.run_at) == (at("13:00"), at("14:00"))
        assert changed.definition == (await world.schedule()).definition

    @pytest.mark.parametrize(
        ("start", "first"), [("2026-01-01T15:30:00Z", "16:00"), ("2025-01-01T00:00:00Z", "13:00")]
    )
    async def test_first_tick_is_later_than_now_and_not_before_start_at(self, world, start, first):
        await world.define(cron="0 * * * *", start_at=start)
        assert (await world.schedule()).next_run_at == at(first)

    async def test_delay_counts_from_the_first_definition(self, world):
        await world.define(every="1m", delay="10m")
        assert (await world.schedule()).next_run_at == at("12:10")
        world.clock.advance("5m")
        await world.define(every="2m", delay="10m")
        assert (await world.schedule()).next_run_at == at("12:10")

    async def test_last_tick_is_at_end_at(self, world):
        await world.define(cron="0 * * * *", end_at="2026-01-01T14:00:00Z", overlap="allow")
        for _ in range(4):
            await world.tick("1h")
        assert await world.runs("run_at") == [at("13:00"), at("14:00")]
        assert (await world.schedule()).next_run_at is None
        assert (await world.store.overview()).due == 0

    async def test_single_time_just_past_still_runs_once(self, world):
        await world.define(at="2026-01-01T11:59:30Z")
        await world.plan()
        await world.tick("1h")
        assert await world.runs("run_at status") == [(at("11:59") + 30, "ENQUEUED")]

    @pytest.mark.parametrize(
        ("hours", "upcoming"), [(["09", "10"], None), (["09", "10", "13"], at("13:00"))]
    )
    async def test_single_times_long_past_are_recorded_as_missed(self, world, hours, upcoming):
        await world.define(at=[f"2026-01-01T{hour}:00:00Z" for hour in hours])
        await world.plan()
        rows = await world.rows()
        assert {(row.status, row.reason) for row in rows} == {("SKIPPED", "missed")}
        assert sum(row.tick_count for row in rows) == 2
        assert (await world.schedule()).next_run_at == upcoming

    async def test_single_time_with_a_later_start_is_not_missed(self, world):
        """By its jitter it starts later, though it was planned for a time long past."""
        await world.define(at="2026-01-01T11:58:00Z", jitter="1h")
        assert (await world.schedule()).next_run_at == at("11:58")
        await world.tick("1h")
        assert await world.runs("run_at status") == [(at("11:58"), "ENQUEUED")]

    async def test_unchanged_definition_writes_nothing(self, world):
        await world.define()
        before, _ = await world.schedule(), await world.new_events()
        world.clock.advance("10m")
        upserted = await world.define()
        assert (upserted.change, upserted.revision) == ("unchanged", 1)
        assert await world.schedule() == before
        assert await world.new_events() == []

    async def test_edit_increments_the_revision_and_has_its_time(self, world):
        await world.define()
        world.clock.advance("10m")
        upserted = await world.define(description="monthly figures")
        row = await world.schedule()
        assert (upserted.change, upserted.revision, row.revision) == ("changed", 2, 2)
        assert row.updated_at == row.created_at + 10 * MINUTE == world.clock.now()

    async def test_edit_without_a_timing_change_leaves_a_due_tick_undecided(self, world):
        await world.define()
        world.clock.advance("1h")
        await world.define(retry=["30s"])
        assert (await world.schedule()).next_run_at == at("13:00")
        assert await world.rows() == []

    async def test_edit_of_the_timing_decides_due_ticks_by_the_old_definition(self, world):
        await world.define()
        world.clock.advance("1h")
        await world.define(every="2h")
        await world.plan()
        assert await world.runs("run_at status") == [(at("13:00"), "ENQUEUED")]
        assert (await world.schedule()).next_run_at == at("14:00")

    async def test_edit_with_many_due_ticks_loses_none(self, world):
        await world.define(every="1s", grace="1h", overlap="allow")
        world.clock.advance("20m")
        await world.define(every="1h")
        late, *others = await world.rows()
        assert (late.status, late.reason, late.tick_count) == ("SKIPPED", "edited", 200)
        assert (late.first_run_at, late.run_at) == (at("12:00") + 1, others[0].run_at - 1)
        assert [row.status for row in others] == ["ENQUEUED"] * MOST_ON_TIME

    async def test_tick_with_a_later_start_keeps_it_through_an_edit(self, world):
        due = due_at(a_schedule("report", jitter="30m"), at("13:00"), NO_PAST)
        await world.define(jitter="30m")
        world.clock.advance("1h")
        assert due > world.clock.now()
        await world.define(every="1d")
        assert await world.runs("run_at status due_at") == [(at("13:00"), "ENQUEUED", due)]
        assert await world.claim() == []
        world.clock.advance(due - world.clock.now())
        assert len(await world.claim()) == 1

    async def test_edit_after_the_clock_moved_backward_repeats_no_tick(self, world):
        await world.waiting()
        world.clock.step(-2 * HOUR)
        await world.define(every="30m")
        assert (await world.schedule()).next_run_at == at("13:30")

    async def test_upsert_returns_schedules_in_the_given_order(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b")])
        given = [a_schedule("c"), a_schedule("b", every="2h"), a_schedule("a")]
        assert [(u.schedule_id, u.change) for u in await world.store.upsert(given)] == [
            ("c", "created"), ("b", "changed"), ("a", "unchanged"),
        ]  # fmt: skip

    async def test_upsert_defines_all_schedules_or_none(self, world):
        good = a_schedule("good")
        bad = Schedule("bad", good.trigger, Target("command", {"command": object()}))
        with pytest.raises(TypeError):
            await world.store.upsert([good, bad])
        assert await world.store.schedules() == []
        assert await world.new_events() == []

    async def test_run_in_flight_during_an_edit_ends_by_its_revision(self, world):
        attempt = await world.going()
        await world.define(every="2h", run={"command": ["new"]})
        assert await world.end(attempt) == [attempt.run_id]
        await world.tick("1h")
        assert (await world.start_one()).target.fields == {"command": ["new"]}
        assert await world.runs("status") == ["SUCCESS", "STARTED"]


class TestPlanning:
    async def test_due_tick_gets_a_run_and_the_schedule_its_next_tick(self, world):
        await world.define()
        done = await world.tick("1h")
        row = await world.row()
        assert (done.ticks, done.enqueued, list(done.attempts)) == (1, 1, [])
        assert (row.run_at, row.due_at) == (at("13:00"), at("13:00") * 1000)
        assert (row.status, row.triggered_by, row.attempt) == ("ENQUEUED", "timer", 0)
        assert row.created_at == row.updated_at == world.clock.now()
        assert (await world.schedule()).next_run_at == at("14:00")

    async def test_decision_emits_an_event_with_its_run(self, world):
        await world.define()
        await world.new_events()
        await world.tick("1h")
        row = await world.row()
        assert await world.new_events() == [
            RunEnqueued("report", row.run_id, row.run_at, row.due_at)
        ]

    async def test_no_tick_is_decided_a_millisecond_early(self, world):
        await world.define()
        assert (await world.tick(HOUR - 1)).ticks == 0
        assert (await world.tick(1)).ticks == 1

    async def test_jitter_only_ever_delays(self, world):
        names = [f"report-{i}" for i in range(20)]
        await world.store.upsert([a_schedule(name, jitter="30m") for name in names])
        for _ in range(120):
            await world.tick("1m")
        rows = await world.rows()
        assert all(row.created_at >= row.due_at >= row.run_at * 1000 for row in rows)
        assert len({row.due_at for row in rows}) == len(rows) >= len(names)

    async def test_key_of_a_run_is_derived_from_its_row(self, world):
        attempt = await world.going()
        key = sha256(f"report:{at('13:00')}".encode()).hexdigest()
        assert (await world.row()).key == attempt.key == run_key("report", at("13:00")) == key

    async def test_batch_contains_the_ticks_due_first(self, world):
        for minute in (10, 5, 20):
            await world.define(f"at-{minute}", cron=f"{minute} * * * *")
        world.clock.advance("30m")
        assert (await world.plan(limit=2)).ticks == 2
        assert await world.runs("schedule_id") == ["at-5", "at-10"]
        assert (await world.plan(limit=2)).ticks == 1

    async def test_ticks_due_at_the_same_time_are_decided_by_name(self, world):
        await world.store.upsert([a_schedule(name) for name in ("b", "c", "a")])
        world.clock.advance("1h")
        await world.plan(limit=2)
        assert await world.runs("schedule_id") == ["a", "b"]

    async def test_decided_tick_stays_unchanged(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b", every="90m")])
        await world.tick("1h")
        await world.end(await world.start_one())
        (decided,) = await world.rows()
        await world.put_back("a", at("13:00"))
        world.clock.advance("30m")
        await world.plan()
        assert (await world.rows())[0] == decided
        assert await world.runs("schedule_id") == ["a", "b"]
        assert [event.schedule_id for event in await world.new_events()] == ["b"]
        assert (await world.schedule("a")).next_run_at == at("14:00")

    async def test_decided_tick_is_not_counted_again(self, world):
        await world.end(await world.going(max_runs=3))
        before = await world.schedule()
        await world.put_back("report", at("13:00"))
        await world.plan()
        after = await world.schedule()
        assert (after.runs_used, after.iteration) == (before.runs_used, before.iteration)
        assert after.next_run_at == at("14:00")

    async def test_batch_of_a_dead_planner_is_decided_by_the_next(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b")])
        world.clock.advance("1h")
        before = await world.store.schedules(), await world.store.events()
        heard = list(world.received)
        with pytest.raises(Crash):
            await world.plan(failing_at("b", Crash()))
        assert (await world.store.schedules(), await world.store.events()) == before
        assert world.received == heard
        assert await world.rows() == []
        await world.plan()
        assert await world.runs("schedule_id run_at") == [("a", at("13:00")), ("b", at("13:00"))]

    async def test_schedule_that_cannot_be_planned_is_parked_alone(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("bad"), a_schedule("c")])
        world.clock.advance("1h")
        await world.new_events()
        await world.plan(failing_at("bad", ZeroDivisionError("by nought")))
        (parked,) = [
            event for event in await world.new_events() if isinstance(event, ScheduleParked)
        ]
        assert parked.schedule_id == "bad"
        assert "by nought" in parked.error
        assert await world.runs("schedule_id") == ["a", "c"]
        row = await world.schedule("bad")
        assert (row.next_run_at, row.next_due_at) == (at("13:00"), at("13:05") * 1000)

    async def test_parked_schedule_is_retried_and_keeps_its_tick(self, world):
        await world.define("bad")
        world.clock.advance("1h")
        await world.plan(failing_at("bad", ZeroDivisionError()))
        assert (await world.tick(5 * MINUTE - 1)).ticks == 0
        await world.tick(1)
        assert await world.runs("run_at status") == [(at("13:00"), "ENQUEUED")]

    async def test_unreadable_definition_is_parked_alone(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("bad"), a_schedule("c")])
        await world.break_definition("bad")
        await world.tick("1h")
        assert await world.runs("schedule_id") == ["a", "c"]
        assert "schedule.parked" in await world.names_told()
        assert (await world.schedule("bad")).next_due_at == at("13:05") * 1000

    async def test_unreadable_definition_can_be_replaced(self, world):
        await world.define("bad")
        await world.break_definition("bad")
        await world.define("bad", every="30m")
        await world.tick("30m")
        assert await world.runs("run_at") == [at("12:30")]

    @pytest.mark.parametrize("call", ["pause", "delete"])
    async def test_schedule_with_an_unreadable_definition_can_be_paused_and_deleted(
        self, world, call
    ):
        await world.define("bad")
        await world.break_definition("bad")
        world.clock.advance("1h")
        assert await getattr(world.store, call)("bad")
        assert (await world.plan()).ticks == 0

    async def test_max_runs_counts_starts_but_not_skips(self, world):
        attempt = await world.going(max_runs=2)
        await world.tick("1h")
        await world.end(attempt)
        for _ in range(3):
            await world.tick("1h")
        assert await world.runs("run_at status") == [
            (at("13:00"), "SUCCESS"), (at("14:00"), "SKIPPED"), (at("15:00"), "ENQUEUED"),
        ]  # fmt: skip
        row = await world.schedule()
        assert (row.runs_used, row.next_run_at) == (2, None)

    async def test_runs_of_a_schedule_are_numbered(self, world):
        await world.define()
        seen = []
        for _ in range(3):
            await world.tick("1h")
            attempt = await world.start_one()
            await world.end(attempt)
            seen.append(attempt.iteration)
        assert seen == [1, 2, 3]

    async def test_clock_moved_backward_fires_nothing_again(self, world):
        await world.waiting()
        world.clock.step(-HOUR)
        assert (await world.tick(HOUR)).ticks == 0
        assert (await world.schedule()).next_run_at == at("14:00")

    async def test_planner_announces_runs_directly_to_a_free_node(self, world):
        await world.store.upsert([a_schedule(name) for name in ("a", "b", "c")])
        world.clock.advance("1h")
        done = await world.plan(slots=2)
        assert [(attempt.schedule_id, attempt.attempt) for attempt in done.attempts] == [
            ("a", 1), ("b", 1),
        ]  # fmt: skip
        assert (done.ticks, done.enqueued) == (3, 1)
        here = world.node.node_id
        assert await world.runs("status leased_by attempt") == [
            ("STARTED", here, 1), ("STARTED", here, 1), ("ENQUEUED", None, 0),
        ]  # fmt: skip
        *_, a, b, c = await world.new_events()
        first, second, third = await world.rows()
        assert a == RunStarted("a", first.run_id, first.run_at, 1, here, 1, first.due_at)
        assert b == RunStarted("b", second.run_id, second.run_at, 1, here, 1, second.due_at)
        assert c == RunEnqueued("c", third.run_id, third.run_at, third.due_at)
        assert await world.end(done.attempts[0]) == [done.attempts[0].run_id]

    async def test_planner_announces_no_unoffered_or_waiting_run(self, world):
        await world.define("other", run={"python": "tidy"})
        await world.define("queued", every="30m", overlap="queue")
        await world.tick("30m")
        await world.start_one()
        world.clock.advance("30m")
        done = await world.plan(slots=5)
        assert (done.ticks, list(done.attempts)) == (2, [])


class TestNextDue:
    async def test_next_due_is_the_earliest_tick_even_if_late(self, world):
        assert await world.store.next_due(after=world.clock.now()) is None
        await world.store.upsert([a_schedule("a"), a_schedule("b", every="30m")])
        world.clock.advance("40m")
        assert await world.store.next_due(after=world.clock.now()) == at("12:30") * 1000

    async def test_next_due_may_be_a_retry(self, world):
        await world.end(await world.going(retry=["5m"]), BROKEN)
        assert await world.store.next_due(after=world.clock.now()) == at("13:05") * 1000

    async def test_next_due_ignores_runs_that_are_already_due(self, world):
        await world.waiting()
        assert await world.store.next_due(after=world.clock.now() - 1) == at("13:00") * 1000
        assert await world.store.next_due(after=world.clock.now()) == at("14:00") * 1000

    async def test_next_due_ignores_paused_schedules(self, world):
        await world.waiting()
        await world.store.pause("report")
        assert await world.store.next_due(after=world.clock.now()) is None


class TestOverlap:
    async def test_tick_is_skipped_while_a_run_is_started(self, world):
        going = await world.going()
        await world.new_events()
        await world.tick("1h")
        _, skipped = await world.rows()
        assert (skipped.status, skipped.reason, skipped.blocked_by) == (
            "SKIPPED", "overlap", going.run_id,
        )  # fmt: skip
        assert await world.new_events() == [
            RunSkipped(
                "report",
                skipped.run_id,
                at("14:00"),
                "overlap",
                blocked_by=going.run_id,
                overlaps=1,
            )
        ]
        assert (await world.schedule()).last_miss_reason == "overlap"

    async def test_tick_is_skipped_while_a_run_waits_to_start(self, world):
        await world.waiting()
        await world.tick("1h")
        assert await world.runs("status reason") == [("ENQUEUED", None), ("SKIPPED", "overlap")]

    async def test_tick_is_skipped_for_one_decided_in_the_same_plan(self, world):
        await world.define(every="10s")
        await world.tick("20s")
        first, second = await world.rows()
        assert (second.reason, second.blocked_by) == ("overlap", first.run_id)

    async def test_overlap_allow_starts_runs_side_by_side(self, world):
        await world.going(overlap="allow")
        await world.tick("1h")
        await world.start()
        assert await world.runs("status") == ["STARTED", "STARTED"]

    async def test_manual_run_blocks_no_other(self, world):
        await world.define()
        await world.store.enqueue("report", request_id="by-hand")
        await world.start()
        await world.tick("1h")
        assert await world.runs("triggered_by status") == [
            ("manual", "STARTED"), ("timer", "ENQUEUED"),
        ]  # fmt: skip

    async def test_new_tick_supersedes_a_waiting_retry(self, world):
        await world.end(await world.going(retry=["2h"]), BROKEN)
        await world.tick("1h")
        assert await world.runs("status reason") == [("FAILED", "superseded"), ("ENQUEUED", None)]

    async def test_claimed_retry_blocks_the_next_tick(self, world):
        await world.end(await world.going(retry=["59m"]), BROKEN)
        world.clock.advance("59m")
        claimed = await world.claim()
        await world.tick("1m")
        assert await world.runs("status reason blocked_by") == [
            ("ENQUEUED", "error", None),
            ("SKIPPED", "overlap", claimed[0].run_id),
        ]
        assert len(await world.announce(claimed)) == 1

    @pytest.mark.parametrize(
        ("overlap", "becomes"), [("skip", ("SKIPPED", "overlap")), ("queue", ("ENQUEUED", None))]
    )
    async def test_run_decided_before_its_due_time_is_rechecked(self, world, overlap, becomes):
        due = due_at(a_schedule("report", jitter="50m"), at("13:00"), NO_PAST)
        await world.define(overlap=overlap, jitter="50m")
        world.clock.advance("1h")
        await world.define(overlap=overlap, every="1h", start_at="2026-01-01T13:01:00Z")
        await world.tick("1m")
        assert due > world.clock.now()
        going = await world.start_one()
        world.clock.advance(due - world.clock.now())
        assert await world.claim() == []
        late, _ = await world.rows()
        assert (late.status, late.reason) == becomes
        assert late.blocked_by == going.run_id

    @pytest.mark.parametrize(
        ("overlap", "becomes"), [("skip", "FAILED superseded"), ("queue", "ENQUEUED error")]
    )
    async def test_one_of_two_simultaneous_retries_starts(self, world, overlap, becomes):
        await world.define(overlap="allow", retry=["3h"])
        for _ in range(2):
            await world.tick("1h")
        for attempt in await world.start():
            await world.end(attempt, BROKEN)
        later = {"every": "1h", "start_at": "2026-01-02T00:00:00Z"}
        await world.define(overlap=overlap, retry=["3h"], update_waiting=True, **later)
        world.clock.advance("3h")
        (claimed,) = await world.claim()
        first, second = await world.rows()
        assert first.run_id == claimed.run_id
        assert f"{second.status} {second.reason}" == becomes

    async def test_claim_continues_after_runs_skipped_by_the_recheck(self, world):
        due = due_at(a_schedule("report", jitter="50m"), at("13:00"), NO_PAST)
        await world.define(jitter="50m")
        world.clock.advance("1h")
        await world.define(every="1h", start_at="2026-01-01T13:01:00Z")
        await world.tick("1m")
        await world.start_one()
        world.clock.advance(due - world.clock.now())
        await world.define("another")
        by_hand = await world.store.enqueue("another", request_id="by-hand")
        (claimed,) = await world.claim(limit=1)
        assert claimed.run_id == by_hand.run_id
        assert (await world.rows())[0].status == "SKIPPED"


class TestQueue:
    async def test_queued_ticks_start_one_after_another_in_order(self, world):
        await world.define(overlap="queue")
        for _ in range(3):
            await world.tick("1h")
        started = []
        for _ in range(3):
            attempt = await world.start_one()
            started.append(attempt.run_at)
            await world.end(attempt)
        assert started == [at("13:00"), at("14:00"), at("15:00")]
        assert await world.claim() == []

    async def test_queued_run_names_its_blocker_and_is_released_with_an_event(self, world):
        going = await world.going(overlap="queue")
        await world.tick("1h")
        _, queued = await world.rows()
        assert (queued.status, queued.blocked_by) == ("ENQUEUED", going.run_id)
        await world.new_events()
        await world.end(going)
        assert await world.names_told() == ["run.succeeded", "run.released"]
        assert (await world.store.run(queued.run_id)).blocked_by is None

    async def test_failure_releases_the_queued_tick(self, world):
        going = await world.going(overlap="queue", retry=["30s"])
        await world.tick("1h")
        await world.end(going, BROKEN)
        assert await world.runs("status blocked_by") == [("FAILED", None), ("ENQUEUED", None)]

    async def test_tick_is_skipped_when_the_queue_is_full(self, world):
        await world.define(every="1s", overlap="queue", grace="10m")
        world.clock.advance(f"{QUEUE_LIMIT + 2}s")
        while (await world.plan()).ticks:
            pass
        waiting, last = (await world.rows())[1:-1], (await world.rows())[-1]
        assert {row.status for row in waiting} == {"ENQUEUED"}
        assert len(waiting) == QUEUE_LIMIT
        assert (last.status, last.reason) == ("SKIPPED", "queue_full")


class TestCatchingUp:
    async def test_tick_within_its_grace_is_on_time(self, world):
        await world.define()
        await world.tick(HOUR + MINUTE)
        assert await world.runs("status triggered_by") == [("ENQUEUED", "timer")]

    async def test_tick_beyond_its_grace_is_missed(self, world):
        await world.define(catchup="none")
        await world.tick(HOUR + MINUTE + 1)
        assert await world.runs("status reason") == [("SKIPPED", "missed")]
        assert (await world.schedule()).last_miss_reason == "missed"

    async def test_latest_missed_tick_runs_once_and_covers_the_rest(self, world):
        await world.define()
        await world.tick("5h30m")
        assert await world.runs("run_at status triggered_by tick_count first_run_at") == [
            (at("17:00"), "ENQUEUED", "catchup", 5, at("13:00"))
        ]
        assert (await world.schedule()).next_run_at == at("18:00")

    async def test_missed_day_is_one_run_at_the_next_start(self, world):
        await world.define()
        world.clock.advance("24h")
        await world.restart()
        await world.plan()
        await world.plan()
        assert await world.runs("status tick_count") == [("ENQUEUED", 24)]

    async def test_missed_ticks_stay_missed_without_catchup(self, world):
        await world.define(catchup="none")
        await world.tick(5 * HOUR + 30 * SECOND)
        assert await world.runs("run_at status tick_count") == [
            (at("16:00"), "SKIPPED", 4), (at("17:00"), "ENQUEUED", 1),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("given", "down", "counts"),
        [({"catchup_window": "2h"}, "5h30m", [3, 2]), ({}, "48h30m", [24, 24])],
    )
    async def test_ticks_older_than_the_window_are_recorded_as_missed(
        self, world, given, down, counts
    ):
        await world.define(**given)
        await world.tick(down)
        assert await world.runs("status reason tick_count") == [
            ("SKIPPED", "missed", counts[0]), ("ENQUEUED", None, counts[1]),
        ]  # fmt: skip

    async def test_year_of_missed_seconds_is_counted_not_listed(self, world):
        await world.define(every="1s")
        world.clock.advance("365d")
        began = time.process_time()
        await world.plan()
        assert time.process_time() - began < 2
        counts = await world.runs("tick_count")
        assert len(counts) <= 3
        assert sum(counts) == 365 * 86_400
        assert (await world.schedule()).next_run_at == world.clock.now() // 1000 + 1

    async def test_catchup_all_runs_every_missed_tick_in_its_row(self, world):
        await world.define(catchup="all", overlap="allow")
        await world.tick("3h30m")
        assert await world.runs("run_at status triggered_by tick_count") == [
            (at(time), "ENQUEUED", "catchup", 1) for time in ("13:00", "14:00", "15:00")
        ]
        assert (await world.schedule()).next_run_at == at("16:00")

    async def test_catchup_spread_starts_ticks_one_after_another(self, world):
        await world.define(catchup="spread")
        world.clock.advance("3h30m")
        started = []
        for _ in range(4):
            await world.plan()
            for attempt in await world.start():
                started.append((attempt.run_at, attempt.key, attempt.triggered_by))
                await world.end(attempt)
            world.clock.advance("20s")
        assert started == [
            (run_at, run_key("report", run_at), "catchup")
            for run_at in map(at, ("13:00", "14:00", "15:00"))
        ]
        assert (await world.schedule()).next_run_at == at("16:00")

    async def test_spread_catch_up_keeps_its_pace(self, world):
        await world.define(catchup="spread", overlap="allow")
        await world.tick("3h59m")  # three ticks, and a minute
        for wait, n in (("19s", 1), ("1s", 2), ("19s", 2), ("1s", 3)):
            await world.restart()
            await world.tick(wait)
            assert len(await world.rows()) == n

    async def test_missed_tick_over_the_allowance_is_decided_later(self, world):
        await world.define(catchup="all", overlap="allow")
        world.clock.advance("3h30m")
        await world.plan(partial(planned, allowance=1))
        assert await world.runs("run_at") == [at("13:00")]
        assert (await world.schedule()).next_run_at == at("14:00")
        assert not (await world.plan()).ticks
        await world.tick(1100)
        assert await world.runs("run_at") == [at("13:00"), at("14:00"), at("15:00")]

    async def test_recreated_schedule_has_nothing_left_to_spread(self, world):
        await world.define(catchup="spread", overlap="allow")
        await world.tick("3h30m")
        await world.store.delete("report")
        await world.define(every="1s", catchup="spread", overlap="allow")
        await world.tick("5s")
        fresh = [row for row in await world.rows() if row.run_at > at("15:30")]
        assert [(row.status, row.triggered_by) for row in fresh] == [("ENQUEUED", "timer")] * 5

    @pytest.mark.parametrize("catchup", ["all", "spread"])
    async def test_edit_decides_missed_ticks_over_the_allowance(self, world, catchup):
        await world.define(every="1s", catchup=catchup, overlap="allow", catchup_window="1h")
        world.clock.advance("10m")
        await world.plan(partial(planned, allowance=1))
        await world.define(every="1d")
        first, late, *on_time = await world.runs("status reason tick_count")
        assert first == ("ENQUEUED", None, 1)
        assert late == ("SKIPPED", "edited", 600 - 1 - 61)
        assert on_time == [("ENQUEUED", None, 1)] * 61  # within their grace

    async def test_edit_records_ticks_that_wait_for_the_queue_limit(self, world):
        await world.define(every="1s", catchup="all", overlap="queue", catchup_window="1h")
        world.clock.advance("10m")
        while (await world.schedule()).next_due_at <= world.clock.now():
            await world.plan()
        assert len(await world.rows()) == 1 + QUEUE_LIMIT
        await world.define(every="1d")
        late, *on_time = (await world.rows())[1 + QUEUE_LIMIT :]
        assert (late.reason, late.tick_count) == ("edited", 599 - QUEUE_LIMIT - 61)
        assert {(row.status, row.reason) for row in on_time} == {("SKIPPED", "queue_full")}
        assert len(on_time) == 61

    async def test_closed_gate_keeps_a_tick_that_is_not_yet_due(self, world):
        await world.define(jitter="50m")
        due = due_at(a_schedule("report", jitter="50m"), at("13:00"), NO_PAST)
        world.clock.advance("1h")
        await world.store.set_gate(is_open=False)
        await world.store.set_gate(is_open=True)
        assert due > world.clock.now()
        await world.tick(due - world.clock.now())
        assert await world.runs("run_at status") == [(at("13:00"), "ENQUEUED")]

    async def test_catch_up_waiting_at_a_closed_gate_is_skipped(self, world):
        await world.define(catchup="all", overlap="allow")
        world.clock.advance("3h30m")
        await world.plan(partial(planned, allowance=1))
        await world.start_one()
        await world.store.set_gate(is_open=False)
        await world.store.set_gate(is_open=True)
        await world.tick("2s")
        assert await world.runs("run_at status reason tick_count") == [
            (at("13:00"), "STARTED", None, 1), (at("15:00"), "SKIPPED", "gate_off", 2),
        ]  # fmt: skip


class TestClaiming:
    async def test_attempt_has_all_fields_for_the_launcher(self, world):
        fields = {"run": {"command": ["build"], "inputs": {"n": 1}}, "timeout": "30s"}
        await world.store.upsert([a_schedule("report", **fields)], user_id="ada")
        await world.tick("1h")
        (attempt,) = await world.claim()
        row = await world.row()
        assert (attempt.run_id, attempt.schedule_id) == (row.run_id, "report")
        assert (attempt.run_at, attempt.due_at) == (row.run_at, row.due_at)
        assert (attempt.attempt, attempt.iteration, attempt.revision) == (1, 1, 1)
        assert attempt.target.fields["command"] == ["build"]
        assert (attempt.inputs, attempt.timeout, attempt.user_id) == ({"n": 1}, 30 * SECOND, "ada")

    async def test_claimed_run_is_leased_and_not_started(self, world):
        await world.waiting()
        await world.new_events()
        (attempt,) = await world.claim()
        row = await world.row()
        assert (row.status, row.attempt, row.started_at) == ("ENQUEUED", 0, None)
        assert (row.leased_by, row.fence) == (world.node.node_id, attempt.fence)
        assert await world.names_told() == ["run.claimed"]
        assert await world.claim() == []

    async def test_claim_has_a_new_fence(self, world):
        await world.waiting()
        fences = [(await world.row()).fence]
        for _ in range(3):
            (attempt,) = await world.claim()
            await world.store.hand_back([attempt])
            fences += [attempt.fence, (await world.row()).fence]
        assert fences == sorted(set(fences))

    async def test_runs_are_claimed_as_they_are_due_then_by_name(self, world):
        await world.define("z", cron="30 * * * *")
        await world.tick("30m")
        await world.store.upsert([a_schedule(name) for name in ("b", "c", "a")])
        await world.tick("30m")
        claimed = await world.claim(limit=3), await world.claim(limit=3)
        assert [[attempt.schedule_id for attempt in part] for part in claimed] == [
            ["z", "a", "b"], ["c"],
        ]  # fmt: skip

    async def test_node_claims_only_offered_targets(self, world):
        await world.waiting(run={"python": "tidy"})
        await world.register(offers=frozenset({"python", "python:sort"}))
        assert await world.claim() == []
        await world.register(offers=frozenset({"python:tidy"}))
        assert len(await world.claim()) == 1

    async def test_unregistered_node_claims_nothing(self, world):
        await world.waiting()
        claimed, before = await world.claim(), world.node
        await world.fall_silent()
        await world.register()
        assert await world.store.announce(before, claimed) == []
        assert await world.store.claim(before, limit=9) == []
        assert len(await world.claim()) == 1

    async def test_unoffered_runs_do_not_delay_others(self, world):
        for i in range(20):
            await world.define(f"a-{i}", run={"python": "tidy"})
        await world.waiting()
        assert [attempt.schedule_id for attempt in await world.claim(limit=1)] == ["report"]

    async def test_fence_of_a_run_only_increases(self, world):
        await world.waiting(retry=["1s"], on_lost="retry")
        (claimed,) = await world.claim()
        fences = [claimed.fence]
        await world.store.hand_back([claimed])
        started = await world.start_one()
        fences.append(started.fence)
        await world.end(started, BROKEN)
        world.clock.advance("1s")
        fences.append((await world.start_one()).fence)
        await world.restart()
        fences.append((await world.start_one()).fence)
        assert all(earlier < later for earlier, later in pairwise(fences))


class TestAnnouncing:
    async def test_announced_run_is_started(self, world):
        await world.waiting()
        claimed = await world.claim()
        world.clock.advance(SECOND)
        await world.new_events()
        assert await world.announce(claimed) == claimed
        row = await world.row()
        assert (row.status, row.attempt) == ("STARTED", 1)
        assert row.started_at == row.updated_at == world.clock.now() == row.created_at + SECOND
        assert await world.new_events() == [
            RunStarted(
                "report", row.run_id, row.run_at, 1, world.node.node_id, row.fence, late=SECOND
            )
        ]

    async def test_repeated_announcement_counts_one_attempt(self, world):
        await world.waiting()
        claimed = await world.claim()
        await world.announce(claimed)
        await world.announce(claimed)
        assert (await world.row()).attempt == 1
        assert (await world.names_told()).count("run.started") == 1

    async def test_handed_back_run_can_be_claimed_again(self, world):
        await world.waiting()
        claimed = await world.claim()
        await world.new_events()
        await world.store.hand_back(claimed)
        row = await world.row()
        assert (row.status, row.leased_by) == ("ENQUEUED", None)
        assert await world.names_told() == ["run.handed_back"]
        assert await world.announce(claimed) == []
        assert len(await world.claim()) == 1

    async def test_announced_run_that_was_not_launched_can_be_handed_back(self, world):
        await world.store.hand_back([await world.going()])
        row = await world.row()
        assert (row.status, row.leased_by, row.was_tried) == ("ENQUEUED", None, False)
        assert len(await world.start()) == 1

    async def test_attempt_number_is_announced_once_even_if_it_is_handed_back(self, world):
        await world.store.hand_back([await world.going()])
        (again,) = await world.start()
        await world.store.hand_back([again])
        await world.start()
        told = await world.new_events()
        started = [event.attempt for event in told if event.name == "run.started"]
        void = [event.attempt for event in told if event.name == "run.handed_back"]
        assert (started, void) == ([1, 2, 3], [1, 2])

    async def test_hand_back_of_a_claim_voids_no_attempt(self, world):
        await world.waiting()
        await world.store.hand_back(await world.claim())
        (started,) = await world.start()
        told = [event for event in await world.new_events() if event.name == "run.handed_back"]
        assert (started.attempt, [event.attempt for event in told]) == (1, [0])

    async def test_handed_back_attempt_uses_no_retry(self, world):
        await world.store.hand_back([await world.going(retry=["1m"])])
        (first,) = await world.start()
        assert (first.attempt, first.triggered_by) == (2, "timer")
        await world.end(first, Failed("no"))
        assert (await world.row()).status == "ENQUEUED", "its one retry is left"
        world.clock.advance("1m")
        (retry,) = await world.start()
        assert (retry.attempt, retry.triggered_by) == (3, "retry")
        await world.end(retry, Failed("no"))
        assert (await world.row()).status == "FAILED"

    async def test_handed_back_run_blocks_the_next_tick(self, world):
        await world.store.hand_back([await world.going()])
        await world.tick()
        assert (await world.runs("status reason"))[-1] == ("SKIPPED", "overlap")

    async def test_node_that_lost_a_run_can_neither_announce_nor_free_it(self, world):
        await world.waiting()
        lost = await world.claim()
        await world.store.hand_back(lost)
        (held,) = await world.claim()
        await world.new_events()
        assert await world.announce(lost) == []
        await world.store.hand_back(lost)
        assert (await world.row()).fence == held.fence
        assert await world.new_events() == []

    async def test_run_claimed_by_another_node_is_not_announced(self, world):
        await world.waiting()
        claimed = await world.claim()
        assert await world.store.announce(a_node("other"), claimed) == []

    async def test_claimed_runs_are_released_when_their_node_unregisters(self, world):
        await world.waiting()
        await world.claim()
        await world.new_events()
        await world.store.unregister(world.node)
        assert (await world.row()).leased_by is None
        assert set(await world.names_told()) == {"run.handed_back", "node.stopped"}
        assert list((await world.store.overview()).nodes) == []


class TestFinishing:
    async def test_success_is_stored_with_result_and_end_of_output(self, world):
        attempt = await world.going()
        world.clock.advance(SECOND)
        await world.new_events()
        assert await world.end(attempt, Succeeded({"rows": [1, 2]}), log_tail="done\n") == [
            attempt.run_id
        ]
        row = await world.row()
        assert (row.status, row.reason, row.leased_by) == ("SUCCESS", None, None)
        assert (row.result, row.log_tail) == ({"rows": [1, 2]}, "done\n")
        assert row.finished_at == row.updated_at == world.clock.now()
        assert await world.names_told() == ["run.succeeded"]

    @pytest.mark.parametrize("stale_first", [True, False])
    async def test_outcome_with_the_current_fence_wins_of_two_recorded_together(
        self, world, stale_first
    ):
        await world.waiting()
        (stale,) = await world.claim()
        await world.store.hand_back([stale])
        held = await world.start_one()
        told = [Finished(stale, Succeeded("stale")), Finished(held, Failed("the real one"))]
        assert await world.store.finish(told if stale_first else told[::-1]) == [held.run_id]
        row = await world.row()
        assert (row.status, row.error, row.result) == ("FAILED", "the real one", None)

    async def test_failure_is_stored_with_its_reason(self, world):
        await world.end(await world.going(), Failed("exit code 3", "exit", exit_code=3))
        row = await world.row()
        assert (row.status, row.reason, row.error, row.exit_code) == (
            "FAILED", "exit", "exit code 3", 3,
        )  # fmt: skip
        failed = (await world.new_events())[-1]
        assert failed == RunFailed("report", row.run_id, row.run_at, 1, "exit", "exit code 3")

    async def test_canceled_attempt_is_not_retried(self, world):
        await world.end(await world.going(retry=["30s"]), Canceled("asked to"))
        row = await world.row()
        assert (row.status, row.reason, row.error) == ("CANCELED", "canceled", "asked to")
        assert (await world.names_told())[-1] == "run.canceled"

    async def test_schedule_row_has_the_outcomes_of_its_last_runs(self, world):
        await world.end(await world.going(), Failed("exit code 3", "exit", exit_code=3))
        row, failed_at = await world.schedule(), world.clock.now()
        assert (row.last_failure_at, row.last_success_at, row.last_exit) == (failed_at, None, 3)
        await world.tick("1h")
        await world.end(await world.start_one())
        row = await world.schedule()
        assert (row.last_failure_at, row.last_success_at) == (failed_at, world.clock.now())

    async def test_failures_in_a_row_are_counted_by_run_until_one_succeeds(self, world):
        await world.define(retry=["30s"])
        counts = []
        for outcomes in ([BROKEN, BROKEN], [BROKEN, BROKEN], [BROKEN, Succeeded()]):
            await world.tick("1h")
            for outcome in outcomes:
                await world.end(await world.start_one(), outcome)
                counts.append((await world.schedule()).consecutive_failures)
                world.clock.advance("30s")
        assert counts == [0, 1, 1, 2, 2, 0]

    async def test_node_that_lost_a_run_cannot_finish_it(self, world):
        lost = await world.going()
        await world.store.hand_back([lost])
        held = await world.start_one()
        await world.new_events()
        assert await world.end(lost) == []
        assert await world.new_events() == []
        assert await world.runs("status fence") == [("STARTED", held.fence)]

    async def test_run_is_finished_only_once(self, world):
        attempt = await world.going()
        await world.end(attempt)
        before, _ = await world.row(), await world.new_events()
        assert await world.end(attempt, BROKEN) == []
        assert (await world.row(), await world.new_events()) == (before, [])

    async def test_successes_recorded_together_are_checked_separately(self, world):
        names = [f"s-{i:03}" for i in range(90)]
        await world.store.upsert([a_schedule(name) for name in names])
        await world.store.upsert([a_schedule("s-080", overlap="queue")])
        world.clock.advance(HOUR)
        attempts = {each.schedule_id: each for each in (await world.plan(slots=90)).attempts}
        await world.end(attempts["s-040"], Failed("told before"))
        world.clock.advance(HOUR)
        await world.plan(slots=0)  # behind s-080 another one waits
        told = [Finished(each, Succeeded(name)) for name, each in attempts.items()]
        told.append(told[10])  # recorded twice
        await world.new_events()
        done = await world.store.finish(told)
        assert sorted(done) == [a.run_id for name, a in attempts.items() if name != "s-040"]
        counted = Counter(await world.names_told())
        assert counted == {"run.succeeded": 89, "run.released": 1}
        first = {row.schedule_id: row for row in (await world.rows())[:90]}
        assert {name: row.result for name, row in first.items() if row.status == "SUCCESS"} == {
            name: name for name in names if name != "s-040"
        }

    @pytest.mark.parametrize("and_a_stale_one", [False, True])
    @pytest.mark.parametrize(("outcomes", "failures"), [("SF", 1), ("FS", 0)])
    async def test_outcomes_of_a_schedule_count_in_the_order_given(
        self, world, outcomes, failures, and_a_stale_one
    ):
        await world.define("other")
        await world.define(overlap="allow")
        world.clock.advance(HOUR)
        first = (await world.plan(slots=2)).attempts
        world.clock.advance(HOUR)
        second = (await world.plan(slots=2)).attempts
        (stale,) = [each for each in first if each.schedule_id == "other"]
        going = [each for each in (*first, *second) if each.schedule_id == "report"]
        await world.end(stale)
        told = [
            Finished(attempt, Succeeded() if outcome == "S" else Failed("broken"))
            for attempt, outcome in zip(going, outcomes, strict=True)
        ]
        stale_told = [Finished(stale, Succeeded())] if and_a_stale_one else []
        await world.store.finish([*stale_told, *told])
        assert (await world.schedule()).consecutive_failures == failures

    async def test_only_outcomes_with_a_current_fence_are_recorded(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b")])
        await world.tick("1h")
        a, b = await world.start()
        await world.end(a)
        assert await world.store.finish([Finished(a, BROKEN), Finished(b, BROKEN)]) == [b.run_id]
        assert await world.runs("status") == ["SUCCESS", "FAILED"]


class TestRetrying:
    async def test_failed_attempt_is_retried_as_the_same_run_after_each_delay(self, world):
        await world.waiting(retry=["30s", "2m", "10m"])
        attempts = []
        for delay in (30 * SECOND, 2 * MINUTE, 10 * MINUTE):
            attempts.append(await world.start_one())
            await world.end(attempts[-1], BROKEN)
            row = await world.row()
            assert (row.status, row.due_at) == ("ENQUEUED", world.clock.now() + delay)
            world.clock.advance(delay)
        attempts.append(await world.start_one())
        await world.end(attempts[-1], BROKEN)
        assert await world.runs("status attempt") == [("FAILED", 4)]
        assert [attempt.attempt for attempt in attempts] == [1, 2, 3, 4]
        assert len({(attempt.run_id, attempt.key) for attempt in attempts}) == 1

    async def test_retry_emits_an_event_and_waits_for_its_time(self, world):
        attempt = await world.going(retry=["30s"])
        await world.new_events()
        await world.end(attempt, BROKEN)
        due = world.clock.now() + 30 * SECOND
        assert await world.new_events() == [
            RunRetrying("report", attempt.run_id, at("13:00"), 1, due, "error", "it broke")
        ]
        world.clock.advance(30 * SECOND - 1)
        assert await world.claim() == []
        world.clock.advance(1)
        assert len(await world.claim()) == 1

    async def test_permanent_failure_is_not_retried(self, world):
        await world.end(await world.going(retry=["30s"]), Failed("no such file", retryable=False))
        assert (await world.row()).status == "FAILED"

    async def test_new_tick_has_all_its_attempts(self, world):
        await world.define(retry=["30s"])
        for _ in range(2):
            await world.tick("1h")
            await world.end(await world.start_one(), BROKEN)
            world.clock.advance("30s")
            await world.end(await world.start_one(), BROKEN)
        assert await world.runs("status attempt") == [("FAILED", 2), ("FAILED", 2)]

    async def test_a_retry_survives_a_restart(self, world):
        await world.end(await world.going(retry=["30s"]), BROKEN)
        await world.restart()
        assert await world.claim() == []
        world.clock.advance("30s")
        assert (await world.start_one()).attempt == 2


class TestStopping:
    """What a pause, a closed gate and a deletion have in common."""

    @pytest.mark.parametrize("stop", STOPS)
    async def test_claimed_run_is_not_launched_after_a_pause_or_deletion(self, world, stop):
        await world.waiting()
        claimed = await world.claim()
        await stop(world.store)
        assert await world.announce(claimed) == []
        assert (await world.row()).started_at is None

    @pytest.mark.parametrize("stop", STOPS)
    async def test_started_run_finishes_after_a_pause_or_deletion(self, world, stop):
        attempt = await world.going()
        await stop(world.store)
        assert await world.end(attempt) == [attempt.run_id]
        assert (await world.row()).status == "SUCCESS"

    @pytest.mark.parametrize("call", [pause, resume, delete, start_by_hand])
    async def test_unknown_schedule_is_refused(self, world, call):
        with pytest.raises(NoSuchSchedule):
            await call(world.store)
        assert await world.new_events() == []

    @pytest.mark.parametrize("call", [pause, resume, start_by_hand])
    async def test_a_deleted_schedule_is_refused(self, world, call):
        await world.define()
        await delete(world.store)
        with pytest.raises(NoSuchSchedule):
            await call(world.store)


class TestPausing:
    async def test_repeated_pause_changes_nothing_and_keeps_the_note(self, world):
        await world.define()
        await world.new_events()
        assert await world.store.pause("report", note="until the audit is over")
        assert not await world.store.pause("report", note="until the audit is over")
        row = await world.schedule()
        assert (row.paused, row.pause_note) == (True, "until the audit is over")
        assert await world.names_told() == ["schedule.paused"]

    async def test_changed_pause_note_counts_as_a_change(self, world):
        await world.define()
        await world.store.pause("report", note="one")
        await world.new_events()
        changed = await world.store.pause("report", note="two")
        assert changed == ((await world.schedule()).pause_note == "two")
        assert changed == bool(await world.new_events())

    async def test_a_paused_schedule_is_never_due(self, world):
        await world.define()
        await world.store.pause("report")
        assert (await world.tick("1d")).ticks == 0
        assert await world.rows() == []
        assert (await world.schedule()).next_run_at is None
        assert (await world.store.overview()).due == 0

    async def test_waiting_run_survives_a_short_pause(self, world):
        await world.waiting()
        await world.store.pause("report")
        assert await world.claim() == []
        world.clock.advance("30s")
        await world.store.resume("report")
        assert len(await world.start()) == 1

    async def test_waiting_run_is_skipped_by_a_long_pause(self, world):
        await world.waiting()
        await world.store.pause("report")
        world.clock.advance("30m")
        await world.store.resume("report")
        assert await world.runs("status reason") == [("SKIPPED", "paused")]

    async def test_waiting_retry_fails_in_a_long_pause(self, world):
        await world.end(await world.going(retry=["1m"]), BROKEN)
        await world.store.pause("report")
        world.clock.advance("30m")
        await world.store.resume("report")
        assert await world.runs("status reason") == [("FAILED", "paused")]

    async def test_ticks_of_a_pause_become_one_row(self, world):
        await world.define()
        await world.store.pause("report")
        world.clock.advance("3h30m")
        await world.new_events()
        assert await world.store.resume("report")
        assert await world.runs("run_at status reason tick_count first_run_at") == [
            (at("15:00"), "SKIPPED", "paused", 3, at("13:00"))
        ]
        assert (await world.schedule()).next_run_at == at("16:00")
        assert sorted(await world.names_told()) == ["run.skipped", "schedule.resumed"]

    async def test_tick_due_at_the_beginning_of_a_pause_belongs_to_it(self, world):
        await world.define()
        world.clock.advance("1h")
        await world.store.pause("report")
        world.clock.advance("1h")
        await world.store.resume("report")
        assert await world.runs("status tick_count first_run_at") == [("SKIPPED", 2, at("13:00"))]

    async def test_a_pause_without_ticks_leaves_no_row(self, world):
        await world.define()
        await world.store.pause("report")
        world.clock.advance("30m")
        await world.store.resume("report")
        assert await world.rows() == []
        assert (await world.schedule()).next_run_at == at("13:00")

    async def test_resume_with_catchup_runs_the_ticks_of_a_pause_once(self, world):
        await world.define()
        await world.store.pause("report")
        world.clock.advance("3h30m")
        await world.store.resume("report", catchup=True)
        assert await world.runs("run_at status triggered_by tick_count first_run_at") == [
            (at("15:00"), "ENQUEUED", "catchup", 3, at("13:00"))
        ]
        assert (await world.start_one()).tick_count == 3

    async def test_resuming_an_active_schedule_is_not_a_change(self, world):
        await world.define()
        before, _ = await world.schedule(), await world.new_events()
        assert not await world.store.resume("report")
        assert (await world.schedule(), await world.new_events()) == (before, [])

    async def test_edit_keeps_a_pause_and_its_ticks(self, world):
        await world.define()
        await world.store.pause("report")
        world.clock.advance("2h")
        await world.define(every="30m")
        assert (await world.schedule()).paused
        world.clock.advance("1h")
        await world.store.resume("report")
        rows = await world.rows()
        assert {(row.status, row.reason) for row in rows} == {("SKIPPED", "paused")}
        assert sum(row.tick_count for row in rows) == 4

    async def test_a_pause_survives_a_restart(self, world):
        await world.define()
        await world.store.pause("report", note="holiday")
        await world.restart()
        assert (await world.tick("1h")).ticks == 0
        assert (await world.schedule()).pause_note == "holiday"


class TestGate:
    async def test_gate_is_open_by_default(self, world):
        assert (await world.store.overview()).gate_open
        assert await world.store.set_gate(is_open=False)
        assert not await world.store.set_gate(is_open=False)
        assert not (await world.store.overview()).gate_open
        assert await world.names_told() == ["gate.changed"]

    async def test_closed_gate_decides_nothing(self, world):
        await world.define()
        await world.store.set_gate(is_open=False)
        assert (await world.tick("1h")).ticks == 0
        assert await world.rows() == []

    async def test_closed_gate_starts_nothing_not_even_manual_runs(self, world):
        await world.waiting()
        await world.store.enqueue("report", request_id="by-hand")
        await world.store.set_gate(is_open=False)
        assert await world.claim() == []
        world.clock.advance("30s")
        await world.store.set_gate(is_open=True)
        assert len(await world.claim()) == 2

    async def test_opening_the_gate_records_missed_ticks_in_one_row_each(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b", every="2h")])
        await world.store.upsert([a_schedule("c", every="1d")])
        await world.store.set_gate(is_open=False)
        world.clock.advance("3h30m")
        await world.store.set_gate(is_open=True)
        columns = "run_at status reason tick_count first_run_at"
        assert await world.runs(columns, "a") == [
            (at("15:00"), "SKIPPED", "gate_off", 3, at("13:00"))
        ]
        assert await world.runs(columns, "b") == [(at("14:00"), "SKIPPED", "gate_off", 1, None)]
        assert await world.runs(columns, "c") == []
        assert [row.next_run_at for row in await world.store.schedules()] == [
            at("16:00"), at("16:00"), at("00:00") + 86_400,
        ]  # fmt: skip

    async def test_edit_behind_a_closed_gate_starts_no_earlier_tick(self, world):
        await world.define()
        await world.store.set_gate(is_open=False)
        world.clock.advance("2h")
        await world.define(every="30m")
        world.clock.advance("1h")
        await world.store.set_gate(is_open=True)
        rows = await world.rows()
        assert {row.status for row in rows} == {"SKIPPED"}
        assert sum(row.tick_count for row in rows) == 4

    async def test_a_pause_and_a_closed_gate_count_no_tick_twice(self, world):
        await world.define()
        await world.store.pause("report")
        await world.store.set_gate(is_open=False)
        world.clock.advance("2h")
        await world.store.set_gate(is_open=True)
        world.clock.advance("1h")
        await world.store.resume("report")
        assert sum(await world.runs("tick_count")) == 3

    async def test_a_closed_gate_survives_a_restart(self, world):
        await world.define()
        await world.store.set_gate(is_open=False)
        await world.restart()
        assert (await world.tick("1h")).ticks == 0


class TestDeleting:
    async def test_deleted_schedule_has_its_waiting_runs_canceled(self, world):
        await world.waiting()
        await world.new_events()
        assert await world.store.delete("report")
        assert await world.schedule() is None
        assert await world.store.schedules() == []
        assert (await world.row()).status == "CANCELED"
        assert sorted(await world.names_told()) == ["run.canceled", "schedule.deleted"]
        assert (await world.tick("1d")).ticks == 0
        assert await world.claim() == []

    async def test_due_ticks_of_a_deleted_schedule_are_recorded_as_canceled(self, world):
        await world.define()
        world.clock.advance("3h")
        await world.store.delete("report")
        assert await world.runs("status reason tick_count first_run_at") == [
            ("SKIPPED", "canceled", 3, at("13:00"))
        ]

    @pytest.mark.parametrize("stop", [pause, close_the_gate])
    async def test_held_ticks_of_a_deleted_schedule_are_recorded(self, world, stop):
        await world.define()
        await stop(world.store)
        world.clock.advance("3h")
        await world.store.delete("report")
        assert await world.runs("status tick_count first_run_at") == [("SKIPPED", 3, at("13:00"))]

    async def test_failure_of_a_deleted_schedule_is_not_retried(self, world):
        attempt = await world.going(retry=["30s"])
        await world.store.delete("report")
        await world.end(attempt, BROKEN)
        assert (await world.row()).status == "FAILED"

    @pytest.mark.parametrize("at_once", [True, False])
    async def test_failure_of_a_recreated_schedule_is_not_retried(self, world, at_once):
        attempt = await world.going(retry=["30s"])
        world.clock.advance("1s" if at_once else "1m")
        if at_once:
            await world.store.upsert([a_schedule("report", every="2h")], remove=["report"])
        else:
            await world.store.delete("report")
            world.clock.advance("1m")
            await world.define(every="2h")
        await world.end(attempt, BROKEN)
        assert await world.runs("status revision") == [("FAILED", 1)]

    async def test_deletion_is_remembered_while_a_run_of_the_schedule_is_unfinished(self, world):
        attempt = await world.going(retry=["30s"])
        await world.define(retry=["30s"], every="2h")
        await world.store.delete("report")
        await world.define(retry=["30s"])
        world.clock.advance("31d")
        await world.store.prune(before=world.clock.now())
        await world.end(attempt, BROKEN)
        assert (await world.rows())[0].status == "FAILED"

    @pytest.mark.parametrize("again", [True, False])
    async def test_accepted_run_of_a_deleted_schedule_keeps_its_timeout(self, world, again):
        attempt = await world.going(timeout="10m")
        await world.store.delete("report")
        if again:
            await world.define(timeout="1m")
        await world.end(attempt, Accepted("there"))
        assert (await world.row()).deadline_at == world.clock.now() + 600_000

    async def test_recreated_schedule_continues_its_revision_and_restarts_its_counts(self, world):
        await world.end(await world.going(max_runs=1))
        await world.store.pause("report")
        await world.store.delete("report")
        upserted = await world.define(max_runs=1)
        row = await world.schedule()
        assert upserted.change == "created"
        assert upserted.revision == row.revision > 1
        assert (row.runs_used, row.paused, row.next_run_at) == (0, False, at("14:00"))
        await world.tick("1h")
        assert (await world.start_one()).iteration == 1

    async def test_recreated_schedule_repeats_no_tick(self, world):
        await world.waiting()
        await world.store.delete("report")
        world.clock.step(-30 * MINUTE)
        await world.define()
        assert (await world.schedule()).next_run_at == at("14:00")


class TestManualRuns:
    async def test_manual_run_can_be_started_at_any_time(self, world):
        await world.define()
        world.clock.advance(90 * SECOND + 500)
        await world.new_events()
        row = await world.store.enqueue("report", request_id="by-hand")
        assert (row.status, row.triggered_by) == ("ENQUEUED", "manual")
        assert row.run_at == world.clock.now() // 1000 == at("12:01") + 30
        assert row.key == sha256(b"report:manual:by-hand").hexdigest()
        assert await world.names_told() == ["run.enqueued"]
        attempt = await world.start_one()
        assert (attempt.run_id, attempt.key, attempt.triggered_by) == (
            row.run_id, row.key, "manual",
        )  # fmt: skip

    async def test_same_request_id_returns_the_same_run(self, world):
        await world.define()
        row = await world.store.enqueue("report", request_id="by-hand")
        await world.end(await world.start_one())
        world.clock.advance("1m")
        await world.new_events()
        again = await world.store.enqueue("report", request_id="by-hand")
        assert (again.run_id, again.status) == (row.run_id, "SUCCESS")
        assert await world.new_events() == []

    async def test_requests_in_the_second_of_a_tick_are_separate_runs(self, world):
        await world.define()
        world.clock.advance("1h")
        await world.store.enqueue("report", request_id="one")
        await world.store.enqueue("report", request_id="two")
        await world.plan()
        assert set(await world.runs("run_at")) == {at("13:00")}
        assert len(set(await world.runs("key"))) == 3

    async def test_manual_run_may_have_separate_inputs(self, world):
        await world.define(run={"command": ["build"], "inputs": {"n": 1}})
        await world.store.enqueue("report", request_id="one")
        await world.store.enqueue("report", request_id="two", inputs={"n": 2})
        attempts = {attempt.request_id: attempt.inputs for attempt in await world.start()}
        assert attempts == {"one": {"n": 1}, "two": {"n": 2}}

    async def test_manual_run_starts_beside_a_running_one_and_during_a_pause(self, world):
        await world.going()
        await world.store.pause("report")
        await world.store.enqueue("report", request_id="by-hand")
        assert (await world.start_one()).triggered_by == "manual"

    async def test_manual_run_uses_up_no_scheduled_run(self, world):
        await world.define(max_runs=1)
        await world.store.enqueue("report", request_id="by-hand")
        await world.end(await world.start_one())
        await world.tick("1h")
        assert await world.runs("triggered_by") == ["manual", "timer"]

    async def test_manual_run_is_not_skipped_by_a_pause(self, world):
        await world.define(every="1d")
        await world.store.enqueue("report", request_id="by-hand")
        await world.store.pause("report")
        world.clock.advance("2h")
        await world.store.resume("report")
        assert (await world.start_one()).request_id == "by-hand"


class TestStartingAfterACrash:
    async def test_claimed_run_of_a_dead_node_is_released(self, world):
        await world.waiting()
        (before,) = await world.claim()
        await world.new_events()
        found = await world.restart()
        assert (found.lost, found.handed_back) == (0, 1)
        told = {event.name: event for event in await world.new_events()}
        assert told.keys() == {"node.lost", "node.started", "run.handed_back"}
        assert told["node.lost"] == NodeLost("node-1", "here", handed_back=1)
        attempt = await world.start_one()
        assert (attempt.attempt, attempt.key) == (1, before.key)

    async def test_announced_run_of_a_dead_node_is_lost(self, world):
        await world.going()
        await world.new_events()
        found = await world.restart()
        row = await world.row()
        assert (found.lost, found.handed_back) == (1, 0)
        assert (row.status, row.reason, row.leased_by) == ("FAILED", "lost", None)
        gone, started, failed = sorted(await world.new_events(), key=lambda event: event.name)
        assert (failed.name, failed.reason) == ("run.failed", "lost")
        assert gone == NodeLost("node-1", "here", lost=1)
        assert started == NodeStarted(world.node.node_id, "here", lost=1)
        assert (await world.schedule()).consecutive_failures == 1

    async def test_lost_run_is_retried_with_on_lost_retry(self, world):
        before = await world.going(on_lost="retry")
        await world.new_events()
        await world.restart()
        assert [e.reason for e in await world.new_events() if isinstance(e, RunRetrying)] == [
            "lost"
        ]
        attempt = await world.start_one()
        assert (attempt.attempt, attempt.key) == (2, before.key)

    async def test_run_that_repeatedly_loses_its_node_fails(self, world):
        await world.going(on_lost="retry")
        for _ in range(5):
            await world.restart()
            await world.start_one()
        await world.restart()
        row = await world.row()
        assert (row.status, row.reason, row.attempt) == ("FAILED", "lost", 6)

    async def test_dead_node_cannot_finish_a_lost_run(self, world):
        lost = await world.going()
        await world.restart()
        assert await world.end(lost) == []
        assert (await world.row()).reason == "lost"

    async def test_lost_run_releases_the_queue(self, world):
        await world.going(overlap="queue")
        await world.tick("1h")
        await world.restart()
        assert (await world.start_one()).run_at == at("14:00")

    async def test_unregistered_node_loses_no_run(self, world):
        await world.end(await world.going())
        await world.store.unregister(world.node)
        found = await world.restart()
        assert (found.lost, found.handed_back) == (0, 0)

    async def test_restart_keeps_schedules_and_runs(self, world):
        await world.waiting()
        before = await world.store.schedules(), await world.rows()
        await world.restart()
        assert (await world.store.schedules(), await world.rows()) == before

    async def test_heartbeat_extends_the_lease_of_a_node(self, world):
        started = world.clock.now()
        world.clock.advance("1m")
        assert await world.store.heartbeat(world.node) == HeartbeatResult(is_known=True)
        (row,) = await world.store.nodes()
        assert (row.node_id, row.name, row.started_at) == (world.node.node_id, "here", started)
        assert row.alive_until == world.clock.now() + world.node.lease
        assert (row.roles, row.offers) == ({"plan", "run"}, {"command"})
        assert list((await world.store.overview()).nodes) == [row]


class TestReading:
    async def test_queries_change_nothing(self, world):
        beside = await world.second()
        await world.waiting()
        world.clock.advance("1h")
        await beside.changed_elsewhere()
        heard, first = list(world.received), await everything(world.store)
        assert await everything(world.store) == first
        assert world.received == heard
        assert not await beside.changed_elsewhere()

    async def test_schedules_are_listed_by_id(self, world):
        await world.store.upsert([a_schedule(name) for name in ("b", "c", "a")])
        assert [row.schedule_id for row in await world.store.schedules()] == ["a", "b", "c"]
        assert await world.store.schedule("d") is None

    async def test_runs_are_listed_in_pages_the_latest_first(self, world):
        await world.define(overlap="allow")
        for _ in range(5):
            await world.tick("1h")
        pages, before = [], None
        while page := await world.store.runs(RunFilter(before=before), limit=2):
            pages.append([row.run_at - at("12:00") for row in page])
            before = page[-1].run_id
        assert pages == [[5 * 3600, 4 * 3600], [3 * 3600, 2 * 3600], [3600]]

    async def test_runs_are_found_by_schedule_by_status_and_by_id(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b")])
        await world.tick("1h")
        await world.tick("1h")
        (found,) = await world.store.runs(RunFilter("a", "SKIPPED"))
        assert (found.schedule_id, found.run_at) == ("a", at("14:00"))
        assert await world.store.run(found.run_id) == found
        assert await world.store.run(found.run_id + 100) is None

    async def test_events_are_returned_in_order_with_their_time_after_any_row(self, world):
        await world.define()
        created_at = world.clock.now()
        world.clock.advance("1m")
        await world.store.pause("report")
        created, paused = (await world.store.events())[-2:]
        assert (created.at, created.event.name) == (created_at, "schedule.created")
        assert (paused.at, paused.event.name) == (created_at + MINUTE, "schedule.paused")
        assert await world.store.events(after=created.event_id) == [paused]
        assert await world.store.events(after=paused.event_id) == []

    async def test_listener_receives_written_events_and_nothing_else(self, world):
        await live_through_everything(world)
        assert world.received == [row.event for row in await world.store.events(limit=100_000)]

    async def test_overview_counts_schedules_due_ticks_and_runs(self, world):
        await world.store.upsert([a_schedule("a"), a_schedule("b"), a_schedule("c", every="30m")])
        await world.store.pause("b")
        await world.tick("30m")
        await world.start()
        await world.tick("30m")
        world.clock.advance("1h")
        found = await world.store.overview()
        assert (found.now, found.schedules, found.paused) == (world.clock.now(), 3, 1)
        assert found.due == 2
        assert {status: n for status, n in found.runs.items() if n} == {"STARTED": 1, "ENQUEUED": 1}

    async def test_events_of_a_run_agree_with_its_row(self, world):
        await live_through_everything(world)
        last = {
            row.event.run_id: row.event.name
            for row in await world.store.events(limit=100_000)
            if row.event.name.startswith("run.")
        }  # fmt: skip
        rows = await world.rows()
        assert {row.run_id: row.status for row in rows} == {
            run_id: BECOMES[name] for run_id, name in last.items()
        }
        assert {row.status for row in rows} == set(BECOMES.values())


class TestPruning:
    async def test_old_runs_are_pruned_with_an_event(self, world):
        await world.define()
        for _ in range(3):
            await world.tick("1h")
            await world.end(await world.start_one())
        await world.new_events()
        assert await world.store.prune(before=at("14:30") * 1000) == 2
        assert await world.runs("run_at") == [at("15:00")]
        (pruned,) = await world.new_events()
        assert (pruned.name, pruned.runs) == ("history.pruned", 2)
        times = [row.at for row in await world.store.events()]
        assert min(times) >= at("14:30") * 1000

    async def test_skipped_runs_are_pruned_too(self, world):
        await world.define(catchup="none")
        await world.tick("90m")
        assert await world.runs("status") == ["SKIPPED"]
        assert await world.store.prune(before=world.clock.now() + 1) == 1

    async def test_unfinished_runs_are_never_pruned(self, world):
        await world.going(overlap="queue")
        await world.tick("1h")
        assert await world.store.prune(before=world.clock.now() + HOUR) == 0
        assert await world.runs("status") == ["STARTED", "ENQUEUED"]

    async def test_prune_removes_at_most_its_limit(self, world):
        await world.define()
        for _ in range(3):
            await world.tick("1h")
            await world.end(await world.start_one())
        gone = [await world.store.prune(before=at("20:00") * 1000, limit=2) for _ in range(3)]
        assert gone == [2, 1, 0]

    async def test_nothing_is_derived_from_pruned_history(self, world):
        await world.end(await world.going(max_runs=2))
        await world.store.prune(before=world.clock.now() + 1)
        world.clock.step(-HOUR)
        await world.define(every="30m", max_runs=2)
        row = await world.schedule()
        assert (row.runs_used, row.next_run_at) == (1, at("13:30"))
        assert row.last_success_at == at("13:00") * 1000

    async def test_deleted_schedule_is_pruned_with_its_last_run(self, world):
        await world.waiting()
        await world.store.delete("report")
        await world.store.prune(before=world.clock.now() + 1)
        assert (await world.define()).revision == 1


class TestTwoProcesses:
    @pytest.mark.parametrize("world", [Sqlite], indirect=True)
    async def test_store_held_by_a_node_is_refused_to_others_with_its_name(self, world):
        beside = await world.second()
        with pytest.raises(StoreHeld):
            await beside.register(a_node("late"))
        assert [node.node_id for node in await beside.nodes()] == [world.node.node_id]

    async def test_store_is_free_after_its_node_has_stopped(self, world):
        await world.store.unregister(world.node)
        beside = await world.second()
        await world.leave()
        found = await beside.register(a_node("next"))
        assert (found.lost, found.handed_back) == (0, 0)

    async def test_schedule_defined_by_one_process_is_planned_by_another(self, world):
        beside = await world.second()
        await world.store.changed_elsewhere()
        await beside.upsert([a_schedule("report")])
        heard = [await world.store.changed_elsewhere()]
        while not heard[-1] and len(heard) < 500:  # it is a hint, which takes its time
            await asyncio.sleep(0.01)
            heard.append(await world.store.changed_elsewhere())
        assert heard[-1]
        assert not await world.store.changed_elsewhere()
        await world.tick("1h")
        assert [row.run_at for row in await beside.runs()] == [at("13:00")]

    async def test_own_writes_are_not_changes_elsewhere(self, world):
        await world.store.changed_elsewhere()
        await world.define()
        assert not await world.store.changed_elsewhere()

    async def test_edit_by_one_process_is_launched_by_another(self, world):
        beside = await world.second()
        await world.end(await world.going())
        await beside.upsert([a_schedule("report", run={"command": ["new"]})])
        await world.tick("1h")
        assert (await world.start_one()).target.fields == {"command": ["new"]}

    async def test_pause_by_one_process_holds_another(self, world):
        beside = await world.second()
        await world.waiting()
        await beside.pause("report")
        assert await world.claim() == []

    async def test_run_requested_by_one_process_is_started_by_another(self, world):
        beside = await world.second()
        await world.define()
        row = await beside.enqueue("report", request_id="by-hand")
        assert (await world.start_one()).run_id == row.run_id


class TestLaws:
    @pytest.mark.parametrize("seed", range(10))
    async def test_every_tick_is_covered_once_under_random_calls(self, world, seed):
        chance = random.Random(seed)
        overlap, on_lost = chance.choice(["skip", "queue"]), chance.choice(["fail", "retry"])
        await world.define(every="10m", retry=["3m", "20m"], overlap=overlap, on_lost=on_lost)
        walk = Walk(world, chance)
        for _ in range(200):
            await walk.step()
        await walk.settle()
        rows = sorted(await world.rows("report"), key=lambda row: row.run_at)
        spans = [(row.first_run_at or row.run_at, row.run_at) for row in rows]
        ends = [at("12:00"), *(last for _, last in spans)]
        firsts = [*(first for first, _ in spans), (await world.schedule()).next_run_at]
        assert [first - last for last, first in zip(ends, firsts, strict=True)] == [600] * len(ends)
        assert [row.tick_count for row in rows] == [(b - a) // 600 + 1 for a, b in spans]
        assert {"ENQUEUED", "STARTED"}.isdisjoint(row.status for row in rows)


class Walk:
    """A random way through a store's calls. Each step keeps what must hold between any two."""

    def __init__(self, world, chance):
        self.world, self.chance = world, chance
        self.held = []  # attempts, those among them that were lost and do not know it
        self.fences = {}

    async def step(self):
        steps = [self.wait] * 3 + [self.plan, self.start] * 4 + [self.end] * 3
        steps += [self.abandon, self.restart, self.pause, self.resume, self.gate, self.edit]
        await self.chance.choice(steps)()
        started = await self.world.store.runs(RunFilter(status="STARTED"))
        assert len(started) <= 1, "a schedule that does not allow overlap has one run going"

    async def wait(self):
        self.world.clock.advance(self.chance.choice(["30s", "4m", "10m", "3h"]))
        if self.chance.random() < 0.1:
            self.world.clock.step(-20 * MINUTE)

    async def plan(self):
        self.hold((await self.world.plan(slots=self.chance.choice([0, 1]))).attempts)

    async def start(self):
        self.hold(await self.world.start())

    async def end(self):
        if self.held:
            attempt = self.held.pop(self.chance.randrange(len(self.held)))
            await self.world.end(attempt, self.chance.choice([Succeeded(), BROKEN]))

    async def abandon(self):
        claimed = await self.world.claim()
        self.hold(claimed)
        await self.world.store.hand_back(claimed)

    async def restart(self):
        await self.world.restart()

    async def pause(self):
        await self.world.store.pause("report")

    async def resume(self):
        await self.world.store.resume("report", catchup=self.chance.random() < 0.5)

    async def gate(self):
        await self.world.store.set_gate(is_open=self.chance.random() < 0.7)

    async def edit(self):
        row = await self.world.schedule()
        kept = from_definition("report", row.definition)
        text = f"edited {self.chance.random()}"
        fresh = Schedule("report", kept.trigger, kept.target, kept.policy, text)
        await self.world.store.upsert([fresh])

    def hold(self, attempts):
        for attempt in attempts:
            assert attempt.due_at <= self.world.clock.now(), "it is early"
            assert attempt.run_at * 1000 <= attempt.due_at or attempt.attempt > 1, "it is early"
            assert attempt.fence > self.fences.get(attempt.run_id, 0), "a fence fell"
            self.fences[attempt.run_id] = attempt.fence
        self.held += attempts

    async def settle(self):
        """Let faults stop, and everything that waits come to its end."""
        await self.world.restart()
        await self.world.store.set_gate(is_open=True)
        await self.world.store.resume("report")
        self.world.clock.advance("1h")
        while (await self.world.plan()).ticks:
            pass
        while attempts := await self.world.start():
            for attempt in attempts:
                await self.world.end(attempt)


async def everything(store):
    """Return all that can be read."""
    return (
        await store.schedules(),
        await store.schedule("report"),
        await store.runs(),
        await store.run(1),
        await store.events(),
        await store.overview(),
        await store.next_due(after=0),
    )


async def live_through_everything(world):
    """Bring runs into every state there is, each on a way of its own."""
    await world.store.upsert([a_schedule(name) for name in ("success", "failed", "lost", "again")])
    await world.define("again", retry=["1s"], on_lost="retry")
    await world.define("canceled", overlap="queue")
    await world.tick("1h")
    ends = {"success": Succeeded(), "failed": BROKEN, "again": BROKEN}
    attempts = await world.start()
    await world.store.finish(
        [Finished(a, ends[a.schedule_id]) for a in attempts if a.schedule_id in ends]
    )
    await world.restart()
    await world.tick("1h")
    await world.store.hand_back((await world.claim())[:1])
    await world.store.delete("canceled")
    await world.store.pause("success")
    await world.tick("2h")
    await world.store.resume("success")
    await world.store.set_gate(is_open=False)
    world.clock.advance("2h")
    await world.store.set_gate(is_open=True)
    world.clock.advance("1h")
    with pytest.raises(Crash):
        await world.plan(failing_at("failed", Crash()))
    await world.plan()
    await world.store.enqueue("success", request_id="by-hand")
    await world.start()
    await world.define("waiting")
    await world.tick("1h")


BECOMES = {
    "run.enqueued": "ENQUEUED",
    "run.claimed": "ENQUEUED",
    "run.released": "ENQUEUED",
    "run.handed_back": "ENQUEUED",
    "run.retrying": "ENQUEUED",
    "run.started": "STARTED",
    "run.succeeded": "SUCCESS",
    "run.failed": "FAILED",
    "run.canceled": "CANCELED",
    "run.skipped": "SKIPPED",
}


# -- a closed store


async def test_calls_of_a_closed_store_are_refused_immediately(world):
    """A client may still hold it, such as a launch that ends after its node."""
    store, node = await world.second(), a_node("late")
    await store.schedules()
    await store.close()
    world._opened.remove(store)
    async with asyncio.timeout(5):
        for call in (
            store.keep("note", "a", {}),
            store.kept("note", "a"),
            store.schedules(),
            store.heartbeat(node),
            store.claim(node, limit=1),
            store.next_due(after=0),
        ):
            with pytest.raises(StoreUnusable, match="the store is closed"):
                await call
