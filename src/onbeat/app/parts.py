"""The parts of a process: what each plug has made for it."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import onbeat
from onbeat.app.output import output_folder
from onbeat.app.package_parts import checked_part, guarded_launchers
from onbeat.app.settings import Settings
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.errors import OnbeatError
from onbeat.events import Event
from onbeat.host.plugs import guard, load_function, plugs
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.launchers.python.launcher import FunctionLauncher
from onbeat.launchers.python.threads import CallThreads
from onbeat.ports.launcher import Launcher, check_launch
from onbeat.ports.plug import Plug
from onbeat.ports.store import Listener
from onbeat.ports.system import NO_PART, BackgroundSystem, Part
from onbeat.service.process import CheckUrl, Process
from onbeat.service.service import Service
from onbeat.service.tokens import Tokens
from onbeat.stores.sql.store import SqlStore
from onbeat.stores.sqlite.store import SqliteStore

log = logging.getLogger("onbeat.systems")

MakePart = Callable[[Process], Part]
MakeCheckers = Callable[[CheckUrl], Mapping[str, Launcher]]


class ProcessParts(Mapping[str, object]):
    """The launchers and the systems of one process on one store.

    As a mapping it has the surface of each system that is on, by the name of its plug. `address` is
    where this process serves the API, if it does; `execute` runs DAGs in this program; `own`
    replaces launchers by kind.
    """

    def __init__(
        self,
        settings: Settings,
        store: SqlStore,
        functions: FunctionLauncher | None = None,
        *,
        new_id: Callable[[], str],
        wake: Callable[[], None] = lambda: None,
        own: Mapping[str, Launcher] | None = None,
        execute: Callable[..., object] | None = None,
        address: str = "",
    ) -> None:
        self.functions = functions or FunctionLauncher(concurrency=settings.concurrency)
        self.output = output_folder(settings, store.store_id)
        self.launchers: dict[str, Launcher] = {}  # by kind of target
        self.service = Service(store, self.launchers, new_id=new_id, wake=wake)
        self._parts: dict[str, Part] = {}
        process = Process(
            service=self.service,
            store=store,
            store_id=store.store_id,
            file_id=_file_id(store),
            settings=settings,
            environment=os.environ,
            requests=_requests(settings, store),
            functions=self.functions,
            output=self.output,
            address=address,
            call_in_thread=CallThreads(settings.concurrency).call,
            execute=execute,
            parts=self._parts,
        )
        for plug in plugs():
            if plug.make:
                with guard(plug, "make"):
                    make: MakePart = load_function(plug.make)
                    part = self._parts[plug.name] = checked_part(plug, make(process))
                    self.launchers |= part.launchers
        self.launchers |= own or {}
        self._started: list[tuple[Plug, BackgroundSystem]] = []

    def __getitem__(self, name: str) -> object:
        surface = self._parts[name].surface
        if surface is None:
            raise KeyError(name)
        return surface

    def __iter__(self) -> Iterator[str]:
        return (name for name, part in self._parts.items() if part.surface is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def listeners(self) -> list[Listener]:
        """What gets the events that this process commits."""
        return [*(each for part in self._parts.values() for each in part.listeners), self.on_events]

    def offers(self) -> frozenset[str]:
        """Return everything that a node with these launchers can start."""
        names = {name for launcher in self.launchers.values() for name in launcher.offers()}
        return frozenset(names | set(self.functions.offers()))

    async def start(self) -> None:
        """Start each system that has not started: this process is the node, and has no plan yet."""
        for plug in plugs():
            for each in self._parts.get(plug.name, NO_PART).background:
                if not any(each is started for _, started in self._started):
                    with guard(plug, "start of its background system"):
                        await each.start()
                        self._started.append((plug, each))

    async def stop(self) -> None:
        """Stop what was started, in reverse order. A failure is logged, and the rest is stopped."""
        while self._started:
            plug, each = self._started.pop()
            try:
                with guard(plug, "stop of its background system"):
                    await each.stop()
            except (OnbeatError, OSError) as failed:
                log.warning("a system did not stop cleanly: %s", failed)

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Pass committed events to the systems that have started."""
        for plug, each in self._started:
            with guard(plug, "on_events of its background system", refusals=True):
                each.on_events(at, events)

    async def close(self) -> None:
        """Close every launcher."""
        for launcher in self.launchers.values():
            await launcher.close()


def check_target(schedule: Schedule) -> None:
    """Refuse a schedule whose target could never be launched, without a store."""
    check_launch(schedule, checking_launchers())


@cache
def checking_launchers() -> Mapping[str, Launcher]:
    """Return launchers that check targets and launch nothing."""
    found: dict[str, Launcher] = {}

    def check_url(target: Target) -> None:
        found[target.kind].check(target)

    for plug in plugs():
        if plug.checkers:
            with guard(plug, "checkers"):
                make: MakeCheckers = load_function(plug.checkers)
                found |= guarded_launchers(plug, make(check_url))
    return found


def _requests(settings: Settings, store: SqlStore) -> HttpLauncher:
    passed = set(settings.pass_env) & os.environ.keys()
    return HttpLauncher(
        version=onbeat.__version__,
        environment={name: os.environ[name] for name in passed},
        concurrency=settings.concurrency,
        public_only=settings.public_only,
        secrets=settings.secrets,
        callback=Tokens(store).callback(settings.public_url),
    )


def _file_id(store: SqlStore) -> str:
    """Return the id of a database on this machine.

    A copy of a file has another, and must not end the processes of the original.
    """
    path: Path | None = store.path if isinstance(store, SqliteStore) else None
    inode = f"-{path.stat().st_ino:x}" if path is not None else ""
    return f"{store.store_id}{inode}"
