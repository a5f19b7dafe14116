"""A scheduler as a program has it, with a clock that tests turn and targets that answer as told."""

import asyncio
import functools

from onbeat import Onbeat
from onbeat.core.runs.run import Accepted, Succeeded
from onbeat.core.schedule import read_schedule
from onbeat.core.time.instants import parse_instant
from onbeat.testing import ManualClock, RecordingLauncher

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
SOON = 20  # seconds: far more than anything here takes
GOES_ON = Accepted()  # the target has it, and does not tell of its end by itself


class Targets(RecordingLauncher):
    """Starts nothing; what each schedule's target answers is told beforehand."""

    def __init__(self):
        super().__init__(self._answer)
        self._answers = {}

    def tell(self, schedule_id, *outcomes):
        """Have a target answer with these, one attempt after another, and with the last ever after."""
        self._answers[schedule_id] = list(outcomes)

    def _answer(self, attempt):
        left = self._answers.get(attempt.schedule_id) or [Succeeded()]
        return left.pop(0) if len(left) > 1 else left[0]


class PolicyHarness:
    """What a test has. It is noon on the first of January, 2026, in UTC."""

    def __init__(self, database="sqlite://", *, clock=None, commands=None):
        self.clock = clock or ManualClock("2026-01-01T12:00:00Z")
        self.targets = commands or Targets()
        launchers = {"command": self.targets, "http": self.targets}
        self.beat = Onbeat(database, clock=self.clock, launchers=launchers)

    def tell(self, schedule_id, *outcomes):
        self.targets.tell(schedule_id, *outcomes)

    async def define(self, **schedules):
        """Define schedules: `report={"every": "1h"}`, of a command unless they say otherwise."""
        found = [read_schedule(name, {"run": {"command": ["true"]}} | given) for name, given in schedules.items()]  # fmt: skip
        return await self.beat.define(*found)

    async def passes(self, *lengths):
        """Let time pass, and everything happen that is due by then."""
        for length in lengths:
            await self.beat.settle()  # time that passes in the middle of a look makes a run late
            self.clock.advance(length)
            await self.beat.settle()

    async def is_now(self, time):
        """Let time pass until it is `13:05`, or that and some seconds, on this day."""
        then = parse_instant(f"2026-01-01T{time}{':00' * (2 - time.count(':'))}Z") * 1000
        await self.passes(then - self.clock.now())

    async def runs(self, schedule_id=None):
        """Return the runs there are, the first first."""
        return (await self.beat.runs(schedule_id, limit=10_000))[::-1]

    async def told(self, names, schedule_id=None):
        """Return these columns of runs, the first first: `told("status reason")`."""
        columns = names.split()
        found = [
            tuple(getattr(row, name) for name in columns) for row in await self.runs(schedule_id)
        ]
        return [value for (value,) in found] if len(columns) == 1 else found

    async def schedule(self, schedule_id):
        return await self.beat.service.schedule(schedule_id)

    def started(self, schedule_id=None):
        """Return which schedules' targets were started, or when that one's was meant to be."""
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
    """Run a test that is a coroutine; if it has a world, in that."""

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
