"""The stream of events on PostgreSQL, where transactions are committed in another order than begun."""

import asyncio

import psycopg
import pytest

from onbeat.events import NodeLost, encode_events
from onbeat.stores.postgres.store import PostgresStore
from onbeat.web import live
from tests.inside import in_transaction
from tests.postgres import shared_server

LOOK_BACK = 20  # milliseconds
NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class Followed:
    """A service as a stream sees it, and what the stream has sent."""

    is_shared = True

    def __init__(self, store):
        self.clock, self.store, self.live = store.clock, store, live.EventStreams()
        self.newest_event, self.events, self.looks, self.sent = (
            store.newest_event,
            self.look,
            0,
            b"",
        )

    async def look(self, **asked):
        self.looks += 1
        return await self.store.events(**asked)

    async def follow(self):
        async for chunk in live.follow_events(
            self, self.live, after=None, is_wanted=lambda _: True
        ):
            self.sent += chunk

    async def has_looked(self, times=2):
        until = self.looks + times
        async with asyncio.timeout(10):
            while self.looks < until:
                self.live.wake(0, ())
                await asyncio.sleep(0.02)


def told(name):
    return encode_events([NodeLost(name, "here")])


@pytest.mark.postgres
@pytest.mark.parametrize("is_first", [False, True])
def test_event_with_a_commit_longer_than_the_look_back_is_sent(monkeypatch, is_first):
    """A commit may wait for a disk or for a standby, and its event was written before."""

    async def story(url):
        store = await PostgresStore.open(url)
        followed = Followed(store)
        stalled = psycopg.connect(url, options="-csearch_path=onbeat")
        try:
            following = asyncio.create_task(followed.follow())
            await followed.has_looked()
            add = f"INSERT INTO events (at, body) VALUES ({NOW}, %s)"
            if not is_first:
                await in_transaction(store, lambda tx: tx.emit(NodeLost("before", "here")))
            stalled.execute(add, (told("stalled"),))
            await in_transaction(store, lambda tx: tx.emit(NodeLost("after", "here")))
            await asyncio.sleep(2 * LOOK_BACK / 1000)
            await followed.has_looked()
            assert b"after" in followed.sent
            stalled.commit()
            await followed.has_looked(3)
            followed.live.close()
            await following
            assert followed.sent.count(b"stalled") == 1
            assert followed.sent.count(b"after") == 1
        finally:
            stalled.close()
            await store.close()

    monkeypatch.setattr(live, "LOOK_BACK", LOOK_BACK)
    server = shared_server()
    url = server.new_database()
    try:
        asyncio.run(story(url))
    finally:
        server.drop_database(url)
