"""Schedules of a kind that only some nodes know: each node plans, rescues and explains them.

A node that knows the kind has the package that declares it; the others do not.
"""

import pytest

from onbeat.core.explain.why import explain
from onbeat.core.json_schema import target_schema, text
from onbeat.core.runs.run import Accepted, Succeeded
from onbeat.core.target_kinds import KINDS, TargetKind
from onbeat.service.serialize import target_kind
from tests.installed_kinds import installed

PAGE = TargetKind(
    name="pager-message",
    field="page",
    schema=target_schema("page", {"page": text("whom"), "channel": text("where")}),
    needs=lambda fields: f"pager:{fields['channel']}",
    reports=True,
    reattaches=True,
)
RUN = {"channel": "eu", "page": "ann"}
OFFERS = frozenset({"command", "pager:eu"})


async def define(world, **fields):
    with installed(PAGE):
        await world.define(run=RUN, **fields)
    return (await world.schedule()).definition


async def start_where_it_is_known(world, offers=OFFERS):
    with installed(PAGE):
        await world.register(offers=offers)
        return await world.start()


async def test_definition_names_its_kind_first(world):
    assert '"run":{"page":"ann","channel":"eu"}' in await define(world)
    assert target_kind(await world.schedule()) == "page"


@pytest.mark.parametrize("slots", [0, 10])
async def test_tick_of_an_unknown_kind_is_planned_and_runs_where_it_is_known(world, slots):
    definition = await define(world)
    await world.new_events()
    world.clock.advance("1h")
    await world.plan(slots=slots)
    assert await world.names_told() == ["run.enqueued"]
    assert await world.start() == []
    (attempt,) = await start_where_it_is_known(world)
    assert (attempt.target.kind, attempt.target.fields) == ("pager-message", RUN)
    assert (await world.schedule()).definition == definition


async def test_run_of_an_unknown_kind_can_report_where_it_is_known(world):
    await define(world)
    await world.tick()
    (attempt,) = await start_where_it_is_known(world)
    await world.end(attempt, Accepted("page-7"))
    await world.store.report(attempt.key, Succeeded())
    assert await world.runs("status") == ["SUCCESS"]


async def test_lost_run_of_an_unknown_kind_keeps_its_policy_and_is_reattached(world):
    await define(world, on_lost="retry")
    await world.tick()
    (attempt,) = await start_where_it_is_known(world)
    await world.reopen()
    await world.register()
    await world.tick("30m")  # a planner without the package decides the run
    assert await world.runs("status reason") == [("ENQUEUED", "lost")]
    (again,) = await start_where_it_is_known(world)
    assert (again.key, again.attempt, again.may_run) == (attempt.key, 2, True)


async def test_node_that_knows_the_kind_without_offering_it_leaves_the_run(world):
    await define(world)
    await world.tick()
    assert await start_where_it_is_known(world, frozenset({"command"})) == []
    (attempt,) = await start_where_it_is_known(world)
    assert attempt.schedule_id == "report"


async def test_unknown_kinds_leave_room_for_other_runs(world):
    with installed(PAGE):
        for n in range(4):
            await world.define(f"a{n}", run=RUN)
    await world.define("b")
    await world.tick()
    with installed(PAGE):  # it is not offered
        (attempt,) = await world.announce(await world.claim(limit=2))
    assert attempt.schedule_id == "b"


async def test_run_with_a_condition_of_an_unknown_kind_waits_for_a_node_that_knows_it(world):
    with installed(PAGE):
        await world.define(when=RUN)
    await world.tick()
    assert await world.start() == []
    (attempt,) = await start_where_it_is_known(world)
    assert attempt.when.kind == "pager-message"


async def test_why_names_the_missing_package(world):
    await define(world)
    await world.tick()
    told = " ".join(explain(await world.store.facts("report", None)).sentences)
    assert "for a node that offers page (no package on this node provides 'page')" in told
    with installed(PAGE):
        told = " ".join(explain(await world.store.facts("report", None)).sentences)
    assert "for a node that offers pager:eu; nodes up" in told


async def test_why_and_the_store_name_the_missing_package_of_a_condition(world):
    with installed(PAGE):
        await world.define(when=RUN)
    await world.tick()
    assert await world.start() == []
    facts = await world.store.facts("report", None)
    assert facts.run.needs == "kind:page"  # so that a claim of this node does not look at it again
    told = " ".join(explain(facts).sentences)
    assert "for a node that offers page (no package on this node provides 'page')" in told


async def test_detached_run_is_reattached_without_the_package_of_its_condition(world):
    flow = {"flow": {"url": "/-/127.0.0.1/8125/-/"}}
    with installed(PAGE):
        await world.define(run=flow, when=RUN)
        await world.register(offers=frozenset({"flow", "pager:eu"}))
        await world.tick()
        (attempt,) = await world.start()
    await world.reopen()
    await world.register(offers=frozenset({"flow"}))
    (again,) = await world.start()
    assert (again.key, again.may_run, again.when) == (attempt.key, True, None)


async def test_manual_run_and_backfill_of_an_unknown_kind_wait_for_a_node_that_knows_it(world):
    await define(world)
    await world.store.enqueue("report", request_id="by hand")
    assert await world.start() == []
    (attempt,) = await start_where_it_is_known(world)
    assert attempt.request_id == "by hand"


async def test_place_of_a_known_field_may_be_unknown(world):
    cluster = TargetKind(
        name="cluster",
        field="python",
        on="cluster",
        schema=target_schema("python", {"python": text("a function"), "on": {"const": "cluster"}}),
    )
    run = {"python": "reports:build", "on": "cluster"}
    with installed(cluster):
        await world.define(run=run)
    await world.register(offers=frozenset({"python"}))
    await world.tick()
    assert await world.start() == []
    with installed(cluster):
        await world.register(offers=frozenset({"cluster"}))
        (attempt,) = await world.start()
    assert attempt.target.facts is cluster


def test_kinds_of_onbeat_are_stored_as_in_earlier_versions():
    assert all(kind.is_stored_sorted for kind in KINDS.all())
