"""Prompts to chat sessions: `run: {session: {prompt: "Standup for {{ date }}"}}`.

A server makes sessions (`POST /api/sessions`) and takes messages (`.../ID/messages`). The session
of a schedule is in the book before the first message goes there: whatever breaks later, the next
attempt finds it, and there is no second one. What is made for one run is deleted after it, by
`tidy`: no run waits for that.

A run lasts until the server says that the session is idle again, so that a group of one place has
one session at work. A server that does not say so has done its work with its answer. A prompt is in
the book before it is sent: the node that reattaches a run knows whether the server has it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from urllib.parse import quote

from msgspec.structs import replace

from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Lost, Outcome, Succeeded
from onbeat.core.target import Target
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import InvalidSchedule, OnbeatError
from onbeat.ports.http import NO_HEADERS, Callback, HttpResponse, SendRequest
from onbeat.ports.store import Attempt, Store
from onbeat.systems.sessions.chat_server import ChatServer
from onbeat.systems.sessions.session_registry import ChatSession, SentPrompt, SessionRegistry
from onbeat.systems.sessions.target import Prompt, read_prompt, session_id_of

log = logging.getLogger("onbeat.sessions")

BUSY = "Session busy - agent currently running"
LONGEST_ANSWER = 5 * 60_000  # milliseconds for one request
FIRST_LOOK, LAST_LOOK, SLOWER = 0.05, 2.0, 1.5  # seconds between two looks, and how that grows
SILENT_FOR = 60.0  # seconds in which a server may not say whether a session works
LONGEST_WORK = 60 * 60_000  # milliseconds that a session is followed, if there is no timeout
STOPS_WITHIN, STOP_LOOKS = 5.0, 20  # seconds in which a stopped session is to be idle, and looks
LONGEST_USE = 30 * 60_000  # how long a session for one run is left to it, if nobody tells its end
TRIES = 2  # sessions of a schedule that a run is sent to, before it has a new one
OVERLOADED = (409, 429)  # a server that makes no session now
LOST = "its node fell silent while it was sent: it may have arrived, and is not sent again"
STOPPED, AT_WORK = "the session was stopped", "the session may still be working"
GIVEN_UP = 7 * 86_400_000  # one that could not be deleted for so long is forgotten


class SessionLauncher:
    """Sends one prompt for each attempt.

    `url` is the operator's server, for targets that name none, and `check_url` refuses an `http`
    target that could never be asked. With `public_only` no private address is asked but that one.
    One without a store and a way to ask only checks.
    """

    def __init__(
        self,
        *,
        check_url: Callable[[Target], None],
        url: str,
        ask: SendRequest | None = None,
        store: Store | None = None,
        cwd: str = "",
        busy_delay: int = 3_600_000,
        most: int = 100,
        callback: Callback | None = None,
        public_only: bool = False,
    ) -> None:
        self._check_url, self._url, self._ask, self._store = check_url, url, ask, store
        self._cwd, self._busy_delay, self._most, self._callback = cwd, busy_delay, most, callback
        self._public_only = public_only
        self._followed: set[int] = set()  # the runs whose sessions are at work
        self._left: set[int] = set()  # those of them that this node lets go of
        self._stopping: set[int] = set()  # runs that are not to be followed any longer

    def check(self, target: Target) -> None:
        prompt = read_prompt(target)
        if not prompt.url and not self._url:
            hint = "url: http://127.0.0.1:53000, or the setting sessions_url"
            raise InvalidSchedule("session.url", "there is no chat server to send it to", hint=hint)
        if prompt.url:
            asked = {"http": prompt.url, "public_only": prompt.public_only}
            try:
                self._check_url(Target("http", asked))
            except InvalidSchedule as refused:
                raise InvalidSchedule("session.url", refused.problem, hint=refused.hint) from None

    def offers(self) -> tuple[str, ...]:
        """Return what it can send: without a server of the operator's, only to those of targets."""
        return ("session", "session:url") if self._url else ("session:url",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Return False: a prompt that was sent cannot be called back."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        lines: list[str] = []
        try:
            outcome = await self._launch(attempt, lines)
        except InvalidSchedule as refused:
            outcome = Failed(str(refused), "invalid_target", retryable=False)
        except OnbeatError as broken:  # the store's: what was sent was sent
            outcome = Lost() if attempt.may_run else Failed(str(broken))
        finally:
            for each in (self._followed, self._left, self._stopping):
                each.discard(attempt.run_id)
        return outcome, "".join(f"{line}\n" for line in lines)

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Let go of runs whose sessions are at work; what is being sent is sent first."""
        left = self._followed & set(run_ids)
        self._left |= left
        self._stopping |= set(run_ids) - left
        return frozenset(left)

    async def tidy(self) -> None:
        """Delete sessions that were for one run, and are not needed for it any more."""
        book, silent = self._book, set[str]()
        for name, sent in await book.ended_sent():
            if sent is not None:
                outcome = await self._stop(sent.made, [])
                log.warning("[SCHEDULER] %s: run %s: %s", sent.made.schedule_id, name, outcome)
            await book.forget_sent(name)
        found = await book.all()
        latest = {made.schedule_id: made for made in found}  # the last of each is the latest
        for made in found:
            is_old = made.used_at + LONGEST_USE <= book.now()
            is_followed = latest[made.schedule_id] is not made
            is_over = made.is_idle or made.reports or is_old or is_followed
            if not (made.is_ephemeral and is_over) or made.url in silent:
                continue
            if not await book.is_in_use(made):
                answer = await self._delete(made)
                if isinstance(answer, Failed):
                    silent.add(made.url)  # nobody is there

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing more can be done: the request was aborted when its launch was cancelled."""

    async def recover(self) -> int:
        return 0  # a request ends with its process

    async def close(self) -> None:
        """Nothing is left: whoever asks for it has the connections."""

    async def _launch(self, attempt: Attempt, lines: list[str]) -> Outcome:
        """Send the prompt to the session of the schedule, or to a new one."""
        prompt, book = read_prompt(attempt.target), self._book
        if attempt.may_run or attempt.is_to_end:
            sent = await book.sent(attempt)
            if sent is not None:
                return await self._reattach(sent, prompt, attempt, lines)
            if attempt.is_to_end:
                return Canceled("it was not sent")
        url = (prompt.url or self._url).rstrip("/")
        if not url:
            raise InvalidSchedule("session.url", "there is no chat server", hint="sessions_url")
        made = ChatSession(
            attempt.schedule_id,
            await book.since(attempt.schedule_id),
            url,
            bool(prompt.url) and (prompt.public_only or self._public_only),
            book.now(),
            attempt.run_id,
            is_ephemeral=not prompt.persist,
            reports=prompt.feedback,
        )
        # One that is gone may have been replaced by somebody meanwhile; else there is none then.
        for _ in range(TRIES if prompt.persist else 0):
            session_id = await book.session_of(made)
            if session_id is None:
                break
            known = replace(made, session_id=session_id)
            await book.touch(known)
            answer, sent = await self._say(known, prompt, attempt, lines)
            if not isinstance(answer, HttpResponse) or answer.status != 404:
                return await self._outcome(answer, sent, prompt, attempt, lines)
            await book.strike(known)
        await self._make_room()
        new = await self._make(made, prompt, attempt, lines)
        if not isinstance(new, ChatSession):
            return new
        await book.enter(new)  # before anything is said there
        answer, sent = await self._say(new, prompt, attempt, lines)
        return await self._outcome(answer, sent, prompt, attempt, lines)

    async def _make(
        self, made: ChatSession, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> ChatSession | Failed | Busy:
        """Have the server make a session."""
        body = {"cwd": prompt.cwd or self._cwd, "description": attempt.schedule_id}
        body |= {"kind": "scheduled"} | ({"model": prompt.model} if prompt.model else {})
        answer = await self._post(made, "/api/sessions", body, attempt, lines)
        if isinstance(answer, Failed):
            return answer
        if answer.status in OVERLOADED:
            return Busy(f"the server makes no session now: {answer.error}", self._busy_delay)
        if not 200 <= answer.status < 300:
            return Failed(answer.error)
        found = session_id_of(answer.body)
        if found is None:
            problem = "the server has made no session: there is no sessionId in its answer"
            return Failed(problem)
        return replace(made, session_id=found)

    async def _say(
        self, made: ChatSession, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> tuple[HttpResponse | Failed, SentPrompt]:
        """Send the prompt. It stays in the book only if the server has it."""
        body = {"prompt": prompt.text, "source": "scheduler", "scheduleSlug": attempt.schedule_id}
        headers = {"Idempotency-Key": attempt.key}
        if prompt.feedback and self._callback is not None:
            headers |= await self._callback(attempt.key)
        at = f"/api/sessions/{quote(made.session_id, safe='')}/messages"
        sent = await self._book.send(attempt, made)
        answer = await self._post(made, at, body, attempt, lines, headers=headers)
        try:
            if isinstance(answer, HttpResponse) and 200 <= answer.status < 300:
                await self._book.take(attempt, sent)
            else:
                await self._book.unsend(attempt)
        except OnbeatError as broken:
            log.warning("[SCHEDULER] %s: not in the book: %s", attempt.schedule_id, broken)
        return answer, sent

    async def _post(
        self,
        made: ChatSession,
        path: str,
        body: object,
        attempt: Attempt,
        lines: list[str],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        assert self._ask is not None, "it can do more than check"
        lines.append(f"POST {made.url}{path}")
        answer = await self._ask(
            "POST",
            f"{made.url}{path}",
            body=body,
            headers=headers,
            timeout=min(attempt.timeout or LONGEST_ANSWER, LONGEST_ANSWER),
            public_only=made.public_only,
        )
        lines.append(
            f"HTTP {answer.status} {answer.phrase}".rstrip()
            if isinstance(answer, HttpResponse)
            else answer.error
        )
        return answer

    async def _outcome(
        self,
        answer: HttpResponse | Failed,
        sent: SentPrompt,
        prompt: Prompt,
        attempt: Attempt,
        lines: list[str],
    ) -> Outcome:
        """Return what the answer to a message means, or came of it."""
        if isinstance(answer, Failed):
            return answer
        if answer.status == 409:
            return Busy(BUSY, self._busy_delay)
        if answer.status in OVERLOADED:
            return Busy(answer.error, self._busy_delay)
        if not 200 <= answer.status < 300:
            return Failed(answer.error)
        if prompt.feedback:
            return Accepted(sent.made.session_id)
        return await self._follow(sent, attempt, lines)

    # -- a session at work

    async def _reattach(
        self, sent: SentPrompt, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> Outcome:
        """Return what came of a prompt that another node has sent, or begun to send."""
        if not sent.is_taken:
            return Failed(LOST, "lost", retryable=False)
        lines.append(f"reattached: session {sent.made.session_id}")
        if attempt.is_to_end:
            return Canceled(await self._stop(sent.made, lines))
        if prompt.feedback:
            return Accepted(sent.made.session_id)
        return await self._follow(sent, attempt, lines)

    async def _follow(self, sent: SentPrompt, attempt: Attempt, lines: list[str]) -> Outcome:
        """Wait until the session is idle, as far as its server says so; or stop it in the end."""
        self._followed.add(attempt.run_id)
        try:
            return await self._until_idle(sent, attempt, lines)
        except asyncio.CancelledError:
            if attempt.run_id in self._left:
                raise  # another node reattaches it
            stopped: list[str] = []
            await finish_despite_cancel(self._stop_into(stopped, sent.made, lines))
            return Canceled(f"canceled: {stopped[0]}")

    async def _until_idle(self, sent: SentPrompt, attempt: Attempt, lines: list[str]) -> Outcome:
        assert self._ask is not None, "it can do more than check"
        server, wait = ChatServer(self._ask, sent.made), FIRST_LOOK
        loop, silent_since = asyncio.get_running_loop(), None
        done = Succeeded({"sessionId": sent.made.session_id})
        limit = LONGEST_WORK if attempt.timeout is None else attempt.timeout
        worked = max(self._book.now() - sent.sent_at, 0)  # before it was reattached
        until = self._book.monotonic() + (limit - worked) / 1000
        while True:
            found = await server.working()
            if found == "idle":
                with suppress(OnbeatError):  # it is tidied later
                    await self._book.touch(replace(sent.made, is_idle=True))
                return done
            if found == "unknown":
                lines.append("the server does not say whether the session works")
                return done
            if not isinstance(found, Failed):
                silent_since = None
            elif silent_since is None:
                silent_since = loop.time()
                lines.append(f"the server does not say whether the session works: {found.error}")
            elif loop.time() - silent_since > SILENT_FOR:
                return done
            if attempt.run_id in self._stopping:
                return Lost()  # another node reattaches it
            left = until - self._book.monotonic()
            if left <= 0 and attempt.timeout is None:
                lines.append(f"{AT_WORK}: it is not followed any longer")
                return done
            if left <= 0:
                stopped = await self._stop(sent.made, lines)
                problem = f"still working after {limit / 1000:g} s: {stopped}"
                return Failed(problem, "timeout", retryable=False)
            await asyncio.sleep(min(wait, left))
            wait = min(wait * SLOWER, LAST_LOOK)

    async def _stop_into(self, found: list[str], made: ChatSession, lines: list[str]) -> None:
        found.append(await self._stop(made, lines))

    async def _stop(self, made: ChatSession, lines: list[str]) -> str:
        """Have a session stop what it works on; return what is known of that."""
        assert self._ask is not None, "it can do more than check"
        server = ChatServer(self._ask, made)
        why = await server.stop()
        lines.append(f"POST {made.url}/api/sessions/{made.session_id}/cancel: {why or 'ok'}")
        if why:
            return f"{AT_WORK}, the server did not stop it ({why})"
        for _ in range(STOP_LOOKS):
            found = await server.working()
            if found != "busy":
                break
            await asyncio.sleep(STOPS_WITHIN / STOP_LOOKS)
        return STOPPED if found == "idle" else f"{AT_WORK}, the server was asked to stop it"

    # -- sessions that are not needed any more

    async def _make_room(self) -> None:
        """Delete the least recently used sessions, so that there is a place for another.

        It never fails a run: what cannot be deleted is tried again before the next.
        """
        found = await self._book.all()
        excess = len(found) + 1 - self._most
        for made in found:
            if excess <= 0:
                return
            if await self._book.is_in_use(made):
                continue
            answer = await self._delete(made)
            if isinstance(answer, Failed):
                return  # nobody is there: a run does not wait for each of them
            excess -= answer is not None and _is_gone(answer)

    async def _delete(self, made: ChatSession) -> HttpResponse | Failed | None:
        """Have a session deleted; return what its server says. None: it is at work, and stays."""
        assert self._ask is not None, "it can do more than check"
        server = ChatServer(self._ask, made)
        working = await server.working()
        if working == "busy":
            return None
        answer = working if isinstance(working, Failed) else await server.delete()
        if _is_gone(answer) or made.used_at + GIVEN_UP <= self._book.now():
            await self._book.strike(made)
        else:
            told = "[SCHEDULER] session %s is not cleaned up yet: %s"
            log.info(told, made.session_id, answer.error)
        return answer

    @property
    def _book(self) -> SessionRegistry:
        assert self._store is not None, "it can do more than check"
        return SessionRegistry(self._store)


def _is_gone(answer: HttpResponse | Failed) -> bool:
    return isinstance(answer, HttpResponse) and (answer.status < 300 or answer.status in GONE)


GONE = (404, 405, 410, 501)  # it is not there; or its server deletes none
