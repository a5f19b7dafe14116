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

from onbeat.core.runs.run import Busy, Canceled, Failed, Lost, Outcome, Succeeded
from onbeat.core.target import Target
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import InvalidSchedule, OnbeatError, StoreFailed
from onbeat.events import Event, RunCanceled, RunFailed, RunRetrying, RunSucceeded
from onbeat.ports.http import HttpResponse
from onbeat.ports.store import Attempt, Store
from onbeat.systems.flows.cancellations import GONE, LAST_WORDS, TO_END, Cancellations
from onbeat.systems.flows.launch_log import MADE, FlowLaunch, LaunchLog
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses, panel_error_text
from onbeat.systems.flows.target import Flow, check_flow, check_url, read_flow

__all__ = ["MADE", "TO_END", "Flow", "FlowLauncher", "Panel", "check_url", "read_flow"]

log = logging.getLogger("onbeat.timer")

TRIGGERED_BY = "timer"  # what the panel is told, unless somebody has started it by hand
FIRST_LOOK, LAST_LOOK, SLOWER = 0.1, 2.0, 1.5  # seconds between two looks, and how that grows
UNKNOWN_FOR = 15.0  # seconds in which a panel may not know yet what it has launched
STORE_PATIENCE = 15.0  # seconds in which a store that fails is asked what was launched
LONGEST_ID = 200
OVERLOADED = (429, 503)  # whoever says so has begun nothing
ASKED_TO = "ended because it was asked to"
IN_DOUBT = "its launch was sent and not answered: it may run, and is not launched again"
BROKEN = "it may run, and is not launched again"
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
        self._endings = (
            Cancellations(panel, store) if panel is not None and store is not None else None
        )
        # With a login of its own: one that has expired is noticed by who looks, too.
        self._looked_at = None if panel is None else panel.again()
        self._followed: dict[int, FlowAttempt] = {}  # what is launched or found here
        self._left: set[int] = set()  # those of them that go on without this node
        self._told: set[int] = set()  # whose outcome was told and is not recorded yet
        self._forgetting: set[asyncio.Task[None]] = set()

    def check(self, target: Target) -> None:
        check_flow(target)

    def offers(self) -> tuple[str, ...]:
        return () if self._panel is None else ("flow",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - it is so for all of them
        """Return that it can: a panel ends what it is asked to."""
        return True

    async def look(self) -> str:
        """Return why the panel cannot be used, or nothing if it can."""
        assert self._looked_at is not None, "there is one"
        try:
            await self._looked_at.check()
        except PanelAway as away:
            return f"{self._looked_at.url} does not answer: {away}"
        except PanelRefuses as refused:
            return str(refused)
        return ""

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        assert self._panel is not None, "what offers nothing is asked for nothing"
        assert self._store is not None, "what offers nothing is asked for nothing"
        assert self._endings is not None, "what offers nothing is asked for nothing"
        try:
            flow = read_flow(attempt.target)
        except InvalidSchedule as refused:  # it was defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        under_way = FlowAttempt(
            attempt, flow, self._panel, LaunchLog(self._store), self._endings,
            interval=self._interval, left=self._left,
        )  # fmt: skip
        self._followed[attempt.run_id] = under_way
        self._told.discard(attempt.run_id)
        try:
            outcome = await under_way.see_through()
            self._told.add(attempt.run_id)
        except asyncio.CancelledError:
            if attempt.run_id not in self._left:
                self._told.add(attempt.run_id)
            raise
        finally:
            self._followed.pop(attempt.run_id, None)
            self._left.discard(attempt.run_id)
        return outcome, "".join(f"{line}\n" for line in under_way.lines)

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Let go of flows: they go on, and the next attempt finds them by the book.

        One that is being ended is ended first.
        """
        left = {each for each, under_way in self._followed.items() if not under_way.is_ending}
        left &= set(run_ids)
        self._left |= left
        return frozenset(left)

    def heard(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - as listeners are told
        """Hear what was recorded: of a run that is over, the book need not tell any more."""
        for event in events:
            match event:
                case RunSucceeded() | RunFailed() | RunCanceled() if event.run_id in self._told:
                    self._told.discard(event.run_id)
                    task = asyncio.ensure_future(self._forget(event.run_id))
                    self._forgetting.add(task)
                    task.add_done_callback(self._forgetting.discard)
                case RunRetrying():
                    self._told.discard(event.run_id)
                case _:
                    pass

    async def _forget(self, run_id: int) -> None:
        assert self._store is not None, "it was launched"
        with suppress(OnbeatError):  # the timer does so later
            await LaunchLog(self._store).strike(run_id)

    def kill(self, run_ids: Collection[int]) -> None:
        """Nothing more can be done: what is asked of the panel is its own to do."""

    async def recover(self) -> int:
        """Go on with what could not be ended; what runs is found again by the next attempt."""
        if self._endings is not None:
            self._endings.repeat()
        return 0

    async def close(self) -> None:
        """Have the book be in order; whoever asks the panel has the connections."""
        await asyncio.gather(*self._forgetting)
        if self._endings is not None:
            await self._endings.close()


class FlowAttempt:
    """One attempt at launching a flow, and what is told of it."""

    def __init__(
        self,
        attempt: Attempt,
        flow: Flow,
        panel: Panel,
        book: LaunchLog,
        endings: Cancellations,
        *,
        interval: int,
        left: Collection[int],
    ) -> None:
        self._attempt, self._flow, self._panel = attempt, flow, panel
        self._book, self._endings = book, endings
        self._interval, self._left = interval, left
        self._made: FlowLaunch | None = None
        self._is_away, self._is_unentered = False, False
        self.is_ending = False
        self.lines: list[str] = []

    async def see_through(self) -> Outcome:
        """Launch the flow, or find it again, and follow it to its end; or find and end it.

        What was launched stays in the book until its end is recorded: a node may die before that.
        """
        try:
            await self._read()
        except asyncio.CancelledError:
            await finish_despite_cancel(self._end_unread())
            raise
        except OnbeatError as broken:
            if self._attempt.may_run or self._attempt.is_to_end:
                return Lost()  # it may run, and is to be found
            return self._busy(str(broken), who="the store")
        try:
            return await self._outcome()
        except asyncio.CancelledError:
            await self._end_unless_left()
            raise
        except Exception as broken:
            if self._made is None:
                raise
            log.exception("%s: it cannot be followed", self._key)
            return Failed(f"{type(broken).__name__}: {broken}: {BROKEN}", "lost", retryable=False)

    async def _outcome(self) -> Outcome:
        is_to_end = self._attempt.is_to_end
        if self._made is None:
            if is_to_end:
                return Canceled(ASKED_TO)
            refused = await self._launched()
            if refused is not None:
                return refused
        elif (why := self._why_lost(self._made)) is not None:
            return Failed(why, "lost", retryable=False)
        else:
            self.lines.append(f"found again: {self._made.fid}")
        if is_to_end:
            await self._end()
            return Canceled(ASKED_TO)
        return await self._followed()

    async def _read(self) -> None:
        """Learn from the book what was begun; a store that fails is asked for a while."""
        loop, wait = asyncio.get_running_loop(), FIRST_LOOK
        until = loop.time() + STORE_PATIENCE
        while True:
            try:
                self._made = await self._book.made(self._attempt)
            except StoreFailed:
                if loop.time() + wait > until:
                    raise
            else:
                return
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LAST_LOOK)

    def _why_lost(self, made: FlowLaunch) -> str | None:
        """Return why nobody can follow what was begun, if so."""
        if not made.fid:
            return LOST
        if made.url != self._panel.url:
            there = f"it was launched as {made.fid} on {made.url}"
            return f"{there}, and flows_panel is {self._panel.url} now: it may run there"
        return None

    async def _launched(self) -> Outcome | None:
        """Launch the flow and enter its id; return what came of it instead, if it has none."""
        try:
            if (refused := await self._compared()) is not None:
                return refused
            made = FlowLaunch(self._panel.url, self._book.now(), attempt=self._attempt.attempt)
            await self._book.enter(self._attempt, made)
        except PanelAway as away:
            return self._busy(str(away))
        except PanelRefuses as refused:
            return Failed(str(refused), "launch_failed", retryable=False)
        except OnbeatError as broken:  # the store's: nothing was launched
            return self._busy(str(broken), who="the store")
        self._made = made
        posting = asyncio.create_task(self._posted(made))
        try:
            return await asyncio.shield(posting)
        except asyncio.CancelledError:  # it may have arrived: its id is wanted
            await finish_despite_cancel(_for_a_while(posting))
            raise

    async def _posted(self, made: FlowLaunch) -> Outcome | None:
        """Ask the panel for the launch, and enter in the book what came of that."""
        attempt, found = self._attempt, None
        try:
            answer = await self._panel.ask(
                "POST", self._flow.url, body=attempt.inputs, headers=self._extra()
            )
            found = self._meaning(answer)
        except PanelAway as away:
            found = self._busy(str(away))
        except PanelRefuses as refused:
            found = Failed(str(refused), "launch_failed", retryable=False)
        if isinstance(found, str):
            self._made = replace(made, fid=found)
            self.lines.append(f"launched as {found}")
            await self._enter()
            return None
        if not (isinstance(found, Failed) and found.reason == "lost"):
            self._made = None  # it was surely not launched
            with suppress(OnbeatError):  # what an attempt before has begun, nobody looks for
                await self._book.strike(attempt.run_id)
        return found

    async def _enter(self) -> None:
        """Enter the id of what was launched; it is followed also while the store is away."""
        assert self._made is not None, "it was launched"
        try:
            await self._book.enter(self._attempt, self._made)
            self._is_unentered = False
        except OnbeatError as broken:
            if not self._is_unentered:
                log.warning("%s: its id is not in the book yet: %s", self._key, broken)
            self._is_unentered = True

    async def _compared(self) -> Outcome | None:
        """Tell of inputs that the flow's form has no field for; return why there is no form."""
        path, names = self._flow.url, self._attempt.inputs.keys()
        answer = await self._panel.ask("GET", path)
        self.lines.append(f"GET {self._panel.url}{path}: {_status(answer)}")
        if isinstance(answer, Failed):
            return self._busy(answer.error)
        if answer.status >= 500 or answer.status in OVERLOADED:
            return self._busy(panel_error_text(answer))
        if answer.status == 404:
            problem = f"the panel has no flow {path}: {panel_error_text(answer)}"
            return Failed(problem, "launch_failed", retryable=False)
        if answer.status >= 400:
            return Failed(panel_error_text(answer), "launch_failed", retryable=False)
        known = _fields_of(answer.body)
        for name in sorted(names - known) if known is not None else ():
            told_of = f"warning: the form of {path} has no field {name!r}: the flow does not get it"
            self.lines.append(told_of)
            log.warning("%s: %s", self._key, told_of.removeprefix("warning: "))
        return None

    def _meaning(self, answer: HttpResponse | Failed) -> str | Outcome:
        """Return the id that a launch has, or what came of it instead."""
        self.lines.append(f"POST {self._panel.url}{self._flow.url}: {_status(answer)}")
        if isinstance(answer, Failed):
            if answer.reason == "launch_failed":  # nobody was there to hear it
                return self._busy(answer.error)
            if answer.reason == "invalid_target":
                return answer
            return Failed(f"{answer.error}: {IN_DOUBT}", "lost", retryable=False)
        if answer.status in OVERLOADED:
            return self._busy(panel_error_text(answer))
        if answer.status >= 500:  # the panel was there a moment ago: it has heard it
            return Failed(f"{panel_error_text(answer)}: {IN_DOUBT}", "lost", retryable=False)
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
            await self._end()
            return Failed(f"still running after {limit / 1000:g} s", "timeout", retryable=False)

    async def _looked_at(self, fid: str) -> Outcome:
        path, wait = f"/outputs/status/{quote(fid, safe='')}", FIRST_LOOK
        loop = asyncio.get_running_loop()
        unknown_until, seen = loop.time() + UNKNOWN_FOR, ""
        while True:
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LAST_LOOK)
            if self._is_unentered:
                await self._enter()
            # A panel that is asked so waits for what is not written down yet: for minutes, also if
            # that was deleted. So it is asked so in the beginning only.
            is_new = not seen and loop.time() < unknown_until
            try:
                answer = await self._panel.ask("GET", f"{path}?extended=true" if is_new else path)
            except (PanelAway, PanelRefuses) as away:
                self._tell_away(str(away))
                continue
            is_gone = not isinstance(answer, Failed) and answer.status in GONE
            if isinstance(answer, Failed) or (answer.status >= 400 and not is_gone):
                self._tell_away(panel_error_text(answer))  # it knows it, or cannot say
                continue
            self._is_away = False
            if is_gone and is_new:
                continue  # it has not begun to be written down
            if is_gone:
                problem = f"the panel does not know {fid} any more: {panel_error_text(answer)}"
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

    async def _end_unread(self) -> None:
        """Have that ended which nobody has found yet, if somebody wishes so."""
        if self._attempt.may_run and self._attempt.run_id not in self._left:
            with suppress(OnbeatError):
                await self._read()
                if self._made is None or self._why_lost(self._made) is None:
                    await self._end_unless_left()

    async def _end_unless_left(self) -> None:
        """Have the flow ended, as somebody wishes; or leave it to whoever goes on with it."""
        made = self._made
        if self._attempt.run_id in self._left and not self.is_ending:
            if self._is_unentered:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS):
                        await self._enter()
            return
        if made is not None and not self.is_ending:
            if made.fid:
                await self._end()
            else:
                self.lines.append("the panel has not said what it is called: it may run")
        for line in self.lines:  # of a run that is canceled nobody asks for more
            log.info("%s: run %d: %s", self._key, self._attempt.run_id, line)

    async def _end(self) -> None:
        """Have the flow ended, whoever is in a hurry meanwhile."""
        self.is_ending = True
        await finish_despite_cancel(self._ended())

    async def _ended(self) -> None:
        assert self._made is not None, "it was launched"
        self.lines += await self._endings.end(self._attempt, self._made, self._key)

    def _busy(self, error: str, *, who: str = "the panel") -> Busy:
        log.error("%s: %s is not there, and is asked again later: %s", self._key, who, error)
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
        asked = bool(self._attempt.request_id)
        extra = {
            "triggered_by": self._attempt.cause if asked else TRIGGERED_BY,
            "schedule_key": self._key,
        }
        return {"x-kodosumi_extra": dumps(extra), "Idempotency-Key": self._attempt.key}


async def _for_a_while(task: asyncio.Task[Outcome | None]) -> None:
    """Wait for something, but not for long."""
    done, _ = await asyncio.wait([task], timeout=LAST_WORDS)
    if not done:
        task.cancel()
        await asyncio.wait([task])


def _status(answer: HttpResponse | Failed) -> str:
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


def _refusal(answer: HttpResponse) -> str:
    """Return why a launch was refused, by field."""
    body = answer.body if isinstance(answer.body, Mapping) else {}
    errors = body.get("errors")
    if isinstance(errors, Mapping):
        each = {name: said for name, said in errors.items() if said}
        parts = [f"{name}: {_joined(said)}" for name, said in each.items()]
        return f"the flow refused its inputs: {'; '.join(parts) or 'it does not say why'}"
    if answer.status >= 400:
        return f"the panel refused it: {panel_error_text(answer)}"
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
