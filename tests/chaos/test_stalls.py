"""Changes of a schedule that stall between the instant they decide by and their event.

On PostgreSQL a change decides by the clock of when it holds the schedule. Its event has the time of when it
is written: seconds later if the server is paused in between.
"""

import asyncio

import pytest

from onbeat.core.decide.plan import plan
from onbeat.ports.store import Node
from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import ManualClock, a_schedule
from tests.chaos.checker import judge
from tests.chaos.databases import PostgresDatabase
from tests.postgres import shared_server

OF_TICKS = ("silent", "uncalled for", "doubled", "miscounted", "unrecorded")
STALL = 2_600  # milliseconds
NAME = "report"


class StallingClock(ManualClock):
    """A clock that, while `stall` is set, is read that much later each time."""

    stall = 0

    def now(self):
        self.advance(self.stall)
        return super().now()


class Stalled:
    """A store on PostgreSQL, whose changes stall and whose planner does not."""

    def __init__(self, store, clock, database):
        self.store, self.clock, self._database = store, clock, database

    async def change(self, call):
        """Have a change stall, and then let the planner work for a few seconds."""
        self.clock.stall = STALL
        await call
        self.clock.stall = 0
        for _ in range(7):
            self.clock.advance(900)
            await self.store.plan_due(decide, limit=100)

    async def define(self, **when):
        await self.change(self.store.upsert([a_schedule(NAME, grace="1s", **when)]))

    async def unexplained(self):
        """Return the ticks, by what is known of each second, that have neither row nor due row."""
        last = self.clock.now() // 1000
        facts = [await self.store.facts(NAME, at) for at in range(last - 120, last)]
        ticks = [
            each
            for each in facts
            if each.schedule and each.schedule.trigger.has(each.at, each.past)
        ]
        return [each.at for each in ticks if each.run is None], len(ticks)

    def wrong(self, folder):
        wrong = judge(self._database.read(folder)).wrong
        return {kind: texts for kind, texts in wrong.items() if kind in OF_TICKS}


def decide(schedule, run_at, unfinished, past, now, **asked):
    return plan(schedule, run_at, unfinished, past, now=now, **asked)


async def deleted_and_recreated(world):
    await world.change(world.store.delete(NAME))
    await world.define(every="1s")


async def deleted(world):
    await world.change(world.store.delete(NAME))


async def retimed(world):
    await world.define(every="2s")
    await world.define(every="1s")


async def reworded(world):
    await world.define(every="1s", description="the same ticks")


async def paused_and_resumed(world):
    await world.change(world.store.pause(NAME))
    await world.change(world.store.resume(NAME))


async def held_by_the_gate(world):
    await world.change(world.store.set_gate(is_open=False))
    await world.change(world.store.set_gate(is_open=True))


async def edited_while_paused(world):
    await world.change(world.store.pause(NAME))
    await world.define(every="2s")
    await world.change(world.store.resume(NAME, catchup=True))


CHANGES = (
    deleted, deleted_and_recreated, retimed, reworded, paused_and_resumed, held_by_the_gate,
    edited_while_paused,
)  # fmt: skip


@pytest.mark.parametrize("begin", [0, 300, 700])
@pytest.mark.parametrize("changed", CHANGES, ids=lambda each: each.__name__)
def test_change_that_stalls_before_its_event_loses_and_doubles_no_tick(tmp_path, changed, begin):
    async def life():
        database = PostgresDatabase(shared_server())
        clock = StallingClock()
        clock.advance(begin)
        store = await PostgresStore.open(database.url(), clock=clock)
        try:
            await store.register(Node("node-1", "here", frozenset({"command"}), lease=10**9))
            world = Stalled(store, clock, database)
            await world.define(every="1s")
            await changed(world)
            if changed is not deleted:
                await world.define(at="2100-01-01T00:00:00Z")
            unexplained, ticks = await world.unexplained()
            assert unexplained == []
            assert ticks > 10
            assert world.wrong(tmp_path) == {}
        finally:
            await store.close()
            database.server.drop_database(database.url())

    asyncio.run(life())
