"""A node's lease: renewed from a thread of its own, and given up before others take it for dead.

Others take a node for dead when its lease runs out, by the store's clock. The node itself counts
from when it sent its last heartbeat that was answered, by its own monotonic clock, and only two
thirds of the lease: the last third is for ending what it runs before others start it again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from onbeat.errors import StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.store import Node, Store

HEARTBEATS = 3.3  # in one lease

log = logging.getLogger("onbeat.engine")


class Lease:
    """What a node knows of its own standing."""

    def __init__(self, store: Store, clock: Clock, node: Node) -> None:
        self._store, self._clock, self._node = store, clock, node
        self._can_be_lost = store.is_shared  # else nobody could take the node for dead
        self._renewed = clock.monotonic()
        self.lapses = 0  # how often an answer came so late that others may have decided runs
        self.is_forgotten = False  # others have taken the node for dead, and decided its runs
        self.is_asked_to_stop = False
        self.others_are_silent = False  # some other node was, at the last heartbeat

    @property
    def holds(self) -> bool:
        """Whether no other node can have taken this one for dead yet."""
        if not self._can_be_lost:
            return True
        return not self.is_forgotten and not self._is_over(self._clock.monotonic())

    def _is_over(self, at: float) -> bool:
        return at - self._renewed >= self._node.lease / 1000 * 2 / 3

    def begin(self, sent: float) -> None:
        """Count from when the node asked to be registered."""
        self._renewed = sent

    async def keep(self) -> None:
        """Renew it until cancelled."""
        while True:
            await asyncio.sleep(self._node.lease / 1000 / HEARTBEATS)
            sent = self._clock.monotonic()
            try:
                beat = await self._store.heartbeat(self._node)
            except StoreFailed as broken:
                log.warning("no heartbeat: %s", broken)
                continue
            self.is_forgotten = not beat.is_known
            self.is_asked_to_stop = beat.is_asked_to_stop
            self.others_are_silent = beat.others_are_silent
            self.lapses += self._is_over(self._clock.monotonic())  # nobody may have seen it
            self._renewed = sent


async def renew_in_thread(work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Do work in an event loop of its own, which nothing that runs in this one can hold up."""
    here = asyncio.get_running_loop()
    begun: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]]
    begun = here.create_future()

    async def there() -> None:
        task = asyncio.current_task()
        assert task is not None, "this is one"
        here.call_soon_threadsafe(begun.set_result, (asyncio.get_running_loop(), task))
        await work()

    def run() -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(there())

    with ThreadPoolExecutor(1, "onbeat-heartbeat") as thread:
        done = here.run_in_executor(thread, run)
        try:
            await asyncio.shield(done)
        finally:
            if not done.done():
                await asyncio.wait([begun])
                loop, task = begun.result()
                loop.call_soon_threadsafe(task.cancel)
                await asyncio.wait([done])
