"""`FlowStart`: launches a flow on the panel.

The form is checked first: while it is unavailable, nothing is launched. Then the launch is logged,
requested, and its answer read. A request that may have arrived is awaited even if the attempt is
cancelled, for the id of the launch.
"""

import asyncio
from json import dumps

from onbeat.core.runs.run import Failed, Lost, Outcome
from onbeat.engine.concurrency import finish_despite_cancel
from onbeat.errors import OnbeatError
from onbeat.ports.store import Attempt
from onbeat.systems.flows.answers import Launched, Unavailable, read_form, read_launch, status_line
from onbeat.systems.flows.attempt_log import AttemptLog
from onbeat.systems.flows.cancellations import LAST_WORDS
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.flows.target import Flow
from onbeat.systems.flows.tracked_launch import TrackedLaunch

TAKEN_OVER = "was taken over by another node: nothing was launched"
TRIGGERED_BY = "timer"  # sent to the panel, except for manual runs


class FlowStart:
    """The launch of one attempt."""

    def __init__(
        self, attempt: Attempt, flow: Flow, panel: Panel, tracked: TrackedLaunch, output: AttemptLog
    ) -> None:
        self._attempt, self._flow, self._panel = attempt, flow, panel
        self._tracked, self._output = tracked, output

    async def run(self) -> Outcome | None:
        """Launch the flow and log its id; return an outcome if it has none."""
        try:
            if (refused := await self._check_form()) is not None:
                return refused
            if not await self._tracked.begin():
                self._output.warn(f"run {self._attempt.run_id} {TAKEN_OVER}")
                return Lost()
        except PanelAway as away:
            return self._output.busy(str(away))
        except PanelRefuses as refused:
            return Failed(str(refused), "launch_failed", retryable=False)
        except OnbeatError as broken:  # of the store: nothing was launched
            return self._output.busy(str(broken), what="the store")
        posting = asyncio.create_task(self._post())
        try:
            return await asyncio.shield(posting)
        except asyncio.CancelledError:  # it may have arrived: wait for the id
            await finish_despite_cancel(_wait_briefly(posting))
            raise

    async def _check_form(self) -> Outcome | None:
        """Warn of inputs that the flow's form has no field for; return why there is no form."""
        path = self._flow.url
        answer = await self._panel.ask("GET", path)
        self._output.add(f"GET {self._panel.url}{path}: {status_line(answer)}")
        form = read_form(path, answer)
        if isinstance(form, Unavailable):
            return self._output.busy(form.error)
        if isinstance(form, Failed):
            return form
        for name in form.missing(self._attempt.inputs):
            self._output.warn(f"the form of {path} has no field {name!r}: this input is ignored")
        return None

    async def _post(self) -> Outcome | None:
        """Request the launch from the panel, and log the result."""
        found = await self._request()
        if isinstance(found, Launched):
            self._output.add(f"launched as {found.fid}")
            await self._tracked.name(found.fid)
            return None
        if not (isinstance(found, Failed) and found.reason == "lost"):
            await self._tracked.discard()
        return found

    async def _request(self) -> Launched | Outcome:
        path, inputs = self._flow.url, self._attempt.inputs
        try:
            answer = await self._panel.ask("POST", path, body=inputs, headers=self._headers())
        except PanelAway as away:
            return self._output.busy(str(away))
        except PanelRefuses as refused:
            return Failed(str(refused), "launch_failed", retryable=False)
        self._output.add(f"POST {self._panel.url}{path}: {status_line(answer)}")
        found = read_launch(answer)
        return self._output.busy(found.error) if isinstance(found, Unavailable) else found

    def _headers(self) -> dict[str, str]:
        """Return the headers that name the cause and the flow: ASCII, on one line."""
        is_requested = bool(self._attempt.request_id)
        extra = {
            "triggered_by": self._attempt.cause if is_requested else TRIGGERED_BY,
            "schedule_key": self._output.key,
        }
        return {"x-kodosumi_extra": dumps(extra), "Idempotency-Key": self._attempt.key}


async def _wait_briefly(task: asyncio.Task[Outcome | None]) -> None:
    """Wait for a task for a limited time, then cancel it."""
    done, _ = await asyncio.wait([task], timeout=LAST_WORDS)
    if not done:
        task.cancel()
        await asyncio.wait([task])
