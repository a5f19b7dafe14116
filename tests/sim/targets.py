"""Targets that last a while and end as the dice say; each writes down that it was started."""

import asyncio
from dataclasses import dataclass

from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Gone, Succeeded
from tests.sim.clockwork import WitnessClock

SAID = [
    (0.55, lambda rng, attempt: Succeeded({"n": attempt.attempt})),
    (0.22, lambda rng, attempt: Failed("exit code 1", "exit", exit_code=1)),
    (0.04, lambda rng, attempt: Failed("ended by SIGKILL", "signal", False, -9)),
    (0.02, lambda rng, attempt: Canceled("asked to end")),
    (0.07, lambda rng, attempt: Accepted(f"external {attempt.run_id}")),
    (0.06, lambda rng, attempt: Busy("no time", rng.choice([200, 5_000, 30_000]))),
    (0.01, lambda rng, attempt: Gone("it is no more")),
]  # else the launcher fails


@dataclass
class Launched:
    """What a target knows of its own start: the witness that no row can talk over."""

    run_id: int
    schedule_id: str
    run_at: int
    request_id: str
    attempt: int
    fence: int
    key: str
    at: int  # by the wall clock
    after_claim: float  # seconds since the claim was sent
    row: tuple  # phase, attempt and fence of its row at that moment
    argv: tuple = ()
    began: float = 0.0  # by the monotonic clock, as is its end
    over: float = float("inf")
    was_well: bool = False  # whether its node was there to end it all the time
    outcome: object = None  # what it said in the end
    revision: int = 0  # of its schedule
    may_run: bool = False  # as its attempt says
    is_cancel_requested: bool = False


class Targets:
    """The launcher of one node."""

    def __init__(self, node):
        self._node, self._world, self._rng = node, node.world, node.rng

    def check(self, target):
        pass

    def offers(self):
        return ["command"]

    def can_cancel(self, target):
        return True

    def kill(self, run_ids):
        pass

    async def recover(self):
        return 0

    async def close(self):
        pass

    async def launch(self, attempt):
        if attempt.target.fields["command"][0] == "probe":
            return await self._answer(attempt)
        node, world = self._node, self._world
        node.faults.reach("launch")
        seen = self._see(attempt)
        world.launched.append(seen)
        node.faults.reach("launched")
        try:
            await self._last(attempt)
            node.faults.reach("outcome")
            seen.outcome = say(self._rng, attempt)
        finally:
            seen.over = world.loop.time()
            seen.was_well = node.is_well and node.slow_until <= seen.began
        if isinstance(seen.outcome, Accepted):
            world.will_tell(attempt.run_id)
        return seen.outcome, "it failed" if isinstance(seen.outcome, Failed) else ""

    async def _last(self, attempt):
        """Take some time. Asked to end, it takes a moment, and may get there first."""
        rng = self._rng
        try:
            longest = 90 if rng.random() < 0.02 else rng.choice([0, 0.1, 1, 4, 25])
            await asyncio.sleep(longest * rng.random())
        except asyncio.CancelledError:
            if self._node.faults.dead:
                raise
            await asyncio.sleep(rng.choice([0, 0.2, 3]) * rng.random())
            if rng.random() < 0.8:
                raise

    async def _answer(self, attempt):
        """Say whether a condition holds, or nothing that could be understood."""
        node, world, rng = self._node, self._world, self._rng
        node.faults.reach("probe")
        seen = self._see(attempt)
        world.probes.append(seen)
        await asyncio.sleep(rng.choice([0, 0.1, 4]) * rng.random())
        node.faults.reach("answer of a probe")
        answer = rng.choices(["yes", "no", "nothing"], [6, 2, 2])[0]
        world.probed[attempt.run_id, attempt.fence] = answer
        if answer == "yes":
            return Succeeded(), ""
        if answer == "no":
            return Failed("exit code 1", "exit", exit_code=1), ""
        if rng.random() < 0.5:
            return Failed("ended by SIGKILL", "signal", retryable=False, exit_code=-9), ""
        raise RuntimeError("a launcher with a defect")

    def _see(self, attempt):
        world = self._world
        row = world.looking.execute(
            "SELECT phase, attempt, fence FROM schedule_runs WHERE run_id = ?", (attempt.run_id,)
        ).fetchone()
        sent = world.sent.get((attempt.run_id, attempt.fence), float("-inf"))
        return Launched(
            attempt.run_id, attempt.schedule_id, attempt.run_at, attempt.request_id,
            attempt.attempt, attempt.fence, attempt.key, WitnessClock(world.loop, world).now(),
            world.loop.time() - sent, row, tuple(attempt.target.fields[attempt.target.kind]),
            world.loop.time(), revision=attempt.revision, may_run=attempt.may_run,
            is_cancel_requested=attempt.is_cancel_requested,
        )  # fmt: skip


def say(rng, attempt, table=SAID):
    """Draw what a target says when it ends."""
    draw = rng.random()
    for likely, said in table:
        draw -= likely
        if draw < 0:
            return said(rng, attempt)
    raise RuntimeError("a launcher with a defect")
