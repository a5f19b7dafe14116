"""The dispatcher: claims what is due, announces it, launches it, and records what came of it.

Nothing is launched that was not announced, nothing later than two thirds of the lease after the
claim was sent, and an outcome is kept until it is recorded. A node that may have been taken for
dead ends what it runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import TypeVar

from msgspec.structs import replace

from onbeat.core.decide.outcomes import holds
from onbeat.core.runs.run import Accepted, Canceled, Failed, Lost, Outcome
from onbeat.core.target import Target
from onbeat.engine.lease import Lease
from onbeat.engine.store_retry import Backoff, until_answered
from onbeat.errors import StoreFailed, StoreInDoubt, StoreUnusable
from onbeat.ports.outside import Launchers, Reattaches
from onbeat.ports.store import Attempt, Clock, Finished, Node, Store

BATCH = 250  # runs claimed at once
CLAIM_EVERY = 0.05  # seconds at most between two looks at what waits, while runs end
LONGEST_PROBE = 60_000  # milliseconds in which a condition has to be told

T = TypeVar("T")
log = logging.getLogger("onbeat.engine")


class Dispatcher:
    """Runs up to `concurrency` attempts at a time on this node."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        node: Node,
        launchers: Launchers,
        *,
        concurrency: int,
        lease: Lease | None = None,
    ) -> None:
        self._store, self._clock, self._node = store, clock, node
        self._launchers, self.concurrency = launchers, concurrency
        self._lease = lease or Lease(store, clock, node)
        self._running: dict[int, tuple[asyncio.Task[None], Attempt]] = {}
        self._probing: dict[int, tuple[asyncio.Task[None], Attempt]] = {}  # their condition
        self._late = 0  # how many came too late to be launched, and were not told of yet
        self._reserved, self._unrecorded = 0, 0
        self.recorded = 0  # how many times outcomes were recorded
        self._finished: list[Finished] = []
        self._recording: list[Finished] = []
        self._unlaunched: list[Attempt] = []
        self._given_up: set[tuple[int, int]] = set()  # ended because the lease was over
        self._asked: set[tuple[int, int]] = set()  # ended because somebody wished so
        # Since when a call may have given this node runs that it knows nothing of.
        self.in_doubt_since: float | None = None
        self._stopping, self._ending = False, False
        self._backlog, self._records_no_more = False, False
        self._sleeps = False
        self.has_looked = False  # whether there was a place when it was last to claim
        self._claimed_at = clock.monotonic()
        self._later: asyncio.TimerHandle | None = None
        self._wake, self._to_record = asyncio.Event(), asyncio.Event()
        self._idle, self._place = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """How many attempts are launched and not yet recorded."""
        return len(self._running) + self._unrecorded

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, is about to be launched, or waits to be recorded."""
        busy = self.running or self._probing or self._reserved or self._unlaunched
        return not busy and self._idle.is_set()

    @property
    def is_looking(self) -> bool:
        """Whether it claims what waits, or is about to."""
        return not self._stopping and (not self._sleeps or self._wake.is_set())

    @property
    def given_up(self) -> frozenset[int]:
        """The runs that are being ended because the node may have been taken for dead."""
        return frozenset(run_id for run_id, _ in self._given_up)

    def wake(self) -> None:
        """Look for runs to claim."""
        self._wake.set()

    def wake_soon(self) -> None:
        """Look for runs to claim: at once if some are known to wait, else only now and then.

        A claim takes places that the planner could fill with one write less.
        """
        left = self._claimed_at + CLAIM_EVERY - self._clock.monotonic()
        if self._backlog or left <= 0:
            self.wake()
        elif self._later is None or self._later.when() < asyncio.get_running_loop().time():
            self._later = asyncio.get_running_loop().call_later(left, self.wake)

    @contextmanager
    def reserved(self, most: int) -> Iterator[int]:
        """Keep up to `most` free places for runs that are about to be announced."""
        slots = max(min(self._free, most), 0)
        self._reserved += slots
        try:
            yield slots
        finally:
            self._reserved -= slots
            self._place.set()

    def stop(self) -> None:
        """Claim nothing more; what is being claimed is still launched."""
        self._stopping = True
        self.wake()

    async def wait_for_places(self, enough: int, longest: float) -> None:
        """Wait until so many runs could be launched, but not longer than so many seconds."""
        if self._free >= enough:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while self._free < enough and not self._stopping:
                    self._place.clear()
                    await self._place.wait()

    async def run(self) -> None:
        """Claim and launch until stopped."""
        backoff = Backoff()
        while not self._stopping:
            self._sleeps = True
            await self._wake.wait()
            self._sleeps = False
            self._wake.clear()
            if self._stopping:
                return
            try:
                if await self.claim_once():
                    self.wake()  # there may be more
                backoff.reset()
            except StoreFailed as broken:
                self.doubt(broken)
                await backoff.sleep("claiming failed", broken)
                self.wake()

    async def claim_once(self) -> int:
        """Claim a batch no larger than what can be launched at once; launch it."""
        with self.reserved(BATCH) as slots:
            self.has_looked = slots > 0
            if not slots:
                self._backlog = True  # nobody has looked: something may wait
                return 0
            sent = self._clock.monotonic()
            claimed = await self._store.claim(self._node, limit=slots)
            self._backlog, self._claimed_at = len(claimed) == slots, sent
            if not claimed:
                return 0
            for attempt in claimed:
                if attempt.when is not None:
                    self._probe(attempt, attempt.when)
            claimed = [attempt for attempt in claimed if attempt.when is None]
            return len(await self._announce(claimed, sent)) if claimed else len(self._probing)

    async def _announce(self, claimed: Sequence[Attempt], sent: float) -> list[Attempt]:
        """Announce and launch what was claimed; return what was still this node's."""
        announced = await self._announced(claimed)
        self.launch(announced, sent)
        return announced

    async def _announced(self, claimed: Sequence[Attempt]) -> list[Attempt]:
        """Announce what was claimed, and hand back what could not be; return the others."""
        try:
            announced = await self._store.announce(self._node, claimed)
        except StoreFailed:
            self._hand_back(claimed)
            raise
        known = {attempt.run_id for attempt in announced}  # the others were paused in between
        self._hand_back([attempt for attempt in claimed if attempt.run_id not in known])
        return announced

    def _probe(self, attempt: Attempt, condition: Target) -> None:
        """Ask whether the condition of a claimed run holds, before it is announced."""
        self._mark_busy()
        task = asyncio.get_running_loop().create_task(self._ask(attempt, condition))
        if not task.done():
            self._probing[attempt.run_id] = task, attempt

    async def _ask(self, attempt: Attempt, condition: Target) -> None:
        """Ask, and then launch the run, skip it, or let it fail if nobody could tell."""
        asked = replace(
            attempt, target=condition, inputs_text=condition.inputs_text, timeout=LONGEST_PROBE
        )
        try:
            outcome, tail = await self._outcome_of(asked)
            answer = holds(condition, outcome)
            sent = self._clock.monotonic()
            if answer is False:
                await self._surely(partial(self._store.skip_condition, [attempt]))
            elif answer:
                await self._announce([attempt], sent)
            else:
                await self._fail_unasked(attempt, outcome, tail)
        except StoreFailed as broken:
            self.doubt(broken)
            log.warning("run %d could not be announced: %s", attempt.run_id, broken)
        except BaseException as broken:
            self._hand_back([attempt])
            if not isinstance(broken, asyncio.CancelledError):
                log.exception("the condition of run %d could not be asked", attempt.run_id)
        finally:
            self._probing.pop(attempt.run_id, None)
            self._place.set()
            self._to_record.set()

    async def _outcome_of(self, asked: Attempt) -> tuple[Outcome, str]:
        """Return what a condition says; that of a launcher with a defect is no answer."""
        try:
            return await self._launchers[asked.target.kind].launch(asked)
        except Exception as broken:
            log.exception("the condition of run %d could not be asked", asked.run_id)
            return Failed(_told(broken), "launch_failed"), ""

    async def _fail_unasked(self, attempt: Attempt, outcome: Outcome, tail: str) -> None:
        """Have an attempt fail whose condition gave no answer."""
        told = getattr(outcome, "error", str(outcome))
        if await self._announced([attempt]):
            failed = Failed(f"its condition could not be asked: {told}", "launch_failed")
            self._unrecorded += 1
            self._finished.append(Finished(attempt, failed, tail))

    def launch(self, announced: Sequence[Attempt], sent: float) -> None:
        """Launch attempts that were announced at once, or hand them back if it gets too late."""
        if announced:
            self._mark_busy()
        latest = sent + self._node.lease / 1000 * 2 / 3
        create_task = asyncio.get_running_loop().create_task
        for attempt in announced:
            task = create_task(self._attend(attempt, latest), name=attempt.schedule_id)
            if not task.done():  # a loop may be set up to begin a task at once
                self._running[attempt.run_id] = task, attempt

    async def record(self) -> None:
        """Record outcomes until cancelled: whatever has come in since the last time, at once."""
        self._records_no_more = False
        try:
            while True:
                await self._to_record.wait()
                self._to_record.clear()
                await self.record_once()
        finally:
            self._records_no_more = True
            self._idle.set()  # nobody else would ever wake those who wait

    async def record_once(self) -> None:
        """Record what has come in, and free what was not launched."""
        unlaunched = list(self._unlaunched)
        batch, self._finished = self._finished, []
        self._recording = batch  # at once: `disown` frees what is in no list, also while this waits
        if self._late:
            log.warning("%d runs came too late to be launched: handed back", self._late)
            self._late = 0
        if unlaunched:
            await self._surely(partial(self._store.hand_back, unlaunched))
            del self._unlaunched[: len(unlaunched)]
        if batch:
            held = set(await self._finish(batch))
            self._recording = []
            self._unrecorded -= len(batch)
            if len(held) < len(batch):
                _tell_of_lost([each for each in batch if each.attempt.run_id not in held])
        self.recorded += 1
        if any(each.attempt.group is not None for each in batch):
            self.wake()  # somebody may wait for just this place
        else:
            self.wake_soon()
        self.on_recorded()
        if not (self.running or self._probing or self._unlaunched):
            self._idle.set()

    async def _finish(self, batch: list[Finished]) -> list[int]:
        """Record outcomes; one that cannot be recorded is a failure, and hurts no other."""
        try:
            return await self._surely(partial(self._store.finish, batch))
        except StoreUnusable:
            raise
        except Exception:
            log.exception("outcomes could not be recorded together")
        held: list[int] = []
        for each in batch:
            try:
                held += await self._surely(partial(self._store.finish, [each]))
            except Exception as broken:  # noqa: BLE001 - whatever is wrong with it is its own
                failed = Failed(f"its outcome could not be kept: {_told(broken)}", retryable=False)
                told = Finished(each.attempt, failed)
                held += await self._surely(partial(self._store.finish, [told]))
        return held

    def on_recorded(self) -> None:
        """Hear that runs have ended: a retry or a queued run may have become due."""

    async def drain(self, grace: float) -> None:
        """Wait for what is running; end what still runs after `grace` seconds.

        What goes on without this node is left to whoever finds it.
        """
        self._leave()
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            self.end_all()
            await self._idle.wait()
        if self._records_no_more:  # it could not say whether all have ended
            self.end_all()
            tasks = [task for task, _ in self._running.values()]
            await asyncio.gather(*tasks, return_exceptions=True)

    def end_all(self) -> None:
        """End what is running; what has not begun will not."""
        self._ending = True
        self.end_running()

    def _leave(self) -> None:
        """Let go of what goes on without this node: for the books it is lost, and found again."""
        for task, attempt in list(self._running.values()):
            launcher, held = self._launchers[attempt.target.kind], (attempt.run_id, attempt.fence)
            begun = getcoroutinestate(task.get_coro()) != CORO_CREATED  # type: ignore[arg-type]
            if not begun or held in self._asked or not isinstance(launcher, Reattaches):
                continue
            if launcher.leave([attempt.run_id]):
                self._given_up.add(held)
                task.cancel()

    def end_running(self, *, lost: bool = False) -> None:
        """End what is running now: because the node is stopped, or because it may be lost."""
        self._leave()
        for task, _ in list(self._probing.values()):
            task.cancel()
        for task, attempt in list(self._running.values()):
            if getcoroutinestate(task.get_coro()) != CORO_CREATED:  # type: ignore[arg-type]
                if lost:
                    self._given_up.add((attempt.run_id, attempt.fence))
                task.cancel()

    def end(self, which: Collection[tuple[int, int]]) -> bool:
        """End runs, by their ids and fences, because somebody wishes so.

        Returns whether all of them run here: others are about to begin, or to be recorded.
        """
        found: set[tuple[int, int]] = set()
        for task, attempt in list(self._running.values()):
            held = attempt.run_id, attempt.fence
            begun = getcoroutinestate(task.get_coro()) != CORO_CREATED  # type: ignore[arg-type]
            if held in which and begun:
                found.add(held)
                if held not in self._asked:
                    self._asked.add(held)
                    task.cancel()
        return found.issuperset(which)

    def doubt(self, broken: StoreFailed) -> None:
        """Take note of a call that may have given this node runs, though it failed."""
        if isinstance(broken, StoreInDoubt):
            self.in_doubt_since = self._clock.monotonic()

    async def release_unknown(self) -> None:
        """Free what this node holds, by the books, and knows nothing of."""
        since, before = self.in_doubt_since, self._clock.now() - self._node.lease * 2 // 3
        unfinished = [
            *(attempt for _, attempt in self._running.values()),
            *(attempt for _, attempt in self._probing.values()),
            *(each.attempt for each in (*self._finished, *self._recording)),
            *self._unlaunched,
        ]
        known = {(attempt.run_id, attempt.fence) for attempt in unfinished}
        freed = await self._store.release_unknown(self._node, known, before=before)
        if freed:
            log.warning("%d runs were claimed in a call that was not answered: freed", freed)
        if self.in_doubt_since == since:
            self.in_doubt_since = None

    async def idle(self) -> None:
        """Wait until nothing runs, every outcome is recorded and all else is handed back."""
        await self._idle.wait()

    @property
    def _free(self) -> int:
        if not self._lease.holds:
            return 0  # what it was given now it would only hand back
        return self.concurrency - len(self._running) - len(self._probing) - self._reserved

    async def _attend(self, attempt: Attempt, latest: float) -> None:
        """See one attempt through, whatever its launcher does; or hand it back if it is too late.

        That is judged here and not before: whatever else runs in the event loop may have held it.
        """
        is_late = self._clock.monotonic() > latest or not self._lease.holds
        if is_late or self._ending:
            self._late += is_late
            self._running.pop(attempt.run_id, None)
            self._place.set()
            self._hand_back([attempt])
            return
        tail = ""
        outcome: Outcome
        try:
            outcome, tail = await self._launchers[attempt.target.kind].launch(attempt)
        except BaseException as broken:
            task = asyncio.current_task()
            if (
                isinstance(broken, asyncio.CancelledError)
                and task is not None
                and task.cancelling()
            ):
                outcome = Canceled("ended because the scheduler was stopped")
                if (attempt.run_id, attempt.fence) in self._asked:
                    outcome = Canceled("ended because it was asked to")
                if (attempt.run_id, attempt.fence) in self._given_up:
                    outcome = Lost()  # others may have decided so already
            else:
                log.exception("the launcher of run %d failed", attempt.run_id)
                outcome = Failed(_told(broken), "launch_failed")
        self._asked.discard((attempt.run_id, attempt.fence))
        self._given_up.discard((attempt.run_id, attempt.fence))
        self._running.pop(attempt.run_id, None)  # its place is free for another at once
        self._unrecorded += 1
        self._finished.append(Finished(attempt, outcome, tail))
        self._place.set()
        if len(self._finished) == 1:  # whoever records takes them all
            self._to_record.set()

    def _hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Have runs freed that were claimed and will not be launched."""
        if attempts:
            self._mark_busy()
            self._unlaunched += attempts
            self._to_record.set()

    def _mark_busy(self) -> None:
        """Have those who wait for the end of it wait, unless nobody could tell them any more."""
        if not self._records_no_more:
            self._idle.clear()

    async def _surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """Do what has to be done, for as long as the store fails."""
        return await until_answered(call, "outcomes wait to be recorded")


def _told(broken: BaseException) -> str:
    try:
        return f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - its own text may fail in any way
        return type(broken).__name__


def _tell_of_lost(finished: Sequence[Finished]) -> None:
    """Tell of runs that somebody else has decided about since."""
    for each in finished:
        if isinstance(each.outcome, Accepted):  # its target was quicker to tell of its end
            log.debug("run %d was reported before its answer was read", each.attempt.run_id)
        else:
            log.warning("run %d was not this node's any more", each.attempt.run_id)
