"""The kinds of trigger other than cron, and how they combine."""

import functools
import operator
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta

import pytest

from onbeat import InvalidSchedule, after, at, calendar, cron, daily, every, startup
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import FIRST_SECOND, LAST_SECOND, Zone, _parse_tzif, zone
from onbeat.core.triggers.base import PROBES
from onbeat.core.triggers.codec import decode, from_json, to_json
from onbeat.core.triggers.kinds import Manual
from tests.core.pasts import happened
from tests.timing import LIMIT, cpu_seconds

OFFICE = {"hours": "09:00-17:00", "outside": "move"}
JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
T = int(JANUARY.timestamp())


def ticks(trigger, n=3, t=JANUARY):
    return [rfc3339(tick) for tick in trigger.upcoming(t, n)]


class TestEvery:
    def test_interval_grid_is_anchored_at_the_epoch(self):
        assert ticks(every("90m"), t=JANUARY + timedelta(minutes=1)) == [
            "2026-01-01T01:30:00Z", "2026-01-01T03:00:00Z", "2026-01-01T04:30:00Z",
        ]  # fmt: skip
        assert every("7s").next_after(T + 0.5) == every("7s").next_after(T)

    def test_interval_grid_begins_with_start_at(self):
        trigger = every("2h", start_at="2026-01-01T09:15:00Z")
        assert ticks(trigger, 2) == ["2026-01-01T09:15:00Z", "2026-01-01T11:15:00Z"]
        assert len(trigger.between(0, T)) == 0

    def test_interval_of_hours_is_elapsed_and_of_days_is_calendar_time(self):
        saturday = datetime(2026, 3, 28, 12, tzinfo=UTC)
        hours = every("24h", tz="Europe/Berlin", start_at="2026-03-28T12:00")
        days = every("1d", tz="Europe/Berlin", start_at="2026-03-28T12:00")
        assert ticks(hours, 2, saturday) == ["2026-03-29T11:00:00Z", "2026-03-30T11:00:00Z"]
        assert ticks(days, 2, saturday) == ["2026-03-29T10:00:00Z", "2026-03-30T10:00:00Z"]

    def test_month_from_the_31st_is_clamped_and_counted_from_the_anchor(self):
        trigger = every("1mo", start_at="2026-01-31T09:00")
        assert [tick[:10] for tick in ticks(trigger, 5)] == [
            "2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30", "2026-05-31",
        ]  # fmt: skip

    def test_yearly_tick_on_a_leap_day_returns_to_it(self):
        trigger = every("1y", start_at="2024-02-29T00:00")
        assert [tick[:10] for tick in ticks(trigger, 3)] == [
            "2026-02-28",
            "2027-02-28",
            "2028-02-29",
        ]

    def test_daily_step_into_a_gap_runs_after_it_or_is_skipped(self):
        friday = datetime(2026, 3, 28, 12, tzinfo=UTC)
        anchor = {"tz": "Europe/Berlin", "start_at": "2026-01-01T02:30"}
        assert ticks(every("1d", **anchor), 2, friday) == [
            "2026-03-29T01:00:00Z",
            "2026-03-30T00:30:00Z",
        ]
        assert ticks(every("1d", dst="skip", **anchor), 1, friday) == ["2026-03-30T00:30:00Z"]

    @pytest.mark.parametrize(
        "length", ["1d12h", "1mo1d", "0s", "", "soon", "-5m", "1.5h", 90, None]
    )
    def test_invalid_step_is_refused(self, length):
        with pytest.raises(InvalidSchedule, match="every: "):
            every(length)

    def test_a_year_of_seconds_is_counted_not_listed(self):
        assert len(every("1s").between(T, T + 31_536_000)) == 31_536_000
        assert every("1s").between(T, T + 31_536_000).last == T + 31_535_999

    def test_timedeltas_are_lengths(self):
        assert every(timedelta(minutes=90)) == every("90m") == every("PT90M") == every("1h 30m")


class TestAt:
    def test_times_of_at_tick_once_in_order(self):
        trigger = at(
            "2026-12-01T09:00", "2026-11-01 09:00:00", "2026-12-01T08:00Z", tz="Europe/Berlin"
        )
        assert ticks(trigger, 9) == ["2026-11-01T08:00:00Z", "2026-12-01T08:00:00Z"]

    def test_at_time_in_a_gap_is_refused_with_two_suggestions(self):
        with pytest.raises(
            InvalidSchedule, match=r"\(2026-03-29T01:30:00 or 2026-03-29T03:30:00\)"
        ):
            at("2026-03-29T02:30", tz="Europe/Berlin")

    def test_at_time_in_a_fold_is_the_first_pass_unless_it_has_an_offset(self):
        assert ticks(at("2026-10-25T02:30", tz="Europe/Berlin")) == ["2026-10-25T00:30:00Z"]
        assert ticks(at("2026-10-25T02:30+01:00", tz="Europe/Berlin")) == ["2026-10-25T01:30:00Z"]

    def test_at_accepts_datetimes(self):
        aware = datetime(2026, 12, 1, 9, tzinfo=UTC)
        assert at(aware) == at("2026-12-01T09:00:00Z")
        assert at(aware.replace(tzinfo=None), tz="Europe/Berlin") == at(
            "2026-12-01T09:00", tz="Europe/Berlin"
        )

    @pytest.mark.parametrize("text", ["2026-12-01", "2026-02-30T09:00", "2026-12-01T25:00", "tomorrow", "", None, 5,
                                      "2026-12-01T09:00+25:00", "0001-01-01T00:00Z", "2026-12-01T09:00:00,5"])  # fmt: skip
    def test_invalid_time_is_refused(self, text):
        with pytest.raises(InvalidSchedule, match="at: "):
            at(text)

    def test_at_without_a_time_is_refused(self):
        with pytest.raises(InvalidSchedule, match="at: the list is empty"):
            at()


class TestCalendar:
    def test_all_calendar_fields_must_match(self):
        trigger = calendar(minute=0, hour=[9, 17], day_of_week="FRI", day_of_month=13)
        assert ticks(trigger) == [
            "2026-02-13T09:00:00Z",
            "2026-02-13T17:00:00Z",
            "2026-03-13T09:00:00Z",
        ]

    @pytest.mark.parametrize(
        ("fields", "first"),
        [
            ({"day_of_week": "MON"}, "2026-01-05T00:00:00Z"),
            ({"month": "MAR"}, "2026-03-01T00:00:00Z"),
            ({"hour": 9}, "2026-01-01T09:00:00Z"),
            ({"minute": 30}, "2026-01-01T00:30:00Z"),
            ({"second": 15}, "2026-01-01T00:00:15Z"),
            ({"hour": 9, "second": 30}, "2026-01-01T09:00:30Z"),
            ({"day_of_month": "L", "hour": 6}, "2026-01-31T06:00:00Z"),
            ({"year": 2028}, "2028-01-01T00:00:00Z"),
        ],
    )
    def test_calendar_fields_finer_than_the_finest_given_are_0(self, fields, first):
        assert ticks(calendar(**fields), 1) == [first]

    def test_calendar_time_with_a_wildcard_is_not_shifted_by_clock_changes(self):
        night = datetime(2026, 3, 29, tzinfo=UTC)
        assert ticks(calendar(tz="Europe/Berlin", hour=2, minute=30), 1, night) == [
            "2026-03-29T01:00:00Z"
        ]
        assert ticks(calendar(tz="Europe/Berlin", hour=2, minute="*/30"), 1, night) == [
            "2026-03-30T00:00:00Z"
        ]
        fold = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
        assert ticks(calendar(tz="Europe/Berlin", minute=30), 2, fold) == [
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:30:00Z",
        ]

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({}, "calendar"),
            ({"minute": 60}, "calendar.minute"),
            ({"hour": []}, "calendar.hour"),
            ({"hour": True}, "calendar.hour"),
            ({"minute": [0] * 101}, "calendar.minute"),
            ({"hour": {"a": 1}}, "calendar.hour"),
            ({"weekday": "MON"}, "calendar.weekday"),
            ({"day_of_month": 31, "month": [4, 6]}, "calendar"),
            ({"day_of_month": 30, "month": 2, "year": 2030}, "calendar"),
        ],
    )
    def test_invalid_calendar_is_refused(self, fields, where):
        with pytest.raises(InvalidSchedule) as refused:
            calendar(**fields)
        assert refused.value.field == where


class TestDaily:
    @pytest.mark.parametrize("given", ["17:00", "17:00:00", time(17, 0)])
    def test_daily_ticks_once_a_day_in_its_zone(self, given):
        assert ticks(daily(given, tz="Asia/Tokyo"), 2) == [
            "2026-01-01T08:00:00Z",
            "2026-01-02T08:00:00Z",
        ]

    @pytest.mark.parametrize(
        "given", ["24:00", "17", "5pm", "17:60", "٣:00", "", 1020, None, "17:00:00:00"]
    )
    def test_invalid_time_of_day_is_refused(self, given):
        with pytest.raises(InvalidSchedule, match=r"daily: .* is not a time of day"):
            daily(given)


class TestEventTriggers:
    def test_startup_ticks_once_per_start(self):
        trigger, past = startup("30s"), happened(startup("30s"))
        assert trigger.next_after(T, past) == T + 30
        assert trigger.next_after(T + 30, past) is None
        assert trigger.next_after(T) is None

    def test_after_ticks_relative_to_the_outcome_it_names(self):
        past = happened(after("success", "30m"), after("failure", schedule="load"), at=T + 5)
        assert after("success", "30m").next_after(T, past) == T + 1805
        assert after("completion", "30m").next_after(T, past) is None
        assert after("failure", "30m").next_after(T, past) is None
        assert after("failure", schedule="load").next_after(T, past) == T + 5
        assert after("success", schedule="load").next_after(T, past) is None

    def test_delay_in_months_is_refused(self):
        for made in (lambda: startup("1mo"), lambda: after("success", "1y")):
            with pytest.raises(InvalidSchedule, match="has no fixed length"):
                made()

    def test_unknown_outcome_is_refused(self):
        with pytest.raises(InvalidSchedule, match=r"after\.outcome: no outcome is called 'sucess'"):
            after("sucess")


class TestManual:
    def test_manual_trigger_never_ticks(self):
        assert Manual().next_after(T, happened(startup())) is None
        assert list(Manual().between(T, T + 1_000_000)) == []
        assert len(Manual().between(T, T + 1_000_000)) == 0

    def test_manual_part_does_not_change_a_combination(self):
        assert ticks(cron("0 9 * * *") | Manual()) == ticks(cron("0 9 * * *"))
        assert ticks(cron("0 9 * * *") - Manual()) == ticks(cron("0 9 * * *"))
        with pytest.raises(InvalidSchedule, match="the parts have no tick in common"):
            cron("0 9 * * *") & Manual()


class TestCombined:
    def test_any_merges_ticks_and_equal_instants_are_one(self):
        assert ticks(cron("0 9 * * *") | cron("0 9,10 * * *")) == [
            "2026-01-01T09:00:00Z", "2026-01-01T10:00:00Z", "2026-01-02T09:00:00Z",
        ]  # fmt: skip

    def test_all_ticks_at_common_instants(self):
        assert ticks(every("45m") & cron("0 * * * *"), 2) == [
            "2026-01-01T03:00:00Z",
            "2026-01-01T06:00:00Z",
        ]

    def test_minus_removes_ticks_of_the_second_part(self):
        assert ticks(cron("0 9 * * *") - cron("0 9 * * THU"), 1) == ["2026-01-02T09:00:00Z"]

    def test_parts_without_a_common_tick_are_refused_quickly(self):
        for one, other in (
            (cron("0 9 * * *"), cron("0 10 * * *")),
            (cron("*/2 * * * * *"), cron("1/2 * * * * *")),
        ):
            with pytest.raises(InvalidSchedule, match="the parts have no tick in common"):
                one & other
            with pytest.raises(InvalidSchedule, match="no tick of the first part is left"):
                one - (one | other)

    def test_dense_parts_are_counted_for_a_year_without_listing(self):
        seconds, rare = cron("* * * * * *", tz="America/New_York"), cron("0 9 * * MON-FRI")
        year = (T, T + 365 * 86_400)
        assert len((seconds | every("7s")).between(*year)) == 365 * 86_400
        assert len((seconds - rare).between(*year)) == 365 * 86_400 - len(rare.between(*year))
        assert len((seconds & rare).between(*year)) == len(rare.between(*year)) == 261

    def test_combination_keeps_the_due_time_of_a_moved_tick(self):
        moved = daily("03:00", within={"hours": "09:00-17:00", "outside": "move"})
        for trigger in (moved | daily("12:00"), moved - daily("12:00"), moved & every("1h")):
            tick = trigger.next_after(T)
            assert (tick, trigger.due_at(tick)) == (T + 3 * 3600, T + 9 * 3600)

    @pytest.mark.parametrize("days", [20, 21, 22])
    def test_dense_parts_that_rarely_meet_are_found(self, days):
        seen_when_defined = datetime.fromtimestamp(PROBES[0] + 10, UTC)
        meeting = at(JANUARY + timedelta(days=days, seconds=12_345), seen_when_defined)
        even, odd = cron("*/2 * * * * *") | meeting, cron("1/2 * * * * *") | meeting
        assert (even & odd).next_after(T) == T + days * 86_400 + 12_345

    def test_chained_combination_is_flat(self):
        many = functools.reduce(operator.or_, [daily(f"{hour}:00") for hour in range(24)])
        assert len(many.triggers) == 24
        assert from_json(to_json(many)) == many
        with pytest.raises(InvalidSchedule, match="any: 101 parts"):
            functools.reduce(operator.or_, [daily(f"{i // 60}:{i % 60}") for i in range(101)])

    def test_minus_with_an_ended_second_part_ticks_after_its_end(self):
        later = every("1m") - every("1m", end_at="2020-01-01T00:00Z")
        assert ticks(later, 1) == ["2026-01-01T00:01:00Z"]

    @pytest.mark.parametrize(
        "define",
        [
            lambda: (every("1009s") & every("1013s")) & (every("1019s") & every("1021s")),
            lambda: (daily("03:00") | every("1h")) & ((daily("03:30") - every("7m")) | (daily("04:45") & every("30m"))),
            lambda: daily("03:00", within=OFFICE) & daily("04:00", within=OFFICE),
            lambda: daily("03:00", within=OFFICE, exclude=["1970-01-01..2099-12-31"]),
            lambda: cron("0 3 * * *", tz="America/New_York", within=["09:00-12:00", "13:00-17:00"], exclude=["12-25", "01-01"]),
            lambda: cron("*/30 2 * 3 SUN#2", tz="America/Chicago"),
            lambda: calendar(minute=list(range(60)) * 5_000),
            lambda: decode({"any": [{"every": "5m"}] * 20_000}),
            lambda: at(*["2026-01-01T00:00Z"] * 50_000),
            lambda: cron("0 9 * * *", within=["09:00-10:00"] * 5_000),
        ],
    )  # fmt: skip
    def test_any_combination_is_defined_or_refused_quickly(self, define):
        assert cpu_seconds(define) < 2 * LIMIT  # defining it asks for a first tick more than once

    def test_wildcard_time_skipped_by_every_clock_change_is_refused(self):
        with pytest.raises(
            InvalidSchedule, match="the clocks in America/Chicago jump over every such time"
        ):
            cron("*/30 2 * 3 SUN#2", tz="America/Chicago")
        assert cron("*/30 2 * 3 SUN#2", tz="America/Phoenix").next_after(T) is not None

    def test_tick_that_depends_on_events_has_the_due_time_of_its_part(self):
        past = happened(startup("30s"), after("success", "3h"))
        late = after("success", "3h", within=OFFICE)
        trigger = startup("30s") | late | daily("12:00")
        assert [(t - T, trigger.due_at(t, past) - T) for t in trigger.upcoming(T, 3, past)] == [
            (30, 30), (3 * 3600, 9 * 3600), (12 * 3600, 12 * 3600),
        ]  # fmt: skip

    def test_only_triggers_combine(self):
        for other in ("0 9 * * *", None, 5):
            for combine in (operator.or_, operator.and_, operator.sub):
                with pytest.raises(TypeError, match="unsupported operand"):
                    combine(cron("0 9 * * *"), other)

    def test_part_of_a_combination_may_follow_events(self):
        trigger = cron("0 9 * * *") | after("success", "1h")
        assert trigger.next_after(T, happened(trigger)) == T + 3600
        assert trigger.next_after(T) == T + 9 * 3600


def test_instants_may_be_numbers_or_aware_datetimes():
    trigger = cron("*/5 * * * *")
    assert (
        trigger.next_after(T)
        == trigger.next_after(float(T))
        == trigger.next_after(JANUARY)
        == T + 300
    )
    assert trigger.next_after(T + 299.999) == T + 300
    assert list(trigger.between(T + 0.5, T + 300.5)) == [T + 300]
    assert list(trigger.between(JANUARY, JANUARY + timedelta(seconds=1))) == [T]
    with pytest.raises(TypeError, match="has no zone"):
        trigger.next_after(datetime(2026, 1, 1))  # noqa: DTZ001
    for wrong in ("2026-01-01", None, float("nan"), float("inf"), float("-inf"), []):
        with pytest.raises(TypeError, match="is not an instant"):
            trigger.next_after(wrong)
        with pytest.raises(TypeError, match="is not an instant"):
            every("5m").next_after(wrong)


def test_order_of_queries_does_not_change_the_next_tick():
    trigger = cron("30 2 * * *", tz="America/New_York")
    asked = [T + i * 40_000_000 for i in range(-40, 40)]
    alone = [cron("30 2 * * *", tz="America/New_York").next_after(t) for t in asked]
    assert [trigger.next_after(t) for t in reversed(asked)] == alone[::-1]


@pytest.mark.parametrize(
    "trigger",
    [
        cron("* * * * *", tz="Asia/Tokyo"),
        cron("0 9 * * *", tz="America/New_York", exclude=["12-25"], within="08:00-18:00"),
        every("1d", tz="Asia/Tokyo"),
        every("1y"),
        every("7s"),
        cron("0 9 * * *") | every("1mo"),
    ],
    ids=str,
)
def test_trigger_works_at_both_ends_of_the_calendar(trigger):
    for t in (
        -(10**15),
        FIRST_SECOND,
        FIRST_SECOND + 86_400,
        LAST_SECOND - 86_400,
        LAST_SECOND - 1,
        10**15,
    ):
        tick = trigger.next_after(t)
        assert tick is None or t < tick <= LAST_SECOND
        assert len(trigger.between(t, t + 86_400)) <= 86_400
        if tick is not None:
            rfc3339(tick, zone("Asia/Tokyo"))
    assert trigger.next_after(LAST_SECOND) is None
    assert list(trigger.between(T, T - 10)) == []
    assert len(trigger.between(T, T - 10)) == 0


def test_zone_is_extended_by_several_threads_concurrently():
    starts = [FIRST_SECOND + i * 10**9 for i in range(300)]
    for _ in range(4):
        fresh = Zone(
            "Europe/Berlin", *_parse_tzif(pkgutil.get_data("tzdata", "zoneinfo/Europe/Berlin"))
        )
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(fresh.offset, starts))
        assert found == [zone("Europe/Berlin").offset(t) for t in starts]
