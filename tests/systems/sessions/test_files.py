"""Files and store are kept in step: edits are applied, and no crash is taken for an edit."""

import json
import os
import re
import shutil

import pytest

from onbeat.core.schedule import read_schedule
from onbeat.service.service import Service
from onbeat.systems.sessions.definitions import PromptRefused
from onbeat.systems.sessions.files import Files
from tests.systems.sessions.conftest import ROOT, STANDUP

ORIGINAL = """{
  "slug": "daily-standup",
  "prompt": "Generate daily standup summary from git commits",
  "enabled": true,
  "schedule": {
    "type": "cron",           // "cron" | "interval"
    "expression": "0 9 * * 1-5"  // 9 AM weekdays (cron format)
    // OR for intervals:
    // "intervalMinutes": 60
  },
  "sessionConfig": {
    "model": "claude-sonnet",
    "persistSession": true     // Reuse session between runs
  },
  "createdAt": "2026-01-29T...",
  "updatedAt": "2026-01-29T..."
}
"""
BEFORE = {
    "lastRun": "2026-01-28T09:00:15.123Z",
    "lastResult": "success",
    "lastError": None,
    "sessionId": "abc-123",
    "nextRun": "2026-01-29T09:00:00.000Z",
}


async def nothing(world):
    pass


@pytest.mark.req("C8", "C9", "C12", "C16", "C30")
def test_definition_and_last_run_files_are_written(world):
    async def story(world):
        await world.put("daily")
        fresh = world.last_run("daily")
        world.clock.advance(3_600_123)
        await world.settled()
        return fresh

    fresh = world.play(story)
    assert fresh == {
        "lastRun": None,
        "lastResult": None,
        "lastError": None,
        "sessionId": None,
        "nextRun": "2026-01-29T09:00:00.000Z",
    }
    stamp = "2026-01-29T08:00:00.000Z"
    assert world.definition("daily") == {
        "slug": "daily", **STANDUP, "createdAt": stamp, "updatedAt": stamp,
    }  # fmt: skip
    (session,) = world.server.sessions
    assert world.last_run("daily") == {
        "lastRun": "2026-01-29T09:00:00.123Z",
        "lastResult": "success",
        "lastError": None,
        "sessionId": session,
        "nextRun": "2026-01-30T09:00:00.000Z",
    }
    assert sorted(each.name for each in world.folder.iterdir()) == [".onbeat", "daily"]
    assert sorted(each.name for each in (world.folder / "daily").iterdir()) == [
        "definition.json",
        "last-run.json",
    ]
    assert (world.folder / "daily" / "last-run.json").read_text().startswith('{\n  "lastRun"')


@pytest.mark.req("C8", "C13")
def test_example_of_the_origin_works_unchanged_with_its_comments(world):
    world.write("daily-standup", "definition.json", ORIGINAL)
    world.write("daily-standup", "last-run.json", BEFORE)

    async def story(world):
        early = await world.item("daily-standup")
        await world.let_pass("1h")
        return early, await world.item("daily-standup")

    early, item = world.play(story)
    assert (early.next_run, early.session_id) == ("2026-01-29T09:00:00.000Z", "abc-123")
    assert (early.last_run, early.created_at) == ("2026-01-28T09:00:15.123Z", "2026-01-29T...")
    assert item.next_run == "2026-01-30T09:00:00.000Z"
    assert item.last_result == "success"
    text = (world.folder / "daily-standup" / "definition.json").read_text()
    assert text == ORIGINAL, "nobody's comments are lost"


@pytest.mark.req("C31", "C57")
def test_folder_without_a_last_run_is_due_now_and_once(world):
    world.define("daily")
    world.play(nothing, nothing)
    assert world.messages == ["daily"]


@pytest.mark.req("C31", "C44", "C57")
def test_schedules_overdue_elsewhere_run_once_at_the_start_in_order(world, monkeypatch):
    start = Service.start

    async def started(self, *given, **named):
        world.clock.advance(1)  # no two runs are requested in the same millisecond
        return await start(self, *given, **named)

    monkeypatch.setattr(Service, "start", started)
    for n, slug in enumerate(("b", "a")):
        world.define(slug)
        world.write(slug, "last-run.json", BEFORE | {"nextRun": f"2026-01-2{n + 6}T09:00:00.000Z"})
    world.play(nothing, nothing)
    assert world.messages == ["b", "a"], "it is older"
    assert len(world.made) == 2, "the session abc-123 is not on this server"


def test_retry_planned_by_another_scheduler_is_run_here(world):
    world.define("daily", schedule={"type": "cron", "expression": "0 9 1 * *"})
    world.write("daily", "last-run.json", BEFORE | {"nextRun": "2026-01-29T08:30:00.000Z"})

    async def story(world):
        waiting = (await world.item("daily")).next_run
        await world.let_pass("29m")
        assert world.messages == []
        await world.let_pass("1m")
        return waiting

    assert world.play(story, nothing) is None
    assert world.messages == ["daily"]


@pytest.mark.req("C58")
def test_disabled_folder_is_never_due(world):
    world.define("daily", enabled=False)
    world.write("daily", "last-run.json", BEFORE | {"nextRun": "2026-01-20T09:00:00.000Z"})

    async def story(world):
        await world.let_pass("48h")
        return await world.item("daily")

    item = world.play(story)
    assert world.messages == []
    assert not item.enabled
    assert item.next_run == "2026-02-02T09:00:00.000Z"


def test_session_of_the_last_run_file_is_used(world):
    session = world.server.folder / "abc-123"
    session.mkdir(parents=True)
    (session / "messages.jsonl").touch()
    world.define("daily")
    world.write("daily", "last-run.json", BEFORE)

    async def story(world):
        await world.let_pass("1h")

    world.play(story)
    assert len(world.server.messages_of("abc-123")) == 1
    assert world.made == []


def test_next_run_edited_to_the_past_gives_one_run_after_a_restart(world):
    async def first(world):
        await world.put("daily")

    async def check(world):
        return world.messages

    world.play(first)
    world.edit("daily", "last-run.json", nextRun="2020-01-01T00:00:00Z")
    world.restart_server()
    assert world.play(check, check, check) == ["daily"]
    assert world.last_run("daily")["nextRun"] == "2026-01-29T09:00:00.000Z"
    world.edit("daily", "last-run.json", nextRun="2020-01-01T00:00:00Z")
    world.restart_server()
    assert world.play(check, check) == ["daily"], "the same edit again is another run"


def test_next_run_edited_to_the_past_gives_a_run_immediately_while_up(world):
    async def story(world):
        await world.put("daily")
        await world.put("other", enabled=False)
        for slug in ("daily", "other"):
            world.edit(slug, "last-run.json", nextRun="2026-01-29T07:00:00.000Z")
        await world.settled()
        await world.settled()

    world.play(story)
    assert world.messages == ["daily"], "one that is disabled does not run"


def test_edited_last_run_file_sets_the_session_but_no_earlier_last_run(world):
    async def story(world):
        await world.put("daily")
        await world.run("daily")
        before = world.last_run("daily")
        edited = {"lastResult": "error", "lastRun": "2026-01-01T00:00:00.000Z"}
        world.edit("daily", "last-run.json", sessionId="mine", **edited)
        await world.settled()
        taken = world.last_run("daily")
        world.edit("daily", "last-run.json", sessionId=None)
        await world.settled()
        return before, taken, (await world.item("daily")).session_id

    before, taken, without = world.play(story)
    assert taken == before | {"sessionId": "mine"}
    assert without is None


def test_edited_definition_is_applied_without_firing_past_ticks(world):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "definition.json", prompt="Another", own="field")
        other = {"type": "cron", "expression": "0 7,10 * * *"}
        world.edit("daily", "definition.json", schedule=other)
        await world.settled()
        item = await world.item("daily")
        await world.let_pass("2h")
        return item

    item = world.play(story)
    assert (item.prompt, item.next_run) == ("Another", "2026-01-29T10:00:00.000Z")
    assert world.definition("daily")["own"] == "field"
    assert [text for texts in world.said().values() for text in texts] == [
        "[scheduler:daily] Another"
    ]


@pytest.mark.req("C58")
def test_edited_enabled_is_applied_both_ways_without_catch_up(world):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "definition.json", enabled=False)
        await world.settled()
        off = await world.item("daily")
        await world.let_pass("24h")
        world.edit("daily", "definition.json", enabled=True)
        await world.settled()
        on = await world.item("daily")
        await world.beat.pause("daily")
        await world.settled()
        return off.enabled, on.enabled, on.next_run, world.definition("daily")["enabled"]

    assert world.play(story) == (False, True, "2026-01-30T09:00:00.000Z", False)
    assert world.messages == []


def test_edit_through_the_api_is_written_to_the_file(world):
    async def story(world):
        await world.put("daily")
        row = await world.service.schedule("daily")
        fields = json.loads(row.definition) | {"cron": "0 12 * * *"}
        fields["run"] = {"session": {"prompt": "Other", "persist": False}}
        await world.service.define([read_schedule("daily", fields)])
        await world.settled()

    world.play(story)
    found = world.definition("daily")
    assert found["schedule"] == {"type": "cron", "expression": "0 12 * * *"}
    assert found["prompt"] == "Other"
    assert found["sessionConfig"] == {"model": None, "persistSession": False}
    assert world.last_run("daily")["nextRun"] == "2026-01-29T12:00:00.000Z"


def test_removed_folder_deletes_its_schedule_even_while_down(world):
    async def first(world):
        await world.put("daily")
        await world.put("other")
        await world.put("third")
        shutil.rmtree(world.folder / "daily")
        await world.settled()
        found = [item.slug for item in await world.sessions.items(world.service)]
        assert found == ["other", "third"]

    async def again(world):
        return [item.slug for item in await world.sessions.items(world.service)]

    world.play(first)
    shutil.rmtree(world.folder / "other")
    world.restart_server()
    assert world.play(again) == ["third"]


def test_an_empty_or_foreign_folder_deletes_nothing_and_is_filled(world):
    async def first(world):
        await world.put("daily")
        shutil.rmtree(world.folder)
        await world.settled()
        assert world.definition("daily")["slug"] == "daily"

    async def again(world):
        return [item.slug for item in await world.sessions.items(world.service)]

    world.play(first)
    shutil.rmtree(world.folder)
    world.folder.mkdir()
    (world.folder / ".onbeat").write_text("another store\n")
    world.restart_server()
    assert world.play(again) == ["daily"]
    assert world.definition("daily")["slug"] == "daily"


def test_missing_definition_file_is_written_again(world):
    async def story(world):
        await world.put("daily")
        (world.folder / "daily" / "definition.json").unlink()
        await world.settled()
        return await world.item("daily")

    assert world.play(story).slug == "daily"
    assert world.definition("daily")["prompt"] == STANDUP["prompt"]


def test_schedule_deleted_through_the_api_loses_its_files(world):
    async def story(world):
        await world.put("daily")
        await world.run("daily")
        await world.beat.delete("daily")
        await world.settled()
        await world.put("daily")
        return await world.item("daily")

    item = world.play(story)
    assert item.session_id is None, "it is another one"


@pytest.mark.req("C45")
def test_crash_before_the_file_is_written_repeats_no_run(world):
    async def again(world):
        return world.messages, world.last_run("daily")

    async def whole(world):
        await world.put("daily")
        world.early = world.last_run("daily")
        await world.let_pass("1h")
        known = await world.sessions._mirror.records.one("daily")
        told = {name: world.early[name] for name in ("sessionId", "nextRun")}
        await world.sessions._mirror.records.save(
            "daily", type(known)(known.definition, written=told)
        )
        world.sessions._mirror.folder.is_on = False

    world.play(whole)
    world.write("daily", "last-run.json", world.early)
    world.restart_server()
    messages, last = world.play(again, again)
    assert messages == []
    assert last["lastRun"] == "2026-01-29T09:00:00.000Z"


def test_crash_between_storing_and_writing_is_not_treated_as_an_edit(world):
    """Whatever was done last, the next start completes the change."""
    seen = []

    class Crash(BaseException):
        pass

    async def crashes(world):
        await world.put("daily")
        write, keep = Files.write, world.sessions._mirror.records.save
        left = world.crash_after

        def step():
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        async def kept(slug, known):
            step()
            await keep(slug, known)

        def written(self, slug, name, fields, **own):
            step()
            return write(self, slug, name, fields, **own)

        world.sessions._mirror.records.save, Files.write = kept, written
        try:
            await world.sessions.patch(world.service, "daily", {"enabled": False})
            world.done = True
        except Crash:
            pass
        finally:
            Files.write = write
            world.sessions._mirror.folder.is_on = False
            world.sessions.reconcile = lambda: nothing(world)
        world.paused = (await world.service.schedule("daily")).paused

    async def again(world):
        row, enabled = await world.service.schedule("daily"), world.definition("daily")["enabled"]
        assert row.paused == world.paused, "what was acknowledged holds"
        seen.append((row.paused, enabled))
        await world.beat.delete("daily")

    world.done, world.crash_after = False, 0
    while not world.done:
        world.restart_server()
        world.play(crashes, again)
        world.crash_after += 1
    assert seen[0] == (False, True), "it had not begun"
    assert seen.count((True, False)) >= 3, "there are several places"
    assert set(seen) == {(False, True), (True, False)}


@pytest.mark.parametrize("name", ["definition.json", "last-run.json"])
@pytest.mark.parametrize("text", ["{", "[]", "", '{"nextRun": 7, "schedule": 7}', "\x00"])
def test_a_corrupt_last_run_json_or_definition_json_is_skipped_with_a_warning_never_a_second_session(
    world, logged, name, text
):
    world.define("daily")
    world.write("daily", "last-run.json", BEFORE | {"nextRun": "2026-01-20T09:00:00.000Z"})
    world.write("daily", name, text)
    world.define("fine")

    async def story(world):
        await world.settled()
        with pytest.raises(PromptRefused) as refused:
            await world.sessions.run(world.service, "daily")
        return refused.value

    refused = world.play(story)
    state = "definition" if name == "definition.json" else "last-run state"
    kind = "refused" if (state, text[2:3]) == ("definition", "n") else "corrupt"
    assert (refused.status, refused.error) == (
        409,
        f"Schedule {state} is {kind}; refusing to run: daily",
    )
    assert world.messages == ["fine"]
    assert len(world.made) == 1
    warned = [line for line in logged() if "daily" in line]
    assert len(warned) == 1
    assert warned[0].startswith(f"[SCHEDULER] daily: the file {name} is {kind}, skipped: ")
    assert (world.folder / "daily" / name).read_text() == text


@pytest.mark.parametrize("name", ["definition.json", "last-run.json"])
def test_schedule_with_a_corrupt_file_waits_until_it_is_repaired(world, name):
    async def story(world):
        await world.put("daily")
        await world.run("daily")
        good = (world.folder / "daily" / name).read_text()
        world.write("daily", name, good[: len(good) // 2])
        await world.settled()
        await world.let_pass("24h")
        during = list(world.messages)
        world.write("daily", name, good)
        await world.settled()
        await world.let_pass("24h")
        return during, (await world.item("daily")).enabled

    during, enabled = world.play(story)
    assert during == ["daily"]
    assert enabled
    assert world.messages == ["daily", "daily"]
    assert len(world.made) == 1, "it is the same session"


@pytest.mark.req("C33")
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prompt": ""}, "prompt is required"),
        ({"schedule": {"type": "cron", "expression": "0 0 31 2 *"}}, "Invalid cron expression"),
        (
            {"schedule": {"type": "interval", "intervalMinutes": 5}},
            "Minimum interval is 60 minutes (1 hour)",
        ),
        ({"enabled": "yes"}, "enabled must be true or false"),
    ],
)
def test_invalid_definition_file_is_skipped_with_the_reason(world, logged, fields, why):
    world.define("daily", **fields)
    world.play(nothing)
    assert world.messages == []
    assert any(line.startswith("[SCHEDULER] daily") and why in line for line in logged())


def test_folders_that_are_not_slugs_are_ignored(world):
    for name in (".hidden", "a b", "x" * 101):
        world.define(name)
    (world.folder / "file").write_text("x")
    world.play(nothing)
    assert world.messages == []


@pytest.mark.req("C55")
def test_only_one_module_touches_the_disk():
    for path in (ROOT / "src" / "onbeat" / "systems" / "sessions").glob("*.py"):
        touches = re.search(r"\.(write_text|read_text|open|unlink|mkdir)\(", path.read_text())
        assert (touches is not None) == (path.name == "files.py"), path


def test_folder_name_is_the_slug_whatever_the_file_contains(world):
    world.define("daily", slug="../other")
    world.play(nothing)
    assert world.messages == ["daily"]


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    files = Files(tmp_path)
    files.write("a", "definition.json", {"is": "old"})

    def broken(handle):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="full"):
        files.write("a", "definition.json", {"is": "new"})
    assert files.read("a").definition == {"is": "old"}
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["definition.json"]


def test_edit_just_before_a_write_is_not_lost(world):
    async def story(world):
        await world.put("daily")
        read = Files.read
        left = 1

        def edited_in_between(self, slug):
            nonlocal left
            found = read(self, slug)
            if left:
                left -= 1
                world.edit("daily", "definition.json", prompt="Mine")
            return found

        Files.read = edited_in_between
        try:
            await world.beat.pause("daily")
            await world.sessions.reconcile()
        finally:
            Files.read = read
        await world.settled()
        return await world.item("daily")

    assert world.play(story).prompt == "Mine"
    assert world.definition("daily")["prompt"] == "Mine"


def test_crash_after_an_edited_run_started_starts_no_second_one(world):
    async def crashes(world):
        await world.put("daily")
        world.edit("daily", "last-run.json", nextRun="2026-01-29T07:00:00.000Z")
        records, keep = world.sessions._mirror.records, world.sessions._mirror.records.save

        async def kept(slug, known):
            if known.awaited is None and await world.service.runs(limit=1):
                raise OSError("the power is off")
            await keep(slug, known)

        records.save = kept
        await world.sessions.reconcile()
        world.sessions.reconcile = lambda: nothing(world)

    world.play(crashes, nothing, nothing)
    assert world.messages == ["daily"]


def test_crash_between_defining_and_writing_deletes_nothing(world):
    async def crashes(world):
        write = Files.write

        def broken(self, slug, name, fields, **_):
            raise OSError("the power is off")

        Files.write = broken
        try:
            await world.put("daily")
        except OSError:
            pass
        finally:
            Files.write = write
            world.sessions.reconcile = lambda: nothing(world)

    async def again(world):
        return await world.item("daily")

    assert world.play(nothing, crashes, again).slug == "daily"
    assert world.definition("daily")["slug"] == "daily"


@pytest.mark.req("C45")
def test_crash_while_the_last_run_is_written_gives_no_second_run(world):
    async def crashes(world):
        await world.put("daily")
        write = Files.write

        def broken(self, slug, name, fields, **_):
            raise OSError("the power is off")

        Files.write = broken
        try:
            await world.let_pass("1h")
        finally:
            Files.write = write
            world.sessions.reconcile = lambda: nothing(world)
        assert world.last_run("daily")["nextRun"] == "2026-01-29T09:00:00.000Z", "that is past"

    world.play(crashes, nothing)
    assert world.messages == ["daily"]
    assert world.last_run("daily")["lastResult"] == "success"


def test_requested_run_does_not_start_if_the_schedule_was_disabled_meanwhile(world):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "last-run.json", nextRun="2026-01-29T08:30:00.000Z")
        await world.settled()
        assert (await world.item("daily")).next_run == "2026-01-29T08:30:00.000Z"
        await world.beat.pause("daily")
        await world.let_pass("40m")
        await world.sessions.patch(world.service, "daily", {"enabled": True})
        await world.settled()
        return (await world.item("daily")).next_run

    assert world.play(story) == "2026-01-29T09:00:00.000Z"
    assert world.messages == []
