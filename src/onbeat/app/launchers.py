"""The launchers of a process, made as its settings specify: the one list of their kinds."""

import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import onbeat
from onbeat.app.output import output_folder
from onbeat.app.settings import Settings
from onbeat.core.schedule import Schedule
from onbeat.core.target import ON_RAY
from onbeat.launchers.command import PASSED, ProcessLauncher, output_path
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.launchers.python.launcher import FunctionLauncher
from onbeat.launchers.python.threads import CallThreads
from onbeat.ports.launcher import Launcher, check_launch
from onbeat.ports.store import Listener
from onbeat.service.tokens import Tokens
from onbeat.stores.sql.store import SqlStore
from onbeat.stores.sqlite.store import SqliteStore
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


class LauncherSet:
    """The launchers of one process on one store, by kind of target.

    `address` is where this process serves the API, if it does; `execute` runs DAGs in this program;
    `own` replaces launchers by kind.
    """

    def __init__(
        self,
        settings: Settings,
        store: SqlStore,
        functions: FunctionLauncher | None = None,
        *,
        own: Mapping[str, Launcher] | None = None,
        execute: Callable[..., object] | None = None,
        address: str = "",
    ) -> None:
        self.functions = functions or FunctionLauncher(concurrency=settings.concurrency)
        self.output = output_folder(settings, store.store_id)
        passed = set(settings.pass_env) & os.environ.keys()
        requests = HttpLauncher(
            version=onbeat.__version__,
            environment={name: os.environ[name] for name in passed},
            concurrency=settings.concurrency,
            public_only=settings.http_targets == "public",
            secrets=settings.secrets,
            callback=Tokens(store).callback(settings.public_url),
        )
        self.ray = _on_ray(settings, store, partial(output_path, self.output))
        self.flows = _flows(settings, requests, store)
        self.sessions = _sessions(settings, requests, store, address)
        self.listeners: list[Listener] = [self.ray.on_events, self.flows.on_events]
        self.executor = _executor(  # of workflows; None: the settings name none
            settings, requests, Tokens(store), address, execute, run_dag=self.ray.run_dag
        )
        dags = workflow_store(settings, DatabaseStore(store))
        self.by_kind: dict[str, Launcher] = {
            "command": _commands(settings, store, self.output),
            "python": self.functions,
            "ray": self.ray,
            "http": requests,
            "session": self.sessions,
            "flock": FlockLauncher(
                check_url=requests.check,
                ask=requests.ask,
                public_only=settings.http_targets == "public",
            ),
            "workflow": WorkflowLauncher(
                RunLauncher(dags, self.executor, clock=store.clock),
                report_timeout=settings.workflows_timeout,
            ),
            "flow": self.flows,
            **(own or {}),
        }

    def offers(self) -> frozenset[str]:
        """Return everything that a node with these launchers can start."""
        names = {name for launcher in self.by_kind.values() for name in launcher.offers()}
        return frozenset(names | set(self.functions.offers()))

    async def close(self) -> None:
        """Close every launcher."""
        for launcher in self.by_kind.values():
            await launcher.close()


def check_target(schedule: Schedule) -> None:
    """Refuse a schedule whose target could never be launched, without a store."""
    check_launch(schedule, checking_launchers())


@cache
def checking_launchers() -> Mapping[str, Launcher]:
    """Return launchers that check targets and launch nothing."""
    requests = HttpLauncher(version=onbeat.__version__, environment={})
    return {
        "command": ProcessLauncher(Path(), environment={}),
        "python": FunctionLauncher(),
        "ray": RayLauncher(None),
        "http": requests,
        # The operator's chat server is not known here: a prompt without a URL may be right.
        "session": SessionLauncher(check_url=requests.check, url="http://localhost"),
        "flock": FlockLauncher(check_url=requests.check),
        "workflow": WorkflowLauncher(None),
        "flow": FlowLauncher(),
    }


def workflow_store(settings: Settings, in_database: DatabaseStore) -> WorkflowStore:
    """Return where the DAGs of workflows are: in the folder of the settings, or the database."""
    folder = settings.workflows_folder
    return DirectoryStore(folder) if folder else in_database


def _commands(settings: Settings, store: SqlStore, output: Path) -> ProcessLauncher:
    # A copy of the file has the same id: it must not end the processes of the original.
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
    """Return the launcher for the Ray cluster of the settings; without one it only checks."""
    if not settings.ray_address:
        return RayLauncher(None)
    folder = settings.ray_working_dir
    link = Link(
        settings.ray_address,
        f"onbeat-{store.store_id}",  # a namespace: other schedulers cannot have the same run names
        environment=os.environ,
        working_dir=str(Path(folder).expanduser().absolute()) if folder else "",
        lease=settings.ray_lease / 1000,
    )
    return RayLauncher(link, records=store, path_of=path_of)


def _sessions(
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


def _executor(
    settings: Settings,
    requests: HttpLauncher,
    tokens: Tokens,
    address: str,
    execute: Callable[..., object] | None,
    *,
    run_dag: Submit,
) -> Executor | None:
    """Return what runs DAGs: a function of this program, or else what the settings name."""
    if execute is not None:
        return CallableExecutor(execute, in_thread=CallThreads(settings.concurrency).call)
    if not settings.workflows_executor:
        return None
    if settings.workflows_executor == ON_RAY:
        return RayExecutor(run_dag)
    url = settings.public_url or address
    return HttpExecutor(
        settings.workflows_executor,
        requests.ask,
        token=settings.workflows_token,
        feedback=settings.workflows_feedback,
        callback=tokens.callback(url) if url else None,
    )
