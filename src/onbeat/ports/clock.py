"""The contract of the time: `Clock`."""

from typing import Protocol


class Clock(Protocol):
    """Where the time comes from. Nothing else in the package asks for it."""

    def now(self) -> int:
        """Return the wall clock's time; it may be set back or forth at any moment."""

    def monotonic(self) -> float:
        """Return seconds that only ever grow, for measuring what has passed."""
