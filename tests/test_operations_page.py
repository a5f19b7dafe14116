"""The page about operating: its commands work, and its tables are complete."""

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onbeat import Onbeat
from onbeat.app.metrics import Metrics, render
from onbeat.app.peers import peers_to_check
from onbeat.core.notify.channels import read_channels
from onbeat.ports.rows import GroupRow, NodeRow, Overview, StoreFigures
from onbeat.ports.system import PeerContext
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule
from tests.given_settings import given_settings

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "operating.md").read_text()
HOURS = 3


def section(title):
    (found,) = re.findall(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE
    )
    return found


def commands(title):
    (block,) = re.findall(r"```console\n(.*?)```", section(title), re.DOTALL)
    return [line.removeprefix("$ ").partition(" # ")[0] for line in block.splitlines()]


def first_cells(title):
    rows = re.findall(r"^\| (`.+?) \|", section(title), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Do lines as a person would, in an empty folder, with `onbeat` and its `python` at hand."""
    monkeypatch.chdir(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONBEAT_")}
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "onbeat").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m onbeat "$@"\n')
    for path in programs.iterdir():
        path.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"

    def call(line):
        done = subprocess.run(
            ["sh", "-c", line], env=kept | {"PATH": path, "ONBEAT_ROLES": "plan,run"},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    yield call
    call("onbeat down")


def test_documented_commands_make_and_restore_a_backup(shell, tmp_path):
    clock = ManualClock(time.time_ns() // 1_000_000 - HOURS * 3_600_000)

    async def live():
        launchers = {"command": RecordingLauncher()}
        async with Onbeat("sqlite:///onbeat.db", clock=clock, launchers=launchers) as beat:
            await beat.define(
                a_schedule("report", run={"command": ["touch", str(tmp_path / "it-ran")]})
            )

    asyncio.run(live())
    for line in commands("Backup"):
        shell(line)
    assert (tmp_path / "onbeat.backup").stat().st_mode & 0o077 == 0
    shell("onbeat doctor --database sqlite:///onbeat.backup")
    shell("onbeat run report; onbeat pause report")  # what is lost
    for line in commands("Restore"):
        shell(line)
    (row,) = json.loads(shell("onbeat runs --json"))
    assert (row["status"], row["reason"], row["tick_count"]) == ("SKIPPED", "missed", HOURS)
    assert "a backup was put back" in shell("onbeat why report")
    assert not (tmp_path / "it-ran").exists()


def test_documented_command_shrinks_the_database_file(shell):
    async def live():
        async with Onbeat("sqlite:///onbeat.db"):
            pass

    asyncio.run(live())
    (line,) = re.findall(r"`(python -m apsw .+?)`", section("Retention"))
    shell(line)


def test_documented_health_checks_work(shell, tmp_path):
    asyncio.run(_make())
    for line in commands("Health checks"):
        shell(line)


async def _make():
    async with Onbeat("sqlite:///onbeat.db"):
        pass


def test_every_doctor_check_is_in_the_table():
    names = set()
    package = ROOT / "src" / "onbeat"
    for path in (*package.glob("doctor/*.py"), *package.glob("systems/*/checks.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given = node.args[0] if node.args else None
                if node.func.id in {"ok", "warn", "fail"} and isinstance(given, ast.Constant):
                    names.add(given.value)
    assert len(names) > 25
    assert set(first_cells("Health checks")) == names | names_of_peers()


def names_of_peers():
    """Return what each kind of peer is called, with NAME for the name of a channel."""
    ways = {
        "smtp": "smtp://localhost",
        "webhook": "http://localhost",
        "apprise": "json://localhost",
    }
    found = {"ray"}
    for way, address in ways.items():
        channel = {way: address, **({"to": ["a@b"]} if way == "smtp" else {})}
        settings = given_settings(
            flows_panel="x", sessions_url="x", workflows_executor="x", ray_address="x",
            notify=read_channels({"NAME": channel}),
        )  # fmt: skip
        context = PeerContext(settings, ask=None, environment={}, is_start=False, answers_within=5)
        found |= {peer.name for peer in peers_to_check(context, settings)}
    return found


def test_every_metric_is_in_the_table():
    now = 1_767_268_800_000
    node = NodeRow("1", "here:1", frozenset(), frozenset(), now, now, "1", "2026a", 0)
    overview = Overview(now, True, 0, 0, 0, None, {}, [node])
    text = render(
        Metrics(), overview, [GroupRow("db", 1, 0, 0)], StoreFigures(0, None, 0, {}, 0), version="1"
    )
    there = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    assert sorted(first_cells("Metrics")) == sorted(there)


def test_documented_command_creates_a_prometheus_token(shell):
    asyncio.run(_make())
    (line,) = commands("Metrics")
    assert shell(line).strip()
