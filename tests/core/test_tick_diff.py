"""The difference between two definitions: ticks of the next week, and fields."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat.core.explain.tick_diff import (
    FEW,
    LEFT_OUT,
    WEEK,
    Difference,
    TickDifference,
    differences,
    tick_difference,
)
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.core.triggers.past import Past
from onbeat.testing import a_schedule
from tests.core.strategies import accepted, cron_texts, zones_and_instants

MONDAY = parse_instant("2026-01-05T00:00:00Z") * 1000
DAYS = 86_400


def effect(old, new, *, now=MONDAY, **more):
    before, after = (None if each is None else a_schedule(**each) for each in (old, new))
    return tick_difference(before, after, now=now, **more)


def times(ticks):
    return [rfc3339(tick)[5:16] for tick in ticks]


def test_new_schedule_gains_all_its_ticks_and_a_deleted_one_loses_them():
    found = effect(None, {"cron": "0 9 * * MON-FRI"})
    assert (found.gained, found.lost) == (5, 0)
    assert times(found.first_gained) == ["01-05T09:00", "01-06T09:00", "01-07T09:00"]
    found = effect({"cron": "0 9 * * MON-FRI"}, None)
    assert (found.gained, found.lost) == (0, 5)
    assert times(found.first_lost) == ["01-05T09:00", "01-06T09:00", "01-07T09:00"]


def test_edit_of_the_hour_loses_as_many_ticks_as_it_gains():
    found = effect({"cron": "0 9 * * *"}, {"cron": "0 10 * * *"})
    assert (found.gained, found.lost) == (7, 7)
    assert times(found.first_gained)[0] == "01-05T10:00"
    assert times(found.first_lost)[0] == "01-05T09:00"


def test_halved_interval_gains_only_the_ticks_in_between():
    found = effect({"every": "1h"}, {"every": "30m"})
    assert (found.gained, found.lost) == (7 * 24, 0)


def test_edit_that_changes_no_tick_has_no_effect():
    assert effect({"every": "60m"}, {"every": "1h", "timeout": "5m"}) == TickDifference()
    assert effect({"daily": "09:00"}, {"cron": "0 9 * * *"}) == TickDifference()
    assert effect(None, None) == TickDifference()


def test_only_future_ticks_count_in_a_difference():
    assert effect(None, {"at": "2026-01-05T00:00:00Z"}) == TickDifference()
    assert effect(None, {"at": "2026-01-05T00:00:01Z"}).gained == 1
    assert effect(None, {"at": "2026-01-12T00:00:00Z"}).gained == 1
    assert effect(None, {"at": "2026-01-12T00:00:01Z"}) == TickDifference()


@pytest.mark.parametrize(
    "off", [{"enabled": False}, {"run": {"command": ["ls"], "enabled": False}}]
)
def test_disabled_schedule_has_no_ticks(off):
    assert effect({"every": "1h"}, {"every": "1h"} | off).lost == 7 * 24
    assert effect({"every": "1h"} | off, {"every": "1h"}).gained == 7 * 24
    assert effect({"every": "1h"} | off, {"every": "2h"} | off) == TickDifference()


def test_ticks_beyond_max_runs_do_not_count():
    few = {"every": "1h", "max_runs": 5}
    assert effect({"every": "1h"}, few).lost == 7 * 24 - 5
    assert effect({"every": "1h"}, few, past=Past(runs_used=3)).lost == 7 * 24 - 2
    assert effect(few, {"every": "1h", "max_runs": 30}).gained == 25


def test_effect_leaves_out_ticks_that_follow_runs_and_reports_it():
    found = effect(None, {"any": [{"daily": "09:00"}, {"after": {"success": "1h"}}]})
    assert (found.gained, found.is_known) == (7, False)
    assert effect({"startup": "1m"}, {"startup": "2m"}) == TickDifference(is_known=False)


ZONED = zones_and_instants()


@given(cron_texts(), cron_texts(), ZONED, st.integers(1, 3 * DAYS))
def test_effect_is_the_difference_of_two_sets_of_ticks(one, other, zoned, horizon):
    (zone, at), texts = zoned, (one, other)
    if any(accepted(text, zone) is None for text in texts):
        return
    schedules = [a_schedule(cron=text, timezone=zone) for text in texts]
    found = tick_difference(*schedules, now=at * 1000, horizon=horizon)
    old, new = (set(each.trigger.between(at + 1, at + 1 + horizon)) for each in schedules)
    assert (found.gained, found.lost) == (len(new - old), len(old - new))
    assert found.first_gained == tuple(sorted(new - old)[:FEW])
    assert found.first_lost == tuple(sorted(old - new)[:FEW])


def test_thousand_tick_differences_take_under_a_second():
    pairs = [
        ({"cron": f"{i % 60} {i % 24} * * MON-FRI", "timezone": "Europe/Berlin"},
         {"cron": f"{(i + 7) % 60} {i % 12} * * *", "timezone": "Europe/Berlin"})
        for i in range(1000)
    ]  # fmt: skip
    schedules = [(a_schedule(**old), a_schedule(**new)) for old, new in pairs]
    started = time.process_time()
    for old, new in schedules:
        tick_difference(old, new, now=MONDAY)
    assert time.process_time() - started < 2  # 0.4 s when quiet
    started = time.process_time()
    found = effect({"cron": "* * * * * *"}, {"every": "2s"})
    assert (found.gained, found.lost) == (0, WEEK // 2)
    assert time.process_time() - started < 0.5


def test_differing_fields_are_named_by_their_path():
    old = a_schedule(every="1h", run={"command": ["ls", "-l"], "env": {"A": "x"}}, timeout="5m")
    new = a_schedule(
        every="2h", run={"command": ["ls", "-a"], "env": {"A": "x", "B": "y"}}, retry=["1m"]
    )
    assert differences(old, new) == [
        Difference("every", "1h", "2h"),
        Difference("run.command[1]", "-l", "-a"),
        Difference("run.env.B", LEFT_OUT, "y"),
        Difference("timeout", "5m", LEFT_OUT),
        Difference("retry", LEFT_OUT, ["1m"]),
    ]
    assert differences(old, old) == []
    assert differences(None, None) == []


def test_list_of_another_length_and_value_of_another_type_differ_as_a_whole():
    old = a_schedule(run={"command": ["ls"], "inputs": {"a": 1, "b": {"c": 1}, "d": None}})
    new = a_schedule(run={"command": ["ls", "-l"], "inputs": {"a": True, "b": [1]}})
    assert differences(old, new) == [
        Difference("run.command", ["ls"], ["ls", "-l"]),
        Difference("run.inputs.a", 1, True),
        Difference("run.inputs.b", {"c": 1}, [1]),
        Difference("run.inputs.d", None, LEFT_OUT),
    ]
