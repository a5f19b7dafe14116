"""For tests of your own: a clock you turn, a launcher that records, and schedules in one line.

    clock = ManualClock("2026-01-01T12:00:00Z")
    launcher = RecordingLauncher()
    async with Onbeat("sqlite://", clock=clock, launchers={"command": launcher}) as beat:
        await beat.define(a_schedule("report", every="1h"))
        clock.advance("1h")
        await beat.settle()
        assert [a.schedule_id for a in launcher.attempts] == ["report"]

`settle` waits until everything that is due by the clock has been decided, run and recorded, so a
test neither sleeps nor guesses.
"""

from collections.abc import Callable, Collection, Iterable

from onbeat.core.runs.run import Failed, Outcome, Succeeded
from onbeat.core.schedule import Schedule, Target, read_schedule
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.codec import KINDS
from onbeat.ports.store import Attempt

__all__ = ["ManualClock", "RecordingLauncher", "a_schedule"]


class ManualClock:
    """A clock that stands still until it is turned. Setting it back leaves `monotonic` alone."""

    def __init__(self, start: str | int = "2026-01-01T12:00:00Z") -> None:
        self._now = parse_instant(start) * 1000 if isinstance(start, str) else start
        self._passed = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._passed / 1000

    def advance(self, length: str | int) -> None:
        """Let time pass: `90m`, or so many milliseconds."""
        ms = length if isinstance(length, int) else parse_duration(length).elapsed * 1000
        self._passed += ms
        self._now += ms

    def step(self, length: int) -> None:
        """Set the wall clock forth or back by so many milliseconds, as an operator would."""
        self._now += length


class RecordingLauncher:
    """A launcher that starts nothing and keeps what it was asked to: in order, as `attempts`.

    `outcome` is what it answers, or a function of the attempt; an exception it raises is a failure.
    """

    def __init__(
        self,
        outcome: Outcome | Callable[[Attempt], Outcome] = Succeeded(),  # noqa: B008 - it is frozen
        *,
        offers: Iterable[str] = ("command", "python", "http", "session", "session:url", "flock"),
    ) -> None:
        self.attempts: list[Attempt] = []
        self._outcome = outcome
        self._offers = tuple(offers)

    def check(self, target: Target) -> None:
        """Accept every target."""

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Return that it can: what it starts has ended at once."""
        return True

    def offers(self) -> Iterable[str]:
        return self._offers

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        self.attempts.append(attempt)
        if not callable(self._outcome):
            return self._outcome, ""
        try:
            return self._outcome(attempt), ""
        except Exception as broken:  # noqa: BLE001 - what a target may raise is its own business
            return Failed(f"{type(broken).__name__}: {broken}"), ""

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing is running."""

    async def recover(self) -> int:
        return 0

    async def close(self) -> None:
        """Nothing is left."""


def a_schedule(schedule_id: str = "a-schedule", **given: object) -> Schedule:
    """Return a schedule: hourly, of a command that does nothing, unless fields say otherwise."""
    timed = KINDS.keys() & given.keys()
    fields = {"run": {"command": ["true"]}} | ({} if timed else {"every": "1h"}) | given
    return read_schedule(schedule_id, fields)
