"""Use cases on a small and a twenty times larger store: constant or proportional work.

Work is counted in statements and in instructions of SQLite's engine, not in time. `make growth` does
it at sizes that take minutes.
"""

import asyncio

import pytest

from bench.growth import USES, World, name
from onbeat.app.stores import SystemClock
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import a_schedule

SMALL, LARGE = 100, 2_000
TIMES = LARGE // SMALL
SPARE = 3  # thousand instructions: what varies with the size of ids, pages and caches


def costs(count):
    async def measure():
        store = await SqliteStore.open(None, clock=SystemClock(), inline=True)
        world = World(store, count)
        await world.fill(runs=5)
        world.watch()
        found = {told: await world.cost(call, 1) for told, _, call in USES}
        await store.close()
        return found

    return asyncio.run(measure())


@pytest.fixture(scope="module")
def grown():
    return costs(SMALL), costs(LARGE)


@pytest.mark.parametrize(("told", "growth"), [(told, growth) for told, growth, _ in USES])
def test_work_of_a_use_case_grows_at_most_with_its_result(grown, told, growth):
    small, large = (each[told] for each in grown)
    times = 1 if growth == "flat" else TIMES
    assert large.statements <= small.statements * (times if growth == "linear" else 1.5)
    assert large.steps <= max(small.steps, 1) * times * 1.5 + SPARE


@pytest.mark.parametrize("again", [False, True], ids=["new", "unchanged"])
def test_many_schedules_are_defined_with_few_statements(again):
    async def story():
        store = await SqliteStore.open(None, clock=SystemClock(), inline=True)
        world, given = World(store, 0), [a_schedule(name(i)) for i in range(1000)]
        if again:
            await store.upsert(given)
        world.watch()
        found = await world.cost(lambda _: store.upsert(given), 1)
        await store.close()
        return found.statements

    assert asyncio.run(story()) < 50
