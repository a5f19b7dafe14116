"""A node's lease: renewed in a separate thread, and given up before other nodes take it for dead.

Other nodes take a node for dead when its lease expires, by the store's clock. The node itself
counts only two thirds of the lease, by its monotonic clock, from when it sent its last answered
heartbeat: the last third is for ending its runs before others start them again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from onbeat.errors import StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.store import Node, Store

HEARTBEATS = 3.3  # per lease

log = logging.getLogger("onbeat.engine")


class Lease:
    """The lease of this node, as far as the node knows."""

    def __init__(self, store: Store, clock: Clock, node: Node) -> None:
        self._store, self._clock, self._node = store, clock, node
        self._can_be_lost = store.is_shared  # else no other node can take this one for dead
        self._renewed = clock.monotonic()
        self.lapses = 0  # how often an answer came so late that others may have decided runs
        self.is_forgotten = False  # other nodes took the node for dead, and decided its runs
        self.is_stop_requested = False
        self.others_are_silent = False  # another node was silent at the last heartbeat

    @property
    def holds(self) -> bool:
        """Whether no other node can have taken this one for dead yet."""
        if not self._can_be_lost:
            return True
        return not self.is_forgotten and not self._has_expired(self._clock.monotonic())

    def _has_expired(self, at: float) -> bool:
        return at - self._renewed >= self._node.lease / 1000 * 2 / 3

    def begin(self, sent: float) -> None:
        """Count from when the registration was sent."""
        self._renewed = sent

    async def keep(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            await asyncio.sleep(self._node.lease / 1000 / HEARTBEATS)
            sent = self._clock.monotonic()
            try:
                beat = await self._store.heartbeat(self._node)
            except StoreFailed as broken:
                log.warning("heartbeat failed: %s", broken)
                continue
            self.is_forgotten = not beat.is_known
            self.is_stop_requested = beat.is_stop_requested
            self.others_are_silent = beat.others_are_silent
            self.lapses += self._has_expired(self._clock.monotonic())  # `holds` may have missed it
            self._renewed = sent


async def renew_in_thread(work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run work in another thread and event loop, so that nothing in this loop delays it."""
    here = asyncio.get_running_loop()
    started: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]
    started = here.create_future()

    async def in_thread() -> None:
        task = asyncio.current_task()
        assert task is not None, "it runs as a task"
        here.call_soon_threadsafe(started.set_result, (asyncio.get_running_loop(), task))
        await work()

    def run() -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(in_thread())

    with ThreadPoolExecutor(1, "onbeat-heartbeat") as thread:
        done = here.run_in_executor(thread, run)
        try:
            await asyncio.shield(done)
        finally:
            if not done.done():
                await asyncio.wait([started])
                loop, task = started.result()
                loop.call_soon_threadsafe(task.cancel)
                await asyncio.wait([done])
