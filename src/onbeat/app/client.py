"""A client of a database: it defines, starts and reads; it plans and launches nothing.

Launchers are loaded only if a definition has to be checked, so that a read starts quickly.
"""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property

from onbeat.app import logs
from onbeat.app.settings import Settings
from onbeat.app.stores import open_store
from onbeat.ports.launcher import Launcher
from onbeat.service.access import LOCAL, Caller
from onbeat.service.service import Service
from onbeat.stores.sql.store import SqlStore


@asynccontextmanager
async def client(settings: Settings, caller: Caller = LOCAL) -> AsyncIterator[Service]:
    """Open the store of the settings as a client, and yield the use cases for this caller."""
    store = await open_store(settings, listeners=[lambda _, events: logs.write_log(events)])
    launchers = LaunchersOnDemand(settings, store)
    try:
        yield Service(store, launchers, new_id=lambda: str(uuid.uuid4())).of(caller)
    finally:
        try:
            await launchers.close()
        finally:
            await store.close()


class LaunchersOnDemand(Mapping[str, Launcher]):
    """The launchers of the settings, made when a target is checked for the first time."""

    def __init__(self, settings: Settings, store: SqlStore) -> None:
        self._make: Callable[[], Mapping[str, Launcher]] = lambda: _launchers(settings, store)

    @cached_property
    def _made(self) -> Mapping[str, Launcher]:
        return self._make()

    def __getitem__(self, kind: str) -> Launcher:
        return self._made[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    async def close(self) -> None:
        """Close the launchers, if they were made."""
        if "_made" in self.__dict__:
            for launcher in self._made.values():
                await launcher.close()


def _launchers(settings: Settings, store: SqlStore) -> Mapping[str, Launcher]:
    from onbeat.app.parts import ProcessParts  # noqa: PLC0415 - only some calls need launchers

    return ProcessParts(settings, store, new_id=lambda: str(uuid.uuid4())).launchers
