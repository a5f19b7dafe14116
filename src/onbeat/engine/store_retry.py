"""Retries while the store does not answer.

The loss of the database never ends a running node. Every call of the store in a node's life is
covered by one of two functions: a long-lived loop is restarted by `restart_on_failure`, and a
single call is repeated by `until_answered`. Both retry on StoreFailed only. StoreUnusable means
that waiting does not help, such as a damaged file.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onbeat.errors import StoreFailed

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0  # seconds between two attempts

T = TypeVar("T")
log = logging.getLogger("onbeat.engine")


class Backoff:
    """Growing pauses between attempts: from FIRST_BACKOFF, doubled, up to LONGEST_BACKOFF."""

    def __init__(self) -> None:
        self.seconds = FIRST_BACKOFF

    def reset(self) -> None:
        """Start again with the shortest pause: an attempt has succeeded."""
        self.seconds = FIRST_BACKOFF

    async def sleep(self, what_failed: str, broken: StoreFailed) -> None:
        """Log the failure, and wait until the next attempt."""
        log.warning("%s, retry in %.1f s: %s", what_failed, self.seconds, broken)
        seconds, self.seconds = self.seconds, min(self.seconds * 2, LONGEST_BACKOFF)
        await asyncio.sleep(seconds)


async def until_answered(
    call: Callable[[], Awaitable[T]],
    what_waits: str,
    *,
    until: float | None = None,
    unless: asyncio.Event | None = None,
) -> T:
    """Repeat a call until the store answers. `what_waits` names it in the log.

    The last StoreFailed is raised if the next attempt would be later than `until`, by the event
    loop's clock, or if `unless` was set meanwhile.
    """
    backoff, now = Backoff(), asyncio.get_running_loop().time
    while True:
        try:
            return await call()
        except StoreFailed as broken:
            if (until is not None and now() + backoff.seconds > until) or _is_set(unless):
                raise
            await backoff.sleep(what_waits, broken)


async def restart_on_failure(loop: Callable[[], Awaitable[None]], name: str) -> None:
    """Run a loop of the engine, and restart it whenever a failing store has ended it."""
    backoff, now = Backoff(), asyncio.get_running_loop().time
    while True:
        began = now()
        try:
            return await loop()
        except StoreFailed as broken:
            if now() - began > LONGEST_BACKOFF:
                backoff.reset()
            await backoff.sleep(f"{name} was interrupted", broken)


def _is_set(event: asyncio.Event | None) -> bool:
    return event is not None and event.is_set()
