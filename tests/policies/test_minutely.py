"""An hour of minutely ticks whose runs last five seconds: every tick starts."""

import asyncio

import pytest

from onbeat.core.runs.run import Accepted, Succeeded
from onbeat.testing import ManualClock, RecordingLauncher
from tests.policies.world import PolicyHarness, awaited

MINUTELY = {"cron": "* * * * *"}


class Lasting(RecordingLauncher):
    """Targets that end when five seconds have passed by the clock that the test turns."""

    def __init__(self, clock):
        super().__init__()
        self._clock, self._going = clock, []

    async def launch(self, attempt):
        self.attempts.append(attempt)
        ended = asyncio.get_running_loop().create_future()
        self._going.append((self._clock.now() + 5_000, ended))
        return await ended, ""

    def let_end(self):
        over = [each for each in self._going if each[0] <= self._clock.now()]
        self._going = [each for each in self._going if each not in over]
        for _, ended in over:
            ended.set_result(Succeeded())


async def until(reached):
    async with asyncio.timeout(5):
        while not await reached():  # noqa: ASYNC110 - the store does not notify
            await asyncio.sleep(0)


@pytest.mark.parametrize("overlap", ["skip", "queue"])
def test_minutely_schedule_starts_59_of_59_if_the_node_sees_their_ends(overlap):
    clock = ManualClock("2026-01-01T12:00:00Z")
    targets = Lasting(clock)
    world = PolicyHarness(clock=clock, commands=targets)

    @awaited
    async def story(world):
        await world.define(job=MINUTELY | {"overlap": overlap})
        for n in range(1, 60):
            clock.advance("55s")
            world.beat.wake()
            await until(lambda n=n: started(world, n))
            clock.advance("5s")
            targets.let_end()
            await until(lambda n=n: succeeded(world, n))

    clock.step(5_000)  # so that each minute begins with a tick, and ends before the next
    story(world=world)
    assert [attempt.run_at % 60 for attempt in targets.attempts] == [0] * 59


async def started(world, n):
    return len(world.targets.attempts) == n


async def succeeded(world, n):
    return (await world.columns("status")).count("SUCCESS") == n


@pytest.mark.parametrize("overlap", ["skip", "queue"])
@awaited
async def test_minutely_schedule_starts_59_of_59_if_the_target_reports_them(overlap):
    world = PolicyHarness()
    async with world.beat:
        world.answer_with("job", Accepted())
        await world.define(job=MINUTELY | {"overlap": overlap})
        for n in range(1, 60):
            await world.is_now(f"12:{n:02}:00")
            await world.is_now(f"12:{n:02}:05")
            await world.beat.report(world.targets.attempts[-1].run_id, Succeeded())
        rows = await world.columns("status reason")
    assert len(world.targets.attempts) == 59
    assert rows == [("SUCCESS", None)] * 59


@pytest.mark.parametrize(
    ("overlap", "others"), [("skip", ("SKIPPED", "overlap")), ("queue", ("ENQUEUED", None))]
)
@awaited
async def test_target_that_accepts_and_stays_silent_blocks_ticks_until_its_deadline(
    overlap, others
):
    world = PolicyHarness()
    async with world.beat:
        world.answer_with("job", Accepted())
        await world.define(job=MINUTELY | {"overlap": overlap, "timeout": "30m"})
        for n in range(1, 60):
            await world.is_now(f"12:{n:02}:00")
        rows = await world.columns("run_at status reason blocked_by")
    first, second = (attempt.run_id for attempt in world.targets.attempts)
    assert [row[1:3] for row in rows if row[1] == "FAILED"] == [("FAILED", "timeout")]
    assert [row[1:3] for row in rows if row[1] == "STARTED"] == [("STARTED", None)]
    blocked = [row for row in rows if row[1:3] == others]
    assert len(blocked) == 57
    if overlap == "skip":
        assert [row[3] for row in blocked] == [first] * 29 + [second] * 28
