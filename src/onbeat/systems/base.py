"""What systems share: periodic work beside a node, checks of peers, a cluster."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, cast

from onbeat.core.runs.run import Failed, Outcome
from onbeat.errors import OnbeatError
from onbeat.events import Event, RunCanceled, RunFailed
from onbeat.ports.http import HttpResponse
from onbeat.ports.store import Attempt
from onbeat.ports.system import PeerCheck
from onbeat.service.process import Process

log = logging.getLogger("onbeat.systems")

TIDIED_EVERY = 60.0  # seconds between two clean-ups


class PeriodicTask:
    """Runs a step periodically: when woken, and after `every` seconds at the latest.

    A failing step is logged, once for each reason, and retried; a step must be safe to repeat.
    """

    def __init__(self, name: str, step: Callable[[], Awaitable[None]], *, every: float) -> None:
        self._name, self._step, self._every = name, step, every
        self._wake_up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_problem = ""

    def start(self) -> None:
        """Start the task, unless it is running."""
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def wake(self) -> None:
        """Run a step now, or once more after the step that is running."""
        self._wake_up.set()

    async def stop(self) -> None:
        """Stop between two steps."""
        if self._task is not None:
            task, self._task = self._task, None
            self._wake_up.set()
            await asyncio.wait([task])

    async def abandon(self) -> None:
        """Stop, even in the middle of a step."""
        if self._task is not None:
            self._task.cancel()
            await self.stop()

    async def _work(self) -> None:
        while self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake_up.wait()
            self._wake_up.clear()
            if self._task is None:
                return
            try:
                await self._step()
                self._last_problem = ""
            except (OnbeatError, OSError) as failed:
                if str(failed) != self._last_problem:
                    self._last_problem = str(failed)
                    message = "background task %s failed: %s (retried every %g s)"
                    log.warning(message, self._name, failed, self._every)
            except Exception:
                log.exception(
                    "background task %s crashed: this is a bug of Onbeat, please report it",
                    self._name,
                )


class PeriodicCleanup:
    """Cleans up beside a node: every minute, and when a run may have left something."""

    def __init__(self, name: str, tidy: Callable[[], Awaitable[None]]) -> None:
        self._keeper = PeriodicTask(name, tidy, every=TIDIED_EVERY)

    async def start(self) -> None:
        self._keeper.start()

    def on_events(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - a listener
        """Wake up when a run was canceled or has failed."""
        if any(isinstance(event, (RunCanceled, RunFailed)) for event in events):
            self._keeper.wake()

    async def stop(self) -> None:
        await self._keeper.abandon()


def peer_answers(name: str, url: str, answer: HttpResponse | Failed, hint: str) -> PeerCheck:
    """Return the check of a server: any status but 5xx shows that it works."""
    if isinstance(answer, Failed):
        return PeerCheck(name, "fail", f"{url} does not answer: {answer.error}", hint)
    if answer.status >= 500:
        return PeerCheck(name, "fail", f"{url} answers {answer.error}", "read its log")
    return PeerCheck(name, "ok", f"{url} answers (HTTP {answer.status})")


class Cluster(Protocol):
    """A Ray cluster, as far as other systems use it: the surface of the plug `ray`."""

    on_begun: Callable[[Attempt, str], None] | None  # called with the actor of a run that has begun

    async def run_dag(
        self, key: str, dag: Mapping[str, object], meta: Mapping[str, object]
    ) -> Outcome:
        """Run the nodes of a DAG, each after its dependencies. The same key is the same run."""

    async def mirror(self, name: str, namespace: str, meta: Mapping[str, object]) -> None:
        """Show a value as an actor of the cluster, if the cluster can be reached."""


def cluster_of(process: Process) -> Cluster | None:
    """Return the Ray cluster of the settings, or None if they name none."""
    found = process.part("ray").surface if process.settings.value("ray_address") else None
    return None if found is None else cast("Cluster", found)
