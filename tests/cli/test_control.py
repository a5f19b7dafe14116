"""The verbs that control runs: cancel, report, groups, group, and pause with an end."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onbeat import Onbeat
from onbeat.core.runs.run import Accepted
from onbeat.core.schedule import read_schedule
from onbeat.testing import RecordingLauncher
from tests.cli.test_verbs import (
    RUN_KEYS,
    a_node,
    as_json,
    folder,  # noqa: F401 - what every test here is in
    ok,
    onbeat,
    refused,
    rows,
    until,
    write,
)

TWO = """
schedules:
  report: {every: 1h, run: {command: [echo, "a report"]}}
  clean: {cron: "0 3 * * *", run: {command: ["true"]}}
"""
SLEEP = "schedules: {sleep: {cron: '0 0 1 1 *', run: {command: [sleep, '60']}}}"
SEND = {"cron": "0 0 1 1 *", "run": {"http": "https://example.org/send"}}


@pytest.fixture
def two():
    """Two schedules: clean and report."""
    ok("apply", write(TWO))


@pytest.fixture
def waiting(two):
    """Three runs that wait for a node: 1 and 2 of report, 3 of clean."""
    for name in ("report", "report", "clean"):
        as_json("run", name)


def statuses():
    """Return how each run stands, the first first."""
    return [run["status"] for run in as_json("runs")][::-1]


def both(code, *arguments):
    """Call a verb that works in part; return what it wrote to stdout and to stderr, as lines."""
    done = onbeat(*arguments)
    assert done.exit_code == code, done.output
    return done.stdout.splitlines(), done.stderr.splitlines()


# -- cancel


def test_waiting_run_is_canceled_by_its_number(waiting):
    assert ok("cancel", "1", "--note", "not needed") == "run 1 of report: canceled\n"
    (run,) = [run for run in as_json("runs") if run["run_id"] == 1]
    assert (run["status"], run["reason"], run["error"]) == ("CANCELED", "canceled", "not needed")
    assert statuses() == ["CANCELED", "ENQUEUED", "ENQUEUED"]
    assert "not needed" in ok("runs")


def test_cancel_prints_each_run_as_json(waiting):
    found = as_json("cancel", "3", "1")
    assert [run["run_id"] for run in found] == [3, 1]
    assert all(run.keys() == RUN_KEYS for run in found)
    assert {run["status"] for run in found} == {"CANCELED"}
    assert {run["error"] for run in found} == {"canceled manually"}


def test_cancel_with_a_schedule_cancels_all_its_runs(waiting):
    lines = ok("cancel", "report").splitlines()
    assert sorted(lines) == ["run 1 of report: canceled", "run 2 of report: canceled"]
    assert statuses() == ["CANCELED", "CANCELED", "ENQUEUED"]


def test_run_named_twice_is_canceled_once(waiting):
    assert ok("cancel", "1", "report", "1").count(": canceled") == 2
    assert statuses() == ["CANCELED", "CANCELED", "ENQUEUED"]


def test_cancel_of_a_schedule_without_runs_prints_that(two):
    assert ok("cancel", "report") == "no unfinished runs\n"
    assert as_json("cancel", "report") == []


def test_cancel_reports_an_ended_run_and_cancels_the_others(waiting):
    ok("cancel", "1")
    said, wrong = both(1, "cancel", "1", "2")
    assert said == ["run 2 of report: canceled"]
    assert wrong == ["onbeat: run 1 is CANCELED: nothing was changed"]
    assert statuses() == ["CANCELED", "CANCELED", "ENQUEUED"]


def test_cancel_with_json_reports_an_ended_run_on_stderr(waiting):
    ok("cancel", "1")
    (said,), wrong = both(1, "cancel", "1", "2", "--json")
    assert [run["run_id"] for run in json.loads(said)] == [2]
    assert wrong == ["onbeat: run 1 is CANCELED: nothing was changed"]


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("99", "there is no run 99"),
        ("0", "there is no run 0"),
        ("rport", "no schedule is called 'rport' (did you mean 'report'?)"),
        ("12345678901234567890", "no schedule is called '12345678901234567890'"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["words", "json"])
def test_unknown_run_or_schedule_is_refused_and_nothing_canceled(waiting, which, told, flags):
    before = rows()
    assert refused(1, "cancel", "1", which, *flags) == told
    assert rows() == before


def test_running_command_is_canceled(folder):  # noqa: F811 - the fixture
    def detached():
        run = as_json("run", "sleep")["run_id"]
        until(lambda: status() == "STARTED")
        return run

    def status():
        return as_json("runs", "-n", "1")[0]["status"]

    write(SLEEP)
    with a_node(folder):
        run = detached()
        assert ok("cancel", run) == f"run {run} of sleep: cancellation requested\n"
        assert until(lambda: status() == "CANCELED") < 2
        run = detached()
        (told,) = as_json("cancel", "sleep")
        assert (told["run_id"], told["status"], told["reason"]) == (run, "STARTED", "canceled")
        assert told["end_asked_at"] is not None
        assert until(lambda: status() == "CANCELED") < 2
        assert refused(1, "cancel", run) == f"run {run} is CANCELED: nothing was changed"


# -- report


@pytest.fixture
def accepted():
    """Return how to have a run that its target accepted: its number and its key."""

    def accept(**policy):
        async def main():
            launchers = {"http": RecordingLauncher(Accepted("order-7"))}
            async with Onbeat("sqlite:///onbeat.db", launchers=launchers) as beat:
                await beat.define(read_schedule("send", SEND | policy))
                run = await beat.start("send")
                await beat.settle()
                return run.run_id, run.key

        return asyncio.run(main())

    return accept


def test_success_is_reported_by_run_number(accepted):
    run, _ = accepted()
    assert ok("report", run, "success", "--result", '{"rows": 3}') == f"run {run} of send: SUCCESS\n"  # fmt: skip
    (found,) = as_json("runs")
    assert (found["status"], found["result"], found["external_id"]) == (
        "SUCCESS", {"rows": 3}, "order-7",
    )  # fmt: skip


@pytest.mark.parametrize("result", ["[1]", "7", '"text"', "null", None])
def test_success_is_reported_by_key_with_any_json_result(accepted, result):
    run, key = accepted()
    given = () if result is None else ("--result", result)
    found = as_json("report", key, "success", *given)
    assert found.keys() == RUN_KEYS
    assert (found["run_id"], found["status"], found["idempotency_key"]) == (run, "SUCCESS", key)
    assert found["result"] == (None if result is None else json.loads(result))


def test_failure_is_reported_with_its_error(accepted):
    run, _ = accepted()
    assert ok("report", run, "failure", "--error", "no paper") == f"run {run} of send: FAILED (error)\n"  # fmt: skip
    assert as_json("runs")[0]["error"] == "no paper"


def test_failure_without_an_error_gets_a_default_error(accepted):
    run, _ = accepted()
    found = as_json("report", run, "failure")
    assert (found["status"], found["error"]) == ("FAILED", "reported as failed")


def test_reported_failure_is_retried_unless_final(accepted):
    run, _ = accepted(retry=["10m"])
    assert ok("report", run, "failure") == f"run {run} of send: ENQUEUED (error)\n"
    other, _ = accepted(retry=["10m"])
    assert ok("report", other, "failure", "--final") == f"run {other} of send: FAILED (error)\n"


def test_repeated_report_is_accepted_and_a_contradiction_refused(accepted):
    run, key = accepted()
    first = as_json("report", run, "success")
    assert as_json("report", key, "success") == first
    for which in (run, key):
        assert refused(1, "report", which, "failure") == f"run {run} is SUCCESS: nothing was changed"  # fmt: skip
    assert as_json("runs") == [first]


def test_report_about_an_enqueued_run_is_refused(waiting):
    assert refused(1, "report", "1", "success") == "run 1 is ENQUEUED: nothing was changed"


def test_report_about_an_unknown_run_is_refused(two):
    assert refused(1, "report", "99", "success") == "there is no run 99"
    assert "no-such-key" in refused(1, "report", "no-such-key", "failure", "--json")


def test_report_with_an_invalid_json_result_is_refused(accepted):
    run, _ = accepted()
    before = rows()
    for text in ("{", "rows=3", ""):
        said = refused(2, "report", run, "success", "--result", text)
        assert re.fullmatch(r"--result: this is not JSON: .+ \(\[1\]\)", said)
    assert rows() == before


# -- groups and group


def test_groups_lists_places_used_and_waiting(two):
    write("schedules: {send: {every: 1h, group: mail, run: {command: ['true']}}}", "more.yaml")
    ok("apply", "more.yaml")
    ok("group", "deploy", "3")
    as_json("run", "send")
    assert [line.split() for line in ok("groups").splitlines()] == [
        ["GROUP", "PLACES", "USED", "WAITING"], ["deploy", "3", "0", "0"], ["mail", "1", "0", "1"],
    ]  # fmt: skip
    assert as_json("groups") == [
        {"name": "deploy", "places": 3, "used": 0, "waiting": 0},
        {"name": "mail", "places": 1, "used": 0, "waiting": 1},
    ]


def test_groups_without_a_group_prints_that(two):
    assert ok("groups") == "no groups (a schedule with `group: NAME` creates one)\n"
    assert as_json("groups") == []


def test_group_sets_the_number_of_places(two):
    assert ok("group", "mail", "2") == "mail has 2 places\n"
    assert ok("group", "mail", "1") == "mail has 1 place\n"
    assert as_json("group", "mail", "5") == {"group": "mail", "places": 5, "changed": True}
    assert as_json("group", "mail", "5") == {"group": "mail", "places": 5, "changed": False}
    assert as_json("groups") == [{"name": "mail", "places": 5, "used": 0, "waiting": 0}]


def test_group_may_be_set_before_any_schedule_uses_it():
    ok("group", "mail", "2")
    ok("apply", write("schedules: {send: {every: 1h, group: mail, run: {command: ['true']}}}"))
    assert as_json("groups")[0]["places"] == 2


@pytest.mark.parametrize(
    ("name", "places", "told"),
    [
        ("mail", "0", "places: 0 is out of bounds (1 to 10000)"),
        ("mail", "10001", "places: 10001 is out of bounds (1 to 10000)"),
        ("the mail", "1", "group: 'the mail' is not a valid group name (letters, digits and . _ / -, at most 100)"),
        ("", "1", "group: '' is not a valid group name (letters, digits and . _ / -, at most 100)"),
    ],
)  # fmt: skip
def test_invalid_group_name_and_number_of_places_are_refused(two, name, places, told):
    assert refused(4, "group", name, places) == told
    assert as_json("groups") == []


# -- pause, until a time


@pytest.mark.parametrize("length", ["2h", "90m", "1d", "PT2H"])
def test_pause_until_accepts_a_duration(two, length):
    hours = {"2h": 2, "90m": 1.5, "1d": 24, "PT2H": 2}[length]
    before = datetime.now(UTC)
    assert ok("pause", "report", "--until", length, "--note", "holidays") == "paused report\n"
    found = as_json("show", "report")
    assert (found["paused"], found["pause_note"]) == (True, "holidays")
    left = datetime.fromisoformat(found["paused_until"]) - before
    assert timedelta(hours=hours) - timedelta(seconds=1) <= left
    assert left < timedelta(hours=hours, minutes=1)


@pytest.mark.parametrize("instant", ["2035-12-01T09:00:00Z", "2035-12-01T10:00:00+01:00"])
def test_pause_until_accepts_an_instant_and_can_be_changed(two, instant):
    told = [{"schedule_id": name, "changed": True} for name in ("report", "clean")]
    assert as_json("pause", "report", "clean", "--until", instant) == told
    assert {row["paused_until"] for row in as_json("list")} == {"2035-12-01T09:00:00.000Z"}
    assert ok("pause", "report", "--until", instant) == "report was already paused\n"
    assert ok("pause", "report", "--until", "2036-01-01T00:00:00Z") == "paused report\n"
    assert ok("pause", "report") == "paused report\n"
    assert as_json("show", "report")["paused_until"] is None
    ok("resume", "report", "clean")
    assert {row["paused_until"] for row in as_json("list")} == {None}


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["words", "json"])
@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("soon", "'soon' is not a date and time"),
        ("", "'' is not a date and time"),
        ("1mo", "'1mo' is not a date and time"),
        ("2035-12-01T09:00", "'2035-12-01T09:00' has no UTC offset"),
        ("9999-12-31T23:59:59Z", "'9999-12-31T23:59:59Z' is outside the calendar"),
    ],
)
def test_invalid_until_is_refused_and_nothing_paused(two, when, told, flags):
    hint = "2h, or an instant such as 2026-12-01T09:00:00Z"
    said = refused(2, "pause", "report", "--until", when, *flags)
    assert said == f"--until: {told} ({hint})"
    assert not any(row["paused"] for row in as_json("list"))


@pytest.mark.parametrize("when", ["2020-01-01T00:00:00Z", "0s"])
def test_pause_until_a_past_instant_is_refused(two, when):
    done = onbeat("pause", "report", "--until", when)
    assert done.exit_code in {2, 4}
    assert re.fullmatch(r"onbeat: \S*until: \S+Z is in the past \(later than \S+Z\)\n", done.stderr)
    assert not any(row["paused"] for row in as_json("list"))


def test_pause_with_an_unknown_schedule_pauses_nothing(two):
    said = refused(1, "pause", "report", "rport", "--until", "2h")
    assert said == "no schedule is called 'rport' (did you mean 'report'?)"
    assert not any(row["paused"] for row in as_json("list"))


def test_pause_ends_at_its_time_while_a_node_is_up(folder):  # noqa: F811 - the fixture
    write(TWO)
    with a_node(folder):
        ok("pause", "report", "--until", "1s")
        assert as_json("show", "report")["paused"]
        until(lambda: not as_json("show", "report")["paused"], limit=3)
        assert as_json("show", "report")["next_run_at"] is not None


# -- calls that make no sense, and databases that are not there


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel",),
        ("report",),
        ("report", "1"),
        ("report", "1", "done"),
        ("group", "mail"),
        ("group", "limit", "mail"),
        ("group", "mail", "two"),
        ("group", "mail", "-1"),
        ("group", "list", "mail"),
        ("groups", "mail"),
        ("pause", "--until", "2h"),
        ("cancel", "1", "--until", "2h"),
    ],
    ids=" ".join,
)
def test_invalid_arguments_print_the_usage(two, arguments):
    done = onbeat(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cancel", "1"),
        ("report", "1", "success"),
        ("groups",),
        ("pause", "report", "--until", "2h"),
    ],
    ids=" ".join,
)
def test_verbs_without_a_database_are_refused(arguments):
    said = refused(69, *arguments)
    assert said == "onbeat.db does not exist (onbeat up creates it; --database names another)"
    assert not Path("onbeat.db").exists()
