"""Limits of a trigger: bounds, delay, number of runs, excluded days, allowed hours."""

from datetime import UTC, date, datetime

import pytest

from onbeat import InvalidSchedule, after, at, cron, every, startup
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.past import Past
from tests.core.pasts import happened

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
T = int(JANUARY.timestamp())


def ticks(trigger, n=3, t=JANUARY):
    return [rfc3339(tick) for tick in trigger.upcoming(t, n)]


def test_start_and_end_are_included():
    trigger = cron("0 * * * *", start_at="2026-02-01T10:00", end_at="2026-02-01T12:00")
    assert [tick[11:16] for tick in ticks(trigger, 9)] == ["10:00", "11:00", "12:00"]
    assert len(trigger.between(0, 2**32)) == 3


def test_bounds_without_offset_are_in_the_zone():
    trigger = cron("0 * * * *", tz="Asia/Tokyo", start_at="2026-02-01T09:00")
    assert ticks(trigger, 1) == ["2026-02-01T00:00:00Z"]


def test_delay_postpones_the_first_ticks_of_a_new_schedule():
    trigger = every("10s", delay="25s")
    assert trigger.next_after(T, Past(created_at=T)) == T + 30
    assert trigger.next_after(T + 60, Past(created_at=T)) == T + 70


def test_max_runs_counts_starts_not_ticks():
    trigger = cron("0 9 * * *", max_runs=2)
    assert len(trigger.upcoming(T, 10)) == 2
    assert trigger.next_after(T, Past(runs_used=1)) == T + 9 * 3600
    assert trigger.next_after(T, Past(runs_used=2)) is None
    assert len(trigger.between(T, T + 10**7, Past(runs_used=2))) == 0


def test_excluded_days_are_whole_days_of_the_zone():
    trigger = cron("0 */6 * * *", tz="Asia/Tokyo", exclude=["2026-01-01", date(2026, 1, 2)])
    assert ticks(trigger, 1) == ["2026-01-02T15:00:00Z"]


def test_exclude_accepts_days_ranges_and_spans():
    trigger = cron(
        "0 12 * * *",
        exclude=["01-01", "2026-01-03..2026-01-05", "2026-01-06T11:00Z..2026-01-06T12:30Z"],
    )
    assert [tick[:10] for tick in ticks(trigger)] == ["2026-01-02", "2026-01-07", "2026-01-08"]
    assert ticks(trigger, 1, datetime(2026, 12, 31, 12, tzinfo=UTC)) == ["2027-01-02T12:00:00Z"]


def test_a_leap_day_may_be_excluded_every_year():
    trigger = cron("0 0 29,28 2 *", exclude=["02-29"])
    assert [tick[:10] for tick in ticks(trigger, 3)] == ["2026-02-28", "2027-02-28", "2028-02-28"]


def test_within_keeps_the_allowed_hours_and_days():
    trigger = cron("0 */4 * * *", within={"hours": "08:00-17:00", "days": "MON-FRI"})
    assert ticks(trigger, 4, datetime(2026, 1, 2, tzinfo=UTC)) == [
        "2026-01-02T08:00:00Z", "2026-01-02T12:00:00Z", "2026-01-02T16:00:00Z", "2026-01-05T08:00:00Z",
    ]  # fmt: skip


def test_within_hours_may_cross_midnight_and_be_several():
    trigger = cron("0 * * * *", within=["22:00-02:00", "12:00-13:00"])
    assert [tick[11:13] for tick in ticks(trigger, 6)] == ["01", "12", "22", "23", "00", "01"]


def test_a_moved_tick_keeps_its_run_at_and_is_due_at_the_opening():
    trigger = cron("30 */4 * * *", within={"hours": "09:00-17:00", "outside": "move"})
    moved = trigger.next_after(datetime(2026, 1, 1, 17, tzinfo=UTC))
    assert rfc3339(moved) == "2026-01-01T20:30:00Z"
    assert rfc3339(trigger.due_at(moved)) == "2026-01-02T09:00:00Z"
    assert (
        rfc3339(trigger.next_after(moved)) == "2026-01-02T12:30:00Z"
    )  # 00:30, 04:30, 08:30 joined it
    assert trigger.due_at(trigger.next_after(moved)) == trigger.next_after(moved)


def test_opening_that_has_a_tick_takes_no_moved_one():
    trigger = cron("0 */3 * * *", within={"hours": "09:00-17:00", "outside": "move"})
    assert [tick[11:13] for tick in ticks(trigger, 4, datetime(2026, 1, 1, 9, tzinfo=UTC))] == [
        "12",
        "15",
        "09",
        "12",
    ]


@pytest.mark.parametrize("gap", ["1s", "10m", "20m"])
def test_closed_time_is_skipped_quickly_with_any_number_of_ticks(gap):
    office = {"hours": "09:00-17:00", "days": "MON-FRI", "outside": "move"}
    trigger = every(gap, within=office, exclude=["2026-01-05"])
    friday = datetime(2026, 1, 2, 16, 59, 59, tzinfo=UTC)
    assert ticks(trigger, 1, friday) == ["2026-01-06T09:00:00Z"]


def test_tick_is_not_moved_onto_an_excluded_day():
    trigger = cron(
        "0 20 1 * *", exclude=["2026-01-02"], within={"hours": "09:00-17:00", "outside": "move"}
    )
    tick = trigger.next_after(JANUARY)
    assert (rfc3339(tick), rfc3339(trigger.due_at(tick))) == (
        "2026-01-01T20:00:00Z",
        "2026-01-03T09:00:00Z",
    )


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (
            {"start_at": "2026-02-02T00:00", "end_at": "2026-02-01T00:00"},
            "end_at: .* is before the start",
        ),
        ({"start_at": "soon"}, "start_at: 'soon' is not a date and time"),
        ({"delay": "1mo"}, "delay: '1mo' has no fixed length"),
        ({"delay": -1}, "delay: "),
        ({"max_runs": 0}, "max_runs: 0 is not a number of runs"),
        ({"max_runs": True}, "max_runs: True is not"),
        ({"exclude": ["2026-02-30"]}, "exclude: '2026-02-30' is not an existing date"),
        ({"exclude": ["13-01"]}, "exclude: '13-01' is not an existing date"),
        ({"exclude": ["2026-02-03..2026-02-01"]}, "exclude: .* ends before it begins"),
        ({"exclude": ["2026-02-03..2026-02-02"]}, "exclude: .* ends before it begins"),
        ({"exclude": ["12-24..13-01"]}, "exclude: '12-24..13-01' is not an existing date"),
        (
            {"exclude": ["SAT"]},
            r"no calendar is called 'SAT' \(for weekdays use within: \{days: MON-FRI\}\)",
        ),
        ({"within": "09:00-09:00"}, "within.hours: '09:00-09:00' begins and ends at the same time"),
        (
            {"end_at": "1969-01-01T00:00", "start_at": "1968-12-31T21:00"},
            "end_at: .* is before every tick",
        ),
        ({"exclude": ["holidays"]}, "exclude: no calendar is called 'holidays'"),
        ({"exclude": [5]}, "exclude: 5 is not a date"),
        ({"exclude": ["2026-02-01"] * 10_001}, "exclude: 10001 items"),
        ({"within": "9 to 5"}, "within.hours: '9 to 5' is not a range of hours"),
        ({"within": {"hours": 9}}, "within.hours: 9 is not a range of hours"),
        ({"within": {"days": "MON#1"}}, "within.days: 'MON#1' is not a list of weekdays"),
        ({"within": {"days": "Someday"}}, "within.days: 'Someday' is not a day of week"),
        ({"within": {"outside": "wait"}}, "within.outside: 'wait' is not a valid value"),
        ({"within": {"hour": "09:00-17:00"}}, "within.hour: no field has this name"),
        ({"within": "09:00-10:00"}, "within: no tick is left"),
        ({"dst": "jump"}, "dst: 'jump' is not a valid value"),
    ],
)
def test_invalid_limit_is_refused(limits, said):
    with pytest.raises(InvalidSchedule, match=said):
        cron("0 20 * * *", **limits)


def test_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError, match="no keyword is called 'stop_at': did you mean 'start_at'"):
        cron("0 9 * * *", stop_at="2026-02-01T00:00")


def test_trigger_with_all_ticks_excluded_is_refused():
    with pytest.raises(InvalidSchedule, match="exclude: no tick is left"):
        at("2026-12-25T09:00", exclude=["12-25"])


def test_dense_triggers_with_closed_times_are_counted_quickly():
    seconds = cron("* * * * * *", exclude=["2026-07-04"], within="09:00-17:00")
    assert len(seconds.between(T, T + 365 * 86_400)) == 364 * 8 * 3600
    assert rfc3339(seconds.between(T, T + 365 * 86_400).last) == "2026-12-31T16:59:59Z"


def test_years_of_excluded_days_are_skipped_quickly():
    assert ticks(cron("0 9 * * *", exclude=["2026-01-01..2075-12-31"]), 1) == [
        "2076-01-01T09:00:00Z"
    ]


def test_yearly_excluded_range_may_cross_new_year():
    trigger = cron("0 12 * * *", exclude=["12-24..01-02", "02-28..02-29"])
    assert ticks(trigger, 1) == ["2026-01-03T12:00:00Z"]
    assert ticks(trigger, 1, datetime(2026, 12, 23, 12, tzinfo=UTC)) == ["2027-01-03T12:00:00Z"]
    assert ticks(trigger, 1, datetime(2027, 2, 27, 12, tzinfo=UTC)) == ["2027-03-01T12:00:00Z"]
    assert ticks(trigger, 1, datetime(2028, 2, 27, 12, tzinfo=UTC)) == ["2028-03-01T12:00:00Z"]
    winter = cron("0 0 * * *", exclude=["12-24..02-29"])
    assert ticks(winter, 1, datetime(2025, 12, 26, tzinfo=UTC)) == ["2026-03-01T00:00:00Z"]
    assert ticks(winter, 1, datetime(2027, 12, 26, tzinfo=UTC)) == ["2028-03-01T00:00:00Z"]


def test_tick_before_start_at_does_not_move_another():
    trigger = cron(
        "30 20,22 * * *",
        within={"hours": "09:00-17:00", "outside": "move"},
        start_at="2026-01-01T21:00",
    )
    assert ticks(trigger, 2) == ["2026-01-01T22:30:00Z", "2026-01-02T20:30:00Z"]


def test_end_before_the_first_interval_tick_is_refused():
    with pytest.raises(InvalidSchedule, match="end_at: 2026-11-16T08:00:00 is before every tick"):
        every("90m", start_at="2026-11-20T08:00", end_at="2026-11-16T08:00")


def test_unknown_keyword_timezone_suggests_tz():
    with pytest.raises(TypeError, match=r"no keyword is called 'timezone': did you mean 'tz'\?"):
        cron("0 9 * * *", timezone="Europe/Berlin")


def test_bounds_apply_to_every_kind_of_trigger():
    started = startup("30s", max_runs=1)
    assert started.next_after(T, happened(started)) == T + 30
    ended = after("success", "1h", end_at="2026-01-01T00:30")
    assert ended.next_after(T, happened(ended)) is None
