"""What is wrong with a file is told where people look: in the answers, in the log, with its line."""

import pytest

from onbeat.systems.sessions import Refused

BROKEN = """{
  /* two
     lines */
  "prompt": "Hi", // and a comment
  "enabled": yes
}"""


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "definition.json",
            BROKEN,
            "definition.json is corrupt: it is not JSON: line 5, column 14: Expecting value",
        ),
        (
            "last-run.json",
            "[1,]",
            "last-run.json is corrupt: it is not JSON: line 1, column 4: Expecting value",
        ),
        (
            "definition.json",
            '{"prompt": "Hi", "schedule": {"type": "interval", "intervalMinutes": 5}}',
            "definition.json is refused: Minimum interval is 60 minutes (1 hour)",
        ),
    ],
)
def test_a_schedule_whose_file_is_broken_does_not_look_healthy(world, name, text, told):
    async def story(world):
        await world.put("daily")
        await world.run("daily")
        world.write("daily", name, text)
        await world.settled()
        one, (listed,) = await world.item("daily"), await world.sessions.items(world.service)
        assert one == listed
        await world.put("daily")
        return one, await world.item("daily")

    broken, repaired = world.play(story)
    assert (broken.enabled, broken.next_run, broken.last_error) == (False, None, told)
    assert broken.last_result == "success"
    assert (repaired.enabled, repaired.last_error) == (True, None)
    assert repaired.next_run is not None


def test_what_is_refused_is_not_called_corrupt(world, told):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "definition.json", prompt="For {{nobody}}")
        await world.settled()
        with pytest.raises(Refused) as refused:
            await world.sessions.run(world.service, "daily")
        return refused.value

    refused = world.play(story)
    assert refused.error == "Schedule definition is refused; refusing to run: daily"
    (warned,) = told()
    assert warned.startswith("[SCHEDULER] daily: definition.json is refused, skipped: prompt: ")


def test_a_corrupt_last_run_is_refused_with_a_hint(world):
    async def story(world):
        await world.put("daily")
        world.write("daily", "last-run.json", '{"nextRun": 5}')
        await world.settled()
        for call in (
            world.sessions.run(world.service, "daily"),
            world.sessions.patch(world.service, "daily", {"enabled": True}),
        ):
            with pytest.raises(Refused) as refused:
                await call
            assert refused.value.hint == "nextRun: it is no text (a text, or null)"

    world.play(story)


def test_a_number_that_is_written_for_enabled_is_noticed(world):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "definition.json", enabled=1)
        await world.settled()
        broken = await world.item("daily")
        world.edit("daily", "definition.json", enabled=True)
        await world.settled()
        return broken.last_error, await world.item("daily")

    error, repaired = world.play(story)
    assert error == "definition.json is refused: enabled must be true or false"
    assert (repaired.enabled, repaired.last_error) == (True, None)


def test_names_that_are_not_those_of_folders_are_told_once(world, told):
    async def story(world):
        world.define("daily", slug="weekly", enabled=False)
        world.define("not a slug", enabled=False)
        for _ in range(3):
            await world.settled()
        return [each.slug for each in await world.sessions.items(world.service)]

    assert world.play(story) == ["daily"]
    slugs = "letters, digits, '.', '_' and '-', at most 100, and no '.' first"
    assert sorted(told()) == [
        f"[SCHEDULER] 'not a slug' is left alone: it is no slug ({slugs})",
        "[SCHEDULER] daily: it calls itself 'weekly', but its folder is what it is called",
    ]
