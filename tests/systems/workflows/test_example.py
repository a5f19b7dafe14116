"""The example of the page, started as `make example-workflows` does."""

import json
import os
import queue
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from onbeat.app.settings import Settings
from tests.docs.examples import free_port
from tests.systems.workflows.conftest import WorkflowsHarness

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLE, PAGE = ROOT / "examples" / "workflows", ROOT / "docs" / "workflows.md"
PATIENCE = 30  # seconds


def shown():
    return dict(re.findall(r"```\w+ title=(\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))


def test_page_shows_the_example():
    for name in ("onbeat.toml", "report.json", "executor.py"):
        assert shown()[name] == (EXAMPLE / name).read_text()


def test_one_command_copies_and_starts_the_example():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(
        r"^example-workflows: \.venv/run\.stamp.*\n((?:\t.*\n)+)", makefile, re.MULTILINE
    )
    assert "cp -R examples/workflows .onbeat/workflows" in recipe[1]
    assert "cd .onbeat/workflows && ../../$(BIN)/python play.py" in recipe[1]


@pytest.mark.req("W90")
def test_page_has_a_working_upsert_with_every_field():
    given = json.loads(shown()["upsert.json"])

    async def story(its):
        answered = await its.registrar.upsert_schedule(given)
        return answered, await its.get("morning-report")

    answered, found = WorkflowsHarness().play(story)
    assert answered == {"schedule_id": "morning-report", "next_run_at": "2026-01-01T14:00:00Z"}
    assert {name: found[name] for name in given} == given
    assert found.keys() == given.keys() | {"next_run_at", "paused", "updated_at"}


@pytest.mark.req("W74", "W75", "W76", "W77", "W78")
def test_environment_settings_of_the_origin_apply(tmp_path):
    shutil.copy(EXAMPLE / "onbeat.toml", tmp_path)
    theirs = dict(
        re.findall(r"\b([A-Z_]+)=(\w+)", " ".join(re.findall(r"export .*", PAGE.read_text())))
    )
    assert theirs.keys() >= {"TICK_MS", "LOOKAHEAD_MS", "MAX_CATCHUP_PER_TICK"}
    as_they_are = Settings.load(environment=theirs, folder=tmp_path)
    assert as_they_are == Settings.load(environment={}, folder=tmp_path)  # they are the defaults
    others = {"TICK_MS": "250", "LOOKAHEAD_MS": "5000", "MAX_CATCHUP_PER_TICK": "7"}
    found = Settings.load(environment=others, folder=tmp_path)
    assert (found.lookahead, found.catchup_per_second) == (5000, 7)
    assert tomllib.loads((tmp_path / "onbeat.toml").read_text())["workflows"]["feedback"] is True


class Playing:
    """The example in a separate folder, at free ports, as a terminal runs it."""

    def __init__(self, folder):
        self.folder, self.told, self.api = folder / "workflows", folder / "told", free_port()
        self.executor = free_port()
        shutil.copytree(EXAMPLE, self.folder)

    def begin(self):
        environment = {
            "PATH": os.defpath, "HOME": str(self.folder), "ONBEAT_STOP_GRACE": "5s",
            "ONBEAT_LISTEN": f"127.0.0.1:{self.api}", "EXECUTOR_PORT": str(self.executor),
        }  # fmt: skip
        with self.told.open("wb") as told:
            self.playing = subprocess.Popen(
                [sys.executable, "play.py"], cwd=self.folder, env=environment, stdout=told,
                stderr=told, start_new_session=True,
            )  # fmt: skip

    def interrupt(self):
        """Send SIGINT to the process group, as Ctrl-C does."""
        os.killpg(self.playing.pid, signal.SIGINT)
        return self.playing.wait(30)


@pytest.fixture
def example(tmp_path):
    found = Playing(tmp_path)
    yield found
    if found.playing.poll() is None:
        found.playing.terminate()
        found.playing.wait(30)


@pytest.mark.req("W9", "W10", "W41", "W58")
def test_example_does_what_the_page_shows(example):
    example.begin()
    runs = until_one_succeeded(example.folder, example.api)
    assert example.interrupt() == 0
    latest = next(run for run in runs if run["status"] == "SUCCESS")
    assert latest["run_id"] == f"run-{latest['idempotency_key'][:8]}"
    assert "fetch gave 5" in example.told.read_text()
    assert "Traceback" not in example.told.read_text()


def test_hand_over_in_progress_at_ctrl_c_completes(example):
    executor = example.folder / "executor.py"
    slow = '    def do_POST(self):\n        print("asked", flush=True)\n        time.sleep(1)\n'
    executor.write_text(executor.read_text().replace("    def do_POST(self):\n", slow))
    example.begin()
    until = time.monotonic() + PATIENCE
    while "asked" not in example.told.read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert example.interrupt() == 0
    assert "Traceback" not in example.told.read_text()
    with closing(sqlite3.connect(example.folder / "onbeat.db")) as database:
        (first, *_) = database.execute("SELECT phase, external_id FROM schedule_runs").fetchall()
    assert first[0] in ("ACCEPTED", "SUCCESS")
    assert first[1].startswith("run-")


@pytest.mark.parametrize("which", ["executor", "api"])
def test_port_in_use_is_reported_in_one_line_and_nothing_is_started(example, which):
    with socket.create_server(("127.0.0.1", getattr(example, which))):
        example.begin()
        assert example.playing.wait(PATIENCE) == 1
    setting = {"executor": "EXECUTOR_PORT=", "api": "ONBEAT_LISTEN="}[which]
    (line,) = example.told.read_text().splitlines()
    assert f"127.0.0.1:{getattr(example, which)}: Address already in use ({setting}" in line
    assert not (example.folder / "onbeat.db").exists()


def test_executor_alone_reports_a_port_in_use_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "executor.py"], cwd=EXAMPLE, env={"EXECUTOR_PORT": port},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    told = f"the executor cannot listen on port {port}: Address already in use\n"
    assert done.stderr == told


class Listening(ThreadingHTTPServer):
    """Reports of an executor, answered with the given statuses, then with 200."""

    def __init__(self, *statuses):
        super().__init__(("127.0.0.1", 0), _Hearing)
        self.statuses, self.told = list(statuses), queue.Queue()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Hearing(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.told.put(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def execute(tmp_path):
    """Run the executor of the example, with shorter delays; hand a DAG to it."""
    port = free_port()
    text = (EXAMPLE / "executor.py").read_text()
    assert "time.sleep(1)" in text
    file = tmp_path / "executor.py"
    file.write_text(text.replace("9000", str(port)).replace("sleep(1)", "sleep(0.05)"))
    with (tmp_path / "said").open("wb") as said:
        running = subprocess.Popen([sys.executable, str(file)], stdout=said, stderr=said)

    def execute(key, **headers):
        body = {
            "dag": json.loads((EXAMPLE / "report.json").read_text()),
            "meta": {"idempotency_key": key},
        }
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        transport = httpx.HTTPTransport(retries=8)  # it may not listen yet
        with httpx.Client(transport=transport) as client:
            answer = client.post(
                f"http://127.0.0.1:{port}/execute",
                json=body,
                headers={"Idempotency-Key": key, **headers},
            )
        assert answer.status_code == 202

    yield execute
    running.terminate()
    running.wait(15)
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert (tmp_path / "said").read_text().count("fetch gave 5") == 1


@pytest.mark.req("W58")
def test_executor_of_the_page_repeats_unconfirmed_reports_and_runs_once(execute):
    with Listening(409, 503, 409) as onbeat:
        url = f"http://127.0.0.1:{onbeat.server_address[1]}/status"
        for times in (4, 1):  # a repeated key, after its outcome was reported, is reported again
            execute("k" * 64, Onbeat_Callback=url, Onbeat_Callback_Token="t")
            told = [onbeat.told.get(timeout=15)["status"] for _ in range(times)]
            assert told == ["SUCCESS"] * times
        onbeat.shutdown()


def test_executor_of_the_page_does_not_repeat_a_final_refusal(execute):
    with Listening(404) as onbeat:
        url = f"http://127.0.0.1:{onbeat.server_address[1]}/status"
        execute("k" * 64, Onbeat_Callback=url, Onbeat_Callback_Token="t")
        assert onbeat.told.get(timeout=15)["status"] == "SUCCESS"
        with pytest.raises(queue.Empty):
            onbeat.told.get(timeout=0.3)
        onbeat.shutdown()


def test_executor_of_the_page_reports_nothing_for_a_manual_start(execute, tmp_path):
    execute("by-hand")
    until = time.monotonic() + PATIENCE
    while not (said := (tmp_path / "said").read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    assert "gave" in said
    assert "Traceback" not in said


def until_one_succeeded(folder, api):
    url, until = (
        f"http://127.0.0.1:{api}/schedules/report%2Foften/runs",
        time.monotonic() + PATIENCE,
    )
    while time.monotonic() < until:
        time.sleep(0.05)
        token = folder / "onbeat.db.token"
        if not token.exists():
            continue
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        try:
            found = httpx.get(url, headers=headers, timeout=5)
        except httpx.HTTPError:
            continue
        if found.status_code == 200 and "SUCCESS" in found.text:
            return found.json()
    raise AssertionError((folder.parent / "told").read_text())
