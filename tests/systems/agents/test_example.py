"""The example of the page, started as `make example-agents` does; and texts of the page."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel

from onbeat.agents import Orchestrator
from onbeat.sources.yaml import read_definitions
from onbeat.testing import ManualClock

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLE, PAGE = ROOT / "examples" / "agents", ROOT / "docs" / "agents.md"
PATIENCE = 30  # seconds


def shown():
    return dict(re.findall(r"```\w+ title=(\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))


def test_page_shows_the_example():
    assert shown()["play.py"] == (EXAMPLE / "play.py").read_text()


def test_one_command_copies_and_starts_the_example():
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(
        r"^example-agents: \.venv/run\.stamp.*\n((?:\t.*\n)+)", makefile, re.MULTILINE
    )
    assert "cp -R examples/agents .onbeat/agents" in recipe[1]
    assert "cd .onbeat/agents && ../../$(BIN)/python play.py" in recipe[1]


class Playing:
    """The example in a separate folder, as a terminal runs it."""

    def __init__(self, folder):
        self.folder, self.told = folder / "agents", folder / "told"
        shutil.copytree(EXAMPLE, self.folder)

    def begin(self):
        with self.told.open("wb") as told:
            self.playing = subprocess.Popen(
                [sys.executable, "play.py"], cwd=self.folder, stdout=told, stderr=told,
                env={"PATH": os.defpath, "HOME": str(self.folder)}, start_new_session=True,
            )  # fmt: skip

    def until(self, pattern):
        """Wait until its output matches; return all matches."""
        until = time.monotonic() + PATIENCE
        while (
            not (found := re.findall(pattern, self.told.read_text())) and time.monotonic() < until
        ):
            time.sleep(0.05)
        assert found, self.told.read_text()
        return found

    def interrupt(self):
        """Send SIGINT to the process group, as Ctrl-C does."""
        os.killpg(self.playing.pid, signal.SIGINT)
        assert self.playing.wait(PATIENCE) == 0
        assert "Traceback" not in self.told.read_text()


@pytest.fixture
def example(tmp_path):
    found = Playing(tmp_path)
    yield found
    if found.playing.poll() is None:
        found.playing.terminate()
        found.playing.wait(30)


def test_example_does_what_the_page_shows_and_continues_after_a_restart(example):
    example.begin()
    example.until(r"report 0 for \d\d:\d\d:\d\d: \d errors")
    example.until("alert: request 0 failed")
    example.interrupt()
    before = example.told.read_text()
    example.begin()
    (first, *_) = example.until(r"alert: request (\d+) failed")
    example.until(r"report [1-9]\d* for")
    example.interrupt()
    assert f"request {first} failed" not in before
    assert int(first) % 3 == 0
    assert int(first) > 0


def test_flock_schedule_of_the_page_can_be_defined(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text(shown()["onbeat.yaml"])
    (schedule,) = read_definitions(file).schedules
    assert schedule == "daily-report"


@pytest.mark.req("F42")
def test_page_documents_cron_in_utc_with_examples():
    (row,) = re.findall(r"^\| `cron=.*$", PAGE.read_text(), re.MULTILINE)
    assert "in UTC" in row
    for text in ("*/5 * * * *", "0 17 * * *", "0 9-17/2 * * 1-5"):
        assert f"`{text}`" in row


@pytest.mark.req("F43")
def test_page_documents_that_timers_give_no_input_but_state():
    (row,) = re.findall(r"^\| `artifacts` .*$", PAGE.read_text(), re.MULTILINE)
    assert "`[]`: a timer gives **no input**" in row
    for name in ("trigger_type", "timer_iteration", "fire_time", "get_artifacts(Type)", "state"):
        assert f"| `{name}` |" in PAGE.read_text()


@pytest.mark.req("F44")
def test_page_documents_that_a_datetime_fires_once():
    (row,) = re.findall(r"^\| `at=datetime\(2026.*$", PAGE.read_text(), re.MULTILINE)
    assert "**once**: without `max_repeats` a datetime stops after its first fire" in row
    year, month, day, hour = map(int, re.search(r"datetime\(([\d, ]+)\)", row)[1].split(","))
    at = datetime(year, month, day, hour)  # noqa: DTZ001 - without a zone it is UTC, says the row
    assert "Without a zone it is UTC" in row
    assert fired(at=at) == [datetime(year, month, day, hour, tzinfo=UTC)]
    (thrice,) = re.findall(
        r"^\| `at=datetime\(\.\.\.\), max_repeats=3.*$", PAGE.read_text(), re.MULTILINE
    )
    assert "three times, a second apart" in thrice
    assert [f"{each:%S}" for each in fired(at=at, max_repeats=3)] == ["00", "01", "02"]


class Fired(BaseModel):
    at: datetime


def fired(**schedule):
    """Return the fires within a day of a timer that is defined a minute before."""
    clock = ManualClock("2026-12-01T08:59:00Z")
    its = Orchestrator("sqlite://", clock=clock)

    async def engine(ctx):
        return Fired(at=ctx.fire_time)

    its.agent("once").schedule(**schedule).publishes(Fired).with_engines(engine)

    async def story():
        async with its:
            for length in ("1m", "1s", "1s", "1s", "1h", "23h"):
                clock.advance(length)
                await its.beat.settle()
            return [each.at for each in await its.get_artifacts(Fired)]

    return asyncio.run(asyncio.wait_for(story(), 20))


@pytest.mark.req("F47")
def test_changelog_lists_cron_metadata_single_dates_and_validation():
    told = (ROOT / "CHANGELOG.md").read_text()
    (entry,) = re.findall(r"^- \[Agents\](?:.|\n(?!-))*", told, re.MULTILINE)
    for part in ("Cron of five fields in UTC", "metadata of the", "without `max_repeats` fires once", "validation: a scheduled agent must"):  # fmt: skip
        assert part in " ".join(entry.split())
