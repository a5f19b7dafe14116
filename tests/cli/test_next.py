"""`onbeat next`, as text and as JSON."""

import json
import re
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from onbeat import __version__
from onbeat.cli.command import main

AFTER = ("--after", "2026-01-01T00:00:00Z")


def onbeat(*arguments):
    return CliRunner().invoke(main, ["next", *arguments])


def test_next_prints_ticks_description_and_notes_as_json():
    done = onbeat("--cron", "*/5 * * * *", *AFTER, "-n", "2", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "next": ["2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"],
        "words": "every 5 minutes, UTC",
        "notes": [],
    }


def test_next_prints_description_local_times_and_clock_changes():
    done = onbeat(
        "--cron",
        "30 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--after",
        "2026-03-28T12:00:00Z",
        "-n",
        "2",
    )
    assert done.stdout.splitlines() == [
        "at 02:30 every day, Europe/Berlin",
        "",
        "  Sun 2026-03-29 03:00:00 +02:00   2026-03-29T01:00:00Z",
        "  Mon 2026-03-30 02:30:00 +02:00   2026-03-30T00:30:00Z",
        "",
        "note: 2026-03-29: 02:30 does not exist in Europe/Berlin (clocks go from 02:00 to 03:00): runs at 03:00:00+02:00 instead",
        "note: 2026-10-25: 02:30 happens twice in Europe/Berlin (clocks go from 03:00 to 02:00): runs the first time only",
        "note: 2027-03-28: 02:30 does not exist in Europe/Berlin (clocks go from 02:00 to 03:00): runs at 03:00:00+02:00 instead",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("--every", "90m"), "2026-01-01T01:30:00Z"),
        (
            ("--at", "2026-12-01T09:00", "--at", "2026-11-01T09:00", "--tz", "Asia/Tokyo"),
            "2026-11-01T00:00:00Z",
        ),
        (("--daily", "17:00", "--tz", "America/New_York"), "2026-01-01T22:00:00Z"),
    ],
)
def test_next_accepts_every_kind_of_trigger(arguments, first):
    assert json.loads(onbeat(*arguments, *AFTER, "--json").stdout)["next"][0] == first


def test_next_prints_that_a_trigger_has_ended():
    done = onbeat("--at", "2020-01-01T00:00Z", *AFTER)
    assert done.exit_code == 0
    assert "no more ticks" in done.stdout
    assert json.loads(onbeat("--at", "2020-01-01T00:00Z", *AFTER, "--json").stdout)["next"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cron", "60 * * * *"), "onbeat: cron.minute: '60' is not a minute (0 to 59)"),
        (("--cron", ""), 'onbeat: cron: it is empty (such as "0 9 * * MON-FRI")'),
        (("--cron", "0 9 * * *", "--tz", "Berlin"), "onbeat: timezone: no zone is called 'Berlin' (did you mean Europe/Berlin?)"),
        (("--every", "90"), "onbeat: every: '90' is not a duration (such as 45s, 90m, 1h30m, 1d or PT90M, the largest unit first)"),
        (("--daily", "25:00"), "onbeat: daily: '25:00' is not a time of day (00:00 to 23:59)"),
        (("--cron", "0 9 * * *", "--after", "yesterday"), "onbeat: after: 'yesterday' is not a date and time (such as 2026-12-01T09:00:00Z)"),
        (("--cron", "0 9 * * *", "--after", "2026-01-01T00:00"), "onbeat: after: '2026-01-01T00:00' has no UTC offset (2026-01-01T00:00Z, or +01:00 and the like)"),
        (("--cron", "H * * * *"), "onbeat: cron.minute: 'H' requires a schedule id to hash (in Python pass key=)"),
    ],
)  # fmt: skip
def test_invalid_trigger_exits_4_with_a_hint_on_stderr(arguments, said):
    done = onbeat(*arguments)
    assert done.exit_code == 4
    assert done.stderr.strip() == said
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--cron", "* * * * *", "--every", "5m"),
        ("name",),
        ("--cron", "* * * * *", "-n", "0"),
        ("--bogus",),
    ],
)
def test_invalid_arguments_exit_2(arguments):
    assert onbeat(*arguments).exit_code == 2


def test_next_previews_a_schedule_of_a_file(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text("""
timezone: Europe/Berlin
schedules:
  backup:
    any: [{calendar: {hour: 3, minute: 0}}, {after: {success: 24h}}]
    run: {command: [./backup.sh]}
  office: {daily: "20:30", within: {hours: "09:00-17:00", outside: move}}
  bad: {cron: "61 * * * *"}
""")
    done = json.loads(onbeat("-f", str(file), "backup", *AFTER, "-n", "1", "--json").stdout)
    assert done["next"] == ["2026-01-01T02:00:00Z"]
    assert done["words"] == "at 03:00 every day, Europe/Berlin; or 24h after its last run succeeded"
    assert done["notes"][-1].startswith("ticks that depend on future runs")
    office = json.loads(onbeat("-f", str(file), "office", *AFTER, "-n", "1", "--json").stdout)
    assert office["next"] == ["2026-01-01T19:30:00Z"]
    assert office["due_at"] == {"2026-01-01T19:30:00Z": "2026-01-02T08:00:00Z"}
    assert (
        "Fri 2026-01-02 09:00:00 +01:00   2026-01-02T08:00:00Z   for Thu 2026-01-01 20:30:00 +01:00"
        in (onbeat("-f", str(file), "office", *AFTER, "-n", "1").stdout)
    )
    refused = onbeat("-f", str(file), "bad")
    assert refused.exit_code == 4
    assert f"{file}:8: schedules.bad.cron.minute: '61' is not a minute" in refused.stderr
    assert onbeat("-f", str(file), "backups").exit_code == 4


def test_help_lists_next_within_150_ms():
    times = []
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "onbeat", "--help"], capture_output=True, text=True, check=True
        )
        times.append(time.perf_counter() - began)
    assert re.search(r"next\s+Preview the next ticks", done.stdout)
    assert min(times) < 0.15


def test_invalid_bytes_on_the_command_line_are_refused_without_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "onbeat", "next", "--cron", b"\xff * * * *"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 4
    assert b"Traceback" not in done.stderr


def test_next_of_a_file_prints_a_line_for_each_schedule(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text(
        "schedules: {often: {every: 90m}, over: {at: 2020-01-01T00:00}, tokyo: {daily: 17:00, timezone: Asia/Tokyo}}"
    )
    assert onbeat("-f", str(file), *AFTER).stdout.splitlines() == [
        "often  Thu 2026-01-01 01:30:00 +00:00  every 90 minutes",
        "over   no more ticks                   once at 2020-01-01 00:00, UTC",
        "tokyo  Thu 2026-01-01 08:00:00 +00:00  at 17:00 every day, Asia/Tokyo",
        "times in UTC",
    ]
    told = json.loads(onbeat("-f", str(file), *AFTER, "-n", "1", "--json").stdout)
    assert {name: one["next"] for name, one in told.items()} == {
        "often": ["2026-01-01T01:30:00Z"],
        "over": [],
        "tokyo": ["2026-01-01T08:00:00Z"],
    }


def test_next_reads_the_example_file():
    done = onbeat("-f", "examples/onbeat.yaml", *AFTER)
    assert done.exit_code == 0
    *lines, zone = done.stdout.splitlines()
    assert (len(lines), zone) == (11, "times in Europe/Berlin")


def test_next_prints_that_a_trigger_waits_for_other_runs(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text("schedules: {next-step: {after: {success: 30m}}, first: {startup: 30s}}")
    lines = onbeat("-f", str(file), *AFTER).stdout.splitlines()
    assert lines[0].split("  ")[1] == "waits for other runs"
    assert "2026-01-01 00:00:30" in lines[1]
    assert "waits for other runs" in onbeat("-f", str(file), "next-step").stdout


def test_next_prints_that_a_schedule_is_started_manually(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text("schedules: {rebuild: {manual: true}}")
    told = onbeat("-f", str(file), *AFTER).stdout
    assert told.split("  ")[1:] == [
        "started manually",
        *[""] * 7,
        "only when started manually\n",
    ]
    assert "started manually" in onbeat("-f", str(file), "rebuild").stdout


def test_next_shows_a_startup_tick_beside_a_cron(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text('schedules: {both: {any: [{startup: 30s}, {cron: "0 9 * * *"}]}}')
    told = json.loads(onbeat("-f", str(file), "both", *AFTER, "-n", "2", "--json").stdout)
    assert told["next"] == ["2026-01-01T00:00:30Z", "2026-01-01T09:00:00Z"]
    assert "00:00:30" in onbeat("-f", str(file), "both", *AFTER).stdout
    assert "00:00:30" in onbeat("-f", str(file), *AFTER).stdout


def test_next_after_accepts_a_local_time_with_a_zone():
    local = ("--after", "2026-01-01T01:00", "--tz", "Europe/Berlin", "-n", "1", "--json")
    assert json.loads(onbeat("--cron", "0 * * * *", *local).stdout)["next"] == [
        "2026-01-01T01:00:00Z"
    ]


def test_version_is_printed():
    assert CliRunner().invoke(main, ["--version"]).stdout == f"onbeat {__version__}\n"


def test_invalid_schedule_of_a_file_does_not_hide_the_others(tmp_path):
    file = tmp_path / "onbeat.yaml"
    file.write_text(
        "schedules: {bad: {cron: 61 * * * *}, good: {every: 90m}, worse: {daily: 25:00}}"
    )
    done = onbeat("-f", str(file), *AFTER)
    assert done.exit_code == 4
    assert done.stdout == ("good  Thu 2026-01-01 01:30:00 +00:00  every 90 minutes\ntimes in UTC\n")
    assert [line.partition(": schedules.")[2][:12] for line in done.stderr.splitlines()] == [
        "bad.cron.min",
        "worse.daily:",
    ]
    assert list(json.loads(onbeat("-f", str(file), "--json").stdout)) == ["good"]


def test_empty_zone_is_refused():
    assert onbeat("--cron", "* * * * *", "--tz", "").exit_code == 4
