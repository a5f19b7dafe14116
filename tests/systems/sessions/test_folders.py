"""One folder is kept in step: another one deletes nothing, and its files are not taken for edits."""

import asyncio
import json
import logging
import os
import shutil
import time

import pytest

from onbeat import Onbeat
from onbeat.app.settings import Settings
from onbeat.host import atomic_files
from onbeat.systems.sessions import files as on_disk
from onbeat.systems.sessions.files import Files
from tests.given_settings import given_settings
from tests.systems.sessions.conftest import STANDUP, Server
from tests.waiting import until

FULL = OSError(28, "No space left on device")


def slugs_of(items):
    return [item.slug for item in items]


async def everything(world):
    await world.settled()
    return slugs_of(await world.sessions.items(world.service))


def test_stale_files_of_another_folder_are_not_edits(world):
    first, second = world.folder, world.folder.parent / "second"

    async def begins(world):
        await world.put("daily")
        await world.put("old")

    async def detached(world):
        world.folder = second
        await world.put("daily", prompt="Newer")
        await world.put("new")

    async def comes_back(world):
        await world.settled()
        items = await world.sessions.items(world.service)
        return {item.slug: item.prompt for item in items}

    world.play(begins)
    world.folder = second
    world.play(detached)
    world.folder = first
    found = world.play(comes_back)
    assert found == {"daily": "Newer", "new": STANDUP["prompt"], "old": STANDUP["prompt"]}
    assert world.definition("daily")["prompt"] == "Newer"
    assert world.definition("new")["slug"] == "new", "it is filled"


def test_folder_of_another_database_adds_unknown_slugs_and_is_then_kept_in_step(world):
    async def begins(world):
        await world.put("daily")

    async def removes(world):
        found = slugs_of(await world.sessions.items(world.service))
        shutil.rmtree(world.folder / "daily")
        await world.settled()
        return found, slugs_of(await world.sessions.items(world.service))

    world.play(begins)
    world.folder = world.folder.parent / "second"
    world.define("daily", prompt="Not mine")
    world.define("extra")
    assert world.play(removes) == (["daily", "extra"], ["extra"])


@pytest.mark.parametrize("how", ["another folder", "emptied while it is up"])
def test_new_folder_that_could_not_be_filled_completely_deletes_nothing(world, monkeypatch, how):
    write, left = Files.write, [1]

    def breaks(self, slug, name, fields, **own):
        if slug == "a" and left:
            left.pop()
            raise FULL
        return write(self, slug, name, fields, **own)

    async def begins(world):
        await world.put("a")
        await world.put("b")
        if how == "emptied while it is up":
            shutil.rmtree(world.folder)
            monkeypatch.setattr(Files, "write", breaks)
            return await everything(world)
        return None

    found = world.play(begins)
    if how == "another folder":
        world.folder = world.folder.parent / "second"
        monkeypatch.setattr(Files, "write", breaks)
        found = world.play(everything)
    assert found == ["a", "b"]
    assert not left
    assert world.definition("a")["slug"] == "a"
    shutil.rmtree(world.folder / "a")
    assert world.play(everything) == ["b"], "then a folder that is removed is meant"


def test_put_by_a_process_without_files_is_kept(world):
    async def story(world):
        await world.put("daily")
        given = {
            "database": world.database,
            "sessions_url": world.url,
            "sessions_folder": str(world.folder),
        }
        other = Onbeat(settings=given_settings(**given), clock=world.clock)
        service = await other.open()
        for hour in (12, 15, 18):
            schedule = {"type": "cron", "expression": f"0 {hour} * * *"}
            fields = STANDUP | {"prompt": f"At {hour}", "schedule": schedule}
            await other.systems["sessions"].put(service, "daily", fields)
        await other.close()
        await world.settled()
        return await world.item("daily")

    item = world.play(story)
    assert (item.prompt, item.next_run) == ("At 18", "2026-01-29T18:00:00.000Z")
    assert world.definition("daily")["prompt"] == "At 18"


def test_manual_pause_is_not_undone_whatever_its_note(world):
    async def story(world):
        await world.put("daily")
        await world.beat.pause("daily", note="held: until the release")
        await world.settled()
        await world.settled()
        return (await world.service.schedule("daily")).paused

    assert world.play(story) is True


def test_manual_pause_outlasts_the_repair_of_a_file(world):
    async def story(world):
        await world.put("daily")
        path = world.folder / "daily" / "definition.json"
        text = path.read_text()
        path.write_text("{")
        await world.settled()
        held = (await world.service.schedule("daily")).pause_note
        await world.beat.pause("daily", note="until Monday")
        path.write_text(text)
        await world.settled()
        row = await world.service.schedule("daily")
        return held, row.paused, row.pause_note

    held, *found = world.play(story)
    assert held.startswith("definition.json: invalid JSON")
    assert found == [True, "until Monday"]


def test_run_that_waits_for_a_retry_does_not_replace_the_last_run(world):
    seen = []

    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        world.server.fails = True
        await world.let_pass("1d")
        world.server.fails = False

        async def meanwhile():
            world.edit("daily", "definition.json", own=1)
            await world.sessions.reconcile()
            seen.append((await world.item("daily")).last_run)
            seen.append(world.last_run("daily")["lastRun"])

        world.server.before_message = meanwhile
        await world.let_pass("30m")

    world.play(story)
    assert seen == ["2026-01-30T09:00:00.000Z"] * 2


def test_folder_replaced_by_a_file_does_not_keep_a_node_from_stopping(world, caplog):
    async def story(world):
        await world.put("daily")
        shutil.rmtree(world.folder)
        world.folder.write_text("not a folder")

    world.play(story)
    assert any("did not stop cleanly" in each.message for each in caplog.records)
    world.folder.unlink()
    assert world.play(everything) == ["daily"], "another process can be the node"


def test_next_run_edited_after_a_run_ended_is_run_although_the_outcome_is_written_later(world):
    async def story(world):
        await world.put("daily")
        await world.sessions._reconciling.stop()  # no reconciliation before the edit
        await world.service.start("daily")
        await world.beat.settle()
        world.edit("daily", "last-run.json", nextRun="2026-01-29T08:30:00.000Z")
        await world.settled()
        told = world.last_run("daily")["nextRun"]
        await world.let_pass("30m")
        return told

    assert world.play(story) == "2026-01-29T08:30:00.000Z"
    assert world.messages == ["daily", "daily"]


def test_outcome_of_a_run_that_ends_during_shutdown_is_written_to_the_files(world):
    world.settings = {"stop_grace": 5000}

    async def story(world):
        await world.put("daily")
        arrived = asyncio.Event()

        async def slow():
            arrived.set()
            await until(lambda: not world.beat.activity.begins_runs)

        world.server.before_message = slow
        await world.service.start("daily")
        await arrived.wait()

    world.play(story)
    assert world.last_run("daily")["lastResult"] == "success"


def test_write_while_an_editor_has_moved_the_file_is_not_lost(world, monkeypatch):
    async def story(world):
        await world.put("daily")
        path, read, left = world.folder / "daily" / "definition.json", Files.read, [1]
        text = path.read_text()
        path.unlink()

        def then_it_is_saved(self, slug):
            found = read(self, slug)
            if left:
                left.pop()
                path.write_text(json.dumps(json.loads(text) | {"prompt": "Mine"}))
            return found

        monkeypatch.setattr(Files, "read", then_it_is_saved)
        await world.sessions.reconcile()
        await world.settled()
        return (await world.item("daily")).prompt

    assert world.play(story) == "Mine"
    assert world.definition("daily")["prompt"] == "Mine"


def test_file_keeps_its_mode_and_a_new_one_is_for_its_owner(world):
    async def story(world):
        await world.put("daily")
        path = world.folder / "daily" / "definition.json"
        modes = [path.stat().st_mode & 0o777]
        path.chmod(0o640)
        await world.sessions.patch(world.service, "daily", {"enabled": False})
        return [*modes, path.stat().st_mode & 0o777]

    assert world.play(story) == [0o600, 0o640]


@pytest.mark.parametrize("text", ["0 9 * * mon-fri", " 0  9 * * 7 ", "@DAILY", "0\t9 * * *"])
def test_cron_keeps_its_spelling_and_the_comments_around_it(world, text):
    schedule = {"type": "cron", "expression": text}
    fields = {"slug": "daily"} | STANDUP | {"schedule": schedule}
    world.write("daily", "definition.json", "// mine\n" + json.dumps(fields))

    async def story(world):
        await world.let_pass("25h")
        return (await world.item("daily")).schedule

    assert world.play(story) == schedule
    assert (world.folder / "daily" / "definition.json").read_text().startswith("// mine")


@pytest.mark.parametrize(
    "text",
    ['{"prompt": "' + 'say \\"hi\\"; ' * 47_000, '"' + '\\"' * 260_000, "/*" * 260_000, "//" * 9],
)
def test_truncated_file_is_read_in_linear_time(tmp_path, text):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "definition.json").write_text(text[: 512 * 1024])
    began = time.process_time()
    assert Files(tmp_path).read("a").definition.why.startswith("invalid JSON")
    assert time.process_time() - began < 2


def test_full_disk_is_logged_once_and_api_calls_succeed(world, monkeypatch, logged):
    async def story(world):
        await world.put("daily")
        write = on_disk.replace_file

        def full(*_, **__):
            raise FULL

        monkeypatch.setattr(on_disk, "replace_file", full)
        await world.sessions.put(world.service, "daily", STANDUP | {"prompt": "New"})
        for _ in range(3):
            await world.sessions.reconcile()
        during = (await world.item("daily")).prompt, world.definition("daily")["prompt"]
        await world.sessions.run(world.service, "daily")
        monkeypatch.setattr(on_disk, "replace_file", write)
        await world.settled()
        return during

    assert world.play(story) == ("New", STANDUP["prompt"])
    assert world.definition("daily")["prompt"] == "New"
    assert world.last_run("daily")["lastResult"] == "success"
    assert len([line for line in logged() if "No space left" in line]) == 1


def test_file_in_place_of_a_slug_folder_is_ignored(world, logged):
    async def story(world):
        path = world.folder / "README"
        path.write_text("mine")
        await world.sessions.put(world.service, "README", STANDUP)
        for _ in range(3):
            await world.sessions.reconcile()
        await world.sessions.delete(world.service, "README")
        await world.sessions.reconcile()
        return path.read_text(), await world.sessions.items(world.service)

    assert world.play(story) == ("mine", [])
    assert len(logged()) == 1


@pytest.mark.parametrize("session_id", [".", ".."])
def test_session_id_that_is_a_path_is_refused(world, logged, session_id):
    async def story(world):
        await world.put("daily")
        world.edit("daily", "last-run.json", sessionId=session_id)
        await world.settled()
        await world.let_pass("1h")

    world.play(story)
    assert world.messages == []
    assert any("last-run.json is corrupt" in line for line in logged())


def test_number_too_large_for_a_database_is_refused_with_that_reason(world, logged):
    text = json.dumps({"slug": "daily"} | STANDUP)[:-1] + f', "own": {"1" * 30}}}'
    world.write("daily", "definition.json", text)
    assert world.play(everything) == ["daily"]
    assert any(
        "contains a number that is too large, or is nested too deeply" in line for line in logged()
    )


def test_schedule_below_a_raised_minimum_interval_is_held_until_repaired(world, logged):
    hourly = {"type": "interval", "intervalMinutes": 60}

    async def first(world):
        await world.put("daily", schedule=hourly)

    async def again(world):
        await world.let_pass("2h")
        during = list(world.messages)
        world.edit("daily", "definition.json", schedule=hourly | {"intervalMinutes": 1440})
        await world.settled()
        await world.let_pass("24h")
        return during, world.definition("daily")["enabled"]

    world.play(first)
    world.settings = {"sessions_minimum": 24 * 3_600_000}
    assert world.play(again) == ([], True)
    assert world.messages == ["daily"]
    warned = [line for line in logged() if "Minimum interval is 1440 minutes (24 hours)" in line]
    assert len(warned) == 1


async def two_nodes(tmp_path, database, story, *, with_url=(True, True)):
    """Start two nodes on one database, each with a separate folder."""
    server = Server(tmp_path / "sessions")
    url = await server.start()
    beats = [
        Onbeat(
            settings=given_settings(
                database=database,
                sessions_url=url if has_url else "",
                sessions_folder=str(tmp_path / name),
                output=str(tmp_path / f"output-{name}"),
                concurrency=1,
            )
        )
        for name, has_url in zip("AB", with_url, strict=True)
    ]
    async with beats[0], beats[1]:
        found = await story(server, *beats)
    await server.stop()
    return found


def test_one_of_two_nodes_has_the_files_and_a_takeover_deletes_nothing(
    tmp_path, postgres_url, caplog
):
    caplog.set_level(logging.WARNING, "onbeat.sessions")

    async def story(server, a, b):
        found = []
        for beat, prompt in ((a, "One"), (b, "Two"), (a, "Three")):
            fields = STANDUP | {"prompt": prompt}
            await beat.systems["sessions"].put(beat.service, "daily", fields)
            for each in (a, b, a, b):
                await each.systems["sessions"].reconcile()
            item = await beat.systems["sessions"].item(beat.service, "daily")
            found.append(item.prompt)
        return found

    assert asyncio.run(two_nodes(tmp_path, postgres_url, story)) == ["One", "Two", "Three"]
    assert not (tmp_path / "A" / "daily").exists()
    said = json.loads((tmp_path / "B" / "daily" / "definition.json").read_text())
    assert said["prompt"] == "Three"
    warned = [each for each in caplog.messages if "another folder is in use now" in each]
    assert len(warned) == 1


async def ended(beat, run_id):
    async with asyncio.timeout(20):
        while (await beat.service.run(run_id)).finished_at is None:  # noqa: ASYNC110 - by another
            await asyncio.sleep(0.05)


def test_node_without_a_chat_server_leaves_prompts_to_other_nodes(tmp_path, postgres_url):
    async def story(server, a, b):
        for n in range(4):
            await a.systems["sessions"].put(a.service, f"s{n}", STANDUP | {"enabled": False})
        runs = [await b.service.start(f"s{n}") for n in range(4)]
        for run in runs:
            await ended(b, run.run_id)
        return [(await b.service.run(run.run_id)).status for run in runs]

    found = asyncio.run(two_nodes(tmp_path, postgres_url, story, with_url=(True, False)))
    assert found == ["SUCCESS"] * 4


def test_why_reports_that_a_prompt_waits_for_a_node_with_a_chat_server(world):
    async def story(world):
        await world.put("daily")

    async def without():
        beat = Onbeat(settings=Settings(database=world.database), clock=world.clock)
        async with beat:
            await beat.service.start("daily")
            await beat.settle()
            return "\n".join((await beat.why("daily")).sentences)

    world.play(story)
    waits = "it waits for a node that offers session (start a node with the setting sessions_url); nodes up:"
    assert waits in asyncio.run(without())


def test_edit_that_is_saved_while_the_file_is_being_written_is_not_lost(world, monkeypatch):
    async def story(world):
        await world.put("daily")
        sync, left = os.fsync, [1]

        def then_it_is_saved(handle):
            sync(handle)
            if left:
                left.pop()
                world.edit("daily", "last-run.json", nextRun="2020-01-01T00:00:00.000Z")

        monkeypatch.setattr(atomic_files.os, "fsync", then_it_is_saved)
        await world.run("daily")
        await world.settled()
        assert not left

    world.play(story)
    assert world.messages == ["daily", "daily"], "the next run was put into the past"
    assert [each.name for each in (world.folder / "daily").glob(".*")] == []
