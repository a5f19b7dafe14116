"""`Slots`: the places for attempts on this node, free, reserved or taken.

Rules:

- A slot is reserved before a call of the store that may give this node a run, so that no answer
  brings more runs than there are slots.
- A slot is taken before the task of an attempt or of a check is created, and released once, when
  that task has put its result into a list of the recorder or has handed its run over.
- No slot is free while the node does not hold its lease: a run that was claimed now would only be
  handed back.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from onbeat.engine.lease import Lease


class Slots:
    """Places for up to `concurrency` attempts at a time."""

    def __init__(self, concurrency: int, lease: Lease) -> None:
        self.concurrency, self._lease = concurrency, lease
        self.taken = 0  # by attempts and by checks of conditions
        self.reserved = 0  # for runs that are about to be announced
        self._freed = asyncio.Event()
        self._is_closed = False

    @property
    def free(self) -> int:
        """How many slots are neither reserved nor taken."""
        if not self._lease.holds:
            return 0
        return self.concurrency - self.taken - self.reserved

    @contextmanager
    def reserve(self, most: int) -> Iterator[int]:
        """Reserve up to `most` free slots for runs that are about to be announced."""
        slots = max(min(self.free, most), 0)
        self.reserved += slots
        try:
            yield slots
        finally:
            self.reserved -= slots
            self._freed.set()

    def take(self, slots: int = 1) -> None:
        """Take slots for tasks that are about to be created."""
        self.taken += slots

    def release(self) -> None:
        """Release the slot of a task that is about to end."""
        self.taken -= 1
        self._freed.set()

    async def wait_for(self, enough: int, longest: float) -> None:
        """Wait until `enough` slots are free or these are closed, `longest` seconds at most."""
        if self.free >= enough:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while self.free < enough and not self._is_closed:
                    self._freed.clear()
                    await self._freed.wait()

    def close(self) -> None:
        """Let `wait_for` wait for no further slot: nothing more is claimed."""
        self._is_closed = True
