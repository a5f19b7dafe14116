"""Ticks that follow the end of a run of this or another schedule, or a start."""

import pytest

from onbeat import InvalidSchedule, every, startup
from onbeat.core.runs.run import Busy, Failed, Succeeded
from onbeat.testing import ManualClock
from tests.policies.world import ACCEPTED, HOUR, MINUTE, PolicyHarness, at, awaited

HOURLY = {"every": "1h"}
BROKEN = Failed("no", retryable=False)


def after(outcome="success", schedule="a", **given):
    return {"after": {"schedule": schedule, "outcome": outcome} | given}


# -- after another schedule


@pytest.mark.parametrize("ends", ["success", "failure"])
@pytest.mark.parametrize("awaits", ["success", "failure", "completion"])
@awaited
async def test_schedule_follows_the_outcome_of_another(world, ends, awaits):
    world.answer_with("a", Succeeded() if ends == "success" else BROKEN)
    await world.define(a=HOURLY, b=after(awaits))
    assert (await world.schedule("b")).next_run_at is None
    await world.passes("1h", "1m")
    assert world.started() == (["a", "b"] if awaits in (ends, "completion") else ["a"])


@awaited
async def test_schedules_follow_each_other_along_a_chain(world):
    await world.define(a=HOURLY, b=after(), c=after(schedule="b"), d=after(schedule="c"))
    await world.passes("1h")
    assert world.started() == ["a", "b", "c", "d"]
    assert await world.columns("status") == ["SUCCESS"] * 4


@awaited
async def test_why_names_the_neighbours_of_a_follower_tick(world):
    await world.define(a=HOURLY, b=after(delay="10m"))
    for _ in range(4):
        await world.passes("1h")
    first, second, third = (await world.columns("run_at", "b"))[:3]
    answer = await world.beat.why("b", second)
    assert (answer.previous, answer.following) == (first, third)
    answer = await world.beat.why("b", second + 60)
    assert (answer.kind, answer.previous, answer.following) == ("no_tick", second, third)
    waits = (await world.schedule("b")).next_run_at
    assert (await world.beat.why("b", third)).following == waits


@awaited
async def test_follower_delay_counts_from_the_end_of_the_run(world):
    world.answer_with("a", ACCEPTED)
    await world.define(a=HOURLY | {"timeout": "12h", "overlap": "allow"}, b=after(delay="30m"))
    await world.is_now("13:10")
    (run,) = await world.runs()
    await world.beat.report(run.run_id, Succeeded())
    assert at((await world.schedule("b")).next_run_at) == "13:40"
    await world.is_now("13:39:59")
    assert world.started("b") == []
    await world.is_now("13:40")
    assert world.started("b") == ["13:40"]


@awaited
async def test_event_before_the_tick_is_decided_joins_it(world):
    await world.define(a=HOURLY, b=after(delay="150m"))
    for _ in range(7):
        await world.passes("30m")
    assert await world.columns("run_at tick_count", "b") == [(await first_end(world) + 9000, 3)]
    for _ in range(6):
        await world.passes("30m")
    first, second = await world.runs("b")
    assert (at(first.run_at), at(second.run_at)) == ("15:30", "18:30")
    assert second.tick_count == 3


async def first_end(world):
    return (await world.runs("a"))[0].finished_at // 1000


@awaited
async def test_only_the_last_attempt_triggers_followers(world):
    world.answer_with("a", Failed("no"), Failed("no"), Succeeded())
    await world.define(
        a=HOURLY | {"retry": ["1m", "1m"]}, b=after("failure"), c=after("success"), d=after("completion")
    )  # fmt: skip
    await world.passes("1h", "1m", "30s")
    assert world.started() == ["a", "a"]
    await world.passes("30s", "1m")
    assert sorted(world.started()) == ["a", "a", "a", "c", "d"]


@awaited
async def test_canceled_run_is_not_followed(world):
    world.answer_with("a", ACCEPTED)
    await world.define(a=HOURLY | {"timeout": "12h"}, b=after("completion"), c=after("failure"))
    await world.passes("1h")
    (run,) = await world.runs()
    await world.beat.cancel(run.run_id)
    await world.passes("30m")
    assert await world.columns("schedule_id status") == [("a", "CANCELED")]
    assert (await world.schedule("b")).next_run_at is None


@awaited
async def test_skipped_run_is_not_followed(world):
    await world.define(a=HOURLY | {"enabled": False}, b=after("completion"))
    await world.passes("1h", "30m")
    assert await world.columns("schedule_id status") == [("a", "SKIPPED")]


@awaited
async def test_busy_target_triggers_no_follower(world):
    world.answer_with("a", Busy("later", 10 * MINUTE), Succeeded())
    await world.define(a=HOURLY, b=after("completion"))
    await world.passes("1h", "5m")
    assert world.started() == ["a"]
    await world.passes("5m", "1m")
    assert world.started() == ["a", "a", "b"]


@awaited
async def test_manual_run_is_followed(world):
    await world.define(a={"cron": "0 0 1 1 *"}, b=after())
    await world.beat.start("a")
    await world.passes("1m", "1m")
    assert world.started() == ["a", "b"]


@awaited
async def test_paused_schedule_does_not_follow_and_records_it_when_resumed(world):
    await world.define(a=HOURLY, b=after())
    await world.beat.pause("b")
    await world.passes("1h", "1m")
    assert await world.columns("status", "b") == []
    await world.beat.resume("b")
    await world.passes("1m")
    assert await world.columns("status reason", "b") == [("SKIPPED", "paused")]
    await world.is_now("14:01")
    await world.passes("1m")
    assert (await world.columns("status", "b"))[1:] == ["SUCCESS"]


@awaited
async def test_schedule_may_follow_another_and_the_clock(world):
    await world.define(a=HOURLY, b={"any": [{"daily": "13:30"}, after(delay="10m")]})
    for time in ("13:00", "13:10", "13:30", "14:00", "14:10"):
        await world.is_now(time)
    assert world.started("b") == ["13:10", "13:30", "14:10"]


@awaited
async def test_schedules_that_follow_each_other_are_refused(world):
    await world.define(a=HOURLY, b=after())
    with pytest.raises(InvalidSchedule) as refused:
        await world.define(a=after(schedule="b"))
    assert str(refused.value) == (
        "after.schedule: a follows b follows a: this is a cycle (remove one of these)"
    )
    assert (await world.schedule("a")).revision == 1


@awaited
async def test_longer_cycle_is_refused(world):
    with pytest.raises(InvalidSchedule, match="this is a cycle"):
        await world.define(
            a={"any": [HOURLY, after(schedule="c")]}, b=after(), c=after(schedule="b")
        )
    assert await world.beat.schedules() == []


@awaited
async def test_unknown_schedule_cannot_be_followed(world):
    with pytest.raises(InvalidSchedule) as refused:
        await world.define(b=after())
    assert str(refused.value) == (
        "after.schedule: schedule b follows 'a', which does not exist (define it first, or both together)"
    )
    assert await world.beat.schedules() == []


@awaited
async def test_follower_and_followed_are_defined_in_one_call_in_any_order(world):
    await world.define(b=after(), a=HOURLY)
    await world.passes("1h", "1m")
    assert world.started() == ["a", "b"]


@awaited
async def test_edited_follower_follows_only_its_new_schedule(world):
    await world.define(a=HOURLY, x={"cron": "30 13 * * *"}, b=after())
    await world.define(b=after(schedule="x"))
    for time in ("13:00", "13:10", "13:30", "13:40"):
        await world.is_now(time)
    assert world.started() == ["a", "x", "b"]


# -- after its own end


@awaited
async def test_schedule_runs_a_delay_after_its_last_success(world):
    world.answer_with("sync", ACCEPTED)
    await world.define(sync={"any": [{"at": "2026-01-01T13:00"}, {"after": {"success": "30m"}}], "timeout": "12h"})  # fmt: skip
    await world.is_now("13:07")
    for ended, then in (("13:07", "13:37"), ("13:50", "14:20")):
        await world.is_now(ended)
        (run,) = [run for run in await world.runs() if run.status == "STARTED"]
        await world.beat.report(run.run_id, Succeeded())
        assert at((await world.schedule("sync")).next_run_at) == then
        await world.is_now(then)
    assert world.started("sync") == ["13:00", "13:37", "14:20"]


@awaited
async def test_failure_triggers_no_tick_after_a_success(world):
    world.answer_with("sync", BROKEN)
    await world.define(sync={"any": [{"at": "2026-01-01T13:00"}, {"after": {"success": "30m"}}]})
    await world.is_now("13:00")
    assert (await world.schedule("sync")).next_run_at is None


# -- startup


@pytest.fixture
def file(tmp_path):
    return f"sqlite:///{tmp_path}/onbeat.db"


@awaited
async def test_each_start_is_followed_once_including_the_first(file):
    started, clock = [], ManualClock("2026-01-01T12:00:00Z")
    for length in ("0s", "5h"):
        world = PolicyHarness(file, clock=clock)
        clock.advance(length)
        world.beat.schedule(startup("30s"), name="warm-up")(lambda: started.append("warm"))
        async with world.beat:
            await world.passes("29s")
            before = len(started)
            await world.passes("2s", "1h", "24h")
            assert len(started) == before + 1
            assert (await world.schedule("warm-up")).next_run_at is None
    assert started == ["warm", "warm"]


@awaited
async def test_follower_without_a_delay_starts_within_a_second(file):
    world = PolicyHarness(file)
    world.beat.schedule(startup(), name="warm-up")(lambda: None)
    async with world.beat:
        await world.passes("1s")
        assert await world.columns("status") == ["SUCCESS"]


@awaited
async def test_schedule_defined_after_a_start_waits_for_the_next_start(file):
    world = PolicyHarness(file)
    async with world.beat:
        await world.define(report={"startup": "30s"})
        await world.passes("1h")
        assert await world.runs() == []
    again = PolicyHarness(file, clock=world.clock)
    async with again.beat:
        await again.passes("1m")
        assert await again.columns("status") == ["SUCCESS"]


@awaited
async def test_startup_tick_is_independent_of_other_triggers(file):
    world = PolicyHarness(file)
    combined = startup("10m") | every("1h")
    world.beat.schedule(combined, name="report")(lambda: None)
    async with world.beat:
        for time in ("12:11", "13:00", "14:00"):
            await world.is_now(time)
        assert [at(run.run_at)[:5] for run in await world.runs()] == ["12:10", "13:00", "14:00"]


@awaited
async def test_skipped_startup_tick_is_not_repeated(file):
    first = PolicyHarness(file)
    async with first.beat:
        await first.define(report={"startup": "1m", "enabled": False})
    world = PolicyHarness(file, clock=first.clock)
    async with world.beat:
        await world.passes("2m")
        await world.define(report={"startup": "1m"})
        await world.passes("1h")
        assert await world.columns("status reason") == [("SKIPPED", "disabled")]


@awaited
async def test_paused_schedule_does_not_follow_a_start(file):
    first = PolicyHarness(file)
    async with first.beat:
        await first.define(report={"startup": "1m"})
        await first.beat.pause("report", until=first.clock.now() + HOUR)
    world = PolicyHarness(file, clock=first.clock)
    async with world.beat:
        await world.passes("2m", "2h", "1h")
        assert await world.columns("status reason") == [("SKIPPED", "paused")]
