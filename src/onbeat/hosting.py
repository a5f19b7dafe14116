"""The systems of a process: made as its settings say, and at work beside its node."""

from collections.abc import Sequence
from pathlib import Path

from onbeat.events import Event
from onbeat.opened import Opened, workflow_store
from onbeat.settings import Settings
from onbeat.systems.beside import Beside
from onbeat.systems.sessions import Defaults as SessionDefaults
from onbeat.systems.sessions import Sessions
from onbeat.systems.workflows import DatabaseStore, Defaults, RunLauncher, Workflows


class Hosted:
    """The systems that work on an open store."""

    def __init__(self, settings: Settings, opened: Opened) -> None:
        self.settings = settings
        self.workflows = _workflows(settings, opened)
        self.sessions = _sessions(settings, opened)  # None: there is no chat server
        self._beside: list[Beside] = [] if self.sessions is None else [self.sessions]
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
