"""Flows on a panel: `run: {flow: {url: /-/127.0.0.1/8125/-/}, inputs: {...}}`.

A flow is launched by `POST {panel}{url}` and followed until its end. An answer 200 with `errors` is
a refusal: nothing was begun. A launch is in the book before it is asked for: whatever breaks later,
the next attempt goes on with it, and there is no second one.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from json import dumps
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from onbeat.core.runs import Busy, Failed, Outcome, Succeeded
from onbeat.core.schedules import Target
from onbeat.errors import InvalidSchedule, OnbeatError
from onbeat.events import Event, RunCanceled, RunFailed, RunSucceeded
from onbeat.launchers.flow.book import MADE, Book, Made
from onbeat.launchers.flow.panel import Panel, PanelAway, PanelRefuses, told
from onbeat.launchers.flow.target import Flow, check_flow, check_url, read_flow
from onbeat.ports import Answer, Attempt, Store

__all__ = ["MADE", "Flow", "FlowLauncher", "Panel", "check_url", "read_flow"]

log = logging.getLogger("onbeat.timer")

TRIGGERED_BY = "timer"  # what the panel is told, unless somebody has started it by hand
FIRST_LOOK, LAST_LOOK, SLOWER = 0.1, 2.0, 1.5  # seconds between two looks, and how that grows
UNKNOWN_FOR = 15.0  # seconds in which a panel may not know yet what it has launched
LONGEST_ID = 200
LAST_WORDS = 8.0  # seconds that whoever ends a flow waits for the panel
IN_DOUBT = "its launch was sent and not answered: it may run, and is not launched again"
LOST = "a node fell silent while it was launching it: it may run, and is not launched again"


class FlowLauncher:
    """Launches flows on a panel, and follows them.

    Without a panel it offers nothing, and runs wait. `interval` is after how many milliseconds a
    panel is asked again that was not there.
    """

    def __init__(
        self, panel: Panel | None = None, store: Store | None = None, *, interval: int = 60_000
    ) -> None:
        self._panel, self._store, self._interval = panel, store, interval
        self._followed: set[int] = set()  # runs that are launched or found here, or were
        self._left: set[int] = set()  # those of them that go on without this node
        self._forgetting: set[asyncio.Task[None]] = set()

    def check(self, target: Target) -> None:
        check_flow(target)

    def offers(self) -> tuple[str, ...]:
        return () if self._panel is None else ("flow",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Return that it can: a panel ends what it is asked to."""
        return True

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        assert self._panel is not None, "what offers nothing is asked for nothing"
        assert self._store is not None, "what offers nothing is asked for nothing"
        under_way = UnderWay(
            attempt, self._panel, Book(self._store), self._interval, left=self._left
        )
        self._followed.add(attempt.run_id)
        self._left.discard(attempt.run_id)
        try:
            outcome = await under_way.see_through()
        except InvalidSchedule as refused:
            outcome = Failed(str(refused), "invalid_target", retryable=False)
        except OnbeatError as broken:  # the store's: what was launched was
            outcome = Failed(str(broken))
        return outcome, "".join(f"{line}\n" for line in under_way.lines)

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Let go of flows: they go on, and the next attempt finds them by the book."""
        left = frozenset(run_ids) & self._followed
        self._left |= left
        return left

    def heard(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - as listeners are told
        """Hear what was recorded: of a run that is over, the book need not tell any more."""
        for event in events:
            match event:
                case RunSucceeded() | RunFailed() | RunCanceled() if event.run_id in self._followed:
                    self._followed.discard(event.run_id)
                    task = asyncio.ensure_future(self._forget(event.run_id))
                    self._forgetting.add(task)
                    task.add_done_callback(self._forgetting.discard)
                case _:
                    pass

    async def _forget(self, run_id: int) -> None:
        assert self._store is not None, "it was launched"
        with suppress(OnbeatError):  # the timer does so later
            await Book(self._store).strike(run_id)

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing more can be done: what is asked of the panel is its own to do."""

    async def recover(self) -> int:
        return 0  # what runs on a panel is found again by the next attempt

    async def close(self) -> None:
        """Have the book be in order; whoever asks the panel has the connections."""
        await asyncio.gather(*self._forgetting)


class UnderWay:
    """One attempt at launching a flow, and what is told of it."""

    def __init__(
        self, attempt: Attempt, panel: Panel, book: Book, interval: int, *, left: Collection[int]
    ) -> None:
        self._attempt, self._panel, self._book = attempt, panel, book
        self._interval, self._left = interval, left
        self._flow = read_flow(attempt.target)
        self._made: Made | None = None
        self._is_away = False
        self.lines: list[str] = []

    async def see_through(self) -> Outcome:
        """Launch the flow, or find it again, and follow it to its end.

        What was launched stays in the book until its end is recorded: a node may die before that.
        """
        if self._attempt.may_run:
            self._made = await self._book.made(self._attempt)
        try:
            if self._made is None:
                refused = await self._launched()
                if refused is not None:
                    return refused
            elif not self._made.fid:
                return Failed(LOST, "lost", retryable=False)
            else:
                self.lines.append(f"found again: {self._made.fid}")
            return await self._followed()
        except asyncio.CancelledError:
            await self._end_unless_left()
            raise

    async def _launched(self) -> Outcome | None:
        """Launch the flow and enter its id; return what came of it instead, if it has none."""
        attempt, path = self._attempt, self._flow.url
        try:
            if (refused := await self._compared()) is not None:
                return refused
            made = Made(self._panel.url, self._book.now())
            await self._book.enter(attempt, made)
            self._made = made
            asking = asyncio.create_task(
                self._panel.ask("POST", path, body=attempt.inputs, headers=self._extra())
            )
            try:
                answer = await asyncio.shield(asking)
            except asyncio.CancelledError:  # it may have arrived: its id is wanted
                with suppress(TimeoutError, PanelAway, PanelRefuses):
                    async with asyncio.timeout(LAST_WORDS):
                        found = self._meaning(await asking)
                        self._made = replace(made, fid=found) if isinstance(found, str) else made
                raise
        except PanelAway as away:
            return self._busy(str(away))
        except PanelRefuses as refused:
            return Failed(str(refused), "launch_failed", retryable=False)
        found = self._meaning(answer)
        if not isinstance(found, str):
            if not (isinstance(found, Failed) and found.reason == "lost"):
                await self._book.strike(attempt.run_id)  # it was surely not launched
            return found
        self._made = replace(made, fid=found)
        self.lines.append(f"launched as {found}")
        await self._book.enter(attempt, self._made)
        return None

    async def _compared(self) -> Outcome | None:
        """Tell of inputs that the flow's form has no field for; return why there is no form."""
        path, names = self._flow.url, self._attempt.inputs.keys()
        answer = await self._panel.ask("GET", path)
        self.lines.append(f"GET {self._panel.url}{path}: {_status(answer)}")
        if isinstance(answer, Failed):
            return self._busy(answer.error)
        if answer.status >= 500:
            return self._busy(told(answer))
        if answer.status == 404:
            problem = f"the panel has no flow {path}: {told(answer)}"
            return Failed(problem, "launch_failed", retryable=False)
        if answer.status >= 400:
            return Failed(told(answer), "launch_failed", retryable=False)
        known = _fields_of(answer.body)
        for name in sorted(names - known) if known is not None else ():
            told_of = f"warning: the form of {path} has no field {name!r}: the flow does not get it"
            self.lines.append(told_of)
            log.warning("%s: %s", self._key, told_of.removeprefix("warning: "))
        return None

    def _meaning(self, answer: Answer | Failed) -> str | Outcome:
        """Return the id that a launch has, or what came of it instead."""
        self.lines.append(f"POST {self._panel.url}{self._flow.url}: {_status(answer)}")
        if isinstance(answer, Failed):
            if answer.reason == "launch_failed":  # nobody was there to hear it
                return self._busy(answer.error)
            if answer.reason == "invalid_target":
                return answer
            return Failed(f"{answer.error}: {IN_DOUBT}", "lost", retryable=False)
        if answer.status == 504:  # somebody between us and the flow has heard it
            return Failed(f"{told(answer)}: {IN_DOUBT}", "lost", retryable=False)
        if answer.status >= 500:
            return self._busy(told(answer))
        body = answer.body if isinstance(answer.body, Mapping) else {}
        found = body.get("result")
        if answer.status >= 400 or not isinstance(found, str) or body.get("errors"):
            return Failed(_refusal(answer), "launch_failed", retryable=False)
        if not 0 < len(found) <= LONGEST_ID or not found.isprintable():
            return Failed("the panel gave an id that is none", "launch_failed", retryable=False)
        return found

    async def _followed(self) -> Outcome:
        """Look at the flow until it has ended, or its time is over."""
        assert self._made is not None, "it was launched"
        limit = self._attempt.timeout
        if limit is None:
            return await self._looked_at(self._made.fid)
        left = max(limit - max(self._book.now() - self._made.begun_at, 0), 0)
        try:
            async with asyncio.timeout(left / 1000):
                return await self._looked_at(self._made.fid)
        except TimeoutError:
            await self._delete()
            return Failed(f"still running after {limit / 1000:g} s", "timeout", retryable=False)

    async def _looked_at(self, fid: str) -> Outcome:
        path, wait = f"/outputs/status/{quote(fid, safe='')}", FIRST_LOOK
        loop = asyncio.get_running_loop()
        unknown_until, seen = loop.time() + UNKNOWN_FOR, ""
        while True:
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LAST_LOOK)
            # A panel that is asked so waits for what is not written down yet: for minutes, also if
            # that was deleted. So it is asked so in the beginning only.
            is_new = not seen and loop.time() < unknown_until
            try:
                answer = await self._panel.ask("GET", f"{path}?extended=true" if is_new else path)
            except (PanelAway, PanelRefuses) as away:
                self._tell_away(str(away))
                continue
            if isinstance(answer, Failed) or answer.status >= 500:
                self._tell_away(told(answer))
                continue
            self._is_away = False
            if answer.status == 404 and is_new:
                continue  # it has not begun to be written down
            if answer.status >= 400:
                problem = f"the panel does not know {fid} any more: {told(answer)}"
                return Failed(problem, retryable=False)
            body = answer.body if isinstance(answer.body, Mapping) else {}
            status = str(body.get("status"))
            if status != seen:
                self.lines.append(f"status: {status}")
                seen = status
            if status == "finished":
                return Succeeded(_final(body))
            if status == "error":
                return Failed(_error(body))

    async def _end_unless_left(self) -> None:
        """Have the flow ended, as somebody wishes; or leave it to whoever goes on with it."""
        made = self._made
        if made is None or not made.fid:
            return
        if self._attempt.run_id in self._left:
            with suppress(OnbeatError):
                await self._book.enter(self._attempt, made)
        else:
            await self._delete()

    async def _delete(self) -> None:
        assert self._made is not None, "it was launched"
        with suppress(TimeoutError, PanelAway, PanelRefuses):
            async with asyncio.timeout(LAST_WORDS):
                path = f"/outputs/{quote(self._made.fid, safe='')}"
                answer = await self._panel.ask("DELETE", path)
                self.lines.append(f"DELETE {self._panel.url}{path}: {_status(answer)}")
                return
        self.lines.append("the panel could not be asked to end it")

    def _busy(self, error: str) -> Busy:
        log.error("%s: the panel is not there, and is asked again later: %s", self._key, error)
        return Busy(error, self._interval)

    def _tell_away(self, error: str) -> None:
        if not self._is_away:
            log.error("%s: the panel does not answer, and is asked again: %s", self._key, error)
            self.lines.append(f"the panel does not answer: {error}")
        self._is_away = True

    @property
    def _key(self) -> str:
        return self._flow.key or self._attempt.schedule_id

    def _extra(self) -> dict[str, str]:
        """Return the header that says by whom and for what: ASCII, on one line."""
        by_hand = self._attempt.triggered_by == "manual" or bool(self._attempt.request_id)
        extra = {
            "triggered_by": "manual" if by_hand else TRIGGERED_BY,
            "schedule_key": self._key,
        }
        return {"x-kodosumi_extra": dumps(extra), "Idempotency-Key": self._attempt.key}


def _status(answer: Answer | Failed) -> str:
    if isinstance(answer, Failed):
        return answer.error
    return f"HTTP {answer.status} {answer.phrase}".rstrip()


def _fields_of(body: object) -> frozenset[str] | None:
    """Return the names of a form's fields, or None if nobody can say."""
    elements = body.get("elements") if isinstance(body, Mapping) else None
    if not isinstance(elements, list):
        return None
    names = [each.get("name") for each in elements if isinstance(each, Mapping)]
    return frozenset(name for name in names if isinstance(name, str))


def _refusal(answer: Answer) -> str:
    """Return why a launch was refused, by field."""
    body = answer.body if isinstance(answer.body, Mapping) else {}
    errors = body.get("errors")
    if isinstance(errors, Mapping):
        each = {name: said for name, said in errors.items() if said}
        parts = [f"{name}: {_joined(said)}" for name, said in each.items()]
        return f"the flow refused its inputs: {'; '.join(parts) or 'it does not say why'}"
    if answer.status >= 400:
        return f"the panel refused it: {told(answer)}"
    return "the panel answered without an id: nothing is known to have been launched"


def _joined(said: object) -> str:
    return ", ".join(map(str, said)) if isinstance(said, list) else str(said)


def _final(body: Mapping[str, object]) -> object:
    """Return the result of a flow: a panel has it as JSON in a text."""
    final = body.get("final")
    if isinstance(final, str):
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(final)
    return final


def _error(body: Mapping[str, object]) -> str:
    final = _final(body)
    while isinstance(final, Mapping) and len(final) == 1:  # {"Text": {"body": "..."}}
        final = next(iter(final.values()))
    return str(final) if final else "the flow ended with an error, and does not say which"
