"""`Starter`: the way of a run from its claim to its launch.

Rules:

- A run is announced before it is launched: a node that dies leaves runs that surely did not start,
  which are free again, and announced ones, which are lost.
- The condition of a run is checked before it is announced, in a task that holds a slot. The run is
  then announced and launched, skipped, or failed.
- A claimed run that is not announced is handed back: else it would stay claimed by this node.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from onbeat.core.decide.outcomes import condition_holds
from onbeat.core.runs.run import Failed, Outcome
from onbeat.core.target import Target
from onbeat.engine.attempts import RunningAttempts, has_begun
from onbeat.engine.recorder import OutcomeRecorder, exception_text
from onbeat.engine.slots import Slots
from onbeat.engine.unknown_runs import UnknownRuns
from onbeat.errors import StoreFailed
from onbeat.ports.clock import Clock
from onbeat.ports.launcher import Launchers
from onbeat.ports.store import Attempt, Finished, Node, Store

CONDITION_TIMEOUT = 60_000  # milliseconds

log = logging.getLogger("onbeat.engine")


class Starter:
    """Checks the conditions of claimed runs, announces them, and has them launched."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        node: Node,
        launchers: Launchers,
        *,
        slots: Slots,
        recorder: OutcomeRecorder,
        running: RunningAttempts,
        unknown: UnknownRuns,
    ) -> None:
        self._store, self._clock, self._node, self._launchers = store, clock, node, launchers
        self._slots, self._recorder, self._running = slots, recorder, running
        self._unknown = unknown
        self._checking: dict[tuple[int, int], tuple[asyncio.Task[None], Attempt]] = {}

    def checks(self) -> Iterator[tuple[asyncio.Task[None], Attempt]]:
        """Yield the checks in progress: their tasks, and the attempts that wait for them."""
        yield from self._checking.values()

    async def start(self, claimed: Sequence[Attempt], sent: float) -> int:
        """Start claimed runs; return how many this node still holds, or checks."""
        for attempt in claimed:
            if attempt.when is not None:
                self._check_condition(attempt, attempt.when)
        claimed = [attempt for attempt in claimed if attempt.when is None]
        return len(await self._announce(claimed, sent)) if claimed else len(self._checking)

    def cancel_checks(self) -> None:
        """Cancel all checks: their runs are handed back."""
        for task, attempt in list(self._checking.values()):
            is_begun = has_begun(task)
            task.cancel()
            if not is_begun:  # it ends without a step of its own
                self._recorder.hand_back([attempt])
                self._end_check(attempt)

    def _end_check(self, attempt: Attempt) -> None:
        self._checking.pop((attempt.run_id, attempt.fence), None)
        self._slots.release()
        self._recorder.wake()

    async def _announce(self, claimed: Sequence[Attempt], sent: float) -> list[Attempt]:
        """Announce claimed runs and launch them; return those still held by this node."""
        announced = await self._announced(claimed)
        self._running.launch(announced, sent)
        return announced

    async def _announced(self, claimed: Sequence[Attempt]) -> list[Attempt]:
        """Announce claimed runs; hand back those that were refused, return the others."""
        try:
            announced = await self._store.announce(self._node, claimed)
        except StoreFailed:
            self._recorder.hand_back(claimed)
            raise
        known = {attempt.run_id for attempt in announced}  # the others were paused meanwhile
        self._recorder.hand_back([attempt for attempt in claimed if attempt.run_id not in known])
        return announced

    def _check_condition(self, attempt: Attempt, condition: Target) -> None:
        """Start checking the condition of a claimed run, before it is announced."""
        self._recorder.mark_busy()
        self._slots.take()
        task = asyncio.get_running_loop().create_task(self._launch_if(attempt, condition))
        if not task.done():
            self._checking[attempt.run_id, attempt.fence] = task, attempt

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
                skip = partial(self._store.skip_condition, [attempt])
                await self._recorder.until_answered(skip)
            elif answer:
                await self._announce([attempt], sent)
            else:
                await self._fail_unchecked(attempt, outcome, tail)
        except StoreFailed as broken:
            self._unknown.note(broken)
            log.warning("run %d: recording its start failed: %s", attempt.run_id, broken)
        except BaseException as broken:
            self._recorder.hand_back([attempt])
            if not isinstance(broken, asyncio.CancelledError):
                log.exception("run %d: the check of its condition (when) crashed", attempt.run_id)
        finally:
            self._end_check(attempt)

    async def _outcome_of(self, check: Attempt) -> tuple[Outcome, str]:
        """Launch a condition; an exception of its launcher is a failed outcome."""
        try:
            return await self._launchers[check.target.kind].launch(check)
        except Exception as broken:
            log.exception("run %d: the check of its condition (when) crashed", check.run_id)
            return Failed(exception_text(broken), "launch_failed"), ""

    async def _fail_unchecked(self, attempt: Attempt, outcome: Outcome, tail: str) -> None:
        """Fail an attempt whose condition could not be checked."""
        error = getattr(outcome, "error", str(outcome))
        if await self._announced([attempt]):
            failed = Failed(f"its condition could not be checked: {error}", "launch_failed")
            self._recorder.add(Finished(attempt, failed, tail))
