"""The example of the page, started as `make example-flows` does."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from onbeat.app.settings import Settings
from tests.docs.examples import free_port
from tests.systems.flows.panel import EXAMPLE, EXAMPLE_PANEL, ROOT

PAGE = ROOT / "docs" / "flows.md"


def test_page_shows_the_example():
    shown = dict(re.findall(r"```\w+ title=(\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert shown.keys() == {"onbeat.toml", "exposes/reports.yaml"}
    for name, text in shown.items():
        assert text == (EXAMPLE / name).read_text()


def test_one_command_copies_and_starts_the_example():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(
        r"^example-flows: \.venv/run\.stamp.*\n((?:\t.*\n)+)", makefile, re.MULTILINE
    )
    assert "cp -R examples/flows .onbeat/flows" in recipe[1]
    assert "cd .onbeat/flows && ../../$(BIN)/python play.py" in recipe[1]


def test_settings_of_the_example_are_those_of_a_timer(tmp_path):
    shutil.copy(EXAMPLE / "onbeat.toml", tmp_path)
    found = Settings.load(environment={}, folder=tmp_path)
    assert (found.value("flows_exposes"), found.value("flows_interval")) == ("exposes", 5000)
    assert list(EXAMPLE_PANEL.FLOWS) == ["/-/127.0.0.1/8125/-/", "/-/127.0.0.1/8125/-/clean"]


def test_example_does_what_the_page_shows(tmp_path):
    folder, panel, api = tmp_path / "flows", free_port(), free_port()
    shutil.copytree(EXAMPLE, folder)
    toml = folder / "onbeat.toml"
    toml.write_text(toml.read_text().replace("3370", str(panel)))
    environment = {
        "PATH": os.defpath, "HOME": str(folder), "ONBEAT_STOP_GRACE": "5s",
        "ONBEAT_LISTEN": f"127.0.0.1:{api}",
    }  # fmt: skip
    with (tmp_path / "told").open("wb") as told:
        playing = subprocess.Popen(
            [sys.executable, "play.py", "--listen", f"127.0.0.1:{panel}"],
            cwd=folder, env=environment, stdout=told, stderr=told, start_new_session=True,
        )  # fmt: skip
    try:
        run = started_by_hand(folder, api)
    finally:
        os.killpg(playing.pid, signal.SIGINT)
        code = playing.wait(30)
    said = (tmp_path / "told").read_text()
    assert (run["status"], run["user"], run["triggered_by"]) == ("SUCCESS", "timer", "manual")
    assert run["result"]["Markdown"]["body"].startswith("a daily report")
    assert '"schedule_key": "reports/-/127.0.0.1/8125/-"' in said
    assert code == 0
    assert "Traceback" not in said


def started_by_hand(folder, api):
    """Start the first flow as soon as it exists; return its ended run."""
    until, token = time.monotonic() + 30, folder / "onbeat.db.token"
    while not token.exists() and time.monotonic() < until:
        time.sleep(0.05)
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    transport = httpx.HTTPTransport(retries=8)
    with httpx.Client(
        base_url=f"http://127.0.0.1:{api}", headers=headers, transport=transport
    ) as client:
        first = client.get("/timer/schedules").json()[0]["schedule_id"].replace("/", "%2F")
        begun = client.post(f"/timer/schedules/{first}/run").json()
        while time.monotonic() < until:
            found = client.get(f"/api/v1/runs/{begun['run_id']}").json()
            if found["finished_at"]:
                return found
            time.sleep(0.05)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("program", ["panel.py", "play.py"])
def test_port_in_use_is_reported_in_one_line(program, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, program, "--listen", there], cwd=EXAMPLE, env={"PATH": os.defpath},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"panel: {there} is not free: ")
    assert len(done.stderr.splitlines()) == 1
