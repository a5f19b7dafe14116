"""An orchestrator with a fake clock, and types of artifacts to publish."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from onbeat.agents import Orchestrator
from onbeat.testing import ManualClock

SOON = 20  # seconds: longer than any test takes


class LogEntry(BaseModel):
    level: str = "INFO"
    text: str = ""


class Report(BaseModel):
    count: int = 0
    iteration: int = 0


class Alert(BaseModel):
    text: str = ""


def instant(text):
    """Return `12:00:05` of the first of January, 2026, in UTC."""
    return datetime.fromisoformat(f"2026-01-01T{text}").replace(tzinfo=UTC)


class AgentsHarness:
    """Starts at noon on 2026-01-01, UTC. Several starts may share a database."""

    def __init__(self, database="sqlite://"):
        self.database, self.clock = database, ManualClock("2026-01-01T12:00:00Z")
        self.reborn()

    def reborn(self):
        """Create a new orchestrator, as after a restart of the program."""
        self.its = Orchestrator(self.database, clock=self.clock)
        self.seen = []
        return self.its

    def agent(self, name="daily", *, engine=None, publishes=(Report,)):
        """Return an agent that records its contexts."""

        async def note(ctx):
            self.seen.append(ctx)

        return self.its.agent(name).publishes(*publishes).with_engines(engine or note)

    async def passes(self, *lengths):
        for length in lengths:
            await self.its.beat.settle()  # a launch while the clock is set would be late
            self.clock.advance(length)
            await self.its.beat.settle()

    async def runs(self, agent="daily"):
        return list(reversed(await self.its.history(agent)))

    def fired(self):
        """Return the planned times of the recorded runs."""
        return [f"{ctx.fire_time:%H:%M:%S}" for ctx in self.seen]

    def play(self, story):
        """Run a story of this world; return its result."""

        async def whole():
            async with self.its:
                return await story(self)

        return asyncio.run(asyncio.wait_for(whole(), SOON))


@pytest.fixture
def world():
    return AgentsHarness()


@pytest.fixture
def new_york(monkeypatch):
    """Set a time zone far from UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def lasting(tmp_path):
    """A world whose database is a file."""
    return AgentsHarness(f"sqlite:///{tmp_path}/agents.db")
