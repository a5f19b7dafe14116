"""`Clock`: where the time comes from."""

from typing import Protocol


class Clock(Protocol):
    """A source of the time. Nothing else in the package reads the time."""

    def now(self) -> int:
        """Return the wall clock's time; it may be moved backward or forward at any moment."""

    def monotonic(self) -> float:
        """Return seconds that never decrease, for measuring durations."""
