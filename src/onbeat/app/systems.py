"""The systems of a process, made as its settings specify, which run beside its node."""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from onbeat.app.launchers import LauncherSet, workflow_store
from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings, OnbeatError
from onbeat.events import Event, RunCanceled, RunFailed
from onbeat.service.service import Service
from onbeat.sources.exposes import Exposes
from onbeat.sources.local_zone import local_zone
from onbeat.sources.plain_files import FieldsFile
from onbeat.systems.agents.offers import Offers
from onbeat.systems.base import BackgroundSystem, PeriodicTask
from onbeat.systems.flows.config import TIMER_NAME, TIMER_NAMESPACE
from onbeat.systems.flows.system import FlowTimer
from onbeat.systems.flows.timer_log import TimerLog
from onbeat.systems.ray.launcher import RayLauncher
from onbeat.systems.services.system import TimerSystem, invalid_timers, is_open
from onbeat.systems.sessions.definitions import PromptDefaults
from onbeat.systems.sessions.system import TIDIED_EVERY, Sessions
from onbeat.systems.workflows.executors import HttpExecutor
from onbeat.systems.workflows.registrar import WorkflowDefaults
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import DatabaseStore, WorkflowStore
from onbeat.systems.workflows.system import Workflows

log = logging.getLogger("onbeat.systems")


class RunningSystems:
    """The systems that the settings of a process specify."""

    def __init__(
        self, settings: Settings, service: Service, launchers: LauncherSet, *, store_id: str
    ) -> None:
        self.settings = settings
        self.workflows = _workflows(settings, service, launchers)
        self.timers = timers_of(settings, service)
        self.sessions = _sessions(settings, service, launchers, store_id)  # None: no chat server
        # Without that system, too, a prompt may leave a chat session behind.
        prompts = self.sessions or PeriodicCleanup("chat sessions", launchers.sessions.tidy)
        ray = PeriodicCleanup("runners", launchers.ray.tidy) if settings.ray_address else None
        # A node without an executor may lack the settings of those that have one.
        workflows = None if launchers.executor is None else self.workflows
        self.flows = _flows(settings, service, launchers)  # None: no exposes
        if self.flows is not None:
            launchers.ray.on_begun = self.flows.on_begun
        self.artifacts = Offers(service)  # for the agents of programs on this database
        candidates = (workflows, self.timers, prompts, ray, self.flows)
        self._background: list[BackgroundSystem] = [each for each in candidates if each is not None]
        self._started: list[BackgroundSystem] = []

    async def start(self) -> None:
        """Start each system that has not started: this process is the node, and has no plan yet."""
        for each in self._background:
            if each not in self._started:
                await each.start()
                self._started.append(each)

    async def stop(self) -> None:
        """Stop what was started, in reverse order. A failure is logged, and the rest is stopped."""
        while self._started:
            try:
                await self._started.pop().stop()
            except (OnbeatError, OSError) as failed:
                log.warning("a system did not stop cleanly: %s", failed)

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Pass committed events to the systems."""
        for each in self._started:
            each.on_events(at, events)


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


def timers_of(settings: Settings, service: Service) -> TimerSystem | None:
    """Return the timers of the services file, or None if the settings name none."""
    if not settings.services_file:
        return None
    return TimerSystem(service, _services_file(settings), timezone=zone_of_machine())


def are_timers_on(settings: Settings) -> bool:
    """Return whether the services file has its gate open. Nothing else in it is read."""
    if not settings.services_file:
        hint = 'services_file = "services.yaml" in onbeat.toml, or ONBEAT_SERVICES_FILE'
        raise InvalidSettings("services_file", "no services file is set", hint=hint)
    return is_open(_services_file(settings), timezone=zone_of_machine())


def wrong_timers(settings: Settings) -> Mapping[str, str]:
    """Return why timers of the services file are invalid, by id."""
    return invalid_timers(_services_file(settings), timezone=zone_of_machine())


def zone_of_machine() -> str:
    """Return the name of this machine's time zone."""
    return local_zone(os.environ.get("TZ"), Path("/etc"))


def _services_file(settings: Settings) -> FieldsFile:
    return FieldsFile(Path(settings.services_file).expanduser())


def _flows(settings: Settings, service: Service, launchers: LauncherSet) -> FlowTimer | None:
    if not settings.flows_exposes:
        return None
    path = Path(settings.flows_log_file).expanduser() if settings.flows_log_file else None
    return FlowTimer(
        service,
        Exposes(Path(settings.flows_exposes).expanduser()),
        user=settings.flows_user,
        interval=settings.flows_interval,
        pid=os.getpid(),
        timer_log=TimerLog(
            path, file_level=settings.flows_log_file_level, std_level=settings.flows_std_level
        ),
        panel=settings.flows_panel,
        look_at_panel=launchers.flows.look if settings.flows_panel else None,
        mirrors=[ClusterMirror(launchers.ray)] if settings.ray_address else (),
    )


class ClusterMirror:
    """Shows the flow timer on the Ray cluster, as an actor."""

    def __init__(self, ray: RayLauncher) -> None:
        self._ray = ray

    async def update(self, meta: Mapping[str, object]) -> None:
        await self._ray.mirror(TIMER_NAME, TIMER_NAMESPACE, meta)


def _workflows(settings: Settings, service: Service, launchers: LauncherSet) -> Workflows:
    def store_for(caller: Service) -> WorkflowStore:
        return workflow_store(settings, DatabaseStore(caller, owner=caller.caller.owner))

    executor = launchers.executor
    if isinstance(executor, HttpExecutor):  # a manual start has no run to report to
        executor = executor.without_callback()
    return Workflows(
        service,
        store_for=store_for,
        run_launcher=RunLauncher(store_for(service), executor, clock=service.clock),
        defaults=WorkflowDefaults(
            settings.workflows_overlap_policy,
            settings.workflows_catchup_policy,
            settings.workflows_jitter_ms,
            feedback=settings.workflows_feedback,
            timeout=settings.workflows_timeout,
        ),
    )


def _sessions(
    settings: Settings, service: Service, launchers: LauncherSet, store_id: str
) -> Sessions | None:
    if not settings.sessions_url:
        return None
    return Sessions(
        service,
        folder=Path(settings.sessions_folder).expanduser(),
        store_id=store_id,
        url=settings.sessions_url,
        defaults=PromptDefaults(settings.sessions_check, settings.sessions_minimum),
        tidy=launchers.sessions.tidy,
    )
