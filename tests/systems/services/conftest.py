"""A node with a services file, a fake clock, and a launcher that only records commands."""

import asyncio
import json

import pytest

from onbeat import Onbeat
from onbeat.core.runs.run import Accepted
from onbeat.ports.rows import ScheduleFilter
from onbeat.systems.services.settings import ServicesSettings
from onbeat.testing import ManualClock
from tests.given_settings import given_settings
from tests.systems.conftest import Commands, SystemHarness

HOURLY = {"id": "hourly", "target": "backup", "on_calendar": {"minute": 0}}


def a_file(*timers, backup=None, **around):
    """Return timers of a service called `backup`: by default one hourly timer."""
    service = {"argv": ["./backup.sh", "--all"]} | (backup or {})
    listed = list(timers) or [HOURLY]
    return {"timers_enabled": True, "services": {"backup": service}, "timers": listed} | around


class Oneshots(Commands):
    """Commands that may also run for a while, or time out."""

    outcomes = None  # by schedule, where they differ

    def answer(self, attempt):
        found = (self.outcomes or {}).get(attempt.schedule_id)
        if found is not None:
            return found
        return Accepted("it goes on") if self.exit_code is None else super().answer(attempt)


class Timed(SystemHarness):
    """The fixtures of a test of timers."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "services.json"
        self.state_path = folder / "timer-state.json"
        self.database = f"sqlite:///{folder}/onbeat.db"
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.commands = Oneshots(folder)
        self.start()

    def start(self):
        """Create another process, as after a restart."""
        settings = given_settings(database=self.database, services_file=str(self.path))
        self.services_settings = settings.of(ServicesSettings)
        own = {"command": self.commands}
        self.beat = Onbeat(settings=settings, clock=self.clock, launchers=own)

    def lose_database(self):
        for path in self.folder.glob("onbeat.db*"):
            if path.is_file():
                path.unlink()

    def write(self, *timers, **around):
        """Replace the file as an editor does."""
        new = self.folder / "services.new"
        new.write_text(json.dumps(a_file(*timers, **around)))
        new.replace(self.path)

    async def edit(self, *timers, **around):
        """Write the file, and wait until it is applied."""
        self.write(*timers, **around)
        await self.look()

    async def look(self):
        for _ in range(3):  # until nothing changes any more
            await self.system.step()
        await self.beat.settle()

    async def switch(self, timer_id, *, on):
        """Switch a timer, and wait until the node applies it."""
        changed = await self.system.switch(timer_id, on=on)
        await self.look()
        return changed

    @property
    def system(self):
        return self.beat.systems["services"]

    async def let_pass(self, *lengths):
        await super().let_pass(*lengths)
        await self.system.step()

    def play(self, story):
        """Run a story in a started scheduler; return its result."""
        self.start()
        return super().play(story)

    async def rows(self):
        return {row.schedule_id: row for row in await self.beat.service.schedules(ScheduleFilter())}

    async def standing(self, timer_id="hourly"):
        found = await self.system.listed()
        return next(each.fields() for each in found.timers if each.timer_id == timer_id)

    @property
    def state(self):
        return json.loads(self.state_path.read_text())

    @property
    def started(self):
        return [attempt.schedule_id for attempt in self.commands.attempts]


@pytest.fixture
def world(tmp_path):
    return Timed(tmp_path)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))
