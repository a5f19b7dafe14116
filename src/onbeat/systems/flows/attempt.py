"""`FlowAttempt`: one attempt to run a flow, from its launch or reattachment to its outcome."""

import asyncio
import logging

from onbeat.core.runs.run import Canceled, Failed, Lost, Outcome
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import OnbeatError
from onbeat.ports.store import Attempt
from onbeat.systems.flows.attempt_log import AttemptLog
from onbeat.systems.flows.cancellations import Cancellations
from onbeat.systems.flows.follow import FlowFollower
from onbeat.systems.flows.launch_log import LaunchLog
from onbeat.systems.flows.panel import Panel
from onbeat.systems.flows.release import FlowRelease
from onbeat.systems.flows.start import FlowStart
from onbeat.systems.flows.target import Flow
from onbeat.systems.flows.tracked_launch import TrackedLaunch

log = logging.getLogger("onbeat.timer")

CANCELED = "canceled as requested"
BROKEN = "it may be running, and is not launched again"


class FlowAttempt:
    """Launches a flow or reattaches it, follows it until it ends, or cancels it."""

    def __init__(
        self,
        attempt: Attempt,
        flow: Flow,
        panel: Panel,
        launch_log: LaunchLog,
        cancellations: Cancellations,
        *,
        interval: int,
    ) -> None:
        self._attempt = attempt
        self.output = AttemptLog(flow.key or attempt.schedule_id, interval=interval)
        self._tracked = TrackedLaunch(attempt, launch_log, panel.url, self.output.key)
        self._start = FlowStart(attempt, flow, panel, self._tracked, self.output)
        self._follower = FlowFollower(panel, self._tracked, self.output)
        self.release = FlowRelease(attempt, self._tracked, cancellations, self.output)

    async def run(self) -> Outcome:
        """Launch the flow or reattach it, and follow it until it ends; or cancel it.

        The launch stays in the log until its outcome is recorded, as a node may die before that.
        """
        try:
            await self._tracked.load()
        except asyncio.CancelledError:
            await finish_despite_cancel(self.release.cancel_unread())
            raise
        except OnbeatError as broken:
            if self._attempt.may_run or self._attempt.is_cancel_requested:
                return Lost()  # it may be running: to be reattached
            return self.output.busy(str(broken), what="the store")
        try:
            return await self._outcome()
        except asyncio.CancelledError:
            await self.release.cancel_unless_left()
            raise
        except Exception as broken:
            if self._tracked.launch is None:
                raise
            log.exception("flow %s: following its launch on the panel crashed", self.output.key)
            return Failed(f"{type(broken).__name__}: {broken}: {BROKEN}", "lost", retryable=False)

    async def _outcome(self) -> Outcome:
        is_to_cancel = self._attempt.is_cancel_requested
        if self._tracked.launch is None:
            if is_to_cancel:
                return Canceled(CANCELED)
            refused = await self._start.run()
            if refused is not None:
                return refused
        elif (why := self._tracked.why_lost()) is not None:
            return Failed(why, "lost", retryable=False)
        else:
            self.output.add(f"reattached: {self._tracked.launch.fid}")
        if is_to_cancel:
            await self.release.cancel()
            return Canceled(CANCELED)
        return await self._follow()

    async def _follow(self) -> Outcome:
        """Follow the flow until it has ended, or its timeout has passed."""
        assert self._tracked.launch is not None, "it was launched"
        fid, limit = self._tracked.launch.fid, self._attempt.timeout
        if limit is None:
            return await self._follower.run(fid)
        try:
            async with asyncio.timeout(self._tracked.remaining(limit) / 1000):
                return await self._follower.run(fid)
        except TimeoutError:
            await self.release.cancel()
            return Failed(f"still running after {limit / 1000:g} s", "timeout", retryable=False)
