"""`FlowFollower`: polls the status of a flow until it has ended.

A panel that does not answer is polled again: the flow may still be running.
"""

import asyncio
import logging
from urllib.parse import quote

from onbeat.core.runs.run import Failed, Outcome
from onbeat.systems.flows.answers import FlowStatus, Unavailable, UnknownFlow, read_status
from onbeat.systems.flows.attempt_log import AttemptLog
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.flows.tracked_launch import TrackedLaunch

log = logging.getLogger("onbeat.timer")

FIRST_LOOK, LAST_LOOK, SLOWER = 0.1, 2.0, 1.5  # poll interval: first, last (s), growth factor
UNKNOWN_FOR = 15.0  # seconds for which a panel may not know a new flow yet


class FlowFollower:
    """Follows the launch of one attempt."""

    def __init__(self, panel: Panel, tracked: TrackedLaunch, output: AttemptLog) -> None:
        self._panel, self._tracked, self._output = panel, tracked, output
        self._is_unavailable = False

    async def run(self, fid: str) -> Outcome:
        """Return the outcome of a flow when it has ended, or is unknown to the panel."""
        wait, seen = FIRST_LOOK, ""
        now = asyncio.get_running_loop().time
        unknown_until = now() + UNKNOWN_FOR
        while True:
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LAST_LOOK)
            await self._tracked.save_again()
            is_new = not seen and now() < unknown_until
            found = await self._look(fid, is_new=is_new)
            if isinstance(found, Unavailable):
                self._log_unavailable(found.error)
                continue
            self._is_unavailable = False
            if isinstance(found, UnknownFlow):
                if is_new:
                    continue  # its output is not written yet
                problem = f"the panel does not know {fid} any more: {found.error}"
                return Failed(problem, retryable=False)
            if found.status != seen:
                seen = found.status
                self._output.add(f"status: {seen}")
            if found.outcome is not None:
                return found.outcome

    async def _look(self, fid: str, *, is_new: bool) -> FlowStatus | UnknownFlow | Unavailable:
        # With `extended`, a panel waits for minutes for an output that is not written yet, even
        # for a deleted one. So it is used at the beginning only.
        path = f"/outputs/status/{quote(fid, safe='')}"
        try:
            return read_status(
                await self._panel.ask("GET", f"{path}?extended=true" if is_new else path)
            )
        except (PanelAway, PanelRefuses) as away:
            return Unavailable(str(away))

    def _log_unavailable(self, error: str) -> None:
        """Log that the panel does not answer, once until it answers again."""
        if not self._is_unavailable:
            log.error(
                "flow %s: the panel does not answer, will be retried: %s", self._output.key, error
            )
            self._output.add(f"the panel does not answer: {error}")
        self._is_unavailable = True
