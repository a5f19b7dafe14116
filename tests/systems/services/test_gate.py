"""The gate of the timers and its parent: while one is closed, no timer exists."""

import ast
import asyncio
import builtins
import io
import json
import logging
import os
import time
from pathlib import Path

import pytest

import onbeat.systems.services
from onbeat import Onbeat
from onbeat.errors import InvalidFile
from onbeat.systems.services.part import timers_of
from onbeat.systems.services.timers import Services
from onbeat.testing import a_schedule
from tests.given_settings import given_settings
from tests.systems.services.conftest import HOURLY, a_file

PACKAGE = Path(onbeat.__file__).parent
OFF = [{"timers_enabled": False}, {"enabled": False}, {"timers_enabled": False, "enabled": False}]
KEPT = {"version": 1, "timers": {"hourly": {"last_run_at": "2026-01-01T09:00:00Z"}}}


@pytest.fixture
def touched(monkeypatch):
    """Every path that is opened, read or replaced."""
    found = []

    def noted(module, name):
        real = getattr(module, name)

        def call(path, *rest, **named):
            found.append(str(path))
            return real(path, *rest, **named)

        monkeypatch.setattr(module, name, call)

    for name in ("open", "stat", "lstat", "replace", "rename", "unlink", "mkdir", "access"):
        noted(os, name)
    noted(builtins, "open")
    noted(io, "open")
    return found


async def event_names_of(beat, schedule_id="hourly"):
    """Return the names of the events of a schedule."""
    found = await beat.service.events(after=0)
    return [row.event.name for row in found if getattr(row.event, "schedule_id", "") == schedule_id]


class TestClosedGate:
    @pytest.mark.parametrize("off", OFF, ids=str)
    @pytest.mark.req("S5", "S6", "S7", "S8", "S12", "S13", "S14", "S15", "S16", "S19", "S23", "S24")
    def test_closed_gate_defines_no_timers_at_start_or_after_an_edit(self, world, off):
        missed = HOURLY | {"on_startup_sec": 1}
        world.write(missed, **off)
        world.state_path.write_text(json.dumps(KEPT))

        async def story(world):
            await world.let_pass("1s", "1h")
            await world.edit(missed | {"id": "other"}, **off)
            await world.let_pass("1h", "24h")
            told = [*await event_names_of(world.beat), *await event_names_of(world.beat, "other")]
            return await world.rows(), await world.beat.runs(), told, await world.system.listed()

        assert world.play(story) == ({}, [], [], None)
        assert world.started == []

    @pytest.mark.req("S7", "S23")
    def test_gate_is_closed_unless_the_file_opens_it(self, world):
        fields = a_file()
        del fields["timers_enabled"]
        world.path.write_text(json.dumps(fields))
        assert world.play(lambda world: world.rows()) == {}

    @pytest.mark.parametrize("off", OFF, ids=str)
    @pytest.mark.req("S17", "S25")
    def test_closed_services_gate_leaves_the_state_file_untouched(self, world, off, touched):
        world.write(**off)
        world.state_path.write_text("not even readable")

        async def story(world):
            await world.let_pass("1h")
            await world.edit(HOURLY | {"id": "other"}, **off)
            await world.system.listed()
            await world.system.switch("other", on=False)

        touched.clear()
        world.play(story)
        assert any("services.json" in path for path in touched), "what is touched is seen"
        assert not [path for path in touched if "timer-state" in path]
        assert world.state_path.read_text() == "not even readable"

    @pytest.mark.req("S17", "S25")
    def test_open_gate_touches_the_state_file(self, world, touched):
        world.write()
        world.play(lambda world: world.let_pass("1h"))
        assert [path for path in touched if "timer-state" in path]

    def test_closed_gate_refuses_switching(self, world):
        world.write(timers_enabled=False)

        async def story(world):
            changed = await world.system.switch("hourly", on=False)
            return changed, await world.beat.service.list_documents("services.enabled")

        assert world.play(story) == (None, [])

    def test_invalid_timers_are_found_behind_a_closed_gate(self, world):
        # The gate keeps timers from running, but the file can still be read.
        read = onbeat.systems.services.timers.Services
        found = read(a_file(HOURLY | {"target": "nope"}, timers_enabled=False))
        assert not found.are_timers_on
        assert list(found.timers().invalid) == ["hourly"]


class TestClosingTheGate:
    @pytest.mark.parametrize("off", OFF, ids=str)
    @pytest.mark.req("S8", "S20", "S21")
    def test_closing_the_gate_stops_starts_and_writes(self, world, off):
        async def story(world):
            await world.let_pass("1h")
            await world.edit(**off)
            written, told = world.state_path.read_bytes(), await event_names_of(world.beat)
            rows = await world.rows()
            await world.let_pass("1h", "5h")
            assert await event_names_of(world.beat) == told
            assert world.state_path.read_bytes() == written
            return rows

        world.write()
        assert world.play(story) == {}
        assert world.started == ["hourly"]

    @pytest.mark.req("S15", "S20", "S21")
    def test_closing_the_gate_drops_waiting_retries(self, world):
        async def story(world):
            world.commands.exit_code = 1
            await world.let_pass("1h")
            await world.edit(timers_enabled=False)
            await world.let_pass("30s", "2m", "10m")
            return await world.statuses()

        world.write()
        assert world.play(story) == [("CANCELED", "canceled")]
        assert world.started == ["hourly"]

    @pytest.mark.req("S21")
    def test_run_in_progress_ends_after_closing_without_the_state_file(self, world):
        async def story(world):
            world.commands.exit_code = None
            await world.let_pass("1h")
            await world.edit(timers_enabled=False)
            (run,) = await world.beat.runs()
            written = world.state_path.read_bytes()
            await world.beat.service.report(run.run_id, onbeat.core.runs.run.Succeeded())
            await world.look()
            return written, await world.statuses()

        world.write()
        written, statuses = world.play(story)
        assert statuses == [("SUCCESS", None)]
        assert world.state_path.read_bytes() == written

    @pytest.mark.req("S20", "S21")
    def test_timer_defined_behind_the_closed_gate_is_deleted(self, world):
        # Such as a process that had read the file just before the gate was closed.
        async def story(world):
            timer = Services(a_file()).timers().valid["hourly"]
            await world.edit(timers_enabled=False)
            await world.beat.service.define([timer.schedule], source="services")
            await world.system.step()
            await world.let_pass("1h")
            return await world.rows()

        world.write()
        assert world.play(story) == {}
        assert world.started == []

    @pytest.mark.parametrize("on", [True, False])
    @pytest.mark.req("S20", "S92")
    def test_switching_a_timer_while_the_gate_closes_starts_nothing(self, world, on):
        timer = HOURLY | {"enabled": not on}

        async def story(world):
            service = world.beat.service

            class Closing:
                """A store's use cases, of which each comes after the gate was closed."""

                def __getattr__(self, name):
                    async def call(*given, **named):
                        await world.edit(timer, timers_enabled=False)
                        return await getattr(service, name)(*given, **named)

                    known = getattr(service, name)
                    return call if asyncio.iscoroutinefunction(known) else known

            other = timers_of(world.services_settings, Closing())
            assert await other.switch("hourly", on=on)
            rows = await world.rows()
            await world.let_pass("1h")
            return rows

        world.write(timer)
        assert world.play(story) == {}
        assert world.started == []

    def test_schedules_that_are_not_timers_continue(self, world):
        async def story(world):
            await world.beat.define(a_schedule("own", every="1h"))
            await world.edit(timers_enabled=False)
            await world.let_pass("1h")
            return list(await world.rows())

        world.write()
        assert world.play(story) == ["own"]
        assert world.started == ["own"]

    @pytest.mark.req("S41", "S82")
    def test_reopened_gate_catches_up_persistent_timers_only(self, world):
        both = [HOURLY, HOURLY | {"id": "fresh", "persistent": False}]

        async def story(world):
            await world.let_pass("1h")
            await world.edit(*both, timers_enabled=False)
            await world.let_pass("1h", "1h", "30m")
            await world.edit(*both)
            await world.let_pass("1s")
            return [
                (run.schedule_id, run.triggered_by, run.tick_count)
                for run in await world.beat.runs()
            ]

        world.write(*both)
        found = world.play(story)
        assert found[0] == ("hourly", "catchup", 2)
        assert sorted(found[1:]) == [("fresh", "timer", 1), ("hourly", "timer", 1)]


class TestReloading:
    """The file is read while a node is up, in real time."""

    @pytest.mark.req("S20")
    def test_closing_the_gate_is_noticed_within_moments(self, tmp_path):
        path = tmp_path / "services.yaml"
        text = "timers_enabled: {}\nservices: {{a: {{argv: ['true']}}}}\ntimers: [{{id: a, target: a, on_startup_sec: 3600}}]"
        path.write_text(text.format("true"))
        settings = given_settings(database="sqlite://", services_file=str(path))

        async def there(beat, wanted):
            until = time.monotonic() + 10
            while [row.schedule_id for row in await beat.schedules()] != wanted:
                assert time.monotonic() < until
                await asyncio.sleep(0.05)

        async def story():
            async with Onbeat(settings=settings) as beat:
                await there(beat, ["a"])
                path.write_text(text.format("false"))
                await there(beat, [])
                path.write_text(text.format(" true"))
                await there(beat, ["a"])

        asyncio.run(story())

    def test_error_of_the_whole_file_is_logged_once_with_its_name(self, world, caplog):
        async def story(world):
            await world.edit(retry="soon")
            await world.beat.service.delete("hourly")  # which cannot be restored now
            await world.look()
            await world.edit()
            return list(await world.rows())

        world.write()
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            assert world.play(story) == ["hourly"]
        (told,) = [record.getMessage() for record in caplog.records]
        assert f"{world.path}: retry: 'soon' is not a list of delays" in told

    def test_unreadable_file_changes_nothing_and_is_logged(self, world, caplog):
        async def story(world):
            world.path.write_text("{")
            await world.look()
            await world.let_pass("1h")
            world.path.unlink()
            await world.look()
            await world.let_pass("1h")
            return list(await world.rows())

        world.write()
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            assert world.play(story) == ["hourly"]
        assert world.started == ["hourly", "hourly"]
        told = [record.getMessage() for record in caplog.records]
        assert any("services.json: it is not JSON" in line for line in told)
        assert any("services.json: cannot be read: No such file" in line for line in told)

    @pytest.mark.parametrize("ending", ["json", "toml", "yaml"])
    def test_emptied_file_changes_nothing(self, world, ending, caplog):
        async def story(world):
            world.path.write_text("")
            await world.look()
            return list(await world.rows())

        world.path = world.folder / f"services.{ending}"
        world.path.write_text(SAME[ending])
        with caplog.at_level(logging.ERROR, "onbeat.systems"):
            assert world.play(story) == ["a"]
        (told,) = [record.getMessage() for record in caplog.records]
        assert (
            f"timers stay unchanged, because the services file is not applied: {world.path}: it is "
            in told
        )


SAME = {
    "json": '{"timers_enabled": true, "services": {"x": {"argv": ["x"]}},'
    ' "timers": [{"id": "a", "target": "x", "on_calendar": {"hour": 3}}]}',
    "yaml": "timers_enabled: true\nservices: {x: {argv: [x]}}\n"
    "timers: [{id: a, target: x, on_calendar: {hour: 3}}]\n",
    "toml": 'timers_enabled = true\nservices.x.argv = ["x"]\n'
    '[[timers]]\nid = "a"\ntarget = "x"\non_calendar.hour = 3\n',
}


class TestStarting:
    """A start with an invalid file would run nothing, unnoticed."""

    @pytest.mark.parametrize("text", [None, "", "{}", "{", '{"timers_enabled": 5}'])
    def test_node_does_not_start_with_a_missing_empty_or_invalid_file(self, world, text):
        async def story(world):
            return "it has started"

        if text is not None:
            world.path.write_text(text)
        with pytest.raises(InvalidFile, match=r"services\.json: "):
            world.play(story)

    def test_refused_start_leaves_existing_timers(self, world):
        async def story(world):
            return list(await world.rows())

        world.write()
        world.play(story)
        world.path.write_text("{")
        with pytest.raises(InvalidFile):
            world.play(story)
        world.write()
        assert world.play(story) == ["hourly"]

    @pytest.mark.parametrize("count", [1, 3])
    @pytest.mark.req("S73")
    def test_invalid_timers_are_logged_in_one_line(self, world, count, caplog):
        world.write(HOURLY, *(HOURLY | {"id": f"x{n}", "target": "no"} for n in range(count)))
        with caplog.at_level(logging.WARNING, "onbeat.systems"):
            world.play(lambda world: world.rows())
        (told,) = [record.getMessage() for record in caplog.records]
        are = "1 timer is" if count == 1 else "3 timers are"
        assert told == f"services file: {are} invalid; onbeat timers lists the reasons"


class TestBoundary:
    """The code of timers is in one folder, behind one gate."""

    def imports_of_timers(self):
        for path in PACKAGE.rglob("*.py"):
            if path.is_relative_to(PACKAGE / "systems" / "services"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and "systems.services" in (node.module or ""):
                    yield path, node.module, [alias.name for alias in node.names]

    @pytest.mark.req("S10", "S28")
    def test_no_other_package_imports_timers(self):
        assert not list(self.imports_of_timers())

    @pytest.mark.req("S10", "S28")
    def test_core_and_engine_do_not_mention_timers(self):
        for folder in ("core", "engine", "stores"):
            for path in (PACKAGE / folder).rglob("*.py"):
                text = path.read_text()
                assert "timer_" not in text.replace("timer_iteration", ""), path
                assert "onbeat.systems" not in text, path

    @pytest.mark.req("S11")
    def test_gate_is_checked_in_one_place(self):
        asked = [
            (str(path.relative_to(PACKAGE)), function.name)
            for path in sorted(PACKAGE.rglob("*.py"))
            for function in ast.walk(ast.parse(path.read_text()))
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            if node.attr == "are_timers_on"
        ]
        assert asked == [("systems/services/system.py", "_behind_gate")]
        users_of_gate = [
            path.name
            for path in sorted((PACKAGE / "systems" / "services").glob("*.py"))
            if "import TimerSystem, invalid_timers, is_open" in path.read_text()
        ]
        assert users_of_gate == ["part.py"], "all others use are_timers_on of part.py"
        users = [
            str(path.relative_to(PACKAGE))
            for path in PACKAGE.rglob("*.py")
            if "timers_enabled" in path.read_text()
        ]
        assert sorted(users) == [
            "systems/services/field_aliases.py", "systems/services/import_elisp.py",
            "systems/services/timers.py", "systems/services/verbs.py",
        ]  # fmt: skip
        told = (PACKAGE / "systems" / "services" / "verbs.py").read_text().count("timers_enabled")
        assert told == 1, "only the hint how to open it"
