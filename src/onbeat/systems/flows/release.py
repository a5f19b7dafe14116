"""`FlowRelease`: cancels a launch on the panel, or leaves it to the node that reattaches it.

A flow that is being canceled is not left, and a flow that was left is not canceled.
"""

import asyncio
import logging
from contextlib import suppress

from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import OnbeatError
from onbeat.ports.store import Attempt
from onbeat.systems.flows.attempt_log import AttemptLog
from onbeat.systems.flows.cancellations import LAST_WORDS, Cancellations
from onbeat.systems.flows.tracked_launch import TrackedLaunch

log = logging.getLogger("onbeat.timer")


class FlowRelease:
    """The end of an attempt whose flow has not ended."""

    def __init__(
        self,
        attempt: Attempt,
        tracked: TrackedLaunch,
        cancellations: Cancellations,
        output: AttemptLog,
    ) -> None:
        self._attempt, self._tracked = attempt, tracked
        self._cancellations, self._output = cancellations, output
        self._is_canceling = False
        self.is_left = False

    def leave(self) -> bool:
        """Leave the flow to another node, and return True; False if it is being canceled."""
        self.is_left = self.is_left or not self._is_canceling
        return not self._is_canceling

    async def cancel(self) -> None:
        """Cancel the flow, even if this task is cancelled meanwhile."""
        self._is_canceling = True
        await finish_despite_cancel(self._send())

    async def cancel_unless_left(self) -> None:
        """Cancel the flow as requested, or leave it to the node that reattaches it."""
        if self.is_left and not self._is_canceling:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self._tracked.save_again()
            return
        launch = self._tracked.launch
        if launch is not None and not self._is_canceling:
            if launch.fid:
                await self.cancel()
            else:
                self._output.add("the panel has not returned its id: it may be running")
        for line in self._output.lines:  # which a canceled run does not record
            log.info("flow %s: canceled run %d: %s", self._output.key, self._attempt.run_id, line)

    async def cancel_unread(self) -> None:
        """Cancel a launch that was not reattached, if cancellation was requested."""
        if self._attempt.may_run and not self.is_left:
            with suppress(OnbeatError):
                await self._tracked.load()
                if self._tracked.why_lost() is None:
                    await self.cancel_unless_left()

    async def _send(self) -> None:
        assert self._tracked.launch is not None, "it was launched"
        self._output.lines += await self._cancellations.cancel(
            self._attempt, self._tracked.launch, self._output.key
        )
