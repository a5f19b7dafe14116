"""The systems of a process: made as its settings say, and at work beside its node."""

from collections.abc import Sequence
from pathlib import Path

from onbeat.errors import InvalidSettings
from onbeat.events import Event
from onbeat.opened import Opened, workflow_store, zone_of_machine
from onbeat.service import Service
from onbeat.settings import Settings
from onbeat.sources.fields import FieldsFile
from onbeat.systems.beside import Beside
from onbeat.systems.services import TimerSystem, is_open
from onbeat.systems.sessions import Defaults as SessionDefaults
from onbeat.systems.sessions import Sessions
from onbeat.systems.workflows import DatabaseStore, Defaults, RunLauncher, Workflows


class Hosted:
    """The systems that work on an open store."""

    def __init__(self, settings: Settings, opened: Opened) -> None:
        self.settings = settings
        self.workflows = _workflows(settings, opened)
        self.timers = timers_of(settings, opened.service)
        self.sessions = _sessions(settings, opened)  # None: there is no chat server
        beside = (self.timers, self.sessions)
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
        """Have each end that has begun, the last one first."""
        while self._begun:
            await self._begun.pop().end()

    def _heard(self, at: int, events: Sequence[Event]) -> None:
        for each in self._begun:
            each.heard(at, events)


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


def _services_file(settings: Settings) -> FieldsFile:
    return FieldsFile(Path(settings.services_file).expanduser())


def _workflows(settings: Settings, opened: Opened) -> Workflows:
    return Workflows(
        opened.service,
        store_for=lambda service: workflow_store(settings, DatabaseStore(service)),
        launcher_for=lambda store: RunLauncher(store, opened.executor, clock=opened.service.clock),
        defaults=Defaults(
            settings.workflows_overlap_policy,
            settings.workflows_catchup_policy,
            settings.workflows_jitter_ms,
            feedback=settings.workflows_feedback,
        ),
    )


def _sessions(settings: Settings, opened: Opened) -> Sessions | None:
    if not settings.sessions_url:
        return None
    return Sessions(
        opened.service,
        folder=Path(settings.sessions_folder).expanduser(),
        store_id=opened.store_id,
        defaults=SessionDefaults(settings.sessions_check, settings.sessions_minimum),
        tidy=opened.tidy_sessions,
    )
