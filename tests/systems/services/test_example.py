"""The example of the page, started as `make example-services` does."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLE, PAGE = ROOT / "examples" / "services", ROOT / "docs" / "services.md"
PATIENCE = 30  # seconds


def test_page_shows_the_example():
    shown = dict(re.findall(r"```\w+ title=(\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for path in EXAMPLE.iterdir():
        assert shown[path.name] == path.read_text()


def test_one_command_copies_the_example_and_starts_a_node_in_its_folder():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(
        r"^example-services: \.venv/run\.stamp.*\n((?:\t.*\n)+)", makefile, re.MULTILINE
    )
    assert "cp -R examples/services .onbeat/services" in recipe[1]
    assert "cd .onbeat/services && ../../$(BIN)/python -m onbeat up" in recipe[1]


@pytest.mark.req("S56", "S61", "S83")
def test_example_does_what_the_page_shows(tmp_path):
    folder = tmp_path / "services"
    shutil.copytree(EXAMPLE, folder)
    onbeat = [sys.executable, "-m", "onbeat"]
    settings = {"ONBEAT_LISTEN": "127.0.0.1:0", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def listed():
        done = subprocess.run(
            [*onbeat, "timers", "--json"],
            cwd=folder,
            env=settings,
            capture_output=True,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else {"timers": []}
        return {each["id"]: each for each in found["timers"]}, found.get("invalid")

    node = subprocess.Popen(
        [*onbeat, "up"],
        cwd=folder,
        env=settings,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + PATIENCE
        while True:
            timers, invalid = listed()
            done = {name for name, each in timers.items() if each["last_exit"] == 0}
            if {"greeting", "preparation"} <= done:
                break
            assert time.monotonic() < until, timers
            time.sleep(0.05)
    finally:
        node.terminate()
        node.wait(10)
    assert invalid == [{"id": "broken", "reason": "target 'goodbye' not found in services"}]
    told = (folder / "hello.txt").read_text().splitlines()
    assert {"hello", "ready"} == set(told)
    kept = json.loads((folder / "timer-state.json").read_text())["timers"]
    assert kept["preparation"]["last_exit"] == 0
    assert kept["preparation"]["last_failure_at"] < kept["preparation"]["last_success_at"]
