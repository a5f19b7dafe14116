"""`ClaimTimer`: when the dispatcher claims runs next."""

import asyncio

from onbeat.ports.clock import Clock

CLAIM_EVERY = 0.05  # seconds between two claims at most, while runs end


class ClaimTimer:
    """Wakes the claim loop: at once, or CLAIM_EVERY seconds after the last claim."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._claimed_at = clock.monotonic()  # when the last claim was sent
        self._has_backlog = False  # runs are known to wait
        self._wake, self._sleeps = asyncio.Event(), False
        self._later: asyncio.TimerHandle | None = None

    @property
    def is_awake(self) -> bool:
        """Whether the claim loop is claiming runs, or about to."""
        return not self._sleeps or self._wake.is_set()

    def wake(self) -> None:
        """Claim runs now."""
        self._wake.set()

    def wake_soon(self) -> None:
        """Claim runs: now if some are known to wait, else CLAIM_EVERY seconds after the last claim.

        A claim takes slots that the planner could fill with one write less.
        """
        left = self._claimed_at + CLAIM_EVERY - self._clock.monotonic()
        if self._has_backlog or left <= 0:
            self.wake()
        elif self._later is None or self._later.when() < asyncio.get_running_loop().time():
            self._later = asyncio.get_running_loop().call_later(left, self.wake)

    async def wait(self) -> None:
        """Wait until woken."""
        self._sleeps = True
        await self._wake.wait()
        self._sleeps = False
        self._wake.clear()

    def note_claim(self, sent: float, *, has_backlog: bool) -> None:
        """Note a claim: when it was sent, and whether more runs wait."""
        self._claimed_at, self._has_backlog = sent, has_backlog

    def note_no_slot(self) -> None:
        """Note that runs may wait: no slot was free to claim them."""
        self._has_backlog = True
