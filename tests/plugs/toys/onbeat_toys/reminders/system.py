"""`Reminders`: keeps the schedules in step with the lines of a file."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from onbeat.core.schedule import Schedule, read_schedule
from onbeat.errors import InvalidSchedule
from onbeat.events import Event
from onbeat.ports.rows import ScheduleFilter, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.base import PeriodicTask

SOURCE = "reminders"


class ReadReminders(NamedTuple):
    """The schedules of a file, and why lines of it are invalid, by number."""

    schedules: Sequence[Schedule]
    refused: Mapping[int, str]


class Reminders:
    """The schedules of a file of reminders, each of which rings the bell once a day."""

    def __init__(self, service: Service, file: Path) -> None:
        self._service, self._file = service, file
        self._reading = PeriodicTask("reminders", self.reconcile, every=1.0)

    async def start(self) -> None:
        """Apply the file, and keep the schedules in step with it."""
        await self.reconcile()
        self._reading.start()

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Do nothing: the file alone says what there is."""

    async def stop(self) -> None:
        """Stop. The schedules stay in the store."""
        await self._reading.stop()

    async def reconcile(self) -> None:
        """Define a schedule for each line, and delete those whose line was removed."""
        found = await asyncio.to_thread(read, self._file)
        wanted = {each.schedule_id for each in found.schedules}
        stored = {row.schedule_id for row in await listed(self._service)}
        await self._service.define(found.schedules, source=SOURCE, remove=stored - wanted)


def read(file: Path) -> ReadReminders:
    """Return the schedules of a file."""
    schedules, refused = [], {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        at, _, what = line.partition(" ")
        fields = {"daily": at, "run": {"bell": what}}
        try:
            schedules.append(read_schedule(f"reminders/{what}", fields))
        except InvalidSchedule as error:
            refused[number] = str(error)
    return ReadReminders(schedules, refused)


async def listed(service: Service) -> list[ScheduleRow]:
    """Return the reminders that the caller may see."""
    return await service.schedules(ScheduleFilter(source=SOURCE))
