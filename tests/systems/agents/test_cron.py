"""Cron schedules of agents: `schedule(cron=...)`, as the agents document describes them."""

from datetime import datetime, timedelta

import pytest

from onbeat.agents import Orchestrator
from onbeat.testing import ManualClock
from tests.systems.agents.conftest import AgentsHarness

HOUR = timedelta(hours=1)


def fire_times(cron, *, count, start="2026-01-01T12:00:00Z"):
    """Return when the first `count` runs of an agent with this cron fire, with a fake clock."""
    world = AgentsHarness()
    world.clock = ManualClock(start)
    world.its = Orchestrator(world.database, clock=world.clock)
    world.agent().schedule(cron=cron)

    async def story(its):
        while len(its.seen) < count:
            (row,) = await its.its.beat.schedules()
            its.clock.advance(row.next_due_at - its.clock.now())
            await its.its.beat.settle()

    world.play(story)
    return [ctx.fire_time.isoformat() for ctx in world.seen]


@pytest.mark.req("F25")
def test_cron_accepts_names_of_months_and_weekdays():
    assert fire_times("0 17 * FEB SUN", count=2) == [
        "2026-02-01T17:00:00+00:00",
        "2026-02-08T17:00:00+00:00",
    ]


@pytest.mark.req("F26")
@pytest.mark.parametrize("sunday", ["0", "7", "SUN"])
def test_cron_accepts_zero_and_seven_for_sunday(sunday):
    first = datetime.fromisoformat(fire_times(f"0 17 * * {sunday}", count=1)[0])
    assert first.isoweekday() == 7
    assert first.isoformat() == "2026-01-04T17:00:00+00:00"


@pytest.mark.req("F29", "F30")
def test_cron_wait_is_positive_also_at_the_very_instant_of_a_tick():
    fired = fire_times("0 * * * *", count=3, start="2026-01-01T12:00:00Z")
    assert [text[11:19] for text in fired] == ["13:00:00", "14:00:00", "15:00:00"]


@pytest.mark.req("F32", "F35")
def test_cron_of_every_five_minutes_waits_five_minutes_from_a_boundary():
    start = datetime.fromisoformat("2026-01-01T12:00:00+00:00")
    (first,) = fire_times("*/5 * * * *", count=1)
    assert datetime.fromisoformat(first) - start == timedelta(minutes=5)


@pytest.mark.req("F33", "F35")
def test_cron_of_a_time_of_day_fires_at_it_in_utc(new_york):
    assert fire_times("0 17 * * *", count=1) == ["2026-01-01T17:00:00+00:00"]


@pytest.mark.req("F34", "F35")
def test_cron_accepts_a_stepped_range_and_a_range_of_weekdays():
    fired = fire_times("0 9-17/2 * * 1-5", count=7, start="2026-01-02T12:00:00Z")  # a Friday
    assert [f"{datetime.fromisoformat(text):%a %H}" for text in fired] == [
        "Fri 13", "Fri 15", "Fri 17", "Mon 09", "Mon 11", "Mon 13", "Mon 15",
    ]  # fmt: skip
