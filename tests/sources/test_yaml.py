"""Files of definitions: unknown fields, every mistake with its line, calendars."""

import textwrap
import time
from pathlib import Path

import pytest

from onbeat import InvalidSchedule, cron, daily, every
from onbeat.app.parts import check_target
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.errors import InvalidFile
from onbeat.sources.yaml import read_definitions, read_file

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "onbeat.yaml"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file, and returns its path relative to the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = Path("onbeat.yaml")
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def defined(file):
    return lambda text: read_definitions(file(text))


@pytest.fixture
def mistakes(file):
    """Returns the lines of the error for a refused file."""

    def lines_of(text):
        with pytest.raises(InvalidFile) as refused:
            read_file(file(text), check_target)
        return str(refused.value).splitlines()

    return lines_of


def test_schedules_have_the_zone_of_the_file_unless_they_name_their_own(defined):
    definitions = defined("""
        timezone: Europe/Berlin
        schedules:
          standup: {cron: 0 9 * * MON-FRI, run: {command: [echo]}}
          tokyo: {daily: 17:00, timezone: Asia/Tokyo}
    """)
    assert definitions.trigger("standup") == cron("0 9 * * MON-FRI", tz="Europe/Berlin")
    assert definitions.trigger("tokyo") == daily("17:00", tz="Asia/Tokyo")
    assert (definitions.zone_of("standup"), definitions.zone_of("tokyo")) == (
        "Europe/Berlin",
        "Asia/Tokyo",
    )


def test_hash_in_a_cron_uses_the_schedule_id(defined):
    assert defined("schedules: {a: {cron: H H * * *}}").trigger("a") == cron("H H * * *", key="a")


def test_yaml_anchors_share_their_value(defined):
    definitions = defined("""
        schedules:
          one: &often {every: 90m}
          two: *often
    """)
    assert definitions.trigger("two") == every("90m")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "it has no fields"),
        ("shedules: {}", r"shedules: no field has this name \(did you mean 'schedules'\?\)"),
        ("timezone: Berlin", "did you mean Europe/Berlin"),
        ("schedules: [a]", "schedules: .* is not a mapping"),
        ("schedules: {1: {every: 5m}}", "onbeat.yaml:1: schedules.1: the key 1 is not a string"),
        ("calendars: {x: 5}", r"calendars.x: 5 is not a calendar"),
        ("calendars: {x: [2026-13-45]}", r"calendars.x.exclude: '2026-13-45' is not an existing date"),
        ("calendars: {x: {ics: missing.ics}}", r"calendars.x.ics: .*missing.ics cannot be read"),
        ("calendars: {x: {holidays: XX}}", r"calendars.x.holidays: no region is called 'XX'"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused_with_field_and_reason(defined, text, problem):
    with pytest.raises(InvalidFile, match=problem):
        defined(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schedules: {b: 5}", r"schedules.b: 5 is not a schedule"),
        ("schedules: {b: {evry: 5m}}", r"schedules.b.evry: no field has this name \(did you mean 'every'\?\)"),
        ("schedules: {b: {every: 5m, tz: Asia/Tokyo}}", r"schedules.b.tz: no field has this name \(did you mean 'timezone'\?\)"),
        ("schedules: {b: {every: 5m, until: never}}", r"schedules.b.until: no field has this name"),
        ("schedules: {b: {corn: 0 9 * * *}}", r"did you mean 'cron'\?"),
        ("schedules: {b: {cron: 60 * * * *}}", r"schedules.b.cron.minute: '60' is not a minute"),
    ],
)  # fmt: skip
def test_invalid_schedule_is_refused_with_field_and_reason(defined, text, problem):
    with pytest.raises(InvalidFile, match=problem):
        defined(text).trigger("b")


def test_unknown_schedule_name_is_refused_with_a_suggestion(defined):
    with pytest.raises(InvalidSchedule, match=r"no schedule is called 'b' \(known: a\)"):
        defined("schedules: {a: {every: 5m}}").trigger("b")
    with pytest.raises(InvalidSchedule, match=r"did you mean 'bb'\?"):
        defined("schedules: {bb: {every: 5m}}").trigger("b")


def test_unreadable_definition_file_is_refused(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4")
    for name, problem in (
        ("missing.yaml", "cannot be read: No such file"),
        ("latin.yaml", "is not in UTF-8"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(InvalidFile, match=problem):
            read_definitions(tmp_path / name)


def test_calendars_exclude_days_by_list_by_ics_and_by_region(defined, tmp_path):
    (tmp_path / "closed.ics").write_text(
        "BEGIN:VEVENT\r\nDTSTART;VALUE=DATE:20260102\r\nEND:VEVENT\r\n"
    )
    definitions = defined("""
        calendars:
          company: [2026-01-05..2026-01-06]
          closed: {ics: closed.ics}
          public: {holidays: DE}
        schedules:
          work: {cron: 0 9 * * *, exclude: [company, closed, public, 2026-01-03]}
    """)
    trigger = definitions.trigger("work")
    ticks = trigger.upcoming(parse_instant("2026-01-01T00:00:00Z"), 2)  # New Year's Day is public
    assert [rfc3339(tick)[:10] for tick in ticks] == ["2026-01-04", "2026-01-07"]


def test_schedules_are_read_in_the_order_of_the_file():
    found = read_file(EXAMPLE, check_target)
    assert [schedule.schedule_id for schedule in found.schedules][:3] == ["hello", "count", "slow"]


BROKEN = """\
timezone: Berlin
calendars:
  company: [2026-13-45]
  closed: {ics: missing.ics}
shedules: {}
schedules:
  report:
    cron: "60 9 * * *"
    run: {command: [ls], cwdd: /, user: root}
    overlap: que
    grace: 5
    retry: [30s, 2x]
    retries: 5
  "no id": {every: 1h, run: {command: [ls]}}
  right: {every: 1h, exclude: [company], run: {command: [ls]}}
  twice:
    every: 1h
    cron: "* * * * *"
    run: {command: ls}
    queue_limit: 5
    overlap: soon
  twice:
    every: 2h
  nothing:
  parts:
    any:
    - every: 1h
    - corn: "* * * * *"
    run: {http: "ftp://x"}
    when: {kommand: [ls]}
    within: 25:00-26:00
    end_at: tomorrow
  together: {every: 1h, run: {command: [ls]}, queue_limit: 5}
"""


def test_all_mistakes_of_a_file_are_reported_together_with_their_lines(mistakes):
    lines = mistakes(BROKEN)
    found = [line.removeprefix("onbeat.yaml:").split(": ")[:2] for line in lines]
    assert found == [
        ["1", "timezone"],
        ["3", "calendars.company.exclude"],
        ["4", "calendars.closed.ics"],
        ["5", "shedules"],
        ["8", "schedules.report.cron.minute"],
        ["9", "schedules.report.run.cwdd"],
        ["9", "schedules.report.run.user"],
        ["10", "schedules.report.overlap"],
        ["11", "schedules.report.grace"],
        ["12", "schedules.report.retry[1]"],
        ["13", "schedules.report.retries"],
        ["14", "schedules.no id"],
        ["16", "schedules.twice"],
        ["19", "schedules.twice.run.command"],
        ["21", "schedules.twice.overlap"],
        ["22", "schedules.twice"],
        ["24", "schedules.nothing"],
        ["28", "schedules.parts.any[1].corn"],
        ["29", "schedules.parts.run.http"],
        ["30", "schedules.parts.when.kommand"],
        ["31", "schedules.parts.within.hours"],
        ["32", "schedules.parts.end_at"],
        ["33", "schedules.together.queue_limit"],
    ]
    assert lines[4] == "onbeat.yaml:8: schedules.report.cron.minute: '60' is not a minute (0 to 59)"
    assert "did you mean 'schedules'?" in lines[3]


def test_mistakes_neither_hide_others_nor_cause_follow_up_errors(mistakes):
    assert mistakes("""\
        timezone: Nowhere
        calendars: {company: [never]}
        schedules:
          a: {cron: "0 9 * * *", exclude: [company], timezone: Asia/Tokio, run: {command: [ls]}}
          b: {cron: "0 9 * * *", exclude: [company], run: {command: [ls]}}
          c: {every: 1h, overlap: allw, max_active: 3, run: {command: [ls]}}
    """) == [
        "onbeat.yaml:1: timezone: no zone is called 'Nowhere' (an IANA name such as Europe/Berlin)",
        "onbeat.yaml:2: calendars.company.exclude: no calendar is called 'never' (define it under `calendars`)",
        "onbeat.yaml:4: schedules.a.timezone: no zone is called 'Asia/Tokio' (did you mean Asia/Tokyo, Asia/Tomsk?)",
        "onbeat.yaml:6: schedules.c.overlap: 'allw' is not a valid value (did you mean 'allow'?)",
    ]  # fmt: skip


def test_invalid_yaml_is_reported_with_its_line(mistakes):
    (line,) = mistakes("schedules:\n  a: {every: 1h\n  b: 5\n")
    assert line.startswith(("onbeat.yaml:2: ", "onbeat.yaml:3: "))


def test_thousand_schedules_or_mistakes_are_read_quickly(file):
    one = "  s{0}: {{cron: '{1} {2} * * MON-FRI', run: {{command: [ls, '{0}']}}, retry: [30s, {3}]}}\n"
    for delay, wrong in (("2m", 0), ("2x", 1000)):
        text = "".join(one.format(i, i % 60, i % 24, delay) for i in range(1000))
        started = time.process_time()
        if wrong:
            with pytest.raises(InvalidFile) as refused:
                read_file(file(f"schedules:\n{text}"), check_target)
            assert len(refused.value.mistakes) == wrong
            assert refused.value.mistakes[-1].line == 1001
        else:
            assert len(read_file(file(f"schedules:\n{text}"), check_target).schedules) == 1000
        assert time.process_time() - started < 5  # 0.3 s with libyaml, 0.9 s without, when quiet
