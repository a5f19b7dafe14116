"""The contract of stores for groups, deadlines, chains, conditions, cancellations and backfills.

It is noon on New Year's Day; schedules are hourly and called `report` by default.
"""

import pytest

from onbeat import InvalidSchedule
from onbeat.core.decide.backfill import Add, Refuse, Revive
from onbeat.core.decide.outcomes import UNREPORTED
from onbeat.core.explain.attempts import UNLAUNCHED
from onbeat.core.explain.why import explain
from onbeat.core.notify.channels import REFERENCE_START
from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Gone, Lost, Succeeded, run_key
from onbeat.core.time.instants import parse_instant
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.ports.store import Attempt, Finished
from onbeat.testing import a_schedule
from tests.stores.conftest import a_node

BROKEN = Failed("it broke")
MINUTE, HOUR = 60_000, 3_600_000


def at(text):
    """Return an instant of the day, in the seconds of a `run_at`."""
    return parse_instant(f"2026-01-01T{text}:00Z")


def ms(text):
    return at(text) * 1000


class TestGroups:
    async def test_group_has_one_place_by_default(self, world):
        for name in ("a", "b", "c"):
            await world.define(name, group="gpu")
        await world.tick()
        assert [a.schedule_id for a in await world.start()] == ["a"]
        assert await world.start() == []
        (group,) = await world.store.groups()
        assert (group.name, group.places, group.used, group.waiting) == ("gpu", 1, 1, 2)
        assert await world.store.set_group("gpu", places=2)
        assert not await world.store.set_group("gpu", places=2)
        assert [a.schedule_id for a in await world.start()] == ["b"]

    async def test_claimed_run_has_its_place_in_the_group(self, world):
        await world.define("a", group="gpu")
        await world.define("b", group="gpu")
        await world.tick()
        (claimed,) = await world.claim()
        assert await world.claim() == []
        await world.store.hand_back([claimed])
        assert len(await world.claim()) == 1

    @pytest.mark.parametrize("outcome", [Succeeded(), BROKEN, Canceled("asked"), Busy("no", 5000)])
    async def test_ended_or_retrying_run_releases_its_place(self, world, outcome):
        first = await world.going(group="gpu", retry=["1h"])
        await world.store.enqueue("report", request_id="by-hand")
        assert await world.start() == []
        await world.end(first, outcome)
        assert [a.request_id for a in await world.start()] == ["by-hand"]

    async def test_accepted_run_keeps_its_place_in_the_group(self, world):
        first = await world.going(group="gpu")
        await world.store.enqueue("report", request_id="by-hand")
        await world.end(first, Accepted("x1"))
        assert await world.start() == []

    async def test_full_group_blocks_no_run_outside_it(self, world):
        for n in range(60):
            await world.define(f"a{n}", group="gpu")
        await world.define("z")
        await world.tick()
        assert {a.schedule_id for a in await world.claim(limit=20)} == {"a0", "z"}

    async def test_planner_announces_no_run_of_a_group(self, world):
        await world.define(group="gpu")
        world.clock.advance("1h")
        assert (await world.plan(slots=10)).attempts == []

    async def test_edit_with_update_waiting_moves_runs_to_the_new_group(self, world):
        await world.waiting(group="gpu")
        await world.define(group="disk", priority=7, update_waiting=True)
        (row,) = await world.rows()
        assert (row.grp, row.priority) == ("disk", 7)

    async def test_runs_with_the_highest_priority_start_first(self, world):
        for name, priority in (("low", -5), ("high", 9), ("plain", 0)):
            await world.define(name, priority=priority)
        await world.tick()
        assert [a.schedule_id for a in await world.claim()] == ["high", "plain", "low"]


class TestDeadlines:
    async def test_run_past_its_start_deadline_is_skipped_and_never_starts(self, world):
        await world.waiting(start_deadline="10m")
        world.clock.advance("10m")
        assert await world.start() == []
        assert await world.store.expire(limit=10) == 1
        assert (await world.row()).reason == "deadline"
        assert await world.store.expire(limit=10) == 0

    async def test_next_due_includes_the_start_deadline(self, world):
        await world.waiting(start_deadline="10m")
        assert await world.store.next_due(after=world.clock.now()) == ms("13:10")

    async def test_run_expired_in_a_full_group_has_the_reason_group_full(self, world):
        await world.define("a", group="gpu")
        await world.define("b", group="gpu", start_deadline="10m")
        await world.tick()
        await world.start()
        world.clock.advance("10m")
        await world.store.expire(limit=10)
        assert await world.runs("status reason", "b") == [("SKIPPED", "group_full")]

    async def test_start_deadline_of_a_missed_tick_counts_from_its_decision(self, world):
        await world.define(start_deadline="10m")
        await world.tick("90m")
        assert (await world.row()).deadline_at == ms("13:40")

    async def test_start_deadline_of_a_retry_counts_from_its_due_time(self, world):
        attempt = await world.going(start_deadline="10m", retry=["20m"])
        await world.end(attempt, BROKEN)
        assert (await world.row()).deadline_at == ms("13:30")

    async def test_busy_target_does_not_extend_the_start_deadline(self, world):
        attempt = await world.going(start_deadline="10m", retry=["1m"])
        await world.end(attempt, Busy("not now", 20 * MINUTE))
        world.clock.advance("10m")
        await world.store.expire(limit=10)
        assert await world.runs("status reason deferrals") == [("SKIPPED", "busy", 1)]

    async def test_deletion_cancels_the_queue_behind_a_running_run(self, world):
        await world.going(overlap="queue", start_deadline="2h")
        await world.tick()
        await world.tick()
        await world.store.delete("report")  # what waits is canceled, so that nothing is left
        assert await world.runs("status") == ["STARTED", "CANCELED", "CANCELED"]

    async def test_closed_gate_expires_no_run(self, world):
        await world.waiting(start_deadline="10m")
        await world.store.set_gate(is_open=False)
        world.clock.advance("10m")
        assert await world.store.expire(limit=10) == 0


class TestAccepted:
    @pytest.mark.parametrize("every", ["10m", "1h"])
    async def test_accepted_run_is_in_flight_for_an_hour_by_default(self, world, every):
        await world.end(await world.going(every=every), Accepted("x1"))
        row = await world.row()
        assert (row.status, row.leased_by, row.external_id) == ("STARTED", None, "x1")
        assert row.deadline_at == world.clock.now() + 3_600_000
        assert "run.accepted" in await world.names_told()

    async def test_accepted_run_is_awaited_for_its_timeout(self, world):
        await world.end(await world.going(timeout="5m"), Accepted())
        assert (await world.row()).deadline_at == ms("13:05")

    async def test_unreported_run_has_failed_and_blocks_no_other(self, world):
        await world.end(await world.going(timeout="30m"), Accepted())
        await world.tick()
        assert await world.runs("status reason") == [("FAILED", "timeout"), ("ENQUEUED", None)]

    async def test_accepted_run_blocks_the_next_until_its_deadline(self, world):
        await world.end(await world.going(timeout="2h"), Accepted())
        await world.tick()
        assert await world.runs("status reason") == [("STARTED", None), ("SKIPPED", "overlap")]

    async def test_report_after_the_deadline_is_refused_with_what_to_raise_and_noted_once(
        self, world
    ):
        attempt = await world.going(timeout="30m")
        await world.end(attempt, Accepted())
        await world.tick()
        for _ in range(2):
            with pytest.raises(RunIsOver, match="FAILED since its deadline"):
                await world.store.report(attempt.run_id, Succeeded())
            world.clock.advance("1m")
        row = await world.store.run(attempt.run_id)
        assert (row.status, row.reason) == ("FAILED", "timeout")
        assert row.error == f"{UNREPORTED}; it reported SUCCESS at 2026-01-01T14:00:00.000Z"
        assert (await world.names_told()).count("run.reported_late") == 1

    async def test_failure_reported_after_the_deadline_keeps_its_error(self, world):
        attempt = await world.going(timeout="30m")
        await world.end(attempt, Accepted())
        await world.tick()
        row = await world.store.report(attempt.run_id, BROKEN)
        assert row.status == "FAILED"
        assert row.error.endswith(f"it reported FAILED at 2026-01-01T14:00:00.000Z: {BROKEN.error}")

    async def test_report_about_a_run_that_timed_out_on_its_node_is_not_late(self, world):
        attempt = await world.going()
        await world.end(attempt, Failed("still running", "timeout", retryable=False))
        with pytest.raises(RunIsOver, match="is FAILED: nothing was changed"):
            await world.store.report(attempt.run_id, Succeeded())
        assert (await world.row()).error == "still running"

    async def test_overview_names_accepted_runs_with_their_deadlines(self, world):
        attempt = await world.going(timeout="30m")
        assert (await world.store.overview()).awaited == []
        await world.end(attempt, Accepted("x1"))
        (found,) = (await world.store.overview()).awaited
        assert (found.run_id, found.schedule_id, found.deadline_at, found.external_id) == (
            attempt.run_id, "report", world.clock.now() + 1_800_000, "x1",
        )  # fmt: skip
        await world.store.report(attempt.run_id, Succeeded())
        assert (await world.store.overview()).awaited == []

    async def test_accepted_run_is_reported_by_its_id(self, world):
        attempt = await world.going()
        await world.end(attempt, Accepted())
        row = await world.store.report(attempt.run_id, Succeeded({"rows": 3}))
        assert (row.status, row.result) == ("SUCCESS", {"rows": 3})
        assert (await world.store.report(attempt.run_id, Succeeded())).result == {"rows": 3}
        with pytest.raises(RunIsOver, match="is SUCCESS: nothing was changed"):
            await world.store.report(attempt.run_id, BROKEN)

    async def test_run_is_reported_by_its_key_even_before_it_was_accepted(self, world):
        await world.register(offers=frozenset({"http"}))
        await world.waiting(run={"http": "http://127.0.0.1/run"})
        attempt = await world.start_one()
        await world.store.report(run_key("report", at("13:00")), Failed("broken", retryable=False))
        assert await world.end(attempt, Accepted()) == []
        assert await world.runs("status reason") == [("FAILED", "error")]
        with pytest.raises(NoSuchRun):
            await world.store.report("no such key", Succeeded())

    async def test_target_may_report_the_start_and_an_external_id(self, world):
        attempt = await world.going()
        await world.end(attempt, Accepted())
        before = await world.row()
        assert (
            await world.store.report(attempt.run_id, Accepted())
        ).updated_at == before.updated_at
        for _ in range(2):  # a repeated report emits no event
            row = await world.store.report(attempt.run_id, Accepted("x1"))
            assert (row.status, row.external_id) == ("STARTED", "x1")
        assert (await world.names_told()).count("run.named") == 1
        row = await world.store.report(attempt.run_id, Succeeded(), external_id="x2")
        assert (row.status, row.external_id) == ("SUCCESS", "x2")
        with pytest.raises(RunIsOver):
            await world.store.report(attempt.run_id, Accepted("x3"))
        assert (await world.row()).external_id == "x2"

    async def test_external_id_reported_before_acceptance_is_kept(self, world):
        await world.register(offers=frozenset({"http"}))
        await world.waiting(run={"http": "http://127.0.0.1/run"})
        attempt = await world.start_one()
        await world.store.report(run_key("report", at("13:00")), Accepted("x1"))
        await world.end(attempt, Accepted())
        assert await world.runs("status external_id") == [("STARTED", "x1")]

    async def test_reported_failure_is_retried(self, world):
        attempt = await world.going(retry=["1m"])
        await world.end(attempt, Accepted())
        await world.store.report(attempt.run_id, BROKEN)
        assert (await world.row()).status == "ENQUEUED"

    async def test_run_held_by_a_node_cannot_be_reported(self, world):
        attempt = await world.going()
        with pytest.raises(RunIsHeld, match="which reports its outcome"):
            await world.store.report(attempt.run_id, Succeeded())
        assert (await world.row()).status == "STARTED"

    async def test_accepted_run_stays_when_its_node_leaves(self, world):
        await world.end(await world.going(timeout="3h"), Accepted())
        await world.restart()
        assert (await world.row()).status == "STARTED"


class TestSwitches:
    @pytest.mark.parametrize(
        ("off", "reason"),
        [
            ({"enabled": False}, "disabled"),
            ({"run": {"command": ["true"], "enabled": False}}, "disabled_target"),
        ],
    )
    async def test_waiting_run_of_a_disabled_schedule_does_not_start(self, world, off, reason):
        first = await world.going(overlap="queue")
        await world.tick()
        await world.define(overlap="queue", **off)
        await world.end(first)
        assert await world.start() == []
        assert (await world.runs("status reason"))[1] == ("SKIPPED", reason)

    async def test_retry_is_triggered_by_retry(self, world):
        attempt = await world.going(retry=["1m"])
        assert attempt.triggered_by == "timer"
        await world.end(attempt, BROKEN)
        world.clock.advance("1m")
        assert (await world.start_one()).triggered_by == "retry"


class TestOutcomes:
    async def test_busy_target_uses_no_retry(self, world):
        attempt = await world.going(retry=["1m"])
        for _ in range(3):
            await world.end(attempt, Busy("not now", 1000))
            world.clock.advance("1s")
            attempt = await world.start_one()
        await world.end(attempt, BROKEN)
        row = (await world.rows())[0]
        assert (row.status, row.attempt, row.deferrals) == ("ENQUEUED", 4, 3)

    async def test_missing_target_is_not_retried(self, world):
        await world.end(await world.going(retry=["1m"]), Gone("it was taken away"))
        assert await world.runs("status reason error") == [
            ("FAILED", "invalid_target", "it was taken away")
        ]


class TestCanceling:
    async def test_waiting_run_is_canceled_immediately(self, world):
        await world.waiting()
        row = await world.store.cancel((await world.row()).run_id, note="not today")
        assert (row.status, row.reason, row.error) == ("CANCELED", "canceled", "not today")
        assert await world.start() == []

    async def test_canceled_claimed_run_cannot_be_announced(self, world):
        await world.waiting()
        (claimed,) = await world.claim()
        await world.store.cancel(claimed.run_id)
        assert await world.announce([claimed]) == []

    async def test_cancellation_of_a_started_run_is_requested_from_its_node(self, world):
        attempt = await world.going(retry=["1m"])
        assert (await world.store.cancel(attempt.run_id)).status == "STARTED"
        assert await world.store.to_end(world.node) == [(attempt.run_id, attempt.fence)]
        assert await world.store.to_end(a_node("another")) == []
        await world.end(attempt, Canceled("ended"))
        assert await world.store.to_end(world.node) == []
        assert await world.runs("status reason") == [("CANCELED", "canceled")]

    @pytest.mark.parametrize("outcome", [BROKEN, Busy("not now", 1000)])
    async def test_run_with_a_cancellation_request_is_not_retried(self, world, outcome):
        attempt = await world.going(retry=["1m"])
        await world.store.cancel(attempt.run_id)
        await world.end(attempt, outcome)
        assert (await world.row()).finished_at is not None

    async def test_unlaunched_run_with_a_cancellation_request_is_canceled(self, world):
        attempt = await world.going()
        await world.store.cancel(attempt.run_id)
        await world.store.hand_back([attempt])
        assert await world.runs("status reason error") == [("CANCELED", "canceled", UNLAUNCHED)]

    async def test_canceled_waiting_run_releases_the_run_queued_behind_it(self, world):
        await world.waiting(overlap="queue")
        await world.tick()
        first, second = await world.rows()
        assert (first.blocked_by, second.blocked_by) == (None, first.run_id)
        await world.store.cancel(first.run_id)
        assert (await world.rows())[1].blocked_by is None
        assert [attempt.run_id for attempt in await world.start()] == [second.run_id]

    async def test_canceled_queued_run_keeps_the_queue_in_order(self, world):
        await world.going(overlap="queue")
        await world.tick()
        await world.tick()
        second = (await world.rows())[1]
        await world.store.cancel(second.run_id)
        assert await world.runs("status blocked_by") == [
            ("STARTED", None), ("CANCELED", None), ("ENQUEUED", 1),
        ]  # fmt: skip

    async def test_accepted_run_is_canceled_immediately(self, world):
        attempt = await world.going()
        await world.end(attempt, Accepted())
        row = await world.store.cancel(attempt.run_id)
        assert row.status == "CANCELED"
        assert "its target had accepted it and was not notified" in row.error

    async def test_cancellation_of_an_ended_run_is_refused(self, world):
        attempt = await world.going()
        await world.end(attempt)
        with pytest.raises(RunIsOver):
            await world.store.cancel(attempt.run_id)
        with pytest.raises(NoSuchRun):
            await world.store.cancel(99)


class TestReplacing:
    async def test_running_run_is_replaced_by_the_newest(self, world):
        first = await world.going(overlap="replace")
        assert (await world.tick()).has_cancel_requests
        await world.tick()
        assert await world.runs("status reason") == [
            ("STARTED", "superseded"), ("SKIPPED", "superseded"), ("ENQUEUED", None),
        ]  # fmt: skip
        assert await world.start() == []
        await world.end(first, Canceled("ended"))
        assert [a.run_at for a in await world.start()] == [at("15:00")]
        assert (await world.rows())[0].reason == "superseded"

    async def test_claimed_run_is_replaced_immediately(self, world):
        await world.waiting(overlap="replace")
        (claimed,) = await world.claim()
        await world.tick()
        assert await world.announce([claimed]) == []
        assert [a.run_at for a in await world.start()] == [at("14:00")]

    async def test_lost_run_with_a_cancellation_request_is_not_restarted(self, world):
        first = await world.going(overlap="replace", on_lost="retry")
        await world.tick()
        await world.end(first, Lost())
        assert (await world.rows())[0].status == "FAILED"


class TestFollowing:
    async def test_success_gives_its_follower_a_tick_immediately(self, world):
        await world.store.upsert(
            [a_schedule("b", after={"schedule": "a", "outcome": "success"}), a_schedule("a")]
        )
        await world.tick()
        attempt = await world.start_one()
        world.clock.advance(5_300)
        await world.end(attempt)
        assert (await world.schedule("b")).next_run_at == at("13:00") + 5
        assert (await world.plan()).enqueued == 1

    async def test_events_before_the_tick_is_decided_join_it(self, world):
        after = {"schedule": "a", "outcome": "completion", "delay": "30m"}
        await world.store.upsert([a_schedule("b", after=after), a_schedule("a", overlap="allow")])
        for n in range(3):
            await world.store.enqueue("a", request_id=str(n))
        await world.store.finish([Finished(each, BROKEN) for each in await world.start()])
        assert (await world.schedule("b")).next_run_at == at("12:30")
        await world.tick("31m")
        (row,) = await world.rows("b")
        assert (row.tick_count, row.first_run_at) == (3, None)

    @pytest.mark.parametrize("outcome", [Canceled("asked"), Busy("not now", 5000), Accepted()])
    async def test_canceled_or_skipped_run_causes_no_tick(self, world, outcome):
        after = {"schedule": "a", "outcome": "completion"}
        await world.store.upsert([a_schedule("b", after=after), a_schedule("a")])
        await world.tick()
        await world.end(await world.start_one(), outcome)
        assert (await world.schedule("b")).next_run_at is None

    async def test_schedule_follows_its_own_success(self, world):
        await world.define(any=[{"daily": "13:00"}, {"after": {"success": "10m"}}])
        await world.tick()
        await world.end(await world.start_one())
        assert (await world.schedule()).next_run_at == at("13:10")

    async def test_cycle_is_refused_and_nothing_is_defined(self, world):
        chain = [
            a_schedule(name, after={"schedule": followed, "outcome": "success"})
            for name, followed in (("a", "c"), ("b", "a"), ("c", "b"))
        ]
        with pytest.raises(InvalidSchedule, match="a follows c follows b follows a"):
            await world.store.upsert(chain)
        assert await world.store.schedules() == []

    async def test_missing_schedule_cannot_be_followed(self, world):
        with pytest.raises(InvalidSchedule, match="'gone', which does not exist"):
            await world.define(after={"schedule": "gone", "outcome": "success"})

    async def test_events_during_a_pause_belong_to_the_pause(self, world):
        await world.store.upsert(
            [a_schedule("b", after={"schedule": "a", "outcome": "success"}), a_schedule("a")]
        )
        await world.store.pause("b")
        await world.tick()
        await world.end(await world.start_one())
        world.clock.advance("1m")
        await world.store.resume("b")
        assert await world.runs("status reason", "b") == [("SKIPPED", "paused")]

    async def test_first_node_to_start_causes_a_startup_tick(self, world):
        await world.define(startup="30s")
        assert (await world.schedule()).next_run_at is None
        await world.restart()
        assert (await world.schedule()).next_run_at == at("12:00") + 30

    async def test_lost_run_causes_ticks_of_its_followers(self, world):
        after = {"schedule": "a", "outcome": "failure"}
        await world.store.upsert([a_schedule("b", after=after), a_schedule("a")])
        await world.tick()
        await world.start_one()
        world.clock.advance("10s")
        await world.restart()
        while await world.store.rescue(world.node) is not None:
            pass
        assert (await world.schedule("b")).next_run_at == at("13:00") + 10


class TestPausing:
    async def test_pause_with_an_end_is_resumed_automatically(self, world):
        await world.define()
        assert await world.store.pause("report", note="holiday", until=ms("14:30"))
        row = await world.schedule()
        assert (row.paused, row.next_run_at, row.paused_until) == (True, None, ms("14:30"))
        await world.tick("2h")
        assert await world.rows() == []
        await world.tick("30m")
        row = await world.schedule()
        assert (row.paused, row.next_run_at, row.paused_until) == (False, at("15:00"), None)
        assert await world.runs("status reason tick_count") == [("SKIPPED", "paused", 2)]

    async def test_tick_at_the_end_of_a_pause_does_not_belong_to_it(self, world):
        await world.define()
        await world.store.pause("report", until=ms("14:00"))
        await world.tick("2h")
        await world.plan()
        assert await world.runs("run_at reason") == [(at("13:00"), "paused"), (at("14:00"), None)]

    @pytest.mark.parametrize("by_hand", [True, False])
    async def test_tick_after_the_end_of_a_pause_is_missed_and_caught_up(self, world, by_hand):
        await world.define()
        await world.store.pause("report", until=ms("13:30"))
        world.clock.advance("5h")
        if by_hand:
            await world.store.resume("report")
        await world.plan()
        await world.plan()
        assert await world.runs("run_at reason triggered_by tick_count") == [
            (at("13:00"), "paused", "timer", 1), (at("17:00"), None, "catchup", 4),
        ]  # fmt: skip

    async def test_pause_note_can_be_changed_and_is_kept_by_default(self, world):
        await world.define()
        await world.store.pause("report", note="holiday")
        assert await world.store.pause("report", until=ms("14:30"))
        assert (await world.schedule()).pause_note == "holiday"
        assert await world.store.pause("report", note="longer", until=ms("14:30"))
        assert (await world.schedule()).pause_note == "longer"

    async def test_edit_keeps_the_end_of_a_pause(self, world):
        await world.define()
        await world.store.pause("report", until=ms("14:30"))
        await world.define(every="30m")
        await world.tick("150m")
        assert not (await world.schedule()).paused

    async def test_pause_can_be_extended_or_made_endless(self, world):
        await world.define()
        await world.store.pause("report", until=ms("14:30"))
        assert await world.store.pause("report", until=ms("15:30"))
        assert not await world.store.pause("report", until=ms("15:30"))
        assert await world.store.pause("report")
        await world.tick("5h")
        assert (await world.schedule()).paused

    async def test_consecutive_failures_pause_a_schedule(self, world):
        await world.define(pause_after=2)
        for _ in range(2):
            await world.tick()
            await world.end(await world.start_one(), BROKEN)
        row = await world.schedule()
        assert (row.paused, row.pause_note) == (True, "2 runs in a row have failed")
        await world.store.resume("report")
        assert (await world.schedule()).consecutive_failures == 0

    async def test_failures_without_their_retries_count_for_pause_after(self, world):
        await world.define(pause_after=2, retry=["3h"])
        for _ in range(3):
            await world.tick()
            await world.end(await world.start_one(), BROKEN)
        assert (await world.schedule()).paused


class TestConditions:
    async def test_run_with_a_condition_that_does_not_hold_is_skipped(self, world):
        await world.waiting(when={"command": ["false"]})
        (claimed,) = await world.claim()
        assert claimed.when.fields == {"command": ["false"]}
        await world.store.skip_condition([claimed])
        assert await world.runs("status reason") == [("SKIPPED", "condition")]

    async def test_run_no_longer_held_by_the_node_is_not_skipped(self, world):
        await world.waiting(when={"command": ["false"]})
        (claimed,) = await world.claim()
        await world.store.hand_back([claimed])
        await world.store.skip_condition([claimed])
        assert (await world.row()).status == "ENQUEUED"


class TestRendering:
    async def test_templates_are_rendered_once_for_all_attempts(self, world):
        run = {"command": ["echo", "{{ date }} {{ last.result.n | default('none') }}"]}
        await world.waiting(run=run, retry=["1m"])
        attempt = await world.start_one()
        assert attempt.target.fields["command"] == ["echo", "2026-01-01 none"]
        await world.store.enqueue("report", request_id="other")
        await world.end(await world.start_one(), Succeeded({"n": 7}))
        await world.end(attempt, BROKEN)
        world.clock.advance("1m")
        again = await world.start_one()
        assert again.target.fields == attempt.target.fields
        rows = await world.rows()
        assert rows[0].rendered == {"command": ["echo", "2026-01-01 none"]}

    async def test_manual_inputs_are_not_rendered(self, world):
        run = {"command": ["true"], "inputs": {"day": "{{ date }}", "text": "plain"}}
        await world.define(run=run)
        await world.store.enqueue("report", request_id="x", inputs={"text": "{{ date }}"})
        attempt = await world.start_one()
        assert attempt.inputs == {"day": "2026-01-01", "text": "{{ date }}"}

    async def test_answer_of_a_target_is_never_a_secret_reference(self, world):
        await world.register(offers=frozenset({"http"}))
        headers = {"X-Last": "{{ last.result }}", "Authorization": "${env:TOKEN}"}
        await world.waiting(run={"http": "http://127.0.0.1/", "headers": headers})
        await world.end(await world.start_one(), Succeeded("${env:TOKEN}"))
        await world.tick()
        found = (await world.start_one()).target.fields["headers"]
        assert found == {"X-Last": "$ {env:TOKEN}", "Authorization": "${env:TOKEN}"}

    async def test_answer_of_a_target_never_names_a_secret_file(self, world):
        await world.register(offers=frozenset({"command"}))
        env = {"LAST": "{{ last.result }}", "LOW": "{{ last.result | lower }}", "OWN": "secret://a"}
        await world.waiting(run={"command": ["echo", "{{ last.result }}"], "env": env})
        for result in ("secret://a", "SECRET://a", "${env:A}"):
            await world.end(await world.start_one(), Succeeded(result))
            await world.tick()
            attempt = await world.start_one()
            names = [
                each
                for each in attempt.target.fields["env"].values()
                if REFERENCE_START.search(each)
            ]
            assert names == ["secret://a"]
            assert attempt.target.fields["command"] == ["echo", result]
            await world.end(attempt)
            await world.tick()


class TestBackfill:
    async def fill(self, world, first, last, limit=100):
        return await world.store.backfill("report", first=at(first), last=at(last), limit=limit)

    async def test_backfill_covers_ticks_before_the_definition(self, world):
        await world.define()
        done = await self.fill(world, "09:00", "12:00")
        assert (done.enqueued, done.refused, done.following) == (4, 0, None)
        assert await world.runs("run_at status triggered_by") == [
            (at(t), "ENQUEUED", "backfill") for t in ("09:00", "10:00", "11:00", "12:00")
        ]
        assert (await world.rows())[0].key == run_key("report", at("09:00"))

    async def test_backfilled_skip_keeps_its_row_and_its_key(self, world):
        first = await world.going()
        await world.tick()
        await world.end(first)
        skipped = (await world.rows())[1]
        await self.fill(world, "13:00", "14:00")
        row = (await world.rows())[1]
        assert (row.run_id, row.key) == (skipped.run_id, skipped.key)
        assert (row.status, row.reason, row.blocked_by) == ("ENQUEUED", None, None)
        assert "run.backfilled" in await world.names_told()

    async def test_backfill_refuses_ticks_that_ran_wait_or_are_undecided(self, world):
        first = await world.going(overlap="queue")
        await world.tick()
        await world.end(first)
        found = await world.store.preview_backfill(
            "report", first=at("13:00"), last=at("15:00"), limit=10
        )
        assert [choice.why for choice in found] == ["ran", "waits", "undecided"]
        done = await self.fill(world, "13:00", "15:00")
        assert (done.enqueued, done.refused) == (0, 3)
        assert (await self.fill(world, "13:00", "15:00")).enqueued == 0

    async def paused_from_13_to_22(self, world):
        await world.define()
        await world.store.pause("report")
        world.clock.advance("10h")
        await world.store.resume("report")

    async def covered(self, world):
        """Return how often each hour from 13:00 to 22:00 has a row, and the ranges there are."""
        rows = await world.rows()
        own = {row.run_at for row in rows if row.first_run_at is None}
        ranges = [row for row in rows if row.first_run_at is not None]
        total = len(own) + sum(row.tick_count for row in ranges)
        return total, [(row.first_run_at, row.run_at, row.tick_count) for row in ranges]

    async def test_backfill_of_part_of_a_range_leaves_the_rest_in_it(self, world):
        await self.paused_from_13_to_22(world)
        done = await self.fill(world, "15:00", "16:00")
        assert done.enqueued == 2
        total, ranges = await self.covered(world)
        assert total == 10
        assert ranges == [(at("13:00"), at("22:00"), 8)]

    async def test_backfill_of_the_end_of_a_range_moves_the_rest_to_another_row(self, world):
        await self.paused_from_13_to_22(world)
        (before,) = await world.rows()
        await self.fill(world, "15:00", "16:00")
        await self.fill(world, "17:00", "22:00")
        total, ranges = await self.covered(world)
        assert total == 10
        assert ranges == [(at("13:00"), at("14:00"), 2)]
        (last,) = [row for row in await world.rows() if row.run_at == at("22:00")]
        assert (last.run_id, last.status) == (before.run_id, "ENQUEUED")

    async def test_range_is_backfilled_in_two_steps(self, world):
        await self.paused_from_13_to_22(world)
        first = await self.fill(world, "13:00", "22:00", limit=4)
        assert (first.enqueued, first.following) == (4, at("16:00") + 1)
        await world.store.backfill("report", first=first.following, last=at("22:00"), limit=100)
        assert await self.covered(world) == (10, [])
        assert {row.status for row in await world.rows()} == {"ENQUEUED"}

    async def test_backfill_has_at_most_a_hundred_waiting_runs(self, world):
        await world.define(every="1m")
        done = await self.fill(world, "09:00", "11:59")
        assert (done.enqueued, done.waiting) == (100, 100)
        again = await world.store.backfill(
            "report", first=done.following, last=at("11:59"), limit=100
        )
        assert (again.enqueued, again.following) == (0, done.following)

    async def test_backfill_runs_one_after_another_behind_ticks(self, world):
        await world.define()
        await self.fill(world, "10:00", "12:00")
        assert [a.run_at for a in await world.start()] == [at("10:00")]
        assert await world.start() == []
        await world.end(await self.started(world))
        assert [a.run_at for a in await world.claim()] == [at("11:00")]

    async def started(self, world):
        """Return the attempt that is started, as its node knows it."""
        (row,) = [row for row in await world.rows() if row.status == "STARTED"]
        return attempt_at(row)

    async def test_backfill_runs_during_a_pause(self, world):
        await world.define()
        await world.store.pause("report")
        await self.fill(world, "10:00", "10:00")
        assert len(await world.start()) == 1

    async def test_backfill_refuses_ticks_before_the_history(self, world):
        await world.going()
        await world.end(await self.started(world))
        world.clock.advance("1h")
        await world.store.prune(before=ms("13:30"))
        found = await world.store.preview_backfill(
            "report", first=at("12:00"), last=at("13:00"), limit=10
        )
        assert [type(choice) for choice in found] == [Add, Refuse]
        assert found[1].why == "forgotten"

    async def test_backfill_preview_changes_nothing(self, world):
        await self.paused_from_13_to_22(world)
        before = await world.rows()
        await world.new_events()
        found = await world.store.preview_backfill(
            "report", first=at("12:00"), last=at("22:00"), limit=100
        )
        assert [type(choice) for choice in found] == [Add] * 10 + [Revive]
        assert await world.rows() == before
        assert await world.new_events() == []


class TestWhy:
    async def test_why_explains_a_manual_run_at_its_instant_and_as_the_latest(self, world):
        await world.define(every="1h")
        world.clock.advance("30m")
        await world.store.enqueue("report", request_id="me")
        for when in (at("12:30"), None):
            found = explain(await world.store.facts("report", when))
            assert (found.kind, found.run.triggered_by) == ("waiting", "manual")
        await world.tick("30m")
        found = explain(await world.store.facts("report", None))
        assert (found.at, found.run.triggered_by) == (at("13:00"), "timer")

    async def test_why_explains_a_tick_by_the_definition_that_decided_it(self, world):
        await world.going()
        await world.tick()
        await world.define(overlap="queue", cron="30 * * * *")
        found = explain(await world.store.facts("report", at("14:00")))
        assert (found.kind, found.reason) == ("skipped", "overlap")
        assert "(overlap skip)" in found.sentences[0]

    async def test_why_explains_an_instant_by_the_definition_of_that_time(self, world):
        await world.define()
        world.clock.advance("90m")
        await world.define(cron="30 * * * *")
        before = explain(await world.store.facts("report", at("13:15")))
        assert (before.previous, before.following) == (at("13:00"), at("14:30"))
        after = explain(await world.store.facts("report", at("13:45")))
        assert (after.previous, after.following) == (at("13:00"), at("14:30"))

    async def test_why_reports_not_there_while_the_schedule_was_deleted(self, world):
        await world.define()
        world.clock.advance("30m")
        await world.store.delete("report")
        world.clock.advance("1h")
        await world.define()
        assert explain(await world.store.facts("report", at("13:00"))).kind == "not_there"

    async def test_why_without_a_time_explains_the_latest_tick(self, world):
        attempt = await world.going()
        await world.end(attempt)
        found = explain(await world.store.facts("report", None))
        assert (found.at, found.kind) == (at("13:00"), "ran")

    async def test_why_names_the_runs_that_hold_the_places_of_a_group(self, world):
        await world.define("a", group="gpu")
        await world.define("b", group="gpu")
        await world.tick()
        attempt = await world.start_one()
        found = explain(await world.store.facts("b", None))
        assert found.kind == "waiting"
        told = f"it waits for a place in group gpu (1 place, used by run {attempt.run_id} of a)"
        assert found.sentences == [told]


def attempt_at(row):
    target = a_schedule().target
    return Attempt(
        row.run_id, row.schedule_id, row.run_at, row.due_at, row.attempt, row.fence, target
    )
