"""A cron expression may have a zone; the default is UTC."""

import pytest

from onbeat.core.schedule import read_schedule
from onbeat.systems.sessions.definitions import PromptRefused
from tests.systems.sessions.conftest import STANDUP

BERLIN = {"type": "cron", "expression": "0 10 * * *", "timezone": "Europe/Berlin"}


def test_prompt_is_sent_in_the_zone_of_its_schedule(world):
    async def story(world):
        found = [(await world.put("daily", schedule=BERLIN))["nextRun"]]
        world.define("file", schedule=BERLIN)
        await world.let_pass("1h")
        found += [world.last_run(slug)["nextRun"] for slug in ("daily", "file")]
        world.clock.advance("90d")
        await world.settled()
        return [*found, world.last_run("daily")["nextRun"]]

    assert world.play(story) == [
        "2026-01-29T09:00:00.000Z",
        "2026-01-30T09:00:00.000Z",
        "2026-01-30T09:00:00.000Z",
        "2026-04-30T08:00:00.000Z",
    ]


def test_zone_stays_in_the_file_and_in_the_routes(world):
    async def story(world):
        await world.put("daily", schedule=BERLIN)
        await world.sessions.patch(world.service, "daily", {"prompt": "Another"})
        await world.settled()
        return (await world.item("daily")).schedule

    assert world.play(story) == BERLIN
    assert world.definition("daily")["schedule"] == BERLIN


def test_zone_edited_elsewhere_is_written_to_the_file(world):
    async def story(world):
        await world.put("daily")
        run = {"session": {"prompt": "Generate daily standup summary", "model": "claude-sonnet"}}
        fields = {"cron": "0 10 * * *", "timezone": "Europe/Berlin", "run": run}
        await world.service.define([read_schedule("daily", fields)], source="sessions")
        await world.settled()

    world.play(story)
    assert world.definition("daily")["schedule"] == BERLIN


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", 1])
def test_unknown_zone_is_refused(world, zone):
    async def story(world):
        given = STANDUP | {"schedule": BERLIN | {"timezone": zone}}
        with pytest.raises(
            PromptRefused, match=r"schedule\.timezone: no zone is called"
        ) as refused:
            await world.sessions.put(world.service, "daily", given)
        return refused.value.status

    assert world.play(story) == 400


def test_default_zone_is_utc(world):
    async def story(world):
        return (await world.put("daily", schedule=BERLIN | {"timezone": None}))["nextRun"]

    assert world.play(story) == "2026-01-29T10:00:00.000Z"
