"""`BellLauncher`: each attempt rings the bell."""

from collections.abc import Collection
from pathlib import Path

from onbeat.core.fields import read_number
from onbeat.core.runs.run import Failed, Outcome, Succeeded
from onbeat.core.target import Target
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.ports.store import Attempt
from onbeat_toys.bell.kinds import MOST_TIMES


class BellLauncher:
    """Adds a line to the file `tower` for each stroke. Without a file it only checks targets."""

    def __init__(self, tower: Path | None) -> None:
        self._tower = tower

    def check(self, target: Target) -> None:
        _read(target)

    def offers(self) -> tuple[str, ...]:
        return ("bell",) if self._tower is not None else ()

    def can_cancel(self, target: Target) -> bool:
        """Return True: there is nothing to end."""
        return True

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        assert self._tower is not None, "it only checks targets"
        try:
            reason, times = _read(attempt.target)
            with self._tower.open("a") as tower:
                tower.write(f"{reason} {attempt.schedule_id} {attempt.attempt}\n" * times)
        except InvalidSchedule as refused:  # defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        except OSError as failed:
            return Failed(f"the bell cannot be rung: {failed.strerror}"), ""
        return Succeeded({"strokes": times}), "ding\n" * times

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: a launch does not wait."""

    async def recover(self) -> int:
        return 0  # nothing continues without its node

    async def close(self) -> None:
        """Do nothing: the file is closed after each attempt."""


def _read(target: Target) -> tuple[str, int]:
    """Return what a target rings for, and how many strokes, or refuse it."""
    check_names(target.fields, {"bell", "times"})
    reason = target.fields.get("bell")
    if not isinstance(reason, str) or not reason:
        problem = f"{quote_value(reason)} is not a reason to ring"
        raise InvalidSchedule("bell", problem, hint="such as dinner")
    with in_field("times"):
        return reason, read_number(target.fields.get("times", 1), first=1, last=MOST_TIMES)
