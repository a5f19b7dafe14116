"""The contract of every store for schedules taken over from another scheduler."""

from onbeat.core.explain.why import explain
from onbeat.core.runs.run import Failed
from onbeat.ports.store import InitialPosition
from onbeat.testing import a_schedule

HOUR = 3_600_000


async def test_new_schedule_continues_after_the_last_tick_of_another_scheduler(world):
    now = world.clock.now()
    before = InitialPosition(ticked_at=now - 3 * HOUR, last_run_at=now - 3 * HOUR, last_exit=7)
    await world.store.upsert([a_schedule("a", every="1h")], initial_positions={"a": before})
    row = await world.store.schedule("a")
    assert row.next_run_at * 1000 == now - 2 * HOUR
    assert (row.last_run_at, row.last_exit) == (now - 3 * HOUR, 7)
    await world.plan()
    (run,) = await world.store.runs()
    assert (run.triggered_by, run.run_at * 1000, run.tick_count) == ("catchup", now, 3)


async def test_every_tick_since_the_initial_position_is_recorded(world):
    now = world.clock.now()
    before = InitialPosition(ticked_at=now - 3 * HOUR)
    schedule = a_schedule("a", every="1h", catchup_window="90m")
    await world.store.upsert([schedule], initial_positions={"a": before})
    await world.plan()
    found = [explain(await world.store.facts("a", now // 1000 - n * 3600)) for n in range(5)]
    kinds = [(each.kind, each.reason) for each in found]
    assert kinds == [
        ("waiting", None),
        ("waiting", None),  # by the row that covers it
        ("skipped", "missed"),
        ("not_there", None),
        ("not_there", None),
    ]


async def test_ticks_before_a_deletion_stay_decided(world):
    await world.store.upsert([a_schedule("a", every="1h")])
    began = world.clock.now()
    world.clock.advance("30m")
    await world.store.delete("a")
    world.clock.advance("30m")
    schedule = a_schedule("a", every="20m", catchup="all")
    await world.store.upsert([schedule], initial_positions={"a": InitialPosition(ticked_at=began)})
    await world.plan()
    runs = await world.store.runs()
    assert sorted(run.run_at - began // 1000 for run in runs) == [40 * 60, 60 * 60]


async def test_follower_tick_follows_the_initial_success(world):
    now = world.clock.now()
    schedule = a_schedule("a", after={"success": "2h"})
    await world.store.upsert(
        [schedule], initial_positions={"a": InitialPosition(last_success_at=now - HOUR)}
    )
    assert (await world.store.schedule("a")).next_run_at * 1000 == now + HOUR


async def test_existing_schedule_ignores_an_initial_position(world):
    await world.store.upsert([a_schedule("a", every="1h")])
    first = (await world.store.schedule("a")).next_run_at
    before = InitialPosition(ticked_at=world.clock.now() - 3 * HOUR, paused=True)
    await world.store.upsert([a_schedule("a", every="1h")], initial_positions={"a": before})
    row = await world.store.schedule("a")
    assert (row.next_run_at, row.paused) == (first, False)


async def test_ticks_with_a_row_are_not_planned_again(world):
    await world.store.upsert([a_schedule("a", every="1h")])
    world.clock.advance(HOUR)
    await world.plan()
    ran = (await world.store.schedule("a")).next_run_at
    await world.store.delete("a")
    before = InitialPosition(ticked_at=world.clock.now() - 5 * HOUR)
    await world.store.upsert([a_schedule("a", every="1h")], initial_positions={"a": before})
    assert (await world.store.schedule("a")).next_run_at == ran


async def test_schedule_without_a_tick_is_rearmed_by_its_last_success(world):
    now, schedule = world.clock.now(), a_schedule("a", after={"success": "2h"})
    await world.store.upsert([schedule])
    before = {"a": InitialPosition(last_success_at=now - HOUR)}
    await world.store.upsert([schedule], initial_positions=before)
    assert (await world.store.schedule("a")).next_run_at * 1000 == now + HOUR
    assert await world.names_told() == ["schedule.created", "schedule.armed"]
    await world.store.upsert([schedule], initial_positions=before)
    assert await world.names_told() == []  # it has its tick


async def test_follower_tick_in_the_past_is_due_immediately(world):
    now, schedule = world.clock.now(), a_schedule("a", after={"success": "2h"}, catchup="none")
    await world.store.upsert([schedule])
    await world.store.upsert(
        [schedule], initial_positions={"a": InitialPosition(last_success_at=now - 9 * HOUR)}
    )
    assert (await world.store.schedule("a")).next_run_at * 1000 == now + 1000


async def test_paused_or_running_schedule_is_not_rearmed(world):
    schedule, before = (
        a_schedule("a", after={"success": "2h"}),
        {"a": InitialPosition(last_success_at=0)},
    )
    await world.store.upsert([schedule])
    await world.store.enqueue("a", request_id="me")
    await world.store.upsert([schedule], initial_positions=before)
    await world.end(await world.start_one(), Failed("no"))
    await world.store.pause("a")
    await world.store.upsert([schedule], initial_positions=before)
    assert "schedule.armed" not in await world.names_told()


async def test_initial_position_can_be_paused(world):
    schedule = a_schedule("a", every="1h")
    await world.store.upsert([schedule], initial_positions={"a": InitialPosition(paused=True)})
    row = await world.store.schedule("a")
    assert (row.paused, row.next_run_at) == (True, None)
    assert await world.names_told() == ["schedule.created", "schedule.paused"]
