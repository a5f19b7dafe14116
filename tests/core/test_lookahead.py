"""The span over which missed ticks are spread: at most the configured lookahead."""

import pytest

from onbeat.core.decide.plan import plan
from onbeat.core.time.instants import parse_instant
from onbeat.core.triggers.past import NO_PAST
from onbeat.testing import a_schedule

NOON = parse_instant("2026-01-01T12:00:00Z")
HOURLY = {"every": "1h", "catchup": "spread", "overlap": "allow"}


def pace(missed, **given):
    """Return how many milliseconds lie between two starts, if so many ticks were missed."""
    now = (NOON + missed * 3600 + 600) * 1000
    found = plan(a_schedule(**HOURLY), NOON + 3600, (), NO_PAST, now=now, **given)
    assert len(found.decisions) == 1
    return found.due.due_at - now


def test_missed_ticks_are_spread_over_a_minute_by_default():
    assert pace(missed=3) == 20_000


@pytest.mark.parametrize(("lookahead", "between"), [(6_000, 2_000), (300_000, 100_000)])
def test_missed_ticks_are_spread_over_the_configured_lookahead(lookahead, between):
    assert pace(missed=3, lookahead=lookahead) == between


def test_missed_ticks_are_spread_at_most_until_the_next_tick():
    assert pace(missed=2, lookahead=3_600_000) == 50 * 60_000 // 2
