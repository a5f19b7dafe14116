"""Flows on a panel: `run: {flow: {url: /-/127.0.0.1/8125/-/}, inputs: {...}}`.

A flow is launched by `POST {panel}{url}` and followed until it ends. An answer 200 with `errors` is
a refusal: nothing was started. A launch is logged before it is requested, so that the next attempt
continues it after any failure, and there is no second launch.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

from onbeat.core.runs.run import Failed, Outcome
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule, OnbeatError
from onbeat.events import Event, RunCanceled, RunFailed, RunRetrying, RunSucceeded
from onbeat.ports.store import Attempt, Store
from onbeat.systems.flows.attempt import FlowAttempt
from onbeat.systems.flows.cancellations import Cancellations
from onbeat.systems.flows.launch_log import LaunchLog
from onbeat.systems.flows.panel import Panel, PanelAway, PanelRefuses
from onbeat.systems.flows.target import check_flow, read_flow


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
            interval=self._interval,
        )  # fmt: skip
        self._followed[attempt.run_id] = flow_attempt
        self._unrecorded.discard(attempt.run_id)
        try:
            outcome = await flow_attempt.run()
            self._unrecorded.add(attempt.run_id)
        except asyncio.CancelledError:
            if not flow_attempt.release.is_left:
                self._unrecorded.add(attempt.run_id)
            raise
        finally:
            self._followed.pop(attempt.run_id, None)
        return outcome, "".join(f"{line}\n" for line in flow_attempt.output.lines)

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Leave flows to another node: they continue, and the next attempt reattaches them.

        A flow that is being canceled is not left.
        """
        left = self._followed.keys() & set(run_ids)
        return frozenset(each for each in left if self._followed[each].release.leave())

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
