"""`onbeat up --restored` with real nodes: ticks between a backup and its restoration do not run."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onbeat import Onbeat
from onbeat.core.time.instants import rfc3339
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule

SOON = 20  # seconds: far more than anything here takes
HOURS = 5


def onbeat(*arguments, fails=False):
    done = subprocess.run(
        [sys.executable, "-m", "onbeat", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert fails or done.returncode == 0, done.stderr
    return done


def told(*arguments):
    return json.loads(onbeat(*arguments, "--json").stdout)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a database whose node was last up some hours ago, by its clock."""
    monkeypatch.chdir(tmp_path)
    clock = ManualClock(time.time_ns() // 1_000_000 - HOURS * 3_600_000)
    touches = {"command": ["touch", str(tmp_path / "it-ran")]}

    async def live():
        beat = Onbeat(
            "sqlite:///onbeat.db", clock=clock, launchers={"command": RecordingLauncher()}
        )
        async with beat:
            await beat.define(a_schedule("report", every="1h", run=touches))

    asyncio.run(live())
    backup = [sys.executable, "-m", "apsw", "onbeat.db", ".backup onbeat.backup"]
    subprocess.run(backup, check=True, capture_output=True)
    return tmp_path


def put_back():
    for name in ("onbeat.db", "onbeat.db-wal", "onbeat.db-shm"):
        Path(name).unlink(missing_ok=True)
    Path("onbeat.backup").rename("onbeat.db")


@pytest.fixture
def up(request):
    """Start a node in the background, which ends with the test."""

    def start(*arguments):
        request.addfinalizer(lambda: onbeat("down", fails=True))
        return onbeat("up", "-d", "--roles", "plan,run", *arguments)

    return start


def until(holds):
    limit = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_gap_is_caught_up_without_restored(folder, up):
    put_back()
    up()
    until((folder / "it-ran").exists)


def test_ticks_since_the_backup_do_not_run_with_restored(folder, up):
    up()
    until((folder / "it-ran").exists)  # the time that will be lost
    ran = [run["run_id"] for run in told("runs")]
    onbeat("down")
    (folder / "it-ran").unlink()
    put_back()
    up("--restored")
    (row,) = told("runs")
    assert (row["status"], row["reason"], row["tick_count"]) == ("SKIPPED", "missed", HOURS)
    assert row["run_id"] > 1_000_000 >= max(ran)
    assert not (folder / "it-ran").exists()
    said = onbeat("why", "report", row["first_run_at"]).stdout
    assert "SKIPPED (missed)" in said
    assert "a backup was put back" in said
    onbeat("run", "report")
    until((folder / "it-ran").exists)
    following = told("show", "report")["next_run_at"]
    assert following > rfc3339(int(time.time()))


def test_restored_is_refused_while_a_node_is_up(folder, up):
    put_back()
    up()
    refused = onbeat("up", "--restored", "--roles", "plan,run", fails=True)
    assert refused.returncode == 69
    assert "is in use by" in refused.stderr
