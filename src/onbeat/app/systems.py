"""The systems of a process: made as its settings say, and at work beside its node."""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from onbeat.app.opened import OpenInstallation, workflow_store, zone_of_machine
from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings, OnbeatError
from onbeat.events import Event, RunCanceled, RunFailed
from onbeat.service.service import Service
from onbeat.sources.exposes import Exposes
from onbeat.sources.plain_files import FieldsFile
from onbeat.systems.agents.offers import Offers
from onbeat.systems.base import BackgroundSystem, PeriodicTask
from onbeat.systems.flows.config import TIMER_NAME, TIMER_NAMESPACE
from onbeat.systems.flows.system import FlowTimer
from onbeat.systems.flows.timer_log import TimerLog
from onbeat.systems.services.system import TimerSystem, invalid_timers, is_open
from onbeat.systems.sessions.definitions import PromptDefaults as SessionDefaults
from onbeat.systems.sessions.system import TIDIED_EVERY, Sessions
from onbeat.systems.workflows.executors import HttpExecutor
from onbeat.systems.workflows.registrar import WorkflowDefaults
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import DatabaseStore, WorkflowStore
from onbeat.systems.workflows.system import Workflows

log = logging.getLogger("onbeat.systems")


class RunningSystems:
    """The systems that work on an open store."""

    def __init__(self, settings: Settings, opened: OpenInstallation) -> None:
        self.settings = settings
        self.workflows = _workflows(settings, opened)
        self.timers = timers_of(settings, opened.service)
        self.sessions = _sessions(settings, opened)  # None: there is no chat server
        # Without that system, too, there may be prompts that leave chat sessions behind.
        prompts = self.sessions or PeriodicCleanup("chat sessions", opened.tidy_sessions)
        runners = PeriodicCleanup("runners", opened.tidy_runners) if settings.ray_address else None
        # A node without an executor need not have the settings of those that have one.
        workflows = None if opened.executor is None else self.workflows
        self.flows = _flows(settings, opened)  # None: there are no exposes
        if self.flows is not None:
            opened.when_begun_on_ray(self.flows.begun)
        self.artifacts = Offers(opened.service)  # for the agents of programs on this database
        beside = (workflows, self.timers, prompts, runners, self.flows)
        self._beside: list[BackgroundSystem] = [each for each in beside if each is not None]
        self._begun: list[BackgroundSystem] = []
        opened.listeners.append(self._heard)

    async def begin(self) -> None:
        """Have each begin: the node is nobody else's, and has planned nothing yet."""
        for each in self._beside:
            if each not in self._begun:
                await each.begin()
                self._begun.append(each)

    async def end(self) -> None:
        """Have each end that has begun, the last one first; one that cannot is told in the log."""
        while self._begun:
            try:
                await self._begun.pop().end()
            except (OnbeatError, OSError) as failed:
                log.warning("a system has not ended well: %s", failed)

    def _heard(self, at: int, events: Sequence[Event]) -> None:
        for each in self._begun:
            each.heard(at, events)


class PeriodicCleanup:
    """Has something tidied beside a node: every minute, and when something may be left of a run."""

    def __init__(self, name: str, tidy: Callable[[], Awaitable[None]]) -> None:
        self._keeper = PeriodicTask(name, tidy, every=TIDIED_EVERY)

    async def begin(self) -> None:
        self._keeper.begin()

    def heard(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - the events say when
        """Hear of runs that somebody has ended: something of them may be left."""
        if any(isinstance(event, (RunCanceled, RunFailed)) for event in events):
            self._keeper.wake()

    async def end(self) -> None:
        await self._keeper.abandon()


def timers_of(settings: Settings, service: Service) -> TimerSystem | None:
    """Return the timers that settings name a file of, if they do."""
    if not settings.services_file:
        return None
    return TimerSystem(service, _services_file(settings), timezone=zone_of_machine())


def are_timers_on(settings: Settings) -> bool:
    """Return whether the file of services has its gate open; nothing else is looked at."""
    if not settings.services_file:
        hint = 'services_file = "services.yaml" in onbeat.toml, or ONBEAT_SERVICES_FILE'
        raise InvalidSettings("services_file", "it names no file of services", hint=hint)
    return is_open(_services_file(settings), timezone=zone_of_machine())


def wrong_timers(settings: Settings) -> Mapping[str, str]:
    """Return why timers of the file of services are invalid, by id."""
    return invalid_timers(_services_file(settings), timezone=zone_of_machine())


def _services_file(settings: Settings) -> FieldsFile:
    return FieldsFile(Path(settings.services_file).expanduser())


def _flows(settings: Settings, opened: OpenInstallation) -> FlowTimer | None:
    if not settings.flows_exposes:
        return None
    path = Path(settings.flows_log_file).expanduser() if settings.flows_log_file else None
    return FlowTimer(
        opened.service,
        Exposes(Path(settings.flows_exposes).expanduser()),
        user=settings.flows_user,
        interval=settings.flows_interval,
        pid=os.getpid(),
        timer_log=TimerLog(
            path, file_level=settings.flows_log_file_level, std_level=settings.flows_std_level
        ),
        panel=settings.flows_panel,
        look_at_panel=opened.look_at_panel if settings.flows_panel else None,
        mirrors=[ClusterMirror(opened)] if settings.ray_address else (),
    )


class ClusterMirror:
    """Shows the timer to those who look at the Ray cluster, as an actor there."""

    def __init__(self, opened: OpenInstallation) -> None:
        self._opened = opened

    async def update(self, meta: Mapping[str, object]) -> None:
        await self._opened.show_on_cluster(TIMER_NAME, TIMER_NAMESPACE, meta)


def _workflows(settings: Settings, opened: OpenInstallation) -> Workflows:
    def store_for(service: Service) -> WorkflowStore:
        return workflow_store(settings, DatabaseStore(service, owner=service.caller.owner))

    executor = opened.executor
    if isinstance(executor, HttpExecutor):  # what is started by hand has no run to tell of
        executor = executor.without_callback()
    return Workflows(
        opened.service,
        store_for=store_for,
        run_launcher=RunLauncher(store_for(opened.service), executor, clock=opened.service.clock),
        defaults=WorkflowDefaults(
            settings.workflows_overlap_policy,
            settings.workflows_catchup_policy,
            settings.workflows_jitter_ms,
            feedback=settings.workflows_feedback,
            timeout=settings.workflows_timeout,
        ),
    )


def _sessions(settings: Settings, opened: OpenInstallation) -> Sessions | None:
    if not settings.sessions_url:
        return None
    return Sessions(
        opened.service,
        folder=Path(settings.sessions_folder).expanduser(),
        store_id=opened.store_id,
        url=settings.sessions_url,
        defaults=SessionDefaults(settings.sessions_check, settings.sessions_minimum),
        tidy=opened.tidy_sessions,
    )
