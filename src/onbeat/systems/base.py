"""Systems that work beside a node: they keep files of their own and the store in step."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from onbeat.errors import OnbeatError
from onbeat.events import Event

log = logging.getLogger("onbeat.systems")


class BackgroundSystem(Protocol):
    """A system that is at work for as long as a node is up."""

    async def begin(self) -> None:
        """Have the store be as the system's files say: nothing is planned before that."""

    def heard(self, at: int, events: Sequence[Event]) -> None:
        """Hear of what was committed in this process. It must not take long, nor raise."""

    async def end(self) -> None:
        """Bring the files up to date, and stop."""


class PeriodicTask:
    """Does a step again and again: when it is woken, and after `every` seconds at the latest.

    A step that fails is told in the log, once for each reason, and is done again: each has to be
    one that may be.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[None]], *, every: float) -> None:
        self._name, self._step, self._every = name, step, every
        self._woken = asyncio.Event()
        self._at_work: asyncio.Task[None] | None = None
        self._told = ""

    def begin(self) -> None:
        """Begin, unless it has."""
        if self._at_work is None:
            self._at_work = asyncio.create_task(self._work())

    def wake(self) -> None:
        """Have it do a step at once, or another after the one that it does."""
        self._woken.set()

    async def end(self) -> None:
        """Stop, between two steps."""
        if self._at_work is not None:
            task, self._at_work = self._at_work, None
            self._woken.set()
            await asyncio.wait([task])

    async def abandon(self) -> None:
        """Stop, in the middle of a step if there is one."""
        if self._at_work is not None:
            self._at_work.cancel()
            await self.end()

    async def _work(self) -> None:
        while self._at_work is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._woken.wait()
            self._woken.clear()
            if self._at_work is None:
                return
            try:
                await self._step()
                self._told = ""
            except (OnbeatError, OSError) as failed:
                if str(failed) != self._told:
                    self._told = str(failed)
                    told = "%s: %s (tried again every %g s)"
                    log.warning(told, self._name, failed, self._every)
            except Exception:
                log.exception("%s: this is a defect", self._name)
