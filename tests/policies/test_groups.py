"""Groups, priorities, start deadlines and rates."""

import pytest

from onbeat import InvalidSchedule
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import RunIsOver
from tests.policies.world import ACCEPTED, HOUR, MINUTE, awaited

HOURLY = {"every": "1h", "timeout": "12h"}
IN_GROUP = HOURLY | {"group": "one-at-a-time"}


async def ends(world, schedule_id, outcome=Succeeded()):  # noqa: B008 - it is frozen
    """Report the outcome of the started run of a schedule."""
    (run,) = [run for run in await world.runs(schedule_id) if run.status == "STARTED"]
    await world.beat.report(run.run_id, outcome)
    await world.beat.settle()


async def statuses(world):
    return dict(await world.columns("schedule_id status"))


# -- groups


@awaited
async def test_two_schedules_share_the_single_place_of_their_group(world):
    world.answer_with("a", ACCEPTED)
    world.answer_with("b", ACCEPTED)
    await world.define(a=IN_GROUP, b=IN_GROUP, other=HOURLY)
    await world.passes("1h")
    assert await statuses(world) == {"a": "STARTED", "b": "ENQUEUED", "other": "SUCCESS"}
    (group,) = await world.beat.service.groups()
    assert (group.name, group.places, group.used, group.waiting) == ("one-at-a-time", 1, 1, 1)
    await ends(world, "a")
    assert await statuses(world) == {"a": "SUCCESS", "b": "STARTED", "other": "SUCCESS"}


@awaited
async def test_raised_group_limit_starts_another_run_immediately(world):
    for name in "abc":
        world.answer_with(name, ACCEPTED)
    await world.define(a=IN_GROUP, b=IN_GROUP, c=IN_GROUP)
    await world.passes("1h")
    assert await world.beat.service.set_group("one-at-a-time", places=2)
    await world.beat.settle()
    assert await statuses(world) == {"a": "STARTED", "b": "STARTED", "c": "ENQUEUED"}
    assert not await world.beat.service.set_group("one-at-a-time", places=2)


@awaited
async def test_lowered_group_limit_ends_no_run_and_starts_none(world):
    world.answer_with("a", ACCEPTED)
    world.answer_with("b", ACCEPTED)
    await world.define(a=IN_GROUP, b=IN_GROUP, c=IN_GROUP | {"start_deadline": "12h"})
    await world.beat.service.set_group("one-at-a-time", places=2)
    await world.passes("1h")
    await world.beat.service.set_group("one-at-a-time", places=1)
    await ends(world, "a")
    assert await statuses(world) == {"a": "SUCCESS", "b": "STARTED", "c": "ENQUEUED"}
    await ends(world, "b")
    assert (await statuses(world))["c"] == "SUCCESS"


@awaited
async def test_manual_run_waits_for_a_place(world):
    world.answer_with("a", ACCEPTED)
    await world.define(a=IN_GROUP, b={"cron": "0 0 1 1 *", "group": "one-at-a-time"})
    await world.passes("1h")
    run = await world.beat.start("b")
    await world.beat.settle()
    assert (await statuses(world))["b"] == "ENQUEUED"
    await ends(world, "a")
    assert (await world.beat.service.run(run.run_id)).status == "SUCCESS"


@awaited
async def test_run_waiting_for_its_retry_uses_no_place(world):
    world.answer_with("a", Failed("no"), Succeeded())
    await world.define(a=IN_GROUP | {"retry": ["10m"], "priority": 1}, b=IN_GROUP)
    await world.passes("1h")
    assert await statuses(world) == {"a": "ENQUEUED", "b": "SUCCESS"}
    await world.passes("10m")
    assert await statuses(world) == {"a": "SUCCESS", "b": "SUCCESS"}


@awaited
async def test_run_canceled_while_waiting_for_a_place_never_starts(world):
    world.answer_with("a", ACCEPTED)
    await world.define(a=IN_GROUP, b=IN_GROUP)
    await world.passes("1h")
    (waits,) = await world.runs("b")
    assert (await world.beat.cancel(waits.run_id)).status == "CANCELED"
    await ends(world, "a")
    assert world.started() == ["a"]


@awaited
async def test_canceled_run_passes_its_place_to_the_next(world):
    world.answer_with("a", ACCEPTED)
    await world.define(a=IN_GROUP, b=IN_GROUP)
    await world.passes("1h")
    (has_it,) = await world.runs("a")
    await world.beat.cancel(has_it.run_id)
    await world.beat.settle()
    assert await statuses(world) == {"a": "CANCELED", "b": "SUCCESS"}
    with pytest.raises(RunIsOver, match="run 1 is CANCELED: nothing was changed"):
        await world.beat.cancel(has_it.run_id)


@pytest.mark.parametrize(
    ("name", "places", "expected"),
    [
        ("no name", 1, "group: 'no name' is not a valid group name (letters, digits and . _ / -, at most 100)"),
        ("one", 0, "places: 0 is out of bounds (1 to 10000)"),
        ("one", 10_001, "places: 10001 is out of bounds (1 to 10000)"),
    ],
)  # fmt: skip
@awaited
async def test_invalid_group_is_refused(world, name, places, expected):
    with pytest.raises(InvalidSchedule) as refused:
        await world.beat.service.set_group(name, places=places)
    assert str(refused.value) == expected


# -- priority


@awaited
async def test_waiting_run_with_the_highest_priority_starts_first(world):
    world.answer_with("first", ACCEPTED)
    await world.define(
        first={"cron": "0 13 * * *", "group": "one-at-a-time", "timeout": "12h"},
        low={"cron": "10 13 * * *", "group": "one-at-a-time", "priority": -5},
        usual={"cron": "20 13 * * *", "group": "one-at-a-time"},
        high={"cron": "30 13 * * *", "group": "one-at-a-time", "priority": 5},
        later={"cron": "40 13 * * *", "group": "one-at-a-time", "priority": 5},
    )
    for time in ("13:00", "13:10", "13:20", "13:30", "13:40"):
        await world.is_now(time)
    assert world.started() == ["first"]
    await ends(world, "first")
    assert world.started() == ["first", "high", "later", "usual", "low"]
    assert [run.priority for run in await world.runs()] == [0, -5, 0, 5, 5]


# -- start_deadline


@awaited
async def test_run_not_started_by_its_deadline_is_skipped(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=HOURLY | {"overlap": "queue", "start_deadline": "90m"})
    await world.passes("1h", "1h")
    first, waits = await world.runs()
    assert waits.deadline_at == waits.due_at + 90 * MINUTE
    await world.passes(90 * MINUTE - 1)
    assert (await world.columns("status"))[1] == "ENQUEUED"
    await world.passes(1)
    assert (await world.columns("status reason"))[1] == ("SKIPPED", "deadline")
    await world.beat.report(first.run_id, Succeeded())
    await world.beat.settle()
    assert world.started("report") == ["13:00", "15:00"]


@awaited
async def test_run_that_waited_for_a_full_group_has_its_reason(world):
    world.answer_with("a", ACCEPTED)
    await world.define(a=IN_GROUP | {"priority": 1}, b=IN_GROUP | {"start_deadline": "10m"})
    await world.passes("1h", "10m")
    assert await world.columns("status reason", "b") == [("SKIPPED", "group_full")]
    assert world.started() == ["a"]


@awaited
async def test_run_started_in_time_has_no_start_deadline(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=HOURLY | {"start_deadline": "1m"})
    await world.passes("1h", "30m")
    assert await world.columns("status reason") == [("STARTED", None)]


@awaited
async def test_start_deadline_of_a_retry_counts_anew(world):
    world.answer_with("report", Failed("no"), Succeeded())
    await world.define(report=HOURLY | {"start_deadline": "1m", "retry": ["10m"]})
    await world.passes("1h", "10m")
    assert await world.columns("status attempt") == [("SUCCESS", 2)]


# -- rate


@awaited
async def test_starts_in_any_hour_never_exceed_the_rate(world):
    await world.define(report={"every": "20m", "rate": "2/hour"})
    for _ in range(6):
        await world.passes("20m")
    assert await world.columns("status reason") == [
        ("SUCCESS", None), ("SUCCESS", None), ("SKIPPED", "rate"),
        ("SUCCESS", None), ("SUCCESS", None), ("SKIPPED", "rate"),
    ]  # fmt: skip
    row = await world.schedule("report")
    assert row.last_miss_reason == "rate"


@awaited
async def test_daily_rate_applies_to_any_24_hours(world):
    await world.define(report={"every": "6h", "rate": "1/day"})
    for _ in range(8):
        await world.passes("6h")
    starts = [run.run_at for run in await world.runs() if run.status == "SUCCESS"]
    assert len(starts) == 2
    assert starts[1] - starts[0] == 24 * HOUR // 1000


@awaited
async def test_manual_run_is_not_limited_by_the_rate(world):
    await world.define(report={"every": "20m", "rate": "1/hour"})
    await world.beat.start("report")
    await world.passes("20m")
    await world.beat.start("report")
    await world.passes("20m")
    assert await world.columns("triggered_by status") == [
        ("manual", "SUCCESS"), ("timer", "SUCCESS"), ("manual", "SUCCESS"), ("timer", "SKIPPED"),
    ]  # fmt: skip


@awaited
async def test_rate_counts_runs_and_not_attempts(world):
    world.answer_with("report", Failed("no"), Succeeded())
    await world.define(report={"every": "20m", "rate": "2/hour", "retry": ["1m"]})
    await world.passes("20m", "1m", "19m", "20m")
    assert await world.columns("status") == ["SUCCESS", "SUCCESS", "SKIPPED"]
