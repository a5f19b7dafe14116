"""Exposes are read every interval, and the store is brought in step with them."""

import asyncio
import json
import logging
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, nullcontext

import pytest

from onbeat.app.settings import Settings
from onbeat.core.schedule import read_schedule
from onbeat.errors import InvalidSettings
from onbeat.systems.flows.expose_files import Exposes
from onbeat.systems.flows.settings import FlowsSettings
from onbeat.systems.flows.system import FlowTimer, TimerMirror
from onbeat.systems.flows.timer_log import TimerLog, timer_logger
from onbeat.systems.ray.mirror import TimerLock
from onbeat.testing import a_schedule
from tests.systems.flows.conftest import HOURLY, KEY, URL


def test_edit_is_applied_at_the_next_interval_without_a_restart(world):
    world.settings = {"flows_interval": 50}
    world.hourly()

    async def story(its):
        its.hourly(cron="0 9 * * *", inputs={"query": "new"})
        while True:
            found = (await its.listed())[KEY]
            if found.cron == "0 9 * * *":
                return found
            await asyncio.sleep(0.01)

    found = world.play(story)
    assert (found.next_run, found.inputs) == ("2026-01-02T09:00:00Z", {"query": "new"})


@pytest.mark.req("K56")
def test_deleted_expose_deletes_only_its_schedules(world, logged):
    world.hourly("reports")
    world.hourly("other")

    async def story(its):
        await its.beat.define(a_schedule("mine"))
        its.unexpose("reports")
        await its.timer.reconcile()
        return sorted(row.schedule_id for row in await its.beat.schedules())

    assert world.play(story) == ["mine", "other/-/127.0.0.1/8125/-"]
    assert ("INFO", f"flow {KEY} is no longer scheduled") in logged()


def test_new_flow_and_changed_cron_fire_no_past_ticks(world):
    async def story(its):
        its.hourly()
        await its.timer.reconcile()
        its.clock.advance("30m")
        its.hourly(cron="15 * * * *")
        await its.timer.reconcile()
        await its.let_pass("15m")
        before = await its.statuses()
        await its.let_pass("30m")
        return before, await its.statuses()

    assert world.play(story) == ([], [("SUCCESS", None)])


def test_unchanged_flow_keeps_its_position_and_writes_nothing(world):
    world.hourly()

    async def story(its):
        before = await its.service.newest_event()
        for _ in range(3):
            await its.timer.reconcile()
        return await its.service.newest_event() - before

    assert world.play(story) == 0


LOCK = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode = DELETE")
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path):
    """Hold a write transaction in another process."""
    asked = [sys.executable, "-c", LOCK, str(path)]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        yield
        other.stdin.close()


@pytest.mark.parametrize("harm", ["missing", "locked", "no table", "broken meta"])
def test_unreadable_exposes_remove_nothing(world, logged, harm):
    world.hourly("reports")
    world.hourly("other")

    async def story(its):
        if harm == "missing":
            its.exposes.rename(its.folder / "away.db")
        elif harm == "no table":
            with closing(sqlite3.connect(its.exposes)) as database, database:
                database.execute("ALTER TABLE expose RENAME TO gone")
        elif harm == "broken meta":
            its.expose("reports", meta="[")
            its.unexpose("other")
        with locked(its.exposes) if harm == "locked" else nullcontext():
            for _ in range(2):
                await its.timer.reconcile()
        return sorted(row.schedule_id for row in await its.beat.schedules())

    others = [] if harm == "broken meta" else ["other/-/127.0.0.1/8125/-"]
    assert world.play(story) == [*others, KEY]
    warned = [line for level, line in logged() if level == "WARNING"]
    assert len(warned) == 1


def test_timer_starts_without_exposes_and_reads_them_later(world):
    world.exposes.rename(world.folder / "later.db")

    async def story(its):
        before = await its.timer.status(its.service)
        (its.folder / "later.db").rename(its.exposes)
        its.hourly()
        await its.timer.reconcile()
        return before.total, (await its.timer.status(its.service)).total

    assert world.play(story) == (0, 1)


def test_flow_with_a_conflicting_id_is_ignored_and_logged(world):
    async def story(its):
        await its.beat.define(read_schedule(KEY, {"every": "1h", "run": {"command": ["true"]}}))
        its.hourly()
        await its.timer.reconcile()
        (row,) = await its.beat.schedules()
        return row.source, (await its.listed())[KEY].invalid

    source, why = world.play(story)
    assert source == ""
    assert "exists already and is not a flow" in why


def test_deleted_or_edited_flow_is_restored_at_the_next_interval_and_a_pause_stays(world):
    world.hourly()

    async def story(its):
        await its.timer.pause(its.service, KEY, paused=True)
        await its.timer.reconcile()
        paused = (await its.listed())[KEY].paused
        await its.beat.delete(KEY)
        await its.timer.reconcile()
        return paused, list(await its.listed())

    assert world.play(story) == (True, [KEY])


class Shown:
    """A mirror that records updates, and may fail."""

    def __init__(self):
        self.metas, self.fails = [], False

    async def update(self, meta):
        self.metas.append(meta)
        if self.fails:
            raise ConnectionError("the cluster is away")


@pytest.mark.req("K23", "K31")
def test_mirror_gets_pid_schedules_and_running_flows_after_each_launch(world, logged):
    world.hourly()
    mirror: TimerMirror = Shown()

    async def story(its):
        its.timer._mirrors = [mirror]
        await its.timer.reconcile()
        its.panel.status = "running"
        await its.tick("1h")
        await its.until(lambda: mirror.metas[-1]["running"])
        (run,) = await its.beat.runs()
        mirror.fails, its.panel.status = True, None
        await its.beat.settle()
        await its.until(lambda: not mirror.metas[-1]["running"])
        return run.run_id, await its.statuses()

    run_id, statuses = world.play(story)
    first = mirror.metas[0]
    assert first.keys() == {"pid", "schedules", "running"}
    assert first["schedules"][KEY]["next_run"] == "2026-01-01T13:00:00Z"
    assert any(meta["running"] == {KEY: [run_id]} for meta in mirror.metas)
    assert statuses == [("SUCCESS", None)]  # a failing mirror breaks nothing
    assert any("could not be updated: the cluster is away" in line for _, line in logged())


class Locked:
    """The lock of a timer as a cluster has it, in this process."""

    def __init__(self):
        self.lock = TimerLock()

    async def update(self, meta):
        self.lock.update(json.dumps(meta))


@pytest.mark.req("K32")
def test_main_loop_of_the_timer_keeps_its_lock_up_to_date(world):
    mirror = Locked()
    world.settings = {"flows_interval": 50}
    world.hourly()

    def keys():
        return sorted(mirror.lock.get_meta().get("schedules", ()))

    async def story(its):
        assert isinstance(its.timer, FlowTimer)
        its.timer._mirrors = [mirror]
        await its.until(lambda: keys() == [KEY])
        its.hourly("other", cron="30 * * * *")
        await its.until(lambda: len(keys()) == 2)
        its.unexpose("reports")
        await its.until(lambda: len(keys()) == 1)
        its.panel.status = "running"
        await its.tick("30m")
        await its.until(lambda: mirror.lock.get_meta()["running"])
        running = dict(mirror.lock.get_meta()["running"])
        its.panel.status = None
        await its.beat.settle()
        await its.until(lambda: not mirror.lock.get_meta()["running"])
        return running

    assert world.play(story) == {"other/-/127.0.0.1/8125/-": [1]}
    assert mirror.lock.get_pid() == os.getpid()
    assert mirror.lock.get_meta()["schedules"]["other/-/127.0.0.1/8125/-"]["cron"] == "30 * * * *"


@pytest.mark.req("K33")
def test_flow_modules_export_the_names_of_the_origin():
    said = """
from onbeat.systems.flows.config import *
from onbeat.systems.flows.system import FlowTimer
from onbeat.systems.flows.timer_log import timer_logger
print(TIMER_NAME, TIMER_NAMESPACE, TIMER_USER, timer_logger().name, FlowTimer.__name__)
print(read_config({"cron": "0 9 * * *"}).cron, schedule_id_of(schedule_key("a", "/-/b/")))
"""
    asked = [sys.executable, "-c", said]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert found == "Timer kodosumi timer onbeat.timer FlowTimer\n0 9 * * * a/-/b\n"


@pytest.mark.req("K42")
def test_flow_timer_can_be_tested_with_and_without_a_node(world):
    """A test needs only the exposes and the store."""
    world.hourly()

    async def story(its):
        service, source = its.service, Exposes(its.exposes)
        log = TimerLog(its.folder / "own.log", file_level="DEBUG", std_level="INFO")
        own = FlowTimer(service, source, user="timer", interval=60_000, pid=7, timer_log=log)
        its.hourly(cron="0 9 * * *")
        await own.reconcile()
        return (await own.mirror())["schedules"][KEY]["next_run"], (await its.listed())[KEY].cron

    assert world.play(story) == ("2026-01-02T09:00:00Z", "0 9 * * *")


@pytest.mark.req("K46")
@pytest.mark.parametrize(("given", "seconds"), [({}, 60.0), ({"flows_interval": 7000}, 7.0)])
def test_exposes_are_read_every_minute_unless_an_interval_is_set(world, given, seconds):
    world.settings = given

    async def story(its):
        standing = await its.timer.status(its.service)
        return standing.interval, its.timer._reconciling._every

    assert world.play(story) == (seconds, seconds)


# -- settings and the log


@pytest.mark.req("K37", "K43", "K44", "K45", "K46", "K47")
def test_settings_have_the_defaults_of_the_origin():
    found = Settings().of(FlowsSettings)
    assert found.log_file == "./data/timer.log"
    assert (found.log_file_level, found.std_level) == ("DEBUG", "INFO")
    assert (found.interval, found.user) == (60_000, "timer")


@pytest.mark.req("K37", "K43", "K44", "K45", "K46", "K47")
def test_environment_names_of_the_origin_apply_where_the_timer_is_used(tmp_path):
    theirs = {
        "KODO_TIMER_LOG_FILE": "t.log",
        "KODO_TIMER_LOG_FILE_LEVEL": "info",
        "KODO_TIMER_STD_LEVEL": "ERROR",
        "KODO_TIMER_INTERVAL": "30",
        "KODO_TIMER_USER": "cronos",
    }
    loaded = Settings.load(environment={"ONBEAT_FLOWS_EXPOSES": "x", **theirs}, folder=tmp_path)
    found = loaded.of(FlowsSettings)
    assert (found.log_file, found.log_file_level) == ("t.log", "INFO")
    assert (found.std_level, found.interval) == ("ERROR", 30_000)
    assert found.user == "cronos"
    ours = {"ONBEAT_FLOWS_EXPOSES": "x", "ONBEAT_FLOWS_INTERVAL": "5s", **theirs}
    assert Settings.load(environment=ours, folder=tmp_path).value("flows_interval") == 5000
    assert Settings.load(environment=theirs, folder=tmp_path) == Settings()


@pytest.mark.req("K47", "K8")
def test_panel_and_run_row_name_the_same_user(world):
    """`KODO_TIMER_USER` sets `flows_user`: see above."""
    world.settings = {"flows_user": "cronos"}
    world.panel.users["cronos"] = "sesame"
    world.hourly()

    async def story(its):
        await its.let_pass("1h")
        (run,) = await its.beat.runs()
        return run.user, (await its.listed())[KEY].user

    assert world.play(story) == ("cronos", "cronos")
    assert [each["username"] for each in world.panel.launched] == ["cronos"]


@pytest.mark.req("K47")
def test_user_without_a_password_is_refused_with_a_hint(world):
    world.settings = {"flows_user": "cronos", "flows_password": ""}
    with pytest.raises(InvalidSettings) as refused:
        world.play(lambda _: None)
    assert refused.value.field == "flows_password"
    assert refused.value.problem == f"it is missing: flows run as 'cronos' on {world.url}"
    assert "secret://NAME" in refused.value.hint
    assert "${env:NAME}" in refused.value.hint


@pytest.mark.req("K47")
def test_unknown_panel_user_fails_the_run_and_is_named(world):
    world.settings = {"flows_user": "cronos"}
    world.hourly()

    async def story(its):
        await its.let_pass("1h")
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert (run.status, run.reason) == ("FAILED", "launch_failed")
    assert run.error == (
        f"{world.url} refuses the login of 'cronos': HTTP 401: Unauthorized: Invalid name or password"
        " (flows_user and flows_password, or KODO_TIMER_USER)"
    )


@pytest.mark.req("K41", "K44", "K45")
def test_log_file_has_a_lower_level_than_the_console(world, logged, caplog):
    world.settings = {"flows_std_level": "WARNING"}
    caplog.set_level(logging.DEBUG)
    world.expose("reports", (URL, HOURLY), ("/-/x", "schedule: {cron: 5}"))

    async def story(its):
        await its.let_pass("1h")

    world.play(story)
    assert {level for level, _ in logged()} == {"DEBUG", "INFO", "WARNING"}
    console = [each.levelname for each in caplog.records if each.name == timer_logger().name]
    assert set(console) == {"WARNING"}
    assert timer_logger().handlers == []  # nothing is left behind


def test_unwritable_log_file_does_not_stop_the_timer(world):
    (world.folder / "file").write_text("")
    world.settings = {"flows_log_file": str(world.folder / "file" / "timer.log")}
    world.hourly()

    async def story(its):
        await its.let_pass("1h")
        return await its.statuses()

    assert world.play(story) == [("SUCCESS", None)]
