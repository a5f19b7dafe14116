"""Prompts to chat sessions: `run: {session: {prompt: "Standup for {{ date }}"}}`.

A server creates sessions (`POST /api/sessions`) and accepts messages (`.../ID/messages`). The
session of a schedule is registered before the first message is sent, so that the next attempt finds
it after any failure and creates no second one. Sessions for one run are deleted afterwards by
`tidy`; no run waits for that.

A run lasts until the server reports the session as idle, so that a group of one place has one busy
session. If a server does not report that, the run ends with its answer. A prompt is registered
before it is sent, so that the node that reattaches a run knows whether the server has it.
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
from onbeat.ports.http import NO_HEADERS, CallbackHeaders, HttpResponse, SendRequest
from onbeat.ports.store import Attempt, Store
from onbeat.systems.sessions.chat_server import ChatServer
from onbeat.systems.sessions.session_registry import ChatSession, SentPrompt, SessionRegistry
from onbeat.systems.sessions.target import Prompt, read_prompt, session_id_of

log = logging.getLogger("onbeat.sessions")

BUSY = "Session busy - agent currently running"
LONGEST_ANSWER = 5 * 60_000  # timeout of one request, in milliseconds
FIRST_LOOK, LAST_LOOK, SLOWER = 0.05, 2.0, 1.5  # poll interval: first, last (s), growth factor
SILENT_FOR = 60.0  # seconds for which the state of a session may be unavailable
LONGEST_WORK = 60 * 60_000  # how long a session without a timeout is followed, in milliseconds
ANSWERS_WITHIN = 8.0  # seconds to wait for the answer to a prompt whose run is cancelled
STOPS_WITHIN, STOP_LOOKS = 5.0, 20  # seconds for a stopped session to become idle, and polls
LONGEST_USE = 30 * 60_000  # how long a session for one run is kept if its outcome is unknown
TRIES = 2  # known sessions that a run tries before a new one is created
OVERLOADED = (409, 429)  # a server that creates no session now
LOST = "its node stopped responding while sending: it may have arrived, and is not sent again"
STOPPED, AT_WORK = "the session was stopped", "the session may still be working"
REFUSED = "the server did not accept the prompt"
GIVEN_UP = 7 * 86_400_000  # a session that could not be deleted for this long is forgotten


class SessionLauncher:
    """Sends one prompt for each attempt.

    `url` is the operator's server, for targets without one; `check_url` refuses an invalid `http`
    target. With `public_only` no private address is requested except the operator's server.
    Without `store` and `ask` it can only check targets.
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
        callback: CallbackHeaders | None = None,
        public_only: bool = False,
    ) -> None:
        self._check_url, self._url, self._ask, self._store = check_url, url, ask, store
        self._cwd, self._busy_delay, self._most, self._callback = cwd, busy_delay, most, callback
        self._public_only = public_only
        self._launched: set[int] = set()  # runs that are being launched or followed
        self._followed: set[int] = set()  # of these, the runs whose sessions are busy
        self._left: set[int] = set()  # of these, the runs that this node leaves to another
        self._stopping: set[int] = set()  # runs that are not followed any longer

    def check(self, target: Target) -> None:
        prompt = read_prompt(target)
        if not prompt.url and not self._url:
            hint = "url: http://127.0.0.1:53000, or the setting sessions_url"
            raise InvalidSchedule("session.url", "no chat server is configured", hint=hint)
        if prompt.url:
            fields = {"http": prompt.url, "public_only": prompt.public_only}
            try:
                self._check_url(Target("http", fields))
            except InvalidSchedule as refused:
                raise InvalidSchedule("session.url", refused.problem, hint=refused.hint) from None

    def offers(self) -> tuple[str, ...]:
        """Return what it can send; without the operator's server, only to servers of targets."""
        return ("session", "session:url") if self._url else ("session:url",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - the same for all
        """Return False: a prompt that was sent cannot be canceled."""
        return False

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        lines: list[str] = []
        self._launched.add(attempt.run_id)
        try:
            outcome = await self._launch(attempt, lines)
        except InvalidSchedule as refused:
            outcome = Failed(str(refused), "invalid_target", retryable=False)
        except OnbeatError as broken:  # of the store: the prompt may have been sent
            outcome = Lost() if attempt.may_run else Failed(str(broken))
        finally:
            for each in (self._launched, self._followed, self._left, self._stopping):
                each.discard(attempt.run_id)
        return outcome, "".join(f"{line}\n" for line in lines)

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Leave runs whose sessions are busy to another node; finish sending the others."""
        known = self._launched & set(run_ids)
        left = self._followed & known
        self._left |= left
        self._stopping |= known - left
        return frozenset(left)

    async def tidy(self) -> None:
        """Delete sessions that were created for one run and are not needed any more."""
        registry, unavailable = self._registry, set[str]()
        for name, sent in await registry.ended_prompts():
            if sent is not None:
                outcome = await self._stop(sent.session, [])
                log.warning(
                    "[SCHEDULER] %s: stopped the session of run %s, which has ended: %s",
                    sent.session.schedule_id,
                    name,
                    outcome,
                )
            await registry.forget_ended(name)
        found = await registry.all()
        # `found` is sorted by use: the latest session of a schedule wins.
        latest = {session.schedule_id: session for session in found}
        for session in found:
            is_old = session.used_at + LONGEST_USE <= registry.now()
            is_followed = latest[session.schedule_id] is not session
            is_unused = session.is_idle or session.reports or is_old or is_followed
            if not (session.is_ephemeral and is_unused) or session.url in unavailable:
                continue
            if not await registry.is_in_use(session):
                answer = await self._delete(session)
                if isinstance(answer, Failed):
                    unavailable.add(session.url)

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: a session is stopped by its server, as the cancelled launch requests."""

    async def recover(self) -> int:
        return 0  # a request ends with its process

    async def close(self) -> None:
        """Do nothing: the HTTP client owns the connections."""

    async def _launch(self, attempt: Attempt, lines: list[str]) -> Outcome:
        """Send the prompt to the session of the schedule, or to a new one."""
        prompt, registry = read_prompt(attempt.target), self._registry
        if attempt.may_run or attempt.is_cancel_requested:
            sent = await registry.sent_prompt(attempt)
            if sent is not None:
                return await self._reattach(sent, prompt, attempt, lines)
            if attempt.is_cancel_requested:
                return Canceled("it was not sent")
        url = (prompt.url or self._url).rstrip("/")
        if not url:
            raise InvalidSchedule(
                "session.url", "no chat server is configured", hint="sessions_url"
            )
        session = ChatSession(
            attempt.schedule_id,
            await registry.since(attempt.schedule_id),
            url,
            bool(prompt.url) and (prompt.public_only or self._public_only),
            registry.now(),
            attempt.run_id,
            is_ephemeral=not prompt.persist,
            reports=prompt.feedback,
        )
        # A missing session may have been replaced by another run meanwhile.
        for _ in range(TRIES if prompt.persist else 0):
            session_id = await registry.session_of(session)
            if session_id is None:
                break
            existing = replace(session, session_id=session_id)
            await registry.record_use(existing)
            answer, sent = await self._send_prompt(existing, prompt, attempt, lines)
            if not isinstance(answer, HttpResponse) or answer.status != 404:
                return await self._outcome(answer, sent, prompt, attempt, lines)
            await registry.remove(existing)
        await self._delete_excess_sessions()
        new = await self._create(session, prompt, attempt, lines)
        if not isinstance(new, ChatSession):
            return new
        await registry.add(new)  # before the first message is sent
        answer, sent = await self._send_prompt(new, prompt, attempt, lines)
        return await self._outcome(answer, sent, prompt, attempt, lines)

    async def _create(
        self, session: ChatSession, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> ChatSession | Failed | Busy:
        """Create a session on the server."""
        body = {"cwd": prompt.cwd or self._cwd, "description": attempt.schedule_id}
        body |= {"kind": "scheduled"} | ({"model": prompt.model} if prompt.model else {})
        answer = await self._post(session, "/api/sessions", body, attempt, lines)
        if isinstance(answer, Failed):
            return answer
        if answer.status in OVERLOADED:
            return Busy(f"the server creates no session now: {answer.error}", self._busy_delay)
        if not 200 <= answer.status < 300:
            return Failed(answer.error)
        found = session_id_of(answer.body)
        if found is None:
            return Failed("the server created no session: its answer has no sessionId")
        return replace(session, session_id=found)

    async def _send_prompt(
        self, session: ChatSession, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> tuple[HttpResponse | Failed | Canceled, SentPrompt]:
        """Send the prompt. If that is cancelled, wait for the answer, and stop the session."""
        headers = {"Idempotency-Key": attempt.key}
        if prompt.feedback and self._callback is not None:
            headers |= await self._callback(attempt.key)
        sent = await self._registry.record_sending(attempt, session)
        sending = asyncio.create_task(self._post_prompt(sent, prompt, attempt, lines, headers))
        try:
            return await asyncio.shield(sending), sent
        except asyncio.CancelledError:
            canceled: list[Canceled] = []
            await finish_despite_cancel(self._cancel_sending(canceled, sending, sent, lines))
            return canceled[0], sent

    async def _post_prompt(
        self,
        sent: SentPrompt,
        prompt: Prompt,
        attempt: Attempt,
        lines: list[str],
        headers: Mapping[str, str],
    ) -> HttpResponse | Failed:
        """Send the prompt, and keep it registered only if the server accepted it."""
        session = sent.session
        body = {"prompt": prompt.text, "source": "scheduler", "scheduleSlug": attempt.schedule_id}
        at = f"/api/sessions/{quote(session.session_id, safe='')}/messages"
        answer = await self._post(session, at, body, attempt, lines, headers=headers)
        try:
            if _is_accepted(answer):
                await self._registry.record_accepted(attempt, sent)
            else:
                await self._registry.forget_prompt(attempt)
        except OnbeatError as broken:
            log.warning(
                "[SCHEDULER] %s: could not record whether the chat server accepted the prompt: %s",
                attempt.schedule_id,
                broken,
            )
        return answer

    async def _cancel_sending(
        self,
        found: list[Canceled],
        sending: asyncio.Task[HttpResponse | Failed],
        sent: SentPrompt,
        lines: list[str],
    ) -> None:
        """Wait briefly for the answer to a prompt, and stop the session unless it was refused.

        A session that refused the prompt may be working on another one. A prompt without an answer
        may have been accepted.
        """
        await asyncio.wait([sending], timeout=ANSWERS_WITHIN)
        if not sending.done():
            sending.cancel()
            await asyncio.wait([sending])
        if sending.cancelled():
            lines.append("no answer before the cancellation: the prompt may have arrived")
        elif _is_refused(sending.result()):
            found.append(Canceled(f"canceled: {REFUSED}"))
            return
        result = await self._stop(sent.session, lines)
        log.info(
            "[SCHEDULER] %s: canceled while the prompt was being sent: %s",
            sent.session.schedule_id,
            result,
        )
        found.append(Canceled(f"canceled: {result}"))

    async def _post(
        self,
        session: ChatSession,
        path: str,
        body: object,
        attempt: Attempt,
        lines: list[str],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        assert self._ask is not None, "it only checks targets"
        lines.append(f"POST {session.url}{path}")
        answer = await self._ask(
            "POST",
            f"{session.url}{path}",
            body=body,
            headers=headers,
            timeout=min(attempt.timeout or LONGEST_ANSWER, LONGEST_ANSWER),
            public_only=session.public_only,
            trusted=self._is_own(session),
        )
        lines.append(
            f"HTTP {answer.status} {answer.phrase}".rstrip()
            if isinstance(answer, HttpResponse)
            else answer.error
        )
        return answer

    async def _outcome(
        self,
        answer: HttpResponse | Failed | Canceled,
        sent: SentPrompt,
        prompt: Prompt,
        attempt: Attempt,
        lines: list[str],
    ) -> Outcome:
        """Return the outcome of a message, following the session if need be."""
        if not isinstance(answer, HttpResponse):
            return answer
        if answer.status == 409:
            return Busy(BUSY, self._busy_delay)
        if answer.status in OVERLOADED:
            return Busy(answer.error, self._busy_delay)
        if not 200 <= answer.status < 300:
            return Failed(answer.error)
        if prompt.feedback:
            return Accepted(sent.session.session_id)
        return await self._follow(sent, attempt, lines)

    # -- busy sessions

    async def _reattach(
        self, sent: SentPrompt, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> Outcome:
        """Return the outcome of a prompt that another node has sent or begun to send."""
        if not sent.is_taken:
            return Failed(LOST, "lost", retryable=False)
        lines.append(f"reattached: session {sent.session.session_id}")
        if attempt.is_cancel_requested:
            return Canceled(await self._stop(sent.session, lines))
        if prompt.feedback:
            return Accepted(sent.session.session_id)
        return await self._follow(sent, attempt, lines)

    async def _follow(self, sent: SentPrompt, attempt: Attempt, lines: list[str]) -> Outcome:
        """Wait until the session is idle, if its server reports that; stop it on cancellation."""
        self._followed.add(attempt.run_id)
        try:
            return await self._until_idle(sent, attempt, lines)
        except asyncio.CancelledError:
            if attempt.run_id in self._left:
                raise  # another node reattaches it
            stopped: list[str] = []
            await finish_despite_cancel(self._stop_into(stopped, sent.session, lines))
            return Canceled(f"canceled: {stopped[0]}")

    async def _until_idle(self, sent: SentPrompt, attempt: Attempt, lines: list[str]) -> Outcome:
        assert self._ask is not None, "it only checks targets"
        server, wait = ChatServer(self._ask, sent.session, self._is_own(sent.session)), FIRST_LOOK
        loop, silent_since = asyncio.get_running_loop(), None
        done = Succeeded({"sessionId": sent.session.session_id})
        limit = LONGEST_WORK if attempt.timeout is None else attempt.timeout
        worked = max(self._registry.now() - sent.sent_at, 0)  # before it was reattached
        until = self._registry.monotonic() + (limit - worked) / 1000
        while True:
            activity = await server.activity()
            if activity == "idle":
                with suppress(OnbeatError):  # it is deleted later
                    await self._registry.record_use(replace(sent.session, is_idle=True))
                return done
            if activity == "unknown":
                lines.append("the server does not report whether the session is busy")
                return done
            if not isinstance(activity, Failed):
                silent_since = None
            elif silent_since is None:
                silent_since = loop.time()
                problem = "the state of the session is unavailable"
                lines.append(f"{problem}: {activity.error}")
            elif loop.time() - silent_since > SILENT_FOR:
                return done
            if attempt.run_id in self._stopping:
                return Lost()  # another node reattaches it
            left = until - self._registry.monotonic()
            if left <= 0 and attempt.timeout is None:
                lines.append(f"{AT_WORK}: not followed any longer")
                return done
            if left <= 0:
                stopped = await self._stop(sent.session, lines)
                problem = f"still working after {limit / 1000:g} s: {stopped}"
                return Failed(problem, "timeout", retryable=False)
            await asyncio.sleep(min(wait, left))
            wait = min(wait * SLOWER, LAST_LOOK)

    async def _stop_into(self, found: list[str], session: ChatSession, lines: list[str]) -> None:
        found.append(await self._stop(session, lines))

    def _is_own(self, session: ChatSession) -> bool:
        """Return whether a session is on the operator's server."""
        return session.url == self._url.rstrip("/")

    async def _stop(self, session: ChatSession, lines: list[str]) -> str:
        """Stop a session; return the result as a text."""
        assert self._ask is not None, "it only checks targets"
        server = ChatServer(self._ask, session, self._is_own(session))
        why = await server.stop()
        lines.append(f"POST {session.url}/api/sessions/{session.session_id}/cancel: {why or 'ok'}")
        if why:
            return f"{AT_WORK}, the server did not stop it ({why})"
        for _ in range(STOP_LOOKS):
            activity = await server.activity()
            if activity != "busy":
                break
            await asyncio.sleep(STOPS_WITHIN / STOP_LOOKS)
        return STOPPED if activity == "idle" else f"{AT_WORK}, a stop was requested"

    # -- sessions that are not needed any more

    async def _delete_excess_sessions(self) -> None:
        """Delete the least recently used sessions to stay below the limit.

        It never fails a run: a failed deletion is retried before the next run.
        """
        sessions = await self._registry.all()
        excess = len(sessions) + 1 - self._most
        for session in sessions:
            if excess <= 0:
                return
            if await self._registry.is_in_use(session):
                continue
            answer = await self._delete(session)
            if isinstance(answer, Failed):
                return  # unavailable: do not wait for each session
            excess -= answer is not None and _is_gone(answer)

    async def _delete(self, session: ChatSession) -> HttpResponse | Failed | None:
        """Delete a session and return its server's answer; None: it is busy and stays."""
        assert self._ask is not None, "it only checks targets"
        server = ChatServer(self._ask, session, self._is_own(session))
        activity = await server.activity()
        if activity == "busy":
            return None
        answer = activity if isinstance(activity, Failed) else await server.delete()
        if _is_gone(answer) or session.used_at + GIVEN_UP <= self._registry.now():
            await self._registry.remove(session)
        else:
            message = "[SCHEDULER] session %s could not be deleted yet, will be retried: %s"
            log.info(message, session.session_id, answer.error)
        return answer

    @property
    def _registry(self) -> SessionRegistry:
        assert self._store is not None, "it only checks targets"
        return SessionRegistry(self._store)


def _is_accepted(answer: HttpResponse | Failed) -> bool:
    return isinstance(answer, HttpResponse) and 200 <= answer.status < 300


def _is_refused(answer: HttpResponse | Failed) -> bool:
    """Return whether the server certainly has not accepted a prompt."""
    if isinstance(answer, Failed):
        return answer.reason in UNSENT
    return not _is_accepted(answer)


def _is_gone(answer: HttpResponse | Failed) -> bool:
    return isinstance(answer, HttpResponse) and (answer.status < 300 or answer.status in GONE)


GONE = (404, 405, 410, 501)  # it does not exist, or its server cannot delete sessions
UNSENT = ("launch_failed", "invalid_target")  # reasons of requests that did not reach the server
