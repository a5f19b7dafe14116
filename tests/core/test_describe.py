"""Descriptions of triggers, and notes about clock changes."""

import pytest

from onbeat import after, at, calendar, cron, daily, every, startup
from onbeat.core.explain.describe import describe
from onbeat.core.explain.dst_notes import YEAR, clock_change_notes
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.kinds import Manual

JANUARY = parse_instant("2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 9 * * MON-FRI", "at 09:00 on Monday to Friday, Europe/Berlin"),
        ("*/5 * * * *", "every 5 minutes, Europe/Berlin"),
        ("* * * * *", "every minute, Europe/Berlin"),
        ("30 * * * *", "every hour at minute 30, Europe/Berlin"),
        ("0 */2 * * *", "every 2 hours, Europe/Berlin"),
        ("15 */6 * * *", "at 00:15, 06:15, 12:15 and 18:15 every day, Europe/Berlin"),
        ("0 9-17/2 * * 1-5", "at 09:00, 11:00, 13:00, 15:00 and 17:00 on Monday to Friday, Europe/Berlin"),
        ("*/7 * * * *", "at minutes 0, 7, ... 56 of every hour, Europe/Berlin"),
        ("0-40/4 * * * * *", "at seconds 0, 4, ... 40 of every minute, Europe/Berlin"),
        ("5,10 * 9 * * *", "at seconds 5 and 10 of every minute during hour 9, Europe/Berlin"),
        ("*/10 9-17 * * *", "every 10 minutes during hours 9 to 17, Europe/Berlin"),
        ("0 0 1 */3 *", "at 00:00 on day 1 of January, April, July and October, Europe/Berlin"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday, Europe/Berlin"),
        ("0 0 */2 * 1", "at 00:00 on days 1, 3, ... 31 of the month if it is Monday, Europe/Berlin"),
        ("0 0 L-3,15W,LW * *", "at 00:00 on the day 3 days before the last, the workday nearest to day 15 and the last workday of the month, Europe/Berlin"),
        ("0 9 * * MON#1", "at 09:00 on the first Monday of the month, Europe/Berlin"),
        ("0 0 * * 5L,1", "at 00:00 on Monday and the last Friday of the month, Europe/Berlin"),
        ("*/15 * * * * *", "every 15 seconds, Europe/Berlin"),
        ("*/20 */10 * * * *", "every 20 seconds in minutes 0, 10, 20, 30, 40 and 50, Europe/Berlin"),
        ("0 30 9 1 1 ? 2027-2030", "at 09:30 on day 1 of January in 2027 to 2030, Europe/Berlin"),
        ("0 9 * 6-8 *", "at 09:00 in June to August, Europe/Berlin"),
        ("@weekly", "at 00:00 on Sunday, Europe/Berlin"),
    ],
)  # fmt: skip
def test_a_cron_reads_as_a_sentence(text, expected):
    assert describe(cron(text, tz="Europe/Berlin")) == expected


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (every("90m"), "every 90 minutes"),
        (every("1d", tz="Europe/Berlin"), "every day at 00:00, Europe/Berlin"),
        (every("2w"), "every 2 weeks on Thursday at 00:00, counted from 1970-01-01, UTC"),
        (every("1mo", start_at="2026-01-31T09:00"), "every month from 2026-01-31 09:00, UTC"),
        (at("2026-12-01T09:00", tz="Europe/Berlin"), "once at 2026-12-01 09:00, Europe/Berlin"),
        (daily("17:00", tz="Asia/Tokyo"), "at 17:00 every day, Asia/Tokyo"),
        (calendar(day_of_week="MON"), "at 00:00 on Monday, UTC"),
        (every("90m", tz="Europe/Berlin", start_at="2026-11-16T08:00"), "every 90 minutes from 2026-11-16 08:00, Europe/Berlin"),
        (cron("0 9 * * *", within={"days": "MON-FRI"}), "at 09:00 every day, UTC, only on Monday to Friday"),
        (calendar(hour=2, second=30), "every minute at second 30 during hour 2, UTC"),
        (cron("5/15 * * * *"), "every 15 minutes, from minute 5, UTC"),
        (startup(), "right after each start of the scheduler"),
        (startup("30s"), "30s after each start of the scheduler"),
        (Manual(), "only when started manually"),
        (after("success", "30m"), "30m after its last run succeeded"),
        (after("failure", schedule="load"), "right after a run of load failed"),
        (cron("0 9 * * *") | after("success", "24h"), "at 09:00 every day, UTC; or 24h after its last run succeeded"),
        (cron("0 9 * * *") & cron("0 9 1 * *"), "at 09:00 every day, UTC; and only when also at 09:00 on day 1 of the month, UTC"),
        (cron("0 9 * * *") - cron("0 9 1 * *"), "at 09:00 every day, UTC; but not at 09:00 on day 1 of the month, UTC"),
        (
            cron("0 9 * * *", exclude=["12-25"], within={"hours": "08:00-18:00", "days": "MON-FRI"}, max_runs=5),
            "at 09:00 every day, UTC, except 12-25, only 08:00 to 18:00 on Monday to Friday, 5 runs at most",
        ),
        (
            cron("0 9 * * *", within={"hours": "10:00-18:00", "outside": "move"}, delay="10m", end_at="2027-01-01T00:00"),
            "at 09:00 every day, UTC, until 2027-01-01 00:00, only 10:00 to 18:00, otherwise at the next opening, not in the first 10m",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_reads_as_a_sentence(trigger, expected):
    assert describe(trigger) == expected


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        (
            cron("30 2 * * *", tz="Europe/Berlin"),
            [
                "2026-03-29: 02:30 does not exist in Europe/Berlin (clocks go from 02:00 to 03:00): runs at 03:00:00+02:00 instead",
                "2026-10-25: 02:30 happens twice in Europe/Berlin (clocks go from 03:00 to 02:00): runs the first time only",
            ],
        ),
        (
            cron("*/30 2 * * *", tz="Europe/Berlin"),
            [
                "2026-03-29: 02:00 and 02:30 do not exist in Europe/Berlin (clocks go from 02:00 to 03:00): no tick",
                "2026-10-25: 02:00 and 02:30 happen twice in Europe/Berlin (clocks go from 03:00 to 02:00): run both times",
            ],
        ),
        (
            cron("0,10,20,30 2 * * *", tz="Europe/Berlin", dst="skip"),
            ["2026-03-29: 02:00, 02:10 and 2 more do not exist in Europe/Berlin (clocks go from 02:00 to 03:00): no tick",
             "2026-10-25: 02:00, 02:10 and 2 more happen twice in Europe/Berlin (clocks go from 03:00 to 02:00): run the first time only"],
        ),
        (every("1d", tz="Africa/Cairo"), ["2026-04-24: 00:00 does not exist in Africa/Cairo (clocks go from 00:00 to 01:00): runs at 01:00:00+03:00 instead"]),
        (cron("*/5 * * * *", tz="Europe/Berlin"), []),
        (cron("30 * * * *", tz="Australia/Lord_Howe"), ["2026-04-05: 01:30 happens twice in Australia/Lord_Howe (clocks go from 02:00 to 01:30): runs both times"]),
        (cron("0 9 * * *", tz="Europe/Berlin") | cron("30 2 1 * *"), []),
        (every("5m", tz="Europe/Berlin"), []),
    ],
    ids=str,
)  # fmt: skip
def test_clock_changes_of_the_next_year_are_noted(trigger, expected):
    assert clock_change_notes(trigger, JANUARY, JANUARY + YEAR) == expected


GAP = "2026-03-29: 02:30 does not exist in Europe/Berlin (clocks go from 02:00 to 03:00): "
FOLD = "2026-10-25: 02:30 happens twice in Europe/Berlin (clocks go from 03:00 to 02:00): "


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"exclude": ["2026-03-29"]}, [FOLD + "runs the first time only"]),
        ({"end_at": "2026-06-01T00:00"}, [GAP + "runs at 03:00:00+02:00 instead"]),
        ({"start_at": "2026-06-01T00:00"}, [FOLD + "runs the first time only"]),
        ({"max_runs": 100}, [GAP + "runs at 03:00:00+02:00 instead"]),
        ({"max_runs": 10}, []),
        ({"within": "02:00-03:00"}, [GAP + "no tick, since it is outside the hours then", FOLD + "runs the first time only"]),
        ({"within": {"days": "MON-FRI"}}, []),
    ],
    ids=str,
)  # fmt: skip
def test_clock_change_is_noted_only_if_it_affects_the_trigger(limits, expected):
    trigger = cron("30 2 * * *", tz="Europe/Berlin", **limits)
    assert clock_change_notes(trigger, JANUARY, JANUARY + YEAR) == expected


def test_clock_change_is_noted_only_if_it_affects_the_combination():
    nightly = cron("30 2 * * *", tz="Europe/Berlin")
    without = nightly - at("2026-03-29T01:00:00Z")
    assert clock_change_notes(without, JANUARY, JANUARY + YEAR) == [
        FOLD + "runs the first time only"
    ]
    sundays = nightly & cron("0,30 * * * SUN", tz="Europe/Berlin")
    assert len(clock_change_notes(sundays, JANUARY, JANUARY + YEAR)) == 2
    mondays = nightly & cron("0,30 * * * MON", tz="Europe/Berlin")
    assert clock_change_notes(mondays, JANUARY, JANUARY + YEAR) == []


def test_many_runs_are_counted_not_listed():
    assert clock_change_notes(every("1s", max_runs=10**9), JANUARY, JANUARY + YEAR) == []
    dense = cron("* 2 * * *", tz="Europe/Berlin", max_runs=10**9)
    assert len(clock_change_notes(dense, JANUARY, JANUARY + YEAR)) == 2


def test_repeated_single_time_is_noted():
    assert clock_change_notes(
        at("2026-10-25T02:30", tz="Europe/Berlin"), JANUARY, JANUARY + YEAR
    ) == [FOLD + "runs the first time only"]
    assert (
        clock_change_notes(
            at("2026-10-25T02:30+01:00", tz="Europe/Berlin"), JANUARY, JANUARY + YEAR
        )
        == []
    )


def test_skipped_day_is_noted():
    december = parse_instant("2011-12-01T00:00:00Z")
    (note,) = clock_change_notes(
        cron("0 9 * * *", tz="Pacific/Apia"), december, december + YEAR // 10
    )
    assert note.startswith(
        "2011-12-30: 09:00 does not exist in Pacific/Apia (clocks go from 2011-12-30 00:00 to 2011-12-31 00:00)"
    )
    assert note.endswith("dropped, since the change is longer than 3 hours")
