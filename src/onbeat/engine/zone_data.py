"""Follow new time zone data in the background, in bounded batches."""

import asyncio
import logging
from collections.abc import Callable

from onbeat.errors import StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.rows import ZoneDataProgress
from onbeat.ports.store import Store

BATCH = 1000  # schedules in one transaction
PAUSE = 0.005  # seconds between two batches, in which other writers proceed
LOOK_EVERY = 60.0  # seconds: a program with older data may have written meanwhile
REPORT_EVERY = 5.0
BACKOFF = 1.0

log = logging.getLogger("onbeat.engine")


async def keep_following(store: Store, clock: Clock, moved: Callable[[], None]) -> None:
    """Follow newer zone data forever; `moved` is called when ticks have moved."""
    while True:
        try:
            await _follow(store, clock, moved)
        except StoreFailed as broken:
            log.warning(
                "recomputing ticks with new time zone data failed, retry in %g s: %s",
                BACKOFF,
                broken,
            )
            await asyncio.sleep(BACKOFF)
        else:
            await asyncio.sleep(LOOK_EVERY)


async def _follow(store: Store, clock: Clock, moved: Callable[[], None]) -> None:
    """Follow zone data until nothing is left, and log the progress."""
    began = reported = clock.monotonic()
    moved_before = -1
    while (found := await store.follow_zones(limit=BATCH)) is not None:
        if found.moved != moved_before:
            moved()
            moved_before = found.moved
        now = clock.monotonic()
        if found.is_done:
            log.info(
                "time zone data %s: all %d schedules are recomputed after %.1f s, %d ticks moved",
                found.version, found.total, now - began, found.moved,
            )  # fmt: skip
            return
        if now - reported >= REPORT_EVERY or reported == began:
            reported = now
            log.info("%s", zone_progress_text(found))
        await asyncio.sleep(PAUSE)


def zone_progress_text(found: ZoneDataProgress) -> str:
    """Return the progress as a sentence."""
    return (
        f"following time zone data {found.version}: {found.done} of {found.total} schedules, "
        f"{found.moved} ticks moved"
    )
