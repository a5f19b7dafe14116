"""A store that is open, with everything that works on it: the launchers, a node, and its clock.

The one file that names stores, launchers and the real clock.
"""

import asyncio
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import onbeat
from onbeat.app import logs, notifications
from onbeat.app.metrics import Metrics
from onbeat.app.settings import Settings
from onbeat.core.schedule import Schedule
from onbeat.core.target import ON_RAY
from onbeat.engine.node import Engine
from onbeat.engine.store_retry import until_answered
from onbeat.errors import (
    InvalidFile,
    InvalidSettings,
    NodeForgotten,
    StoreFailed,
    StoreHeld,
    StoreUnusable,
)
from onbeat.events import Event
from onbeat.launchers.command import PASSED, ProcessLauncher, forget_output, output_path
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.launchers.python.launcher import FunctionLauncher
from onbeat.launchers.python.threads import CallThreads
from onbeat.ports.outside import Launcher, Listener, check_launch
from onbeat.ports.store import Attempt, Clock, Node
from onbeat.service.service import Service
from onbeat.service.tokens import Tokens
from onbeat.sources.local_zone import local_zone
from onbeat.stores.sql.store import SqlStore
from onbeat.stores.sqlite.store import LockHolder, SqliteStore, who_holds
from onbeat.systems.agents.flock import FlockLauncher
from onbeat.systems.flows.launcher import FlowLauncher
from onbeat.systems.flows.panel import Panel
from onbeat.systems.ray.launcher import RayLauncher
from onbeat.systems.ray.link import Link
from onbeat.systems.sessions.launcher import SessionLauncher
from onbeat.systems.workflows.executors import (
    CallableExecutor,
    Executor,
    HttpExecutor,
    RayExecutor,
    Submit,
)
from onbeat.systems.workflows.launcher import WorkflowLauncher
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import DatabaseStore, DirectoryStore, WorkflowStore

if TYPE_CHECKING:
    from onbeat.app.peers import PeerCheck
    from onbeat.stores.postgres.store import PostgresStore

log = logging.getLogger("onbeat.engine")

TAKE_OVER_EVERY = 0.5  # seconds between two tries of a client to become the node


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class OpenInstallation:
    """An open store with everything that works on it."""

    def __init__(
        self,
        settings: Settings,
        store: SqlStore,
        launchers: Mapping[str, Launcher],
        functions: FunctionLauncher,
        *,
        output: Path,
        new_id: Callable[[], str],
        metrics: Metrics,
        listeners: list[Listener],
        executor: Executor | None = None,
    ) -> None:
        self._settings, self._store, self.metrics = settings, store, metrics
        self.executor = executor  # of workflows, if there is one
        self.listeners, self.address = listeners, ""
        self._functions, self._output = functions, output
        self._launchers, self._new_id = launchers, new_id
        self.service = Service(store, launchers, new_id=new_id, wake=self.wake)
        self.engine: Engine | None = None
        self._minding: asyncio.Task[None] | None = None
        # Done when the node was asked to stop, and has; or with what made it fail.
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def make(
        cls,
        settings: Settings,
        clock: Clock | None,
        own: Mapping[str, Launcher],
        functions: FunctionLauncher,
        new_id: Callable[[], str],
        *,
        address: str = "",
        execute: Callable[..., object] | None = None,
    ) -> Self:
        """`address` is where its API is, if it has one; `execute` runs DAGs in this program."""
        metrics = Metrics()
        listeners: list[Listener] = [metrics.tell, lambda _, events: logs.write_log(events)]
        store = await _open_store(settings, clock, listeners)
        store.marks_successes = notifications.wants_successes(settings)
        output = settings.output_folder or Path(tempfile.gettempdir()) / f"onbeat-{store.store_id}"
        passed = set(settings.pass_env) & os.environ.keys()
        requests = HttpLauncher(
            version=onbeat.__version__,
            environment={name: os.environ[name] for name in passed},
            concurrency=settings.concurrency,
            public_only=settings.http_targets == "public",
            secrets=settings.secrets,
            callback=Tokens(store).callback(settings.public_url),
        )
        functions_on_ray = _on_ray(settings, store, partial(output_path, output))
        listeners.append(functions_on_ray.heard)
        run_dag = functions_on_ray.run_dag
        flows = _flows(settings, requests, store)
        listeners.append(flows.heard)
        executor = _executor(settings, requests, Tokens(store), address, execute, run_dag=run_dag)
        dags = workflow_store(settings, DatabaseStore(store))
        launchers: dict[str, Launcher] = {
            "command": _commands(settings, store, output),
            "python": functions,
            "ray": functions_on_ray,
            "http": requests,
            "session": _prompts(settings, requests, store, address),
            "flock": FlockLauncher(
                check_url=requests.check,
                ask=requests.ask,
                public_only=settings.http_targets == "public",
            ),
            "workflow": WorkflowLauncher(
                RunLauncher(dags, executor, clock=store.clock),
                report_timeout=settings.workflows_timeout,
            ),
            "flow": flows,
            **own,
        }
        found = cls(
            settings, store, launchers, functions, output=output, new_id=new_id, metrics=metrics,
            listeners=listeners, executor=executor,
        )  # fmt: skip
        found.address = address
        return found

    async def take_over(self, first: Callable[[], Awaitable[None]]) -> None:
        """Begin as soon as no other process is the node; `first` do that."""
        told = ""
        while self.engine is None:
            await asyncio.sleep(TAKE_OVER_EVERY)
            try:
                await self.begin(first)
            except StoreHeld:
                continue
            except (InvalidFile, StoreFailed) as wrong:  # it may be right at the next try
                if str(wrong) != told:
                    told = str(wrong)
                    log.error("cannot become the node yet: %s", told)  # noqa: TRY400 - it is told
        log.warning("took over: this process is the node now")

    async def begin(
        self, first: Callable[[], Awaitable[None]] | None = None, *, until: float = 0.0
    ) -> None:
        """Run as a node, until asked to stop; do something `first`, when none other can be it.

        While the store fails, both are tried again until `until`, by the clock of the event loop.
        """
        _make_writable(self._output)
        join = partial(self._join, first)
        self.engine = await until_answered(join, "the node is not up yet", until=until)
        self._minding = asyncio.create_task(self._mind(self.engine))

    async def _mind(self, engine: Engine) -> None:
        """See to it that the node stops when it is asked to, and joins anew if others forgot it."""
        try:
            while await self._until_asked_to_stop(engine):
                await engine.stop(0)
                self.engine = engine = await until_answered(self._join, "cannot join again")
            log.warning("asked to stop by onbeat down")
            self.engine = None
            await engine.stop(self._settings.stop_grace / 1000)
        except Exception as broken:  # noqa: BLE001 - whoever waits for the end is to have it
            self.ended.set_exception(broken)
            self.ended.exception()  # told
        else:
            self.ended.set_result(None)

    async def _until_asked_to_stop(self, engine: Engine) -> bool:
        """Wait until a node is to stop, or to join anew, which this returns; or raise its error."""
        asked = asyncio.ensure_future(engine.asked_to_stop.wait())
        either: list[asyncio.Future[Any]] = [asked, engine.failed]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        error = engine.failed.exception() if engine.failed.done() else None
        if error is not None and not isinstance(error, NodeForgotten):
            raise error
        if error is not None:
            log.warning("joins anew as another node: %s", error)
        return error is not None

    async def _join(self, first: Callable[[], Awaitable[None]] | None = None) -> Engine:
        offers = {name for launcher in self._launchers.values() for name in launcher.offers()}
        offers |= set(self._functions.offers())  # whoever launches them
        roles = self._settings.roles
        node = Node(
            self._new_id(),
            f"{socket.gethostname()}:{os.getpid()}",
            frozenset(offers if "run" in roles else ()),
            self._settings.lease,
            onbeat.__version__,
            frozenset(role for role in roles if role != "api" or self.address),
            self.address,
        )
        engine = Engine(
            self._store,
            self._store.clock,
            node,
            self._launchers,
            concurrency=self._settings.concurrency,
            catchup_per_second=self._settings.catchup_per_second,
            lookahead=self._settings.lookahead,
            keep=self._settings.keep,
            forget=partial(forget_output, self._output),
            outbox=notifications.outbox(self._settings, self._store),
        )
        if first is not None:
            await self._store.hold(node)
            await first()
        await engine.start()
        return engine

    @property
    def store_id(self) -> str:
        """What tells this store from any other."""
        return self._store.store_id

    async def tidy_sessions(self) -> None:
        """Delete chat sessions that were made for one run, and are not needed any more."""
        launcher = self._launchers["session"]
        if isinstance(launcher, SessionLauncher):
            await launcher.tidy()

    async def tidy_runners(self) -> None:
        """End what is left on the Ray cluster of runs that are over."""
        launcher = self._launchers["ray"]
        if isinstance(launcher, RayLauncher):
            await launcher.tidy()

    async def look_at_panel(self) -> str:
        """Return why the panel of flows does not let the timer in, or nothing if it does."""
        launcher = self._launchers["flow"]
        return await launcher.look() if isinstance(launcher, FlowLauncher) else ""

    def when_begun_on_ray(self, tell: Callable[[Attempt, str], None]) -> None:
        """Tell of each run that the Ray cluster has begun, with what it calls its actor."""
        launcher = self._launchers["ray"]
        if isinstance(launcher, RayLauncher):
            launcher.on_begun = tell

    async def show_on_cluster(self, name: str, namespace: str, meta: Mapping[str, object]) -> None:
        """Have an actor of this name on the Ray cluster tell this."""
        launcher = self._launchers["ray"]
        if isinstance(launcher, RayLauncher):
            await launcher.mirror(name, namespace, meta)

    def hurry(self) -> None:
        """End what still runs, without waiting for its grace."""
        if self.engine is not None:
            self.engine.hurry()

    def wake(self) -> None:
        """Have the engine look again at once."""
        if self.engine is not None:
            self.engine.look_again()

    async def stop(self) -> None:
        """Stop the node, if there is one, when what it runs has ended or its grace is over."""
        if self._minding is not None:
            if self.engine is not None:  # else it is stopping already
                self._minding.cancel()
            await asyncio.wait([self._minding])
        if self.engine is not None:
            await self.engine.stop(self._settings.stop_grace / 1000)

    async def close(self) -> None:
        """Close the store, and what else is open. The node has stopped."""
        try:
            for launcher in self._launchers.values():
                await launcher.close()
        finally:
            await self._store.close()
            if self._settings.output_folder is None:  # what is in memory leaves nothing behind
                shutil.rmtree(self._output, ignore_errors=True)


def _commands(settings: Settings, store: SqlStore, output: Path) -> ProcessLauncher:
    # A copy of the file has the same id: it must not end what the original has running.
    path = store.path if isinstance(store, SqliteStore) else None
    inode = f"-{path.stat().st_ino:x}" if path is not None else ""
    return ProcessLauncher(
        output,
        store_id=f"{store.store_id}{inode}",
        environment=os.environ,
        passed=(*PASSED, *settings.pass_env),
        secrets=settings.secrets,
    )


def _on_ray(
    settings: Settings, store: SqlStore, path_of: Callable[[int, int], Path]
) -> RayLauncher:
    """Return what runs functions on the cluster of the settings, if they name one."""
    if not settings.ray_address:
        return RayLauncher(None)
    folder = settings.ray_working_dir
    link = Link(
        settings.ray_address,
        f"onbeat-{store.store_id}",  # so that no other scheduler's runs have the same name
        environment=os.environ,
        working_dir=str(Path(folder).expanduser().absolute()) if folder else "",
        lease=settings.ray_lease / 1000,
    )
    return RayLauncher(link, books=store, path_of=path_of)


def _prompts(
    settings: Settings, requests: HttpLauncher, store: SqlStore, address: str
) -> SessionLauncher:
    return SessionLauncher(
        check_url=requests.check,
        url=settings.sessions_url,
        ask=requests.ask,
        store=store,
        cwd=settings.sessions_cwd or str(Path.cwd()),
        busy_delay=settings.sessions_busy_delay,
        most=settings.sessions_most,
        callback=Tokens(store).callback(settings.public_url or address),
        public_only=settings.http_targets == "public",
    )


def _flows(settings: Settings, requests: HttpLauncher, store: SqlStore) -> FlowLauncher:
    if not settings.flows_panel:
        return FlowLauncher()
    panel = Panel(
        requests.ask,
        settings.flows_panel,
        user=settings.flows_user,
        password=settings.flows_password,
    )
    return FlowLauncher(panel, store, interval=settings.flows_interval)


async def _open_store(
    settings: Settings, clock: Clock | None, listeners: Sequence[Listener]
) -> SqlStore:
    def listener(at: int, events: Sequence[Event]) -> None:
        for each in listeners:
            each(at, events)

    if settings.is_postgres:
        return await open_postgres(settings, clock, listener)
    path = settings.database_path
    return await SqliteStore.open(path, clock=clock or SystemClock(), listener=listener)


async def open_postgres(
    settings: Settings, clock: Clock | None = None, listener: Listener | None = None
) -> "PostgresStore":
    """Open the store that settings name on PostgreSQL, whose driver is an extra."""
    try:
        from onbeat.stores.postgres.store import PostgresStore  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        problem = "PostgreSQL needs a driver that is not installed"
        raise StoreUnusable(f"{problem} (pip install 'onbeat[postgres]')") from None
    return await PostgresStore.open(settings.database, clock=clock, listener=listener)


def output_file(settings: Settings, run_id: int, attempt: int) -> Path | None:
    """Return where an attempt's output is, or was, if it is in a file."""
    folder = settings.output_folder
    return None if folder is None else output_path(folder, run_id, attempt)


def check_target(schedule: Schedule) -> None:
    """Refuse a schedule whose target could never be launched, without a store."""
    check_launch(schedule, launchers_that_check())


@cache
def launchers_that_check() -> Mapping[str, Launcher]:
    """Return launchers that can tell what they could not launch, and launch nothing."""
    requests = HttpLauncher(version=onbeat.__version__, environment={})
    return {
        "command": ProcessLauncher(Path(), environment={}),
        "python": FunctionLauncher(),
        "ray": RayLauncher(None),
        "http": requests,
        # Which server an operator has is not known here: one that names none may be right.
        "session": SessionLauncher(check_url=requests.check, url="http://localhost"),
        "flock": FlockLauncher(check_url=requests.check),
        "workflow": WorkflowLauncher(None),
        "flow": FlowLauncher(),
    }


def workflow_store(settings: Settings, in_database: DatabaseStore) -> WorkflowStore:
    """Return where the DAGs of workflows are: in the folder that settings name, if they do."""
    folder = settings.workflows_folder
    return DirectoryStore(folder) if folder else in_database


def _executor(
    settings: Settings,
    requests: HttpLauncher,
    tokens: Tokens,
    address: str,
    execute: Callable[..., object] | None,
    *,
    run_dag: Submit,
) -> Executor | None:
    """Return who runs DAGs: a function of this program, or else what the settings name."""
    if execute is not None:
        return CallableExecutor(execute, in_thread=CallThreads(settings.concurrency).call)
    if not settings.workflows_executor:
        return None
    if settings.workflows_executor == ON_RAY:
        return RayExecutor(run_dag)
    there = settings.public_url or address
    return HttpExecutor(
        settings.workflows_executor,
        requests.ask,
        token=settings.workflows_token,
        feedback=settings.workflows_feedback,
        callback=tokens.callback(there) if there else None,
    )


async def peers_of(settings: Settings, *, is_start: bool = False) -> "Sequence[PeerCheck]":
    """Return what the peers answer that settings name: see `peers`."""
    from onbeat.app.peers import ask_peers  # noqa: PLC0415 - it loads a client for each kind of them

    return await ask_peers(settings, os.environ, version=onbeat.__version__, is_start=is_start)


def zone_of_machine() -> str:
    """Return the name of the zone that this machine is in."""
    return local_zone(os.environ.get("TZ"), Path("/etc"))


def _make_writable(folder: Path) -> None:
    """Make the folder that output goes to, or refuse one that cannot be written to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as broken:
        problem = f"{folder} cannot be made: {broken.strerror}"
        raise InvalidSettings("output", problem, hint="a folder for what runs print") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{folder} cannot be written to"
        raise InvalidSettings("output", problem, hint="a folder for what runs print")


def holder(settings: Settings) -> LockHolder | None:
    """Return the node that has the file of a database now, if one has."""
    return None if settings.database_path is None else who_holds(settings.database_path)
