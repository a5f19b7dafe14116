"""Figures for metrics, and events for listeners: the same on every database."""

from onbeat.core.runs.run import Failed
from onbeat.events import RunStarted


async def test_empty_store_has_a_size_and_no_other_figures(world):
    found = await world.store.figures()
    assert (found.failing, found.waiting_since, found.to_notify, found.outbox) == (0, None, 0, {})
    assert found.size > 0


async def test_figures_have_the_due_time_of_the_oldest_waiting_run(world):
    await world.waiting()
    due_at = (await world.row()).due_at
    world.clock.advance("10m")
    assert (await world.store.figures()).waiting_since == due_at
    await world.start()
    assert (await world.store.figures()).waiting_since is None


async def test_failing_schedules_and_pending_notifications_are_counted(world):
    await world.end(await world.going(), Failed("exit code 1", "exit"))
    found = await world.store.figures()
    assert (found.failing, found.to_notify) == (1, 1)


async def test_deleted_schedule_is_not_counted_as_failing(world):
    await world.end(await world.going(), Failed("exit code 1", "exit"))
    await world.store.delete("report")
    assert (await world.store.figures()).failing == 0


async def test_outbox_messages_are_counted_by_state(world):
    world.database.tamper(
        "INSERT INTO outbox (channel, body, state, created_at, due_at) VALUES "
        "('a', '{}', 'failed', 1, 1), ('a', '{}', 'failed', 1, 1), ('a', '{}', 'waiting', 1, 1)"
    )
    assert (await world.store.figures()).outbox == {"failed": 2, "waiting": 1}


async def test_listener_receives_the_stored_time_of_events(world):
    heard = []
    store = await world.database.open(
        world.clock, lambda at, events: heard.append((at, list(events)))
    )
    await world.waiting()
    claimed = await store.claim(world.node, limit=10)
    world.clock.advance("90s")
    await store.announce(world.node, claimed)
    await store.close()
    at, events = heard[-1]
    assert at == world.clock.now() == (await world.row()).started_at
    assert [type(event) for event in events] == [RunStarted]


async def test_manual_run_is_marked_manual_in_its_start_event(world):
    await world.define()
    await world.store.enqueue("report", request_id="by-hand")
    await world.start()
    assert [
        event.triggered_by for event in await world.new_events() if isinstance(event, RunStarted)
    ] == ["manual"]
