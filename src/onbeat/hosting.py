"""The systems of a process: made as its settings say, and at work beside its node."""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from onbeat.errors import InvalidSettings, OnbeatError
from onbeat.events import Event, RunCanceled, RunFailed
from onbeat.opened import Opened, workflow_store, zone_of_machine
from onbeat.service import Service
from onbeat.settings import Settings
from onbeat.sources.exposes import Exposes
from onbeat.sources.fields import FieldsFile
from onbeat.systems.beside import Beside, Keeper
from onbeat.systems.flows import TIMER_NAME, TIMER_NAMESPACE, Timer, TimerLog
from onbeat.systems.offers import Offers
from onbeat.systems.services import TimerSystem, invalid_timers, is_open
from onbeat.systems.sessions import TIDIED_EVERY, Sessions
from onbeat.systems.sessions import Defaults as SessionDefaults
from onbeat.systems.workflows import (
    DatabaseStore,
    Defaults,
    HttpExecutor,
    RunLauncher,
    Workflows,
    WorkflowStore,
)

log = logging.getLogger("onbeat.systems")


class Hosted:
    """The systems that work on an open store."""

    def __init__(self, settings: Settings, opened: Opened) -> None:
        self.settings = settings
        self.workflows = _workflows(settings, opened)
        self.timers = timers_of(settings, opened.service)
        self.sessions = _sessions(settings, opened)  # None: there is no chat server
        # Without that system, too, there may be prompts that leave chat sessions behind.
        prompts = self.sessions or Tidying("chat sessions", opened.tidy_sessions)
        runners = Tidying("runners", opened.tidy_runners) if settings.ray_address else None
        # A node without an executor need not have the settings of those that have one.
        workflows = None if opened.executor is None else self.workflows
        self.flows = _flows(settings, opened)  # None: there are no exposes
        if self.flows is not None:
            opened.when_begun_on_ray(self.flows.begun)
        self.artifacts = Offers(opened.service)  # for the agents of programs on this database
        beside = (workflows, self.timers, prompts, runners, self.flows)
        self._beside: list[Beside] = [each for each in beside if each is not None]
        self._begun: list[Beside] = []
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


class Tidying:
    """Has something tidied beside a node: every minute, and when something may be left of a run."""

    def __init__(self, name: str, tidy: Callable[[], Awaitable[None]]) -> None:
        self._keeper = Keeper(name, tidy, every=TIDIED_EVERY)

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


def _flows(settings: Settings, opened: Opened) -> Timer | None:
    if not settings.flows_exposes:
        return None
    path = Path(settings.flows_log_file).expanduser() if settings.flows_log_file else None
    return Timer(
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
        mirrors=[OnCluster(opened)] if settings.ray_address else (),
    )


class OnCluster:
    """Shows the timer to those who look at the Ray cluster, as an actor there."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    async def update(self, meta: Mapping[str, object]) -> None:
        await self._opened.show_on_cluster(TIMER_NAME, TIMER_NAMESPACE, meta)


def _workflows(settings: Settings, opened: Opened) -> Workflows:
    def store_for(service: Service) -> WorkflowStore:
        return workflow_store(settings, DatabaseStore(service, owner=service.caller.owner))

    executor = opened.executor
    if isinstance(executor, HttpExecutor):  # what is started by hand has no run to tell of
        executor = executor.without_callback()
    return Workflows(
        opened.service,
        store_for=store_for,
        run_launcher=RunLauncher(store_for(opened.service), executor, clock=opened.service.clock),
        defaults=Defaults(
            settings.workflows_overlap_policy,
            settings.workflows_catchup_policy,
            settings.workflows_jitter_ms,
            feedback=settings.workflows_feedback,
            timeout=settings.workflows_timeout,
        ),
    )


def _sessions(settings: Settings, opened: Opened) -> Sessions | None:
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
