"""What systems share: their life cycle beside a node, and periodic background work."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from onbeat.errors import OnbeatError
from onbeat.events import Event

log = logging.getLogger("onbeat.systems")


class BackgroundSystem(Protocol):
    """A system that runs in the background while a node is up."""

    async def start(self) -> None:
        """Bring the store in step with the system's files; nothing is planned before that."""

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Handle events committed by this process. It must be quick and must not raise."""

    async def stop(self) -> None:
        """Bring the files up to date, and stop."""


class PeriodicTask:
    """Runs a step periodically: when woken, and after `every` seconds at the latest.

    A failing step is logged, once for each reason, and retried; a step must be safe to repeat.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[None]], *, every: float) -> None:
        self._name, self._step, self._every = name, step, every
        self._wake_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_problem = ""

    def start(self) -> None:
        """Start the task, unless it is running."""
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def wake(self) -> None:
        """Run a step now, or once more after the step that is running."""
        self._wake_up.set()

    async def stop(self) -> None:
        """Stop between two steps."""
        if self._task is not None:
            task, self._task = self._task, None
            self._wake_up.set()
            await asyncio.wait([task])

    async def abandon(self) -> None:
        """Stop, even in the middle of a step."""
        if self._task is not None:
            self._task.cancel()
            await self.stop()

    async def _work(self) -> None:
        while self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake_up.wait()
            self._wake_up.clear()
            if self._task is None:
                return
            try:
                await self._step()
                self._last_problem = ""
            except (OnbeatError, OSError) as failed:
                if str(failed) != self._last_problem:
                    self._last_problem = str(failed)
                    message = "background task %s failed: %s (retried every %g s)"
                    log.warning(message, self._name, failed, self._every)
            except Exception:
                log.exception(
                    "background task %s crashed: this is a bug of Onbeat, please report it",
                    self._name,
                )
