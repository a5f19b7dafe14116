"""`FlowFollower`: polls the status of a flow until it has ended.

A panel that does not answer is polled again: the flow may still be running. So is one whose answer
cannot be read, but for a limited time: a proxy in front of it may be broken for a while, whereas a
status that is too long will never be read.
"""

import asyncio
import logging
from urllib.parse import quote

from onbeat.core.runs.run import Failed, Outcome
from onbeat.systems.flows.answers import (
    FlowStatus,
    Unavailable,
    UnknownFlow,
    Unreadable,
    read_status,
)
from onbeat.systems.flows.attempt_log import AttemptLog
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.flows.tracked_launch import TrackedLaunch

log = logging.getLogger("onbeat.timer")

FIRST_LOOK, LAST_LOOK, SLOWER = 0.1, 2.0, 1.5  # poll interval: first, last (s), growth factor
UNKNOWN_FOR = 15.0  # seconds for which a panel may not know a new flow yet
UNREADABLE_FOR = 600.0  # seconds for which every answer about a flow may be unreadable
AWAY, UNREADABLE = "the panel does not answer", "the panel's answer cannot be read"
IN_DOUBT = "it may be running, and is not launched again"


class FlowFollower:
    """Follows the launch of one attempt."""

    def __init__(self, panel: Panel, tracked: TrackedLaunch, output: AttemptLog) -> None:
        self._panel, self._tracked, self._output = panel, tracked, output
        self._logged: set[str] = set()  # problems since the last status
        self._unreadable_since: float | None = None

    async def run(self, fid: str) -> Outcome:
        """Return the outcome of a flow when it has ended, or cannot be followed any longer."""
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
                self._log(AWAY, found.error)
                self._unreadable_since = None
                continue
            if isinstance(found, Unreadable):
                self._log(UNREADABLE, found.error)
                if self._is_unreadable_for_good(now()):
                    problem = f"the status of {fid} could not be read for {UNREADABLE_FOR:g} s"
                    return Failed(f"{problem}: {found.error}: {IN_DOUBT}", "lost", retryable=False)
                continue
            self._unreadable_since = None
            self._logged.clear()
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

    def _is_unreadable_for_good(self, now: float) -> bool:
        """Return whether the panel has sent nothing but unreadable answers for too long."""
        if self._unreadable_since is None:
            self._unreadable_since = now
        return now - self._unreadable_since >= UNREADABLE_FOR

    async def _look(
        self, fid: str, *, is_new: bool
    ) -> FlowStatus | UnknownFlow | Unavailable | Unreadable:
        # With `extended`, a panel waits for minutes for an output that is not written yet, even
        # for a deleted one. So it is used at the beginning only.
        path = f"/outputs/status/{quote(fid, safe='')}"
        try:
            return read_status(
                await self._panel.ask("GET", f"{path}?extended=true" if is_new else path)
            )
        except (PanelAway, PanelRefuses) as away:
            return Unavailable(str(away))

    def _log(self, problem: str, error: str) -> None:
        """Log why there is no status, each problem once until there is one."""
        if problem not in self._logged:
            log.error("flow %s: %s, will be retried: %s", self._output.key, problem, error)
            self._output.add(f"{problem}: {error}")
        self._logged.add(problem)
