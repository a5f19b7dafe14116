"""A node's life: it registers, plans and runs, and leaves in good order."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from onbeat.engine.dispatcher import Dispatcher
from onbeat.engine.planner import Planner
from onbeat.errors import StoreFailed
from onbeat.ports import Clock, Launchers, Node, Registered, Store

HEARTBEATS = 3.3  # in one lease
LOOK_EVERY = 0.2  # how soon a change by another process, or a clock that was set, is noticed
PRUNE_EVERY = 3600.0

log = logging.getLogger("onbeat.engine")


class Engine:
    """Planner, dispatcher, heartbeat and housekeeping of one node."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        node: Node,
        launchers: Launchers,
        *,
        concurrency: int = 512,
        catchup_per_second: int = 100,
        keep: int = 30 * 86_400_000,
        forget: Callable[[int], object] | None = None,
    ) -> None:
        """`forget` removes what else is older than an instant, such as files; it may block."""
        self._store, self._clock, self._node, self._keep = store, clock, node, keep
        self._launchers, self._forget = launchers, forget
        self.dispatcher = Dispatcher(store, clock, node, launchers, concurrency=concurrency)
        self.planner = Planner(
            store, clock, node, self.dispatcher, catchup_per_second=catchup_per_second
        )
        self.dispatcher.on_recorded = self.planner.wake  # type: ignore[method-assign]  # they meet here
        self._starting: list[asyncio.Task[None]] = []  # they end by themselves, once told to stop
        self._looking: list[asyncio.Task[None]] = []
        self._serving: list[asyncio.Task[None]] = []  # needed until the last run is recorded
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> Registered:
        """Register, decide what a dead node left, and begin."""
        await self._store.hold(self._node)
        for launcher in set(self._launchers.values()):
            await launcher.recover()  # before what it launched is decided as lost
        found = await self._store.register(self._node)
        await self._store.changed_elsewhere()  # from here on: what comes now is seen by the watch
        self._serving = [
            self._task(self.dispatcher.record()),
            self._task(self._heartbeat()),
        ]
        self._looking = [self._task(self._watch()), self._task(self._prune())]
        self._starting = [self._task(self.planner.run()), self._task(self.dispatcher.run())]
        self.dispatcher.wake()
        return found

    async def stop(self, grace: float) -> None:
        """Begin nothing more, let runs finish for `grace` seconds, end the rest, and leave."""
        await _end(self._looking)
        self.planner.stop()
        self.dispatcher.stop()
        await asyncio.gather(*self._starting, return_exceptions=True)
        if self.dispatcher.running:
            running = self.dispatcher.running
            log.info("stopping: what runs (%d) has %g s to finish", running, grace)
        await self.dispatcher.drain(grace)
        await _end(self._serving)
        if not self.failed.done():  # else the next start decides what this one left
            await self._store.unregister(self._node)

    async def settle(self) -> None:
        """Wait until everything that is due by the clock has been decided, run and recorded."""
        while True:
            await self.dispatcher.idle()
            if self.failed.done():
                self.failed.result()
            before, recorded = self._clock.now(), self.dispatcher.recorded
            planned = await self.planner.plan_once()
            claimed = await self.dispatcher.claim_once()
            due = await self._store.next_due(after=before)
            moved = planned.ticks or claimed or recorded != self.dispatcher.recorded
            if moved or not self.dispatcher.is_idle or (due and due <= self._clock.now()):
                continue
            return

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._node.lease / 1000 / HEARTBEATS)
            try:
                await self._store.heartbeat(self._node)
            except StoreFailed as broken:
                log.warning("no heartbeat: %s", broken)

    async def _watch(self) -> None:
        """Wake the planner when another process has written, or when the clock was set forth."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            due = self.planner.next_due
            try:
                changed = await self._store.changed_elsewhere()
            except StoreFailed:
                continue  # the planner meets it too, and says so
            if changed or (due is not None and self._clock.now() >= due):
                self.planner.wake()

    async def _prune(self) -> None:
        while True:
            try:
                removed = 1
                while removed:
                    removed = await self._store.prune(before=self._clock.now() - self._keep)
                    await asyncio.sleep(0.1)
                if self._forget is not None:
                    await asyncio.to_thread(self._forget, self._clock.now() - self._keep)
            except StoreFailed as broken:
                log.warning("history was not pruned: %s", broken)
            await asyncio.sleep(PRUNE_EVERY)

    def _task(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._tell_if_failed)
        return task

    def _tell_if_failed(self, task: asyncio.Task[None]) -> None:
        """Have whoever waits for `failed` know: a node without one of its parts is no node."""
        broken = None if task.cancelled() else task.exception()
        if broken is not None and not self.failed.done():
            log.critical(
                "a part of the engine failed: nothing is planned any more", exc_info=broken
            )
            self.failed.set_exception(broken)
            self.failed.exception()  # told; whoever waits for it gets it too
            self.planner.stop()
            self.dispatcher.stop()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
