"""A timer with a fake clock, and exposes in a database or a folder, beside a fake panel."""

import asyncio
import json
import sqlite3
from contextlib import closing, suppress

import pytest

from onbeat import Onbeat
from onbeat.testing import ManualClock
from tests.given_settings import given_settings
from tests.inside import launcher_of, store_of
from tests.systems.flows.panel import FakePanel, Flow

URL = "/-/127.0.0.1/8125/-/"
KEY = "reports/-/127.0.0.1/8125/-"
HOURLY = 'schedule:\n  cron: "0 * * * *"\n  inputs: {query: "daily report", limit: 100}\n'
TABLE = """CREATE TABLE IF NOT EXISTS expose (name TEXT PRIMARY KEY, display TEXT, network TEXT,
  enabled INTEGER DEFAULT 1, state TEXT DEFAULT 'DRAFT', heartbeat REAL, bootstrap TEXT, meta TEXT,
  created REAL, updated REAL)"""


class FlowsHarness:
    """The fixtures of a test. It starts on Thursday, 2026-01-01, at noon UTC."""

    def __init__(self, folder, **settings):
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.folder = folder
        self.exposes = folder / "expose.db"
        (folder / "secrets").mkdir(exist_ok=True)
        (folder / "secrets" / "panel").write_text("sesame\n")
        self.panel = FakePanel(
            {URL: Flow("a report", ["query", "limit"]), f"{URL}clean": Flow("it is clean", [])},
            password="sesame",
        )
        self.settings, self.url = settings, ""
        self.beat, self._others = None, set()
        with closing(sqlite3.connect(self.exposes)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(TABLE)

    @property
    def timer(self):
        return self.beat.systems["flows"]

    @property
    def service(self):
        return self.beat.service

    # -- exposes

    def expose(self, name="reports", *flows, enabled=1, meta=None):
        """Create an expose with flows, each as `(url, data)` or as its fields."""
        listed = [
            each if isinstance(each, dict) else dict(zip(("url", "data"), each, strict=True))
            for each in flows
        ]
        text = json.dumps(listed or [{"url": URL, "data": HOURLY}]) if meta is None else meta
        with closing(sqlite3.connect(self.exposes)) as database, database:
            row = "INSERT OR REPLACE INTO expose (name, enabled, meta) VALUES (?, ?, ?)"
            database.execute(row, (name, enabled, text))

    def hourly(self, name="reports", **block):
        """Create an expose with one scheduled flow."""
        given = {"cron": "0 * * * *"} | block
        self.expose(name, (URL, json.dumps({"schedule": given})))

    def unexpose(self, name="reports"):
        with closing(sqlite3.connect(self.exposes)) as database, database:
            database.execute("DELETE FROM expose WHERE name = ?", (name,))

    # -- life cycle

    def _new_beat(self):
        given = {
            "database": f"sqlite:///{self.folder}/onbeat.db",
            "flows_exposes": str(self.exposes),
            "flows_panel": self.url,
            "flows_password": "secret://panel",
            "flows_log_file": str(self.folder / "timer.log"),
            "secrets": str(self.folder / "secrets"),
            "stop_grace": 0,
            **self.settings,
        }
        return Onbeat(settings=given_settings(**given), clock=self.clock)

    def play(self, *stories):
        """Run stories one after the other, each in a new start of the scheduler."""

        async def whole():
            self.url = await self.panel.start()
            found = None
            try:
                for story in stories:
                    found = await self.live(story)
            finally:
                await self.panel.stop()
            return found

        return asyncio.run(asyncio.wait_for(whole(), 30))

    async def live(self, story):
        self._others = asyncio.all_tasks()
        self.beat = self._new_beat()
        await self.beat.__aenter__()
        try:
            return await story(self)
        finally:
            with suppress(asyncio.CancelledError):
                await self.beat.close()

    async def crash(self, down="0s"):
        """Crash the node, and start another on the same file later.

        The crashed node cannot shut down: its store stays unchanged, and its panel receives no
        further request, which is asserted.
        """
        launcher = launcher_of(self.beat, "flow")
        launcher.leave(list(launcher._followed))  # a killed process cancels nothing
        await store_of(self.beat).close()  # no write and no unregister after this
        before, heard = self.rows(), self.panel.count("DELETE")
        gone = asyncio.all_tasks() - self._others
        mine = asyncio.current_task()
        gone = {
            task for task in gone if task is not mine and "aiohttp" not in repr(task.get_coro())
        }
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert (self.rows(), self.panel.count("DELETE")) == (before, heard)
        await launcher_of(self.beat, "http").close()  # connections end with their process
        self.clock.advance(down)
        self.beat = self._new_beat()
        await self.beat.__aenter__()

    def rows(self):
        """Return the runs and documents in the file."""
        with closing(sqlite3.connect(f"{self.folder}/onbeat.db")) as database:
            tables = ("schedule_runs", "documents")
            return [database.execute(f"SELECT * FROM {each}").fetchall() for each in tables]

    async def let_pass(self, *lengths):
        for length in lengths:
            await self.beat.settle()  # a launch while the clock is set would be late
            self.clock.advance(length)
            await self.beat.settle()

    async def tick(self, length):
        """Advance the clock without waiting for the runs that it starts."""
        self.clock.advance(length)
        self.beat.wake()

    async def until(self, holds):
        """Wait until a condition holds."""
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)

    async def until_named(self):
        """Wait until the latest run has the panel's id, and return it."""
        while True:
            for row in await self.beat.runs(limit=1):
                if row.external_id is not None and row.status == "STARTED":
                    return row
            await asyncio.sleep(0.01)

    async def until_run(self, **fields):
        """Wait until the latest run has these values, and return it."""
        while True:
            for row in await self.beat.runs(limit=1):
                if all(getattr(row, name) == value for name, value in fields.items()):
                    return row
            await asyncio.sleep(0.01)

    async def listed(self):
        return {each.key: each for each in await self.timer.schedules(self.service)}

    async def statuses(self):
        return [(row.status, row.reason) for row in reversed(await self.beat.runs())]


@pytest.fixture
def world(tmp_path):
    return FlowsHarness(tmp_path)


@pytest.fixture
def logged(world):
    """Return the lines of the timer's log, each with its level."""

    def logged():
        lines = (world.folder / "timer.log").read_text().splitlines()
        return [tuple(line.split(" ", 3)[2:]) for line in lines]

    return logged
