"""The book of sessions: which one a schedule has, and all that were made and are not gone yet.

It is kept in the store, so that every node knows it and a crash forgets nothing of it. A session is
of one server: the same id at another one is somebody else's.
"""

from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.run import Accepted, Status
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.ports.store import Attempt, Store

OF_SCHEDULE = "session"  # by schedule: the session that its runs share
MADE = "session-made"  # all that were made
CUT_OFF = ("timeout", "canceled", "superseded")  # reasons of runs that the server did not end
SENT = "session-sent"  # by run: the prompts that were sent, until the run has ended


class ChatSession(msgspec.Struct, frozen=True):
    """A session that was made, and how to be rid of it."""

    schedule_id: str
    since: int | None  # when that schedule was made: a later one of the same id is another
    url: str  # of its server
    public_only: bool
    used_at: int  # milliseconds: the last time
    run_id: int  # which run used it then
    is_ephemeral: bool = False  # it is for that run only
    reports: bool = False  # the server reports the end of that run
    session_id: str = ""
    is_idle: bool = False  # the server has said so, after that run

    @property
    def name(self) -> str:
        """What it is called in the book."""
        return sha256(f"{self.url}\n{self.session_id}".encode()).hexdigest()


class SentPrompt(msgspec.Struct, frozen=True):
    """A prompt that was sent, and to which session."""

    made: ChatSession
    attempt: int  # of the run
    sent_at: int  # milliseconds
    is_taken: bool = False  # the server has said that it has it; else it is in doubt


class SessionRegistry:
    """What is known of sessions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Return the time, in milliseconds."""
        return self._store.clock.now()

    def monotonic(self) -> float:
        """Return seconds, for measuring what has passed."""
        return self._store.clock.monotonic()

    async def since(self, schedule_id: str) -> int | None:
        """Return when a schedule was made, if it is there."""
        row = await self._store.schedule(schedule_id)
        return None if row is None else row.created_at

    async def session_of(self, made: ChatSession) -> str | None:
        """Return the session that the runs of a schedule share, on the server that it has now."""
        row = await self._store.kept(OF_SCHEDULE, made.schedule_id)
        body = row.body if row is not None and isinstance(row.body, dict) else {}
        is_its_own = body.get("since") == made.since and body.get("url") == made.url
        found = body.get("sessionId") if is_its_own else None
        return found if isinstance(found, str) else None

    async def enter(self, made: ChatSession) -> None:
        """Remember a session, and that it is its schedule's own unless it is for one run."""
        await self._store.keep(MADE, made.name, msgspec.to_builtins(made))
        if not made.is_ephemeral:
            own = {"sessionId": made.session_id, "url": made.url, "since": made.since}
            await self._store.keep(OF_SCHEDULE, made.schedule_id, own)

    async def touch(self, made: ChatSession) -> None:
        """Remember that a session is used, if it is one that was made here."""
        row = await self._store.kept(MADE, made.name)
        known = None if row is None else _made(row.body)
        if known is not None:
            used = replace(
                known,
                used_at=made.used_at,
                run_id=made.run_id,
                reports=made.reports,
                is_idle=made.is_idle,
            )
            await self._store.keep(MADE, made.name, msgspec.to_builtins(used))

    async def strike(self, made: ChatSession) -> None:
        """Forget a session that is no more."""
        await self._store.forget(MADE, made.name)
        if await self.session_of(made) == made.session_id:
            await self._store.forget(OF_SCHEDULE, made.schedule_id)

    async def all(self) -> list[ChatSession]:
        """Return all sessions, the least recently used first."""
        rows = await self._store.kept_all(MADE)
        found = [made for row in rows if (made := _made(row.body)) is not None]
        return sorted(found, key=lambda made: (made.used_at, made.run_id))

    async def is_in_use(self, made: ChatSession) -> bool:
        """Return whether the run that used a session last is still at it."""
        run = await self._store.run(made.run_id)
        if run is None or run.finished_at is not None:
            return False
        return run.status != Status.ENQUEUED or run.reason == "lost"  # it is to be found again

    # -- prompts

    async def send(self, attempt: Attempt, made: ChatSession) -> SentPrompt:
        """Remember that a prompt is about to be sent."""
        sent = SentPrompt(made, attempt.attempt, self.now())
        await self._store.keep(SENT, str(attempt.run_id), msgspec.to_builtins(sent))
        return sent

    async def take(self, attempt: Attempt, sent: SentPrompt) -> None:
        """Remember that the server has a prompt, and name the run after the session."""
        taken = replace(sent, is_taken=True)
        await self._store.keep(SENT, str(attempt.run_id), msgspec.to_builtins(taken))
        with suppress(NoSuchRun, RunIsHeld, RunIsOver):
            named = sent.made.session_id
            await self._store.report(attempt.run_id, Accepted(), external_id=named)

    async def sent(self, attempt: Attempt) -> SentPrompt | None:
        """Return what was sent for a run whose node fell silent; None: nothing was."""
        row = await self._store.kept(SENT, str(attempt.run_id))
        if row is None:
            return None
        try:
            return msgspec.convert(row.body, SentPrompt)
        except msgspec.ValidationError:
            unknown = ChatSession(
                attempt.schedule_id, None, "", public_only=True, used_at=0, run_id=0
            )
            return SentPrompt(unknown, attempt=0, sent_at=0)

    async def unsend(self, attempt: Attempt) -> None:
        """Forget a prompt that the server did not take."""
        await self._store.forget(SENT, str(attempt.run_id))

    async def ended_sent(self) -> list[tuple[str, SentPrompt | None]]:
        """Return the prompts of runs that have ended, by name; those to be stopped come along.

        Such a run was reported by its server until it ran out of time, or was canceled. A session
        that has a later prompt by now is not stopped.
        """
        ended: list[tuple[str, SentPrompt | None]] = []
        working: set[str] = set()
        for row in await self._store.kept_all(SENT):
            run = await self._store.run(int(row.name)) if row.name.isdecimal() else None
            try:
                sent = msgspec.convert(row.body, SentPrompt)
            except msgspec.ValidationError:
                sent = None
            if run is not None and run.finished_at is None:
                working |= set() if sent is None else {sent.made.name}
                continue
            is_cut_off = run is not None and run.reason in CUT_OFF
            is_to_stop = is_cut_off and sent is not None and sent.is_taken and sent.made.reports
            ended.append((row.name, sent if is_to_stop else None))
        return [
            (name, None if sent is None or sent.made.name in working else sent)
            for name, sent in ended
        ]

    async def forget_sent(self, name: str) -> None:
        """Forget a prompt whose run has ended."""
        await self._store.forget(SENT, name)


def _made(body: object) -> ChatSession | None:
    """Return a session of the book; one that is not written as it is now is nobody's to delete."""
    try:
        return msgspec.convert(body, ChatSession)
    except msgspec.ValidationError:
        return None
