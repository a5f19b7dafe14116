"""Cron expressions: their ticks and their errors."""

from datetime import UTC, datetime
from functools import partial

import pytest

from onbeat import InvalidSchedule, cron
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.kinds import Cron
from tests.oracle import Walk
from tests.timing import LIMIT, cpu_seconds

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)


def ticks(text, after=JANUARY, n=3, **options):
    return [rfc3339(tick) for tick in cron(text, **options).upcoming(after, n)]


def test_every_five_minutes_waits_five_minutes_from_an_aligned_start():
    assert cron("*/5 * * * *").next_after(JANUARY) - JANUARY.timestamp() == 300


def test_cron_of_a_time_of_day_gives_the_next_one_in_utc():
    now_utc = datetime(2026, 1, 1, 18, tzinfo=UTC)
    assert datetime.fromtimestamp(cron("0 17 * * *").next_after(now_utc), UTC) == datetime(
        2026, 1, 2, 17, tzinfo=UTC
    )


def test_ranges_lists_and_steps_combine():
    assert ticks("0 9-17/2 * * 1-5", n=6) == [
        "2026-01-01T09:00:00Z", "2026-01-01T11:00:00Z", "2026-01-01T13:00:00Z",
        "2026-01-01T15:00:00Z", "2026-01-01T17:00:00Z", "2026-01-02T09:00:00Z",
    ]  # fmt: skip


def test_next_cron_tick_is_always_later_than_now():
    at_a_tick = datetime(2026, 1, 1, 0, 5, tzinfo=UTC)
    for text in ("*/5 * * * *", "5 0 * * *", "* * * * *"):
        assert cron(text).next_after(at_a_tick) - at_a_tick.timestamp() > 0


def test_weekday_cron_on_thursday_morning_ticks_on_friday():
    assert ticks("0 9 * * 1-5", datetime(2026, 1, 29, 10, tzinfo=UTC), 1) == [
        "2026-01-30T09:00:00Z"
    ]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0 9 * * 1-5", "2026-01-01T09:00:00Z"),
        ("0 */2 * * *", "2026-01-01T02:00:00Z"),
        ("30 14 * * 0", "2026-01-04T14:30:00Z"),
        ("0 9 * * MON-FRI", "2026-01-01T09:00:00Z"),
        ("0 0 1 * *", "2026-02-01T00:00:00Z"),
    ],
)
def test_cron_texts_of_the_origins_are_accepted(text, first):
    assert ticks(text, n=1) == [first]


def test_sunday_is_0_7_or_sun_in_a_cron():
    assert ticks("0 0 * * 0") == ticks("0 0 * * 7") == ticks("0 0 * * sun")
    assert ticks("0 0 * * FRI-SUN") == ticks("0 0 * * 5-7")


def test_names_of_months_and_weekdays_ignore_case():
    assert ticks("0 0 * jan-MAR Mon") == ticks("0 0 * 1-3 1")


def test_cron_parser_imports_no_other_library():
    assert cron("0 9 * * *").pattern.__class__.__module__ == "onbeat.core.time.local_patterns"


def test_seven_cron_fields_end_with_a_year():
    assert ticks("0 0 9 1 1 ? 2028,2030") == ["2028-01-01T09:00:00Z", "2030-01-01T09:00:00Z"]
    assert cron("0 0 9 1 1 ? 2028").next_after(datetime(2029, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "text",
    ["0 0 L * *", "0 0 L-3 * *", "0 0 LW * *", "0 0 15W * *", "0 0 1W * *", "0 0 31W * *", "0 0 * * 5L", "0 0 * * FRIL",
     "0 0 * * MON#1", "0 0 * * SUN#5", "0 0 L,15 * MON#2", "0 0 1,LW 2 *"],
)  # fmt: skip
def test_special_days_match_the_calendar_for_28_years(text):
    first = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp())
    walk, trigger = Walk(text), cron(text)
    days = range(first, first + 28 * 366 * 86_400, 86_400)
    assert [
        t
        for t in days
        if walk.day_matches(walk.wall(t).date()) and walk.wall(t).month in walk.months
    ] == list(trigger.between(days[0], days[-1] + 1))


def test_h_is_stable_for_a_schedule_and_spread_over_schedules():
    assert ticks("H H * * *", key="backup") == ticks("H H * * *", key="backup")
    minutes = {ticks("H * * * *", n=1, key=f"schedule-{i}")[0] for i in range(300)}
    assert len(minutes) > 50
    for i in range(200):
        first, second = ticks("H(10-20)/5 H(2-4) * * *", n=2, key=f"s{i}")
        assert first[11:13] in ("02", "03", "04")
        assert 10 <= int(first[14:16]) <= 14
        assert int(second[14:16]) - int(first[14:16]) == 5
    assert all(cron("0 0 H * *", key=f"s{i}").next_after(JANUARY) is not None for i in range(50))


def test_thu_in_a_cron_is_not_a_hash():
    assert ticks("0 0 * * THU", n=1) == ["2026-01-08T00:00:00Z"]


def test_equal_crons_have_one_canonical_spelling():
    assert Cron(" 0  9 * *\tmon-fri ") == Cron("0 9 * * MON-FRI")
    assert Cron("@Daily").cron == "@daily"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("60 * * * *", "cron.minute: '60' is not a minute (0 to 59)"),
        ("0 24 * * *", "cron.hour: '24' is not an hour (0 to 23)"),
        ("0 0 1-40 * *", "cron.day_of_month: '40' in '1-40' is not a day of month (1 to 31)"),
        ("0 0 * 13 *", "cron.month: '13' is not a month (1 to 12, or JAN to DEC)"),
        ("0 0 * * MONDAY", "cron.day_of_week: 'MONDAY' is not a day of week (write MON)"),
        ("0 22-2 * * *", "cron.hour: the range '22-2' runs backwards (write 22-23,0-2)"),
        ("*/90 * * * *", "cron.minute: the step '90' is longer than the field (*/60 at most; for longer intervals use `every`)"),
        ("0 0 31 2 *", "cron: never matches: no day has day of month 31, month 2 (a day that exists, such as 28)"),
        ("0 0 0 30 2 ? 2030", "cron: never matches: no day has day of month 30, month 2, year 2030 (a day that exists, such as 28)"),
        ("@every 5m", "cron: '@every 5m' is an interval (every: 5m)"),
        ("@reboot", "cron: '@reboot' is an event, not a time (startup: 0s)"),
        ("TZ=Europe/Berlin 0 9 * * *", "cron: 'TZ=Europe/Berlin 0 9 * * *' contains a time zone (timezone: in a file, tz= in Python, --tz)"),
        ("0 0 1 1 * 2030", "cron.day_of_week: '2030' is not a day of week (six fields begin with the second; a year is the seventh)"),
        ("H * * * *", "cron.minute: 'H' requires a schedule id to hash (in Python pass key=)"),
        ("0 0 * * 5L-2", "cron.day_of_week: '5L' in '5L-2' is not a day of week (0 to 7, or SUN to SAT)"),
    ],
)  # fmt: skip
def test_cron_error_names_field_value_and_hint(text, said):
    with pytest.raises(InvalidSchedule) as refused:
        cron(text)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "text",
    ["", " ", "\0", "9" * 75_000, "* " * 37_500, "*/" * 400, "-".join("1" * 200), "1," * 499, "٣ * * * *", "<b>0 9 * * *</b>",
     "* * * * *\n* * * * *", "0 0 " + "1" * 900 + " * *", "\ud800 * * * *", None, 5, ["0"], b"* * * * *"],
    ids=lambda text: repr(text)[:20],
)  # fmt: skip
def test_any_invalid_text_is_refused_within_50_ms(text):
    with pytest.raises(InvalidSchedule) as refused:
        cron(text)
    assert cpu_seconds(lambda: cron(text)) < LIMIT
    assert len(str(refused.value)) < 300
    str(refused.value).encode()


def test_next_tick_of_a_rare_cron_is_found_quickly():
    for text in ("0 0 29 2 MON#5", "0 0 * 2 MON#5", "59 59 23 29 2 ? 2196"):
        trigger = cron(text, tz="America/New_York")
        for year in (1, 1900, 2096, 2100, 9990):
            t = int(datetime(year, 3, 1, tzinfo=UTC).timestamp())
            assert cpu_seconds(partial(trigger.next_after, t)) < LIMIT
    assert cron("* * * * *").next_after(10**15) is None
    assert cron("* * * * *").next_after(-(10**15)) < -(10**10)
