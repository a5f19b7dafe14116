"""An orchestrator with a clock that tests turn, and types of artifacts for them to publish."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from onbeat.agents import Orchestrator
from onbeat.testing import ManualClock

SOON = 20  # seconds: far more than anything here takes


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
    """It is noon on the first of January, 2026, in UTC. Several lives may share a database."""

    def __init__(self, database="sqlite://"):
        self.database, self.clock = database, ManualClock("2026-01-01T12:00:00Z")
        self.reborn()

    def reborn(self):
        """Have a new orchestrator, as a program has that was started again."""
        self.its = Orchestrator(self.database, clock=self.clock)
        self.seen = []
        return self.its

    def agent(self, name="daily", *, engine=None, publishes=(Report,)):
        """Return an agent that writes down the contexts it was given."""

        async def note(ctx):
            self.seen.append(ctx)

        return self.its.agent(name).publishes(*publishes).with_engines(engine or note)

    async def passes(self, *lengths):
        for length in lengths:
            await self.its.beat.settle()  # what is launched while the clock is set is late
            self.clock.advance(length)
            await self.its.beat.settle()

    async def runs(self, agent="daily"):
        return list(reversed(await self.its.history(agent)))

    def fired(self):
        """Return when the runs that were seen were planned for."""
        return [f"{ctx.fire_time:%H:%M:%S}" for ctx in self.seen]

    def play(self, story):
        """Run a story of this world to its end; return what it returns."""

        async def whole():
            async with self.its:
                return await story(self)

        return asyncio.run(asyncio.wait_for(whole(), SOON))


@pytest.fixture
def world():
    return AgentsHarness()


@pytest.fixture
def new_york(monkeypatch):
    """Have this process be far from UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def lasting(tmp_path):
    """A world whose database is a file."""
    return AgentsHarness(f"sqlite:///{tmp_path}/agents.db")
