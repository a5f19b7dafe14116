"""Prompts are sent to their sessions on time, whatever the server answers, and across restarts."""

import asyncio
import contextlib
import json
import shutil
import sys
import time

import pytest
from click.testing import CliRunner

from onbeat import Onbeat
from onbeat.cli.command import main
from onbeat.core.schedule import read_schedule
from onbeat.testing import ManualClock
from tests.given_settings import given_settings
from tests.systems.sessions.conftest import EXAMPLE, STANDUP, until
from tests.waiting import forever


@pytest.mark.req("C5", "C17", "C18", "C34", "C35", "C43", "C59", "C60")
def test_first_run_creates_a_session_and_later_runs_reuse_it(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        first = world.last_run("daily")["sessionId"]
        await world.let_pass("1d")
        return first, world.last_run("daily")["sessionId"]

    first, second = world.play(story)
    assert first is not None
    assert first == second
    said = "[scheduler:daily] Generate daily standup summary"
    assert world.said() == {first: [said, said]}
    made = {"cwd": "/srv/project", "model": "claude-sonnet", "description": "daily"}
    assert world.made == [made | {"kind": "scheduled"}]
    (*_, (_, path, body, _)) = [each for each in world.server.asked if each[0] == "POST"]
    assert path == f"/api/sessions/{first}/messages"
    assert body == {
        "prompt": "Generate daily standup summary",
        "source": "scheduler",
        "scheduleSlug": "daily",
    }


@pytest.mark.req("C19", "C39")
def test_busy_session_defers_the_run_by_an_hour(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        session = world.last_run("daily")["sessionId"]
        world.server.busy.add(session)
        await world.let_pass("1d")
        busy = world.last_run("daily")
        world.server.busy.clear()
        await world.let_pass("59m")
        assert world.attempts == 2
        await world.let_pass("1m")
        return session, busy, world.last_run("daily")

    session, busy, after = world.play(story)
    assert busy == {
        "lastRun": "2026-01-30T09:00:00.000Z",
        "lastResult": "error",
        "lastError": "Session busy - agent currently running",
        "sessionId": session,
        "nextRun": "2026-01-30T10:00:00.000Z",
    }
    assert after == {
        "lastRun": "2026-01-30T10:00:00.000Z",
        "lastResult": "success",
        "lastError": None,
        "sessionId": session,
        "nextRun": "2026-02-02T09:00:00.000Z",
    }


@pytest.mark.req("C20", "C40")
def test_deleted_session_is_replaced_by_a_new_one(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        old = world.last_run("daily")["sessionId"]
        (world.server.folder / old / "messages.jsonl").unlink()
        (world.server.folder / old / "session.json").unlink()
        (world.server.folder / old).rmdir()
        await world.let_pass("1d")
        return old, world.last_run("daily")

    old, after = world.play(story)
    assert after["sessionId"] != old
    assert after == {
        "lastRun": "2026-01-30T09:00:00.000Z",
        "lastResult": "success",
        "lastError": None,
        "sessionId": after["sessionId"],
        "nextRun": "2026-02-02T09:00:00.000Z",
    }
    assert list(world.said()) == [after["sessionId"]]


@pytest.mark.req("C41")
def test_after_an_error_of_the_server_the_prompt_is_sent_again_at_the_next_check(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        session = world.last_run("daily")["sessionId"]
        world.server.fails = True
        await world.let_pass("1d")
        failed = world.last_run("daily")
        world.server.fails = False
        await world.let_pass("30m")
        return session, failed, world.last_run("daily")

    session, failed, after = world.play(story)
    assert failed == {
        "lastRun": "2026-01-30T09:00:00.000Z",
        "lastResult": "error",
        "lastError": "HTTP 500: Internal Server Error",
        "sessionId": session,
        "nextRun": "2026-01-30T09:30:00.000Z",
    }
    assert (after["lastRun"], after["lastResult"]) == ("2026-01-30T09:30:00.000Z", "success")
    assert (after["sessionId"], after["nextRun"]) == (session, "2026-02-02T09:00:00.000Z")


@pytest.mark.req("C41")
def test_unreachable_server_is_retried_at_the_next_check(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        return world.last_run("daily")

    world.settings = {"sessions_url": "http://127.0.0.1:9"}
    failed = world.play(story)
    assert failed["lastResult"] == "error"
    assert failed["lastError"] == "127.0.0.1:9 cannot be reached: Connection refused"
    assert failed["nextRun"] == "2026-01-29T09:30:00.000Z"
    assert failed["sessionId"] is None


@pytest.mark.req("C41")
def test_created_session_is_kept_although_its_first_message_failed(world):
    async def story(world):
        await world.put("daily")
        world.server.after_create = lambda: setattr(world.server, "fails", True)
        await world.let_pass("1h")
        failed = world.last_run("daily")
        world.server.fails = False
        await world.let_pass("30m")
        return failed, world.last_run("daily")

    failed, after = world.play(story)
    assert (failed["lastResult"], after["lastResult"]) == ("error", "success")
    assert failed["sessionId"] == after["sessionId"]
    assert len(world.made) == 1


@pytest.mark.req("C37")
def test_ephemeral_session_is_deleted_once_the_server_reports_idle(world):
    async def story(world):
        await world.put("fresh", sessionConfig={"persistSession": False})
        world.server.works = True
        world.clock.advance("1h")
        world.beat.wake()
        await until(lambda: world.server.busy)
        await world.tidy()
        during = world.server.sessions
        world.server.busy.clear()
        await world.settled()
        await world.tidy()
        return during

    assert len(world.play(story)) == 1
    assert world.server.sessions == []


@pytest.mark.req("C37", "C38")
def test_ephemeral_prompt_gets_a_session_that_is_deleted_after_the_run(world):
    world.server.tells = False

    async def story(world):
        await world.put("fresh", sessionConfig={"persistSession": False})
        await world.let_pass("1h")
        first, told = world.server.sessions, world.last_run("fresh")
        await world.let_pass("1d")
        second = world.server.sessions
        world.clock.advance("30m")
        await world.tidy()
        return first, second, told

    first, second, told = world.play(story)
    assert len(first) == len(second) == 1
    assert first != second
    assert "sessionId" not in told
    assert told["lastResult"] == "success"
    assert world.server.sessions == [], "half an hour later nothing is left"
    assert len(world.made) == 2


@pytest.mark.req("C37")
def test_ephemeral_prompt_does_not_reuse_an_earlier_session(world):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        old = world.last_run("daily")["sessionId"]
        await world.put("daily", sessionConfig={"persistSession": False})
        await world.let_pass("1d")
        return old, world.last_run("daily")

    old, told = world.play(story)
    assert len(world.server.messages_of(old)) == 1
    assert len(world.made) == 2
    assert "sessionId" not in told


@pytest.mark.req("C50")
def test_beyond_the_most_sessions_the_least_recently_used_are_cleaned_up(world):
    world.settings = {"sessions_most": 2}

    async def story(world):
        for slug in ("a", "b", "c"):
            await world.put(slug, schedule={"type": "interval", "intervalMinutes": 525_600})
        found = []
        for slug in ("a", "b", "a", "c"):
            world.clock.advance("1m")
            await world.run(slug)
            found.append(sorted(world.server.sessions))
        kept = {slug: world.last_run(slug)["sessionId"] for slug in "abc"}
        await world.run("b")
        return found, kept, world.last_run("b")

    found, kept, b = world.play(story)
    assert [len(each) for each in found] == [1, 2, 2, 2]
    assert kept["b"] is None, "it was the least recently used"
    assert found[-1] == sorted([kept["a"], kept["c"]])
    assert b["lastResult"] == "success"
    assert b["sessionId"] in world.server.sessions


@pytest.mark.req("C50")
def test_sessions_in_use_or_created_elsewhere_are_not_cleaned_up(world):
    world.settings = {"sessions_most": 1}

    async def story(world):
        own = world.server.folder / "my-own-chat"
        own.mkdir(parents=True)
        (own / "messages.jsonl").touch()
        await world.put("mine")
        world.edit("mine", "last-run.json", sessionId="my-own-chat")
        await world.settled()
        await world.run("mine")
        await world.put("long", sessionConfig={"feedback": True, "persistSession": False})
        await world.service.start("long")
        await world.beat.settle()
        (used,) = set(world.server.sessions) - {"my-own-chat"}
        world.clock.advance("1m")
        fields = {"every": "1d", "run": {"session": {"prompt": "Hi", "persist": False}}}
        await world.service.define([read_schedule("native", fields)])
        await world.service.start("native")
        await world.beat.settle()
        await world.tidy()
        return used

    used = world.play(story)
    assert {"my-own-chat", used} <= set(world.server.sessions)


def test_recreated_schedule_begins_with_a_new_session(world):
    async def story(world):
        for prompt in ("Old", "New"):
            fields = {"every": "1d", "run": {"session": {"prompt": prompt}}}
            await world.service.define([read_schedule("notes", fields)])
            await world.service.start("notes")
            await world.settled()
            await world.service.delete("notes")
            world.clock.advance("1s")

    world.play(story)
    found = sorted(texts for texts in world.said().values())
    assert found == [["[scheduler:notes] New"], ["[scheduler:notes] Old"]]


def test_session_set_meanwhile_is_used_before_a_new_one_is_created(world):
    async def story(world):
        own = world.server.folder / "mine"
        own.mkdir(parents=True)
        (own / "messages.jsonl").touch()
        await world.put("daily")
        await world.run("daily")
        shutil.rmtree(world.server.folder / world.last_run("daily")["sessionId"])

        async def meanwhile():
            world.server.before_message = None
            world.edit("daily", "last-run.json", sessionId="mine")
            await world.sessions.reconcile()

        world.server.before_message = meanwhile
        await world.run("daily")
        return world.last_run("daily")["sessionId"]

    assert world.play(story) == "mine"
    assert len(world.server.messages_of("mine")) == 1
    assert len(world.made) == 1


def test_server_that_does_not_answer_a_deletion_delays_neither_runs_nor_shutdown(world):
    async def story(world):
        asked = asyncio.Event()

        async def never():
            asked.set()
            await forever()

        await world.put("fresh", sessionConfig={"persistSession": False})
        await world.run("fresh")
        world.clock.advance("31m")
        world.server.before_delete = never
        await world.run("fresh")
        await asyncio.wait_for(asked.wait(), 5)
        world.began = time.monotonic()

    world.play(story)
    assert world.messages == ["fresh", "fresh"]
    assert time.monotonic() - world.began < 5


@pytest.mark.req("C50")
def test_server_that_cannot_delete_sessions_fails_no_run(world):
    world.settings = {"sessions_most": 1}

    async def story(world):
        world.server.deletes = False
        for slug in ("a", "b"):
            await world.put(slug)
            await world.run(slug)
        return [world.last_run(slug)["lastResult"] for slug in "ab"]

    assert world.play(story) == ["success", "success"]


@pytest.mark.req("C29", "C51")
def test_no_two_prompts_are_sent_concurrently(world):
    async def story(world):
        at_once, most = 0, 0

        async def slow():
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.02)
            at_once -= 1

        world.server.before_message = slow
        for slug in "abcd":
            await world.put(slug)
        await world.let_pass("1h")
        return most

    assert world.play(story) == 1
    assert sorted(world.messages) == ["a", "b", "c", "d"]


@pytest.mark.req("C4", "C31", "C44", "C51")
def test_after_a_day_offline_each_missed_schedule_runs_once_one_after_the_other(world):
    async def first(world):
        for slug in ("b", "a"):
            await world.put(slug, schedule={"type": "interval", "intervalMinutes": 60})
            world.clock.advance("1m")
        await world.put("later", schedule={"type": "cron", "expression": "0 9 1 3 *"})
        world.clock.advance("24h")

    async def again(world):
        assert world.messages == ["b", "a"], "it was due before"
        await world.let_pass("30m")

    world.play(first, again)
    assert world.messages == ["b", "a"]


@pytest.mark.req("C4")
def test_any_downtime_is_caught_up_with_one_run(world):
    async def first(world):
        await world.put("daily")
        world.clock.advance("200d")

    async def again(world):
        pass

    world.play(first, again)
    assert world.messages == ["daily"]


@pytest.mark.req("C2", "C13", "C44")
def test_restart_keeps_definitions_sessions_and_next_runs(world):
    async def first(world):
        await world.put("daily")
        await world.let_pass("1h")
        return await world.item("daily")

    async def again(world):
        return await world.item("daily")

    found = []
    for story in (first, again):
        world.restart_server()
        found.append(world.play(story))
    assert found[0] == found[1]
    assert found[0].session_id is not None


@pytest.mark.req("C54")
def test_edit_during_a_run_applies_from_the_next_run(world):
    async def story(world):
        await world.put("daily")
        another = {
            "prompt": "Another",
            "schedule": {"type": "cron", "expression": "0 10 * * *"},
        }

        async def meanwhile():
            await world.sessions.put(world.service, "daily", another)

        world.server.before_message = meanwhile
        await world.let_pass("1h")
        ran = world.last_run("daily")
        await world.let_pass("1h")
        return ran

    ran = world.play(story)
    assert ran["lastResult"] == "success"
    assert ran["nextRun"] == "2026-01-29T10:00:00.000Z"
    said = [text for texts in world.said().values() for text in texts]
    assert said == [
        "[scheduler:daily] Generate daily standup summary",
        "[scheduler:daily] Another",
    ]


@pytest.mark.req("C69")
def test_prompt_may_contain_the_date_and_the_last_run(world):
    async def story(world):
        await world.put("daily", prompt="For {{date}}, since {{lastRun}}")
        await world.let_pass("1h", "1d")

    world.play(story)
    ((first, second),) = world.said().values()
    assert first == "[scheduler:daily] For 2026-01-29, since "
    assert second.startswith("[scheduler:daily] For 2026-01-30, since 2026-01-29T09:00:00")


@pytest.mark.req("C7", "C42")
def test_errors_are_logged_with_their_prefix_and_later_prompts_are_sent(world, logged):
    async def story(world):
        await world.put("daily")
        await world.let_pass("1h")
        world.server.busy.add(world.last_run("daily")["sessionId"])
        await world.let_pass("1d")
        world.server.busy.clear()
        world.server.fails = True
        await world.let_pass("1h")
        world.server.fails = False
        await world.let_pass("30m")
        return world.last_run("daily")["lastResult"]

    assert world.play(story) == "success"
    assert logged() == [
        "[SCHEDULER] daily: Session busy - agent currently running",
        "[SCHEDULER] daily: HTTP 500: Internal Server Error",
    ]


@pytest.mark.req("C1")
def test_a_prompt_is_sent_at_its_time_and_not_at_the_next_check(world):
    async def story(world):
        await world.put("daily", schedule={"type": "cron", "expression": "17 9 * * *"})
        await world.let_pass("76m")
        assert world.messages == []
        await world.let_pass("1m")
        return world.last_run("daily")["lastRun"]

    assert world.play(story) == "2026-01-29T09:17:00.000Z"


@pytest.mark.req("C28", "C57", "C58")
def test_only_enabled_schedules_that_are_due_are_sent(world):
    next_runs = {
        "disabled": "2026-01-29T07:00:00.000Z",
        "hours-ago": "2026-01-29T05:00:00.000Z",
        "just-now": "2026-01-29T08:00:00.000Z",
        "to-come": "2026-01-29T08:00:01.000Z",
        "yesterday": "2026-01-28T09:00:00.000Z",
    }
    for slug, next_run in next_runs.items():
        world.define(slug, enabled=slug != "disabled")
        world.write(slug, "last-run.json", {"nextRun": next_run})

    async def story(world):
        at_first = list(world.messages)
        await world.let_pass("1s")
        return at_first

    assert sorted(world.play(story)) == ["hours-ago", "just-now", "yesterday"]
    assert world.messages[3:] == ["to-come"]
    told = {slug: world.last_run(slug) for slug in next_runs}
    assert {slug for slug in told if told[slug]["lastResult"] == "success"} == set(world.messages)
    assert told["disabled"]["lastRun"] is None
    for slug in world.messages:
        assert told[slug]["nextRun"] == "2026-01-29T09:00:00.000Z"


@pytest.mark.req("C31")
def test_overdue_prompts_are_sent_in_the_order_in_which_they_were_due(world):
    """The clock is real: runs started in one millisecond are ordered by name."""
    slugs = ["d", "b", "e", "a", "c"]
    for n, slug in enumerate(slugs):
        world.define(slug)
        world.write(slug, "last-run.json", {"nextRun": f"2026-01-01T0{n}:00:00.000Z"})

    async def story(world):
        await until(lambda: len(world.messages) == len(slugs))

    world.clock = None
    world.play(story)
    assert world.messages == slugs


@pytest.mark.req("C8")
def test_sessions_live_in_the_home_folder_of_the_server_beside_the_schedules(tmp_path, monkeypatch):
    """Both programs use their defaults; the server creates its folders."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    there = tmp_path / ".caco" / "schedule" / "daily"
    there.mkdir(parents=True)
    (there / "definition.json").write_text(json.dumps(STANDUP))
    program = [sys.executable, EXAMPLE / "session_server.py", "--listen", "127.0.0.1:0"]

    async def story():
        server = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        try:
            said = (await server.stdout.readline()).decode()
            url = said.split()[2].rstrip(",")
            settings = given_settings(database=f"sqlite:///{tmp_path}/onbeat.db", sessions_url=url)
            async with Onbeat(settings=settings):
                async with asyncio.timeout(20):
                    while not (tmp_path / ".caco" / "sessions").is_dir():  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    await server.stdout.readline()  # what it was sent
        finally:
            server.kill()
            await server.wait()

    asyncio.run(story())
    last_run = json.loads((there / "last-run.json").read_text())
    session = tmp_path / ".caco" / "sessions" / last_run["sessionId"]
    assert sorted(each.name for each in session.iterdir()) == ["messages.jsonl", "session.json"]
    assert json.loads((session / "messages.jsonl").read_text()).startswith("[scheduler:daily]")


@pytest.mark.req("C67")
def test_history_has_the_last_ten_runs_of_a_slug_with_their_results(world, tmp_path):
    async def story(world):
        await world.put("daily", enabled=False)
        await world.put("other", enabled=False)
        await world.run("other")
        for n in range(12):
            world.clock.advance("1h")
            world.server.fails = n % 4 == 3
            await world.run("daily")
        return world.last_run("daily")["sessionId"]

    session = world.play(story)
    (tmp_path / "onbeat.toml").write_text(f'database = "{world.database}"\n')
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(main, ["runs", "daily", "-n", "10", "--json"])
        text = CliRunner().invoke(main, ["runs", "daily", "-n", "10"]).output
    runs = json.loads(done.stdout)
    assert len(runs) == 10
    assert {run["schedule_id"] for run in runs} == {"daily"}
    well = ("SUCCESS", None, {"sessionId": session})
    overtaken = ("CANCELED", "a newer run took its place", None)
    waits = ("ENQUEUED", "HTTP 500: Internal Server Error", None)
    found = [(run["status"], run["error"], run["result"]) for run in reversed(runs)]
    assert found == [well, overtaken, *[well] * 3, overtaken, *[well] * 3, waits]
    assert [run["run_at"] for run in runs] == sorted((run["run_at"] for run in runs), reverse=True)
    assert (text.count("SUCCESS"), text.count("HTTP 500: Internal Server Error")) == (7, 1)


@pytest.mark.req("C52")
def test_schedule_in_progress_is_not_queued_again(world):
    async def story(world):
        every = {"type": "interval", "intervalMinutes": 20}
        await world.put("long", sessionConfig={"feedback": True}, schedule=every)
        await world.let_pass("20m")
        (running,) = await world.service.runs()
        await world.let_pass("20m")  # its next tick is due
        return running, await world.service.runs()

    world.settings = {"sessions_minimum": 20 * 60_000}
    running, runs = world.play(story)
    assert running.status == "STARTED"
    assert [(run.status, run.reason) for run in runs] == [("SKIPPED", "overlap"), ("STARTED", None)]
    assert world.messages == ["long"]


def test_feedback_run_does_not_block_the_launcher(world):
    async def story(world):
        await world.put("daily")
        await world.put("other")
        await world.run("daily")
        session = world.last_run("daily")["sessionId"]
        world.server.busy.add(session)  # its agent works for a day
        await world.run("other")
        return [world.last_run(slug)["lastResult"] for slug in ("daily", "other")]

    assert world.play(story) == ["success", "success"]


@pytest.mark.req("C56", "C61")
def test_next_run_of_a_weekday_cron_is_the_next_weekday(world):
    world.clock = ManualClock("2026-01-29T10:00:00Z")

    async def story(world):
        return (await world.put("daily"))["nextRun"]

    assert world.play(story) == "2026-01-30T09:00:00.000Z"


@pytest.mark.req("C53", "C56")
def test_times_are_utc_in_any_zone_of_the_machine(world, monkeypatch):
    async def first(world):
        await world.put("daily")
        await world.put("off", enabled=False)
        await world.let_pass("1h")
        return await again(world)

    async def again(world):
        return [(await world.item(slug)).next_run for slug in ("daily", "off")]

    found = []
    for story, zone in ((first, "Europe/Berlin"), (again, "America/New_York"), (again, "UTC")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        computed = world.play(story)
        last = world.last_run("daily")
        found.append([last["lastRun"], last["nextRun"], *computed])
    monkeypatch.undo()
    time.tzset()
    ran, following = "2026-01-29T09:00:00.000Z", "2026-01-30T09:00:00.000Z"
    assert found == [[ran, following, following, following]] * 3


@pytest.mark.req("C11")
def test_interval_is_counted_from_its_definition_even_after_an_edit(world):
    hourly = {"type": "interval", "intervalMinutes": 90}

    async def story(world):
        world.clock.advance("7m")
        found = [(await world.put("daily", schedule=hourly))["nextRun"]]
        await world.let_pass("90m")
        found.append(world.last_run("daily")["nextRun"])
        await world.let_pass("10m")
        found.append((await world.put("daily", schedule=hourly, prompt="Other"))["nextRun"])
        other = hourly | {"intervalMinutes": 120}
        found.append((await world.put("daily", schedule=other))["nextRun"])
        return found

    assert world.play(story) == [
        "2026-01-29T09:37:00.000Z",
        "2026-01-29T11:07:00.000Z",
        "2026-01-29T11:07:00.000Z",
        "2026-01-29T11:47:00.000Z",
    ]


def test_run_without_a_report_ends_after_half_an_hour(world):
    async def story(world):
        await world.put("daily", sessionConfig={"feedback": True})
        await world.let_pass("1h")
        assert world.last_run("daily")["lastResult"] is None
        await world.let_pass("30m")
        return world.last_run("daily")

    found = world.play(story)
    assert found["lastResult"] == "error"
    assert found["lastRun"] == "2026-01-29T09:00:00.000Z"


@pytest.mark.req("C45")
def test_kill_9_after_the_prompt_was_sent_does_not_send_it_again(world):
    """The state on disk is that of a crash while the server had the prompt."""
    left = world.folder.parent / "left"

    async def first(world):
        async def kill():
            shutil.copytree(world.folder, left / "schedule")
            for name in ("onbeat.db", "onbeat.db-wal"):
                shutil.copy(world.folder.parent / name, left)

        await world.put("daily")
        world.server.before_message = kill
        await world.let_pass("1h")
        assert world.messages == ["daily"]
        world.server.before_message = None
        world.folder, world.database = left / "schedule", f"sqlite:///{left}/onbeat.db"

    async def again(world):
        await world.let_pass("1m", "1h")
        return world.last_run("daily")

    found = world.play(first, again)
    assert world.messages == ["daily"]
    assert (found["lastResult"], found["lastRun"]) == ("error", "2026-01-29T09:00:00.000Z")
    assert found["lastError"].startswith("unknown whether it arrived: ")
    assert [found["sessionId"]] == world.server.sessions, "and it knows its session"


@pytest.mark.req("C2", "C5")
def test_prompts_run_on_postgresql_as_on_sqlite(world, postgres_url):
    world.database = postgres_url

    async def first(world):
        await world.put("daily")
        await world.run("daily")
        await world.sessions.reconcile()
        world.server.busy.add(world.last_run("daily")["sessionId"])
        await world.run("daily")
        await world.sessions.reconcile()
        return world.last_run("daily")

    async def again(world):
        world.edit("daily", "last-run.json", nextRun="2026-01-29T07:00:00.000Z")
        world.server.busy.clear()
        await world.settled()
        await world.sessions.reconcile()
        return world.last_run("daily")

    busy = world.play(first)
    assert busy["lastError"] == "Session busy - agent currently running"
    assert busy["nextRun"] == "2026-01-29T09:00:00.000Z"
    world.restart_server()
    found = world.play(again)
    assert world.messages == ["daily"]
    assert [found["sessionId"]] == world.server.sessions
