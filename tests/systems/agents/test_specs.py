"""Schedules of agents: what a spec means, and which specs are refused."""

from datetime import UTC, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from onbeat.agents import Orchestrator, ScheduleSpec
from onbeat.core.explain.describe import describe
from onbeat.core.time.instants import parse_instant, rfc3339

SECOND, NOON = timedelta(seconds=1), parse_instant("2026-01-01T12:00:00Z")


@pytest.mark.req("F17", "F18", "F40", "F49")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "^Exactly one of 'interval', 'at', or 'cron' must be specified$"),
        ({"interval": SECOND, "cron": "* * * * *"}, "^Exactly one of 'interval', 'at', or 'cron' must be specified$"),
        ({"interval": SECOND, "after": -SECOND}, "^after must be >= 0 seconds$"),
        ({"interval": SECOND, "max_repeats": 0}, "^max_repeats must be > 0$"),
        ({"interval": SECOND, "max_repeats": -1}, "^max_repeats must be > 0$"),
        ({"interval": SECOND, "max_repeats": 1.5}, "max_repeats must be a whole number, not 1.5"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "max_repeats": 10_001}, "10001 is too large"),
        ({"interval": timedelta(0)}, "interval must be > 0 seconds"),
        ({"interval": -SECOND}, "interval must be > 0 seconds"),
        ({"interval": timedelta(milliseconds=500)}, "interval must be whole seconds, not 0:00:00.500000"),
        ({"interval": SECOND, "after": timedelta(milliseconds=1)}, "after must be whole seconds"),
        ({"interval": timedelta(days=50_000)}, "every: "),
        ({"interval": SECOND, "after": timedelta(days=999_999_999)}, "after must be 35770 days at most"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "at must be in the years 2 to 9998, not 9999-12-31"),
        ({"at": datetime.min.replace(tzinfo=UTC)}, "at must be in the years 2 to 9998, not 0001-01-01"),
        ({"at": time(17, tzinfo=ZoneInfo("Europe/London"))}, "at must be a time in UTC, not in Europe/London"),
        ({"interval": 60}, "interval must be a timedelta, not 60"),
        ({"at": "17:00"}, "at must be a time or a datetime, not '17:00'"),
        ({"at": time(17, tzinfo=timezone(timedelta(hours=2)))}, "at must be a time in UTC"),
        ({"at": time(17, 0, 0, 5)}, "at must be a whole second of the day"),
        ({"cron": "garbage"}, "cron must have 5 fields, not 1: 'garbage'"),
        ({"cron": "@daily"}, "cron must have 5 fields"),
        ({"cron": "0 */5 * * * *"}, "cron must have 5 fields, not 6"),
        ({"cron": "60 * * * *"}, "cron.minute: '60' is not a minute"),
        ({"cron": "0 0 31 2 *"}, "cron: "),
        ({"cron": "H 9 * * *"}, "cron"),
        ({"cron": 5}, "cron must be a string, not 5"),
    ],
)  # fmt: skip
def test_invalid_spec_is_refused_when_created(given, said):
    with pytest.raises(ValueError, match=said):
        ScheduleSpec(**given)
    described = {"every" if name == "interval" else name: value for name, value in given.items()}
    with pytest.raises(ValueError, match=said):
        Orchestrator("sqlite://").agent("daily").schedule(**described)


@pytest.mark.req("F19", "F40")
@pytest.mark.parametrize("given", [{"after": timedelta(0)}, {"max_repeats": 1}])
def test_limits_of_a_spec_are_included(given):
    assert ScheduleSpec(interval=SECOND, **given) is not None


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("UTC"), timezone(timedelta(0))])
def test_spec_accepts_utc_by_any_name(zone):
    assert ScheduleSpec(at=time(17, tzinfo=zone)).trigger(anchor=0).upcoming(NOON, 1) == [
        NOON + 5 * 3600
    ]


@pytest.mark.req("F20", "F21", "F22", "F23", "F24", "F41")
@pytest.mark.parametrize(
    ("cron", "first"),
    [
        ("*/5 * * * *", ["12:05", "12:10", "12:15"]),
        ("0 17 * * *", ["17:00", "17:00", "17:00"]),
        ("0 9-17/2 * * 1-5", ["13:00", "15:00", "17:00"]),
        ("1,2,30 12 * * *", ["12:01", "12:02", "12:30"]),
        ("0 13 * JAN THU-FRI", ["13:00", "13:00", "13:00"]),
    ],
)
def test_cron_spec_accepts_stars_lists_ranges_and_steps_in_utc(cron, first):
    ticks = ScheduleSpec(cron=cron).trigger(anchor=0).upcoming(NOON, 3)
    assert [rfc3339(tick)[11:16] for tick in ticks] == first


@pytest.mark.req("F12", "F13")
@pytest.mark.parametrize(("repeats", "times"), [(None, 1), (1, 1), (4, 4)])
def test_date_spec_has_one_tick_or_as_many_as_it_repeats(repeats, times):
    spec = ScheduleSpec(at=datetime(2026, 1, 1, 17, tzinfo=UTC), max_repeats=repeats)
    assert len(spec.trigger(anchor=0).upcoming(NOON, 100)) == times


def test_agent_has_at_most_one_schedule():
    agent = Orchestrator("sqlite://").agent("daily").schedule(every=SECOND)
    with pytest.raises(ValueError, match="has a schedule already"):
        agent.schedule(cron="* * * * *")


def test_repr_of_a_spec_is_readable():
    spec = ScheduleSpec(interval=timedelta(minutes=90), max_repeats=3)
    assert (
        describe(spec.trigger(anchor=NOON))
        == "every 90 minutes from 2026-01-01 12:00Z, 3 runs at most"
    )
