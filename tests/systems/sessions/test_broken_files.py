"""Errors of files are reported in the answers and in the log, with their line."""

import contextlib
import json
import shutil

import pytest
from click.testing import CliRunner

from onbeat import Onbeat
from onbeat.cli.command import main
from onbeat.errors import NoSuchSchedule, NotAllowed
from onbeat.service.access import Caller
from onbeat.systems.sessions.definitions import PromptRefused
from tests.given_settings import given_settings
from tests.systems.sessions.conftest import STANDUP

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
            "definition.json is corrupt: invalid JSON: line 5, column 14: Expecting value",
        ),
        (
            "last-run.json",
            "[1,]",
            "last-run.json is corrupt: invalid JSON: line 1, column 4: Expecting value",
        ),
        (
            "definition.json",
            '{"prompt": "Hi", "schedule": {"type": "interval", "intervalMinutes": 5}}',
            "definition.json is refused: Minimum interval is 60 minutes (1 hour)",
        ),
    ],
)
def test_schedule_with_a_broken_file_shows_the_problem(world, name, text, told):
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


def test_refused_definition_is_not_called_corrupt(world, logged):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "definition.json", prompt="For {{nobody}}")
        await world.settled()
        with pytest.raises(PromptRefused) as refused:
            await world.sessions.run(world.service, "daily")
        return refused.value

    refused = world.play(story)
    assert refused.error == "Schedule definition is refused; refusing to run: daily"
    (warned,) = logged()
    assert warned.startswith(
        "[SCHEDULER] daily: the file definition.json is refused, skipped: prompt: "
    )


def test_a_corrupt_last_run_is_refused_with_a_hint(world):
    async def story(world):
        await world.put("daily")
        world.write("daily", "last-run.json", '{"nextRun": 5}')
        await world.settled()
        for call in (
            world.sessions.run(world.service, "daily"),
            world.sessions.patch(world.service, "daily", {"enabled": True}),
        ):
            with pytest.raises(PromptRefused) as refused:
                await call
            assert refused.value.hint == "nextRun: it is not a string (a string, or null)"

    world.play(story)


def test_number_written_for_enabled_is_reported(world):
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


def test_misnamed_folders_are_logged_once(world, logged):
    async def story(world):
        world.define("daily", slug="weekly", enabled=False)
        world.define("not a slug", enabled=False)
        for _ in range(3):
            await world.settled()
        return [each.slug for each in await world.sessions.items(world.service)]

    assert world.play(story) == ["daily"]
    slugs = "letters, digits, '.', '_' and '-', at most 100, and no '.' first"
    assert sorted(logged()) == [
        "[SCHEDULER] daily: its definition has the slug 'weekly'; the folder's name is used",
        f"[SCHEDULER] the folder 'not a slug' is ignored: its name is not a slug ({slugs})",
    ]


FIRST_SIGHT = [
    (
        "definition.json",
        '{"slug": "new", "prompt": ',
        "definition.json is corrupt: invalid JSON: line 1, column 27: Expecting value",
    ),
    (
        "definition.json",
        '{"prompt": "Hi", "schedule": {"type": "interval", "intervalMinutes": 5}}',
        "definition.json is refused: Minimum interval is 60 minutes (1 hour)",
    ),
    (
        "last-run.json",
        "[1,]",
        "last-run.json is corrupt: invalid JSON: line 1, column 4: Expecting value",
    ),
]


@pytest.mark.parametrize(("name", "text", "told"), FIRST_SIGHT)
def test_file_broken_at_first_sight_is_listed_and_returned(world, name, text, told):
    world.define("new")
    world.define("other", enabled=False)
    world.write("new", name, text)

    async def story(world):
        one, listed = await world.item("new"), await world.sessions.items(world.service)
        refused = []
        for call in (
            world.sessions.patch(world.service, "new", {"enabled": True}),
            world.sessions.run(world.service, "new"),
        ):
            with pytest.raises(PromptRefused) as caught:
                await call
            refused.append(caught.value.status)
        with pytest.raises(NoSuchSchedule) as shown:
            await world.service.schedule("new")
        with pytest.raises(NoSuchSchedule) as why:
            await world.service.why("new")
        assert str(shown.value) == str(why.value) == f"'new' is not scheduled: {told}"
        assert await world.service.broken() == {"new": told}
        assert (world.folder / "new" / name).read_text() == text, "it is left alone"
        return one, listed, refused

    one, listed, refused = world.play(story)
    assert [item.slug for item in listed] == ["new", "other"]
    assert one == listed[0]
    assert (one.enabled, one.next_run, one.last_error) == (False, None, told)
    assert refused == [409, 409]
    assert world.messages == []


@pytest.mark.parametrize("how", ["repaired", "put", "deleted", "removed", "repaired while down"])
def test_repaired_file_is_no_longer_listed_as_broken(world, how):
    world.write("new", "definition.json", "{")

    async def story(world):
        match how:
            case "repaired":
                world.define("new", enabled=False)
            case "put":
                await world.put("new", enabled=False)
            case "deleted":
                await world.sessions.delete(world.service, "new")
            case "removed":
                shutil.rmtree(world.folder / "new")
        return await after(world) if how != "repaired while down" else None

    async def after(world):
        await world.settled()
        items = await world.sessions.items(world.service)
        return [(item.slug, item.last_error) for item in items], await world.service.broken()

    found = world.play(story)
    if how == "repaired while down":
        world.define("new", enabled=False)
        found = world.play(after)
    is_there = how not in ("deleted", "removed")
    assert found == ([("new", None)] if is_there else [], {})


def test_broken_file_is_not_shown_to_an_owner_of_other_schedules(world):
    world.write("new", "definition.json", "{")

    async def story(world):
        service = world.service.of(Caller("ann", scope="define", owner="ann"))
        with pytest.raises(PromptRefused) as refused:
            await world.sessions.item(service, "new")
        return await world.sessions.items(service), refused.value.status

    assert world.play(story) == ([], 404)


def test_broken_file_is_not_replaced_by_an_owner_of_other_schedules(world):
    world.write("new", "definition.json", "{")

    async def story(world):
        service = world.service.of(Caller("ann", scope="define", owner="ann"))
        with pytest.raises(NotAllowed, match="new is another owner's"):
            await world.sessions.put(service, "new", STANDUP)
        assert await world.sessions.delete(service, "new") == {"success": True}
        kept = (world.folder / "new" / "definition.json").read_text()
        return kept, (await world.put("new"))["created"]

    assert world.play(story) == ("{", True)


def test_node_without_the_folder_answers_for_its_broken_files(world):
    world.write("new", "definition.json", "{")

    async def story(world):
        given = {
            "database": world.database,
            "sessions_url": world.url,
            "sessions_folder": str(world.folder),
        }
        other = Onbeat(settings=given_settings(**given), clock=world.clock)
        service = await other.open()
        item = await other.systems["sessions"].item(service, "new")
        with pytest.raises(PromptRefused) as refused:
            await other.systems["sessions"].run(service, "new")
        await other.close()
        return item == await world.item("new"), refused.value.status

    assert world.play(story) == (True, 409)


def test_doctor_and_list_name_broken_files(world, tmp_path):
    world.define("right", enabled=False)
    world.write("wrong", "definition.json", "{")

    async def story(world):
        pass

    world.play(story)
    (tmp_path / "onbeat.toml").write_text(
        f'database = "{world.database}"\n[sessions]\nurl = "{world.url}"\nfolder = "schedule"\n'
    )
    why = "definition.json is corrupt: invalid JSON: line 1, column 2: "
    with contextlib.chdir(tmp_path):
        listed, looked, found = (
            CliRunner().invoke(main, words)
            for words in (["list"], ["show", "wrong"], ["doctor", "--json"])
        )
    assert f"wrong is not scheduled: {why}" in listed.output
    assert (looked.exit_code, f"'wrong' is not scheduled: {why}" in looked.output) == (1, True)
    (check,) = [each for each in json.loads(found.stdout) if each["check"] == "session files"]
    assert check["level"] == "warn"
    assert check["found"].startswith(f"wrong: {why}")
    assert check["hint"] == "repair schedule/wrong, or replace it with PUT /api/schedule/wrong"
