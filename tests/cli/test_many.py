"""Verbs on many schedules: output in pages equals output in one piece."""

import asyncio
import json
from contextlib import closing

import apsw
import pytest
from click.testing import CliRunner

from onbeat.app.client import client
from onbeat.app.settings import Settings
from onbeat.cli.command import main
from onbeat.core.schedule import read_schedule
from onbeat.service import queries

DATABASE = "sqlite:///many.db"
CLOSED = {"closed": ("12-24..12-26",)}


@pytest.fixture(autouse=True)
def small_pages(tmp_path, monkeypatch):
    """Be in an empty folder, where a page has few schedules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queries, "FIRST_PAGE", 3)
    monkeypatch.setattr(queries, "PAGE", 5)


def define(count, **fields):
    async def work():
        async with client(Settings(database=DATABASE)) as asked:
            given = {"every": "1h", "run": {"command": ["true"]}} | fields
            names = [f"s-{n:03}" for n in range(count)]
            await asked.define([read_schedule(each, given, calendars=CLOSED) for each in names])

    asyncio.run(work())


def printed(*words):
    done = CliRunner().invoke(main, [*words, "--database", DATABASE])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 23])
def test_list_has_each_schedule_once_whatever_the_pages(count):
    define(count)
    names = [f"s-{n:03}" for n in range(count)]
    assert [each["schedule_id"] for each in json.loads(printed("list", "--json"))] == names
    lines = printed("list").splitlines()
    if count:
        assert lines[0].split() == ["SCHEDULE", "NEXT", "LAST", "WHEN"]
        assert [line.split()[0] for line in lines[1:]] == names
    else:
        assert lines == ["no schedules (onbeat apply FILE creates some)"]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 8, 23])
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_export_of_any_size_defines_the_same(count, form, tmp_path):
    define(count, exclude="closed")
    file = tmp_path / f"all.{form}"
    file.write_text(printed("export", *(["--json"] if form == "json" else [])))
    assert file.read_text().count("12-24") == (1 if count else 0)
    done = CliRunner().invoke(main, ["apply", str(file), "--database", "sqlite:///other.db"])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("created") == count
    other = CliRunner().invoke(main, ["export", "--database", "sqlite:///other.db"])
    assert other.stdout == printed("export")


def test_status_shows_how_far_zone_data_is_followed():
    define(8)
    with closing(apsw.Connection("many.db")) as database:
        cursor = '{"after":"s-003","done":4,"total":8,"moved":2,"since":1767268800000}'
        database.execute("INSERT INTO meta (name, value) VALUES ('tz', '2026a')")
        database.execute("INSERT INTO meta (name, value) VALUES ('tz_followed', ?)", (cursor,))
    told = "zones      recomputing due ticks with time zone data 2026a: 4 of 8 schedules, 2 ticks moved"
    assert printed("status").splitlines()[-1] == told
    assert json.loads(printed("status", "--json"))["following"] == {
        "tz": "2026a", "done": 4, "schedules": 8, "moved": 2, "since": "2026-01-01T12:00:00.000Z",
    }  # fmt: skip
