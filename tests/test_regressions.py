"""Failures of the systems Onbeat grew out of, each by the sentence that says it must not come back."""

from datetime import UTC, datetime

import pytest

from onbeat import InvalidSchedule, cron, daily
from onbeat.core.instants import rfc3339


def on(trigger, day, until):
    first, last = (
        datetime.fromisoformat(f"{d}T00:00:00-05:00").astimezone(UTC) for d in (day, until)
    )
    return [rfc3339(tick) for tick in trigger.between(first, last)]


def test_a_daily_time_fires_once_a_day_not_for_a_whole_second_71_times():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    trigger = daily("12:00")
    during_the_second = [noon.replace(microsecond=us) for us in range(0, 1_000_000, 14_000)]
    asked = {trigger.next_after(t) for t in during_the_second}
    assert asked == {int(noon.timestamp()) + 86_400}
    assert len(trigger.between(noon, noon.replace(year=2027))) == 365


@pytest.mark.parametrize(
    "text", ["0 0 31 2 *", "garbage", "* * * *", "every day", "0 0 31 4,6,9,11 *"]
)
def test_a_cron_that_can_never_match_and_garbage_are_refused_when_defined_never_run_every_minute(
    text,
):
    with pytest.raises(InvalidSchedule):
        cron(text)


@pytest.mark.req("W15")
def test_six_fields_mean_seconds_first():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = cron("0 */5 * * * *").upcoming(start, 3)
    assert [tick - int(start.timestamp()) for tick in ticks] == [300, 600, 900]


def test_new_york_0130_runs_once_on_2026_11_01_and_at_0630z_on_2026_11_02():
    trigger = cron("30 1 * * *", tz="America/New_York")
    assert on(trigger, "2026-11-01", "2026-11-03") == [
        "2026-11-01T05:30:00Z",
        "2026-11-02T06:30:00Z",
    ]


def test_new_york_0230_runs_once_on_2026_03_08():
    trigger = cron("30 2 * * *", tz="America/New_York")
    assert on(trigger, "2026-03-08", "2026-03-09") == ["2026-03-08T07:00:00Z"]
