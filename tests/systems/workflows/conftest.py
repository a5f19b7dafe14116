"""A scheduler with an executor that records its input, and a fake clock."""

import asyncio
from contextlib import suppress

import pytest

from onbeat import Onbeat
from onbeat.core.time.instants import parse_instant
from onbeat.testing import ManualClock
from tests.given_settings import given_settings
from tests.inside import store_of

DAG = {
    "nodes": [{"id": "fetch", "action": "http.get"}, {"id": "send", "action": "mail.send"}],
    "edges": [["fetch", "send"]],
}
REPORT = {
    "schedule_id": "hourly-report",
    "workflow_id": "report",
    "version": 3,
    "user_id": "ada",
    "cron_expr": "0 * * * *",
    "timezone": "Europe/Berlin",
}


class WorkflowsHarness:
    """The fixtures of a test of workflows. It starts at noon on 2026-01-01, UTC.

    `answer` is the executor's response, or a function of the request.
    """

    def __init__(self, database="sqlite://", *, start="2026-01-01T12:00:00Z", **settings):
        self.clock = ManualClock(start)
        self.settings = given_settings(database=database, **settings)
        self.handed_over = []  # DAGs with their meta
        self.answer = None
        self.beat = self._new_beat()
        self._others = set()

    def _new_beat(self):
        beat = Onbeat(settings=self.settings, clock=self.clock)
        beat.executor(self.execute)
        return beat

    async def execute(self, dag, meta):
        self.handed_over.append((dag, meta))
        found = self.answer(meta) if callable(self.answer) else self.answer
        return await found if asyncio.iscoroutine(found) else found

    @property
    def workflows(self):
        return self.beat.systems["workflows"]

    @property
    def registrar(self):
        return self.workflows.registrar

    async def upsert(self, **given):
        return await self.registrar.upsert_schedule(REPORT | given)

    async def get(self, schedule_id="hourly-report"):
        return (await self.registrar.get_schedule(schedule_id))["schedule"]

    async def with_dag(self, **given):
        """Define a schedule with its DAG."""
        await self.workflows.store.save_dag("report", 3, DAG)
        return await self.upsert(**given)

    async def let_pass(self, *lengths):
        for length in lengths:
            await self.beat.settle()  # a launch while the clock is set would be late
            self.clock.advance(length)
            await self.beat.settle()

    async def is_now(self, text):
        await self.let_pass(parse_instant(text) * 1000 - self.clock.now())

    async def crash(self, down="0s"):
        """Crash the node, and start another on the same file later."""
        await store_of(self.beat).close()  # no write and no unregister after this
        gone = asyncio.all_tasks() - self._others
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        self.clock.advance(down)
        self.beat = self._new_beat()
        await self.beat.__aenter__()
        await self.beat.settle()

    @property
    def started(self):
        """The planned times of the hand-overs."""
        return [meta["scheduled_for"] for _, meta in self.handed_over]

    @property
    def keys(self):
        return [meta["idempotency_key"] for _, meta in self.handed_over]

    async def runs(self, schedule_id="hourly-report"):
        return (await self.registrar.runs(schedule_id, limit=1000))[::-1]

    async def statuses(self, schedule_id="hourly-report"):
        return [(run["status"], run["reason"]) for run in await self.runs(schedule_id)]

    def play(self, story):
        """Run a story of this world; return its result."""

        async def whole():
            self._others = asyncio.all_tasks()
            await self.beat.__aenter__()
            try:
                return await story(self)
            finally:
                with suppress(asyncio.CancelledError):
                    await self.beat.close()

        return asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.fixture
def workflows():
    return WorkflowsHarness()
