"""Prompts to chat sessions: `run: {session: {prompt: "Standup for {{ date }}"}}`.

A server makes sessions (`POST /api/sessions`) and takes messages (`.../ID/messages`). The session
of a schedule is in the book before the first message goes there: whatever breaks later, the next
attempt finds it, and there is no second one. What is made for one run is deleted after it, by
`tidy`: no run waits for that.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from urllib.parse import quote

from msgspec.structs import replace

from onbeat.core.runs import Accepted, Busy, Failed, Outcome, Succeeded
from onbeat.core.schedules import Target
from onbeat.errors import InvalidSchedule, OnbeatError
from onbeat.launchers.session.book import Book, Made
from onbeat.launchers.session.target import Prompt, read_prompt, session_id_of
from onbeat.ports import NO_HEADERS, Answer, Ask, Attempt, Callback, Store

log = logging.getLogger("onbeat.sessions")

BUSY = "Session busy - agent currently running"
LONGEST_ANSWER = 5 * 60_000  # milliseconds for one request
LONGEST_DELETE = 10_000
LONGEST_USE = 30 * 60_000  # how long a session for one run is left to it, if nobody tells its end
TRIES = 2  # sessions of a schedule that a run is sent to, before it has a new one
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
        ask: Ask | None = None,
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
            outcome = Failed(str(broken))
        return outcome, "".join(f"{line}\n" for line in lines)

    async def tidy(self) -> None:
        """Delete sessions that were for one run, and are not needed for it any more."""
        book, silent = self._book, set[str]()
        found = await book.all()
        latest = {made.schedule_id: made for made in found}  # the last of each is the latest
        for made in found:
            is_old = made.used_at + LONGEST_USE <= book.now()
            is_followed = latest[made.schedule_id] is not made
            is_over = made.is_ephemeral and (is_old or is_followed or made.reports)
            if is_over and made.url not in silent and not await book.is_in_use(made):
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
        url = (prompt.url or self._url).rstrip("/")
        if not url:
            raise InvalidSchedule("session.url", "there is no chat server", hint="sessions_url")
        made = Made(
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
            answer = await self._say(known, prompt, attempt, lines)
            if not isinstance(answer, Answer) or answer.status != 404:
                return self._outcome(answer, known, prompt)
            await book.strike(known)
        await self._make_room()
        new = await self._make(made, prompt, attempt, lines)
        if isinstance(new, Failed):
            return new
        await book.enter(new)  # before anything is said there
        answer = await self._say(new, prompt, attempt, lines)
        return self._outcome(answer, new, prompt)

    async def _make(
        self, made: Made, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> Made | Failed:
        """Have the server make a session."""
        body = {"cwd": prompt.cwd or self._cwd, "description": attempt.schedule_id}
        body |= {"kind": "scheduled"} | ({"model": prompt.model} if prompt.model else {})
        answer = await self._post(made, "/api/sessions", body, attempt, lines)
        if isinstance(answer, Failed):
            return answer
        if not 200 <= answer.status < 300:
            return Failed(answer.error)
        found = session_id_of(answer.body)
        if found is None:
            problem = "the server has made no session: there is no sessionId in its answer"
            return Failed(problem)
        return replace(made, session_id=found)

    async def _say(
        self, made: Made, prompt: Prompt, attempt: Attempt, lines: list[str]
    ) -> Answer | Failed:
        body = {"prompt": prompt.text, "source": "scheduler", "scheduleSlug": attempt.schedule_id}
        headers = {"Idempotency-Key": attempt.key}
        if prompt.feedback and self._callback is not None:
            headers |= await self._callback(attempt.key)
        at = f"/api/sessions/{quote(made.session_id, safe='')}/messages"
        return await self._post(made, at, body, attempt, lines, headers=headers)

    async def _post(
        self,
        made: Made,
        path: str,
        body: object,
        attempt: Attempt,
        lines: list[str],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer | Failed:
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
            if isinstance(answer, Answer)
            else answer.error
        )
        return answer

    def _outcome(self, answer: Answer | Failed, made: Made, prompt: Prompt) -> Outcome:
        """Return what the answer to a message means."""
        if isinstance(answer, Failed):
            return answer
        if answer.status == 409:
            return Busy(BUSY, self._busy_delay)
        if not 200 <= answer.status < 300:
            return Failed(answer.error)
        told = made.session_id
        return Accepted(told) if prompt.feedback else Succeeded({"sessionId": told})

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
            excess -= _is_gone(answer)

    async def _delete(self, made: Made) -> Answer | Failed:
        """Have a session deleted; return what its server says of that."""
        assert self._ask is not None, "it can do more than check"
        answer = await self._ask(
            "DELETE",
            f"{made.url}/api/sessions/{quote(made.session_id, safe='')}",
            timeout=LONGEST_DELETE,
            public_only=made.public_only,
        )
        if _is_gone(answer) or made.used_at + GIVEN_UP <= self._book.now():
            await self._book.strike(made)
        else:
            told = "[SCHEDULER] session %s is not cleaned up yet: %s"
            log.info(told, made.session_id, answer.error)
        return answer

    @property
    def _book(self) -> Book:
        assert self._store is not None, "it can do more than check"
        return Book(self._store)


def _is_gone(answer: Answer | Failed) -> bool:
    return isinstance(answer, Answer) and (answer.status < 300 or answer.status in GONE)


GONE = (404, 405, 410, 501)  # it is not there; or its server deletes none
