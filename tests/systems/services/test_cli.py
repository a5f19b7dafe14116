"""`onbeat timers`, with the output of the origin."""

import asyncio
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from onbeat import Onbeat
from onbeat.cli.command import main
from onbeat.cli.exit_codes import INVALID_DEFINITION, UNAVAILABLE
from onbeat.systems.services.state import TimerHistory
from onbeat.systems.services.timer_list import TimerList, TimerState, relative
from tests.given_settings import given_settings
from tests.systems.services.conftest import HOURLY, a_file

HEADING = "ID               TARGET           ENABLED  LAST-RUN     NEXT-RUN     EXIT     MISS"
DISABLED = "Timer subsystem is disabled (experimental feature)"
NOW = 1_767_268_800_000
KEYS = [
    "id", "target", "enabled", "persistent", "last_run_at", "last_success_at", "last_failure_at",
    "last_exit", "next_run_at", "last_miss_at", "miss_reason", "retry_at",
    "retry_attempt",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of a test, whose settings name a services file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONBEAT_SERVICES_FILE", "services.json")
    return tmp_path


def onbeat(*arguments):
    return CliRunner().invoke(main, list(arguments))


def write(folder, *timers, **around):
    (folder / "services.json").write_text(json.dumps(a_file(*timers, **around)))


def be_up_for_a_moment(folder):
    """Run a node that applies the file, and stop it."""

    async def life():
        settings = given_settings(
            database=f"sqlite:///{folder}/onbeat.db", services_file=f"{folder}/services.json"
        )
        async with Onbeat(settings=settings) as beat:
            await beat.settle()

    asyncio.run(life())


class TestTable:
    @pytest.mark.req("S83", "S84", "S85", "S91")
    def test_table_has_the_columns_and_widths_of_the_origin(self, folder):
        write(folder, HOURLY, HOURLY | {"id": "off", "enabled": False})
        be_up_for_a_moment(folder)
        done = onbeat("timers")
        assert done.exit_code == 0
        heading, dashes, hourly, off = done.output.splitlines()
        assert (heading, dashes) == (HEADING, "-" * 90)
        assert hourly.startswith("hourly           backup           yes      -            in ")
        assert off.startswith("off              backup           no       -            in ")
        assert hourly.endswith(" -        -")

    @pytest.mark.req("S73", "S83", "S86", "S91")
    def test_invalid_timers_are_listed_below_the_table_by_id(self, folder):
        wrong = [HOURLY | {"id": name, "target": "nope"} for name in ("z", "b")]
        write(folder, *wrong, HOURLY)
        be_up_for_a_moment(folder)
        lines = onbeat("timers").output.splitlines()
        assert lines[3:] == [
            "",
            "Invalid timers:",
            "  b: target 'nope' not found in services",
            "  z: target 'nope' not found in services",
        ]

    def test_empty_table_states_that_there_are_no_timers(self, folder):
        (folder / "services.json").write_text('{"timers_enabled": true}')
        be_up_for_a_moment(folder)
        assert onbeat("timers").output == "No timers configured.\n"
        assert json.loads(onbeat("timers", "--json").output) == {"timers": [], "invalid": []}

    @pytest.mark.req("S84", "S91")
    def test_row_shows_the_last_run_its_exit_code_and_the_miss_reason(self):
        kept = TimerHistory(NOW - 300_000, None, NOW - 299_000, 3, NOW - 60_000, "overlap")
        standing = TimerState("nightly", "backup", True, True, kept, NOW + 7_200_000)
        assert standing.cells(NOW) == (
            "nightly", "backup", "yes", "5m ago", "in 2h", "3", "overlap",
        )  # fmt: skip


class TestBeforeTheFirstStart:
    """Without a database, the file is shown."""

    @pytest.mark.req("S83", "S91")
    def test_listing_before_the_first_start_shows_invalid_timers_and_creates_nothing(self, folder):
        write(folder, HOURLY, HOURLY | {"id": "bad", "target": "nope"})
        done = onbeat("timers")
        assert done.exit_code == 0
        assert done.output.splitlines()[2:] == [
            "hourly           backup           yes      -            -            -        -",
            "",
            "Invalid timers:",
            "  bad: target 'nope' not found in services",
        ]
        assert [path.name for path in folder.iterdir()] == ["services.json"]

    def test_listing_before_the_first_start_reads_the_state_file(self, folder):
        write(folder)
        kept = {"last_run_at": "2026-01-01T13:00:00Z", "last_exit": 3}
        (folder / "timer-state.json").write_text(
            json.dumps({"version": 1, "timers": {"hourly": kept}})
        )
        (timer,) = json.loads(onbeat("timers", "--json").output)["timers"]
        assert (timer["last_run_at"], timer["last_exit"], timer["next_run_at"]) == (
            "2026-01-01T13:00:00.000Z", 3, None,
        )  # fmt: skip

    def test_switching_is_refused(self, folder):
        write(folder)
        done = onbeat("timers", "disable", "hourly")
        assert (done.exit_code, "onbeat.db does not exist" in done.output) == (UNAVAILABLE, True)


class TestRelativeTimes:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0s ago"), (-1, "1s ago"), (1, "in 1s"), (-59, "59s ago"), (59.4, "in 59s"),
            (60, "in 1m"), (-60, "1m ago"), (-300, "5m ago"), (89, "in 1m"), (91, "in 2m"),
            (3599, "in 60m"), (3600, "in 1h"), (7200, "in 2h"), (-5400 - 1, "2h ago"),
            (86_399, "in 24h"), (86_400, "in 1d"), (-86_400 * 3, "3d ago"), (86_400 * 400, "in 400d"),
        ],
    )  # fmt: skip
    @pytest.mark.req("S85", "S91")
    def test_instant_is_shown_as_its_distance(self, seconds, text):
        assert relative(NOW + round(seconds * 1000), NOW) == text

    @pytest.mark.req("S85", "S91")
    def test_missing_instant_is_a_dash(self):
        assert relative(None, NOW) == "-"


class TestJson:
    @pytest.mark.req("S83", "S84", "S86", "S91")
    def test_json_has_every_timer_and_the_invalid_ones(self, folder):
        write(folder, HOURLY, {"id": "bad"})
        be_up_for_a_moment(folder)
        found = json.loads(onbeat("timers", "--json").output)
        (timer,) = found["timers"]
        assert list(timer) == KEYS
        told = timer["id"], timer["target"], timer["enabled"], timer["persistent"]
        assert told == ("hourly", "backup", True, True)
        assert timer["next_run_at"].endswith(":00:00.000Z")
        assert found["invalid"] == [{"id": "bad", "reason": "target must be a non-empty string"}]

    @pytest.mark.req("S91")
    def test_instants_in_json_are_rfc_3339_or_null(self):
        kept = TimerHistory(last_run_at=NOW, last_exit=-9)
        fields = TimerState("a", "b", False, True, kept, retry_at=NOW + 30_000).fields()
        assert fields["last_run_at"] == "2026-01-01T12:00:00.000Z"
        assert fields["retry_at"] == "2026-01-01T12:00:30.000Z"
        assert (fields["last_exit"], fields["last_success_at"], fields["miss_reason"]) == (
            -9, None, None,
        )  # fmt: skip
        assert TimerList(NOW, (), {}).fields() == {"timers": [], "invalid": []}


class TestGateOff:
    @pytest.mark.parametrize("off", [{"timers_enabled": False}, {"enabled": False}])
    @pytest.mark.req("S19", "S22", "S26", "S91")
    def test_closed_gate_is_reported_as_text_and_json_without_timers(self, folder, off):
        write(folder, **off)
        done = onbeat("timers")
        assert done.exit_code == 0
        first, second = done.output.splitlines()
        assert first == f"{DISABLED}."
        assert second.startswith("Enable with: timers_enabled: true")
        told = onbeat("timers", "--json")
        assert (told.exit_code, json.loads(told.output)) == (
            0, {"status": "disabled", "message": DISABLED},
        )  # fmt: skip
        assert not (folder / "onbeat.db").exists()

    @pytest.mark.parametrize("verb", ["enable", "disable"])
    @pytest.mark.req("S22", "S92")
    def test_switching_is_refused(self, folder, verb):
        write(folder, timers_enabled=False)
        done = onbeat("timers", verb, "hourly")
        assert done.exit_code == 1
        assert done.output.startswith(f"{DISABLED}.\n")
        told = onbeat("timers", verb, "hourly", "--json")
        assert (told.exit_code, json.loads(told.output)["status"]) == (1, "disabled")

    @pytest.mark.req("S19")
    def test_status_and_list_show_no_timers_while_the_gate_is_closed(self, folder):
        write(folder)
        be_up_for_a_moment(folder)
        write(folder, timers_enabled=False)
        be_up_for_a_moment(folder)
        assert json.loads(onbeat("list", "--json").output) == []
        assert json.loads(onbeat("status", "--json").output)["schedules"] == 0


class TestSwitching:
    @pytest.mark.req("S92")
    def test_timer_is_disabled_and_enabled_by_its_id(self, folder):
        write(folder)
        be_up_for_a_moment(folder)
        assert onbeat("timers", "disable", "hourly").output == "disabled hourly\n"
        assert onbeat("timers", "disable", "hourly").output == "hourly was already disabled\n"
        (timer,) = json.loads(onbeat("timers", "--json").output)["timers"]
        assert timer["enabled"] is False
        be_up_for_a_moment(folder)
        assert '"enabled":false' in onbeat("show", "hourly", "--json").output.replace(" ", "")
        told = json.loads(onbeat("timers", "enable", "hourly", "--json").output)
        assert told == {"id": "hourly", "enabled": True, "changed": True}

    def test_options_before_the_verb_apply(self, folder):
        write(folder)
        be_up_for_a_moment(folder)
        told = json.loads(onbeat("timers", "--json", "disable", "hourly").output)
        assert told == {"id": "hourly", "enabled": False, "changed": True}
        done = onbeat("timers", "--database", "sqlite:///other.db", "disable", "hourly")
        assert "other.db does not exist" in done.output

    def test_invalid_timer_is_reported_with_the_reason(self, folder):
        write(folder, HOURLY, HOURLY | {"id": "bad", "target": "nope"})
        be_up_for_a_moment(folder)
        done = onbeat("timers", "enable", "bad")
        assert done.exit_code == 4
        assert "bad: target 'nope' not found in services" in done.output

    def test_unknown_timer_is_reported(self, folder):
        write(folder)
        be_up_for_a_moment(folder)
        done = onbeat("timers", "disable", "hourl")
        assert (done.exit_code, "did you mean 'hourly'" in done.output) == (1, True)


class TestUp:
    @pytest.mark.parametrize("detach", [[], ["-d"]])
    @pytest.mark.parametrize("text", [None, "", '{"timers_enabled": 5}'])
    def test_up_refuses_to_start_with_an_invalid_file(self, folder, monkeypatch, text, detach):
        monkeypatch.setenv("ONBEAT_LISTEN", "127.0.0.1:0")
        if text is not None:
            (folder / "services.json").write_text(text)
        up = [sys.executable, "-m", "onbeat", "up", *detach]
        done = subprocess.run(up, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (INVALID_DEFINITION, "")
        assert "services.json: " in done.stderr


class TestMisuse:
    @pytest.mark.req("S91")
    def test_arguments_are_refused(self, folder):
        write(folder)
        done = onbeat("timers", "hourly")
        assert done.exit_code == 2
        told = "timers command does not accept arguments (but for enable ID and disable ID)"
        assert told in done.output

    @pytest.mark.req("S91")
    def test_unknown_options_are_refused(self, folder):
        write(folder)
        assert onbeat("timers", "--jsn").exit_code == 2

    def test_missing_services_file_setting_is_named(self, monkeypatch):
        monkeypatch.delenv("ONBEAT_SERVICES_FILE")
        done = onbeat("timers")
        assert done.exit_code == 2
        assert "services_file: no services file is set" in done.output
        assert "ONBEAT_SERVICES_FILE" in done.output

    @pytest.mark.parametrize("arguments", [["timers"], ["timers", "enable", "x"]])
    def test_unreadable_file_is_reported_with_the_reason(self, folder, arguments):
        (folder / "services.json").write_text('{"timers": [], "timers": []}')
        done = onbeat(*arguments)
        assert done.exit_code == 4
        assert "it is not JSON: the key 'timers' appears twice" in done.output

    @pytest.mark.parametrize("wrong", ["{", '{"timers_enabled": true, "retry": 5}'])
    @pytest.mark.req("S83")
    def test_running_timers_are_shown_above_the_error_of_the_file(self, folder, wrong):
        write(folder, HOURLY, HOURLY | {"id": "off", "enabled": False, "persistent": False})
        be_up_for_a_moment(folder)
        before = json.loads(onbeat("timers", "--json").output)["timers"]
        (folder / "services.json").write_text(wrong)
        done = onbeat("timers")
        assert done.exit_code == INVALID_DEFINITION
        heading, _, hourly, off, space, mistake, last = done.output.splitlines()
        assert (heading, space) == (HEADING, "")
        assert hourly.startswith("hourly           backup           yes      -            in ")
        assert off.startswith("off              backup           no       -            in ")
        assert mistake.startswith("services.json: ")
        told = "onbeat: 1 mistake in services.json: the timers above stay in effect"
        assert last == told
        assert json.loads(onbeat("timers", "--json").output)["timers"] == before

    @pytest.mark.parametrize(
        "wrong",
        [{"timers_enabled": 5}, {"retry": 5}, {"timezone": "x"}, {"state_file": 5}],
    )
    def test_error_of_the_whole_file_names_the_file(self, folder, wrong):
        write(folder, **wrong)
        (field,) = wrong
        done = onbeat("timers")
        assert (done.exit_code, f"services.json: {field}: " in done.output) == (4, True)
        (mistake,) = json.loads(onbeat("timers", "--json").output)["mistakes"]
        assert (mistake["file"], mistake["field"]) == ("services.json", field)
