"""`onbeat audit`: callers and their changes."""

import getpass

import pytest

from tests.cli.test_verbs import as_json, folder, ok  # noqa: F401 - a fixture

FILE = """
schedules:
  report: {every: 1h, run: {command: ["true"]}}
  other: {every: 2h, run: {command: ["true"]}}
"""


@pytest.fixture(autouse=True)
def defined(folder):  # noqa: F811 - the fixture
    (folder / "onbeat.yaml").write_text(FILE)
    ok("apply")
    ok("pause", "report", "--note", "on holiday")


def test_audit_lists_caller_and_change_latest_first():
    heading, *lines = ok("audit").splitlines()
    who = f"cli:{getpass.getuser()}"
    assert heading.split() == ["WHEN", "WHO", "WHAT", "TO"]
    told = [line.partition(who)[2].split() for line in lines]
    assert told[0] == ["schedule.paused", "report", "note=on", "holiday"]
    assert [line[:2] for line in told[1:]] == [
        ["schedule.created", "other"], ["schedule.created", "report"],
    ]  # fmt: skip


def test_audit_of_one_schedule_is_printed_as_json():
    found = as_json("audit", "other")
    assert [(event["name"], event["fields"]["schedule_id"]) for event in found] == [
        ("schedule.created", "other")
    ]
    assert ok("audit", "never") == "no changes of never\n"
