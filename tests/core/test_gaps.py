"""The shortest time between two ticks, and instants with a fraction of a second."""

import pytest

from onbeat import cron, every
from onbeat.core.explain.preview import shortest_gap
from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule

NOON = 1_767_268_800  # 2026-01-01T12:00:00Z


@pytest.mark.parametrize(
    ("trigger", "gap"),
    [
        (cron("0 9 * * *"), 86_400),
        (cron("0 9 * * 1-5"), 86_400),
        (cron("0 */2 * * *"), 7_200),
        (cron("0,20 9 * * 1"), 1_200),
        (cron("0,59 0,23 1,31 1,12 *"), 60),
        (cron("* * * * *"), 60),
        (every("90m"), 5_400),
        (cron("0 0 29 2 *"), None),
    ],
    ids=str,
)
def test_shortest_gap_covers_the_coming_year(trigger, gap):
    assert shortest_gap(trigger, after=NOON) == gap


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-01T12:00:00.123Z", 123),
        ("2026-01-01T12:00:00Z", 0),
        ("2026-01-01T12:00:00.5Z", 500),
        ("2026-01-01T13:00:00.123456+01:00", 123),
    ],
)
def test_instant_may_have_a_fraction_of_a_second(text, ms):
    assert parse_instant_ms(text) == NOON * 1000 + ms
    assert parse_instant_ms(rfc3339_ms(NOON * 1000 + ms)) == NOON * 1000 + ms


@pytest.mark.parametrize(
    "text", ["", "now", "2026-01-01T12:00:00.Z", "2026-01-01T12:00.5Z", None, 7]
)
def test_invalid_instant_is_refused(text):
    with pytest.raises(InvalidSchedule):
        parse_instant_ms(text)
