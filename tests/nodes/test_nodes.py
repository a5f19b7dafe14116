"""Nodes on PostgreSQL, in one process: who does what, and what they do when the database is away."""

import asyncio
import time
from contextlib import asynccontextmanager

import psycopg
import pytest

from onbeat import Onbeat, every
from onbeat.errors import StoreInDoubt, StoreUnusable
from onbeat.events import RunStarted
from onbeat.stores.postgres import database
from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import a_schedule
from tests.given_settings import given_settings
from tests.inside import engine_of
from tests.postgres import Server, new_folder

SOON = 15.0  # seconds: far more than anything here takes


def a_beat(url, **settings):
    return Onbeat(
        settings=given_settings(**{"database": url, "lease": 1_000, "stop_grace": 0} | settings)
    )


async def until(reached, *, longest=SOON):
    """Wait until something is so; return what it came to."""
    async with asyncio.timeout(longest):
        while True:
            found = reached()
            found = await found if asyncio.iscoroutine(found) else found
            if found:
                return found
            await asyncio.sleep(0.01)


async def nodes_of(beat):
    return {row.node_id: row for row in (await beat.service.overview()).nodes}


def tamper(url, statement):
    with psycopg.connect(url, options="-csearch_path=onbeat") as connection:
        connection.execute(statement)


def test_node_that_plans_and_node_that_launches_may_differ(postgres_url):
    """The runs that wait are the queue between the two."""

    async def story():
        called = []
        planner, runner = (
            a_beat(postgres_url, roles=("plan",)),
            a_beat(postgres_url, roles=("run",)),
        )
        for beat in (planner, runner):
            beat.register("work", lambda: called.append(time.monotonic()))
        async with planner, runner:
            rows = await nodes_of(planner)
            (one,) = [each for each in rows if rows[each].roles == {"run"}]
            await planner.define(a_schedule("job", every="1s", run={"python": "work"}))
            await until(lambda: len(called) >= 2)
            events = await planner.service.events(after=0)
            started = {row.event.node_id for row in events if isinstance(row.event, RunStarted)}
            return started == {one}, [sorted(row.offers) for row in rows.values()]

    right, offers = asyncio.run(story())
    assert right, "only the running node has started anything"
    assert [] in offers, "the planning node offers nothing"


def test_nodes_share_the_work_and_each_tick_is_launched_once(postgres_url):
    async def story():
        called = []
        beats = [a_beat(postgres_url, concurrency=8) for _ in range(3)]
        for n, beat in enumerate(beats):
            beat.register("work", lambda schedule, n=n: called.append((schedule, n)))
        async with beats[0], beats[1], beats[2]:
            names = [f"job-{n}" for n in range(30)]
            fields = {"at": soon(1), "overlap": "allow"}
            await beats[0].define(
                *(
                    a_schedule(name, run={"python": "work", "inputs": {"schedule": name}}, **fields)
                    for name in names
                )
            )
            await until(lambda: len(called) >= len(names))
            await asyncio.sleep(0.3)
            return sorted(name for name, _ in called) == sorted(names)

    assert asyncio.run(story())


def soon(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1 + seconds))


def test_node_stops_when_requested(postgres_url):
    async def story():
        beat, other = a_beat(postgres_url), a_beat(postgres_url)
        async with other:
            await beat.open()
            await beat.begin()
            (own,) = set(await nodes_of(beat)) - {engine_of(other)._node.node_id}
            await other.service.request_stop([own])
            async with asyncio.timeout(SOON):
                await beat.until(asyncio.Event())
            left = set(await nodes_of(other))
            await beat.close()
            return own not in left, len(left)

    assert asyncio.run(story()) == (True, 1)


@pytest.mark.parametrize("when", ["it stops", "it joins anew"])
def test_node_that_fails_during_its_start_ends_promptly(postgres_url, monkeypatch, when):
    """A caller that waits for its end gets the error, and closing it still works."""

    async def refuse(*_):
        raise StoreUnusable("say")

    async def story():
        beat = a_beat(postgres_url)
        await beat.open()
        await beat.begin()
        if when == "it stops":
            monkeypatch.setattr(PostgresStore, "unregister", refuse)
            await beat.service.request_stop(list(await nodes_of(beat)))
        else:
            monkeypatch.setattr(PostgresStore, "register", refuse)
            tamper(postgres_url, "DELETE FROM nodes")
        try:
            async with asyncio.timeout(SOON):
                await beat.until(asyncio.Event())
        finally:
            await beat.close()

    with pytest.raises(StoreUnusable, match="say"):
        asyncio.run(story())


def test_node_declared_dead_by_others_ends_its_runs_and_rejoins(postgres_url):
    async def story():
        ended = []

        async def endless():
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(True)

        beat = a_beat(postgres_url)
        beat.schedule(every("1s"), name="endless")(endless)
        async with beat:
            (before,) = await nodes_of(beat)
            await until(lambda: beat.activity.running)
            tamper(postgres_url, "DELETE FROM nodes")
            await until(lambda: ended)
            after = await until(lambda: nodes_of(beat))
            await until(lambda: beat.is_node and beat.activity.running)
            return before not in after

    assert asyncio.run(story())


@asynccontextmanager
async def away(server):
    """Have the server not answer for a while."""
    await asyncio.to_thread(server.pause)
    try:
        yield
    finally:
        await asyncio.to_thread(server.resume)


def test_node_without_database_ends_its_runs_and_resumes_afterwards():
    async def story(server):
        ended, calls = [], []

        async def work():
            calls.append(time.monotonic())
            try:
                await asyncio.sleep(600 if len(calls) == 1 else 0)
            except asyncio.CancelledError:
                ended.append(time.monotonic())
                raise

        beat = a_beat(server.new_database())
        beat.schedule(every("1s"), name="work", on_lost="retry")(work)
        async with beat:
            await until(lambda: calls)
            async with away(server):
                began = time.monotonic()
                await until(lambda: ended)
                held = ended[0] - began
            await until(lambda: len(calls) >= 3)
            rows = (await beat.runs())[::-1]
            return held, rows[0]

    with Server(new_folder()) as server:
        held, first = asyncio.run(story(server))
    assert held < 1.0, "before its lease was over"
    assert (first.status, first.attempt) == ("SUCCESS", 2), "it was lost, and tried again as asked"


def test_node_that_loses_the_database_while_stopping_ends_its_runs():
    """Others will start it again, however long it may finish here."""

    async def story(server):
        ended, begun = [], []

        async def endless():
            begun.append(True)
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(time.monotonic())

        beat = a_beat(server.new_database(), stop_grace=60_000)
        beat.schedule(every("1s"), name="endless")(endless)
        await beat.open()
        await beat.begin()
        await until(lambda: begun)
        closing = asyncio.create_task(beat.close())
        await asyncio.sleep(0.1)
        async with away(server):
            began = time.monotonic()
            await until(lambda: ended)
        await asyncio.wait_for(closing, SOON)
        return ended[0] - began

    with Server(new_folder()) as server:
        assert asyncio.run(story(server)) < 1.0


def test_run_started_by_an_unanswered_call_is_launched_once(postgres_url, monkeypatch):
    async def story():
        calls, doubts = [], []
        commit = database._commit

        def unanswered(connection, *, changes):
            commit(connection, changes=changes)
            if calls is not None and not doubts and _has_started(connection):
                doubts.append(True)
                connection.cut()
                raise StoreInDoubt("simulated")

        monkeypatch.setattr(database, "_commit", unanswered)
        beat = a_beat(postgres_url)
        beat.register("work", lambda: calls.append(True))
        async with beat:
            await beat.define(a_schedule("job", at=soon(1), run={"python": "work"}))
            await until(lambda: calls)
            await asyncio.sleep(0.2)
            (row,) = await until(lambda: done(beat))
            return len(doubts), len(calls), row.status, row.attempt

    assert asyncio.run(story()) == (1, 1, "SUCCESS", 2)


async def done(beat):
    rows = await beat.runs()
    return rows if all(row.finished_at for row in rows) else None


def _has_started(connection):
    found = connection.execute("SELECT 1 FROM onbeat.schedule_runs WHERE phase = 'RUNNING'")
    return found.fetchone() is not None
