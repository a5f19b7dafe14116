"""The edit rule as a table: what changed x what was owed x surface, on both databases.

Each cell is a schedule of its own. All are defined at noon and live through the same afternoon: a
node tries those that fail (12:02), another one only plans (12:10), then nothing is up. At 14:00:30
each is edited by its surface, and a node is started: what starts, and as which revision says, and
what is recorded is what the cell has to say. In a second table that node is started an hour later.
`pytest -s` prints the tables.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from onbeat import Onbeat
from onbeat.app.parts import check_target
from onbeat.app.settings import Settings
from onbeat.cli.apply import ApplyOptions, apply_definitions
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.schedule import from_definition, read_schedule
from onbeat.core.time.instants import parse_instant
from onbeat.ports.rows import RunFilter
from onbeat.sources.yaml import read_file
from onbeat.testing import ManualClock, RecordingLauncher
from onbeat.web.api_server import ApiServer
from tests.given_settings import given_settings
from tests.postgres import shared_server

KINDS = ("command", "session", "flow", "workflow")
EDITED_AT = parse_instant("2026-01-01T14:00:30Z") * 1000
OWED = {  # cron fields, minute and hour: what that leaves to be decided at 14:00:30
    "nothing": (0, 20),
    "one on time": (0, 14),
    "one too late": (50, 13),
    "many too late": ("0,10,20,30,40,50", 13),
    "a waiting run": (10, 12),
    "a waiting retry": (2, 12),
}
RETIMED = {"trigger", "zone", "exclude", "within", "bounds", "jitter"}


def cron(owed):
    minute, hour = OWED[owed]
    return f"{minute} {hour} * * *"


@dataclass
class Cell:
    """What became of one schedule after its edit."""

    started: list = field(default_factory=list)  # the revisions, in order
    recorded: list = field(default_factory=list)  # reasons, and how many ticks each stands for

    def __str__(self):
        parts = [f"starts r{revision}" for revision in self.started]
        parts += [f"{reason} x{n}" for reason, n in self.recorded]
        return ", ".join(parts) or "-"


# -- surfaces


class Native:
    """The definitions that files, the API and Python can express: all."""

    changes = ("trigger", "zone", "exclude", "within", "bounds", "jitter", "target", "inputs",
               "policy", "enabled")  # fmt: skip
    owed = tuple(OWED)
    caught_up = 1  # runs, however many ticks were missed

    def old(self, owed):
        return {
            "cron": cron(owed),
            "run": {"command": ["old"], "inputs": {"n": 1}},
            "retry": ["30s", "30s"],
        }

    def new(self, change, owed):
        old = self.old(owed)
        return (
            old
            | {
                "trigger": {"cron": "0 3 1 1 *"},
                "zone": {"timezone": "Europe/Berlin"},
                "exclude": {"exclude": ["2027-02-03"]},
                "within": {"within": {"hours": "00:00-23:00"}},
                "bounds": {"end_at": "2027-01-01T00:00:00Z"},
                "jitter": {"jitter": "1s"},
                "target": {"run": old["run"] | {"command": ["new"]}},
                "inputs": {"run": old["run"] | {"inputs": {"n": 2}}},
                "policy": {"retry": ["7s"], "timeout": "9s"},
                "enabled": {"enabled": False},
            }[change]
        )

    def settings(self, folder):
        return {}

    def prepare(self, folder, *, edited):
        path = folder / "onbeat.yaml"
        given = {
            cell: self.new(*what) if edited else self.old(what[1])
            for cell, what in self.cells().items()
        }
        path.write_text(json.dumps({"schedules": given}))

    def cells(self):
        return {
            f"{change}-{owed.replace(' ', '-')}": (change, owed)
            for change in self.changes
            for owed in self.owed
        }

    def cell_of(self, schedule_id):
        return schedule_id

    async def begin(self, world, beat):
        """Define everything, and run as a node."""
        await beat.begin(client=False, apply_files=lambda service: self._apply(world, service))

    async def edit(self, world):
        """Edit everything while no node is up; what is only read at a start is left to that."""

    async def _apply(self, world, service):
        file = read_file(world.folder / "onbeat.yaml", check_target)
        await apply_definitions(service, file, ApplyOptions(source="onbeat.yaml"))


class FileApply(Native):
    """`onbeat apply`."""

    name = "apply"

    async def edit(self, world):
        async with world.client() as beat:
            await self._apply(world, beat.service)


class Up(Native):
    """`onbeat up` with a file that has changed since."""

    name = "up"


class Python(Native):
    """`beat.define` of a program."""

    name = "python"

    async def _apply(self, world, service):
        pass

    async def begin(self, world, beat):
        await beat.begin(client=False)
        if not world.is_edited:
            await beat.define(*self._schedules(world))

    async def edit(self, world):
        async with world.client() as beat:
            await beat.define(*self._schedules(world))

    def _schedules(self, world):
        given = json.loads((world.folder / "onbeat.yaml").read_text())["schedules"]
        return [read_schedule(name, fields) for name, fields in given.items()]


class Rest(Python):
    """`PUT /api/v1/schedules/{id}`."""

    name = "rest"

    async def edit(self, world):
        given = json.loads((world.folder / "onbeat.yaml").read_text())["schedules"]
        async with world.client() as beat, world.api(beat) as put:
            for name, fields in given.items():
                answer = await put(f"/schedules/{name}", fields)
                assert answer.status_code == 200, answer.text


class Services(Native):
    """The file of services and their timers."""

    name = "services"
    changes = ("trigger", "target", "policy", "enabled")

    def settings(self, folder):
        return {"services_file": str(folder / "services.json")}

    def prepare(self, folder, *, edited):
        services, timers = {}, []
        for cell, (change, owed) in self.cells().items():
            minute, hour = OWED[owed]
            minutes = [int(each) for each in str(minute).split(",")]
            calendar = {"minute": minutes, "hour": hour}
            service = {"argv": ["old"], "timeout": 100}
            timer = {"id": cell, "target": cell, "persistent": True}
            if edited and change == "trigger":
                calendar = {"minute": 0, "hour": 3, "day_of_month": 1, "month": 1}
            if edited and change == "target":
                service |= {"argv": ["new"]}
            if edited and change == "policy":
                service |= {"timeout": 200}
            if edited and change == "enabled":
                timer |= {"enabled": False}
            services[cell] = service
            timers.append(timer | {"on_calendar": calendar})
        given = {"timers_enabled": True, "timezone": "UTC", "retry": ["30s", "30s"]}
        path = folder / "services.json"
        path.write_text(json.dumps(given | {"services": services, "timers": timers}))

    async def begin(self, world, beat):
        await beat.begin(client=False)


class Sessions(Native):
    """The folder of scheduled prompts."""

    name = "sessions"
    changes = ("trigger", "target")

    def settings(self, folder):
        return {"sessions_url": "http://127.0.0.1:9", "sessions_folder": str(folder / "schedule"),
                "sessions_minimum": 60_000}  # fmt: skip

    def prepare(self, folder, *, edited):
        for cell, (change, owed) in self.cells().items():
            path = folder / "schedule" / cell / "definition.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            known = json.loads(path.read_text()) if path.exists() else {"slug": cell}
            expression = cron(owed)
            if edited and change == "trigger":
                expression = "0 3 1 1 *"
            prompt = "new" if edited and change == "target" else "old"
            schedule = {"type": "cron", "expression": expression, "timezone": "UTC"}
            given = {"prompt": prompt, "enabled": True, "schedule": schedule}
            path.write_text(json.dumps(known | given))
            last_run = path.with_name("last-run.json")
            if not last_run.exists():  # else it is sent as soon as it is seen
                minute, hour = OWED[owed]
                first = f"2026-01-01T{hour}:{int(str(minute).partition(',')[0]):02}:00Z"
                last_run.write_text(json.dumps({"nextRun": first}))

    async def begin(self, world, beat):
        await beat.begin(client=False)


class Flows(Native):
    """The exposes of a panel."""

    name = "flows"
    changes = ("trigger", "zone", "inputs", "policy", "enabled")

    def settings(self, folder):
        (folder / "exposes").mkdir(exist_ok=True)
        return {"flows_exposes": str(folder / "exposes"), "flows_panel": "http://127.0.0.1:9",
                "flows_log_file": "", "flows_password": "secret://panel",
                "secrets": str(folder / "secrets")}  # fmt: skip

    def prepare(self, folder, *, edited):
        for cell, (change, owed) in self.cells().items():
            block = {"cron": cron(owed), "inputs": {"n": 1}, "retry_count": 2, "retry_delay": 30}
            if edited:
                block |= {
                    "trigger": {"cron": "0 3 1 1 *"},
                    "zone": {"timezone": "Europe/Berlin"},
                    "inputs": {"inputs": {"n": 2}},
                    "policy": {"retry_delay": 70},
                    "enabled": {"enabled": False},
                }[change]
            flow = {"url": f"/-/127.0.0.1/8125/{cell}", "data": json.dumps({"schedule": block})}
            meta = json.dumps([flow])
            text = json.dumps({"name": cell, "enabled": True, "meta": meta})
            (folder / "exposes").mkdir(exist_ok=True)
            (folder / "exposes" / f"{cell}.yaml").write_text(text)

    def cell_of(self, schedule_id):
        return schedule_id.partition("/")[0]

    async def begin(self, world, beat):
        await beat.begin(client=False)


class Workflows(Native):
    """`upsert_schedule` of workflows."""

    name = "workflows"
    changes = ("trigger", "zone", "jitter", "target", "policy")
    caught_up = 6

    def prepare(self, folder, *, edited):
        pass

    async def begin(self, world, beat):
        await beat.begin(client=False)
        if not world.is_edited:
            await self._upsert(beat, edited=False)

    async def edit(self, world):
        async with world.client() as beat:
            await self._upsert(beat, edited=True)

    async def _upsert(self, beat, *, edited):
        registrar = beat.systems["workflows"].registrar
        for cell, (change, owed) in self.cells().items():
            given = {
                "schedule_id": cell, "workflow_id": "report", "version": 1, "user_id": "ada",
                "cron_expr": cron(owed), "timezone": "UTC", "overlap_policy": "allow",
                "catchup_policy": "fire_immediately", "jitter_ms": 0,
            }  # fmt: skip
            if edited:
                given |= {
                    "trigger": {"cron_expr": "0 3 1 1 *"},
                    "zone": {"timezone": "Europe/Berlin"},
                    "jitter": {"jitter_ms": 1000},
                    "target": {"version": 2},
                    "policy": {"overlap_policy": "queue"},
                }[change]
            await registrar.upsert_schedule(given)


SURFACES = [FileApply, Up, Rest, Python, Services, Sessions, Flows, Workflows]

# -- the afternoon


class EditHarness:
    """One database, and the lives of its nodes."""

    def __init__(self, folder, database, surface):
        self.folder, self.database, self.surface = folder, database, surface
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.launched = []
        self.is_edited = False

    def new_beat(self, roles=("plan", "run"), **named):
        settings = {"database": self.database, "roles": roles, "lease": 3_600_000, "stop_grace": 0,
                    "output": str(self.folder / "output"), "listen": "127.0.0.1:0",
                    **self.surface.settings(self.folder)}  # fmt: skip
        own = {kind: RecordingLauncher(self.answer, offers=[kind]) for kind in KINDS}
        beat = Onbeat(settings=given_settings(**settings), clock=self.clock, launchers=own, **named)
        beat.executor(lambda dag, meta: None)
        return beat

    def answer(self, attempt):
        if self.is_edited:
            self.launched.append(attempt)
            return Succeeded()
        return Failed(
            "exit code 1", "launch_failed" if attempt.target.kind == "workflow" else "exit"
        )

    @asynccontextmanager
    async def client(self):
        beat = self.new_beat()
        await beat.open()
        try:
            yield beat
        finally:
            await beat.close()

    @asynccontextmanager
    async def api(self, beat):
        front = ApiServer(Settings(database=self.database, listen="127.0.0.1:0"))
        _, secret = await beat.service.tokens.create("test", "admin")
        await front.start(beat)
        headers = {"Authorization": f"Bearer {secret}"}
        where = f"{front.settings.api_url}/api/v1"
        try:
            async with httpx.AsyncClient(headers=headers, timeout=20) as client:

                async def put(path, body):
                    return await client.put(where + path, json=body)

                yield put
        finally:
            await front.stop()

    async def live(self, roles, *lengths):
        """Be a node for some time."""
        beat = self.new_beat(roles)
        await beat.open()
        try:
            await self.surface.begin(self, beat)
            await self.settle(beat, roles)
            for length in lengths:
                self.clock.advance(length)
                await self.settle(beat, roles)
            return await self.rows(beat), await self.definitions(beat)
        finally:
            await beat.close()

    async def settle(self, beat, roles):
        """Decide and run everything that is due; runs that no node offers keep waiting."""
        beat.wake()
        if "run" in roles:
            await beat.settle()
            return
        for _ in range(2000):
            if not (await beat.service.overview()).due:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("what is due is not decided")

    async def rows(self, beat):
        return await beat.service.runs(RunFilter(), limit=1000)

    async def definitions(self, beat):
        found = await beat.service.schedules()
        return {row.schedule_id: (row.revision, row.definition) for row in found}

    async def play(self, up_after):
        self.surface.prepare(self.folder, edited=False)
        await self.live(("plan", "run"), "2m1s")  # 12:02:01: what fails is to be tried again
        _, self.before = await self.live(("plan",), "8m")  # 12:10:01: nothing is claimed
        self.clock.advance(EDITED_AT - self.clock.now())
        self.surface.prepare(self.folder, edited=True)
        self.is_edited = True
        await self.surface.edit(self)
        self.clock.advance(up_after)
        rows, self.after = await self.live(("plan", "run"), "1m", "1m")
        return self.cells(rows)

    def cells(self, rows):
        found = {cell: Cell() for cell in self.surface.cells()}
        for attempt in self.launched:
            found[self.surface.cell_of(attempt.schedule_id)].started.append(attempt.revision)
        for row in reversed(rows):
            over = row.status in ("SKIPPED", "FAILED", "CANCELED")
            if over and row.finished_at >= EDITED_AT:
                cell = found[self.surface.cell_of(row.schedule_id)]
                cell.recorded.append((row.reason, row.tick_count))
        return found


def expected(surface, change, owed, *, is_late):
    """Return the expected result of a cell by the rule, if a node is up in time or too late."""
    late = {"one too late": 1, "many too late": 6}
    if owed == "nothing":
        return Cell()
    if change == "enabled":  # a switch: it holds for ticks and for runs of every revision
        return Cell([], [("disabled", late.get(owed, 1))])
    if owed in ("a waiting run", "a waiting retry"):
        return Cell([1], [])  # the revision that it was decided under
    if change in RETIMED:
        starts = owed == "one on time" and not is_late
        return Cell([1], []) if starts else Cell([], [("edited", late.get(owed, 1))])
    if owed == "many too late":
        return Cell([2] * surface.caught_up, [])
    return Cell([2], [])  # by the planner and the new definition: on time, or caught up once


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/onbeat.db"
        return
    server = shared_server()
    url = server.new_database()
    yield url
    server.drop_database(url)


def table_of(surface, cells):
    """Return the table of a surface, a line for each change."""
    lines = [["", *surface.owed]]
    for change in surface.changes:
        of_it = [str(cells[f"{change}-{owed.replace(' ', '-')}"]) for owed in surface.owed]
        lines.append([change, *of_it])
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


@pytest.mark.parametrize("up_after", ["0s", "1h"], ids=["up_at_once", "up_an_hour_later"])
@pytest.mark.parametrize("make", SURFACES, ids=lambda make: make.name)
def test_edit_follows_the_rule_on_every_surface(make, database, tmp_path, up_after):
    surface = make()
    world = EditHarness(Path(tmp_path), database, surface)
    cells = asyncio.run(asyncio.wait_for(world.play(up_after), 60))
    print(f"\n{surface.name} on {database.partition(':')[0]}: {len(cells)} cells, up {up_after}\n")
    print(table_of(surface, cells))
    late = up_after != "0s"
    wanted = {
        cell: expected(surface, *what, is_late=late) for cell, what in surface.cells().items()
    }
    assert {name: str(cell) for name, cell in cells.items()} == {
        name: str(cell) for name, cell in wanted.items()
    }
    for attempt in world.launched:  # wholly: also what it starts is that of its revision
        texts = dict([world.before[attempt.schedule_id], world.after[attempt.schedule_id]])
        said = from_definition(attempt.schedule_id, texts[attempt.revision])
        assert attempt.target.fields == said.target.fields
        assert attempt.inputs == said.target.inputs
        assert attempt.timeout == said.policy.timeout


def test_edit_rule_table_has_at_least_forty_cells_on_six_surfaces():
    assert len(SURFACES) >= 6
    assert sum(len(make().cells()) for make in SURFACES) >= 40
