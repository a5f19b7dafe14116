"""A scheduler in a program, with a clock set by tests and targets with prepared answers."""

import asyncio
import functools

from onbeat import Onbeat
from onbeat.core.runs.run import Accepted, Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.core.time.instants import parse_instant
from onbeat.testing import ManualClock, RecordingLauncher

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
SOON = 20  # seconds: far more than anything here takes
ACCEPTED = Accepted()  # the target does not report the outcome by itself


class Targets(RecordingLauncher):
    """A launcher that starts nothing and returns prepared outcomes for each schedule."""

    def __init__(self):
        super().__init__(self._answer)
        self._answers = {}

    def answer_with(self, schedule_id, *outcomes):
        """Prepare the outcomes of a target, one for each attempt; the last one is repeated."""
        self._answers[schedule_id] = list(outcomes)

    def _answer(self, attempt):
        left = self._answers.get(attempt.schedule_id) or [Succeeded()]
        return left.pop(0) if len(left) > 1 else left[0]


class PolicyHarness:
    """The world of a test. It is noon on the first of January, 2026, in UTC."""

    def __init__(self, database="sqlite://", *, clock=None, commands=None):
        self.clock = clock or ManualClock("2026-01-01T12:00:00Z")
        self.targets = commands or Targets()
        launchers = {"command": self.targets, "http": self.targets}
        self.beat = Onbeat(database, clock=self.clock, launchers=launchers)

    def answer_with(self, schedule_id, *outcomes):
        self.targets.answer_with(schedule_id, *outcomes)

    async def define(self, **schedules):
        """Define schedules: `report={"every": "1h"}`, of a command by default."""
        found = [read_schedule(name, {"run": {"command": ["true"]}} | given) for name, given in schedules.items()]  # fmt: skip
        return await self.beat.define(*found)

    async def passes(self, *lengths):
        """Let time pass, and run everything that is due by then."""
        for length in lengths:
            await self.beat.settle()  # time that passes during a planning pass makes a run late
            self.clock.advance(length)
            await self.beat.settle()

    async def is_now(self, time):
        """Let time pass until it is `13:05`, or that and some seconds, on this day."""
        then = parse_instant(f"2026-01-01T{time}{':00' * (2 - time.count(':'))}Z") * 1000
        await self.passes(then - self.clock.now())

    async def runs(self, schedule_id=None):
        """Return all runs, the oldest first."""
        return (await self.beat.runs(schedule_id, limit=10_000))[::-1]

    async def columns(self, names, schedule_id=None):
        """Return these columns of all runs, the oldest first: `columns("status reason")`."""
        selected = names.split()
        found = [
            tuple(getattr(row, name) for name in selected) for row in await self.runs(schedule_id)
        ]
        return [value for (value,) in found] if len(selected) == 1 else found

    async def schedule(self, schedule_id):
        return await self.beat.service.schedule(schedule_id)

    def started(self, schedule_id=None):
        """Return the schedules of all attempts, or the ticks of the attempts of one schedule."""
        attempts = self.targets.attempts
        if schedule_id is None:
            return [attempt.schedule_id for attempt in attempts]
        return [at(attempt.run_at) for attempt in attempts if attempt.schedule_id == schedule_id]


def at(run_at):
    """Return a time of that day as it is read: `13:00`, with seconds if there are any."""
    seconds = run_at - parse_instant("2026-01-01T00:00:00Z")
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def awaited(test):
    """Run a coroutine test; a test with a world runs inside it."""

    @functools.wraps(test)
    def run(**given):
        async def whole():
            if "world" not in given:
                await test(**given)
                return
            async with given["world"].beat:
                await test(**given)

        asyncio.run(asyncio.wait_for(whole(), SOON))

    return run
