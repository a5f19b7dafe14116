"""Flows on a panel: `run: {flow: {url: /-/127.0.0.1/8125/-/}, inputs: {...}}`.

A flow is launched by `POST {panel}{url}` and followed until it ends. An answer 200 with `errors` is
a refusal: nothing was started. A launch is logged before it is requested, so that the next attempt
continues it after any failure, and there is no second launch.
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

TRIGGERED_BY = "timer"  # sent to the panel, except for manual runs
FIRST_LOOK, LAST_LOOK, SLOWER = 0.1, 2.0, 1.5  # poll interval: first, last (s), growth factor
UNKNOWN_FOR = 15.0  # seconds for which a panel may not know a new flow yet
STORE_PATIENCE = 15.0  # seconds for which reading the launch log is retried
LONGEST_ID = 200
OVERLOADED = (429, 503)  # a panel that answers so has started nothing
CANCELED = "canceled as requested"
IN_DOUBT = "its launch was sent and not answered: it may be running, and is not launched again"
BROKEN = "it may be running, and is not launched again"
LOST = "a node stopped responding while launching it: it may be running, and is not launched again"


class FlowLauncher:
    """Launches flows on a panel, and follows them.

    Without a panel it offers nothing, and runs wait. `interval` is the delay in milliseconds before
    an unavailable panel is requested again.
    """

    def __init__(
        self, panel: Panel | None = None, store: Store | None = None, *, interval: int = 60_000
    ) -> None:
        self._panel, self._store, self._interval = panel, store, interval
        self._cancellations = (
            Cancellations(panel, store) if panel is not None and store is not None else None
        )
        # With a separate login, so that a check notices an expired one.
        self._checked_panel = None if panel is None else panel.again()
        self._followed: dict[int, FlowAttempt] = {}  # by run id
        self._left: set[int] = set()  # of these, the runs that are left to another node
        self._unrecorded: set[int] = set()  # runs whose outcome is not recorded yet
        self._deleting: set[asyncio.Task[None]] = set()

    def check(self, target: Target) -> None:
        check_flow(target)

    def offers(self) -> tuple[str, ...]:
        return () if self._panel is None else ("flow",)

    def can_cancel(self, target: Target) -> bool:  # noqa: ARG002 - the same for all
        """Return True: the panel can cancel any flow."""
        return True

    async def look(self) -> str:
        """Return why the panel cannot be used, or nothing if it can."""
        assert self._checked_panel is not None, "a panel is configured"
        try:
            await self._checked_panel.check()
        except PanelAway as away:
            return f"{self._checked_panel.url} does not answer: {away}"
        except PanelRefuses as refused:
            return str(refused)
        return ""

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        assert self._panel is not None, "without a panel it offers nothing"
        assert self._store is not None, "without a panel it offers nothing"
        assert self._cancellations is not None, "without a panel it offers nothing"
        try:
            flow = read_flow(attempt.target)
        except InvalidSchedule as refused:  # defined by another version
            return Failed(str(refused), "invalid_target", retryable=False), ""
        flow_attempt = FlowAttempt(
            attempt, flow, self._panel, LaunchLog(self._store), self._cancellations,
            interval=self._interval, left=self._left,
        )  # fmt: skip
        self._followed[attempt.run_id] = flow_attempt
        self._unrecorded.discard(attempt.run_id)
        try:
            outcome = await flow_attempt.run()
            self._unrecorded.add(attempt.run_id)
        except asyncio.CancelledError:
            if attempt.run_id not in self._left:
                self._unrecorded.add(attempt.run_id)
            raise
        finally:
            self._followed.pop(attempt.run_id, None)
            self._left.discard(attempt.run_id)
        return outcome, "".join(f"{line}\n" for line in flow_attempt.lines)

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Leave flows to another node: they continue, and the next attempt reattaches them.

        A flow that is being canceled is not left.
        """
        left = {
            each for each, flow_attempt in self._followed.items() if not flow_attempt.is_canceling
        }
        left &= set(run_ids)
        self._left |= left
        return frozenset(left)

    def on_events(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - a listener
        """Delete the launches of runs whose outcome is recorded."""
        for event in events:
            match event:
                case RunSucceeded() | RunFailed() | RunCanceled() if (
                    event.run_id in self._unrecorded
                ):
                    self._unrecorded.discard(event.run_id)
                    task = asyncio.ensure_future(self._delete_launch(event.run_id))
                    self._deleting.add(task)
                    task.add_done_callback(self._deleting.discard)
                case RunRetrying():
                    self._unrecorded.discard(event.run_id)
                case _:
                    pass

    async def _delete_launch(self, run_id: int) -> None:
        assert self._store is not None, "it was launched"
        with suppress(OnbeatError):  # the timer retries it
            await LaunchLog(self._store).delete(run_id)

    def kill(self, run_ids: Collection[int]) -> None:
        """Do nothing: the panel has the request already."""

    async def recover(self) -> int:
        """Continue unconfirmed cancellations; running flows are reattached by their runs."""
        if self._cancellations is not None:
            self._cancellations.repeat()
        return 0

    async def close(self) -> None:
        """Finish updating the launch log; the HTTP client owns the connections."""
        await asyncio.gather(*self._deleting)
        if self._cancellations is not None:
            await self._cancellations.close()


class FlowAttempt:
    """One attempt to run a flow, with the lines of its log."""

    def __init__(
        self,
        attempt: Attempt,
        flow: Flow,
        panel: Panel,
        launch_log: LaunchLog,
        cancellations: Cancellations,
        *,
        interval: int,
        left: Collection[int],
    ) -> None:
        self._attempt, self._flow, self._panel = attempt, flow, panel
        self._launch_log, self._cancellations = launch_log, cancellations
        self._interval, self._left = interval, left
        self._launch: FlowLaunch | None = None
        self._is_unavailable, self._is_unsaved = False, False
        self.is_canceling = False
        self.lines: list[str] = []

    async def run(self) -> Outcome:
        """Launch the flow or reattach it, and follow it until it ends; or cancel it.

        The launch stays in the log until its outcome is recorded, as a node may die before that.
        """
        try:
            await self._load_launch()
        except asyncio.CancelledError:
            await finish_despite_cancel(self._cancel_unread())
            raise
        except OnbeatError as broken:
            if self._attempt.may_run or self._attempt.is_cancel_requested:
                return Lost()  # it may be running: to be reattached
            return self._busy(str(broken), what="the store")
        try:
            return await self._outcome()
        except asyncio.CancelledError:
            await self._cancel_unless_left()
            raise
        except Exception as broken:
            if self._launch is None:
                raise
            log.exception("flow %s: following its launch on the panel crashed", self._key)
            return Failed(f"{type(broken).__name__}: {broken}: {BROKEN}", "lost", retryable=False)

    async def _outcome(self) -> Outcome:
        is_to_cancel = self._attempt.is_cancel_requested
        if self._launch is None:
            if is_to_cancel:
                return Canceled(CANCELED)
            refused = await self._start()
            if refused is not None:
                return refused
        elif (why := self._why_lost(self._launch)) is not None:
            return Failed(why, "lost", retryable=False)
        else:
            self.lines.append(f"reattached: {self._launch.fid}")
        if is_to_cancel:
            await self._cancel()
            return Canceled(CANCELED)
        return await self._follow()

    async def _load_launch(self) -> None:
        """Read the launch log, retrying for a while if the store fails."""
        loop, wait = asyncio.get_running_loop(), FIRST_LOOK
        until = loop.time() + STORE_PATIENCE
        while True:
            try:
                self._launch = await self._launch_log.launch_of(self._attempt)
            except StoreFailed:
                if loop.time() + wait > until:
                    raise
            else:
                return
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LAST_LOOK)

    def _why_lost(self, launch: FlowLaunch) -> str | None:
        """Return why a launch cannot be followed, or None."""
        if not launch.fid:
            return LOST
        if launch.url != self._panel.url:
            problem = f"the run was launched as {launch.fid} on {launch.url}"
            return f"{problem}, but flows_panel is {self._panel.url} now: it may be running there"
        return None

    async def _start(self) -> Outcome | None:
        """Launch the flow and log its id; return an outcome if it has none."""
        try:
            if (refused := await self._check_inputs()) is not None:
                return refused
            launch = FlowLaunch(
                self._panel.url, self._launch_log.now(), attempt=self._attempt.attempt
            )
            await self._launch_log.save(self._attempt, launch)
        except PanelAway as away:
            return self._busy(str(away))
        except PanelRefuses as refused:
            return Failed(str(refused), "launch_failed", retryable=False)
        except OnbeatError as broken:  # of the store: nothing was launched
            return self._busy(str(broken), what="the store")
        self._launch = launch
        posting = asyncio.create_task(self._post_launch(launch))
        try:
            return await asyncio.shield(posting)
        except asyncio.CancelledError:  # it may have arrived: wait for the id
            await finish_despite_cancel(_wait_briefly(posting))
            raise

    async def _post_launch(self, launch: FlowLaunch) -> Outcome | None:
        """Request the launch from the panel, and log the result."""
        attempt, found = self._attempt, None
        try:
            answer = await self._panel.ask(
                "POST", self._flow.url, body=attempt.inputs, headers=self._extra()
            )
            found = self._read_answer(answer)
        except PanelAway as away:
            found = self._busy(str(away))
        except PanelRefuses as refused:
            found = Failed(str(refused), "launch_failed", retryable=False)
        if isinstance(found, str):
            self._launch = replace(launch, fid=found)
            self.lines.append(f"launched as {found}")
            await self._save_launch()
            return None
        if not (isinstance(found, Failed) and found.reason == "lost"):
            self._launch = None  # it was certainly not launched
            with suppress(OnbeatError):  # later attempts ignore the launch of an earlier one
                await self._launch_log.delete(attempt.run_id)
        return found

    async def _save_launch(self) -> None:
        """Log the id of the launch; the flow is followed even while the store is unavailable."""
        assert self._launch is not None, "it was launched"
        try:
            await self._launch_log.save(self._attempt, self._launch)
            self._is_unsaved = False
        except OnbeatError as broken:
            if not self._is_unsaved:
                log.warning(
                    "flow %s: the id of its launch could not be stored yet: %s", self._key, broken
                )
            self._is_unsaved = True

    async def _check_inputs(self) -> Outcome | None:
        """Warn of inputs that the flow's form has no field for; return why there is no form."""
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
        form_fields = _fields_of(answer.body)
        for name in sorted(names - form_fields) if form_fields is not None else ():
            warning = f"the form of {path} has no field {name!r}: this input is ignored"
            self.lines.append(f"warning: {warning}")
            log.warning("flow %s: %s", self._key, warning)
        return None

    def _read_answer(self, answer: HttpResponse | Failed) -> str | Outcome:
        """Return the id of the launch, or the outcome if there is none."""
        self.lines.append(f"POST {self._panel.url}{self._flow.url}: {_status(answer)}")
        if isinstance(answer, Failed):
            if answer.reason == "launch_failed":  # nothing was sent
                return self._busy(answer.error)
            if answer.reason == "invalid_target":
                return answer
            return Failed(f"{answer.error}: {IN_DOUBT}", "lost", retryable=False)
        if answer.status in OVERLOADED:
            return self._busy(panel_error_text(answer))
        if answer.status >= 500:  # it was available a moment ago: it may be launched
            return Failed(f"{panel_error_text(answer)}: {IN_DOUBT}", "lost", retryable=False)
        body = answer.body if isinstance(answer.body, Mapping) else {}
        found = body.get("result")
        if answer.status >= 400 or not isinstance(found, str) or body.get("errors"):
            return Failed(_refusal(answer), "launch_failed", retryable=False)
        if not 0 < len(found) <= LONGEST_ID or not found.isprintable():
            return Failed("the panel returned an invalid id", "launch_failed", retryable=False)
        return found

    async def _follow(self) -> Outcome:
        """Follow the flow until it has ended, or its timeout has passed."""
        assert self._launch is not None, "it was launched"
        limit = self._attempt.timeout
        if limit is None:
            return await self._poll(self._launch.fid)
        left = max(limit - max(self._launch_log.now() - self._launch.begun_at, 0), 0)
        try:
            async with asyncio.timeout(left / 1000):
                return await self._poll(self._launch.fid)
        except TimeoutError:
            await self._cancel()
            return Failed(f"still running after {limit / 1000:g} s", "timeout", retryable=False)

    async def _poll(self, fid: str) -> Outcome:
        path, wait = f"/outputs/status/{quote(fid, safe='')}", FIRST_LOOK
        loop = asyncio.get_running_loop()
        unknown_until, seen = loop.time() + UNKNOWN_FOR, ""
        while True:
            await asyncio.sleep(wait)
            wait = min(wait * SLOWER, LAST_LOOK)
            if self._is_unsaved:
                await self._save_launch()
            # With `extended`, a panel waits for minutes for an output that is not written yet, even
            # for a deleted one. So it is used at the beginning only.
            is_new = not seen and loop.time() < unknown_until
            try:
                answer = await self._panel.ask("GET", f"{path}?extended=true" if is_new else path)
            except (PanelAway, PanelRefuses) as away:
                self._log_unavailable(str(away))
                continue
            is_gone = not isinstance(answer, Failed) and answer.status in GONE
            if isinstance(answer, Failed) or (answer.status >= 400 and not is_gone):
                self._log_unavailable(panel_error_text(answer))  # the flow may still be known
                continue
            self._is_unavailable = False
            if is_gone and is_new:
                continue  # its output is not written yet
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

    async def _cancel_unread(self) -> None:
        """Cancel a launch that was not reattached, if cancellation was requested."""
        if self._attempt.may_run and self._attempt.run_id not in self._left:
            with suppress(OnbeatError):
                await self._load_launch()
                if self._launch is None or self._why_lost(self._launch) is None:
                    await self._cancel_unless_left()

    async def _cancel_unless_left(self) -> None:
        """Cancel the flow as requested, or leave it to the node that reattaches it."""
        launch = self._launch
        if self._attempt.run_id in self._left and not self.is_canceling:
            if self._is_unsaved:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS):
                        await self._save_launch()
            return
        if launch is not None and not self.is_canceling:
            if launch.fid:
                await self._cancel()
            else:
                self.lines.append("the panel has not returned its id: it may be running")
        for line in self.lines:  # which a canceled run does not record
            log.info("flow %s: canceled run %d: %s", self._key, self._attempt.run_id, line)

    async def _cancel(self) -> None:
        """Cancel the flow, even if this task is cancelled meanwhile."""
        self.is_canceling = True
        await finish_despite_cancel(self._send_cancel())

    async def _send_cancel(self) -> None:
        assert self._launch is not None, "it was launched"
        self.lines += await self._cancellations.cancel(self._attempt, self._launch, self._key)

    def _busy(self, error: str, *, what: str = "the panel") -> Busy:
        retry = f"retried in {self._interval / 1000:g} s"
        log.error("flow %s: %s is unavailable, %s: %s", self._key, what, retry, error)
        return Busy(error, self._interval)

    def _log_unavailable(self, error: str) -> None:
        if not self._is_unavailable:
            log.error("flow %s: the panel does not answer, will be retried: %s", self._key, error)
            self.lines.append(f"the panel does not answer: {error}")
        self._is_unavailable = True

    @property
    def _key(self) -> str:
        return self._flow.key or self._attempt.schedule_id

    def _extra(self) -> dict[str, str]:
        """Return the headers that name the cause and the flow: ASCII, on one line."""
        is_requested = bool(self._attempt.request_id)
        extra = {
            "triggered_by": self._attempt.cause if is_requested else TRIGGERED_BY,
            "schedule_key": self._key,
        }
        return {"x-kodosumi_extra": dumps(extra), "Idempotency-Key": self._attempt.key}


async def _wait_briefly(task: asyncio.Task[Outcome | None]) -> None:
    """Wait for a task for a limited time, then cancel it."""
    done, _ = await asyncio.wait([task], timeout=LAST_WORDS)
    if not done:
        task.cancel()
        await asyncio.wait([task])


def _status(answer: HttpResponse | Failed) -> str:
    if isinstance(answer, Failed):
        return answer.error
    return f"HTTP {answer.status} {answer.phrase}".rstrip()


def _fields_of(body: object) -> frozenset[str] | None:
    """Return the names of a form's fields, or None if they are unknown."""
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
        each = {name: error for name, error in errors.items() if error}
        parts = [f"{name}: {_joined(error)}" for name, error in each.items()]
        return f"the flow refused its inputs: {'; '.join(parts) or 'no reason given'}"
    if answer.status >= 400:
        return f"the panel refused the launch: {panel_error_text(answer)}"
    return "the panel returned no id: unknown whether a flow was launched"


def _joined(error: object) -> str:
    return ", ".join(map(str, error)) if isinstance(error, list) else str(error)


def _final(body: Mapping[str, object]) -> object:
    """Return the result of a flow: JSON in a string."""
    final = body.get("final")
    if isinstance(final, str):
        with suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode(final)
    return final


def _error(body: Mapping[str, object]) -> str:
    final = _final(body)
    while isinstance(final, Mapping) and len(final) == 1:  # {"Text": {"body": "..."}}
        final = next(iter(final.values()))
    return str(final) if final else "the flow failed without an error message"
