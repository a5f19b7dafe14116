"""`Plug`: what a launcher or a system adds to Onbeat, declared in its folder.

Every plug is found by the same table, `host/plugs.py`: those of Onbeat, and those of installed
packages. Its declaration is cheap to import. The rest is named by references, such as
`package.module:name`, which are imported when they are needed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeVar

from onbeat.core.fields import Field
from onbeat.core.target_kinds import TargetKind
from onbeat.events import Event
from onbeat.ports.http import SendRequest
from onbeat.ports.launcher import Launcher
from onbeat.ports.store import Listener

T = TypeVar("T")
Reference = str


class Variable(NamedTuple):
    """A variable by which users of a replaced scheduler set a setting of Onbeat."""

    setting: str  # its full name; empty: the variable is accepted and has no effect
    field: Field | None = None  # how the variable is read, if unlike the setting
    scale: int | None = None  # what a number is multiplied by


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line: the reference of its click command, and a line of help."""

    command: Reference
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug:
    """What a launcher or a system adds. Everything but the name may be left out.

    `make` is called once in each process, as `make(process: Process) -> Part`, in the order of the
    table. `checkers` returns launchers that check targets and launch nothing, by kind; it is called
    as `checkers(check_url)`, with a function that refuses an invalid `http` target.
    """

    name: str
    kinds: tuple[TargetKind, ...] = ()
    settings: type[object] | None = None  # its group of settings: see `core/fields.py`
    variables: Mapping[str, Variable] = field(default_factory=dict)  # of a replaced scheduler
    make: Reference = ""
    checkers: Reference = ""
    routes: Reference = ""  # a list of Litestar handlers, outside the prefix of the API
    api_routes: Reference = ""  # the same, below the prefix of the API
    bodies: Reference = ""  # JSON Schemas of request bodies: (name, schema) by operation id
    sections: Reference = ""  # of the dashboard: `async (service, surface) -> HTML`
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    checks: Reference = ""  # of `onbeat doctor`: a tuple of functions
    # Files that define something: `(Groups) -> Iterator[SourceFile]`, for `onbeat doctor`.
    source_files: Reference = ""
    peers: Reference = ""  # programs that it depends on: `(PeerContext) -> Sequence[Peer]`


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
    longest: float = 5.0  # seconds
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
