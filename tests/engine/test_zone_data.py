"""A node that follows new time zone data beside its work."""

import asyncio

from onbeat.core.time.zones import VERSION
from onbeat.engine import zone_data as following
from onbeat.engine.node import Engine
from onbeat.ports.store import Node
from onbeat.stores.sql import zone_data
from onbeat.stores.sql.rows import KEEP
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule
from tests.inside import in_transaction

NINE = 1_767_340_800  # in Berlin, on January 2


async def with_older_data(clock, count):
    """Return a store whose due rows are an hour late, as older rules would have them."""
    store = await SqliteStore.open(None, clock=clock, inline=True)
    berlin = {"cron": "0 9 * * *", "timezone": "Europe/Berlin"}
    await store.upsert([a_schedule(f"s-{n:04}", **berlin) for n in range(count)])

    def age(tx):
        tx.run(KEEP, ("tz", "1999a"))
        tx.run("UPDATE due SET due_at = due_at + 3600000, run_at = run_at + 3600")

    await in_transaction(store, age)
    return store


def test_node_follows_zone_data_beside_its_work(monkeypatch, caplog):
    caplog.set_level("INFO", "onbeat.engine")
    monkeypatch.setattr(zone_data, "BATCH", 10)
    monkeypatch.setattr(following, "BATCH", 10)

    async def story():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await with_older_data(clock, 100)
        engine = Engine(store, clock, Node("n", "here", frozenset()), {})
        await engine.start()
        begun = (await store.overview()).following
        while (await store.overview()).following is not None:  # noqa: ASYNC110 - it is asked for
            await asyncio.sleep(0.001)
        ticks = {row.next_run_at for row in await store.schedules()}
        await engine.stop(1)
        await store.close()
        return begun, ticks

    begun, ticks = asyncio.run(story())
    assert (begun.done, begun.total) == (10, 100)
    assert ticks == {NINE}
    assert f"time zone data {VERSION}: all 100 schedules are recomputed" in caplog.text
    assert "100 ticks moved" in caplog.text
