"""Schedules written as a file: every reader of YAML reads the same back."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from onbeat.app.parts import check_target
from onbeat.core.schedule import definition, read_schedule
from onbeat.sources.write_yaml import write_yaml
from onbeat.sources.yaml import read_file
from onbeat.sources.yaml_positions import read_yaml
from onbeat.testing import a_schedule
from tests.core.test_schema import FIELDS, accepted

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "onbeat.yaml"


def written(*schedules):
    return write_yaml({each.schedule_id: definition(each) for each in schedules})


def read_back(text, tmp_path):
    file = tmp_path / "written.yaml"
    file.write_text(text, encoding="utf-8")
    return {each.schedule_id: definition(each) for each in read_file(file, check_target).schedules}


def test_written_file_has_fields_in_the_usual_order_and_plain_style():
    calendar = {"company": ("12-24..12-26",)}
    text = written(
        read_schedule(
            "standup",
            {
                "cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin", "exclude": "company", "retry": ["30s", "2m"],
                "run": {"inputs": {"limit": 5}, "command": ["echo", "on", "12:30", "*", "1e3"]}, "description": "every day",
            },
            calendars=calendar,
        ),
        a_schedule("on", every="90m", run={"python": "a:b"}),
        read_schedule("other", {"daily": "17:00", "exclude": ["company"], "run": {"command": ["ls"]}}, calendars=calendar),
    )  # fmt: skip
    assert (
        text.partition("\n")[2]
        == """\
calendars:
  company: [12-24..12-26]
schedules:
  standup:
    description: every day
    cron: "0 9 * * MON-FRI"
    exclude: [company]
    timezone: Europe/Berlin
    run:
      command: [echo, 'on', '12:30', '*', '1e3']
      inputs: {limit: 5}
    retry: [30s, 2m]
  'on':
    every: 90m
    run: {python: 'a:b'}
  other:
    daily: '17:00'
    exclude: [company]
    run:
      command: [ls]
"""
    )


def test_example_file_survives_writing_and_reading(tmp_path):
    before = read_file(EXAMPLE, check_target).schedules
    assert read_back(written(*before), tmp_path) == {e.schedule_id: definition(e) for e in before}


def test_ambiguous_calendar_names_stay_with_their_schedules(tmp_path):
    before = [
        read_schedule(name, {"daily": "17:00", "exclude": [*own], "run": {"command": ["ls"]}}, calendars=own)
        for name, own in (("a", {"x": ("12-24",)}), ("b", {"x": ("12-25",)}), ("c", {"x": ("12-24",), "y": ("01-01",)}))
    ]  # fmt: skip
    text = written(*before)
    assert text.count("calendars:") == 4  # once for `y`, and once for each `x`
    assert read_back(text, tmp_path) == {each.schedule_id: definition(each) for each in before}


ODD = [
    "on", "off", "yes", "No", "y", "N", "true", "~", "null", "", " ", "12:30", "1:2:3", "0o17", "017", "0x1F", "1e3", "1_000", ".5", ".inf", ".nan",
    "2026-12-01", "2026-12-01T09:00:00Z", "*", "* * * * *", "*/5 * * * *", "&a", "!a", "%a", "@daily", "`a`", "- a", "? a", "a: b", "a #b", "#a",
    "[a", "{a", "a,b", "'", '"', "\\", "a\nb", "a\n\n b\n", "\n", "\ta", "a\t", "a ", " a", "a\rb", "\x07", "\x7f", "\x85", "\u2028", "\ufeff", "é", "😀",
    "=", "<<", "---", "...", "|", ">", "{{ date }}", "$HOME", "x" * 500, "a b " * 100, "-", "?", ":", "1.", "+1", "-0", "0b1", "1:30.5",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD, ids=repr)
def test_text_is_read_back_as_the_same_text_by_yaml_1_1_and_1_2(text, tmp_path):
    name = "a" if not text.isalnum() else text[:200]
    schedule = a_schedule(name if name.isascii() else "a", run={"command": ["echo", text or "-"], "inputs": {text: [text, {text: text}], "n": 5}})  # fmt: skip
    text_written = written(schedule)
    assert read_back(text_written, tmp_path) == {schedule.schedule_id: definition(schedule)}
    assert yaml.safe_load(text_written) == read_yaml(text_written).value


TEXTS = st.text(max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(FIELDS, st.dictionaries(TEXTS, VALUES, max_size=3))
def test_any_definition_survives_writing_and_reading(fields, inputs):
    fields["run"] = {**fields["run"], "inputs": inputs}
    schedule = accepted(fields)
    if schedule is None:
        return
    text = definition(schedule)
    found = read_yaml(write_yaml({"a": text}))
    assert found.mistakes == []
    assert (
        definition(read_schedule("a", found.value["schedules"]["a"], calendars=schedule.calendars))
        == text
    )
    assert json.loads(text).keys() - {"calendars"} == found.value["schedules"]["a"].keys() - {"calendars"}  # fmt: skip
