"""A scheduler with a fake clock, and a launcher that only records commands."""

import asyncio

import pytest

from onbeat import Onbeat
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.launchers.command.launcher import ProcessLauncher
from onbeat.testing import ManualClock, RecordingLauncher


class Commands(RecordingLauncher):
    """Records commands, and refuses what the real launcher refuses."""

    def __init__(self, folder):
        super().__init__(self.answer)
        self.exit_code, self._real = 0, ProcessLauncher(folder, environment={})

    def answer(self, attempt):
        if self.exit_code == 0:
            return Succeeded()
        if self.exit_code < 0:
            return Failed("it was ended", "signal", retryable=False, exit_code=self.exit_code)
        return Failed("it failed", "exit", exit_code=self.exit_code)

    def check(self, target):
        self._real.check(target)


class SystemHarness:
    """The fixtures of a test of a system."""

    def __init__(self, folder):
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.commands = Commands(folder)
        self.beat = Onbeat("sqlite://", clock=self.clock, launchers={"command": self.commands})

    async def let_pass(self, *lengths):
        for length in lengths:
            self.clock.advance(length)
            await self.beat.settle()

    async def statuses(self, schedule_id=None):
        rows = await self.beat.runs(schedule_id)
        return [(row.status, row.reason) for row in reversed(rows)]

    def play(self, story):
        """Run a story of this world; return its result."""

        async def whole():
            async with self.beat:
                return await story(self)

        return asyncio.run(asyncio.wait_for(whole(), 20))


@pytest.fixture
def world(tmp_path):
    return SystemHarness(tmp_path)
