"""Runs that go on when their node is gone: they keep their place, and are only to be found again."""

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


async def test_the_next_attempt_knows_that_it_may_run_already(world):
    before = await lost(world)
    assert (before.may_run, before.at_least_once) == (False, False)
    again = await world.start_one()
    assert (again.may_run, again.at_least_once) == (True, False)
    assert (again.attempt, again.key) == (2, before.key)


async def test_it_may_be_started_again_only_where_that_is_asked_for(world):
    await lost(world, on_lost="retry")
    again = await world.start_one()
    assert (again.may_run, again.at_least_once) == (True, True)


async def test_an_attempt_after_a_failure_may_not_run_already(world):
    await lost(world, retry=["0s", "0s"])
    await world.end(await world.start_one(), Failed("no luck"))
    again = await world.start_one()
    assert (again.attempt, again.may_run) == (3, False)


async def test_a_tick_finds_it_in_its_way_before_anybody_has_found_it(world):
    attempt = await lost(world)
    await world.tick()
    assert await world.runs("status reason blocked_by") == [
        ("ENQUEUED", "lost", None),
        ("SKIPPED", "overlap", attempt.run_id),
    ]


async def test_a_tick_waits_for_it_in_the_queue(world):
    await lost(world, overlap="queue")
    await world.tick()
    found = await world.start_one()
    assert found.may_run
    await world.end(found)
    assert (await world.start_one()).run_at == found.run_at + 3600


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow"])
async def test_it_is_found_whatever_else_runs(world, overlap):
    attempt = await lost(world, overlap=overlap)
    await world.tick()
    await world.store.enqueue("report", request_id="by hand")
    found = {each.run_id: each for each in await world.start()}
    assert found[attempt.run_id].may_run


async def test_what_replaces_it_waits_until_it_was_found_and_ended(world):
    attempt = await lost(world, overlap="replace")
    await world.tick()
    found = await world.start_one()
    assert (found.run_id, found.is_to_end) == (attempt.run_id, True)
    await world.end(found, Canceled("ended"))
    assert await world.runs("status reason") == [("CANCELED", "superseded"), ("ENQUEUED", None)]
    assert (await world.start_one()).run_at == attempt.run_at + 3600


async def test_it_is_found_though_its_schedule_is_paused(world):
    await lost(world)
    await world.store.pause("report")
    assert (await world.start_one()).may_run
    assert await world.runs("status") == ["STARTED"]


async def test_it_is_found_though_its_schedule_is_disabled(world):
    await lost(world)
    await world.define(**ON_RAY, enabled=False)
    assert (await world.start_one()).may_run


async def test_who_hands_it_back_does_not_make_it_a_new_one(world):
    await lost(world)
    await world.store.hand_back([await world.start_one()])
    assert (await world.start_one()).may_run


async def test_a_node_that_stops_in_order_leaves_it_to_the_next(world):
    await world.register(offers=OFFERS)
    attempt = await world.going(**ON_RAY)
    await world.end(attempt, Lost())
    assert await world.runs("status reason") == [("ENQUEUED", "lost")]
    found = await world.start_one()
    await world.end(found, Succeeded(7))
    assert await world.runs("status reason result") == [("SUCCESS", None, 7)]


@pytest.mark.parametrize("update_waiting", [False, True])
async def test_a_detached_run_is_reattached_by_its_own_revision_after_an_edit(
    world, update_waiting
):
    before = await lost(world)
    await world.define(run={"command": ["true"]}, update_waiting=update_waiting)
    found = await world.start_one()
    assert (found.target, found.revision, found.may_run) == (before.target, 1, True)
    await world.end(found, Succeeded(7))
    assert await world.runs("status result revision") == [("SUCCESS", 7, 1)]


async def test_a_detached_run_is_reattached_after_its_schedule_was_made_anew(world):
    before = await lost(world)
    await world.store.delete("report")
    await world.define(run={"command": ["true"]})
    found = await world.start_one()
    assert (found.target, found.revision) == (before.target, 1)


async def test_one_that_was_to_end_is_found_for_that_only(world):
    await world.register(offers=OFFERS)
    attempt = await world.going(**ON_RAY)
    await world.store.cancel(attempt.run_id)
    await world.reopen()
    await world.register(offers=OFFERS)
    found = await world.start_one()
    assert (found.may_run, found.is_to_end) == (True, True)
    await world.end(found, Canceled("ended"))
    assert await world.runs("status reason") == [("CANCELED", "canceled")]


async def test_who_cancels_it_before_it_was_found_has_it_found_and_ended(world):
    attempt = await lost(world)
    claimed = await world.claim()
    await world.store.cancel(attempt.run_id)
    assert await world.announce(claimed) == []  # it was claimed for more than that
    assert await world.runs("status reason") == [("ENQUEUED", "canceled")]
    await world.tick()  # it is still in the way
    assert await world.runs("status") == ["ENQUEUED", "SKIPPED"]
    found = await world.start_one()
    assert (found.may_run, found.is_to_end) == (True, True)
    await world.store.hand_back([found])
    assert (await world.start_one()).is_to_end


async def test_of_a_schedule_that_was_deleted_it_is_found_and_finishes(world):
    await lost(world)
    await world.store.delete("report")
    found = await world.start_one()
    assert (found.may_run, found.is_to_end) == (True, False)
    await world.end(found, Succeeded(7))
    assert await world.runs("status result") == [("SUCCESS", 7)]


async def test_it_is_found_even_if_its_schedule_was_deleted_while_it_ran(world):
    await world.register(offers=OFFERS)
    await world.going(**ON_RAY)
    await world.store.delete("report")
    await world.reopen()
    await world.register(offers=OFFERS)
    assert (await world.start_one()).may_run


async def test_no_condition_is_asked_again_for_it(world):
    await lost(world, when={"command": ["false"]})
    (found,) = await world.claim()
    assert found.when is None


async def test_no_deadline_for_starting_ends_it(world):
    await lost(world, start_deadline="30s")
    world.clock.advance("5m")
    assert await world.store.expire(limit=10) == 0
    assert (await world.start_one()).may_run


async def test_it_keeps_its_place_in_its_group_and_needs_no_other(world):
    await world.store.set_group("narrow", places=1)
    await lost(world, group="narrow")
    await world.define("other", group="narrow", every="10s")
    world.clock.advance("10s")
    await world.plan()
    found = await world.start()
    assert [each.schedule_id for each in found] == ["report"]


async def test_a_node_without_a_cluster_leaves_it_alone(world):
    await lost(world)
    await world.store.register(a_node("node-x"))
    await world.register()
    assert await world.start() == []


async def test_a_run_that_has_not_started_is_launched_by_its_own_revision(world):
    await world.register(offers=OFFERS)
    await world.waiting(**ON_RAY)
    await world.define(run={"command": ["true"]})
    attempt = await world.start_one()
    assert (attempt.target.kind, attempt.revision, attempt.may_run) == ("ray", 1, False)
