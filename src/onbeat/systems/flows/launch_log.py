"""The book of launches: which of them may be under way, and under which id.

A launch is entered before the panel is asked, and its id as soon as that is told; it is struck when
what became of it is recorded. So after a crash it is known of each whether it was surely not made,
surely made, or in doubt: the first is made, the second is followed, the last is told as lost.
"""

from collections.abc import Mapping

import msgspec

from onbeat.core.runs.run import Accepted
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.ports.store import Attempt, Store

MADE = "flow-launch"


class FlowLaunch(msgspec.Struct, frozen=True):
    """A launch that was begun."""

    url: str  # of the panel
    begun_at: int  # milliseconds
    fid: str = ""  # as the panel calls it; empty: it has not said so
    attempt: int = 0  # which of the run's has begun it


class LaunchLog:
    """What is known of launches."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Return the time, in milliseconds."""
        return self._store.clock.now()

    async def made(self, attempt: Attempt) -> FlowLaunch | None:
        """Return what was begun, and nobody has seen the end of.

        What an earlier attempt has begun is over, unless this one is told that it may run; what
        this attempt has begun, or a later one, is not.
        """
        row = await self._store.kept(MADE, str(attempt.run_id))
        if row is None or not isinstance(row.body, Mapping):
            return None
        try:
            found = msgspec.convert(row.body, FlowLaunch)
        except msgspec.ValidationError:
            found = FlowLaunch("", 0)  # nobody can say what this was: in doubt
        detached = attempt.may_run or attempt.is_to_end or found.attempt >= attempt.attempt
        return found if detached else None

    async def enter(self, attempt: Attempt, made: FlowLaunch) -> None:
        """Remember a launch, and its id as what the run is called elsewhere."""
        user = attempt.user_id
        await self._store.keep(MADE, str(attempt.run_id), msgspec.to_builtins(made), user_id=user)
        if made.fid:
            try:
                await self._store.report(attempt.run_id, Accepted(), external_id=made.fid)
            except (NoSuchRun, RunIsHeld, RunIsOver):
                return  # it was defined before flows had names, or is over

    async def strike(self, run_id: int) -> None:
        """Forget a launch that was not made after all, or whose end is recorded."""
        await self._store.forget(MADE, str(run_id))
