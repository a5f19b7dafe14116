"""Definitions in a file: YAML 1.2, strict about names, with calendars of days to leave out."""

import textwrap

import pytest

from onbeat import InvalidSchedule, cron, daily, every
from onbeat.core.instants import parse_instant, rfc3339
from onbeat.sources.yaml import parse_yaml, read_definitions


@pytest.fixture
def defined(tmp_path):
    def define(text):
        file = tmp_path / "onbeat.yaml"
        file.write_text(textwrap.dedent(text))
        return read_definitions(file)

    return define


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


def test_the_id_of_a_schedule_is_what_h_hashes(defined):
    assert defined("schedules: {a: {cron: H H * * *}}").trigger("a") == cron("H H * * *", key="a")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("on", "on"), ("no", "no"), ("17:00", "17:00"), ("2026-12-01", "2026-12-01"), ("2026-12-01T09:00:00Z", "2026-12-01T09:00:00Z"),
        ("1_000", "1_000"), ("true", True), ("False", False), ("~", None), ("", None), ("010", 10), ("0x1F", 31), ("1e3", 1000.0), ("-.5", -0.5),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2(text, meant):
    assert parse_yaml(text) == meant


def test_anchors_work_and_cannot_blow_up(defined):
    definitions = defined("""
        schedules:
          one: &often {every: 90m}
          two: *often
          three: {<<: *often, timezone: Asia/Tokyo}
    """)
    assert definitions.trigger("two") == every("90m")
    assert definitions.trigger("three") == every("90m", tz="Asia/Tokyo")
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for i in range(8):
        bomb += f"b{i}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n"
    with pytest.raises(InvalidSchedule, match="more than 1000000 values"):
        parse_yaml(bomb)
    with pytest.raises(InvalidSchedule, match="more than 1000000 values"):
        parse_yaml("&a [*a]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", r"line 2, column 1: the key 'a' is there twice"),
        ("a: [", "line 1"),
        ("cron: * * * * *", r'a text with \* goes in quotes: "\* \* \* \* \*"'),
        ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: tags are not read"),
        ("[" * 5_000, "nested too deep"),
        ("a: \0", "special characters"),
        ("a: " + "1" * 5_000, "Exceeds the limit"),
        ("!!int abc", "tags are not read"),
        ('"\\UFFFFFFFF"', "YAML 1.2"),
        ("a: &a {b: 1}\nc: {<<: [*a, *a]}", "`<<` takes one anchor"),
        ("a: b\n---\nc: d", "expected a single document"),
    ],
)  # fmt: skip
def test_broken_yaml_is_refused_with_its_place(text, said):
    with pytest.raises(InvalidSchedule, match=said):
        parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "there are no fields in it"),
        ("shedules: {}", r"shedules: no field has this name \(did you mean 'schedules'\?\)"),
        ("timezone: Berlin", "did you mean Europe/Berlin"),
        ("schedules: [a]", "schedules: .* is no set of names"),
        ("schedules: {1: {every: 5m}}", "schedules: .* is no set of names"),
        ("calendars: {x: 5}", r"calendars.x: 5 is no calendar"),
        ("calendars: {x: [2026-13-45]}", r"calendars.x.exclude: '2026-13-45' is not a day"),
        ("calendars: {x: {ics: missing.ics}}", r"calendars.x.ics: .*missing.ics cannot be read"),
        ("calendars: {x: {holidays: XX}}", r"calendars.x.holidays: no region is called 'XX'"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused(defined, text, said):
    with pytest.raises(InvalidSchedule, match=said):
        defined(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schedules: {a: {every: 5m}}", r"schedules: no schedule is called 'b' \(known: a\)"),
        ("schedules: {bb: {every: 5m}}", r"did you mean 'bb'\?"),
        ("schedules: {b: 5}", r"schedules.b: 5 is no schedule"),
        ("schedules: {b: {evry: 5m}}", r"schedules.b.evry: no field has this name \(did you mean 'every'\?\)"),
        ("schedules: {b: {every: 5m, tz: Asia/Tokyo}}", r"schedules.b.tz: no field has this name \(did you mean 'timezone'\?\)"),
        ("schedules: {b: {every: 5m, until: never}}", r"schedules.b.until: no field has this name"),
        ("schedules: {b: {corn: 0 9 * * *}}", r"did you mean 'cron'\?"),
        ("schedules: {b: {cron: 60 * * * *}}", r"schedules.b.cron.minute: '60' is no minute"),
    ],
)  # fmt: skip
def test_a_schedule_that_makes_no_sense_is_refused(defined, text, said):
    with pytest.raises(InvalidSchedule, match=said):
        defined(text).trigger("b")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4")
    for name, said in (
        ("missing.yaml", "cannot be read: No such file"),
        ("latin.yaml", "is not in UTF-8"),
        (".", "cannot be read: Is a directory"),
    ):
        with pytest.raises(InvalidSchedule, match=said):
            read_definitions(tmp_path / name)


def test_calendars_close_days_by_list_by_ics_and_by_region(defined, tmp_path):
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
