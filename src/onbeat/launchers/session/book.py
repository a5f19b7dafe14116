"""The book of sessions: which one a schedule has, and all that were made and are not gone yet.

It is kept in the store, so that every node knows it and a crash forgets nothing of it.
"""

import msgspec

from onbeat.ports import Store

OF_SCHEDULE = "session"  # by schedule: the session that its runs share
MADE = "session-made"  # by session: all that were made


class Made(msgspec.Struct, frozen=True):
    """A session that was made, or used, and how to be rid of it."""

    schedule_id: str
    url: str  # of its server
    public_only: bool
    used_at: int  # milliseconds: the last time
    is_ephemeral: bool = False  # it is for one run only
    run_id: int | None = None  # whose end the server reports


class Book:
    """What is known of sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Return the time, in milliseconds."""
        return self._store.clock.now()

    async def session_of(self, schedule_id: str) -> str | None:
        """Return the session that the runs of a schedule share."""
        row = await self._store.kept(OF_SCHEDULE, schedule_id)
        found = (
            row.body.get("sessionId") if row is not None and isinstance(row.body, dict) else None
        )
        return found if isinstance(found, str) else None

    async def enter(self, session_id: str, made: Made) -> None:
        """Remember a session, and that it is its schedule's own unless it is for one run."""
        await self._store.keep(MADE, session_id, msgspec.to_builtins(made))
        if not made.is_ephemeral:
            await self._store.keep(OF_SCHEDULE, made.schedule_id, {"sessionId": session_id})

    async def strike(self, session_id: str, schedule_id: str) -> None:
        """Forget a session that is no more."""
        await self._store.forget(MADE, session_id)
        if await self.session_of(schedule_id) == session_id:
            await self._store.forget(OF_SCHEDULE, schedule_id)

    async def all(self) -> dict[str, Made]:
        """Return all sessions by id, the least recently used first."""
        rows = await self._store.kept_all(MADE)
        found = {row.name: msgspec.convert(row.body, Made) for row in rows}
        return dict(sorted(found.items(), key=lambda item: item[1].used_at))

    async def is_over(self, run_id: int) -> bool:
        """Return whether a run has ended."""
        run = await self._store.run(run_id)
        return run is None or run.finished_at is not None
