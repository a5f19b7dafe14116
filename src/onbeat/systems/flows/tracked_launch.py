"""`TrackedLaunch`: the launch of one attempt, kept in step with the launch log.

- A launch is logged before it is requested (`begin`), unless another node has the run by now. Until
  its outcome is recorded it stays in the log, as a node may die before that.
- Its id is logged when the panel returns it (`name`). If the store fails then, the flow is followed
  nevertheless, and the id is logged later (`save_again`).
- A launch that was certainly not made is deleted (`discard`).
"""

import asyncio
import logging
from contextlib import suppress

from msgspec.structs import replace

from onbeat.errors import OnbeatError, StoreFailed
from onbeat.ports.store import Attempt
from onbeat.systems.flows.launch_log import FlowLaunch, LaunchLog

log = logging.getLogger("onbeat.timer")

STORE_PATIENCE = 15.0  # seconds for which reading the launch log is retried
FIRST_WAIT, LONGEST_WAIT, SLOWER = 0.1, 2.0, 1.5  # between two reads (s), and growth factor
LOST = "a node stopped responding while launching it: it may be running, and is not launched again"


class TrackedLaunch:
    """The launch of one attempt on a panel."""

    def __init__(self, attempt: Attempt, launch_log: LaunchLog, url: str, key: str) -> None:
        """`url` is the panel's, `key` the key of the flow."""
        self._attempt, self._launch_log, self._url, self._key = attempt, launch_log, url, key
        self.launch: FlowLaunch | None = None  # None: nothing was launched
        self._is_unsaved = False

    async def load(self) -> None:
        """Read the launch log, retrying for a while if the store fails."""
        loop, wait = asyncio.get_running_loop(), FIRST_WAIT
        until = loop.time() + STORE_PATIENCE
        while True:
            try:
                self.launch = await self._launch_log.launch_of(self._attempt)
            except StoreFailed:
                if loop.time() + wait > until:
                    raise
            else:
                return
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LONGEST_WAIT)

    def why_lost(self) -> str | None:
        """Return why the launch cannot be followed, or None."""
        if self.launch is None:
            return None
        if not self.launch.fid:
            return LOST
        if self.launch.url != self._url:
            problem = f"the run was launched as {self.launch.fid} on {self.launch.url}"
            return f"{problem}, but flows_panel is {self._url} now: it may be running there"
        return None

    async def begin(self) -> bool:
        """Log that a launch is about to be requested; return False if it must not be.

        A node that was frozen may find no launch because another node has recorded the outcome and
        deleted the entry. The lease does not prevent this if the clock of the node was frozen too,
        as on a paused machine; the fence of the run does. Once the entry is saved, other nodes
        launch nothing, so a fence that still holds then proves that no other node has launched the
        flow. The fence is also checked before, to keep the entry of another node.
        """
        if not await self._launch_log.is_current(self._attempt):
            return False
        launch = FlowLaunch(self._url, self._launch_log.now(), attempt=self._attempt.attempt)
        await self._launch_log.save(self._attempt, launch)
        if not await self._launch_log.is_current(self._attempt):
            return False  # the entry stays: another node may have launched the flow under it
        self.launch = launch
        return True

    async def name(self, fid: str) -> None:
        """Log the id that the panel returned."""
        assert self.launch is not None, "it was begun"
        self.launch = replace(self.launch, fid=fid)
        await self._save()

    async def save_again(self) -> None:
        """Log the id if the store did not take it."""
        if self._is_unsaved:
            await self._save()

    async def discard(self) -> None:
        """Delete a launch that was certainly not made."""
        self.launch = None
        with suppress(OnbeatError):  # later attempts ignore the launch of an earlier one
            await self._launch_log.delete(self._attempt.run_id)

    def remaining(self, limit: int) -> int:
        """Return how much of a limit is left since the launch, in milliseconds."""
        assert self.launch is not None, "it was launched"
        return max(limit - max(self._launch_log.now() - self.launch.begun_at, 0), 0)

    async def _save(self) -> None:
        assert self.launch is not None, "it was launched"
        try:
            await self._launch_log.save(self._attempt, self.launch)
            self._is_unsaved = False
        except OnbeatError as broken:
            if not self._is_unsaved:
                log.warning(
                    "flow %s: the id of its launch could not be stored yet: %s", self._key, broken
                )
            self._is_unsaved = True
