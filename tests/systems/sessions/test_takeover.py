"""The last run in the files survives every change of the scheduler."""

import json
import shutil

import pytest

from tests.systems.sessions.conftest import STANDUP

ELSEWHERE = {
    "lastRun": "2026-01-28T09:00:15.123Z",
    "lastResult": "success",
    "lastError": None,
    "sessionId": None,
    "nextRun": "2026-01-29T09:00:00.000Z",
}


def ran(last_run):
    return [last_run[name] for name in ("lastRun", "lastResult", "lastError")]


async def nothing(world):
    pass


@pytest.mark.req("C45", "C69")
def test_prompt_names_the_last_run_that_another_scheduler_made(world):
    world.define("daily", prompt="Since {{lastRun}}")
    world.write("daily", "last-run.json", ELSEWHERE)

    async def story(world):
        taken_over = world.last_run("daily")
        await world.let_pass("1h")
        return taken_over

    taken_over = world.play(story)
    assert ran(taken_over) == ran(ELSEWHERE)
    assert list(world.said().values()) == [["[scheduler:daily] Since 2026-01-28T09:00:15+00:00"]]


@pytest.mark.parametrize("result", ["success", "error"])
def test_list_shows_how_the_last_run_elsewhere_ended(world, result):
    world.define("daily")
    world.write("daily", "last-run.json", ELSEWHERE | {"lastResult": result})

    async def story(world):
        row = await world.service.schedule("daily")
        return row.last_run_at, row.last_success_at, row.last_failure_at

    at = 1_769_590_815_123
    failed = None if result == "success" else at
    assert world.play(story) == (at, at if result == "success" else None, failed)


@pytest.mark.parametrize("file", ["later", "earlier", "none", "in the future"])
def test_entering_another_folder_keeps_the_later_last_run(world, file):
    async def first(world):
        await world.put("daily", schedule={"type": "cron", "expression": hours})
        await world.run("daily")
        return world.last_run("daily")

    async def second(world):
        return world.last_run("daily"), await world.item("daily")

    # The other scheduler has sent the tick of nine; otherwise it is still to be sent.
    hours = "0 9 * * *" if file == "later" else "0 20 * * *"
    ours = world.play(first)
    world.folder = world.folder.parent / "second"
    world.define("daily")
    at = {
        "later": "2026-01-29T10:00:00.000Z",
        "earlier": "2026-01-28T09:00:00.000Z",
        "in the future": "2027-01-01T00:00:00.000Z",
        "none": None,
    }
    theirs = ELSEWHERE | {"lastRun": at[file], "lastResult": "error", "lastError": "HTTP 500"}
    world.write("daily", "last-run.json", theirs)
    world.clock.advance("4h")
    kept, item = world.play(second)
    assert ran(kept) == ran(theirs if file == "later" else ours)
    assert item.last_run == kept["lastRun"]
    assert world.attempts == 0, "nothing is sent again"


def test_run_of_another_scheduler_during_downtime_is_not_repeated(world):
    async def first(world):
        await world.put("daily", schedule={"type": "cron", "expression": "0 9 * * *"})

    async def again(world):
        return world.last_run("daily"), await world.service.runs()

    world.play(first)
    world.clock.advance("3h")
    own = {"lastRun": "2026-01-29T09:00:15.123Z", "lastResult": "success", "lastError": None}
    world.edit("daily", "last-run.json", **own, nextRun="2026-01-30T09:00:00.000Z")
    last_run, runs = world.play(again)
    assert world.messages == []
    assert ran(last_run) == list(own.values())
    assert last_run["nextRun"] == "2026-01-30T09:00:00.000Z"
    assert [(run.status, run.reason) for run in runs] == [("SKIPPED", "paused")]


def test_tick_missed_by_the_other_scheduler_is_caught_up(world):
    async def first(world):
        await world.put("daily", schedule={"type": "cron", "expression": "0 9,11 * * *"})

    world.play(first)
    world.clock.advance("2h 30m")
    own = {"lastRun": "2026-01-29T08:30:00.000Z", "lastResult": "success"}
    world.edit("daily", "last-run.json", **own)
    world.play(nothing)
    assert world.messages == ["daily"]
    assert world.last_run("daily")["lastRun"] == "2026-01-29T10:30:00.000Z"


def test_last_runs_survive_a_takeover_by_another_database_and_back(world):
    async def one(world):
        await world.put("daily")
        await world.run("daily")

    async def other(world):
        world.clock.advance("10m")
        await world.run("daily")

    seen, first = [], world.database
    for database, story in ((first, one), (f"{first}2", other), (first, nothing)):
        world.database = database
        world.play(story)
        seen.append(world.last_run("daily")["lastRun"])
    assert seen == ["2026-01-29T08:00:00.000Z", *["2026-01-29T08:10:00.000Z"] * 2]


def test_later_run_here_replaces_the_last_run_of_the_file(world):
    world.define("daily")
    world.write("daily", "last-run.json", ELSEWHERE | {"lastRun": "2027-01-01T00:00:00.000Z"})

    async def story(world):
        await world.let_pass("1h")
        return world.last_run("daily")["lastRun"]

    assert world.play(story) == "2026-01-29T09:00:00.000Z"


def test_folder_of_a_copy_keeps_its_last_run_when_the_database_is_new(world):
    async def story(world):
        await world.put("daily")
        await world.run("daily")

    world.play(story)
    before = world.last_run("daily")
    copy = world.folder.parent / "copy"
    shutil.copytree(world.folder, copy)
    world.folder, world.database = copy, f"{world.database}2"
    world.play(nothing)
    assert json.loads((copy / "daily" / "last-run.json").read_text()) == before
    assert world.definition("daily")["prompt"] == STANDUP["prompt"]
