"""A node's life: it registers, plans and runs, and leaves in good order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from onbeat.core.decide.overlap import LOOKAHEAD
from onbeat.engine.dispatcher import Dispatcher
from onbeat.engine.lease import Lease, renew_in_thread
from onbeat.engine.outbox import Outbox
from onbeat.engine.planner import BATCH, Planner
from onbeat.engine.store_retry import again
from onbeat.engine.zone_data import keep_following
from onbeat.errors import NodeForgotten, StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launchers
from onbeat.ports.store import Node, RescueResult, Store

LOOK_EVERY = 0.2  # how soon a change by another process, or a clock that was set, is noticed
LEFTOVERS_EVERY = 10.0
LOOK_ANYWAY = 0.5  # how soon a change is noticed on a store that tells only of some
PRUNE_EVERY = 3600.0
STUCK_EVERY = 5.0
STUCK_AT_ONCE = 500  # runs in flight, in one look
SETTLING = 0.001  # seconds between two looks whether all has been done

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
        lookahead: int = LOOKAHEAD,
        keep: int = 30 * 86_400_000,
        forget: Callable[[int], object] | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`forget` removes what else is older than an instant, such as files; it may block."""
        self.outbox = outbox  # if this node notifies anybody
        self._store, self._clock, self._node, self._keep = store, clock, node, keep
        self._launchers, self._forget = launchers, forget
        self._lease = Lease(store, clock, node)
        self.dispatcher = Dispatcher(
            store,
            clock,
            node,
            launchers,
            concurrency=concurrency if "run" in node.roles else 0,
            lease=self._lease,
        )
        self.planner = Planner(
            store,
            clock,
            node,
            self.dispatcher,
            catchup_per_second=catchup_per_second,
            lookahead=lookahead,
        )
        self.dispatcher.on_recorded = self.planner.wake  # type: ignore[method-assign]  # they meet here
        self.planner.on_asks = self._look_for_asks  # type: ignore[method-assign]
        self._asked = False  # runs of this node may have been asked to end
        self._starting: list[asyncio.Task[None]] = []  # they end by themselves, once told to stop
        self._looking: list[asyncio.Task[None]] = []
        self._serving: list[asyncio.Task[None]] = []  # needed until the last run is recorded
        self._held, self._lapses = True, 0  # of the lease, when it was last looked at
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked_to_stop = asyncio.Event()  # by `Store.ask_to_stop`

    async def start(self) -> RescueResult:
        """Register, decide what a dead node left, and begin."""
        await self._store.hold(self._node)
        await self._end_leftovers()  # before what launched them is decided as lost
        sent = self._clock.monotonic()
        found = await self._store.register(self._node)
        self._lease.begin(sent)
        await self._store.changed_elsewhere()  # from here on: what comes now is seen by the watch
        self._serving = [
            self._part(self.dispatcher.record, "recording"),
            self._part(self._keep_lease, "the heartbeat"),
        ]
        self._looking = [
            self._part(self._watch, "looking for changes"),
            self._part(self._prune, "pruning"),
        ]
        if "plan" in self._node.roles:
            self._looking.append(self._part(self._follow_zones, "following time zone data"))
            self._looking.append(self._part(self._notice_stuck, "looking for stuck runs"))
        if self._store.is_shared:
            self._serving.append(self._part(self._guard_lease, "guarding the lease"))
            self._looking.append(self._part(self._mind_the_others, "looking after other nodes"))
        else:
            self._looking.append(self._part(self._look_for_leftovers, "looking for leftovers"))
        self._starting = [
            self._part(self.planner.run, "planning"),
            self._part(self.dispatcher.run, "claiming"),
        ]
        self.dispatcher.wake()
        if self.outbox is not None:
            self.outbox.start()
        return found

    async def stop(self, grace: float) -> None:
        """Begin nothing more, let runs finish for `grace` seconds, end the rest, and leave."""
        notifying = asyncio.ensure_future(self._stop_notifying(grace))
        try:
            await self._stop_running(grace)
        finally:
            await notifying

    def hurry(self) -> None:
        """End what still runs, and give up what is being sent, without waiting for a grace.

        Nothing more begins: a run that was claimed now would be handed back, and claimed again.
        """
        self._begin_nothing_more()
        self.dispatcher.end_all()
        if self.outbox is not None:
            self.outbox.hurry()

    async def _stop_notifying(self, grace: float) -> None:
        if self.outbox is not None:
            await self.outbox.stop(grace)

    def _begin_nothing_more(self) -> None:
        self.planner.stop()
        self.dispatcher.stop()

    async def _stop_running(self, grace: float) -> None:
        self._begin_nothing_more()
        await _end(self._looking)
        await asyncio.gather(*self._starting, return_exceptions=True)
        if self.dispatcher.running:
            running = self.dispatcher.running
            log.info("stopping: what runs (%d) has %g s to finish", running, grace)
        await self.dispatcher.drain(grace)
        await _end(self._serving)
        if not self.failed.done():  # else the next start decides what this one left
            try:
                await self._store.unregister(self._node)
            except StoreFailed as broken:
                log.warning("could not say that it is gone, which its lease will tell: %s", broken)

    async def settle(self) -> None:
        """Wait until everything that is due by the clock has been decided, run and recorded.

        And until no look is under way: what one finds that began before a clock is turned is late.
        """
        while True:
            await self.dispatcher.idle()
            if self.failed.done():
                self.failed.result()
            before, recorded = self._clock.now(), self.dispatcher.recorded
            planned = await self.planner.plan_once()
            await self._store.expire(limit=BATCH)
            claimed = await self.dispatcher.claim_once()
            due = await self._store.next_due(after=before)
            moved = planned.ticks or claimed or recorded != self.dispatcher.recorded
            if self.dispatcher.concurrency and not self.dispatcher.has_looked:
                continue  # another had the last place, and gives it back
            if moved or not self.dispatcher.is_idle or (due and due <= self._clock.now()):
                continue
            if self.planner.is_looking or self.dispatcher.is_looking:
                await asyncio.sleep(SETTLING)
                continue
            return

    async def _keep_lease(self) -> None:
        if self._store.is_shared:
            await renew_in_thread(self._lease.keep)
        else:
            await self._lease.keep()

    async def _watch(self) -> None:
        """Wake the planner when another process has written, or when the clock was set forth."""
        looked = self._clock.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            due = self.planner.next_due
            try:
                changed = await self._store.changed_elsewhere()
            except StoreFailed:
                continue  # the planner meets it too, and says so
            now = self._clock.monotonic()
            blind = self._store.is_shared and now - looked > LOOK_ANYWAY
            self._asked = self._asked or changed or blind
            if self._asked and self.dispatcher.running:
                await self._end_asked()
            if changed or blind or (due is not None and self._clock.now() >= due):
                looked = now
                self.planner.wake()

    def look_again(self) -> None:
        """Look at what was changed in this process: what is due, and what is to end."""
        self._look_for_asks()
        self.planner.wake()
        if self.outbox is not None:
            self.outbox.wake()

    def _look_for_asks(self) -> None:
        self._asked = True

    async def _end_asked(self) -> None:
        """End what this node was asked to."""
        self._asked = False
        try:
            asked = await self._store.to_end(self._node)
            self._asked = self._asked or not self.dispatcher.end(asked)
        except StoreFailed as broken:
            self._asked = True
            log.warning("what is to end could not be looked up: %s", broken)

    async def _guard_lease(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._see_to_lease()

    def _see_to_lease(self) -> None:
        """End what runs here as soon as others might take this node for dead; heed their wishes."""
        if self._lease.is_forgotten:
            self.dispatcher.end_running(lost=True)
            raise NodeForgotten("others have taken this node for dead, and decided its runs")
        held, self._held = self._held, self._lease.holds
        lapses, self._lapses = self._lapses, self._lease.lapses
        if held and (not self._held or lapses != self._lapses):
            running = self.dispatcher.running
            log.error("out of touch with the database: what runs here (%d) is ended", running)
            self.dispatcher.end_running(lost=True)
            # What does not end by itself in half of what is left of the lease has to.
            later = self._node.lease / 1000 / 6
            asyncio.get_running_loop().call_later(later, self._kill_lost)
        elif self._held and not held:
            log.warning("in touch with the database again")
            self.planner.wake()
            self.dispatcher.wake()
        if self._lease.is_asked_to_stop:
            self.asked_to_stop.set()

    def _kill_lost(self) -> None:
        for launcher in set(self._launchers.values()):
            launcher.kill(self.dispatcher.given_up)

    async def _mind_the_others(self) -> None:
        """Decide the runs of nodes that fall silent, and free those of calls never answered.

        A node that was only stopped when its runs were decided may have died since: what it had
        launched on this machine is looked for now and then.
        """
        looked = self._clock.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                if self._lease.others_are_silent:
                    await self._rescue()
                elif self._clock.monotonic() - looked > LEFTOVERS_EVERY:
                    looked = self._clock.monotonic()
                    await self._end_leftovers()
                since = self.dispatcher.in_doubt_since
                if since is not None and self._clock.monotonic() - since > self._node.lease / 1000:
                    await self.dispatcher.release_unknown()
                    self.planner.wake()
            except (StoreFailed, OSError) as broken:  # such as too many open files
                self._lease.others_are_silent = False  # until it is heard of again
                log.warning("other nodes could not be looked after: %s", broken)

    async def _look_for_leftovers(self) -> None:
        """End what a killed node has begun: some of it may not have been found at the start."""
        while True:
            await asyncio.sleep(LEFTOVERS_EVERY)
            try:
                await self._end_leftovers()
            except OSError as broken:  # such as too many open files
                log.warning("leftovers could not be looked for: %s", broken)

    async def _end_leftovers(self) -> None:
        for launcher in set(self._launchers.values()):
            await launcher.recover()

    async def _rescue(self) -> None:
        await self._end_leftovers()  # it may have been on this machine
        while await self._store.rescue(self._node) is not None:
            self.planner.wake()
        self._lease.others_are_silent = False  # until the next heartbeat

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

    async def _follow_zones(self) -> None:
        await keep_following(self._store, self._clock, self.planner.wake)

    async def _notice_stuck(self) -> None:
        """Have runs that take too long marked and reported, each once, by whichever node."""
        while True:
            await asyncio.sleep(STUCK_EVERY)
            try:
                following: int | None = 0
                while following is not None:
                    following = await self._store.mark_stuck(after=following, limit=STUCK_AT_ONCE)
            except StoreFailed as broken:
                log.warning("stuck runs could not be looked for: %s", broken)

    def _part(self, work: Callable[[], Awaitable[None]], told: str) -> asyncio.Task[None]:
        """Run a part of the engine until it is cancelled or ends: a failing store ends none."""
        name = getattr(work, "__qualname__", told)
        task = asyncio.get_running_loop().create_task(again(work, told), name=name)
        task.add_done_callback(self._tell_if_failed)
        return task

    def _tell_if_failed(self, task: asyncio.Task[None]) -> None:
        """Have whoever waits for `failed` know: a node without one of its parts is no node."""
        broken = None if task.cancelled() else task.exception()
        if broken is not None and not self.failed.done():
            if not isinstance(broken, NodeForgotten):  # that is no defect
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
