"""A scheduler with a fake clock and a folder of files, beside a real session server."""

import asyncio
import importlib.util
import json
import logging
from pathlib import Path

import pytest
from aiohttp import web

from onbeat import Onbeat
from onbeat.testing import ManualClock
from tests.given_settings import given_settings
from tests.inside import launcher_of

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "sessions"
STANDUP = {
    "prompt": "Generate daily standup summary",
    "enabled": True,
    "schedule": {"type": "cron", "expression": "0 9 * * 1-5"},
    "sessionConfig": {"model": "claude-sonnet", "persistSession": True},
}


def load_server():
    """Return the module of the example's server."""
    spec = importlib.util.spec_from_file_location("session_server", EXAMPLE / "session_server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SessionServer = load_server().SessionServer


class Server(SessionServer):
    """The server of the example, which can be slow, or fail during a request."""

    before_message = after_create = before_delete = None
    deletes = tells = stops = True  # whether it deletes, reports and stops sessions
    works = False  # whether a message keeps its session busy, until the test makes it idle

    def __init__(self, folder):
        super().__init__(folder)
        self.delivered = []  # the slugs of accepted messages, in order

    async def _create(self, request):
        answered = await super()._create(request)
        if self.after_create is not None:
            self.after_create()
        return answered

    async def _message(self, request):
        if self.before_message is not None:
            await self.before_message()
        answered = await super()._message(request)
        if answered.status == 200:
            self.delivered.append((await request.json())["scheduleSlug"])
            if self.works:
                self.busy.add(request.match_info["id"])
        return answered

    async def _state(self, request):
        return await super()._state(request) if self.tells else web.Response(status=404)

    async def _list(self, request):
        return await super()._list(request) if self.tells else web.Response(status=404)

    async def _cancel(self, request):
        return await super()._cancel(request) if self.stops else web.Response(status=404)

    async def _delete(self, request):
        if self.before_delete is not None:
            await self.before_delete()
        if not self.deletes:
            return web.json_response({"error": "not now"}, status=500)
        return await super()._delete(request)


async def until(holds, patience=10.0):
    """Wait until a condition holds."""
    async with asyncio.timeout(patience):
        while not holds():  # noqa: ASYNC110 - it is so in another process, or on another node
            await asyncio.sleep(0.01)


class SessionsHarness:
    """The fixtures of a test. It starts on Thursday, 2026-01-29, at 08:00 UTC."""

    def __init__(self, folder):
        self.clock = ManualClock("2026-01-29T08:00:00Z")
        self.folder = folder / "schedule"
        self.server = Server(folder / "sessions")
        self.database = f"sqlite:///{folder}/onbeat.db"
        self.settings, self.url, self.launchers = {}, "", {}
        self.beat = self._stopped = None

    @property
    def sessions(self):
        return self.beat.systems["sessions"]

    @property
    def service(self):
        return self.beat.service

    def play(self, *stories):
        """Run stories one after the other, each in a new start of the scheduler."""

        if self.server is self._stopped:
            self.restart_server()

        async def whole():
            self.url = await self.server.start(int(self.url.rpartition(":")[2] or 0))
            found = None
            for story in stories:
                found = await self.live(story)
            await self.server.stop()
            self._stopped = self.server
            return found

        return asyncio.run(asyncio.wait_for(whole(), 30))

    async def live(self, story):
        given = {
            "database": self.database,
            "sessions_url": self.url,
            "sessions_folder": str(self.folder),
            "sessions_cwd": "/srv/project",
            **self.settings,
        }
        own = self.launchers
        self.beat = Onbeat(settings=given_settings(**given), clock=self.clock, launchers=own)
        async with self.beat:
            await self.settled()
            return await story(self)

    async def settled(self):
        """Run everything that is due, and bring the files up to date."""
        self.beat.wake()
        await self.beat.settle()
        await self.sessions.reconcile()
        await self.beat.settle()
        await self.sessions.reconcile()

    async def state_is_looked_up(self, times=3):
        """Wait until the server was asked so many times more what a session does."""

        def looks():
            return sum(path.endswith("/state") for _, path, *_ in self.server.asked)

        enough = looks() + times
        await until(lambda: looks() >= enough)

    async def let_pass(self, *lengths):
        for length in lengths:
            self.clock.advance(length)
            await self.settled()

    async def put(self, slug, **fields):
        answered = await self.sessions.put(self.service, slug, STANDUP | fields)
        await self.settled()
        return answered

    async def run(self, slug):
        answered = await self.sessions.run(self.service, slug)
        await self.settled()
        return answered

    async def item(self, slug):
        return await self.sessions.item(self.service, slug)

    async def tidy(self):
        """Delete ephemeral sessions, as is done every minute."""
        await launcher_of(self.beat, "session").tidy()

    # -- files

    def write(self, slug, name, given):
        path = self.folder / slug / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(given if isinstance(given, str) else json.dumps(given))

    def define(self, name, **fields):
        self.write(name, "definition.json", {"slug": name} | STANDUP | fields)

    def definition(self, slug):
        return json.loads((self.folder / slug / "definition.json").read_text())

    def last_run(self, slug):
        return json.loads((self.folder / slug / "last-run.json").read_text())

    def edit(self, slug, name, **fields):
        path = self.folder / slug / name
        self.write(slug, name, json.loads(path.read_text()) | fields)

    # -- what the server saw

    @property
    def messages(self):
        """The slugs of the messages that the server accepted, in order."""
        return self.server.delivered

    @property
    def attempts(self):
        """The number of requests."""
        return sum(path.endswith("/messages") for _, path, _, _ in self.server.asked)

    @property
    def made(self):
        """The bodies of the requests for new sessions, in order."""
        return [
            body
            for method, path, body, _ in self.server.asked
            if (method, path) == ("POST", "/api/sessions")
        ]

    def restart_server(self):
        """Start another server with the same sessions."""
        self.server = Server(self.server.folder)

    def said(self):
        """The prompts, by session."""
        return {each: self.server.messages_of(each) for each in self.server.sessions}


@pytest.fixture
def world(tmp_path):
    return SessionsHarness(tmp_path)


@pytest.fixture
def logged(caplog):
    """Return the lines of the scheduler's log."""
    caplog.set_level(logging.INFO, "onbeat.sessions")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "onbeat.sessions"]
