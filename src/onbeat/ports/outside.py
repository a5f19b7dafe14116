"""The contracts of what acts in the world: `Launcher`, `Notifier`, and how requests are sent."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from onbeat.core.notify.notifications import Delivery, OutgoingMessage
from onbeat.core.runs.run import Failed, Outcome
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule, naming
from onbeat.events import Event
from onbeat.ports.store import Attempt

NO_HEADERS: Mapping[str, str] = {}


class Launcher(Protocol):
    """The adapter that starts one kind of target."""

    def check(self, target: Target) -> None:
        """Refuse a target that could never be launched, with InvalidSchedule."""

    def can_cancel(self, target: Target) -> bool:
        """Return whether what was started can be ended, as `overlap: replace` needs it."""

    async def launch(self, attempt: Attempt) -> tuple[Outcome, str]:
        """Run one attempt to its end; return the outcome and the last of what it printed.

        Cancelling the call ends the target. It raises nothing of its own.
        """

    def kill(self, run_ids: Collection[int]) -> None:
        """End at once, as far as that can be, what is being ended: others may start it again."""

    async def recover(self) -> int:
        """End what nodes that died had launched on this machine; return how many."""

    def offers(self) -> Iterable[str]:
        """Return what a node with this launcher offers."""

    async def close(self) -> None:
        """End what is left."""


@runtime_checkable
class Reattaches(Launcher, Protocol):
    """A launcher whose targets go on without their node, and are found again by the run's key.

    Launched again after an attempt that may still run (`may_run`), it finds that one. It starts
    another only if there is none and the attempt is to be made `at_least_once`.
    """

    def leave(self, run_ids: Collection[int]) -> Collection[int]:
        """Let go of runs, whose launches are then cancelled and end nothing; return which."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered: what its body says as JSON, or else its text."""

    status: int
    phrase: str  # such as Not Found
    body: object = None

    @property
    def error(self) -> str:
        """What is told of an answer that is no success."""
        return f"HTTP {self.status}: {self.phrase}" if self.phrase else f"HTTP {self.status}"


class SendRequest(Protocol):
    """How a launcher sends one request, whatever the server then answers."""

    async def __call__(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout: int = 60_000,  # noqa: ASYNC109 - milliseconds, as a policy has them
        public_only: bool = False,
        secrets: Mapping[str, str] = NO_HEADERS,
    ) -> HttpResponse | Failed:
        """Return the answer, or why there is none. A body goes as JSON; no redirect is followed.

        Headers may name secrets, and so may `secrets`, which are further fields of the body:
        neither the answer nor a failure tells them.
        """


class Notifier(Protocol):
    """The adapter that delivers the messages of one channel."""

    async def send(self, letter: OutgoingMessage) -> Delivery:
        """Send a message, once, and return what is known of it. It raises nothing of its own.

        Cancelling the call gives up: it then returns at once whether anything was sent.
        """


Callback = Callable[[str], Awaitable[Mapping[str, str]]]
"""The headers that say how to tell of the end of a run that has this key."""
Listener = Callable[[int, Sequence[Event]], None]
"""`(at, events)`: what a transaction told, once it is durable, and its `now`."""
Launchers = Mapping[str, Launcher]  # by the kind of target


def check_launch(schedule: Schedule, launchers: Launchers) -> None:
    """Refuse a schedule whose target, or condition, could never be launched."""
    with naming("run"):
        launcher = _launcher_of(schedule.target, launchers)
        launcher.check(schedule.target)
    if schedule.policy.overlap == "replace" and not launcher.can_cancel(schedule.target):
        problem = "what it starts cannot be ended, so that nothing could take its place"
        raise InvalidSchedule("overlap", problem, hint="skip, queue or allow")
    if schedule.when is not None:
        with naming("when"):
            _launcher_of(schedule.when, launchers).check(schedule.when)


def _launcher_of(target: Target, launchers: Launchers) -> Launcher:
    launcher = launchers.get(target.kind)
    if launcher is None:
        raise InvalidSchedule(
            target.kind, "nothing launches it", hint=f"known: {', '.join(launchers)}"
        )
    return launcher
