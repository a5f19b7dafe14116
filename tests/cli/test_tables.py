"""Tables on a terminal: their width, their colours and their zone; and plain ones in a pipe."""

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl

import pytest

from onbeat.cli.format import Cell, Times
from onbeat.cli.tables import Column, Table, fit
from onbeat.core.time.zones import zone
from tests.cli.test_verbs import (  # noqa: F401 - all are in it
    as_json,
    folder,
    ok,
    onbeat,
    plain_environment,
    write,
)

NOON = 1_767_268_800_000  # 2026-01-01T12:00:00Z
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

MANY = """
schedules:
  a-schedule-with-quite-a-long-name-for-a-terminal:
    cron: "0 9 1-7,15-21 */2 MON-FRI"
    timezone: America/Argentina/Buenos_Aires
    run: {command: ["true"]}
  report: {every: 1h, run: {command: [echo, "a report"]}}
  paused: {every: 1h, run: {command: [echo]}}
"""


def on_a_terminal(place, *arguments, columns=100, **variables):
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**plain_environment(), "TERM": "xterm", "TZ": "Europe/Berlin", **variables}
    for name in ("COLUMNS", "LINES", *(["NO_COLOR"] if "NO_COLOR" not in variables else [])):
        environment.pop(name, None)
    child = subprocess.Popen(
        [sys.executable, "-m", "onbeat", *arguments], cwd=place, env=environment,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    found, until = b"", time.monotonic() + 20
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                part = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            found += part
        elif child.poll() is not None:
            break
    child.wait(10)
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


@pytest.fixture
def many(tmp_path):
    ok("apply", write(MANY))
    ok("pause", "paused", "--note", "because of a migration that takes its time, as they all do")
    for number in range(3):
        as_json("run", "report", "--request-id", str(number))
    ok(
        "cancel",
        "1",
        "--note",
        "a note that is longer than a terminal is wide, or at least as much",
    )
    ok("group", "limit", "a-group-with-a-name", "2")
    onbeat(
        "token", "create", "a-token-with-quite-a-long-name-of-its-own", "--owner", "a-team-of-many"
    )
    return tmp_path


TABLES = [
    "list", "show report", "runs", "group", "token list", "audit", "nodes", "notify list",
    "simulate --run-length 7m",
    "next -f onbeat.yaml",
    "backfill report --from 2026-01-01 --to 2026-01-02 --preview",
]  # fmt: skip


@pytest.mark.parametrize("columns", [100, 60])
@pytest.mark.parametrize("call", TABLES)
def test_a_table_is_no_wider_than_the_terminal(many, call, columns):
    text = ESCAPES.sub("", on_a_terminal(many, *call.split(), columns=columns))
    lines = text.rpartition("\x1b[?25h")[2].splitlines()  # after a progress bar, if there is one
    if call == "show report":
        lines = lines[lines.index("", 2) :]  # the table is below what is not one
    if call.startswith(("notify", "nodes", "simulate", "next", "backfill")):
        lines = [line for line in lines if re.search(r"\S {2,}\S", line)]
    assert [line for line in lines if len(line) > columns] == []


def test_table_is_not_cut_in_a_pipe_or_with_wide(many):
    name = "a-schedule-with-quite-a-long-name-for-a-terminal"
    assert name in ok("list")
    assert "…" not in ok("list") + ok("runs") + ok("audit")
    assert name not in on_a_terminal(many, "list", columns=60)
    wide = on_a_terminal(many, "list", "--wide", columns=60)
    assert name in wide
    assert "…" not in wide


def test_terminal_shows_local_times_with_the_zone_and_a_pipe_utc(many):
    lines = on_a_terminal(many, "list", NO_COLOR="1").splitlines()
    assert lines[-1] == "times in Europe/Berlin"
    assert not re.search(r"\d\dZ", "\n".join(lines))
    assert "times in" not in ok("list")
    assert re.search(r"\d\d:\d\d:\d\dZ \(in ", ok("list"))


@pytest.mark.parametrize("call", ["list", "show report", "runs", "status", "token list", "audit"])
def test_every_table_with_times_names_their_zone(many, call):
    text = ESCAPES.sub("", on_a_terminal(many, *call.split()))
    assert text.splitlines()[-1] == "times in Europe/Berlin"


@pytest.mark.parametrize("call", ["list", "runs", "doctor --quick", "plan onbeat.yaml", "audit"])
def test_no_color_is_honoured_and_a_pipe_is_plain(many, call):
    assert "\x1b" not in on_a_terminal(many, *call.split(), NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(many, *call.split(), TERM="dumb")
    assert "\x1b" not in ok(*call.split())


def test_a_status_has_its_colour_on_a_terminal(many):
    assert "\x1b[33mCANCELED (canceled)\x1b[0m" in on_a_terminal(many, "runs")
    assert "\x1b[34mENQUEUED\x1b[0m" in on_a_terminal(many, "runs")


def test_json_is_plain_on_a_terminal(many):
    text = on_a_terminal(many, "runs", "--json")
    assert "\x1b" not in text
    assert len(json.loads(text)) == 3


# -- the widths


def test_column_that_fits_is_as_wide_as_its_cells():
    columns = [Column("A"), Column("LONG HEADING"), Column("C", drop=1)]
    rows = [[Cell(("12345",)), Cell(("1",)), Cell(("1",))]]
    assert fit(columns, rows, 22) == (0, [5, 12, 1])
    assert fit(columns, rows, None) == (0, [5, 12, 1])


def test_times_lose_the_date_of_today_before_columns_are_cut():
    columns = [Column("A", least=4), Column("AT")]
    rows = [[Cell(("1234567890",)), Cell(("full date", "time", "in"))]]
    assert fit(columns, rows, 21) == (0, [10, 9])
    assert fit(columns, rows, 16) == (1, [10, 4])
    assert fit(columns, rows, 12) == (1, [6, 4])
    assert fit(columns, rows, 9) == (2, [5, 2])


def test_columns_are_dropped_before_others_become_unreadable():
    columns = [Column("A", least=8), Column("BB", drop=1), Column("CCC", drop=2)]
    rows = [[Cell(("1234567890",)), Cell(("1",)), Cell(("1",))]]
    assert fit(columns, rows, 12)[1] == [8, 2, 0]
    assert fit(columns, rows, 8)[1] == [8, 0, 0]
    assert fit(columns, rows, 5)[1] == [5, 0, 0]


def test_later_rows_keep_the_column_widths(capsys):
    table = Table(Column("NAME", least=4), "N", width=10)
    table.write([("short", "1")])
    table.write([("much too long", "1234567")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME   N", "short  1", "much…  …"]


def test_a_cut_cell_ends_with_an_ellipsis(capsys):
    table = Table(Column("NAME", least=4), Column("N"), width=12)
    table.write([("a-long-name", "1")])
    assert capsys.readouterr().out.splitlines() == ["NAME       N", "a-long-n…  1"]


# -- instants


def test_times_in_utc_have_a_z_and_need_no_note():
    times = Times(NOON)
    assert times.moment(NOON + 300_000) == "2026-01-01 12:05:00Z (in 5m)"
    assert times.note == ""
    assert times.moment(None) == "-"


def test_local_times_have_no_offset_and_a_note():
    times = Times(NOON, zone("Europe/Berlin"))
    assert times.moment(NOON - 60_000) == "2026-01-01 12:59:00 (1m ago)"
    assert times.note == "times in Europe/Berlin"


def test_time_cell_has_forms_without_date_and_without_time():
    times = Times(NOON, zone("Europe/Berlin"))
    assert times.cell(NOON).forms == ("2026-01-01 13:00:00 (0s ago)", "13:00:00 (0s ago)", "0s ago")
    tomorrow = times.cell(NOON + 86_400_000).forms
    assert tomorrow == ("2026-01-02 13:00:00 (in 1d)", "2026-01-02 13:00:00 (in 1d)", "in 1d")
