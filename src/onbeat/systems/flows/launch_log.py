"""The launch log: launches of flows that may be in progress, and their ids.

A launch is logged before the panel is requested, its id when the panel returns it, and the entry is
deleted when the outcome is recorded. So after a crash a launch is known to be not made, made, or in
doubt: the first is made, the second is followed, the last is recorded as lost.
"""

from collections.abc import Mapping

import msgspec

from onbeat.core.runs.run import Accepted
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.ports.store import Attempt, Store

MADE = "flow-launch"  # document kind


class FlowLaunch(msgspec.Struct, frozen=True):
    """A launch that was begun."""

    url: str  # of the panel
    begun_at: int  # milliseconds
    fid: str = ""  # the panel's id; empty: not known
    attempt: int = 0  # the attempt of the run that began it


class LaunchLog:
    """Stores and finds launches."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Return the time, in milliseconds."""
        return self._store.clock.now()

    async def launch_of(self, attempt: Attempt) -> FlowLaunch | None:
        """Return a launch that was begun and whose outcome is unknown.

        The launch of an earlier attempt has ended, unless this attempt may be running already.
        """
        row = await self._store.kept(MADE, str(attempt.run_id))
        if row is None or not isinstance(row.body, Mapping):
            return None
        try:
            found = msgspec.convert(row.body, FlowLaunch)
        except msgspec.ValidationError:
            found = FlowLaunch("", 0)  # unreadable: in doubt
        detached = (
            attempt.may_run or attempt.is_cancel_requested or found.attempt >= attempt.attempt
        )
        return found if detached else None

    async def is_current(self, attempt: Attempt) -> bool:
        """Return whether no other node has taken over the run of an attempt, or decided it.

        A run that is not in the store was never claimed: its attempt is the caller's own.
        """
        run = await self._store.run(attempt.run_id)
        return run is None or run.fence == attempt.fence

    async def save(self, attempt: Attempt, launch: FlowLaunch) -> None:
        """Store a launch, and report its id as the external id of the run."""
        user = attempt.user_id
        await self._store.keep(MADE, str(attempt.run_id), msgspec.to_builtins(launch), user_id=user)
        if launch.fid:
            try:
                await self._store.report(attempt.run_id, Accepted(), external_id=launch.fid)
            except (NoSuchRun, RunIsHeld, RunIsOver):
                return  # it has ended, or cannot have an external id

    async def delete(self, run_id: int) -> None:
        """Delete a launch that was not made, or whose outcome is recorded."""
        await self._store.forget(MADE, str(run_id))
