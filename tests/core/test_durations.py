"""Lengths of time as texts."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat import InvalidSchedule
from onbeat.core.time.durations import Duration, parse_duration


@pytest.mark.parametrize(
    ("text", "meant", "canonical"),
    [
        ("90m", Duration(seconds=5400), "90m"),
        ("1h30m", Duration(seconds=5400), "90m"),
        ("5400s", Duration(seconds=5400), "90m"),
        ("1d", Duration(days=1), "1d"),
        ("24h", Duration(seconds=86_400), "24h"),
        ("14d", Duration(days=14), "2w"),
        ("1mo", Duration(months=1), "1mo"),
        ("18mo", Duration(months=18), "18mo"),
        ("1y", Duration(months=12), "1y"),
        ("1y2mo3w4d5h6m7s", Duration(14, 25, 18_367), "14mo25d18367s"),
        ("PT90M", Duration(seconds=5400), "90m"),
        ("P1M", Duration(months=1), "1mo"),
        ("P1DT12H", Duration(days=1, seconds=43_200), "1d12h"),
        ("P2W", Duration(days=14), "2w"),
        (" 1h 5s ", Duration(seconds=3605), "3605s"),
        ("0s", Duration(), "0s"),
    ],
)
def test_duration_has_one_meaning_and_one_canonical_spelling(text, meant, canonical):
    assert parse_duration(text) == meant
    assert str(meant) == canonical
    assert parse_duration(canonical) == meant


@given(st.integers(0, 600), st.integers(0, 10_000), st.integers(0, 10**8))
def test_every_duration_survives_its_text(months, days, seconds):
    duration = Duration(months, days, seconds)
    assert parse_duration(str(duration)) == duration


@pytest.mark.parametrize(
    "value", ["", "m", "5", "5 minutes", "1.5h", "-5m", "90M", "1m1h", "٣m", "P", "PT", "5m\n5m", "9" * 50 + "s", None, True, [], timedelta(microseconds=1), timedelta(-1)]
)  # fmt: skip
def test_invalid_duration_is_refused(value):
    with pytest.raises(InvalidSchedule) as refused:
        parse_duration(value)
    assert refused.value.hint


def test_duration_without_a_unit_is_refused():
    with pytest.raises(
        InvalidSchedule, match=r"the number 90 has no unit \(90s, 90m, 90h or 90d\)"
    ):
        parse_duration(90)
