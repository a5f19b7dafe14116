"""Years as bits, against the standard library's calendar."""

from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from onbeat.core.time.days import DaySet, bits_from, bits_of, lowest_bit, year_around, year_of

EPOCH = date(1970, 1, 1)


def test_every_day_is_found_in_its_year():
    for number in range(1, 10_000):
        year = year_of(number)
        assert year.start == (date(number, 1, 1) - EPOCH).days
        for day in (year.start, year.start + 58, year.end - 1):
            assert year_around(day) == year
        assert year_around(year.end).number == number + 1


@given(
    st.integers(1, 9999),
    st.sets(st.integers(1, 12), min_size=1),
    st.sets(st.integers(1, 31)),
    st.sets(st.integers(0, 6)),
    st.booleans(),
)
def test_days_of_a_year_match_a_check_of_each_day(number, months, dates, weekdays, either):
    days = DaySet(
        months=bits_from(months),
        dates=bits_from(dates),
        weekdays=bits_from(weekdays),
        either=either,
    )
    year, expected = year_of(number), set()
    for i in range(year.end - year.start):
        day = date(number, 1, 1) + timedelta(days=i)
        in_month, in_week = day.day in dates, day.isoweekday() % 7 in weekdays
        if day.month in months and (in_month or in_week if either else in_month and in_week):
            expected.add(i)
    assert set(bits_of(days.in_year(year))) == expected
    assert days.count(year.start, year.end) == len(expected)
    assert all(days.has(year.start + i) == (i in expected) for i in range(0, 365, 7))


@given(st.sets(st.integers(0, 400), min_size=1))
def test_bits_and_positions_are_converted_both_ways(positions):
    assert bits_of(bits_from(positions)) == sorted(positions)
    assert lowest_bit(bits_from(positions)) == min(positions)
