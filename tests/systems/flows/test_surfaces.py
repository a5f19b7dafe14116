"""The timer over HTTP, on the page, on the command line, and by webhook."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from onbeat.cli.command import main
from onbeat.core.notify.channels import read_channels
from onbeat.systems.flows.template import META_TEMPLATE
from tests.systems.flows.conftest import KEY, URL
from tests.systems.flows.panel import FakePanel, Flow
from tests.waiting import until
from tests.web.serving import serving

QUOTED = KEY.replace("/", "%2F")
HOURLY = {"cron": "0 * * * *", "inputs": {"query": "x"}}


def expose(folder, name="reports", **block):
    folder.mkdir(exist_ok=True)
    flows = [{"url": URL, "data": {"schedule": HOURLY | block}}]
    (folder / f"{name}.yaml").write_text(json.dumps({"meta": flows}))


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    """An API of a node that plans and does not run."""
    folder = tmp_path_factory.mktemp("timer")
    expose(folder / "exposes")
    expose(folder / "exposes", "wrong", cron="0 25 * * *")
    with serving(folder, roles=("plan", "api")) as found:
        yield found


@pytest.mark.req("K35", "K51")
def test_timer_route_returns_the_status(api):
    found = api.get("//timer").json()
    why = "schedule.cron.hour: '25' is not an hour (0 to 23)"
    assert found["invalid"] == {"wrong/-/127.0.0.1/8125/-": why}
    assert (found["name"], found["pid"], found["running"]) == ("Timer", os.getpid(), True)
    assert (found["active"], found["total"], found["user"]) == (0, 1, "timer")


@pytest.mark.req("K35")
def test_scheduled_flows_are_listed_with_ignored_ones(api):
    first, second = api.get("//timer/schedules").json()
    assert (first["key"], first["cron"], first["inputs"]) == (KEY, "0 * * * *", {"query": "x"})
    assert first["next_run"].endswith(":00:00Z")
    assert second["invalid"].startswith("schedule.cron.hour")


@pytest.mark.req("K10", "K62")
def test_user_and_trigger_of_each_run_are_in_its_row_and_on_the_page(api):
    by_hand = api.post(f"//timer/schedules/{QUOTED}/run").json()
    assert (by_hand["user"], by_hand["triggered_by"]) == ("timer", "manual")
    run = api.get("//timer/runs").json()[0]
    assert (run["schedule_key"], run["user"], run["triggered_by"]) == (KEY, "timer", "manual")
    assert api.get(f"/runs/{run['run_id']}").json()["user"] == "timer"
    page = api.get("//").text
    assert "<td>timer</td><td>manual</td>" in page
    assert "Flows not scheduled" in page


def test_flow_is_paused_and_resumed(api):
    assert api.post(f"//timer/schedules/{QUOTED}/pause").json()["paused"] is True
    assert api.post(f"//timer/schedules/{QUOTED}/resume").json()["paused"] is False
    assert api.post("//timer/schedules/nothing/pause").status_code == 404


def test_owner_does_not_see_flows_of_others(api):
    token = api.token("operate", "ann")
    assert api.get("//timer", token=token).json()["invalid"] == {}
    assert api.get("//timer/schedules", token=token).json() == []
    assert api.get("//timer/runs", token=token).json() == []
    assert api.post(f"//timer/schedules/{QUOTED}/run", token=token).status_code == 404
    mine = api.token("operate", "timer")
    assert len(api.get("//timer/schedules", token=mine).json()) == 2


def test_owner_sees_that_exposes_are_unreadable_but_no_path(tmp_path):
    with serving(tmp_path, flows_exposes=str(tmp_path / "none")) as found:
        admin, owner = (
            found.get("//timer", token=token).json()["problems"]
            for token in (found.admin, found.token("read", "ann"))
        )
    assert admin[0].startswith(f"exposes: {tmp_path}/none does not exist")
    assert owner[0] == "exposes: cannot be read"
    assert len(owner) == len(admin)


def test_routes_of_the_timer_are_missing_without_exposes(tmp_path):
    with serving(tmp_path, flows_exposes="") as found:
        refused = found.get("//timer")
    assert (refused.status_code, refused.json()["field"]) == (409, "flows_exposes")


# -- webhooks


@pytest.mark.req("K68")
def test_webhook_is_notified_of_a_failed_flow(world):
    heard = []

    async def hook(request):
        heard.append(await request.json())
        return web.Response()

    async def story(its):
        its.panel.fails = {f"POST {URL}": 404}
        await its.let_pass("1h")
        await its.until(lambda: heard)

    async def whole():
        app = web.Application()
        app.add_routes([web.post("/hook", hook)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        page = (Path(__file__).parents[3] / "docs" / "flows.md").read_text()
        shown = re.search(r"```toml\n(\[notify\.ops\]\n.*?)```", page, re.DOTALL)[1]
        table = tomllib.loads(shown.replace("127.0.0.1:9000", f"127.0.0.1:{port}"))
        world.settings = {"notify": read_channels(table["notify"])}
        world.url = await world.panel.start()
        await world.live(story)
        await world.panel.stop()
        await runner.cleanup()

    world.hourly()
    asyncio.run(asyncio.wait_for(whole(), 20))
    assert KEY in json.dumps(heard)


# -- the command line


def onbeat(folder, *words):
    environment = {"PATH": os.defpath, "HOME": str(folder), "ONBEAT_ROLES": "plan,run"}
    asked = [sys.executable, "-m", "onbeat", "timer", *words]
    done = subprocess.run(
        asked, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.mark.req("K36", "K48", "K50", "K51", "K52")
def test_timer_start_status_and_stop_print_the_texts_of_the_origin(tmp_path):
    expose(tmp_path / "exposes")
    exposes = ("--exposes", "exposes")
    assert onbeat(tmp_path, "--status") == (1, "timer actor not found.", "")
    assert onbeat(tmp_path, "--stop") == (0, "no timer found", "")
    code, told, _ = onbeat(tmp_path, "--start", "--interval", "30", *exposes)
    try:
        pid = int(re.fullmatch(r"timer started \(pid=(\d+)\)\.", told)[1])
        assert code == 0
        running = f"timer (pid={pid}) is running\nactive flows: 0, total flows: 1"
        no_panel = "flows_panel is not set: flows wait for a node that has a panel"
        assert onbeat(tmp_path, "--status") == (1, f"{running}\nproblem: {no_panel}", "")
        code, told, _ = onbeat(tmp_path, "--status", "--json")
        found = json.loads(told)
        assert (found["interval"], found["pid"], found["schedules"][0]["key"]) == (30.0, pid, KEY)
        assert (code, found["problems"]) == (1, [no_panel])
        again = onbeat(tmp_path, *exposes)
        assert again == (69, "", f"timer already running, pid={pid}. Exiting.")
    finally:
        code, told, _ = onbeat(tmp_path, "--stop")
    assert (code, told) == (0, f"timer stopped with pid={pid}")
    assert onbeat(tmp_path, "--status")[1] == "timer actor not found."
    assert (tmp_path / "data" / "timer.log").read_text().endswith(f"timer stopped with pid={pid}\n")


@pytest.mark.req("K49")
def test_timer_runs_in_the_foreground_and_reads_the_panel_s_expose_db(tmp_path):
    environment = {
        "PATH": os.defpath,
        "HOME": str(tmp_path),
        "ONBEAT_ROLES": "plan,run",
        "KODO_TIMER_INTERVAL": "7",
    }
    with (tmp_path / "told").open("wb") as told:
        asked = [sys.executable, "-m", "onbeat", "timer", "--start", "--block"]
        running = subprocess.Popen(asked, cwd=tmp_path, env=environment, stdout=told, stderr=told)
    try:
        until = time.monotonic() + 20
        while b" is up on " not in (tmp_path / "told").read_bytes() and time.monotonic() < until:
            time.sleep(0.05)
        code, status, _ = onbeat(tmp_path, "--status", "--json")
        found = json.loads(status)
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert (code, found["pid"], found["interval"]) == (1, running.pid, 7.0)
    assert found["exposes"] == "data/expose.db"
    unread, no_panel = found["problems"]
    assert unread.startswith("exposes: data/expose.db does not exist")
    assert no_panel.startswith("flows_panel is not set")
    assert "data/expose.db does not exist" in (tmp_path / "told").read_text()


@pytest.mark.req("K51")
def test_status_is_green_only_while_the_panel_accepts_the_login(world):
    world.hourly()
    world.settings = {"flows_interval": 100}

    async def story(its):
        async def problems():
            return (await its.timer.status(its.service)).problems

        async def until_there_are(n):
            async with asyncio.timeout(10):
                while True:
                    if len(found := await problems()) == n:
                        return found
                    await asyncio.sleep(0.02)

        found = [await until_there_are(0)]
        its.panel.fails = {"/flow": 502}
        found += await until_there_are(1)
        its.panel.fails = {}
        found.append(await until_there_are(0))
        its.panel.users["timer"] = "another"
        its.panel.forget_keys()
        found += await until_there_are(1)
        its.exposes.write_text("no database")
        found.append(await until_there_are(2))
        return found

    green, away, again, refused, both = world.play(story)
    assert (green, again) == ([], [])
    assert away == f"panel: {world.url} does not answer: HTTP 502: Bad Gateway: broken"
    assert refused.startswith(f"panel: {world.url} refuses the login of 'timer': HTTP 401")
    assert both[0].startswith("exposes: ")
    assert both[1] == refused


def test_timer_with_entry_points_only_needs_no_panel(tmp_path):
    expose(tmp_path / "exposes", entry_point="reports:build")
    with serving(tmp_path, flows_exposes=str(tmp_path / "exposes"), roles=("plan", "api")) as found:
        assert found.get("//timer").json()["problems"] == []


@pytest.mark.req("K39")
def test_template_is_printed():
    assert CliRunner().invoke(main, ["timer", "--template"]).output == META_TEMPLATE


@pytest.mark.parametrize("n", ["0", "-5", "soon"])
def test_invalid_timer_interval_is_refused(n):
    assert CliRunner().invoke(main, ["timer", "--interval", n]).exit_code == 2


async def run_timer(folder, told):
    asked = (sys.executable, "-m", "onbeat", "timer", "--start", "--block")
    environment = {"PATH": os.defpath, "HOME": str(folder), "ONBEAT_ROLES": "plan,run"}
    return await asyncio.create_subprocess_exec(
        *asked, cwd=folder, env=environment, stdout=told, stderr=told
    )


def rows_of(folder):
    """Return phase and attempts of every run, as another process sees them."""
    with closing(sqlite3.connect(f"file:{folder}/onbeat.db?mode=ro", uri=True)) as database:
        return database.execute("SELECT phase, attempt, external_id FROM schedule_runs").fetchall()


def killed_and_started_again(tmp_path, panel, is_to_be_killed):
    """Kill a timer with SIGKILL once a condition holds, and start another that follows the run."""
    expose(tmp_path / "exposes", cron="0 0 1 1 *")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "panel").write_text("sesame")

    async def until(holds):
        while True:
            if holds():
                return
            await asyncio.sleep(0.05)

    async def story(told):
        url = await panel.start()
        flows = f'[flows]\nexposes = "exposes"\npanel = "{url}"\npassword = "secret://panel"\n'
        (tmp_path / "onbeat.toml").write_text(f'secrets = "secrets"\n{flows}')
        first = await run_timer(tmp_path, told)
        await until(lambda: b" is up on " in (tmp_path / "told").read_bytes())
        asked = (sys.executable, "-m", "onbeat", "run", KEY)
        await (await asyncio.create_subprocess_exec(*asked, cwd=tmp_path, stdout=told)).wait()
        await until(is_to_be_killed)
        first.kill()
        await first.wait()
        panel.status = None
        second = await run_timer(tmp_path, told)
        try:
            await until(lambda: rows_of(tmp_path)[0][0] in ("SUCCESS", "FAILED"))
        finally:
            second.terminate()
            await second.wait()
            await panel.stop()

    with (tmp_path / "told").open("wb") as told:
        asyncio.run(asyncio.wait_for(story(told), 60))


def test_after_kill_9_the_next_timer_reattaches_the_flow(tmp_path):
    panel = FakePanel({URL: Flow("a report", ["query"])}, password="sesame")
    panel.status = "running"
    killed_and_started_again(tmp_path, panel, lambda: any(fid for *_, fid in rows_of(tmp_path)))
    assert rows_of(tmp_path) == [("SUCCESS", 2, panel.launched[0]["fid"])]
    assert len(panel.launched) == 1


def test_launch_interrupted_by_kill_9_is_lost_and_not_repeated(tmp_path):
    panel = FakePanel({URL: Flow("a report", ["query"])}, password="sesame")
    launch = panel._launch

    async def unanswered(request):
        answered = await launch(request)
        await until(request.transport.is_closing)  # the launch was received but not answered
        return answered

    panel._launch = unanswered
    killed_and_started_again(tmp_path, panel, lambda: panel.launched)
    assert rows_of(tmp_path) == [("FAILED", 2, None)]
    assert len(panel.launched) == 1
