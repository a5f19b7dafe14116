"""Tools for tests: a clock set by the test, a launcher that records, and one-line schedules.

    clock = ManualClock("2026-01-01T12:00:00Z")
    launcher = RecordingLauncher()
    async with Onbeat("sqlite://", clock=clock, launchers={"command": launcher}) as beat:
        await beat.define(a_schedule("report", every="1h"))
        clock.advance("1h")
        await beat.settle()
        assert [a.schedule_id for a in launcher.attempts] == ["report"]

`settle` waits until everything that is due by the clock has been decided, run and recorded. A test
needs no sleeps.
"""

from collections.abc import Callable, Collection, Iterable

from onbeat.core.runs.run import Failed, Outcome, Succeeded
from onbeat.core.schedule import Schedule, read_schedule
from onbeat.core.target import Target
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.codec import KINDS
from onbeat.host import kinds as _kinds  # noqa: F401 - schedules have the kinds of all plugs
from onbeat.ports.store import Attempt

__all__ = ["ManualClock", "RecordingLauncher", "a_schedule"]


class ManualClock:
    """A clock that stands still until it is set. `monotonic` never moves backward."""

    def __init__(self, start: str | int = "2026-01-01T12:00:00Z") -> None:
        self._now = parse_instant(start) * 1000 if isinstance(start, str) else start
        self._elapsed = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed / 1000

    def advance(self, length: str | int) -> None:
        """Move the time forward: by `90m`, or by a number of milliseconds."""
        ms = length if isinstance(length, int) else parse_duration(length).elapsed * 1000
        self._elapsed += ms
        self._now += ms

    def step(self, length: int) -> None:
        """Move the wall clock forward or backward by milliseconds, as an operator would."""
        self._now += length


class RecordingLauncher:
    """A launcher that starts nothing and records the attempts, in order, as `attempts`.

    `outcome` is the outcome of each attempt, or a function of the attempt. An exception raised by
    this function is a failure.
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

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - the same for every target
        """Return True: every attempt ends immediately."""
        return True

    def offers(self) -> Iterable[str]:
        return self._offers

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        self.attempts.append(attempt)
        if not callable(self._outcome):
            return self._outcome, ""
        try:
            return self._outcome(attempt), ""
        except Exception as broken:  # noqa: BLE001 - a target may raise anything
            return Failed(f"{type(broken).__name__}: {broken}"), ""

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: no attempt is running."""

    async def recover(self) -> int:
        return 0

    async def close(self) -> None:
        """Do nothing."""


def a_schedule(schedule_id: str = "a-schedule", **fields: object) -> Schedule:
    """Return a schedule. By default it is hourly and runs a command that does nothing."""
    timing = {} if KINDS.keys() & fields.keys() else {"every": "1h"}
    return read_schedule(schedule_id, {"run": {"command": ["true"]}} | timing | fields)
