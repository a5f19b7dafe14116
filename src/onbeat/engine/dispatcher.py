"""`Dispatcher`: claims due runs, has them announced and launched, and their outcomes recorded.

It is the front of the parts that own the state: `Slots`, `Starter` (from a claim to the launch),
`RunningAttempts` (from the launch to the outcome), `OutcomeRecorder` (until it is recorded) and
`UnknownRuns`. At every `await`, a run of this node is in a list of one of them, or in a call of the
store that claims or announces it. `release_unknown` frees the others, except for young claims.
"""

import asyncio
from collections.abc import Collection, Sequence

from onbeat.engine.attempts import CancelReason, RunningAttempts
from onbeat.engine.claim_timer import ClaimTimer
from onbeat.engine.lease import Lease
from onbeat.engine.recorder import OutcomeRecorder
from onbeat.engine.slots import Slots
from onbeat.engine.starter import Starter
from onbeat.engine.store_retry import Backoff
from onbeat.engine.unknown_runs import UnknownRuns
from onbeat.errors import StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launchers
from onbeat.ports.store import Attempt, Finished, Node, Store

BATCH = 250  # runs claimed at once


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
        lease = lease or Lease(store, clock, node)
        self.slots = Slots(concurrency, lease)
        self.recorder = OutcomeRecorder(store, self.slots, self._react)
        self.unknown = UnknownRuns(store, clock, node)
        self.attempts = RunningAttempts(
            clock, node, lease, launchers, slots=self.slots, recorder=self.recorder
        )
        self.starter = Starter(
            store,
            clock,
            node,
            launchers,
            slots=self.slots,
            recorder=self.recorder,
            running=self.attempts,
            unknown=self.unknown,
        )
        self._timer = ClaimTimer(clock)
        self._stopping = False
        self.has_looked = False  # whether the last `claim_once` had a free slot

    @property
    def running(self) -> int:
        """How many attempts are launched and not recorded yet."""
        return len(self.attempts) + self.recorder.unrecorded

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, is about to be launched, or waits to be recorded."""
        return not self.slots.reserved and self.recorder.is_idle

    @property
    def is_looking(self) -> bool:
        """Whether it is claiming runs, or about to."""
        return not self._stopping and self._timer.is_awake

    def wake(self) -> None:
        """Claim runs now."""
        self._timer.wake()

    def wake_soon(self) -> None:
        """Claim runs: now if some are known to wait, else shortly after the last claim."""
        self._timer.wake_soon()

    def stop(self) -> None:
        """Claim nothing more; runs that are being claimed are still launched."""
        self._stopping = True
        self.slots.close()
        self.wake()

    async def run(self) -> None:
        """Claim and launch until stopped."""
        backoff = Backoff()
        while not self._stopping:
            await self._timer.wait()
            if self._stopping:
                return
            try:
                if await self.claim_once():
                    self.wake()  # there may be more
                backoff.reset()
            except StoreFailed as broken:
                self.unknown.note(broken)
                await backoff.sleep("claiming failed", broken)
                self.wake()

    async def claim_once(self) -> int:
        """Claim up to as many runs as can be launched now, and launch them; return how many."""
        with self.slots.reserve(BATCH) as slots:
            self.has_looked = slots > 0
            if not slots:
                self._timer.note_no_slot()
                return 0
            sent = self._clock.monotonic()
            claimed = await self._store.claim(self._node, limit=slots)
            self.on_claimed()
            self._timer.note_claim(sent, has_backlog=len(claimed) == slots)
            return await self.starter.start(claimed, sent) if claimed else 0

    def launch(self, announced: Sequence[Attempt], sent: float) -> None:
        """Launch attempts that the planner has announced, by a call that it sent at `sent`."""
        self.attempts.launch(announced, sent)

    def on_claimed(self) -> None:
        """React to a claim: a run that was due may have requested to cancel those it replaces."""

    def on_recorded(self) -> None:
        """React to recorded outcomes: a retry or a queued run may have become due."""

    def _react(self, finished: Sequence[Finished]) -> None:
        if any(each.attempt.group is not None for each in finished):
            self.wake()  # another run may wait for a place of the group
        else:
            self.wake_soon()
        self.on_recorded()

    async def drain(self, grace: float) -> None:
        """Wait for runs to end; end those that still run after `grace` seconds.

        Runs that can continue without this node are detached.
        """
        self.attempts.detach()
        try:
            await asyncio.wait_for(self.recorder.idle(), grace)
        except TimeoutError:
            self.end_all()
            await self.recorder.idle()
        if self.recorder.has_ended:
            self.end_all()
            await asyncio.gather(*(each.task for each in self.attempts), return_exceptions=True)

    def end_all(self) -> None:
        """End all runs; runs that have not begun are handed back."""
        self.attempts.launch_nothing_more()
        self.end_running(CancelReason.NODE_STOPS)

    def end_running(self, reason: CancelReason) -> None:
        """End all runs that have begun, or detach those that can continue without this node."""
        self.attempts.detach()
        self.starter.cancel_checks()
        self.attempts.end(reason)

    def cancel(self, which: Collection[tuple[int, int]]) -> bool:
        """Cancel runs by their ids and fences; return whether all of them run here."""
        return self.attempts.cancel(which)

    async def release_unknown(self) -> None:
        """Free runs that this node holds in the store and does not know."""
        await self.unknown.release(
            [
                *(each.attempt for each in self.attempts),
                *(attempt for _, attempt in self.starter.checks()),
                *self.recorder.kept(),
            ]
        )
