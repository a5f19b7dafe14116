"""The world of a store under test: a manual clock, a node, and helpers.

A new database joins the contract by a class like `Sqlite`, added to the parameters of `world`.
"""

import asyncio
import inspect
from contextlib import closing

import apsw
import psycopg
import pytest

from onbeat.core.decide.plan import plan
from onbeat.core.runs.run import Succeeded
from onbeat.ports.rows import RunFilter
from onbeat.ports.store import Finished, Node
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule
from tests.postgres import shared_server

LIFELONG = 100 * 365 * 86_400_000


class Sqlite:
    """One file; transactions run on the calling thread, so that a test is the same each time."""

    def __init__(self, folder):
        self.path = folder / "onbeat.db"

    async def open(self, clock, listener):
        return await SqliteStore.open(self.path, clock=clock, inline=True, listener=listener)

    def tamper(self, statement, values=()):
        with closing(apsw.Connection(str(self.path))) as database:
            database.execute(statement, values)

    def silence(self):
        """Do nothing: the holder of the file knows that other nodes are dead."""

    def close(self):
        """The folder is the test's."""


class Postgres:
    """One database of the server that the whole run has; its nodes keep to the test's clock."""

    def __init__(self, folder):
        self.server = shared_server()
        self.url = self.server.new_database()

    async def open(self, clock, listener):
        return await PostgresStore.open(self.url, clock=clock, listener=listener)

    def tamper(self, statement, values=()):
        with psycopg.connect(self.url, options="-csearch_path=onbeat") as connection:
            connection.execute(statement.replace("?", "%s"), values)

    def silence(self):
        """Have the leases of all nodes run out."""
        self.tamper("UPDATE nodes SET alive_until = 0")

    def close(self):
        self.server.drop_database(self.url)


def planned(schedule, run_at, unfinished, past, now, **asked):
    """Decide as the engine does."""
    return plan(schedule, run_at, unfinished, past, now=now, **asked)


class StoreHarness:
    """A store with a node at it, and the short ways in which tests speak of them."""

    def __init__(self, database):
        self.database = database
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.received = []  # what the listener was given
        self._opened, self._starts, self._told = [], 0, 0

    async def open(self):
        self.store = await self.second()

    async def register(self, **fields):
        self._starts += 1
        self.node = a_node(f"node-{self._starts}", **fields)
        return await self.store.register(self.node)

    async def second(self):
        """Open another store on the same files, as another process would."""
        store = await self.database.open(self.clock, lambda _, events: self.received.extend(events))
        self._opened.append(store)
        return store

    async def leave(self):
        """Close the store that the node is at."""
        self._opened.remove(self.store)
        await self.store.close()

    async def close(self):
        while self._opened:
            await self._opened.pop().close()

    async def reopen(self):
        """End the process and start another, without a call to the store in between."""
        await self.close()
        await self.fall_silent()
        await self.open()

    async def fall_silent(self):
        """Let the lease of the node expire."""
        self.database.silence()

    async def restart(self):
        """Reopen, with a new node; return what that found."""
        await self.reopen()
        return await self.register()

    async def break_definition(self, schedule_id):
        """Put something on the disk that no version of the program could have written."""
        await self.tamper(
            "UPDATE schedules SET definition = 'garbage' WHERE schedule_id = ?", (schedule_id,)
        )

    async def put_back(self, schedule_id, run_at):
        """Make a tick due again, as a clock that was wrong could have."""
        await self.tamper(
            "UPDATE due SET run_at = ?, due_at = ? WHERE schedule_id = ?",
            (run_at, run_at * 1000, schedule_id),
        )

    async def tamper(self, statement, values):
        await self.close()
        self.database.tamper(statement, values)
        await self.restart()
        await self.new_events()

    # -- short ways

    async def define(self, schedule_id="report", *, update_waiting=False, **fields):
        given = [a_schedule(schedule_id, **fields)]
        (upserted,) = await self.store.upsert(given, update_waiting=update_waiting)
        return upserted

    async def plan(self, function=planned, *, limit=100, slots=0):
        node = self.node if slots else None
        return await self.store.plan_due(function, limit=limit, node=node, slots=slots)

    async def tick(self, length="1h"):
        """Let time pass, and decide what is due."""
        self.clock.advance(length)
        return await self.plan()

    async def claim(self, *, limit=100):
        return await self.store.claim(self.node, limit=limit)

    async def announce(self, attempts):
        return await self.store.announce(self.node, attempts)

    async def start(self):
        """Claim and announce everything that may start."""
        return await self.announce(await self.claim())

    async def start_one(self):
        (attempt,) = await self.start()
        return attempt

    async def waiting(self, **fields):
        """Define a schedule, and let its first tick wait to be claimed."""
        await self.define(**fields)
        await self.tick()

    async def going(self, **fields):
        """Define a schedule, and return its first attempt, started."""
        await self.waiting(**fields)
        return await self.start_one()

    async def end(self, attempt, outcome=Succeeded(), **fields):  # noqa: B008 - it is frozen
        return await self.store.finish([Finished(attempt, outcome, **fields)])

    async def schedule(self, schedule_id="report"):
        return await self.store.schedule(schedule_id)

    async def rows(self, schedule_id=None):
        """Return runs, the first first."""
        return (await self.store.runs(RunFilter(schedule_id), limit=100_000))[::-1]

    async def row(self):
        """Return the only run there is."""
        (row,) = await self.rows()
        return row

    async def runs(self, names, schedule_id=None):
        """Return these columns of runs, the first first: `runs("status reason")`."""
        columns = names.split()
        found = [
            tuple(getattr(row, name) for name in columns) for row in await self.rows(schedule_id)
        ]
        return [value for (value,) in found] if len(columns) == 1 else found

    async def new_events(self):
        """Return the events since this was last asked."""
        rows = await self.store.events(after=self._told, limit=100_000)
        self._told = max((row.event_id for row in rows), default=self._told)
        return [row.event for row in rows]

    async def names_told(self):
        return [event.name for event in await self.new_events()]


def a_node(node_id, **fields):
    """Return a node that is never silent, however long a test lets time pass."""
    usual = {"offers": frozenset({"command"}), "lease": LIFELONG}
    return Node(node_id, "here", **usual | fields)


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


DATABASES = [Sqlite, pytest.param(Postgres, marks=pytest.mark.postgres)]


@pytest.fixture(params=DATABASES, ids=lambda database: database.__name__)
def world(request, runner, tmp_path):
    """A store at noon on New Year's Day 2026, with a node and no new events."""
    database = request.param(tmp_path)
    world = StoreHarness(database)
    runner.run(world.open())
    runner.run(world.register())
    runner.run(world.new_events())
    yield world
    runner.run(world.close())
    database.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine in the event loop of its world."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["runner"].run(pyfuncitem.obj(**given))
    return True
