"""`onbeat simulate`, as text and as JSON."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onbeat.cli.simulate import simulate
from tests.cli.test_verbs import (
    BROKEN,
    as_json,
    folder,  # noqa: F401 - what every test here is in
    ok,
    onbeat,
    refused,
    write,
)

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
FILE = re.search(r"```yaml title=onbeat.yaml\n(.*?)```", PAGE, re.DOTALL)[1]
WINDOW = ("--from", "2026-03-28", "--until", "2026-03-31", "--tz", "Europe/Berlin")
FORECAST_KEYS = {
    "from", "until", "asked_until", "cut_off", "ticks", "fires", "skips", "peak", "peak_at",
    "busiest_minute", "days", "groups", "schedules",
}  # fmt: skip
SCHEDULE_KEYS = {
    "schedule_id", "run_length_ms", "run_length_known", "ticks", "fires", "skips", "waiting",
    "ended_early", "waited", "longest_wait_ms", "longest_wait_at", "peak", "peak_at",
}  # fmt: skip


def test_file_is_simulated_without_a_database():
    text = ok("simulate", "--with", write(FILE), *WINDOW, "--run-length", "7m")
    assert not Path("onbeat.db").exists()
    first, totals, peak, busiest, *_ = text.splitlines()
    assert first == "from 2026-03-28 00:00:00+01:00 until 2026-03-31 00:00:00+02:00 (Europe/Berlin)"
    assert totals == "858 ticks: 432 runs start, 426 ticks are skipped (overlap 426)"
    assert peak == "at most 2 runs at the same time, first at 2026-03-28 02:30:00+01:00"
    assert busiest == "in that minute: nightly, tight"
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["SCHEDULE"] == [
        "SCHEDULE",
        "TICKS",
        "FIRES",
        "SKIPS",
        "WAITS",
        "PEAK",
        "RUN",
        "LENGTH",
    ]
    assert rows["tight"] == ["tight", "852", "426", "overlap", "426", "-", "1", "7m", "(assumed)"]
    assert rows["nightly"][:3] == ["nightly", "3", "3"]
    assert rows["report"][:3] == ["report", "3", "3"]
    assert rows["one"] == ["one", "1", "1", "-"]
    assert rows["2026-03-29"] == ["2026-03-29", "140", "138"]  # a day of 23 hours


def test_command_on_the_simulate_page_prints_the_shown_output():
    write(FILE)
    ((command, printed),) = re.findall(r"```console\n\$ onbeat (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert ok(*command.split()) == printed


def test_every_simulate_option_is_in_the_table_of_the_page():
    options = {option.opts[0] for option in simulate.params if option.name != "names"}
    assert options - {"--database", "--config"} == set(re.findall(r"\| `(--[\w-]+)", PAGE))


def test_python_on_the_simulate_page_prints_the_shown_output(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    assert f"This prints `{capsys.readouterr().out.strip()}`" in PAGE


def test_simulate_json_has_the_documented_keys_and_the_same_figures():
    found = as_json("simulate", "--with", write(FILE), *WINDOW, "--run-length", "7m")
    assert found.keys() == FORECAST_KEYS
    assert (found["ticks"], found["fires"], found["skips"]) == (858, 432, {"overlap": 426})
    assert (found["from"], found["until"]) == (
        "2026-03-27T23:00:00.000Z",
        "2026-03-30T22:00:00.000Z",
    )
    assert found["busiest_minute"] == {
        "at": "2026-03-28T01:30:00.000Z",
        "runs": {"nightly": 1, "tight": 1},
    }
    assert [day["date"] for day in found["days"]] == ["2026-03-28", "2026-03-29", "2026-03-30"]
    assert sum(day["fires"] for day in found["days"]) == 432
    assert [each["schedule_id"] for each in found["schedules"]] == ["nightly", "report", "tight"]
    assert all(each.keys() == SCHEDULE_KEYS for each in found["schedules"])


def test_stored_schedules_are_simulated_for_a_week_from_their_state():
    ok("apply", write(FILE))
    ok("pause", "nightly")
    found = as_json("simulate")
    by_name = {each["schedule_id"]: each for each in found["schedules"]}
    assert by_name["tight"]["fires"] == 7 * 24 * 12
    assert by_name["nightly"]["skips"] == {"paused": 7}
    assert by_name["report"]["ticks"] == 0


def test_simulated_file_overrides_stored_schedules_without_applying():
    ok("apply", write(FILE))
    before = as_json("list")
    other = write("schedules: {tight: {every: 1h, run: {command: ['true']}}}", "other.yaml")
    found = as_json("simulate", "--with", other, "--until", "1d")
    by_name = {each["schedule_id"]: each["fires"] for each in found["schedules"]}
    assert by_name == {"tight": 24, "nightly": 1, "report": 1}
    assert as_json("list") == before


def test_simulate_shows_only_the_named_schedules():
    write(FILE)
    found = as_json("simulate", "--with", "onbeat.yaml", *WINDOW, "report")
    assert [each["schedule_id"] for each in found["schedules"]] == ["report"]
    assert found["fires"] == 3


def test_simulate_refuses_an_unknown_name_with_a_suggestion():
    said = refused(1, "simulate", "--with", write(FILE), "tigt")
    assert said == "no schedule is called 'tigt' (did you mean 'tight'?)"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--until", "2020-01-01"), "--until: 2020-01-01 00:00:00Z is past (later than "),
        (("--from", "2026-02-01", "--until", "2026-01-01"), "is before --from (later than 2026-02"),
        (("--until", "soon"), "--until: 'soon' is not a date and time (such as "),
        (
            ("--from", "2500-01-01"),
            "--from: the time is too far in the future (five years at most)",
        ),
        (("--run-length", "1x"), "--run-length: '1x' is not a duration (such as "),
        (("--tz", "Nowhere"), "--tz: "),
    ],
)
def test_simulate_refuses_invalid_arguments(given, told):
    assert told in refused(2, "simulate", "--with", write(FILE), *given)


def test_simulate_refuses_a_broken_file_with_all_mistakes():
    done = onbeat("simulate", "--with", write(BROKEN, "broken.yaml"))
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr.count("broken.yaml:") == 5  # and how many these are


def test_simulate_refuses_a_schedule_that_follows_an_unknown_one():
    text = "schedules: {a: {after: {schedule: b, outcome: success}, run: {command: ['true']}}}"
    said = refused(4, "simulate", "--with", write(text))
    assert said.startswith("after.schedule: schedule a follows 'b', which does not exist")


def test_simulate_without_a_file_needs_a_database():
    assert "does not exist" in refused(69, "simulate")


def test_closed_gate_and_a_cut_simulation_are_reported_on_stderr():
    ok("apply", write(FILE))
    ok("gate", "off")
    done = onbeat("simulate", "--until", "3000d", "--json")
    assert done.exit_code == 0
    closed, cut = done.stderr.splitlines()
    assert closed == "the gate is CLOSED: the simulation assumes that it is open"
    assert cut.startswith("cut off at 20")
    assert cut.endswith(": a simulation covers at most five years (simulate a shorter time)")
    assert json.loads(done.stdout)["cut_off"] == "a simulation covers at most five years"


def test_long_simulation_lists_the_first_days_and_counts_the_rest():
    text = ok("simulate", "--with", write(FILE), "--from", "2026-01-01", "--until", "30d")
    assert text.splitlines()[-1] == "... and 16 more days (--json lists all)"


def test_progress_is_shown_on_a_terminal_and_only_on_stderr():
    write(FILE)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "onbeat", "simulate", "--with", "onbeat.yaml", *WINDOW]
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment
    ) as child:
        os.close(theirs)
        printed, _ = child.communicate(timeout=60)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert child.returncode == 0
    assert "simulating" in shown
    assert "100%" in shown
    assert printed.startswith("from 2026-03-28")
    assert "simulating" not in printed
