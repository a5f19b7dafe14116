"""Snapshots of a store, from which a simulation starts.

It is noon on New Year's Day; schedules are hourly and called `report` by default.
"""

from onbeat.core.runs.decisions import Due
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.simulate.simulation import Simulation
from onbeat.stores.sql import snapshot
from onbeat.testing import a_schedule

MINUTE, HOUR = 60_000, 3_600_000


async def standing(world, name="report"):
    found = await world.store.read_snapshot()
    return {each.schedule.schedule_id: each for each in found.schedules}[name]


async def run_for(world, length, outcome=None):
    """Have the next tick start a run, and end it so much later."""
    await world.tick()
    (attempt,) = await world.start()
    world.clock.advance(length)
    await world.end(attempt, outcome or Succeeded())


async def test_snapshot_has_the_due_row_of_a_schedule(world):
    await world.define()
    now = world.clock.now()
    found = await standing(world)
    assert found.due == Due(now // 1000 + 3600, now + HOUR)
    assert (found.decided_until, found.past.created_at) == (now // 1000, now // 1000)
    assert (found.unfinished, found.length, found.is_paused) == ((), None, False)


async def test_snapshot_has_runs_in_flight_with_their_start(world):
    await world.define(overlap="queue")
    await world.tick()
    (attempt,) = await world.start()
    started_at = world.clock.now()
    await world.tick()
    found = await standing(world)
    going, waiting = found.unfinished
    assert (going.run_id, going.phase) == (attempt.run_id, Phase.RUNNING)
    assert (waiting.phase, waiting.blocked_by) == (Phase.QUEUED, going.run_id)
    assert found.started_at == {going.run_id: started_at}


async def test_usual_run_length_is_the_median_of_successful_runs(world):
    await world.define()
    for length in (MINUTE, 9 * MINUTE, 2 * MINUTE):
        await run_for(world, length)
    await run_for(world, 30 * MINUTE, Failed("it broke"))
    assert (await standing(world)).length == 2 * MINUTE


async def test_usual_run_length_counts_only_the_last_hundred_rows(world):
    await world.define()
    for length in (30_000,) * 70 + (1000,) * 60:
        await run_for(world, length)
    assert (await standing(world)).length == 1000


async def test_snapshot_has_the_end_of_a_pause(world):
    await world.define()
    until = world.clock.now() + 5 * HOUR
    await world.store.pause("report", until=until)
    found = await standing(world)
    assert (found.is_paused, found.paused_until) == (True, until)
    assert found.due == Due(until // 1000, until)


async def test_snapshot_has_groups_gate_and_nodes(world):
    await world.define(group="gpu")
    await world.store.set_group("gpu", places=3)
    await world.store.set_gate(is_open=False)
    found = await world.store.read_snapshot()
    assert (dict(found.places), found.gate_is_open, found.is_up) == ({"gpu": 3}, False, True)
    assert found.now == world.clock.now()


async def test_snapshot_of_an_owner_has_no_other_schedules(world):
    await world.define("a")
    await world.define("b")
    assert (await world.store.as_caller("me", only_owner="me").read_snapshot()).schedules == ()
    assert (await world.store.as_caller("all", only_owner="").read_snapshot()).schedules != ()


async def test_unreadable_schedule_is_named_and_left_out_of_the_snapshot(world):
    await world.define("a")
    await world.define("broken")
    world.database.tamper("UPDATE schedules SET definition = '{' WHERE schedule_id = 'broken'")
    found = await world.store.read_snapshot()
    assert found.unreadable == ("broken",)
    assert [each.schedule.schedule_id for each in found.schedules] == ["a"]


async def test_deleted_schedule_is_not_in_the_snapshot(world):
    await world.define()
    await run_for(world, MINUTE)
    await world.store.delete("report")
    assert (await world.store.read_snapshot()).schedules == ()


async def test_forecast_starts_from_the_snapshot(world):
    await world.define(max_runs=4)
    await run_for(world, 90 * 1000)
    simulation = Simulation(await world.store.read_snapshot(), until=world.clock.now() + 24 * HOUR)
    for _ in simulation.steps():
        pass
    (found,) = simulation.forecast().schedules
    assert (found.fires, found.length, found.is_length_known) == (3, 90_000, True)


async def test_snapshot_reads_only_runs_of_the_calling_owner(world, monkeypatch):
    read = []

    def by_schedule(rows):
        read.extend(row[0] for row in rows)
        return grouped(rows)

    grouped = snapshot._by_schedule
    monkeypatch.setattr(snapshot, "_by_schedule", by_schedule)
    for owner in ("ann", "bob"):
        await world.store.upsert([a_schedule(owner)], user_id=owner)
    await world.tick()
    for attempt in await world.start():
        await world.end(attempt, Succeeded())
    await world.tick()
    found = await world.store.as_caller("ann", only_owner="ann").read_snapshot()
    assert [each.schedule.schedule_id for each in found.schedules] == ["ann"]
    assert len(found.schedules[0].unfinished) == 1
    assert found.schedules[0].length is not None
    assert read == ["ann", "ann"]
    read.clear()
    await world.store.read_snapshot()
    assert sorted(read) == ["ann", "ann", "bob", "bob"]
