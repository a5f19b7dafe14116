"""Definitions as code: `plan`, `apply`, `export` and watched files."""

import asyncio
import json
import re
import time
from pathlib import Path

import jsonschema_rs

from onbeat import Onbeat
from onbeat.app.parts import check_target
from onbeat.cli.apply import ApplyOptions, apply_definitions
from onbeat.cli.watch import apply_again, kept_applied
from onbeat.sources.watch import WatchedFile
from onbeat.sources.yaml import read_file
from onbeat.testing import ManualClock, a_schedule
from tests.cli.test_verbs import (  # noqa: F401 - folder is a fixture  # fmt: skip
    BROKEN,
    TWO,
    a_node,
    as_json,
    folder,
    names,
    ok,
    onbeat,
    refused,
    rows,
    write,
)

FIRST = """
schedules:
  report: {every: 15m, run: {command: [ls]}, timeout: 5m}
  standup: {cron: "0 9 * * MON-FRI", run: {command: [ls]}}
  old: {every: 1h, run: {command: [ls]}}
  same: {every: 1h, run: {command: [ls]}}
"""
SECOND = """
schedules:
  report: {every: 30m, run: {command: [ls, -l]}}
  standup: {cron: "0 10 * * MON-FRI", run: {command: [ls]}}
  new: {any: [{daily: 12:30}, {after: {success: 1h}}], run: {command: [ls]}}
  same: {every: 1h, run: {command: [ls]}}
"""
THOUSAND = "schedules:\n" + "".join(
    f"  s{i}: {{cron: '{i % 60} {i % 24} * * MON-FRI', run: {{command: [ls, '{i}']}}}}\n"
    for i in range(1000)
)


def told(text):
    """Return the printed lines without times, which differ from day to day."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "...", text).splitlines()


# -- plan


def test_plan_shows_every_change_and_makes_none():
    ok("apply", write(FIRST))
    ok("pause", "standup")
    before = rows()
    assert told(ok("plan", write(SECOND))) == [
        "~ report   every 30 minutes",
        '    every: "15m" -> "30m"',
        '    run.command: ["ls"] -> ["ls","-l"]',
        '    timeout: "5m" -> default',
        "    in the next week: 336 ticks lost, the first ...",
        "~ standup  at 10:00 on Monday to Friday, UTC",
        '    cron: "0 9 * * MON-FRI" -> "0 10 * * MON-FRI"',
        "    in the next week: 5 ticks gained, the first ...; 5 ticks lost, the first ...",
        "    paused, and stays so",
        "+ new      at 12:30 every day, UTC; or 1h after its last run succeeded",
        "    in the next week: 7 ticks gained, the first ...",
        "    ticks that follow other runs are not counted",
        ". old      every hour",
        "    no longer in the file, but kept (--prune removes it)",
        "= 1 unchanged",
        "1 to create, 2 to change",
    ]
    pruned = told(ok("plan", "--prune"))
    assert pruned[-4:] == [
        "- old      every hour",
        "    in the next week: 168 ticks lost, the first ...",
        "= 1 unchanged",
        "1 to create, 2 to change, 1 to remove",
    ]
    assert rows() == before


def test_plan_prints_changes_as_json():
    ok("apply", write(FIRST))
    write(SECOND)
    found = as_json("plan", "--prune")
    assert found["source"] == "onbeat.yaml"
    changes = {each["schedule_id"]: each for each in found["changes"]}
    assert {name: each["change"] for name, each in changes.items()} == {
        "report": "change", "standup": "change", "new": "create", "same": "unchanged", "old": "remove",
    }  # fmt: skip
    report = changes["report"]
    assert report["fields"] == [
        {"field": "every", "overwritten": False, "old": "15m", "new": "30m"},
        {"field": "run.command", "overwritten": False, "old": ["ls"], "new": ["ls", "-l"]},
        {"field": "timeout", "overwritten": False, "old": "5m"},
    ]
    assert (report["revision"], report["effect"]["lost"]) == (1, 336)
    assert len(report["effect"]["first_lost"]) == 3


def test_plan_without_a_database_lists_all_as_new_and_creates_no_file():
    assert told(ok("plan", write(TWO)))[-1] == "2 to create"
    assert not Path("onbeat.db").exists()


def test_plan_with_exit_code_exits_3_if_there_are_changes():
    write(TWO)
    assert onbeat("plan", "--exit-code").exit_code == 3
    ok("apply")
    assert ok("plan", "--exit-code") == "= 2 unchanged\nno changes\n"


MINUTELY = "schedules: {job: {cron: '* * * * *', run: {command: [echo, OLD]}}}"
YEARLY = "schedules: {job: {cron: '0 3 1 1 *', run: {command: [echo, NEW]}}}"


def defined_a_while_ago():
    """Have a file been applied an hour ago, and nothing been up since."""

    async def define():
        clock = ManualClock((int(time.time()) - 3600) * 1000)
        beat = Onbeat("sqlite:///onbeat.db", clock=clock)
        service = await beat.open()
        file = read_file(Path(write(MINUTELY)), check_target)
        await apply_definitions(service, file, ApplyOptions(source="onbeat.yaml"))
        await beat.close()

    asyncio.run(define())


def test_plan_shows_the_ticks_that_an_edit_records_as_missed():
    defined_a_while_ago()
    write(YEARLY)
    lines = [line.strip() for line in ok("plan").splitlines()]
    (recorded,) = [line for line in lines if line.startswith("records")]
    assert re.fullmatch(r"records (58|59) ticks \(.* to .*\) as missed \(edited\)", recorded)
    (on_time,) = [line for line in lines if line.startswith("starts")]
    assert re.fullmatch(
        r"starts [12] ticks? \(.*\),? (each )?if a node is up .*, by revision 1", on_time
    )
    assert ok("apply") == "changed job, revision 2\n"
    found = as_json("runs")
    assert {(run["status"], run["reason"], run["revision"]) for run in found} <= {
        ("SKIPPED", "edited", 1), ("ENQUEUED", None, 1), ("SKIPPED", "overlap", 1),
    }  # fmt: skip
    assert sum(run["tick_count"] for run in found if run["reason"] == "edited") in (58, 59)


def test_plan_shows_waiting_runs_that_are_kept_moved_or_canceled():
    ok("apply", write(MINUTELY))
    onbeat("run", "job", "--request-id", "one")
    write(MINUTELY.replace("OLD", "NEW"))
    kept = "    keeps 1 waiting run of revision 1 (--update-waiting moves them)"
    assert kept in ok("plan").splitlines()
    moves = "    moves 1 waiting run of revision 1 to the new revision"
    assert moves in ok("plan", "--update-waiting").splitlines()
    (change,) = as_json("plan")["changes"]
    assert change["past"]["keeps"] == [{"revision": 1, "runs": 1}]
    ok("apply")
    assert [run["revision"] for run in as_json("runs")] == [1]
    assert ok("plan", "--exit-code").endswith("no changes\n")
    done = onbeat("plan", "--update-waiting", "--exit-code")
    assert (done.exit_code, done.stdout.splitlines()[1]) == (3, moves)
    assert done.stdout.endswith("1 waiting run to move\n")
    assert (
        ok("apply", "--update-waiting") == "moved 1 waiting run of job to revision 2\n1 unchanged\n"
    )
    assert [each["moved"] for each in as_json("apply", "--update-waiting")] == [0]
    assert [run["revision"] for run in as_json("runs")] == [2]
    write("schedules: {}")
    assert "    cancels 1 waiting run" in ok("plan", "--prune").splitlines()


def test_plan_refuses_a_broken_file_like_apply():
    done = onbeat("plan", write(BROKEN))
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr.startswith("onbeat.yaml:4: schedules.no-length.every: ")
    assert done.stderr.endswith("onbeat: 4 mistakes in onbeat.yaml: nothing was changed\n")


# -- apply


def test_apply_removes_missing_schedules_only_with_prune():
    ok("apply", write(FIRST))
    write(SECOND)
    done = onbeat("apply")
    assert done.exit_code == 0
    assert done.stderr.startswith(
        "no longer in onbeat.yaml, but kept: old (--prune removes them)\n"
    )
    assert names() == ["new", "old", "report", "same", "standup"]
    assert ok("apply", "--prune") == "removed old, revision 1\n4 unchanged\n"
    assert names() == ["new", "report", "same", "standup"]
    write("schedules: {}")
    assert as_json("apply", "--prune")[0] == {
        "schedule_id": "new", "change": "removed", "revision": 1, "moved": 0,
    }  # fmt: skip
    assert names() == []


def test_apply_dry_run_equals_plan():
    ok("apply", write(FIRST))
    write(SECOND)
    before = rows()
    assert ok("apply", "--dry-run", "--prune") == ok("plan", "--prune")
    assert as_json("apply", "--dry-run") == as_json("plan")
    assert rows() == before


def test_schedules_of_another_file_are_refused_without_take_over(folder):  # noqa: F811
    ok("apply", write(TWO))
    write(TWO, "other.yaml")
    assert told(ok("plan", "other.yaml"))[1] == "    belongs to onbeat.yaml (--take-over updates it from this file)"  # fmt: skip
    line = refused(1, "apply", "other.yaml")
    assert line.startswith("report is of onbeat.yaml, clean is of onbeat.yaml: nothing was changed")  # fmt: skip
    assert "--take-over" in line
    assert ok("apply", "other.yaml", "--take-over") == "2 unchanged\n"
    assert {row["source"] for row in as_json("list")} == {"other.yaml"}


def test_file_beside_its_database_stays_the_same_source_when_both_move(folder):  # noqa: F811
    (folder / "old").mkdir()
    (folder / "old" / "onbeat.yaml").write_text(TWO)
    database = "--database=sqlite:///{}/onbeat.db"
    ok("apply", "old/onbeat.yaml", database.format("old"))
    (folder / "old").rename("new")
    assert ok("apply", "new/onbeat.yaml", database.format("new")) == "2 unchanged\n"
    elsewhere = folder / "elsewhere.yaml"
    elsewhere.write_text(TWO)
    refused = onbeat("apply", "elsewhere.yaml", database.format("new"))
    assert "clean is of onbeat.yaml" in refused.stderr


def test_named_source_is_independent_of_the_file_path(folder):  # noqa: F811
    ok("apply", write(TWO), "--source", "team")
    (folder / "else").mkdir()
    moved = write("schedules: {clean: {every: 1h, run: {command: [ls]}}}", "else/where.yaml")
    assert ok("apply", moved, "--source", "team", "--prune") == (
        "changed clean, revision 2\nremoved report, revision 1\n"
    )
    assert [row["source"] for row in as_json("list")] == ["team"]


def test_apply_keeps_a_pause():
    ok("apply", write(TWO))
    ok("pause", "report", "--note", "for now")
    ok("apply", write(TWO.replace("1h", "2h")))
    row = next(row for row in as_json("list") if row["schedule_id"] == "report")
    assert (row["paused"], row["pause_note"], row["revision"]) == (True, "for now", 2)


def test_thousand_schedules_are_planned_and_applied_in_seconds():
    started = time.process_time()
    assert told(ok("plan", write(THOUSAND)))[-1] == "1000 to create"
    ok("apply")
    write(THOUSAND.replace("MON-FRI", "MON-SAT"))
    assert told(ok("plan"))[-1] == "1000 to change"
    ok("apply")
    assert ok("plan") == "= 1000 unchanged\nno changes\n"
    assert time.process_time() - started < 20  # 4 s when quiet


# -- export


def definitions():
    return {row["schedule_id"]: row["definition"] for row in as_json("list")}


def test_exported_file_defines_the_same_in_an_empty_database(monkeypatch):
    ok("apply", write(FIRST + "  odd: {cron: '*/5 * * * *', run: {command: ['on', '12:30']}}"))
    write("schedules: {report: {every: 1h, run: {command: [ls]}}}", "other.yaml")
    ok("apply", "other.yaml", "--take-over")
    before, text = definitions(), ok("export")
    write(text, "exported.yaml")
    monkeypatch.setenv("ONBEAT_DATABASE", "sqlite:///other.db")
    ok("apply", "exported.yaml")
    assert definitions() == before
    assert ok("export") == text


def test_export_selects_by_name_or_by_source(folder):  # noqa: F811
    ok("apply", write(TWO))
    ok("apply", write("schedules: {a: {every: 1h, run: {command: [ls]}}}", "other.yaml"))
    assert list(as_json("export")["schedules"]) == ["a", "clean", "report"]
    assert list(as_json("export", "clean", "a")["schedules"]) == ["a", "clean"]
    assert list(as_json("export", "--source", "other.yaml")["schedules"]) == ["a"]
    assert list(as_json("export", "--source", folder / "onbeat.yaml")["schedules"]) == ["clean", "report"]  # fmt: skip
    assert refused(1, "export", "clean", "nobody") == "no schedule is called 'nobody'"


# -- schema


def test_schema_prints_the_json_schema_of_files_and_schedules():
    for flags, right in (
        ((), {"schedules": {"a": {"every": "1h", "run": {"command": ["ls"]}}}}),
        (("--schedule",), {"every": "1h", "run": {"command": ["ls"]}}),
    ):
        text, line = ok("schema", *flags), ok("schema", *flags, "--json")
        assert json.loads(text) == json.loads(line)
        assert (text.count("\n") > 100, line.count("\n")) == (True, 1)
        assert jsonschema_rs.is_valid(json.loads(text), right)
        assert not jsonschema_rs.is_valid(json.loads(text), {"schedules": 5})


# -- up -f


def watching(*steps, wish=ApplyOptions()):  # noqa: B008 - it is a plain value
    """Be up with onbeat.yaml, do a step before each look at it; return the ids that are there then."""

    async def play():
        left, over = iter([*steps, None, None]), asyncio.Event()

        async def pause():
            for step in left:
                if step is not None:
                    write(step)
                return
            over.set()
            await asyncio.Event().wait()  # until it is canceled

        async with Onbeat("sqlite://", clock=ManualClock()) as beat:
            watched = WatchedFile(Path("onbeat.yaml"))
            file = read_file(watched.path, check_target)
            await apply_definitions(beat.service, file, wish)
            async with kept_applied(beat.service, watched, wish, pause=pause):
                await over.wait()
            return {row.schedule_id: row.revision for row in await beat.service.schedules()}

    return asyncio.run(play())


def test_watched_file_is_applied_again_after_a_change(caplog):
    caplog.set_level("INFO", "onbeat")
    write(TWO)
    assert watching(TWO.replace("1h", "2h"), None, None) == {"clean": 1, "report": 2}
    assert [each.getMessage() for each in caplog.records if each.name == "onbeat.host"] == [
        "onbeat.yaml: the file is applied: 1 changed, 1 unchanged"
    ]


def test_schedule_missing_in_a_watched_file_is_kept_without_prune(caplog):
    caplog.set_level("INFO", "onbeat")
    less = "schedules: {clean: {every: 1h, run: {command: [ls]}}}"
    write(TWO)
    assert watching(less, None) == {"clean": 2, "report": 1}
    assert "onbeat.yaml: the file is applied: 1 changed, 1 kept" in caplog.text
    write(TWO)
    assert watching(less, None, wish=ApplyOptions(prune=True)) == {"clean": 2}


def test_broken_watched_file_is_logged_in_full_and_changes_nothing(caplog):
    write(TWO)
    assert watching(BROKEN, None, None, None, wish=ApplyOptions(prune=True)) == {
        "clean": 1,
        "report": 1,
    }
    told = [each.getMessage() for each in caplog.records if each.name == "onbeat.host"]
    assert [line.partition(": ")[0] for line in told[:-1]] == [
        f"onbeat.yaml:{n}" for n in (4, 5, 6, 7)
    ]
    assert told[-1] == "onbeat.yaml: the file is not applied: nothing was changed"
    assert caplog.records[-2].fields["line"] == 7
    write(TWO)
    assert watching(BROKEN, None, TWO.replace("1h", "2h"), None) == {"clean": 1, "report": 2}


def test_watched_file_does_not_take_over_schedules_of_another_source(caplog):
    text = f"{TWO}  theirs: {{every: 2h, run: {{command: [ls]}}}}\n"

    async def play():
        async with Onbeat("sqlite://", clock=ManualClock()) as beat:
            await beat.service.define([a_schedule("theirs")], source="elsewhere")
            assert await apply_again(beat.service, Path(write(text)), ApplyOptions())
            return [row.schedule_id for row in await beat.service.schedules()]

    assert asyncio.run(play()) == ["theirs"]
    assert "onbeat.yaml: the file is not applied: theirs is of elsewhere" in caplog.text


class Interrupted(ApplyOptions):
    """A plan, followed by a concurrent edit of its schedules."""

    async def plan(self, service, file, **horizon):
        found = await super().plan(service, file, **horizon)
        await service.define([a_schedule("report", every="9h")])
        return found


def test_watched_file_is_applied_again_after_a_conflict(caplog):
    file = Path(write(TWO))

    async def play():
        async with Onbeat("sqlite://", clock=ManualClock()) as beat:
            assert await apply_again(beat.service, file, ApplyOptions())
            assert not await apply_again(beat.service, file, Interrupted())
            assert await apply_again(beat.service, file, ApplyOptions())
            return [(row.revision, row.is_edited) for row in await beat.service.schedules()]

    assert asyncio.run(play()) == [(1, False), (3, False)]
    assert (
        "onbeat.yaml: the changed file is not applied yet, will be retried: schedule report has revision 2"
        in caplog.text
    )


def test_node_applies_its_changed_file_while_up(folder):  # noqa: F811
    write(TWO)
    with a_node(folder, "--prune", "--roles", "plan,run"):
        write("schedules: {other: {every: 1h, run: {command: [ls]}}}")
        limit = time.monotonic() + 10
        while names() != ["other"] and time.monotonic() < limit:
            time.sleep(0.05)
        assert names() == ["other"]


# -- the page


PAGE = Path(__file__).parent.parent.parent / "docs" / "definitions.md"


def test_page_about_definitions_shows_the_actual_output():
    """Write each file that the page shows, and call what it shows after it."""
    blocks = re.findall(r"```(yaml|console)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks].count("console") == 5
    for kind, text in blocks:
        if kind == "yaml":
            write(text)
            continue
        for called, printed in re.findall(r"\$ onbeat (.*)\n((?:(?!\$ ).*\n)*)", text):
            command, _, file = called.partition(" > ")
            done = onbeat(*command.split())
            if file:
                assert json.loads(done.stdout)
            else:
                assert told(done.stdout + done.stderr) == told(printed), called


def test_file_is_applied_despite_a_concurrent_edit():
    class Raced:
        """The service of a store that another caller edits first, once."""

        def __init__(self, service):
            self._service, self.tries = service, 0

        def __getattr__(self, name):
            return getattr(self._service, name)

        async def apply(self, changes):
            self.tries += 1
            if self.tries == 1:
                await self._service.define([a_schedule("report")])
            return await self._service.apply(changes)

    async def story():
        async with Onbeat("sqlite://") as beat:
            raced = Raced(beat.service)
            file = read_file(Path(write(TWO)), check_target)
            await apply_definitions(raced, file, ApplyOptions(take_over=True))
            return raced.tries, [row.schedule_id for row in await beat.schedules()]

    assert asyncio.run(story()) == (2, ["clean", "report"])
