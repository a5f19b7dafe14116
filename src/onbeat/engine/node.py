"""`Engine`: the life of a node, from registration through planning and running to its stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from onbeat.core.decide.overlap import LOOKAHEAD
from onbeat.engine.attempts import CancelReason
from onbeat.engine.dispatcher import Dispatcher
from onbeat.engine.lease import Lease, renew_in_thread
from onbeat.engine.outbox import Outbox
from onbeat.engine.planner import BATCH, Planner
from onbeat.engine.store_retry import restart_on_failure
from onbeat.engine.zone_data import keep_following
from onbeat.errors import NodeDeclaredLost, StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launchers
from onbeat.ports.store import Node, RescueResult, Store

LOOK_EVERY = 0.2  # seconds until a change by another process or of the clock is noticed
LEFTOVERS_EVERY = 10.0
LOOK_ANYWAY = 0.5  # seconds until a change is noticed that the store did not report
PRUNE_EVERY = 3600.0
STUCK_EVERY = 5.0
STUCK_BATCH = 500  # runs in flight that are checked together
SETTLING = 0.001  # seconds between two checks by `settle`

log = logging.getLogger("onbeat.engine")


@dataclass(frozen=True, slots=True)
class Activity:
    """What an engine is doing at this moment, for tests that wait for it."""

    running: int  # attempts that are launched and not yet recorded
    looks: int  # how often it has looked for what another process has changed
    next_due: int | None  # when the planner wakes up by itself
    is_waiting: bool  # planner, dispatcher and recorder wait to be woken; runs may be running
    begins_runs: bool  # planner and dispatcher run: they end first when it stops


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
        """`forget` removes other things older than an instant, such as files; it may block."""
        self.outbox = outbox  # None: this node sends no notifications
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
        self.dispatcher.on_recorded = self.planner.wake  # type: ignore[method-assign]  # wired here
        self.dispatcher.on_claimed = self._note_cancel_requests  # type: ignore[method-assign]
        self.planner.on_cancel_requests = self._note_cancel_requests  # type: ignore[method-assign]
        self._looks = 0
        self._cancel_requested = False  # maybe, for runs of this node
        self._starting: list[asyncio.Task[None]] = []  # they end by themselves when stopped
        self._looking: list[asyncio.Task[None]] = []
        self._serving: list[asyncio.Task[None]] = []  # needed until the last run is recorded
        self._held, self._lapses = True, 0  # of the lease, at the last check
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked_to_stop = asyncio.Event()  # by `Store.request_stop`

    async def start(self) -> RescueResult:
        """Register, decide the runs of dead nodes, and start working."""
        await self._store.acquire(self._node)
        await self._end_leftovers()  # before their runs are decided as lost
        sent = self._clock.monotonic()
        found = await self._store.register(self._node)
        self._lease.begin(sent)
        await self._store.changed_elsewhere()  # `_watch` sees changes from here on
        self._serving = [
            self._start(self.dispatcher.recorder.run, "recording"),
            self._start(self._keep_lease, "the heartbeat"),
        ]
        self._looking = [
            self._start(self._watch, "looking for changes"),
            self._start(self._prune, "pruning"),
        ]
        if "plan" in self._node.roles:
            self._looking.append(self._start(self._follow_zones, "following time zone data"))
            self._looking.append(self._start(self._notice_stuck, "looking for stuck runs"))
        if self._store.is_shared:
            self._serving.append(self._start(self._guard_lease, "guarding the lease"))
            self._looking.append(self._start(self._watch_other_nodes, "watching other nodes"))
        else:
            self._looking.append(self._start(self._look_for_leftovers, "looking for leftovers"))
        self._starting = [
            self._start(self.planner.run, "planning"),
            self._start(self.dispatcher.run, "claiming"),
        ]
        self.dispatcher.wake()
        if self.outbox is not None:
            self.outbox.start()
        return found

    async def stop(self, grace: float) -> None:
        """Start nothing more, give runs `grace` seconds to finish, end the rest, and unregister."""
        notifying = asyncio.ensure_future(self._stop_notifying(grace))
        try:
            await self._stop_running(grace)
        finally:
            await notifying

    def hurry(self) -> None:
        """End all runs and give up messages that are being sent, without a grace period.

        Nothing more starts: a run that was claimed now would be handed back, and claimed again.
        """
        self._start_nothing_more()
        self.dispatcher.end_all()
        if self.outbox is not None:
            self.outbox.hurry()

    async def _stop_notifying(self, grace: float) -> None:
        if self.outbox is not None:
            await self.outbox.stop(grace)

    def _start_nothing_more(self) -> None:
        self.planner.stop()
        self.dispatcher.stop()

    async def _stop_running(self, grace: float) -> None:
        self._start_nothing_more()
        await _end(self._looking)
        await asyncio.gather(*self._starting, return_exceptions=True)
        if self.dispatcher.running:
            running = self.dispatcher.running
            runs = f"{running} run{'s' * (running != 1)}"
            log.info("stopping: %s may finish within %g s", runs, grace)
        await self.dispatcher.drain(grace)
        await _end(self._serving)
        if not self.failed.done():  # else the next start decides the runs of this node
            try:
                await self._store.unregister(self._node)
            except StoreFailed as broken:
                lease = self._node.lease / 1000
                log.warning("unregister failed; the lease expires within %g s: %s", lease, broken)

    @property
    def activity(self) -> Activity:
        """What this engine is doing at this moment."""
        planner, dispatcher = self.planner, self.dispatcher
        is_busy = planner.is_looking or dispatcher.is_looking or dispatcher.recorder.is_recording
        return Activity(
            running=dispatcher.running,
            looks=self._looks,
            next_due=planner.next_due,
            is_waiting=not is_busy,
            begins_runs=not all(task.done() for task in self._starting),
        )

    async def settle(self) -> None:
        """Wait until everything that is due has been decided, run and recorded.

        Also until neither planner nor dispatcher is looking for work: if a test then moves its
        clock, what such a look finds would count as late.
        """
        while True:
            await self.dispatcher.recorder.idle()
            if self.failed.done():
                self.failed.result()
            before, recorded = self._clock.now(), self.dispatcher.recorder.rounds
            planned = await self.planner.plan_once()
            await self._store.expire(limit=BATCH)
            claimed = await self.dispatcher.claim_once()
            due = await self._store.next_due(after=before)
            moved = planned.ticks or claimed or recorded != self.dispatcher.recorder.rounds
            if self.dispatcher.slots.concurrency and not self.dispatcher.has_looked:
                continue  # another claim had reserved the last slot, and frees it
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
        """Wake the planner when another process has written, or the clock was moved forward."""
        looked = self._clock.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY)
            due = self.planner.next_due
            try:
                changed = await self._store.changed_elsewhere()
            except StoreFailed:
                continue  # the planner fails too, and logs it
            finally:
                self._looks += 1
            now = self._clock.monotonic()
            blind = self._store.is_shared and now - looked > LOOK_ANYWAY
            self._cancel_requested = self._cancel_requested or changed or blind
            if self._cancel_requested and self.dispatcher.running:
                await self._cancel_runs()
            if changed or blind or (due is not None and self._clock.now() >= due):
                looked = now
                self.planner.wake()

    def look_for_changes(self) -> None:
        """React to a change by this process: plan, cancel runs, and send messages."""
        self._note_cancel_requests()
        self.planner.wake()
        if self.outbox is not None:
            self.outbox.wake()

    def _note_cancel_requests(self) -> None:
        self._cancel_requested = True

    async def _cancel_runs(self) -> None:
        """Cancel runs of this node whose cancellation was requested."""
        self._cancel_requested = False
        try:
            requested = await self._store.to_end(self._node)
            all_found = self.dispatcher.cancel(requested)
            self._cancel_requested = self._cancel_requested or not all_found
        except StoreFailed as broken:
            self._cancel_requested = True
            log.warning("the check for cancellation requests failed: %s", broken)

    async def _guard_lease(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._check_lease()

    def _check_lease(self) -> None:
        """End all runs once other nodes may take this one for dead; note requests to stop."""
        if self._lease.is_forgotten:
            self.dispatcher.end_running(CancelReason.MAY_BE_LOST)
            raise NodeDeclaredLost("other nodes took this node for dead, and decided its runs")
        held, self._held = self._held, self._lease.holds
        lapses, self._lapses = self._lapses, self._lease.lapses
        if held and (not self._held or lapses != self._lapses):
            running = self.dispatcher.running
            log.error(
                "lost contact with the database: terminating all %d runs of this node", running
            )
            self.dispatcher.end_running(CancelReason.MAY_BE_LOST)
            # Runs that have not ended after half of the remaining lease are killed.
            later = self._node.lease / 1000 / 6
            asyncio.get_running_loop().call_later(later, self._kill_lost)
        elif self._held and not held:
            log.warning("contact with the database restored")
            self.planner.wake()
            self.dispatcher.wake()
        if self._lease.is_stop_requested:
            self.asked_to_stop.set()

    def _kill_lost(self) -> None:
        for launcher in set(self._launchers.values()):
            launcher.kill(self.dispatcher.attempts.given_up)

    async def _watch_other_nodes(self) -> None:
        """Decide the runs of silent nodes, and free runs of calls that were not answered.

        A node that was only suspended when its runs were decided may have died since: leftovers of
        it on this machine are ended at intervals.
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
                since = self.dispatcher.unknown.in_doubt_since
                if since is not None and self._clock.monotonic() - since > self._node.lease / 1000:
                    await self.dispatcher.release_unknown()
                    self.planner.wake()
            except (StoreFailed, OSError) as broken:  # such as too many open files
                self._lease.others_are_silent = False  # until the next heartbeat
                log.warning("rescuing the runs of silent nodes failed: %s", broken)

    async def _look_for_leftovers(self) -> None:
        """End leftovers of killed nodes: some may not have been found at the start."""
        while True:
            await asyncio.sleep(LEFTOVERS_EVERY)
            try:
                await self._end_leftovers()
            except OSError as broken:  # such as too many open files
                log.warning("terminating leftover processes of killed nodes failed: %s", broken)

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
                log.warning("deleting old history failed: %s", broken)
            await asyncio.sleep(PRUNE_EVERY)

    async def _follow_zones(self) -> None:
        await keep_following(self._store, self._clock, self.planner.wake)

    async def _notice_stuck(self) -> None:
        """Mark and report runs that take too long, each once, by any node."""
        while True:
            await asyncio.sleep(STUCK_EVERY)
            try:
                following: int | None = 0
                while following is not None:
                    following = await self._store.mark_stuck(after=following, limit=STUCK_BATCH)
            except StoreFailed as broken:
                log.warning("the check for stuck runs failed: %s", broken)

    def _start(self, loop: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Start a loop of the engine as a task; it is restarted when the store fails."""
        task_name = getattr(loop, "__qualname__", name)
        running = restart_on_failure(loop, name)
        task = asyncio.get_running_loop().create_task(running, name=task_name)
        task.add_done_callback(self._fail_if_broken)
        return task

    def _fail_if_broken(self, task: asyncio.Task[None]) -> None:
        """Stop the engine and set `failed` if one of its loops has failed."""
        broken = None if task.cancelled() else task.exception()
        if broken is not None and not self.failed.done():
            if not isinstance(broken, NodeDeclaredLost):  # that is not a defect
                log.critical("the engine failed: this node stops planning", exc_info=broken)
            self.failed.set_exception(broken)
            self.failed.exception()  # logged: asyncio need not report it again
            self.planner.stop()
            self.dispatcher.stop()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
