"""The edit rule as stores keep it: nothing of the past starts, and a run starts by one revision."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from onbeat.core.decide.edits import (
    EditForecast,
    PlannedRecord,
    describe_forecast,
    forecast_edit,
    is_retimed,
)
from onbeat.core.explain.why import explain
from onbeat.core.runs.run import Accepted, Busy, Failed, Succeeded
from onbeat.core.schedule import Schedule, definition
from onbeat.core.time.instants import parse_instant
from onbeat.errors import InvalidSchedule
from onbeat.events import RunMoved
from onbeat.testing import a_schedule
from tests.sim.drawing import Drawing

BROKEN = Failed("exit code 1", "exit", exit_code=1)
OLD, NEW = {"command": ["old"], "inputs": {"n": 1}}, {"command": ["new"], "inputs": {"n": 2}}


def at(clock):
    return parse_instant(f"2026-01-01T{clock}:00Z")


class TestTicksOwed:
    @pytest.mark.parametrize("catchup", ["once", "none", "all", "spread"])
    async def test_ticks_beyond_their_grace_are_one_row_and_nothing_starts(self, world, catchup):
        await world.define(run=OLD, catchup=catchup, overlap="allow")
        world.clock.advance("3h30m")
        await world.define(run=NEW, every="1d")
        await world.plan()
        (row,) = await world.rows()
        assert (row.status, row.reason, row.revision) == ("SKIPPED", "edited", 1)
        assert (row.first_run_at, row.run_at, row.tick_count) == (at("13:00"), at("15:00"), 3)
        assert await world.start() == []
        assert (await world.schedule()).next_run_at == parse_instant("2026-01-02T00:00:00Z")

    async def test_a_tick_within_its_grace_starts_by_the_old_revision(self, world):
        await world.define(run=OLD)
        world.clock.advance("1h")
        world.clock.advance("59s")
        await world.define(run=NEW, every="1d")
        attempt = await world.start_one()
        assert (attempt.target.fields, attempt.inputs, attempt.revision) == (OLD, {"n": 1}, 1)

    async def test_ticks_left_in_a_spread_are_recorded(self, world):
        await world.define(every="1m", catchup="spread", overlap="allow", run=OLD)
        world.clock.advance("30m30s")
        await world.plan()
        begun = len(await world.rows())
        await world.define(every="1d", run=NEW)
        rows = await world.rows()
        edited = rows[begun]
        assert (edited.reason, edited.tick_count) == ("edited", 30 - begun - 1)
        assert [row.status for row in rows[begun + 1 :]] == ["ENQUEUED"]  # it is on time
        assert {attempt.revision for attempt in await world.start()} == {1}

    async def test_edit_of_a_paused_schedule_records_its_pause(self, world):
        await world.define()
        await world.store.pause("report")
        world.clock.advance("3h30m")
        await world.define(every="1d")
        assert await world.runs("reason tick_count") == [("paused", 3)]

    async def test_edit_behind_a_closed_gate_records_the_gate(self, world):
        await world.define()
        await world.store.set_gate(is_open=False)
        world.clock.advance("3h30m")
        await world.define(every="1d")
        assert await world.runs("reason tick_count") == [("gate_off", 3)]

    async def test_edit_without_a_timing_change_catches_up_by_the_new_definition(self, world):
        await world.define(run=OLD)
        world.clock.advance("3h30m")
        await world.define(run=NEW)
        await world.plan()
        attempt = await world.start_one()
        assert (attempt.target.fields, attempt.revision) == (NEW, 2)
        assert await world.runs("triggered_by tick_count") == [("catchup", 3)]

    async def test_why_names_the_edit(self, world):
        await world.define()
        world.clock.advance("3h30m")
        await world.define(every="1d")
        facts = await world.store.facts("report", at("14:00"))
        found = explain(facts)
        assert found.reason == "edited"
        assert found.sentences[0] == (
            "the schedule was edited at 2026-01-01T15:30:00.000Z (revision 1 to 2) while 3 ticks were "
            "owed; an edit does not start past ticks"
        )


class TestEditsWhileNoNodeIsUp:
    """An edit decides what is on time; it starts within its grace, or not at all."""

    async def edited(self, world, *, after="1h20s", update_waiting=False, **fields):
        await world.define(run=OLD, **fields)
        await world.store.unregister(world.node)
        world.clock.advance(after)
        await world.define(run=NEW, every="1d", update_waiting=update_waiting)

    async def up(self, world, later):
        """Start a node that much later; return the revisions that start."""
        world.clock.advance(later)
        await world.register()
        while await world.store.expire(limit=100):
            pass
        await world.plan()
        return [attempt.revision for attempt in await world.start()]

    async def test_tick_on_time_starts_if_a_node_is_up_within_its_grace(self, world):
        await self.edited(world)
        assert (await world.row()).deadline_at == at("13:01") * 1000
        assert await self.up(world, "39s") == [1]

    async def test_tick_on_time_is_recorded_as_edited_after_its_grace(self, world):
        await self.edited(world)
        assert await self.up(world, "8h") == []
        first = await world.row()
        assert (first.status, first.reason, first.run_at) == ("SKIPPED", "edited", at("13:00"))

    @pytest.mark.parametrize(("own", "reason"), [("10s", "deadline"), ("2h", "edited")])
    async def test_tick_of_an_edit_expires_at_the_earlier_of_grace_and_deadline(
        self, world, own, reason
    ):
        await self.edited(world, start_deadline=own)
        assert await self.up(world, "1h") == []
        assert (await world.row()).reason == reason

    async def test_run_of_an_edit_has_no_limit_if_a_node_is_up(self, world):
        await world.define(run=OLD)
        world.clock.advance("1h20s")
        await world.define(run=NEW, every="1d")
        assert (await world.row()).deadline_at is None
        assert await self.up(world, "1h") == [1]

    async def test_api_node_does_not_count_as_up_for_an_edit(self, world):
        await world.define(run=OLD)
        await world.store.unregister(world.node)
        await world.register(roles=frozenset({"api"}))
        world.clock.advance("1h20s")
        await world.define(run=NEW, every="1d")
        assert (await world.row()).deadline_at == at("13:01") * 1000

    async def test_tick_queued_behind_a_started_run_has_no_limit(self, world):
        await world.register(offers=frozenset({"http", "command"}))
        attempt = await world.going(
            run={"http": "https://example.com"}, overlap="queue", timeout="2d"
        )
        await world.end(attempt, Accepted("there"))
        await world.store.unregister(world.node)
        world.clock.advance("1h20s")
        await world.define(run=NEW, every="1d")
        assert (await world.rows())[1].deadline_at is None
        world.clock.advance("3h")
        await world.register(offers=frozenset({"http", "command"}))
        assert await world.store.expire(limit=100) == 0
        await world.store.report(attempt.run_id, Succeeded())
        assert [attempt.revision for attempt in await world.start()] == [1]

    async def test_ticks_queued_behind_an_unstarted_run_do_not_start(self, world):
        await self.edited(world, every="1m", overlap="queue", grace="5m", after="3m20s")
        assert await self.up(world, "1h") == []
        assert await world.runs("status reason") == [("SKIPPED", "edited")] * 3

    async def test_ticks_queued_behind_a_run_started_in_time_wait_their_turn(self, world):
        await self.edited(world, every="1m", overlap="queue", grace="5m", after="3m20s")
        world.clock.advance("1m")
        await world.register()
        first = await world.start_one()
        world.clock.advance("2h")
        assert await world.store.expire(limit=100) == 2
        assert await world.store.expire(limit=100) == 0
        await world.end(first)
        second = await world.start_one()
        world.clock.advance("2h")
        await world.end(second)
        assert (await world.start_one()).revision == 1

    async def test_tick_released_in_time_has_no_limit(self, world):
        await self.edited(world, every="1m", overlap="queue", grace="5m", after="2m20s")
        await world.register()
        await world.end(await world.start_one())
        assert (await world.rows())[1].deadline_at is None

    async def test_tick_with_a_busy_target_in_time_has_no_limit(self, world):
        await self.edited(world)
        await world.register()
        await world.end(await world.start_one(), Busy("full", 600_000))
        assert (await world.row()).deadline_at is None
        world.clock.advance("10m")
        assert (await world.start_one()).attempt == 2

    async def test_run_moved_to_the_new_revision_keeps_its_limit(self, world):
        await self.edited(world, update_waiting=True)
        row = await world.row()
        assert (row.revision, row.deadline_at) == (2, at("13:01") * 1000)
        assert await self.up(world, "1h") == []

    async def test_second_edit_limits_a_tick_queued_behind_a_limited_run(self, world):
        await world.define(run=OLD, every="1m", overlap="queue")
        await world.store.unregister(world.node)
        world.clock.advance("1m20s")
        await world.define(run=OLD, cron="*/2 * * * *", overlap="queue")
        world.clock.advance("50s")
        await world.define(run=NEW, every="1d")
        assert [row.status for row in await world.rows()] == ["ENQUEUED"] * 2
        assert await self.up(world, "1h") == []
        assert await world.runs("status reason") == [("SKIPPED", "edited")] * 2

    async def test_plan_names_the_time_by_which_a_node_must_be_up(self, world):
        await world.define(run=OLD)
        await world.store.unregister(world.node)
        world.clock.advance("1h20s")
        found = await world.store.before_edits(["report"])
        new = a_schedule("report", every="1d", run=NEW)
        said = forecast_edit(found["report"], new, now=world.clock.now())
        (words,) = describe_forecast(said)
        assert words == (
            "starts 1 tick (2026-01-01T13:00:00Z) if a node is up by 2026-01-01T13:01:00.000Z, "
            "by revision 1"
        )

    async def test_why_names_the_limit_and_what_ended_the_run(self, world):
        await self.edited(world)
        waits = explain(await world.store.facts("report", at("13:00"))).sentences
        assert "it is dropped if it has not started by 2026-01-01T13:01:00.000Z" in waits
        assert (
            "an edit at 2026-01-01T13:00:20.000Z decided it while no node was up: "
            "its grace ends then"
        ) in waits
        await self.up(world, "1h")
        found = explain(await world.store.facts("report", at("13:00")))
        assert found.sentences[0] == (
            "an edit at 2026-01-01T13:00:20.000Z decided it as on time under revision 1 while "
            "no node was up; it had not started when its grace ended at 2026-01-01T13:01:00.000Z"
        )
        assert not any("waited" in each for each in found.sentences)


class TestOneRevision:
    async def test_waiting_run_starts_by_its_revision(self, world):
        await world.waiting(run=OLD, timeout="7s", cancel_grace="3s")
        await world.define(run=NEW, timeout="8s")
        attempt = await world.start_one()
        assert (attempt.target.fields, attempt.inputs, attempt.revision) == (OLD, {"n": 1}, 1)
        assert (attempt.timeout, attempt.cancel_grace) == (7_000, 3_000)
        assert (await world.row()).revision == 1

    async def test_queued_run_starts_by_its_revision(self, world):
        first = await world.going(run=OLD, overlap="queue")
        await world.tick("1h")
        await world.define(run=NEW)
        await world.end(first)
        assert (await world.start_one()).target.fields == OLD

    async def test_retries_use_the_revision_of_their_run(self, world):
        attempt = await world.going(run=OLD, retry=["1s", "2s"])
        await world.define(run=NEW, retry=["50s"])
        await world.end(attempt, BROKEN)
        world.clock.advance("1s")
        again = await world.start_one()
        assert (again.target.fields, again.revision) == (OLD, 1)
        await world.define(run=NEW, every="1d")
        await world.end(again, BROKEN)
        world.clock.advance("2s")
        last = await world.start_one()
        assert (last.target.fields, last.attempt) == (OLD, 3)
        await world.end(last, BROKEN)
        assert await world.runs("status reason attempt") == [("FAILED", "exit", 3)]

    async def test_manual_run_starts_by_its_revision(self, world):
        await world.define(run=OLD)
        await world.store.enqueue("report", request_id="one", inputs={"by": "hand"})
        await world.define(run=NEW)
        attempt = await world.start_one()
        assert (attempt.target.fields, attempt.inputs) == (OLD, {"n": 1, "by": "hand"})

    async def test_backfilled_run_starts_by_the_revision_of_the_backfill(self, world):
        await world.define(run=OLD, every="1h")
        world.clock.advance("30m")
        first, last = at("09:00"), at("09:30")
        await world.store.backfill("report", first=first, last=last, limit=10)
        await world.define(run=NEW)
        assert (await world.start_one()).target.fields == OLD

    async def test_templates_of_a_run_are_those_of_its_revision(self, world):
        await world.waiting(run={"command": ["old", "{{ iteration }}"]})
        await world.define(run={"command": ["new", "{{ iteration }}"]})
        assert (await world.start_one()).target.fields == {"command": ["old", "1"]}

    async def test_condition_of_a_run_is_that_of_its_revision(self, world):
        await world.waiting(when={"command": ["test", "old"]})
        await world.define(when={"command": ["test", "new"]})
        (attempt,) = await world.claim()
        assert attempt.when.fields == {"command": ["test", "old"]}

    async def test_group_and_priority_of_a_run_are_those_of_its_revision(self, world):
        await world.store.set_group("narrow", places=0)
        await world.waiting(group="narrow", priority=5)
        await world.define(priority=9)
        assert await world.runs("grp priority") == [("narrow", 5)]
        assert await world.claim() == []
        await world.store.set_group("narrow", places=1)
        assert (await world.start_one()).group == "narrow"

    async def test_overlap_recheck_at_the_claim_uses_the_revision_of_the_run(self, world):
        await world.define(overlap="allow", retry=["3h"])
        for _ in range(2):
            await world.tick("1h")
        for attempt in await world.start():
            await world.end(attempt, BROKEN)
        await world.define(overlap="skip", every="1d")
        world.clock.advance("3h")
        assert len(await world.claim()) == 2

    async def test_accepted_run_has_the_timeout_of_its_revision(self, world):
        await world.register(offers=frozenset({"http"}))
        attempt = await world.going(run={"http": "https://example.com"}, timeout="10m")
        await world.define(run=NEW, timeout="1s")
        await world.end(attempt, Accepted("there"))
        (row,) = await world.rows()
        assert row.deadline_at == world.clock.now() + 600_000

    async def test_lost_run_is_retried_according_to_its_revision(self, world):
        await world.going(run=OLD, on_lost="retry")
        await world.define(run=NEW, on_lost="fail")
        await world.restart()
        assert (await world.start_one()).target.fields == OLD

    async def test_start_deadline_of_a_retry_is_that_of_its_revision(self, world):
        attempt = await world.going(run=OLD, retry=["1m"], start_deadline="10s")
        await world.define(run=NEW)
        await world.end(attempt, BROKEN)
        (row,) = await world.rows()
        assert row.deadline_at == row.due_at + 10_000

    @pytest.mark.parametrize(
        ("off", "reason"),
        [({"enabled": False}, "disabled"), ({"run": NEW | {"enabled": False}}, "disabled_target")],
    )
    async def test_disabling_applies_to_runs_of_every_revision(self, world, off, reason):
        await world.waiting(run=OLD)
        await world.define(**off)
        assert await world.claim() == []
        assert await world.runs("status reason") == [("SKIPPED", reason)]

    async def test_current_pause_after_applies_to_runs_of_every_revision(self, world):
        attempt = await world.going(pause_after=1)
        await world.define()
        await world.end(attempt, BROKEN)
        assert not (await world.schedule()).paused

    async def test_unreadable_past_definition_fails_its_run(self, world):
        await world.waiting(run=OLD)
        await world.define(run=NEW)
        await world.tamper("UPDATE past_definitions SET definition = ?", ("garbage",))
        assert await world.claim() == []
        (row,) = await world.rows()
        assert (row.status, row.reason) == ("FAILED", "invalid_target")
        assert row.error == "the schedule's definition cannot be read: revision 1"

    async def test_retention_keeps_the_definition_of_an_unfinished_run(self, world):
        await world.waiting(run=OLD)
        for n in range(3):
            world.clock.advance("1h")
            await world.define(run=NEW, description=f"{n}")
        world.clock.advance("400h")
        await world.store.prune(before=world.clock.now())
        attempt = await world.start_one()
        assert attempt.target.fields == OLD
        await world.end(attempt)
        world.clock.advance("1h")
        await world.store.prune(before=world.clock.now())
        assert (await world.store.facts("report", None)).definition_spans[
            0
        ].schedule.description == "2"

    async def test_run_backfilled_after_an_edit_uses_only_the_new_template(self, world):
        attempt = await world.going(run={"command": ["old", "{{ iteration }}"]})
        await world.end(attempt, Busy("no time", 1_000))
        world.clock.advance("1s")
        await world.define(run=NEW, enabled=False)
        assert await world.claim() == []
        await world.define(run=NEW)
        when = attempt.run_at
        await world.store.backfill("report", first=when, last=when, limit=1)
        again = await world.start_one()
        assert (again.target.fields, again.revision) == (NEW, 3)


class TestUpdateWaiting:
    async def test_waiting_runs_are_moved_to_the_new_revision(self, world):
        await world.waiting(run=OLD | {"command": ["old", "{{ iteration }}"]}, start_deadline="1h")
        await world.new_events()
        wide = {"run": NEW, "priority": 5, "group": "wide", "start_deadline": "10m"}
        await world.define(update_waiting=True, **wide)
        (row,) = await world.rows()
        assert (row.revision, row.inputs, row.priority, row.grp) == (2, {"n": 2}, 5, "wide")
        assert row.deadline_at == world.clock.now() + 600_000
        moved = RunMoved("report", row.run_id, row.run_at, 2, 1)
        assert (await world.new_events())[-1] == moved
        assert (await world.start_one()).target.fields == NEW

    async def test_queued_and_retrying_runs_are_moved_to_the_new_revision(self, world):
        old = OLD | {"command": ["old", "{{ iteration }}"]}  # rendered for the first attempt
        first = await world.going(run=old, overlap="queue", retry=["1m"])
        await world.end(first, BROKEN)
        await world.store.enqueue("report", request_id="one")
        await world.define(run=NEW, overlap="queue", update_waiting=True)
        assert await world.runs("status revision") == [("ENQUEUED", 2)] * 2
        world.clock.advance("1m")
        assert [attempt.target.fields for attempt in await world.start()] == [NEW] * 2

    async def test_manual_inputs_stay_when_a_run_is_moved(self, world):
        await world.define(run={"command": ["old"], "inputs": {"n": 1, "m": 1}})
        await world.store.enqueue("report", request_id="one", inputs={"m": 5, "by": "hand"})
        await world.define(
            run={"command": ["new"], "inputs": {"n": 2, "m": 2}}, update_waiting=True
        )
        attempt = await world.start_one()
        assert attempt.inputs == {"n": 2, "m": 5, "by": "hand"}

    async def test_claimed_and_started_runs_keep_their_revision(self, world):
        await world.waiting(run=OLD)
        claimed = await world.claim()
        await world.define(run=NEW, update_waiting=True)
        (started,) = await world.announce(claimed)
        assert (started.target.fields, started.revision) == (OLD, 1)
        await world.define(run=NEW, every="1d", update_waiting=True)
        assert (await world.row()).revision == 1

    async def test_waiting_runs_of_earlier_revisions_are_moved_without_an_edit(self, world):
        await world.waiting(run=OLD)
        await world.define(run=NEW)
        assert (await world.define(run=NEW, update_waiting=True)).change == "unchanged"
        assert (await world.start_one()).target.fields == NEW

    async def test_why_names_the_revision_of_a_moved_run(self, world):
        await world.waiting(run=OLD)
        world.clock.advance("1m")
        await world.define(run=NEW)
        kept = explain(await world.store.facts("report", at("13:00")))
        assert kept.sentences[-1] == (
            "it starts by revision 1; the schedule is at revision 2 (apply --update-waiting moves it)"
        )
        await world.define(run=NEW, update_waiting=True)
        moved = explain(await world.store.facts("report", at("13:00")))
        assert moved.sentences[-1] == (
            "it was decided under an earlier revision and moved to revision 2"
        )


class TestPreview:
    async def foreseen(self, world, new, **asked):
        found = await world.store.before_edits(["report"])
        return forecast_edit(found.get("report"), new, now=world.clock.now(), **asked)

    async def test_rows_that_an_edit_records_are_previewed(self, world):
        await world.define(run=OLD)
        world.clock.advance("3h30m")
        found = await self.foreseen(world, a_schedule("report", every="1d"))
        assert found.records == [PlannedRecord("edited", 3, at("13:00"), at("15:00"))]
        assert (found.starts, found.keeps, found.by_planner) == ([], {}, False)

    async def test_waiting_and_canceled_runs_are_previewed(self, world):
        await world.waiting(run=OLD)
        await world.define(run=NEW)
        found = await self.foreseen(world, a_schedule("report", run=NEW, priority=1))
        assert found.keeps == {1: 1}
        moved = await self.foreseen(
            world, a_schedule("report", run=NEW, priority=1), update_waiting=True
        )
        assert moved.keeps == {}
        gone = await self.foreseen(world, None)
        assert gone.cancels == 1

    async def test_catch_up_after_an_edit_is_previewed(self, world):
        await world.define(run=OLD)
        world.clock.advance("3h30m")
        found = await self.foreseen(world, a_schedule("report", run=NEW))
        assert (found.starts, found.revision, found.by_planner) == ([at("15:00")], 2, True)

    async def test_missing_schedule_has_no_preview(self, world):
        assert (await self.foreseen(world, a_schedule("report"))).changes_nothing
        assert await world.store.before_edits(["report"]) == {}


NAMES = tuple(f"s{n:02}" for n in range(40))


class TestPlanAndApplyAgree:
    """Plans of random edits have the same text as applying them."""

    @pytest.mark.parametrize("seed", range(6))
    async def test_plan_previews_exactly_what_apply_does(self, world, seed):
        rng = Random(seed)
        seen = Counter()
        for name in NAMES:
            await self.define(world, rng, name)
        for _ in range(4):
            world.clock.advance(rng.choice([1_000, 20_000, 70_000, 400_000]))
            if rng.random() < 0.7:
                await world.plan(limit=1000)
                await self.run_some(world, rng)
        for name in rng.sample(NAMES, 5):
            await world.store.pause(name)
        if seed == 5:
            await world.store.set_gate(is_open=False)
        for name in NAMES:
            world.clock.advance(rng.choice([0, 0, 300, 5_000, 90_000]))
            seen += await self.edit(world, rng, name)
        assert seen["keeps"]
        assert seen["records"]
        assert seed == 5 or seen["starts"]
        assert seed == 5 or seen["moves"]

    async def define(self, world, rng, name):
        with suppress(InvalidSchedule):
            now = world.clock.now() // 1000
            await world.store.upsert([Drawing(rng, [name]).schedule(name, now=now)])
            await world.store.enqueue(name, request_id="by hand")

    async def run_some(self, world, rng):
        for attempt in await world.start():
            outcome = rng.choice([Succeeded(), BROKEN, BROKEN, Busy("no time", 50_000), None])
            if outcome is not None:  # else it is still going
                await world.end(attempt, outcome)

    async def edit(self, world, rng, name):
        """Edit a schedule; return what was seen, if all of it was foreseen."""
        found = (await world.store.before_edits([name])).get(name)
        now, moves = world.clock.now(), rng.random() < 0.3
        try:
            new = Drawing(rng, [name]).schedule(name, now=now // 1000)
        except InvalidSchedule:
            return Counter()
        if found is None or definition(new) == definition(found.schedule):
            return Counter()
        if rng.random() < 0.4:  # when it ticks is left alone
            policy = replace(
                new.policy,
                jitter=found.schedule.policy.jitter,
                jitter_around=found.schedule.policy.jitter_around,
            )
            trigger = found.schedule.trigger
            new = Schedule(name, trigger, new.target, policy, when=new.when)
        row = await world.schedule(name)
        is_put_off = (row.next_due_at or 0) > now >= (row.next_run_at or 0) * 1000
        if is_put_off and not is_retimed(found.schedule, new):
            return Counter()  # the planner decides it when its turn comes
        said = forecast_edit(found, new, now=now, update_waiting=moves)
        before = {row.run_id: row for row in await world.rows(name)}
        await world.store.upsert([new], update_waiting=moves)
        if said.by_planner:
            await world.plan(limit=1000)
        did = await self.done(world, name, before, said)
        assert describe_forecast(did) == describe_forecast(said)
        assert did == said
        return Counter({what: bool(getattr(said, what)) for what in ("starts", "records", "keeps",
                                                                     "moves", "ends")})  # fmt: skip

    async def done(self, world, name, before, said):
        """Return what was done, according to the rows."""
        rows = await world.rows(name)
        new = [row for row in rows if row.run_id not in before]
        started = [row for row in new if row.status == "ENQUEUED"]
        skipped = [row for row in new if row.status == "SKIPPED"]
        waited = [row for row in rows if row.run_id in before and self.waits(before[row.run_id])]
        kept = [row for row in waited if row.status == "ENQUEUED"]
        moved = [row for row in kept if row.revision != before[row.run_id].revision]
        assert {row.revision for row in started} <= {said.revision}
        return EditForecast(
            [row.run_at for row in started],
            said.revision,
            [PlannedRecord(row.reason, row.tick_count, row.first_run_at or row.run_at, row.run_at)
             for row in skipped],
            dict(Counter(row.revision for row in kept if row not in moved)),
            dict(Counter(before[row.run_id].revision for row in moved)),
            ends=len(waited) - len(kept),
            by_planner=said.by_planner,
            has_more=said.has_more,
        )  # fmt: skip

    def waits(self, row):
        return row.status == "ENQUEUED" and row.leased_by is None


async def test_runs_keep_their_revision_when_the_schedule_is_recreated(world):
    attempt = await world.going(run=OLD, retry=["1m"])
    await world.store.delete("report")
    await world.define(run=NEW)
    await world.end(attempt, Succeeded())
    assert await world.runs("status revision") == [("SUCCESS", 1)]
