"""Detached runs: they continue without their node, keep their place, and are only reattached."""

import pytest

from onbeat.core.runs.run import Canceled, Failed, Lost, Succeeded
from tests.stores.conftest import a_node

ON_RAY = {"run": {"python": "reports:build", "on": "ray"}}
OFFERS = frozenset({"command", "ray"})


async def lost(world, **fields):
    """Start a run on a cluster, and have its node die; return the attempt, and be another node."""
    await world.register(offers=OFFERS)
    attempt = await world.going(**ON_RAY, **fields)
    await world.reopen()
    await world.register(offers=OFFERS)
    return attempt


async def test_attempt_after_a_loss_knows_that_it_may_be_running(world):
    before = await lost(world)
    assert (before.may_run, before.at_least_once) == (False, False)
    again = await world.start_one()
    assert (again.may_run, again.at_least_once) == (True, False)
    assert (again.attempt, again.key) == (2, before.key)


async def test_detached_run_is_restarted_only_if_at_least_once(world):
    await lost(world, on_lost="retry")
    again = await world.start_one()
    assert (again.may_run, again.at_least_once) == (True, True)


async def test_attempt_after_a_failure_is_not_running(world):
    await lost(world, retry=["0s", "0s"])
    await world.end(await world.start_one(), Failed("no luck"))
    again = await world.start_one()
    assert (again.attempt, again.may_run) == (3, False)


async def test_detached_run_blocks_a_tick_before_it_is_reattached(world):
    attempt = await lost(world)
    await world.tick()
    assert await world.runs("status reason blocked_by") == [
        ("ENQUEUED", "lost", None),
        ("SKIPPED", "overlap", attempt.run_id),
    ]


async def test_tick_queues_behind_a_detached_run(world):
    await lost(world, overlap="queue")
    await world.tick()
    found = await world.start_one()
    assert found.may_run
    await world.end(found)
    assert (await world.start_one()).run_at == found.run_at + 3600


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
async def test_detached_run_is_reattached_beside_any_other_run(world, overlap):
    attempt = await lost(world, overlap=overlap)
    await world.tick()
    await world.store.enqueue("report", request_id="by hand")
    found = {each.run_id: each for each in await world.start()}
    assert found[attempt.run_id].may_run


async def test_replacement_waits_until_a_detached_run_is_cancelled(world):
    attempt = await lost(world, overlap="replace")
    await world.tick()
    found = await world.start_one()
    assert (found.run_id, found.is_cancel_requested) == (attempt.run_id, True)
    await world.end(found, Canceled("ended"))
    assert await world.runs("status reason") == [("CANCELED", "superseded"), ("ENQUEUED", None)]
    assert (await world.start_one()).run_at == attempt.run_at + 3600


async def test_detached_run_is_reattached_while_its_schedule_is_paused(world):
    await lost(world)
    await world.store.pause("report")
    assert (await world.start_one()).may_run
    assert await world.runs("status") == ["STARTED"]


async def test_detached_run_is_reattached_while_its_schedule_is_disabled(world):
    await lost(world)
    await world.define(**ON_RAY, enabled=False)
    assert (await world.start_one()).may_run


async def test_handed_back_detached_run_stays_detached(world):
    await lost(world)
    await world.store.hand_back([await world.start_one()])
    assert (await world.start_one()).may_run


async def test_stopped_node_leaves_a_detached_run_to_the_next(world):
    await world.register(offers=OFFERS)
    attempt = await world.going(**ON_RAY)
    await world.end(attempt, Lost())
    assert await world.runs("status reason") == [("ENQUEUED", "lost")]
    found = await world.start_one()
    await world.end(found, Succeeded(7))
    assert await world.runs("status reason result") == [("SUCCESS", None, 7)]


@pytest.mark.parametrize("update_waiting", [False, True])
async def test_detached_run_is_reattached_by_its_revision_after_an_edit(world, update_waiting):
    before = await lost(world)
    await world.define(run={"command": ["true"]}, update_waiting=update_waiting)
    found = await world.start_one()
    assert (found.target, found.revision, found.may_run) == (before.target, 1, True)
    await world.end(found, Succeeded(7))
    assert await world.runs("status result revision") == [("SUCCESS", 7, 1)]


async def test_detached_run_is_reattached_after_its_schedule_was_recreated(world):
    before = await lost(world)
    await world.store.delete("report")
    await world.define(run={"command": ["true"]})
    found = await world.start_one()
    assert (found.target, found.revision) == (before.target, 1)


async def test_detached_run_with_a_cancellation_request_is_reattached_only_to_cancel(world):
    await world.register(offers=OFFERS)
    attempt = await world.going(**ON_RAY)
    await world.store.cancel(attempt.run_id)
    await world.reopen()
    await world.register(offers=OFFERS)
    found = await world.start_one()
    assert (found.may_run, found.is_cancel_requested) == (True, True)
    await world.end(found, Canceled("ended"))
    assert await world.runs("status reason") == [("CANCELED", "canceled")]


async def test_canceling_a_detached_run_reattaches_and_cancels_it(world):
    attempt = await lost(world)
    claimed = await world.claim()
    await world.store.cancel(attempt.run_id)
    assert await world.announce(claimed) == []  # it was claimed for more than that
    assert await world.runs("status reason") == [("ENQUEUED", "canceled")]
    await world.tick()  # it is still in the way
    assert await world.runs("status") == ["ENQUEUED", "SKIPPED"]
    found = await world.start_one()
    assert (found.may_run, found.is_cancel_requested) == (True, True)
    await world.store.hand_back([found])
    assert (await world.start_one()).is_cancel_requested


async def test_detached_run_of_a_deleted_schedule_is_reattached_and_finishes(world):
    await lost(world)
    await world.store.delete("report")
    found = await world.start_one()
    assert (found.may_run, found.is_cancel_requested) == (True, False)
    await world.end(found, Succeeded(7))
    assert await world.runs("status result") == [("SUCCESS", 7)]


async def test_detached_run_is_reattached_if_its_schedule_was_deleted_while_it_ran(world):
    await world.register(offers=OFFERS)
    await world.going(**ON_RAY)
    await world.store.delete("report")
    await world.reopen()
    await world.register(offers=OFFERS)
    assert (await world.start_one()).may_run


async def test_detached_run_is_reattached_without_its_condition(world):
    await lost(world, when={"command": ["false"]})
    (found,) = await world.claim()
    assert found.when is None


async def test_start_deadline_does_not_end_a_detached_run(world):
    await lost(world, start_deadline="30s")
    world.clock.advance("5m")
    assert await world.store.expire(limit=10) == 0
    assert (await world.start_one()).may_run


async def test_detached_run_keeps_its_place_in_the_group(world):
    await world.store.set_group("narrow", places=1)
    await lost(world, group="narrow")
    await world.define("other", group="narrow", every="10s")
    world.clock.advance("10s")
    await world.plan()
    found = await world.start()
    assert [each.schedule_id for each in found] == ["report"]


async def test_node_without_the_launcher_leaves_a_detached_run(world):
    await lost(world)
    await world.store.register(a_node("node-x"))
    await world.register()
    assert await world.start() == []


async def test_unstarted_run_is_launched_by_its_revision(world):
    await world.register(offers=OFFERS)
    await world.waiting(**ON_RAY)
    await world.define(run={"command": ["true"]})
    attempt = await world.start_one()
    assert (attempt.target.kind, attempt.revision, attempt.may_run) == ("ray", 1, False)
