"""`RunningAttempts`: the announced attempts of this node, from their launch to their outcome.

Rules:

- An attempt is launched at most two thirds of a lease after its claim was sent, and only while the
  node holds its lease. Its own task checks that: the event loop may have delayed the task. Late
  attempts are handed back.
- An attempt is in the table from its launch until its outcome is in a list of the recorder.
- A task is cancelled only after it has begun: before that, it would end without an outcome. One
  that has not begun hands its run back as soon as the node ends its runs.
- An attempt that another node may have decided already, or will reattach, ends as lost.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from inspect import CORO_CREATED, getcoroutinestate

import msgspec

from onbeat.core.runs.run import Canceled, Failed, Lost, Outcome
from onbeat.engine.lease import Lease
from onbeat.engine.recorder import OutcomeRecorder, exception_text
from onbeat.engine.slots import Slots
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launchers, ReattachingLauncher
from onbeat.ports.store import Attempt, Finished, Node

log = logging.getLogger("onbeat.engine")


class CancelReason(IntEnum):
    """Why the task of an attempt was cancelled. Of two reasons, the higher one counts."""

    NODE_STOPS = 1
    REQUESTED = 2
    DETACHED = 3  # it continues without this node, and a later attempt reattaches it
    MAY_BE_LOST = 4  # other nodes may have taken this node for dead, and decided the run


class RunningAttempt(msgspec.Struct, eq=False, gc=False):
    """An attempt in progress.

    Not seen by the garbage collector, which would look more often the more runs start: the table of
    running attempts has it until the task ends, and it is part of no cycle after that.
    """

    attempt: Attempt
    task: asyncio.Task[None]
    reason: CancelReason | None = None  # None: its task was not cancelled

    @property
    def has_begun(self) -> bool:
        """Whether its task has taken its first step."""
        return has_begun(self.task)

    def cancel(self, reason: CancelReason) -> None:
        """Cancel its task."""
        if self.reason is None or self.reason < reason:
            self.reason = reason
        self.task.cancel()


class RunningAttempts:
    """Launches attempts, keeps them until they have ended, and cancels them."""

    def __init__(
        self,
        clock: Clock,
        node: Node,
        lease: Lease,
        launchers: Launchers,
        *,
        slots: Slots,
        recorder: OutcomeRecorder,
    ) -> None:
        self._clock, self._node, self._lease, self._launchers = clock, node, lease, launchers
        self._slots, self._recorder = slots, recorder
        self._running: dict[tuple[int, int], RunningAttempt] = {}  # by run id and fence
        self._is_ending = False

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningAttempt]:
        return iter(self._running.values())

    @property
    def given_up(self) -> frozenset[int]:
        """The runs that are being detached, or ended as the node may have been taken for dead."""
        lost = (CancelReason.DETACHED, CancelReason.MAY_BE_LOST)
        return frozenset(each.attempt.run_id for each in self if each.reason in lost)

    def launch(self, announced: Sequence[Attempt], sent: float) -> None:
        """Launch announced attempts, or hand them back if it is too late by then.

        `sent` is when the call that claimed them was sent.
        """
        if not announced:
            return
        self._recorder.mark_busy()
        self._slots.take(len(announced))
        latest = sent + self._node.lease / 1000 * 2 / 3
        create_task = asyncio.get_running_loop().create_task
        for attempt in announced:
            task = create_task(self._run(attempt, latest), name=attempt.schedule_id)
            if not task.done():  # an eager task may have ended already
                self._running[attempt.run_id, attempt.fence] = RunningAttempt(attempt, task)

    def end(self, reason: CancelReason) -> None:
        """End all attempts that have begun."""
        for each in list(self):
            if each.has_begun:
                each.cancel(reason)

    def launch_nothing_more(self) -> None:
        """Have attempts that have not begun handed back."""
        self._is_ending = True

    def detach(self) -> None:
        """Detach attempts that can continue without this node: they are recorded as lost.

        Those whose cancellation was requested, or which this node has given up, are ended instead.
        """
        for each in list(self):
            launcher = self._launchers[each.attempt.target.kind]
            if (
                each.reason in (CancelReason.REQUESTED, CancelReason.MAY_BE_LOST)
                or not each.has_begun
                or not isinstance(launcher, ReattachingLauncher)
            ):
                continue
            if launcher.leave([each.attempt.run_id]):
                each.cancel(CancelReason.DETACHED)

    def cancel(self, which: Collection[tuple[int, int]]) -> bool:
        """Cancel attempts by their run ids and fences, as requested, each once.

        Returns whether all of them run here: others are about to begin or to be recorded.
        """
        found: set[tuple[int, int]] = set()
        for held, each in list(self._running.items()):
            if held in which and each.has_begun:
                found.add(held)
                if each.reason is None or each.reason < CancelReason.REQUESTED:
                    each.cancel(CancelReason.REQUESTED)
        return found.issuperset(which)

    async def _run(self, attempt: Attempt, latest: float) -> None:
        """Run one attempt to its outcome, or hand it back if it is too late."""
        held = attempt.run_id, attempt.fence
        is_late = self._clock.monotonic() > latest or not self._lease.holds
        if is_late or self._is_ending:
            self._running.pop(held, None)
            self._recorder.hand_back([attempt], late=is_late)
            self._slots.release()
            return
        tail = ""
        outcome: Outcome
        try:
            outcome, tail = await self._launchers[attempt.target.kind].launch(attempt)
        except BaseException as broken:  # noqa: BLE001 - it is an outcome
            outcome = self._outcome_of(held, broken)
        self._running.pop(held, None)
        self._recorder.add(Finished(attempt, outcome, tail))
        self._slots.release()

    def _outcome_of(self, held: tuple[int, int], broken: BaseException) -> Outcome:
        """Return the outcome of an attempt whose launch was cancelled or has raised."""
        task = asyncio.current_task()
        if not isinstance(broken, asyncio.CancelledError) or task is None or not task.cancelling():
            log.error("run %d: its launcher failed", held[0], exc_info=broken)
            return Failed(exception_text(broken), "launch_failed")
        running = self._running.get(held)
        match running.reason if running is not None else None:
            case CancelReason.DETACHED | CancelReason.MAY_BE_LOST:
                return Lost()  # another node may have decided so already
            case CancelReason.REQUESTED:
                return Canceled("ended because cancellation was requested")
            case CancelReason.NODE_STOPS | None:
                return Canceled("ended because the scheduler was stopped")


def has_begun(task: asyncio.Task[None]) -> bool:
    """Return whether a task has taken its first step."""
    return getcoroutinestate(task.get_coro()) != CORO_CREATED  # type: ignore[arg-type]
