"""Every verb, as text and as JSON: its effect, output and exit code."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path

import apsw
import click
import pytest
from click.testing import CliRunner

from onbeat import Onbeat
from onbeat.cli.command import main, verbs
from onbeat.cli.format import Times
from onbeat.cli.schedules import write_runs
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import Accepted
from onbeat.ports.rows import RunRow
from onbeat.testing import RecordingLauncher

SOON = 10  # seconds: far more than anything here takes
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")

TWO = """
schedules:
  report: {every: 1h, run: {command: [echo, "a report"]}}
  clean: {cron: "0 3 * * *", timezone: Europe/Berlin, run: {command: ["true"]}}
"""
BROKEN = """
schedules:
  right: {every: 1h, run: {command: ["true"]}}
  no-length: {every: 1x, run: {command: ["true"]}}
  no-minute: {cron: "61 * * * *", run: {command: ["true"]}}
  no-launcher: {every: 1h, run: {kommand: ["true"]}}
  no-list: {every: 1h, run: {command: "true"}}
"""
WORK = """
schedules:
  quick: {every: 1h, run: {command: [echo, done]}}
  slow: {every: 1h, run: {command: [sh, -c, "sleep 0.5; echo slept"]}}
  fails: {every: 1h, run: {command: [sh, -c, "echo why; exit 3"]}}
  echo: {every: 1h, run: {command: [sh, -c, 'echo "$ONBEAT_INPUTS"'], inputs: {limit: 1, kind: all}}}
"""

SCHEDULE_KEYS = {
    "schedule_id", "words", "definition", "revision", "source", "user_id", "paused", "pause_note",
    "paused_until", "next_run_at", "next_due_at", "iteration", "runs_used", "last_run_at",
    "last_success_at", "last_failure_at", "last_exit", "last_missed_at", "last_miss_reason",
    "consecutive_failures", "edited", "created_at", "updated_at",
}  # fmt: skip
RUN_KEYS = {
    "run_id", "schedule_id", "run_at", "due_at", "status", "reason", "triggered_by", "user", "attempt",
    "iteration", "revision", "tick_count", "first_run_at", "blocked_by", "priority", "group",
    "deadline_at", "end_asked_at", "deferrals", "external_id", "idempotency_key", "request_id",
    "node_id", "started_at", "stuck_at", "finished_at", "exit_code", "error", "result", "inputs", "rendered",
    "created_at", "updated_at",
}  # fmt: skip
NODE_KEYS = {
    "node_id", "name", "roles", "offers", "running", "alive", "stopping", "started_at", "alive_until",
    "version", "tz", "address",
}  # fmt: skip
STATUS_KEYS = {
    "database", "now", "gate", "schedules", "paused", "due", "next_due_at", "runs", "nodes",
    "awaited",
    "following",
    "waiting",
    "stuck",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory, and a minimal environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("ONBEAT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ONBEAT_ROLES", "plan,run")  # no API: none of this is about it
    return tmp_path


def onbeat(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def ok(*arguments):
    """Call a verb that works, and return what it wrote."""
    done = onbeat(*arguments)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return done.stdout


def as_json(*arguments):
    """Call a verb that works, and return what it wrote as JSON: on one line, with right times."""
    text = ok(*arguments, "--json")
    assert text.count("\n") == 1
    found = json.loads(text)
    check_times(found)
    return found


def check_times(found, name=""):
    if isinstance(found, dict):
        for key, value in found.items():
            check_times(value, key)
    elif isinstance(found, list):
        for value in found:
            check_times(value, name)
    elif name.endswith("_at") or name == "now":
        assert found is None or RFC_3339.fullmatch(found), (name, found)


def refused(code, *arguments):
    """Call a verb that fails, and return its one error line."""
    done = onbeat(*arguments)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    (line,) = done.stderr.splitlines()
    assert line.startswith("onbeat: ")
    return line.removeprefix("onbeat: ")


def write(text, name="onbeat.yaml"):
    Path(name).write_text(text)
    return name


def names():
    return [row["schedule_id"] for row in as_json("list")]


@pytest.fixture
def two():
    """Two schedules: clean and report."""
    ok("apply", write(TWO))


# -- init


def test_init_writes_a_file_that_apply_accepts():
    assert ok("init") == "wrote onbeat.yaml: onbeat up runs it\n"
    ok("apply")
    assert names() == ["hello", "report"]


def test_init_does_not_overwrite():
    write("mine")
    assert refused(1, "init") == "onbeat.yaml already exists: nothing was changed"
    assert Path("onbeat.yaml").read_text() == "mine"


def test_init_writes_to_the_given_path():
    assert as_json("init", "other.yaml") == {"file": "other.yaml"}
    assert Path("other.yaml").exists()
    assert refused(1, "init", "no/folder.yaml").startswith("no/folder.yaml cannot be written: ")


# -- apply


def test_apply_prints_created_changed_and_unchanged_schedules():
    assert ok("apply", write(TWO)) == "created report, revision 1\ncreated clean, revision 1\n"
    assert ok("apply") == "2 unchanged\n"
    write(TWO.replace("1h", "2h"))
    assert ok("apply") == "changed report, revision 2\n1 unchanged\n"


def test_apply_prints_changes_as_json():
    write(TWO)
    assert as_json("apply") == [
        {"schedule_id": "report", "change": "created", "revision": 1, "moved": 0},
        {"schedule_id": "clean", "change": "created", "revision": 1, "moved": 0},
    ]
    assert {each["change"] for each in as_json("apply")} == {"unchanged"}


def test_apply_of_the_same_file_by_its_full_path_changes_nothing(two, folder):
    assert ok("apply", folder / "onbeat.yaml") == "2 unchanged\n"


def test_apply_of_a_broken_file_reports_every_mistake_and_changes_nothing(two):
    before = rows()
    done = onbeat("apply", write(BROKEN, "broken.yaml"))
    assert (done.exit_code, done.stdout) == (4, "")
    wrong = ["no-length.every", "no-minute.cron.minute", "no-launcher.run.kommand", "no-list.run.command"]  # fmt: skip
    *lines, last = done.stderr.splitlines()
    assert len(lines) == len(wrong)
    for i, (line, name) in enumerate(zip(lines, wrong, strict=True)):
        assert line.startswith(f"broken.yaml:{i + 4}: schedules.{name}: ")
    assert "did you mean 'command'?" in lines[2]
    assert last == "onbeat: 4 mistakes in broken.yaml: nothing was changed"
    assert rows() == before


@pytest.mark.parametrize("text", [BROKEN, "schedules: [", None], ids=["wrong", "no YAML", "none"])
def test_apply_of_a_broken_or_missing_file_creates_no_database(text):
    if text is not None:
        write(text)
    assert onbeat("apply").exit_code == 4
    assert not Path("onbeat.db").exists()


def test_apply_refuses_a_missing_or_invalid_file():
    for name, problem in (
        ("none.yaml", "none.yaml: cannot be read"),
        (write("schedules: ["), "onbeat.yaml:"),
    ):
        done = onbeat("apply", name)
        assert (done.exit_code, done.stdout) == (4, "")
        assert done.stderr.startswith(problem)
        assert done.stderr.endswith(f"onbeat: 1 mistake in {name}: nothing was changed\n")


def test_apply_prints_mistakes_as_json():
    done = onbeat("apply", write(BROKEN, "broken.yaml"), "--json")
    assert (done.exit_code, done.stderr) == (4, "")
    first = json.loads(done.stdout)[0]
    assert first == {
        "file": "broken.yaml", "line": 4, "field": "schedules.no-length.every", "problem": "'1x' is not a duration",
        "hint": "such as 45s, 90m, 1h30m, 1d or PT90M, the largest unit first",
    }  # fmt: skip


def test_apply_of_an_empty_file_defines_nothing():
    assert ok("apply", write("schedules: {}")) == "onbeat.yaml defines no schedules\n"
    assert as_json("apply") == []


# -- list and show


def test_list_shows_the_next_tick_of_every_schedule(two):
    heading, clean, report = ok("list").splitlines()
    assert heading.split() == ["SCHEDULE", "NEXT", "LAST", "WHEN"]
    assert re.fullmatch(r"clean +\d{4}-\d\d-\d\d 0[12]:00:00Z \(in .*\) +- +at 03:00 every day, Europe/Berlin", clean)  # fmt: skip
    assert re.fullmatch(r"report +\d{4}-\d\d-\d\d \d\d:00:00Z \(in .*\) +- +every hour", report)


NOT_BY_TIME = """
schedules:
  base: {at: 2020-01-01T00:00, run: {command: [echo]}}
  then: {after: {schedule: base, outcome: success}, run: {command: [echo]}}
  ended: {after: {schedule: base, outcome: success}, end_at: 2020-01-01T00:00, run: {command: [echo]}}
  begin: {startup: 5s, run: {command: [echo]}}
  hand: {manual: true, run: {command: [echo]}}
  off: {every: 1h, enabled: false, run: {command: [echo]}}
  idle: {every: 1h, run: {command: [echo], enabled: false}}
"""


def test_list_and_show_explain_a_missing_next_tick():
    ok("apply", write(NOT_BY_TIME))
    shown = {
        name: ok("show", name).splitlines()[2].removeprefix("next").strip()
        for name in names_of(NOT_BY_TIME)
    }
    assert shown == {
        "base": "no more ticks", "then": "waits for other runs", "ended": "no more ticks",
        "begin": "at the next start of the scheduler", "hand": "started manually",
        "off": "disabled (enabled: false)", "idle": "disabled (run.enabled: false)",
    }  # fmt: skip
    listed = {line.split()[0]: line for line in ok("list").splitlines()}
    assert all(text in listed[name] for name, text in shown.items())


def names_of(text):
    """Return the names of the schedules of a file."""
    return [line.split(":")[0].strip() for line in text.splitlines() if line.startswith("  ")]


def test_list_without_schedules_prints_that():
    ok("apply", write("schedules: {}"))
    assert ok("list") == "no schedules (onbeat apply FILE creates some)\n"
    assert as_json("list") == []


def test_list_has_the_documented_keys(two):
    clean, report = as_json("list")
    assert clean.keys() == report.keys() == SCHEDULE_KEYS
    assert clean["words"] == "at 03:00 every day, Europe/Berlin"
    assert clean["source"] == "onbeat.yaml"
    assert report["definition"] == {"every": "1h", "run": {"command": ["echo", "a report"]}}
    assert report["next_run_at"].endswith(":00:00Z")
    assert (report["paused"], report["revision"], report["last_run_at"]) == (False, 1, None)


def test_show_prints_a_schedule_and_its_last_runs(two):
    as_json("run", "report", "--request-id", "order-7")
    text = ok("show", "report")
    assert text.startswith("report: every hour\n\nnext        ")
    assert "revision    1, from onbeat.yaml, changed " in text
    assert 'definition  {"every":"1h",' in text
    assert "ENQUEUED" in text
    found = as_json("show", "report")
    assert found.keys() == SCHEDULE_KEYS | {"runs"}
    assert [run["request_id"] for run in found["runs"]] == ["order-7"]


# -- pause, resume and delete


def test_pause_and_resume_accept_several_schedules(two):
    assert ok("pause", "report", "clean", "--note", "holidays") == "paused report\npaused clean\n"
    assert ok("pause", "report") == "report was already paused\n"
    assert [row["next_run_at"] for row in as_json("list")] == [None, None]
    assert ok("list").count("paused: holidays") == 2
    assert "2 paused" in ok("status")
    assert ok("resume", "report") == "resumed report\n"
    assert ok("resume", "report", "clean") == "report was not paused\nresumed clean\n"
    assert [row["paused"] for row in as_json("list")] == [False, False]


def test_pause_and_resume_print_changes_as_json(two):
    ok("pause", "report")
    names = ["clean", "report"]
    for verb, changed in (("pause", [True, False]), ("resume", [True, True])):
        told = [{"schedule_id": n, "changed": c} for n, c in zip(names, changed, strict=True)]
        assert as_json(verb, *names) == told


def test_delete_accepts_several_schedules(two):
    assert ok("delete", "report", "clean") == "deleted report, clean\n"
    assert names() == []
    assert ok("apply").count("created") == 2
    told = [{"schedule_id": name, "deleted": True} for name in ("report", "clean")]
    assert as_json("delete", "report", "clean") == told


@pytest.mark.parametrize("verb", ["pause", "resume", "delete"])
def test_verb_with_one_unknown_schedule_changes_nothing(two, verb):
    ok("pause", "clean")
    before = rows()
    said = refused(1, verb, "report", "clean", "rport")
    assert said == "no schedule is called 'rport' (did you mean 'report'?)"
    assert rows() == before


def test_delete_of_a_name_given_twice_deletes_it_once(two):
    assert "deleted report" in ok("delete", "report", "report")


@pytest.mark.parametrize("verb", ["show", "run", "runs", "logs"])
def test_unknown_schedule_is_refused_with_a_suggestion(two, verb):
    said = refused(1, verb, "rport")
    assert said == "no schedule is called 'rport' (did you mean 'report'?)"


# -- run and runs


def test_manual_run_waits_for_a_node(two):
    done = onbeat("run", "report")
    assert done.stdout == "run 1 of report is enqueued (onbeat logs -f 1)\n"
    assert done.stderr == "no node is up: the run waits for one (onbeat up)\n"
    found = as_json("run", "report", "--input", "limit=100", "--input", "kind=all", "--input", 'of=["a"]')  # fmt: skip
    assert found.keys() == RUN_KEYS
    assert found["inputs"] == {"limit": 100, "kind": "all", "of": ["a"]}
    assert (found["status"], found["triggered_by"]) == ("ENQUEUED", "manual")
    assert [run["run_id"] for run in as_json("runs")] == [2, 1]


def test_same_request_id_returns_the_same_run(two):
    first, again = (as_json("run", "report", "--request-id", "order-7") for _ in range(2))
    other = as_json("run", "report", "--request-id", "order-8")
    assert first == again
    assert other["run_id"] != first["run_id"]
    assert len(as_json("runs")) == 2


@pytest.mark.parametrize("text", ["limit", "=100", ""])
def test_invalid_input_is_refused(two, text):
    done = onbeat("run", "report", "--input", text)
    assert done.exit_code in {2, 4}
    assert "NAME=VALUE" in done.stderr
    assert as_json("runs") == []


def test_input_without_a_value_exits_2(two):
    refused(2, "run", "report", "--input", "limit")


def test_runs_are_filtered_and_limited(two):
    for name in ("report", "clean", "report"):
        as_json("run", name)
    assert [run["run_id"] for run in as_json("runs", "report")] == [3, 1]
    assert [run["run_id"] for run in as_json("runs", "-n", "1")] == [3]
    assert [run["run_id"] for run in as_json("runs", "--before", "3")] == [2, 1]
    assert [run["run_id"] for run in as_json("runs", "--status", "enqueued", "-n", "2")] == [3, 2]
    assert as_json("runs", "--status", "FAILED") == []
    assert ok("runs", "--status", "FAILED") == "no runs\n"


# -- what ran


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """A folder in which a node was up: quick, fails and echo have run."""
    folder = tmp_path_factory.mktemp("worked")
    (folder / "onbeat.yaml").write_text(WORK)
    with pytest.MonkeyPatch.context() as patch, a_node(folder):
        patch.chdir(folder)
        for name, code in (("quick", 0), ("fails", 1), ("echo", 0), ("quick", 0)):
            done = onbeat("run", name, "--wait", "--input", "limit=2")
            assert done.exit_code == code, done.output
    return folder


@pytest.fixture
def copy(worked, folder):
    """The same, in the folder of the test."""
    shutil.copytree(worked, folder, dirs_exist_ok=True)


@pytest.mark.parametrize(("reason", "expected"), [("exit", "5.0s"), ("superseded", "-")])
def test_duration_of_a_run_leaves_out_a_dropped_retry(capsys, reason, expected):
    unsaid = {each.name: None for each in fields(RunRow)}
    known = {
        "run_id": 7, "schedule_id": "a", "run_at": 0, "phase": Phase.FAILED, "reason": reason,
        "attempt": 2, "tick_count": 1, "triggered_by": "timer", "started_at": 0, "finished_at": 5000,
    }  # fmt: skip
    write_runs([RunRow(**unsaid | known)], Times(10_000))
    assert re.split(r"  +", capsys.readouterr().out.splitlines()[1].rstrip())[-1] == expected


def test_runs_show_status_and_note(copy):
    lines = [re.split(r"  +", line) for line in ok("runs").splitlines()]
    assert lines[0] == ["RUN", "SCHEDULE", "RUN AT", "STATUS", "ATTEMPT", "TOOK", "NOTE"]
    assert [line[1] for line in lines[1:]] == ["quick", "echo", "fails", "quick"]
    assert [line[3] for line in lines[1:]] == ["SUCCESS", "SUCCESS", "FAILED (exit)", "SUCCESS"]
    assert lines[3][-1] == "manual, exit code 3"
    (failed,) = as_json("runs", "fails")
    assert failed.keys() == RUN_KEYS
    told = {name: failed[name] for name in ("status", "reason", "exit_code", "error", "attempt")}
    assert told == {"status": "FAILED", "reason": "exit", "exit_code": 3, "error": "exit code 3", "attempt": 1}  # fmt: skip


def test_logs_print_the_output_of_a_run(copy):
    assert ok("logs", "quick") == "done\n"
    assert ok("logs", "2") == "why\n"
    assert json.loads(ok("logs", "echo")) == {"limit": 2, "kind": "all"}
    found = as_json("logs", "fails")
    assert found.keys() == RUN_KEYS | {"log"}
    assert (found["run_id"], found["log"]) == (2, "why\n")


def test_logs_print_the_stored_output_without_the_file(copy):
    shutil.rmtree("onbeat.db.output")
    assert ok("logs", "quick") == "done\n"


def test_logs_follow_of_an_ended_run_ends(copy):
    run = as_json("runs", "fails", "-n", "1")[0]["run_id"]
    assert ok("logs", "-f", run) == "why\n"
    assert as_json("logs", "-f", run)["log"] == "why\n"


def test_logs_of_a_run_without_output_print_its_status(two):
    as_json("run", "report")
    ok("delete", "report")
    done = onbeat("logs", "1")
    assert (done.exit_code, done.stdout) == (0, "")
    told = "CANCELED (canceled): no output is kept"
    assert done.stderr == f"run 1 of report: {told}\n"


def test_runs_of_a_deleted_schedule_are_listed_with_the_reason(two):
    as_json("run", "report")
    ok("delete", "report")
    assert "the schedule was deleted" in ok("runs", "report")
    assert (
        refused(1, "runs", "clean-all")
        == "no schedule is called 'clean-all' (did you mean 'clean'?)"
    )


def test_request_id_with_other_inputs_is_refused(two):
    given = ("run", "report", "--request-id", "order-7", "--input")
    first = as_json(*given, "limit=1")
    assert as_json(*given, "limit=1")["run_id"] == first["run_id"]
    told = "request_id: run 1 has this request id, but other inputs (another request id)"
    assert refused(4, *given, "limit=2") == told


def test_apply_reports_schedules_missing_in_the_file(two):
    write("schedules: {clean: {every: 2h, run: {command: [ls]}}}")
    done = onbeat("apply")
    assert done.exit_code == 0
    assert done.stderr == ("no longer in onbeat.yaml, but kept: report (--prune removes them)\n")
    assert names() == ["clean", "report"]


def test_apply_reports_a_function_that_cannot_be_imported(folder):
    write("schedules: {add: {every: 1h, run: {python: tasks.add}}}")
    done = onbeat("apply")
    assert (done.exit_code, done.stdout) == (0, "created add, revision 1\n")
    told = "add waits for a program that registers 'tasks.add' (module:function is imported)"
    assert done.stderr == f"{told}\n"


def test_closed_stdout_prints_no_error(two):
    verb = [sys.executable, "-m", "onbeat", "list"]
    with subprocess.Popen(verb, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait() == 1


def test_full_disk_is_reported_in_one_line(two):
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        verb = [sys.executable, "-m", "onbeat", "list", "--json"]
        done = subprocess.run(verb, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (69, b"onbeat: No space left on device\n")


def test_logs_without_a_run_are_refused(copy):
    assert refused(1, "logs", "99") == "there is no run 99"
    assert refused(1, "logs", "slow") == "slow has no run"


def test_list_and_show_print_the_outcome_of_the_last_run(copy):
    fails, quick, slow = (
        next(line for line in ok("list").splitlines() if line.startswith(name))
        for name in ("fails", "quick", "slow")
    )
    assert " failed x1 " in fails
    assert " ok " in quick
    assert " - " in slow
    assert "FAILED (exit)" in ok("show", "fails")
    assert as_json("show", "fails")["last_exit"] == 3


# -- status and the gate


def test_status_prints_database_nodes_schedules_and_runs(two):
    as_json("run", "report")
    text = ok("status")
    for line in ("database   sqlite:///onbeat.db", "nodes      none is up", "schedules  2", "runs       1 enqueued"):  # fmt: skip
        assert line in text.splitlines()
    found = as_json("status")
    assert found.keys() == STATUS_KEYS
    assert (found["nodes"], found["gate"], found["schedules"]) == ([], "open", 2)
    assert (found["runs"], found["nodes"]) == ({"ENQUEUED": 1}, [])


def test_status_names_accepted_runs_and_their_deadlines(two):
    async def accept():
        async with Onbeat(
            "sqlite:///onbeat.db", launchers={"command": RecordingLauncher(Accepted("x1"))}
        ) as beat:
            run = await beat.start("report")
            await beat.settle()
            return run.run_id

    run_id = asyncio.run(accept())
    (line,) = [each for each in ok("status").splitlines() if each.startswith("accepted")]
    assert line.startswith(
        f"accepted   run {run_id} of report: in flight until its outcome is reported, or 20"
    )
    (found,) = as_json("status")["awaited"]
    assert (found["run_id"], found["schedule_id"], found["external_id"]) == (run_id, "report", "x1")


def test_gate_is_switched_and_status_shows_when_closed(two):
    assert "gate" not in ok("status")
    assert ok("gate", "off") == "the gate is now CLOSED: nothing is decided and nothing starts\n"
    assert ok("gate", "off").startswith("the gate was already CLOSED")
    assert "gate       CLOSED" in ok("status")
    assert as_json("status")["gate"] == "closed"
    assert as_json("gate", "on") == {"gate": "open", "changed": True}
    assert as_json("gate", "on") == {"gate": "open", "changed": False}
    assert "gate" not in ok("status")


@pytest.mark.parametrize("call", [("list",), ("show", "report"), ("run", "report")], ids=str)
def test_verbs_mention_a_closed_gate(two, call):
    ok("gate", "off")
    done = onbeat(*call)
    assert "gate" in done.output.lower()


def test_down_without_a_node_prints_that(two):
    assert ok("down") == "no node is up on sqlite:///onbeat.db\n"
    assert as_json("down") == {"stopped": False, "nodes": []}


# -- reading changes nothing

READING = [
    ("list",),
    ("show", "quick"),
    ("runs",),
    ("runs", "fails"),
    ("logs", "quick"),
    ("logs", "-f", "2"),
    ("status",),
    ("down",),  # nothing is up
]


def rows(path="onbeat.db"):
    """Return everything that a database holds."""
    with closing(apsw.Connection(str(path))) as database:
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return {name: database.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}


def files():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize("call", READING, ids=" ".join)
def test_reading_verbs_change_nothing(copy, call):
    before, held = files(), rows()
    ok(*call)
    if "-f" not in call:
        as_json(*call)
    assert rows() == held
    assert files() == before


def test_reading_verbs_change_nothing_while_a_node_is_up(node):
    def held():
        return {name: value for name, value in rows().items() if name != "nodes"}

    before = held()
    for verb in ("list", "runs", "status"):
        ok(verb)
    assert held() == before


def test_reading_verb_leaves_an_empty_file_empty():
    Path("onbeat.db").touch()
    onbeat("list")
    assert Path("onbeat.db").read_bytes() == b""


# -- where the database is


NEEDS_A_DATABASE = [
    ("list",),
    ("show", "report"),
    ("runs",),
    ("logs", "report"),
    ("run", "report"),
    ("pause", "report"),
    ("resume", "report"),
    ("delete", "report"),
    ("status",),
    ("gate", "off"),
]


def test_database_has_the_documented_tables_and_mode_600(two):
    assert {"schedules", "schedule_runs", "due", "schedule_state", "events"} <= rows().keys()
    assert Path("onbeat.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("call", NEEDS_A_DATABASE, ids=" ".join)
def test_verb_without_a_database_prints_a_hint_and_creates_none(folder, call):
    said = refused(69, *call)
    hint = "onbeat up creates it; --database names another"
    assert said == f"onbeat.db does not exist ({hint})"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("call", NEEDS_A_DATABASE, ids=" ".join)
def test_verb_refuses_a_database_in_memory(call):
    assert "sqlite:// is a database in memory" in refused(69, *call, "--database", "sqlite://")


def test_database_of_the_environment_is_used(two, monkeypatch):
    monkeypatch.setenv("ONBEAT_DATABASE", "sqlite:///other.db")
    assert refused(69, "list").startswith("other.db does not exist")
    ok("apply", write("schedules: {other: {every: 1h, run: {command: ['true']}}}"))
    assert names() == ["other"]
    assert as_json("status")["database"] == "sqlite:///other.db"
    assert ok("list", "--database", "sqlite:///onbeat.db").count("every") == 1 + 1  # a flag wins


def test_database_of_the_settings_file_is_used(two):
    write('database = "sqlite:///onbeat.db"', "mine.toml")
    write('database = "sqlite:///other.db"', "onbeat.toml")
    assert refused(69, "list").startswith("other.db does not exist")
    assert json.loads(ok("list", "--json", "--config", "mine.toml"))


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (("--database", "onbeat.db"), {}, "--database: the URL has no scheme"),
        (("--database", "mysql://me:secret@host/db"), {}, "--database: 'mysql' is not a supported database"),
        (("--config", "none.toml"), {}, "none.toml: it cannot be read"),
        ((), {"ONBEAT_CONCURENCY": "3"}, "ONBEAT_CONCURENCY: unknown setting (did you mean 'ONBEAT_CONCURRENCY'?)"),
        ((), {"ONBEAT_LEASE": "soon"}, "ONBEAT_LEASE: 'soon' is not a duration"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["list", "status", "apply", "down", "up"])
def test_invalid_settings_exit_2(monkeypatch, verb, arguments, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = refused(2, verb, *arguments)
    assert line.startswith(said)
    assert "secret" not in line


# -- the call itself


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help(verb):
    done = onbeat(verb, "--help")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"Usage: main {verb} ")
    command = main.get_command(None, verb)
    within = command.commands if isinstance(command, click.Group) else {}
    for each in within:
        assert "--json" in onbeat(verb, each, "--help").stdout, each
    assert "--json" in done.stdout or within
    short = onbeat("--help").stdout
    assert verbs()[verb][1] in short


@pytest.mark.parametrize(
    "arguments",
    [("lst",), ("list", "--jsn"), ("show",), ("pause",), ("run",), ("gate", "ajar"),
     ("runs", "-n", "0"), ("runs", "-n", "many"), ("runs", "--status", "DONE"), ("list", "extra")],
    ids=" ".join,
)  # fmt: skip
def test_invalid_arguments_exit_2(two, arguments):
    done = onbeat(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ")


ODD = "ol\udce9"  # as the shell passes what is not in UTF-8


@pytest.mark.parametrize(
    "arguments",
    [("logs", "9" * 30), ("logs", "²"), ("runs", "--before", "9" * 30), ("show", ODD),
     ("pause", "report", "--note", ODD), ("run", "report", "--input", f"kind={ODD}"),
     ("run", "report", "--request-id", ODD), ("list", "--database", f"sqlite:///{'x' * 300}.db")],
    ids=["huge run", "squared run", "huge before", "name", "note", "input", "request", "long path"],
)  # fmt: skip
def test_unusual_arguments_are_refused_without_traceback(two, arguments):
    done = onbeat(*arguments)
    assert done.exit_code in {1, 2, 69}
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.stderr


# -- databases that cannot be used


def no_database(path):
    path.write_bytes(b"this is not a database, but it is long enough to look at" * 100)


def a_damaged_database(path):
    ok("apply", "onbeat.yaml")
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996  # the page of the schema
    path.write_bytes(content)


def a_newer_database(path):
    ok("apply", "onbeat.yaml")
    with closing(apsw.Connection(str(path))) as database:
        database.pragma("user_version", 999)


def a_foreign_database(path):
    with closing(apsw.Connection(str(path))) as database:
        database.execute("CREATE TABLE songs (name TEXT); INSERT INTO songs VALUES ('one')")


def a_folder(path):
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (no_database, "onbeat.db is not a database, or is damaged"),
        (a_damaged_database, "onbeat.db is damaged: "),
        (a_newer_database, "onbeat.db was written by a newer Onbeat (schema 999, this version supports "),
        (a_foreign_database, "onbeat.db is a database of another application (use a separate file for Onbeat)"),
        (a_folder, "onbeat.db is a folder (name a file in it)"),
    ],
    ids=lambda made: getattr(made, "__name__", ""),
)  # fmt: skip
@pytest.mark.parametrize("verb", ["list", "apply", "status", "up"])
def test_unusable_database_is_refused_in_one_line(folder, make, problem, verb):
    write(TWO)
    make(folder / "onbeat.db")
    if verb == "up":
        done = command(folder, "up")
        assert (done.returncode, done.stdout) == (69, "")
        (line,) = done.stderr.splitlines()
    else:
        line = f"onbeat: {refused(69, verb)}"
    assert line.startswith(f"onbeat: {problem}")


def test_foreign_database_is_left_unchanged(folder):
    a_foreign_database(folder / "onbeat.db")
    before = (folder / "onbeat.db").read_bytes()
    refused(69, "list")
    assert (folder / "onbeat.db").read_bytes() == before


@contextmanager
def a_folder_of_another():
    """A folder that is not writable, for a user other than root."""
    folder, user = Path(tempfile.mkdtemp()), os.geteuid()
    (folder / "onbeat.yaml").write_text(TWO)
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder, ignore_errors=True)


def test_unwritable_folder_is_refused_in_one_line(two, monkeypatch):
    with a_folder_of_another() as other:  # what is to be imported was, by `two`
        monkeypatch.chdir(other)
        said = refused(69, "apply")
        monkeypatch.undo()
    assert said == "onbeat.db cannot be created: Permission denied"


@pytest.mark.parametrize("verb", ["up",
    "up -d",
])  # fmt: skip
def test_missing_folder_is_refused_in_one_line(folder, verb):
    done = command(folder, *verb.split(), "--database", "sqlite:///no/onbeat.db")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == "onbeat: no does not exist (make the folder first)\n"


def test_unusable_lock_file_is_refused_in_one_line(folder):
    (folder / "onbeat.db.lock").mkdir()
    done = command(folder, "up")
    assert done.returncode == 69
    assert len(done.stderr.splitlines()) == 1


# -- a node


def plain_environment():
    found = {name: value for name, value in os.environ.items() if not name.startswith("ONBEAT_")}
    return found | {"ONBEAT_ROLES": "plan,run"}


def command(folder, *arguments, **given):
    """Call the command as another process."""
    return subprocess.run(
        [sys.executable, "-m", "onbeat", *arguments], cwd=folder, env=plain_environment(),
        capture_output=True, text=True, timeout=SOON, check=False, **given,
    )  # fmt: skip


@contextmanager
def a_node(folder, *arguments):
    """Have `onbeat up` run in a folder; end it in good order."""
    with (folder / "stderr").open("wb") as stderr, subprocess.Popen(
        [sys.executable, "-m", "onbeat", "up", *arguments], cwd=folder, env=plain_environment(),
        stdout=subprocess.PIPE, stderr=stderr, text=True,
    ) as node:  # fmt: skip
        try:
            assert " is up on " in node.stdout.readline(), (folder / "stderr").read_text()
            yield node
            node.terminate()
            node.wait(SOON)
        finally:
            node.kill()
    (folder / "stderr").unlink()


def until(question, limit=SOON):
    """Wait for something that the node does; return how long that took."""
    began = time.monotonic()
    while not question():
        assert time.monotonic() - began < limit, "it did not happen"
        time.sleep(0.02)
    return time.monotonic() - began


def statuses(name):
    return [run["status"] for run in as_json("runs", name)]


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A node that is up, on schedules that do nothing by themselves, and its folder."""
    folder = tmp_path_factory.mktemp("up")
    (folder / "onbeat.yaml").write_text(WORK)
    with a_node(folder) as node:
        yield node, folder


@pytest.fixture
def node(up, monkeypatch):
    """The same, with the test in its folder. Others use it too: what a test needs, it starts."""
    monkeypatch.chdir(up[1])
    return up[0]


def status_of(run):
    return next(each["status"] for each in as_json("runs") if each["run_id"] == run["run_id"])


def test_up_applies_the_default_file_and_status_shows_the_node(folder):
    write(WORK)
    with a_node(folder, "--log-format", "json") as node:
        assert names() == ["echo", "fails", "quick", "slow"]
        found = as_json("status")
        assert [each["name"] for each in found["nodes"]] == [named(node.pid)]
        assert [each["alive"] for each in found["nodes"]] == [True]
        assert f"1 up: {named(node.pid)}" in ok("status")
        logged = [json.loads(line) for line in Path("stderr").read_text().splitlines()]
        assert [line["event"] for line in logged] == [*["schedule.created"] * 4, "node.started"]


def test_up_starts_runs_when_they_are_due(folder):
    write("schedules: {tick: {every: 1s, run: {command: ['true']}}}")
    with a_node(folder):
        until(lambda: "SUCCESS" in statuses("tick"))
    found = as_json("runs")
    for run in found:
        assert run["started_at"] >= run["due_at"]  # RFC 3339 in UTC sorts as time does
        assert run["run_at"][:-1] == run["due_at"][:-5]


def test_up_refuses_an_invalid_file(folder):
    write(BROKEN)
    done = command(folder, "up")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no-length.every" in done.stderr


def test_up_applies_another_file_and_imports_functions_beside_it(folder):
    write(TWO)
    write("def build(limit):\n    return limit * 2\n", "reports.py")
    target = "{python: 'reports:build', inputs: {limit: 3}}"
    write(f"schedules: {{build: {{every: 1h, run: {target}}}}}", "other.yaml")
    with a_node(folder, "-f", "other.yaml"):
        assert names() == ["build"]
        assert as_json("run", "build", "--wait")["result"] == 6


def test_run_wait_ends_with_the_outcome_of_the_run(node):
    assert re.fullmatch(r"run \d+ of quick: SUCCESS\n", ok("run", "quick", "--wait"))
    found = as_json("run", "echo", "--wait", "--input", "limit=2")
    assert (found["status"], found["exit_code"]) == ("SUCCESS", 0)
    assert json.loads(ok("logs", "echo")) == {"limit": 2, "kind": "all"}
    failed = onbeat("run", "fails", "--wait")
    assert failed.exit_code == 1
    assert re.fullmatch(r"run \d+ of fails: FAILED \(exit\): exit code 3\n", failed.stdout)


def test_logs_follow_prints_all_output_of_a_run(node):
    run = as_json("run", "slow")
    assert ok("logs", "-f", run["run_id"]) == "slept\n"
    assert status_of(run) == "SUCCESS"


def test_logs_follow_prints_the_output_of_every_attempt(folder):
    script = "if [ $ONBEAT_ATTEMPT = 1 ]; then echo first; exit 1; fi; echo and here is the second"
    write(f"schedules: {{r: {{every: 1h, retry: [1s], run: {{command: [sh, -c, '{script}']}}}}}}")
    with a_node(folder):
        run = as_json("run", "r")["run_id"]
        assert ok("logs", "-f", run).endswith("\nand here is the second\n")


def test_logs_follow_of_a_schedule_continues_with_the_next_run(folder):
    write("schedules: {r: {every: 1h, run: {command: [sh, -c, 'echo run $ONBEAT_RUN_ID']}}}")
    with a_node(folder):
        verb = [sys.executable, "-m", "onbeat", "logs", "-f", "r"]
        with subprocess.Popen(verb, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
            assert follower.stderr.readline() == b"r has not run yet: waiting\n"
            for expected in (b"run 1\n", b"run 2\n"):
                as_json("run", "r")
                assert follower.stdout.readline() == expected
            follower.terminate()


def test_hangup_stops_a_node_cleanly(folder):
    write(WORK)
    with a_node(folder) as node:
        node.send_signal(signal.SIGHUP)
        assert node.wait(SOON) == 0
    assert as_json("status")["nodes"] == []


def test_node_whose_database_file_was_removed_exits_with_the_reason(folder):
    write(WORK)
    with a_node(folder, "--lease", "1s") as node:
        ok("run", "quick", "--wait")
        Path("onbeat.db").unlink()
        assert node.wait(SOON) == 69
        told = (folder / "stderr").read_text()
    assert "onbeat.db was deleted or replaced: everything written to it is lost" in told


def test_output_folder_that_cannot_be_created_is_refused(two):
    Path("file").write_text("")
    done = command(".", "up", "--output", "file/below")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("onbeat: output: file/below cannot be made: Not a directory")


def test_second_up_is_refused_with_the_holder(node):
    for how in ((), ("-d",), ("--json",)):
        done = command(".", "up", *how)
        assert (done.returncode, done.stdout) == (69, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("onbeat: onbeat.db is in use by ")
        assert f"process {node.pid} (stop it: onbeat down)" in line
    assert node.poll() is None


def test_down_waits_for_running_commands(folder):
    write(WORK)
    with a_node(folder) as node:
        ok("run", "slow")
        until(lambda: statuses("slow") == ["STARTED"])
        assert ok("down") == f"stopped {named(node.pid)}\n"
        assert node.wait(SOON) == 0
    assert statuses("slow") == ["SUCCESS"]
    assert ok("logs", "slow") == "slept\n"
    assert as_json("status")["nodes"] == []
    assert ok("down") == "no node is up on sqlite:///onbeat.db\n"


def test_down_cancels_a_run_after_the_stop_grace(folder):
    write("schedules: {endless: {every: 1h, run: {command: [sleep, '60']}}}")
    with a_node(folder, "--stop-grace", "0s") as node:
        ok("run", "endless")
        until(lambda: statuses("endless") == ["STARTED"])
        assert as_json("down") == {"stopped": True, "nodes": [named(node.pid)]}
        assert statuses("endless") == ["CANCELED"]


def test_second_signal_cancels_running_commands_immediately(folder):
    write("schedules: {endless: {every: 1h, run: {command: [sleep, '4']}}}")
    with a_node(folder) as node:
        ok("run", "endless")
        until(lambda: statuses("endless") == ["STARTED"])
        node.send_signal(signal.SIGINT)
        until(lambda: "stopping: " in (folder / "stderr").read_text())
        node.send_signal(signal.SIGINT)
        try:
            node.wait(0.6)
        finally:
            node.kill()


def test_down_returns_after_the_node_process_has_exited(folder):
    write("import time\ndef hang():\n    time.sleep(4)\n", "work.py")
    write("schedules: {hang: {every: 1h, run: {python: 'work:hang'}}}")
    with a_node(folder, "--stop-grace", "0s") as node:
        ok("run", "hang")
        until(lambda: statuses("hang") == ["STARTED"])
        ok("down")
        try:
            node.wait(0.6)
        finally:
            node.kill()


def test_node_notices_changes_of_other_processes_within_a_second(node):
    run = as_json("run", "quick")
    assert until(lambda: status_of(run) == "SUCCESS") < 1
    every_second = "{every: 1s, run: {command: ['true']}}"
    ok("apply", write(f"schedules: {{tick: {every_second}, tock: {every_second}}}", "more.yaml"))
    assert until(lambda: "SUCCESS" in statuses("tick")) < 2.5  # the tick is up to a second off
    ok("pause", "tick")
    until(lambda: set(statuses("tick")) == {"SUCCESS"})
    before, others = len(statuses("tick")), len(statuses("tock"))
    until(lambda: len(statuses("tock")) >= others + 2)
    assert len(statuses("tick")) == before
    ok("delete", "tick")
    ok("delete", "tock")


def test_node_starts_a_run_requested_right_after_up(folder):
    write(WORK)
    with a_node(folder):
        ok("run", "quick")
        assert until(lambda: statuses("quick") == ["SUCCESS"], limit=1.5) < 1


def test_closed_gate_starts_nothing_until_opened(node):
    ok("gate", "off")
    run = as_json("run", "quick")
    for _ in range(8):  # the node looks for changes every 0.2 s
        time.sleep(0.05)
        assert status_of(run) == "ENQUEUED"
    ok("gate", "on")
    assert until(lambda: status_of(run) == "SUCCESS") < 1


@pytest.fixture
def in_the_background(folder):
    """Call `up -d`, with more arguments; whatever is up afterwards is ended."""
    write(WORK)
    yield lambda *arguments: command(folder, "up", "-d", *arguments)
    done = onbeat("down")
    assert done.exit_code == 0, done.output


def named(pid):
    """Return what a node on this machine is called."""
    return f"{socket.gethostname()}:{pid}"


def test_up_in_the_background_returns_when_the_node_is_up(in_the_background):
    done = in_the_background()
    assert (done.returncode, done.stderr) == (0, "")
    (up,) = as_json("status")["nodes"]
    pid = up["name"].rpartition(":")[2]
    assert done.stdout == f"onbeat is up in the background: process {pid}, log onbeat.db.log\n"
    assert "is up on sqlite:///onbeat.db: 4 schedules" in Path("onbeat.db.log").read_text()
    assert re.fullmatch(r"run \d+ of quick: SUCCESS\n", ok("run", "quick", "--wait"))
    assert ok("down") == f"stopped {up['name']}\n"
    assert as_json("status")["nodes"] == []


def test_up_in_the_background_prints_json(in_the_background):
    done = in_the_background("--json")
    told = json.loads(done.stdout)
    assert told.keys() == {"database", "pid", "log"}
    assert [each["name"] for each in as_json("status")["nodes"]] == [named(told["pid"])]


def test_up_in_the_background_prints_why_it_failed(folder):
    write(BROKEN)
    done = command(folder, "up", "-d")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no-length.every" in done.stderr
    assert refused(69, "up", "-d", "--database", "sqlite://").startswith(
        "sqlite:// is a database in memory"
    )


@pytest.mark.parametrize("flags", [("-d",), ("--detach",), ("-d", "-f", "x.yaml"), ("-f", "x.yaml", "-d"),
    ("-df", "x.yaml"),
    ("-dfx.yaml",),
], ids=" ".join)  # fmt: skip
def test_background_node_starts_no_further_background_node(monkeypatch, flags):
    started = []

    class Ended:
        pid, returncode = 1, 3

        def __init__(self, arguments, **_):
            started.append(arguments)

        def poll(self):
            return self.returncode

    write(TWO, "x.yaml")
    monkeypatch.setattr("onbeat.cli.up.subprocess.Popen", Ended)
    monkeypatch.setattr(sys, "argv", ["onbeat", "up", *flags])
    assert onbeat("up", *flags).exit_code == 3
    ((python, _, module, *arguments),) = started
    assert (python, module) == (sys.executable, "onbeat")
    assert not any(each.startswith(("-d", "--detach")) for each in arguments)


# -- after a node was killed


def test_node_after_a_killed_one_continues_and_repeats_nothing(folder):
    write(WORK)
    with a_node(folder) as node:
        ok("run", "quick", "--wait")
        ok("run", "slow")
        until(lambda: statuses("slow") == ["STARTED"])
        node.kill()
        node.wait(SOON)
    assert as_json("status")["nodes"] == []
    with a_node(folder):
        assert names() == ["echo", "fails", "quick", "slow"]
        assert statuses("quick") == ["SUCCESS"]
        (lost,) = as_json("runs", "slow")
        assert (lost["status"], lost["reason"]) == ("FAILED", "lost")


def test_misspelt_verb_gets_a_suggestion():
    done = onbeat("stat")
    assert done.exit_code == 2
    assert "No such command 'stat': did you mean 'status'?" in done.output
