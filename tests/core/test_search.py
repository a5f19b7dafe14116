"""A search for the next tick that reaches its limit: the due row holds where it continues.

A search at its limit has not ended. Its due row holds an instant that is not a tick; planning that
decides nothing and moves on, until the tick beyond is found or the trigger has really ended.
"""

from itertools import pairwise

import pytest

from onbeat.core.decide.plan import decide_edit, next_due, plan, set_aside
from onbeat.core.runs.decisions import Due, Launch, Plan, Tick
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.core.triggers import base
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.testing import a_schedule

NOON = parse_instant("2026-01-01T12:00:00Z")
MINUTE, DAY = 60, 86_400

MIDNIGHT = {"cron": "0 0 * * *"}
YEARS = {"start_at": "2028-01-01T00:00:00Z", "end_at": "2070-01-01T00:00:00Z"}
A_YEAR = {"start_at": "2026-01-01T12:00:01Z", "end_at": "2027-01-01T00:00:00Z"}
SECONDS_AND_SILENCE = {"minus": [{"every": "1s"}, {"every": "1s"} | A_YEAR]}
SILENT_FOR_A_YEAR = {"minus": [{"every": "10m"}, {"cron": "*/10 * * * *"} | A_YEAR]}

SILENT = [  # a trigger, an instant after which it is silent for long, and its next tick
    pytest.param({"minus": [MIDNIGHT, MIDNIGHT | YEARS]}, "2027-12-31T00:00:00Z", "2070-01-02T00:00:00Z", id="days without 42 years"),
    pytest.param(SECONDS_AND_SILENCE, "2026-01-01T12:00:00Z", "2027-01-01T00:00:01Z", id="seconds without a year"),
    pytest.param({"all": [{"minus": [MIDNIGHT, MIDNIGHT | YEARS]}, {"cron": "0 0 * * MON-FRI"}]}, "2027-12-31T00:00:00Z", "2070-01-02T00:00:00Z", id="all, around that"),
    pytest.param({"any": [SILENT_FOR_A_YEAR, {"cron": "0 0 1 6 *", "start_at": "2028-01-01T00:00Z"}]}, "2026-01-01T12:00:00Z", "2027-01-01T00:10:00Z", id="any, the other tick being later still"),
    pytest.param(SILENT_FOR_A_YEAR | {"exclude": ["2027-01-01..2027-01-10"]}, "2026-01-01T12:00:00Z", "2027-01-11T00:00:00Z", id="exclude, around that"),
    pytest.param(SILENT_FOR_A_YEAR | {"max_runs": 5, "jitter": "10m"}, "2026-01-01T12:00:00Z", "2027-01-01T00:10:00Z", id="limits, around that"),
]  # fmt: skip


def rows_after(schedule, t, past=NO_PAST, *, most=1_000):
    """Yield the due rows from `t` on as a planner that is never late comes by them."""
    row = next_due(schedule, t, past)
    for _ in range(most):
        if row is None:
            return
        yield row
        found = plan(schedule, row.run_at, (), past, now=row.due_at)
        assert found.due is None or found.due.run_at > row.run_at, "it moves on"
        row = found.due


def ticks_after(schedule, t, until):
    """Return the ticks that following the due rows comes by, and how often it looked again."""
    found, looks = [], 0
    for row in rows_after(schedule, t, most=100_000):
        if row.run_at > until:
            break
        if schedule.trigger.has(row.run_at, NO_PAST):
            found.append(row.run_at)
        else:
            looks += 1
    return found, looks


@pytest.mark.parametrize(("given", "since", "tick"), SILENT)
def test_exhausted_search_is_continued_until_the_tick_is_found(given, since, tick):
    schedule = a_schedule(**given)
    looked = []
    for row in rows_after(schedule, parse_instant(since)):
        if schedule.trigger.has(row.run_at, NO_PAST):
            break
        looked.append(row)
    assert looked, "it gave up at least once"
    assert rfc3339(row.run_at) == tick
    assert all(earlier.run_at < later.run_at for earlier, later in pairwise([*looked, row]))


@pytest.mark.parametrize(("given", "since", "tick"), SILENT)
def test_row_of_an_exhausted_search_is_due_and_decides_nothing(given, since, tick):
    schedule = a_schedule(**given)
    row = next_due(schedule, parse_instant(since), NO_PAST)
    assert row.due_at == row.run_at * 1000
    assert schedule.trigger.look(parse_instant(since), NO_PAST)[1] == row.run_at
    for late in (0, 10**9):
        found = plan(schedule, row.run_at, (), NO_PAST, now=row.due_at + late)
        assert found == Plan((), next_due(schedule, row.run_at + late // 1000, NO_PAST))


def test_search_continues_until_caught_up_after_downtime():
    schedule = a_schedule(**SILENT_FOR_A_YEAR, grace="1h", overlap="allow")
    now = parse_instant("2027-01-01T00:30:00Z") * 1000
    row, decisions = next_due(schedule, NOON, NO_PAST), []
    while row.due_at <= now:
        found = plan(schedule, row.run_at, (), NO_PAST, now=now)
        decisions += found.decisions
        row = found.due
    assert [rfc3339(decision.tick.run_at)[11:16] for decision in decisions] == [
        "00:10", "00:20", "00:30",
    ]  # fmt: skip


def test_continued_search_misses_no_tick():
    schedule = a_schedule(**SILENT_FOR_A_YEAR)
    reached = next_due(schedule, NOON, NO_PAST).run_at
    assert not any(schedule.trigger.has(t, NO_PAST) for t in range(NOON + 60, reached + 1, 60))


def test_tick_within_the_search_limit_is_found_in_one_search():
    schedule = a_schedule(minus=[MIDNIGHT, MIDNIGHT | YEARS])
    (row, again) = list(rows_after(schedule, parse_instant("2027-12-30T00:00Z"), most=2))
    assert schedule.trigger.has(row.run_at, NO_PAST)
    assert not schedule.trigger.has(again.run_at, NO_PAST)


@pytest.mark.parametrize(
    "given",
    [
        {"at": "2026-01-01T12:00:00Z"},
        {"every": "1h", "end_at": "2026-01-01T12:59:59Z"},
        {"any": [{"at": "2026-01-01T12:00:00Z"}, {"every": "1h", "end_at": "2026-01-01T12:00Z"}]},
        {"all": [{"every": "20m", "end_at": "2026-01-01T12:30Z"}, {"every": "30m"}]},
        {"minus": [{"every": "1s", "end_at": "2026-01-01T23:00Z"}, {"every": "1s"} | A_YEAR]},
        {"cron": "* * * * * *", "end_at": "2026-01-02T12:00:00Z", "exclude": ["2026-01-01T12:00:01Z..2026-02-01T00:00Z"]},
        SILENT_FOR_A_YEAR | {"end_at": "2026-01-20T00:00:00Z"},
    ],
)  # fmt: skip
def test_ended_trigger_has_no_due_row(given):
    schedule = a_schedule(**given)
    assert schedule.trigger.has(NOON, NO_PAST)
    assert next_due(schedule, NOON, NO_PAST) is None
    assert plan(schedule, NOON, (), NO_PAST, now=NOON * 1000).due is None


def test_trigger_without_runs_left_is_not_searched_again():
    schedule = a_schedule(**SILENT_FOR_A_YEAR, max_runs=3)
    assert next_due(schedule, NOON, Past(runs_used=2)) is not None
    assert next_due(schedule, NOON, Past(runs_used=3)) is None
    reached = next_due(schedule, NOON, Past(runs_used=2)).run_at
    assert plan(schedule, reached, (), Past(runs_used=3), now=reached * 1000) == Plan((), None)


def test_search_ends_at_a_distant_end_of_the_trigger():
    schedule = a_schedule(**SILENT_FOR_A_YEAR, end_at="2026-12-01T00:00:00Z")
    *looked, last = rows_after(schedule, NOON)
    assert not any(schedule.trigger.has(row.run_at, NO_PAST) for row in [*looked, last])
    assert last.run_at < parse_instant("2026-12-01T00:00:00Z")


def test_plain_trigger_never_exhausts_a_search():
    schedule = a_schedule(cron="0 0 29 2 *", exclude=[])
    assert schedule.trigger.look(NOON, NO_PAST)[1] is None
    assert rfc3339(next_due(schedule, NOON, NO_PAST).run_at) == "2028-02-29T00:00:00Z"


# -- the law, with so small a budget that every other tick is beyond a search

UNTIL = NOON + 10 * DAY
AROUND_MIDNIGHT = {"minus": [{"every": "6m"}, {"every": "6m", "within": "00:30-23:30"}]}
SPARSE = [
    AROUND_MIDNIGHT,
    AROUND_MIDNIGHT | {"within": {"days": "FRI,SAT,SUN,MON"}, "exclude": ["2026-01-03"]},
    AROUND_MIDNIGHT | {"within": {"hours": "00:15-08:00", "outside": "move"}},
    {"all": [{"every": "9m"}, AROUND_MIDNIGHT]},
    {"all": [{"every": "11m"}, {"minus": [{"every": "13m"}, {"every": "1m", "within": "08:00-20:00"}]}]},
    {"minus": [{"cron": "*/7 * * * *"}, {"cron": "* 0-22 * * MON-SAT"}, {"cron": "* * * * SUN"}]},
    {"minus": [{"every": "1m"}, {"every": "1m", "within": {"days": "MON-THU"}}]},
]  # fmt: skip


@pytest.mark.parametrize("given", SPARSE)
def test_every_tick_is_found_with_any_search_limit(given, monkeypatch):
    schedule = a_schedule(**given)
    minutes = range(NOON + MINUTE, UNTIL + 1, MINUTE)
    expected = [t for t in minutes if schedule.trigger.has(t, NO_PAST)]
    monkeypatch.setattr(base, "BUDGET", 0)
    found, looks = ticks_after(schedule, NOON, UNTIL)
    assert found == expected
    assert looks, "it did give up"


# -- parts with a search that gives up

TWO_CLOSED = [
    {"every": "6m", "within": "08:30-18:00"},
    {"every": "6m", "within": "18:00-04:00"},
]
MORNINGS = {"minus": [{"every": "6m"}, *TWO_CLOSED]}  # from 04:00 to 08:30
TONIGHT = parse_instant("2026-01-01T08:28:00Z")


def test_any_misses_no_tick_of_a_part_with_an_exhausted_search():
    schedule = a_schedule(any=[MORNINGS, {"daily": "08:28"}])
    morning = parse_instant("2026-01-02T04:00:00Z")
    assert schedule.trigger.has(morning, NO_PAST)
    found, _ = ticks_after(schedule, TONIGHT, morning + 6 * 3600)
    assert found[0] == morning
    assert len(found) == 46


def test_edit_launches_a_tick_on_time_after_an_exhausted_search():
    schedule = a_schedule(**MORNINGS)
    again = next_due(schedule, TONIGHT, NO_PAST)
    tick = parse_instant("2026-01-02T04:00:00Z")
    assert next_due(schedule, again.run_at, NO_PAST) == Due(tick, tick * 1000)
    (launch,) = decide_edit(schedule, again.run_at, (), NO_PAST, now=tick * 1000)
    assert launch == Launch(Tick(tick, tick * 1000))


def test_edit_decides_nothing_for_an_exhausted_search():
    schedule = a_schedule(**SILENT_FOR_A_YEAR)
    first, second = rows_after(schedule, NOON, most=2)
    found = decide_edit(schedule, first.run_at, (), NO_PAST, now=second.due_at)
    assert found == ()


def test_pause_longer_than_a_search_sets_its_ticks_aside():
    schedule = a_schedule(**SILENT_FOR_A_YEAR)
    again = next_due(schedule, NOON, NO_PAST)
    now = parse_instant("2027-01-01T00:30:00Z") * 1000
    aside = set_aside(schedule, again.run_at, NO_PAST, now=now, reason="paused")
    assert aside is not None
    assert (aside.tick.count, rfc3339(aside.tick.run_at)) == (3, "2027-01-01T00:30:00Z")


def test_range_over_a_long_gap_is_counted_completely():
    schedule = a_schedule(**SILENT_FOR_A_YEAR)
    now = parse_instant("2027-01-01T00:30:00Z") * 1000
    aside = set_aside(schedule, NOON, NO_PAST, now=now, reason="paused")
    assert aside.tick.count == 4
