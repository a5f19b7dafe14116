"""Plays a script on the product: a real scheduler on a real file, with a manual clock.

The clock moves to the next wake-up of the engine, end of a target, or act of a user;
it stands still until the engine has nothing left to do. Targets run by that clock.
"""

import asyncio
from contextlib import closing
from dataclasses import dataclass

import apsw

from onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.core.runs.run import Accepted, Busy, Failed, Succeeded
from onbeat.ports.rows import RunFilter
from onbeat.testing import ManualClock, a_schedule
from tests.week.script import Does

EXIT_CODES = {"exit": 3}
BY_HAND = Does(67)


@dataclass
class Target:
    """A running attempt, which ends at an instant of the clock."""

    ends_at: int
    outcome: object
    future: asyncio.Future


class Targets:
    """A launcher whose targets follow the script, by its clock."""

    def __init__(self, script, clock):
        self._script, self._clock = script, clock
        self.going = {}
        self.reports = []  # reports to come from accepted runs: when, and of which run

    def check(self, target):
        """Accept any target."""

    def can_cancel(self, target):
        return True

    def offers(self):
        return ("command",)

    async def launch(self, attempt):
        now = self._clock.now()
        if attempt.target.fields["command"] == ["ask"]:
            yes = self._script.holds(attempt.schedule_id, attempt.run_at)
            return (Succeeded() if yes else Failed("no", "exit", exit_code=1)), ""
        does = BY_HAND
        if not attempt.request_id:
            does = self._script.does(attempt.schedule_id, attempt.run_at, attempt.attempt)
        ends_at, outcome = now + does.takes * 1000, _outcome(does)
        if attempt.timeout is not None and now + attempt.timeout < ends_at:
            ends_at, outcome = now + attempt.timeout, Failed("too slow", "timeout")
        if does.ends == "accepts" and does.tells is not None:
            self.reports.append((ends_at + does.tells * 1000, attempt.run_id))
        if ends_at == now:
            return outcome, ""
        self.going[attempt.run_id] = Target(ends_at, outcome, _future())
        try:
            return await self.going[attempt.run_id].future, ""
        finally:
            del self.going[attempt.run_id]

    def end_those_that_have(self):
        for target in list(self.going.values()):
            if target.ends_at <= self._clock.now() and not target.future.done():
                target.future.set_result(target.outcome)

    def kill(self, run_ids):
        """Such runs leave nothing behind."""

    async def recover(self):
        return 0

    async def close(self):
        """Nothing to release."""


def _future():
    return asyncio.get_running_loop().create_future()


def _outcome(does):
    match does.ends:
        case "ok":
            return Succeeded()
        case "accepts":
            return Accepted()
        case "busy":
            return Busy("later", does.again * 1000)
        case reason:
            is_final = reason in ("signal", "launch_failed")
            return Failed(reason, reason, retryable=not is_final, exit_code=EXIT_CODES.get(reason))


@dataclass
class Play:
    """One play of a script. After `to_the_end`, `beat` can be queried."""

    script: object
    folder: object
    nodes: int = 0
    steps: int = 0

    def __post_init__(self):
        self.clock = ManualClock(self.script.first * 1000)
        self.beat = None

    @property
    def path(self):
        return self.folder / f"week-{self.nodes}.db"

    async def open(self):
        self.targets = Targets(self.script, self.clock)
        settings = Settings(database=f"sqlite:///{self.path}", stop_grace=1)
        self.beat = Onbeat(settings=settings, clock=self.clock, launchers={"command": self.targets})
        await self.beat.__aenter__()

    async def close(self):
        if self.beat is not None:
            await self.beat.close()
        self.beat = None

    async def to_the_end(self):
        await self.open()
        acts = self.script.all_acts()
        stops = {act.at * 1000 for act in acts} | {self.script.last * 1000}
        await self._do_all(acts)
        while self.clock.now() < self.script.last * 1000:
            coming = stops | set(self._coming())
            self.clock.advance(min(t for t in coming if t > self.clock.now()) - self.clock.now())
            self.steps += 1
            if self.beat is not None:
                self.targets.end_those_that_have()
                await self._tell()
                await self._calm()
            await self._do_all(acts)

    async def _do_all(self, acts):
        while acts and acts[0].at * 1000 <= self.clock.now():
            act = acts.pop(0)
            await getattr(self, f"_{act.verb}")(act)
            if self.beat is not None:
                await self._calm()

    def _coming(self):
        """Return the instants at which the engine wakes or a target acts."""
        if self.beat is None:
            return []
        due = [target.ends_at for target in self.targets.going.values()]
        due += [t for t, _ in self.targets.reports]
        alarm = self.beat.activity.next_due
        return due if alarm is None else [*due, alarm]

    async def _tell(self):
        """Report the outcomes of accepted runs."""
        for report in [each for each in self.targets.reports if each[0] <= self.clock.now()]:
            self.targets.reports.remove(report)
            await self.beat.report(report[1], Succeeded())

    async def _calm(self):
        """Wait until the engine is idle."""
        runs, looks = self.beat.service.runs, 0
        while True:
            looks += 1
            self.beat.wake()
            await self._until_all_wait()
            asked = [
                row
                for row in await runs(RunFilter(status="STARTED"))
                if row.end_asked_at is not None
            ]
            waiting = await runs(RunFilter(status="ENQUEUED"))
            if self.targets.going.keys() & {row.run_id for row in asked}:
                await asyncio.sleep(0.01)  # the polling interval of the engine is 200 ms
            elif looks > 1 or not any(map(self._may_start, waiting)):
                return

    def _may_start(self, row):
        """Return whether a run is due and not blocked."""
        return row.due_at <= self.clock.now() and row.blocked_by is None and row.grp is None

    async def _until_all_wait(self):
        """Wait until every part of the engine waits to be woken."""
        while not self.beat.activity.is_waiting:  # noqa: ASYNC110 - it is the engine's doing
            await asyncio.sleep(0.0002)

    # -- acts of users

    async def _group(self, act):
        await self.beat.service.set_group(act.name, **act.given)

    async def _define(self, act):
        """Define a schedule, also while no node is up."""
        given, client = a_schedule(act.name, **act.given), self.beat
        if client is None:
            client = Onbeat(f"sqlite:///{self.path}", clock=self.clock)
            await client.open()
        await client.define(given)
        if self.beat is None:
            await client.close()

    async def _delete(self, act):
        await self.beat.delete(act.name)

    async def _pause(self, act):
        until = act.given.get("until")
        until = None if until is None else self.script.instant(until) * 1000
        assert await self.beat.pause(act.name, until=until)

    async def _resume(self, act):
        assert await self.beat.resume(act.name, **act.given)

    async def _gate(self, act):
        assert await self.beat.service.set_gate(**act.given)

    async def _start(self, act):
        await self.beat.start(act.name, request_id=f"by-hand-{act.at}")

    async def _cancel(self, act):
        tick = self.script.instant(act.given["tick"])
        rows = await self.beat.runs(act.name, limit=9999)
        (run_id,) = [row.run_id for row in rows if row.run_at == tick and not row.request_id]
        await self.beat.cancel(run_id)

    async def _backfill(self, act):
        stretch = {name: self.script.instant(text) for name, text in act.given.items()}
        await self.beat.service.backfill(act.name, **stretch)

    async def _stop(self, act):
        await self.close()

    async def _crash(self, act):
        """Continue with a copy of the file, so that the killed node cannot write to it any more."""
        before = self.path
        self.nodes += 1
        with closing(apsw.Connection(str(before))) as source:
            source.execute("VACUUM INTO ?", (str(self.path),))
        await self.close()

    async def _open(self, act):
        await self.open()
