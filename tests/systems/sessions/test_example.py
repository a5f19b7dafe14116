"""The example runs from a copy of its folder and equals the one on the page."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.systems.sessions.conftest import EXAMPLE, ROOT

PAGE = (ROOT / "docs" / "sessions.md").read_text()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.timeout(60)
def test_example_sends_its_prompts_immediately_and_the_server_shows_them(tmp_path):
    folder = tmp_path / "sessions"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    there = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "ONBEAT_SESSIONS_URL": f"http://{there}",
        "ONBEAT_LISTEN": "127.0.0.1:0",
        "ONBEAT_ROLES": "plan,run,api",
    }
    log = tmp_path / "log"
    with log.open("w") as out:
        words = [sys.executable, "play.py", "--listen", there]
        playing = subprocess.Popen(words, cwd=folder, stdout=out, stderr=out, env=environment)
    try:
        until = time.monotonic() + 40
        while log.read_text().count("[scheduler:") < 2 and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        playing.send_signal(signal.SIGTERM)
        assert playing.wait(30) == 0, log.read_text()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(there.split(":")):
        pass  # nothing is left of it
    told = log.read_text()
    assert "[scheduler:daily-standup] Generate daily standup summary from git commits" in told
    assert "[scheduler:hello] What is worth knowing on " in told
    last = json.loads((folder / "schedule" / "hello" / "last-run.json").read_text())
    assert last["lastResult"] == "success"
    assert "sessionId" not in last, "each run has its own"


def test_the_page_shows_the_definition_of_the_example():
    text = (EXAMPLE / "schedule" / "daily-standup" / "definition.json").read_text()
    assert f"```json title=schedule/daily-standup/definition.json\n{text}```" in PAGE


def test_one_command_starts_the_example():
    assert "`make example-sessions`" in PAGE
    recipe = (ROOT / "Makefile").read_text().partition("\nexample-sessions:")[2]
    recipe = recipe.partition("\n\n")[0]
    assert "cp -R examples/sessions .onbeat/sessions" in recipe
    assert "cd .onbeat/sessions && ../../$(BIN)/python play.py" in recipe
    assert 'url = "http://127.0.0.1:53000"' in (EXAMPLE / "onbeat.toml").read_text()
