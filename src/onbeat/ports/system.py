"""What a plug refers to: its part of a process, its files, and the programs it depends on.

The declaration itself is in `ports/plug.py`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeVar

from onbeat.events import Event
from onbeat.ports.http import SendRequest
from onbeat.ports.launcher import Launcher
from onbeat.ports.store import Listener

T = TypeVar("T")


class BackgroundSystem(Protocol):
    """A system that runs in the background while a node is up."""

    async def start(self) -> None:
        """Bring the store in step with the system's files; nothing is planned before that."""

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Handle events committed by this process. It must be quick and must not raise."""

    async def stop(self) -> None:
        """Bring the files up to date, and stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a plug made for one process.

    `background` starts when the process becomes a node that plans. `listeners` get the events that
    the process commits. `surface` is what routes, pages and programs work with; None if the system
    is off.
    """

    launchers: Mapping[str, Launcher] = field(default_factory=dict)  # by kind of target
    background: Sequence[BackgroundSystem] = ()
    listeners: Sequence[Listener] = ()
    surface: object = None


NO_PART = Part()


class SourceFile(NamedTuple):
    """A file or folder of definitions, and the problems in it; reading them may raise."""

    name: str
    problems: Callable[[], Iterable[str]]


@dataclass(frozen=True, slots=True)
class PeerCheck:
    """The result of checking a peer. `fail`: runs cannot work; `warn`: notifications cannot."""

    name: str
    level: Literal["ok", "warn", "fail"]
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that Onbeat depends on, and its check, which has no effect."""

    name: str
    check: Callable[[], Awaitable[PeerCheck]]
    longest: float | None = None  # seconds; None: the time of the context
    level: Literal["warn", "fail"] = "fail"  # of no answer in time


class Groups(Protocol):
    """The settings of plugs."""

    def of(self, group: type[T]) -> T:
        """Return the settings of a group."""

    def value(self, name: str) -> object:
        """Return a setting by its full name, such as `ray_address`; None if there is none."""


@dataclass(frozen=True, slots=True)
class PeerContext:
    """What the checks of peers work with. At a start they take as little time as possible."""

    settings: Groups
    ask: SendRequest
    environment: Mapping[str, str]
    is_start: bool
    answers_within: float  # seconds in which a peer has to answer

    @property
    def request_timeout(self) -> int:
        """The milliseconds for one request: its own error is reported, not that of the check."""
        return round(self.answers_within * 900)
