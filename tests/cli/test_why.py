"""`onbeat why` and `onbeat backfill`: explanations of instants, and past ticks run afterwards."""

import json

import pytest

from onbeat.core.runs.run import run_key
from tests.cli.test_verbs import as_json, folder, ok, onbeat, refused, write  # noqa: F401 - all are in it

FILE = """
timezone: Europe/Berlin
schedules:
  standup: {cron: "0 9 * * MON-FRI", run: {command: [echo, hi]}}
  grid: {every: 1h, overlap: queue, run: {command: [echo, "{{ date }}"]}}
"""


@pytest.fixture
def two():
    """Two schedules: grid and standup."""
    ok("apply", write(FILE))


# -- why


def test_why_names_the_failing_field_of_a_local_time(two):
    assert ok("why", "standup", "2030-01-05T09:00") == (
        "standup at 2030-01-05T09:00:00+01:00: it is not a tick\n"
        "  2030-01-05T09:00:00+01:00 in Europe/Berlin: day of week is Saturday, not MON-FRI\n"
        "  2030-01-04T09:00:00+01:00 is the tick before it\n"
        "  2030-01-07T09:00:00+01:00 is the tick after it\n"
    )


def test_why_accepts_an_instant_with_an_offset(two):
    assert "it is due in" in ok("why", "standup", "2030-01-07T08:00:00Z")


def test_why_prints_fields_as_json(two):
    found = as_json("why", "standup", "2030-01-05T09:00")
    assert (found["kind"], found["next"]) == ("no_tick", "2030-01-07T08:00:00Z")
    assert set(found) == {
        "schedule_id", "at", "kind", "reason", "headline", "sentences", "instead", "run_id",
        "status", "previous", "next", "triggered_by", "attempts", "note", "also",
    }  # fmt: skip


def test_why_without_a_time_explains_the_latest_or_the_next_tick(two):
    assert "it is due in" in ok("why", "standup")


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("standup", "soon"), 2, "TIME: "),
        (("standpu",), 1, "no schedule is called 'standpu' (did you mean 'standup'?)"),
    ],
)
def test_why_refuses_invalid_arguments(two, arguments, code, problem):
    assert problem in refused(code, "why", *arguments)


CERTBOT = """
timezone: Europe/Berlin
schedules:
  certbot: {cron: "30 2 * * *", run: {command: [echo, hi]}}
  wild: {cron: "*/30 * * * *", run: {command: [echo, hi]}}
"""


def test_why_of_a_local_time_in_a_gap_explains_the_instant_after_it():
    ok("apply", write(CERTBOT))
    found = ok("why", "certbot", "2027-03-28T02:30")
    assert found.startswith(
        "02:30 does not exist in Europe/Berlin on 2027-03-28 (clocks go from 02:00 to 03:00): "
        "showing 2027-03-28T03:00:00+02:00, the first instant after it\n"
        "certbot at 2027-03-28T03:00:00+02:00: it is due in"
    )
    fields = as_json("why", "certbot", "2027-03-28T02:30")
    assert (fields["kind"], fields["at"]) == ("to_come", "2027-03-28T01:00:00Z")
    assert fields["note"].startswith("02:30 does not exist")


def test_why_of_a_repeated_local_time_explains_both_instants():
    ok("apply", write(CERTBOT))
    found = ok("why", "certbot", "2026-10-25T02:30")
    assert "at 2026-10-25T02:30:00+02:00 and again at 2026-10-25T02:30:00+01:00\n" in found
    assert "certbot at 2026-10-25T02:30:00+02:00: " in found
    assert "certbot at 2026-10-25T02:30:00+01:00: " in found
    fields = as_json("why", "certbot", "2099-10-25T02:30")
    assert (fields["at"], fields["kind"]) == ("2099-10-25T00:30:00Z", "to_come")
    assert fields["also"] == ["2099-10-25T01:30:00Z"]


def test_backfill_range_covers_gaps_and_both_passes_of_a_fold():
    ok("apply", write(CERTBOT))
    asked = ("--from", "2020-03-29T02:30", "--to", "2020-03-29T03:30")
    found = as_json("backfill", "wild", *asked, "--preview")
    assert [each["run_at"] for each in found] == ["2020-03-29T01:00:00Z", "2020-03-29T01:30:00Z"]
    asked = ("--from", "2020-10-25T02:30", "--to", "2020-10-25T02:30")
    found = as_json("backfill", "wild", *asked, "--preview")
    assert [each["run_at"] for each in found] == [
        "2020-10-25T00:30:00Z", "2020-10-25T01:00:00Z", "2020-10-25T01:30:00Z",
    ]  # fmt: skip


# -- backfill


def test_backfill_preview_lists_ticks_with_keys_and_changes_nothing(two):
    found = as_json("backfill", "grid", "--from", "2020-01-01T00:00", "--to", "2020-01-01T03:00", "--preview")  # fmt: skip
    assert [each["run_at"] for each in found] == [
        "2019-12-31T23:00:00Z", "2020-01-01T00:00:00Z", "2020-01-01T01:00:00Z", "2020-01-01T02:00:00Z",
    ]  # fmt: skip
    assert {each["action"] for each in found} == {"add"}
    assert found[1]["key"] == run_key("grid", 1_577_836_800)
    assert as_json("runs") == []
    text = ok("backfill", "grid", "--from", "2020-01-01", "--to", "2020-01-02", "--preview")
    assert text.startswith("48 ticks: 48 would run, 0 would be left unchanged\n")
    assert "... and 28 more (--json lists all)" in text


def test_repeated_backfill_enqueues_each_tick_once(two):
    asked = ("backfill", "grid", "--from", "2020-01-01T00:00", "--to", "2020-01-01T03:00")
    assert ok(*asked) == "4 runs enqueued, 0 ticks left unchanged\n"
    assert as_json(*asked) == {"schedule_id": "grid", "enqueued": 0, "refused": 4}
    runs = as_json("runs", "grid")
    assert {run["triggered_by"] for run in runs} == {"backfill"}
    preview = ok(*asked, "--preview")
    assert "it is enqueued or running" in preview


def test_backfill_of_over_a_hundred_runs_waits_for_a_node(two):
    done = onbeat("backfill", "grid", "--from", "2020-01-01", "--to", "2020-01-06")
    assert done.stdout == "100 runs enqueued, 0 ticks left unchanged\n"
    assert done.stderr == "100 runs wait and no node is up: start one, and repeat this command\n"


@pytest.mark.parametrize(
    ("asked", "code", "problem"),
    [
        (
            ("--from", "2020-01-01", "--to", "2030-01-01"),
            4,
            "backfill: the range has 87696 ticks (10000 at most",
        ),
        (
            ("--from", "2020-01-03", "--to", "2020-01-02"),
            4,
            "backfill: 2020-01-02T22:59:59Z is before 2020-01-02T23:00:00Z (the earlier time first)",
        ),
        (("--from", "soon", "--to", "2020-01-01"), 2, "--from: "),
    ],
)
def test_backfill_refuses_invalid_arguments(two, asked, code, problem):
    assert problem in refused(code, "backfill", "grid", *asked)


def test_backfill_of_a_range_without_ticks_enqueues_nothing(two):
    asked = ("--from", "2020-01-01T00:10", "--to", "2020-01-01T00:20")
    assert json.loads(ok("backfill", "grid", *asked, "--preview", "--json")) == []
    assert ok("backfill", "grid", *asked) == "0 runs enqueued, 0 ticks left unchanged\n"
