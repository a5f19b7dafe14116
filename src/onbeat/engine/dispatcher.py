"""`Dispatcher`: claims due runs, announces and launches them, and records their outcomes.

A run is launched only after it was announced, and at most two thirds of the lease after its claim
was sent. An outcome is kept until it is recorded. A node that may have been taken for dead ends its
runs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import TypeVar

from msgspec.structs import replace

from onbeat.core.decide.outcomes import condition_holds
from onbeat.core.runs.run import Accepted, Canceled, Failed, Lost, Outcome
from onbeat.core.target import Target
from onbeat.engine.lease import Lease
from onbeat.engine.store_retry import Backoff, until_answered
from onbeat.errors import StoreFailed, StoreInDoubt, StoreUnusable
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launchers, ReattachingLauncher
from onbeat.ports.store import Attempt, Finished, Node, Store

BATCH = 250  # runs claimed at once
CLAIM_EVERY = 0.05  # seconds between two claims at most, while runs end
CONDITION_TIMEOUT = 60_000  # milliseconds

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
        self._checking: dict[int, tuple[asyncio.Task[None], Attempt]] = {}  # conditions
        self._late = 0  # runs that were too late to be launched, and are not logged yet
        self._reserved, self._unrecorded = 0, 0
        self.recorded = 0  # how many times outcomes were recorded
        self._finished: list[Finished] = []
        self._recording: list[Finished] = []
        self._unlaunched: list[Attempt] = []
        self._given_up: set[tuple[int, int]] = set()  # detached, or ended as lost
        self._canceled: set[tuple[int, int]] = set()  # ended because cancellation was requested
        # Since when a failed call may have given this node runs that it does not know.
        self.in_doubt_since: float | None = None
        self._stopping, self._ending = False, False
        self._backlog, self._records_no_more = False, False
        self._sleeps = False
        self.has_looked = False  # whether the last `claim_once` had a free slot
        self._claimed_at = clock.monotonic()
        self._later: asyncio.TimerHandle | None = None
        self._wake, self._to_record = asyncio.Event(), asyncio.Event()
        self._idle, self._slot_freed = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """How many attempts are launched and not recorded yet."""
        return len(self._running) + self._unrecorded

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, is about to be launched, or waits to be recorded."""
        busy = self.running or self._checking or self._reserved or self._unlaunched
        return not busy and self._idle.is_set()

    @property
    def is_looking(self) -> bool:
        """Whether it is claiming runs, or about to."""
        return not self._stopping and (not self._sleeps or self._wake.is_set())

    @property
    def is_recording(self) -> bool:
        """Whether outcomes are being recorded, or are about to be."""
        waiting = self._finished or self._recording or self._unlaunched
        return bool(waiting) or self._to_record.is_set()

    @property
    def given_up(self) -> frozenset[int]:
        """The runs that are being detached, or ended as the node may have been taken for dead."""
        return frozenset(run_id for run_id, _ in self._given_up)

    def wake(self) -> None:
        """Claim runs now."""
        self._wake.set()

    def wake_soon(self) -> None:
        """Claim runs: now if some are known to wait, else CLAIM_EVERY seconds after the last claim.

        A claim takes slots that the planner could fill with one write less.
        """
        left = self._claimed_at + CLAIM_EVERY - self._clock.monotonic()
        if self._backlog or left <= 0:
            self.wake()
        elif self._later is None or self._later.when() < asyncio.get_running_loop().time():
            self._later = asyncio.get_running_loop().call_later(left, self.wake)

    @contextmanager
    def reserved(self, most: int) -> Iterator[int]:
        """Reserve up to `most` free slots for runs that are about to be announced."""
        slots = max(min(self._free, most), 0)
        self._reserved += slots
        try:
            yield slots
        finally:
            self._reserved -= slots
            self._slot_freed.set()

    def stop(self) -> None:
        """Claim nothing more; runs that are being claimed are still launched."""
        self._stopping = True
        self.wake()

    async def wait_for_slots(self, enough: int, longest: float) -> None:
        """Wait until `enough` slots are free, `longest` seconds at most."""
        if self._free >= enough:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while self._free < enough and not self._stopping:
                    self._slot_freed.clear()
                    await self._slot_freed.wait()

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
                self.note_doubt(broken)
                await backoff.sleep("claiming failed", broken)
                self.wake()

    async def claim_once(self) -> int:
        """Claim up to as many runs as can be launched now, and launch them; return how many."""
        with self.reserved(BATCH) as slots:
            self.has_looked = slots > 0
            if not slots:
                self._backlog = True  # runs may wait
                return 0
            sent = self._clock.monotonic()
            claimed = await self._store.claim(self._node, limit=slots)
            self._backlog, self._claimed_at = len(claimed) == slots, sent
            if not claimed:
                return 0
            for attempt in claimed:
                if attempt.when is not None:
                    self._check_condition(attempt, attempt.when)
            claimed = [attempt for attempt in claimed if attempt.when is None]
            return len(await self._announce(claimed, sent)) if claimed else len(self._checking)

    async def _announce(self, claimed: Sequence[Attempt], sent: float) -> list[Attempt]:
        """Announce claimed runs and launch them; return those still held by this node."""
        announced = await self._announced(claimed)
        self.launch(announced, sent)
        return announced

    async def _announced(self, claimed: Sequence[Attempt]) -> list[Attempt]:
        """Announce claimed runs; hand back those that were refused, return the others."""
        try:
            announced = await self._store.announce(self._node, claimed)
        except StoreFailed:
            self._hand_back(claimed)
            raise
        known = {attempt.run_id for attempt in announced}  # the others were paused meanwhile
        self._hand_back([attempt for attempt in claimed if attempt.run_id not in known])
        return announced

    def _check_condition(self, attempt: Attempt, condition: Target) -> None:
        """Start checking the condition of a claimed run, before it is announced."""
        self._mark_busy()
        task = asyncio.get_running_loop().create_task(self._launch_if(attempt, condition))
        if not task.done():
            self._checking[attempt.run_id] = task, attempt

    async def _launch_if(self, attempt: Attempt, condition: Target) -> None:
        """Check a condition; then launch its run, skip it, or fail it if the check failed."""
        check = replace(
            attempt, target=condition, inputs_text=condition.inputs_text, timeout=CONDITION_TIMEOUT
        )
        try:
            outcome, tail = await self._outcome_of(check)
            answer = condition_holds(condition, outcome)
            sent = self._clock.monotonic()
            if answer is False:
                await self._until_answered(partial(self._store.skip_condition, [attempt]))
            elif answer:
                await self._announce([attempt], sent)
            else:
                await self._fail_unchecked(attempt, outcome, tail)
        except StoreFailed as broken:
            self.note_doubt(broken)
            log.warning("run %d: recording its start failed: %s", attempt.run_id, broken)
        except BaseException as broken:
            self._hand_back([attempt])
            if not isinstance(broken, asyncio.CancelledError):
                log.exception("run %d: the check of its condition (when) crashed", attempt.run_id)
        finally:
            self._checking.pop(attempt.run_id, None)
            self._slot_freed.set()
            self._to_record.set()

    async def _outcome_of(self, check: Attempt) -> tuple[Outcome, str]:
        """Launch a condition; an exception of its launcher is a failed outcome."""
        try:
            return await self._launchers[check.target.kind].launch(check)
        except Exception as broken:
            log.exception("run %d: the check of its condition (when) crashed", check.run_id)
            return Failed(_exception_text(broken), "launch_failed"), ""

    async def _fail_unchecked(self, attempt: Attempt, outcome: Outcome, tail: str) -> None:
        """Fail an attempt whose condition could not be checked."""
        error = getattr(outcome, "error", str(outcome))
        if await self._announced([attempt]):
            failed = Failed(f"its condition could not be checked: {error}", "launch_failed")
            self._unrecorded += 1
            self._finished.append(Finished(attempt, failed, tail))

    def launch(self, announced: Sequence[Attempt], sent: float) -> None:
        """Launch announced attempts, or hand them back if it is too late by then."""
        if announced:
            self._mark_busy()
        latest = sent + self._node.lease / 1000 * 2 / 3
        create_task = asyncio.get_running_loop().create_task
        for attempt in announced:
            task = create_task(self._run_attempt(attempt, latest), name=attempt.schedule_id)
            if not task.done():  # an eager task may have ended already
                self._running[attempt.run_id] = task, attempt

    async def record(self) -> None:
        """Record outcomes until cancelled, all that have collected since the last time together."""
        self._records_no_more = False
        try:
            while True:
                await self._to_record.wait()
                self._to_record.clear()
                await self.record_once()
        finally:
            self._records_no_more = True
            self._idle.set()  # else waiting callers would never wake

    async def record_once(self) -> None:
        """Record collected outcomes, and hand back runs that were not launched."""
        unlaunched = list(self._unlaunched)
        batch, self._finished = self._finished, []
        self._recording = batch  # before any await: `release_unknown` frees runs in no list
        if self._late:
            log.warning("%d runs were too late to be launched: handed back", self._late)
            self._late = 0
        if unlaunched:
            await self._until_answered(partial(self._store.hand_back, unlaunched))
            del self._unlaunched[: len(unlaunched)]
        if batch:
            held = set(await self._finish(batch))
            self._recording = []
            self._unrecorded -= len(batch)
            if len(held) < len(batch):
                _log_lost([each for each in batch if each.attempt.run_id not in held])
        self.recorded += 1
        if any(each.attempt.group is not None for each in batch):
            self.wake()  # another run may wait for a place of the group
        else:
            self.wake_soon()
        self.on_recorded()
        if not (self.running or self._checking or self._unlaunched):
            self._idle.set()

    async def _finish(self, batch: list[Finished]) -> list[int]:
        """Record outcomes; one that cannot be recorded becomes a failure and affects no other."""
        try:
            return await self._until_answered(partial(self._store.finish, batch))
        except StoreUnusable:
            raise
        except Exception:
            log.exception("recording a batch of outcomes failed: recording them one by one")
        held: list[int] = []
        for each in batch:
            try:
                held += await self._until_answered(partial(self._store.finish, [each]))
            except Exception as broken:  # noqa: BLE001 - it affects only this outcome
                error = f"its outcome could not be recorded: {_exception_text(broken)}"
                failed = Finished(each.attempt, Failed(error, retryable=False))
                held += await self._until_answered(partial(self._store.finish, [failed]))
        return held

    def on_recorded(self) -> None:
        """React to recorded outcomes: a retry or a queued run may have become due."""

    async def drain(self, grace: float) -> None:
        """Wait for runs to end; end those that still run after `grace` seconds.

        Runs that can continue without this node are detached.
        """
        self._detach()
        try:
            await asyncio.wait_for(self._idle.wait(), grace)
        except TimeoutError:
            self.end_all()
            await self._idle.wait()
        if self._records_no_more:  # `_idle` does not mean that all runs have ended
            self.end_all()
            tasks = [task for task, _ in self._running.values()]
            await asyncio.gather(*tasks, return_exceptions=True)

    def end_all(self) -> None:
        """End all runs; runs that have not begun are handed back."""
        self._ending = True
        self.end_running()

    def _detach(self) -> None:
        """Detach runs that can continue without this node: they are recorded as lost."""
        for task, attempt in list(self._running.values()):
            launcher, held = self._launchers[attempt.target.kind], (attempt.run_id, attempt.fence)
            if (
                held in self._canceled
                or not _has_begun(task)
                or not isinstance(launcher, ReattachingLauncher)
            ):
                continue
            if launcher.leave([attempt.run_id]):
                self._given_up.add(held)
                task.cancel()

    def end_running(self, *, lost: bool = False) -> None:
        """End all current runs, as the node is stopping, or as they may be `lost`."""
        self._detach()
        for task, _ in list(self._checking.values()):
            task.cancel()
        for task, attempt in list(self._running.values()):
            if _has_begun(task):
                if lost:
                    self._given_up.add((attempt.run_id, attempt.fence))
                task.cancel()

    def cancel(self, which: Collection[tuple[int, int]]) -> bool:
        """Cancel runs by their ids and fences, as requested.

        Returns whether all of them run here: others are about to begin or to be recorded.
        """
        found: set[tuple[int, int]] = set()
        for task, attempt in list(self._running.values()):
            held = attempt.run_id, attempt.fence
            if held in which and _has_begun(task):
                found.add(held)
                if held not in self._canceled:
                    self._canceled.add(held)
                    task.cancel()
        return found.issuperset(which)

    def note_doubt(self, broken: StoreFailed) -> None:
        """Note a failed call that may have given this node runs nevertheless."""
        if isinstance(broken, StoreInDoubt):
            self.in_doubt_since = self._clock.monotonic()

    async def release_unknown(self) -> None:
        """Free runs that this node holds in the store and does not know."""
        since, before = self.in_doubt_since, self._clock.now() - self._node.lease * 2 // 3
        unfinished = [
            *(attempt for _, attempt in self._running.values()),
            *(attempt for _, attempt in self._checking.values()),
            *(each.attempt for each in (*self._finished, *self._recording)),
            *self._unlaunched,
        ]
        known = {(attempt.run_id, attempt.fence) for attempt in unfinished}
        freed = await self._store.release_unknown(self._node, known, before=before)
        if freed:
            log.warning(
                "released %d runs: the database did not answer the calls that claimed them", freed
            )
        if self.in_doubt_since == since:
            self.in_doubt_since = None

    async def idle(self) -> None:
        """Wait until nothing runs, and all runs are recorded or handed back."""
        await self._idle.wait()

    @property
    def _free(self) -> int:
        if not self._lease.holds:
            return 0  # a run that was claimed now would only be handed back
        return self.concurrency - len(self._running) - len(self._checking) - self._reserved

    async def _run_attempt(self, attempt: Attempt, latest: float) -> None:
        """Run one attempt to its outcome, or hand it back if it is too late.

        That is checked here and not before: the event loop may have delayed the task.
        """
        is_late = self._clock.monotonic() > latest or not self._lease.holds
        if is_late or self._ending:
            self._late += is_late
            self._running.pop(attempt.run_id, None)
            self._slot_freed.set()
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
                if (attempt.run_id, attempt.fence) in self._canceled:
                    outcome = Canceled("ended because cancellation was requested")
                if (attempt.run_id, attempt.fence) in self._given_up:
                    outcome = Lost()  # another node may have decided so already
            else:
                log.exception("run %d: its launcher failed", attempt.run_id)
                outcome = Failed(_exception_text(broken), "launch_failed")
        self._canceled.discard((attempt.run_id, attempt.fence))
        self._given_up.discard((attempt.run_id, attempt.fence))
        self._running.pop(attempt.run_id, None)  # its slot is free from here on
        self._unrecorded += 1
        self._finished.append(Finished(attempt, outcome, tail))
        self._slot_freed.set()
        if len(self._finished) == 1:  # `record` takes all of them
            self._to_record.set()

    def _hand_back(self, attempts: Sequence[Attempt]) -> None:
        """Collect claimed runs that will not be launched, for `record` to hand them back."""
        if attempts:
            self._mark_busy()
            self._unlaunched += attempts
            self._to_record.set()

    def _mark_busy(self) -> None:
        """Clear `_idle`, unless nothing would set it again."""
        if not self._records_no_more:
            self._idle.clear()

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until the store answers."""
        return await until_answered(call, "outcomes wait to be recorded")


def _has_begun(task: asyncio.Task[None]) -> bool:
    return getcoroutinestate(task.get_coro()) != CORO_CREATED  # type: ignore[arg-type]


def _exception_text(broken: BaseException) -> str:
    try:
        return f"{type(broken).__name__}: {broken}"
    except Exception:  # noqa: BLE001 - `__str__` of an exception may fail
        return type(broken).__name__


def _log_lost(finished: Sequence[Finished]) -> None:
    """Log outcomes that were not recorded, as their runs were decided meanwhile."""
    for each in finished:
        if isinstance(each.outcome, Accepted):  # its target reported the outcome earlier
            log.debug("run %d: reported before its launch was answered", each.attempt.run_id)
        else:
            log.warning(
                "run %d: its outcome is not recorded: this node no longer holds the run",
                each.attempt.run_id,
            )
