"""The registry of chat sessions: the session of each schedule, and all that were not yet deleted.

It is kept in the store, so that every node has it and it survives a crash. Session ids are unique
per server only.
"""

from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.phase import DETACHED, Status
from onbeat.core.runs.run import Accepted
from onbeat.errors import NoSuchRun, RunIsHeld, RunIsOver
from onbeat.ports.store import Attempt, Store

OF_SCHEDULE = "session"  # document kind: the session that the runs of a schedule share
MADE = "session-session"  # document kind: all sessions created here
CUT_OFF = ("timeout", "canceled", "superseded")  # reasons of runs that Onbeat ended
SENT = "session-sent"  # document kind: prompts sent by runs that have not ended


class ChatSession(msgspec.Struct, frozen=True):
    """A session created by Onbeat, with what is needed to delete it."""

    schedule_id: str
    since: int | None  # when the schedule was created, to recognize a recreated one
    url: str  # of its server
    public_only: bool
    used_at: int  # last use, in milliseconds
    run_id: int  # the run that used it last
    is_ephemeral: bool = False  # only for that run
    reports: bool = False  # the server reports the outcome of that run
    session_id: str = ""
    is_idle: bool = False  # the server reported so after that run

    @property
    def name(self) -> str:
        """Its key in the registry."""
        return sha256(f"{self.url}\n{self.session_id}".encode()).hexdigest()


class SentPrompt(msgspec.Struct, frozen=True):
    """A prompt that was sent, and the session it was sent to."""

    session: ChatSession = msgspec.field(name="made")
    attempt: int  # of the run
    sent_at: int  # milliseconds
    is_taken: bool = False  # the server confirmed it; otherwise it may not have arrived


class SessionRegistry:
    """Stores and finds sessions and sent prompts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> int:
        """Return the time, in milliseconds."""
        return self._store.clock.now()

    def monotonic(self) -> float:
        """Return seconds of a monotonic clock."""
        return self._store.clock.monotonic()

    async def since(self, schedule_id: str) -> int | None:
        """Return when a schedule was created; None: it does not exist."""
        row = await self._store.schedule(schedule_id)
        return None if row is None else row.created_at

    async def session_of(self, session: ChatSession) -> str | None:
        """Return the id of the session that the runs of a schedule share on this server, if any."""
        row = await self._store.kept(OF_SCHEDULE, session.schedule_id)
        body = row.body if row is not None and isinstance(row.body, dict) else {}
        is_its_own = body.get("since") == session.since and body.get("url") == session.url
        found = body.get("sessionId") if is_its_own else None
        return found if isinstance(found, str) else None

    async def add(self, session: ChatSession) -> None:
        """Add a session; unless it is for one run, it becomes the session of its schedule."""
        await self._store.keep(MADE, session.name, msgspec.to_builtins(session))
        if not session.is_ephemeral:
            own = {"sessionId": session.session_id, "url": session.url, "since": session.since}
            await self._store.keep(OF_SCHEDULE, session.schedule_id, own)

    async def record_use(self, session: ChatSession) -> None:
        """Record that a session is used, if it was created here."""
        row = await self._store.kept(MADE, session.name)
        stored = None if row is None else _read_session(row.body)
        if stored is not None:
            used = replace(
                stored,
                used_at=session.used_at,
                run_id=session.run_id,
                reports=session.reports,
                is_idle=session.is_idle,
            )
            await self._store.keep(MADE, session.name, msgspec.to_builtins(used))

    async def remove(self, session: ChatSession) -> None:
        """Remove a session that no longer exists."""
        await self._store.forget(MADE, session.name)
        if await self.session_of(session) == session.session_id:
            await self._store.forget(OF_SCHEDULE, session.schedule_id)

    async def all(self) -> list[ChatSession]:
        """Return all sessions, least recently used first."""
        rows = await self._store.list_documents(MADE)
        found = [session for row in rows if (session := _read_session(row.body)) is not None]
        return sorted(found, key=lambda session: (session.used_at, session.run_id))

    async def is_in_use(self, session: ChatSession) -> bool:
        """Return whether the run that used a session last is still in progress."""
        run = await self._store.run(session.run_id)
        if run is None or run.finished_at is not None:
            return False
        return run.status != Status.ENQUEUED or run.phase in DETACHED

    # -- prompts

    async def record_sending(self, attempt: Attempt, session: ChatSession) -> SentPrompt:
        """Record that a prompt is about to be sent."""
        sent = SentPrompt(session, attempt.attempt, self.now())
        await self._store.keep(SENT, str(attempt.run_id), msgspec.to_builtins(sent))
        return sent

    async def record_accepted(self, attempt: Attempt, sent: SentPrompt) -> None:
        """Record that the server has accepted a prompt, and set the run's external id."""
        taken = replace(sent, is_taken=True)
        await self._store.keep(SENT, str(attempt.run_id), msgspec.to_builtins(taken))
        with suppress(NoSuchRun, RunIsHeld, RunIsOver):
            session_id = sent.session.session_id
            await self._store.report(attempt.run_id, Accepted(), external_id=session_id)

    async def sent_prompt(self, attempt: Attempt) -> SentPrompt | None:
        """Return the prompt that was sent for a run, or None."""
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

    async def forget_prompt(self, attempt: Attempt) -> None:
        """Forget a prompt that the server did not accept."""
        await self._store.forget(SENT, str(attempt.run_id))

    async def ended_prompts(self) -> list[tuple[str, SentPrompt | None]]:
        """Return the names of the prompts whose runs have ended; with the prompt if it is to stop.

        To stop are the sessions of reporting servers whose runs were canceled or timed out, unless
        the session has a later prompt by now.
        """
        ended: list[tuple[str, SentPrompt | None]] = []
        busy: set[str] = set()
        for row in await self._store.list_documents(SENT):
            run = await self._store.run(int(row.name)) if row.name.isdecimal() else None
            try:
                sent = msgspec.convert(row.body, SentPrompt)
            except msgspec.ValidationError:
                sent = None
            if run is not None and run.finished_at is None:
                busy |= set() if sent is None else {sent.session.name}
                continue
            is_cut_off = run is not None and run.reason in CUT_OFF
            is_to_stop = is_cut_off and sent is not None and sent.is_taken and sent.session.reports
            ended.append((row.name, sent if is_to_stop else None))
        return [
            (name, None if sent is None or sent.session.name in busy else sent)
            for name, sent in ended
        ]

    async def forget_ended(self, name: str) -> None:
        """Forget a prompt whose run has ended."""
        await self._store.forget(SENT, name)


def _read_session(body: object) -> ChatSession | None:
    """Return a stored session; None: its format is unknown, and it is never deleted."""
    try:
        return msgspec.convert(body, ChatSession)
    except msgspec.ValidationError:
        return None
