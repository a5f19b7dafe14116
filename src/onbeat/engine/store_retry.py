"""Waiting for a store that does not answer.

A loss of the database never ends a node that was up. Every call of the store in a node's life is
under one of these two: a long-lived loop is a part of the engine that `again` restarts, and a
single call is repeated by `until_answered`. Both repeat on StoreFailed only. StoreUnusable is for a
store that no waiting repairs, such as a damaged file.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from onbeat.errors import StoreFailed

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0  # seconds between two tries

T = TypeVar("T")
log = logging.getLogger("onbeat.engine")


class Backoff:
    """Growing pauses between tries: from FIRST_BACKOFF, doubled, up to LONGEST_BACKOFF."""

    def __init__(self) -> None:
        self.seconds = FIRST_BACKOFF

    def reset(self) -> None:
        """Begin with the shortest pause: a try has succeeded."""
        self.seconds = FIRST_BACKOFF

    async def sleep(self, told: str, broken: StoreFailed) -> None:
        """Log why a try failed, and wait until the next one."""
        log.warning("%s, next try in %.1f s: %s", told, self.seconds, broken)
        seconds, self.seconds = self.seconds, min(self.seconds * 2, LONGEST_BACKOFF)
        await asyncio.sleep(seconds)


async def until_answered(
    call: Callable[[], Awaitable[T]],
    told: str,
    *,
    until: float | None = None,
    unless: asyncio.Event | None = None,
) -> T:
    """Call until the store answers. `told` says in the log what waits.

    The last StoreFailed is raised if the next try would be later than `until`, by the clock of the
    event loop, or if `unless` was set meanwhile.
    """
    backoff, now = Backoff(), asyncio.get_running_loop().time
    while True:
        try:
            return await call()
        except StoreFailed as broken:
            if (until is not None and now() + backoff.seconds > until) or _is_set(unless):
                raise
            await backoff.sleep(told, broken)


async def again(part: Callable[[], Awaitable[None]], told: str) -> None:
    """Do a part of the engine, and begin it anew whenever a failing store has ended it."""
    backoff, now = Backoff(), asyncio.get_running_loop().time
    while True:
        began = now()
        try:
            return await part()
        except StoreFailed as broken:
            if now() - began > LONGEST_BACKOFF:
                backoff.reset()
            await backoff.sleep(f"{told} was interrupted", broken)


def _is_set(event: asyncio.Event | None) -> bool:
    return event is not None and event.is_set()
