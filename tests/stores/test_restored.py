"""A restored backup: ticks planned since it was made are missed, and do not run."""

import pytest

from onbeat.core.decide.plan import due_at
from onbeat.core.explain.reasons import RESTORED
from onbeat.core.explain.why import explain
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.core.triggers.past import Past
from onbeat.errors import StoreHeld, StoreUnusable
from onbeat.events import NodeStarted, RunSkipped, StoreRestored
from onbeat.stores.sql.restored import BATCH, IDS_LEFT_OUT
from onbeat.testing import a_schedule
from tests.stores.conftest import Postgres, a_node

HOUR = 3_600_000
NOON = 1_767_268_800  # 2026-01-01T12:00:00Z, when each test begins


async def restore(world, *, later=True):
    """Do as `onbeat up --restored` does, in a process that finds the others gone."""
    await world.reopen()
    node = a_node("the-next")
    await world.store.acquire(node)
    following = ""
    while following is not None:
        following = await world.store.record_gap(after=following)
    if later:
        world.node = node
        await world.store.register(node)


async def nothing_starts(world):
    """Plan and claim until nothing is left; return whether no run was started."""
    await world.plan()
    return await world.claim() == []


async def test_ticks_of_the_gap_are_one_missed_range_and_do_not_run(world):
    await world.define()
    world.clock.advance("5h")
    await restore(world)
    assert await nothing_starts(world)
    row = await world.row()
    assert (row.status, row.reason, row.tick_count) == ("SKIPPED", "missed", 5)
    assert row.run_at - row.first_run_at == 4 * 3600
    assert (await world.schedule()).next_run_at == world.clock.now() // 1000 + 3600


@pytest.mark.parametrize("catchup", ["once", "all", "spread", "none"])
async def test_gap_is_missed_with_any_catchup(world, catchup):
    await world.define(catchup=catchup)
    world.clock.advance("3h")
    await restore(world)
    assert await nothing_starts(world)
    assert await world.runs("status reason tick_count") == [("SKIPPED", "missed", 3)]


async def test_tick_after_the_gap_runs(world):
    await world.define()
    world.clock.advance("5h")
    await restore(world)
    await world.tick()
    attempt = await world.start_one()
    assert attempt.run_at == world.clock.now() // 1000


async def test_waiting_run_of_a_backup_is_skipped(world):
    await world.waiting()
    await restore(world)
    assert await nothing_starts(world)
    row = await world.row()
    assert (row.status, row.reason, row.error) == ("SKIPPED", "missed", RESTORED)


async def test_waiting_manual_run_of_a_backup_is_skipped(world):
    await world.define()
    await world.store.enqueue("report", request_id="by-hand")
    await restore(world)
    assert await nothing_starts(world)
    assert await world.runs("status reason") == [("SKIPPED", "missed")]


async def test_claimed_run_of_a_backup_is_skipped(world):
    await world.waiting()
    await world.claim()
    await restore(world)
    assert await world.runs("status reason leased_by") == [("SKIPPED", "missed", None)]


async def test_whole_queue_of_a_backup_is_skipped(world):
    await world.going(overlap="queue")
    await world.tick()
    await world.tick()
    await restore(world)
    assert await nothing_starts(world)
    assert await world.runs("status reason") == [
        ("FAILED", "lost"),
        ("SKIPPED", "missed"),
        ("SKIPPED", "missed"),
    ]


async def test_waiting_retry_of_a_backup_fails(world):
    await world.end(await world.going(retry=["30s"]), Failed("exit code 1", "exit"))
    await restore(world)
    world.clock.advance("5m")
    assert await nothing_starts(world)
    assert await world.runs("status reason") == [("FAILED", "missed")]


@pytest.mark.parametrize("on_lost", ["fail", "retry"])
async def test_started_run_of_a_backup_is_lost_and_not_retried(world, on_lost):
    await world.going(on_lost=on_lost, retry=["30s", "2m"])
    await restore(world)
    world.clock.advance("5m")
    assert await nothing_starts(world)
    row = await world.row()
    assert (row.status, row.reason, row.attempt, row.error) == ("FAILED", "lost", 1, RESTORED)
    assert (await world.schedule()).consecutive_failures == 1


async def test_accepted_run_of_a_backup_is_lost(world):
    await world.end(await world.going(), Accepted("elsewhere"))
    await restore(world)
    assert await world.runs("status reason") == [("FAILED", "lost")]


async def test_started_run_of_a_deleted_schedule_of_a_backup_is_lost(world):
    await world.going()
    await world.store.delete("report")
    await restore(world)
    assert await world.runs("status reason") == [("FAILED", "lost")]


async def test_lost_run_of_a_backup_triggers_no_follower(world):
    await world.define("first")
    await world.define("second", after={"schedule": "first", "outcome": "completion"})
    await world.tick()
    await world.start_one()
    await restore(world)
    world.clock.advance("10m")
    assert await nothing_starts(world)
    assert await world.rows("second") == []


async def test_past_follower_tick_of_a_backup_is_missed(world):
    await world.define("first")
    await world.define("second", after={"schedule": "first", "outcome": "success", "delay": "30m"})
    await world.tick()
    await world.end(await world.start_one(), Succeeded())
    world.clock.advance("40m")
    await restore(world)
    assert await nothing_starts(world)
    assert await world.runs("status reason", "second") == [("SKIPPED", "missed")]


async def test_startup_tick_of_a_backup_is_missed_and_this_start_has_another(world):
    await world.define(startup="1m")
    await world.reopen()
    await world.register()  # a start, which is in the backup
    world.clock.advance("1h")
    await restore(world)
    assert await nothing_starts(world)
    assert await world.runs("status reason") == [("SKIPPED", "missed")]
    world.clock.advance("1m")
    await world.plan()
    assert len(await world.claim()) == 1


async def test_tick_of_a_backup_due_later_is_kept(world):
    opens = {"hours": "14:00-15:00", "outside": "move"}
    await world.define(at="2026-01-01T12:30:00Z", within=opens)
    later = (await world.schedule()).next_due_at
    assert later > world.clock.now() + HOUR
    world.clock.advance("1h")
    await restore(world)
    assert (await world.schedule()).next_due_at == later
    assert await world.rows() == []


async def test_tick_due_before_its_planned_time_belongs_to_the_gap(world):
    await world.define(jitter="50m", jitter_around=True)
    schedule, first = a_schedule("report", jitter="50m", jitter_around=True), NOON + 3600
    ticks = range(first, first + 50 * 3600, 3600)
    early = next(tick for tick in ticks if due_at(schedule, tick, Past(0)) < tick * 1000 - 60_000)
    world.clock.advance(due_at(schedule, early, Past(0)) - world.clock.now())
    assert world.clock.now() < early * 1000
    await restore(world)
    assert (await world.rows())[-1].run_at == early
    assert set(await world.runs("status reason")) == {("SKIPPED", "missed")}
    assert await nothing_starts(world)


async def test_pause_continues_through_a_gap_and_keeps_its_ticks(world):
    await world.define()
    await world.store.pause("report")
    world.clock.advance("3h")
    await restore(world)
    assert (await world.schedule()).paused
    assert await world.rows() == []
    await world.store.resume("report")
    assert await world.runs("status reason tick_count") == [("SKIPPED", "paused", 3)]


async def test_pause_that_ended_in_the_gap_is_resumed_and_later_ticks_are_missed(world):
    await world.define()
    await world.store.pause("report", until=world.clock.now() + 2 * HOUR + 1000)
    world.clock.advance("5h")
    await restore(world)
    assert await nothing_starts(world)
    assert not (await world.schedule()).paused
    assert await world.runs("reason tick_count") == [("paused", 2), ("missed", 3)]


async def test_run_ids_skip_those_possibly_assigned_since_the_backup(world):
    await world.end(await world.going())
    before = (await world.row()).run_id
    await restore(world)
    await world.tick()
    assert (await world.rows())[-1].run_id > before + IDS_LEFT_OUT


async def test_event_ids_skip_those_possibly_assigned_since_the_backup(world):
    await world.define()
    before = await world.store.newest_event()
    await restore(world)
    assert await world.store.newest_event() > before + IDS_LEFT_OUT


async def test_restored_event_is_written_once_before_any_node_joins(world):
    await world.define()
    world.clock.advance("2h")
    await world.new_events()
    await restore(world)
    told = [
        e
        for e in await world.new_events()
        if isinstance(e, (StoreRestored, RunSkipped, NodeStarted))
    ]
    assert [event.name for event in told] == ["store.restored", "run.skipped", "node.started"]


async def test_why_names_the_restored_backup(world):
    await world.define()
    world.clock.advance("5h")
    at = world.clock.now() // 1000 - 7200
    await restore(world)
    found = explain(await world.store.facts("report", at))
    assert (found.kind, found.reason) == ("skipped", "missed")
    assert RESTORED in found.sentences
    assert found.instead is None


async def test_notices_of_the_backup_are_in_doubt_and_not_sent_again(world):
    await world.end(await world.going(), Failed("exit code 1", "exit"))
    world.database.tamper(
        "INSERT INTO outbox (channel, body, state, created_at, due_at) VALUES "
        "('a', '{}', 'waiting', 1, 1), ('a', '{}', 'sent', 1, 1)"
    )
    assert (await world.store.figures()).to_notify == 1
    await restore(world, later=False)
    found = await world.store.figures()
    assert found.outbox == {"in_doubt": 1, "sent": 1}
    assert found.to_notify == 0


async def test_gap_of_many_schedules_is_recorded_in_steps(world, monkeypatch):
    monkeypatch.setattr("onbeat.stores.sql.restored.BATCH", 2)
    for name in "abcde":
        await world.define(name)
    world.clock.advance("1h")
    await world.reopen()
    await world.store.acquire(a_node("the-next"))
    steps = [""]
    while steps[-1] is not None:
        steps.append(await world.store.record_gap(after=steps[-1]))
    assert steps == ["", "b", "d", None]
    assert sorted(await world.runs("schedule_id")) == list("abcde")
    assert BATCH == 500


async def test_node_cannot_join_while_the_gap_is_partly_recorded(world, monkeypatch):
    monkeypatch.setattr("onbeat.stores.sql.restored.BATCH", 2)
    for name in "abc":
        await world.define(name)
    world.clock.advance("1h")
    await world.reopen()
    node = a_node("the-next")
    await world.store.acquire(node)
    assert await world.store.record_gap() == "b"
    with pytest.raises(StoreUnusable, match="--restored completes it"):
        await world.store.register(node)
    ids = (await world.rows())[-1].run_id
    await restore(world)  # once more, from the beginning
    assert (await world.rows())[-1].run_id < ids + IDS_LEFT_OUT
    assert await world.runs("schedule_id reason") == [(name, "missed") for name in "abc"]


async def test_record_gap_is_refused_while_another_node_is_up(world):
    await world.define()
    world.clock.advance("1h")
    if isinstance(world.database, Postgres):
        with pytest.raises(StoreHeld, match="here is up"):
            await world.store.record_gap()
    else:
        await world.reopen()  # a client, which no more than looks at the file
        with pytest.raises(StoreHeld, match="not held by this process"):
            await world.store.record_gap()
    assert await world.rows() == []


async def test_unreadable_definition_does_not_prevent_recording_the_gap(world):
    await world.define("a")
    await world.define("b")
    await world.break_definition("a")
    world.clock.advance("2h")
    await restore(world)
    assert await world.runs("schedule_id reason") == [("b", "missed")]
