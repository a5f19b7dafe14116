"""What keeps a schedule from starting anything: pauses, too many failures, and being disabled."""

import pytest

from onbeat import InvalidSchedule
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from tests.policies.world import GOES_ON, HOUR, MINUTE, at, awaited

HOURLY = {"every": "1h"}
BROKEN = Failed("no", retryable=False)


# -- pause, until a time


@awaited
async def test_a_pause_ends_by_itself_and_leaves_one_row(world):
    await world.define(report=HOURLY)
    await world.passes("10m")
    until = world.clock.now() + 140 * MINUTE
    assert await world.beat.pause("report", note="maintenance", until=until)
    row = await world.schedule("report")
    assert (row.paused, row.pause_note, row.paused_until) == (True, "maintenance", until)
    await world.is_now("14:29:59")
    assert (await world.schedule("report")).paused
    await world.is_now("14:30")
    row = await world.schedule("report")
    assert (row.paused, row.pause_note, row.paused_until) == (False, "", None)
    (skipped,) = await world.runs()
    assert (skipped.status, skipped.reason, skipped.tick_count) == ("SKIPPED", "paused", 2)
    assert (at(skipped.first_run_at), at(skipped.run_at)) == ("13:00", "14:00")
    await world.is_now("15:00")
    assert world.started("report") == ["15:00"]


@awaited
async def test_a_pause_in_which_nothing_was_due_leaves_no_row(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report", until=world.clock.now() + 30 * MINUTE)
    await world.passes("30m", "30m")
    assert await world.told("status") == ["SUCCESS"]


@awaited
async def test_a_pause_can_be_made_longer_or_without_end(world):
    await world.define(report=HOURLY)
    now = world.clock.now()
    assert await world.beat.pause("report", until=now + HOUR)
    assert await world.beat.pause("report", until=now + 2 * HOUR)
    assert not await world.beat.pause("report", until=now + 2 * HOUR)
    await world.is_now("13:30")
    assert (await world.schedule("report")).paused
    assert await world.beat.pause("report")
    await world.passes("24h")
    assert (await world.schedule("report")).paused
    assert await world.told("status") == []


@awaited
async def test_one_that_is_resumed_early_does_not_pause_again_nor_resume_twice(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report", until=world.clock.now() + 2 * HOUR)
    await world.is_now("13:10")
    assert await world.beat.resume("report")
    for time in ("14:00", "15:00"):
        await world.is_now(time)
    assert await world.told("status tick_count") == [("SKIPPED", 1), ("SUCCESS", 1), ("SUCCESS", 1)]


@awaited
async def test_what_the_pause_left_out_runs_once_if_that_is_asked_for(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report", until=world.clock.now() + 12 * HOUR)
    await world.is_now("15:10")
    await world.beat.resume("report", catchup=True)
    await world.beat.settle()
    assert await world.told("status triggered_by tick_count") == [("SUCCESS", "catchup", 3)]


@awaited
async def test_a_pause_that_would_be_over_already_is_refused(world):
    await world.define(report=HOURLY)
    with pytest.raises(InvalidSchedule) as refused:
        await world.beat.pause("report", until=world.clock.now())
    assert str(refused.value) == (
        "until: 2026-01-01T12:00:00.000Z is in the past (later than 2026-01-01T12:00:00.000Z)"
    )
    assert not (await world.schedule("report")).paused


@awaited
async def test_what_has_started_finishes_while_it_is_paused(world):
    world.tell("report", GOES_ON)
    await world.define(report=HOURLY | {"timeout": "12h"})
    await world.passes("1h")
    await world.beat.pause("report")
    (run,) = await world.runs()
    await world.beat.report(run.run_id, Succeeded())
    assert await world.told("status") == ["SUCCESS"]


@awaited
async def test_a_run_by_hand_starts_while_it_is_paused(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report")
    await world.beat.start("report")
    await world.beat.settle()
    assert await world.told("status triggered_by") == [("SUCCESS", "manual")]


# -- pause_after


@awaited
async def test_so_many_failures_in_a_row_pause_a_schedule_and_it_says_why(world):
    world.tell("report", BROKEN, BROKEN, Succeeded(), BROKEN)
    await world.define(report=HOURLY | {"pause_after": 3})
    await world.passes("1h", "1h", "1h")
    succeeded = world.clock.now()
    await world.passes("1h", "1h")
    assert not (await world.schedule("report")).paused
    await world.passes("1h")
    row = await world.schedule("report")
    assert (row.paused, row.pause_note) == (True, "3 runs in a row have failed")
    assert (row.last_success_at, row.last_failure_at) == (succeeded, world.clock.now())
    await world.passes("5h")
    assert len(await world.runs()) == 6


@awaited
async def test_resuming_counts_anew(world):
    world.tell("report", BROKEN)
    await world.define(report=HOURLY | {"pause_after": 2})
    await world.passes("1h", "1h")
    assert await world.beat.resume("report")
    assert (await world.schedule("report")).consecutive_failures == 0
    await world.passes("1h")
    assert not (await world.schedule("report")).paused
    await world.passes("1h")
    assert (await world.schedule("report")).paused
    assert await world.told("status") == ["FAILED"] * 4


@awaited
async def test_attempts_that_are_tried_again_are_no_failures_of_their_run(world):
    world.tell("report", Failed("no"), Failed("no"), Succeeded())
    await world.define(report=HOURLY | {"pause_after": 1, "retry": ["1m", "1m"]})
    await world.passes("1h", "1m", "1m")
    assert await world.told("status attempt") == [("SUCCESS", 3)]
    assert not (await world.schedule("report")).paused


@pytest.mark.parametrize("outcome", [Accepted(), Failed("no", "timeout", retryable=False)], ids=["unheard of", "failed"])  # fmt: skip
@awaited
async def test_one_failure_is_enough_if_that_is_asked_for(world, outcome):
    world.tell("report", outcome)
    await world.define(report=HOURLY | {"pause_after": 1})
    await world.passes("1h", "59m", "1m")
    row = await world.schedule("report")
    assert (row.paused, row.pause_note) == (True, "a run has failed")


@awaited
async def test_canceled_and_skipped_runs_neither_count_nor_make_up_for_a_failure(world):
    world.tell("report", BROKEN, GOES_ON, BROKEN)
    await world.define(report=HOURLY | {"pause_after": 2, "timeout": "12h"})
    await world.passes("1h", "1h")
    _, detached = await world.runs()
    await world.passes("1h")
    await world.beat.cancel(detached.run_id)
    assert not (await world.schedule("report")).paused
    await world.passes("1h")
    assert await world.told("status") == ["FAILED", "CANCELED", "SKIPPED", "FAILED"]
    assert (await world.schedule("report")).paused


# -- enabled


@awaited
async def test_ticks_of_a_schedule_that_is_disabled_say_so(world):
    await world.define(report=HOURLY | {"enabled": False})
    await world.passes("1h")
    assert await world.told("status reason") == [("SKIPPED", "disabled")]
    row = await world.schedule("report")
    assert (row.last_missed_at, row.last_miss_reason) == (world.clock.now(), "disabled")


@awaited
async def test_ticks_whose_target_is_disabled_say_so(world):
    await world.define(report=HOURLY | {"run": {"command": ["true"], "enabled": False}})
    await world.passes("1h")
    assert await world.told("status reason") == [("SKIPPED", "disabled_target")]
    row = await world.schedule("report")
    assert (row.last_missed_at, row.last_miss_reason) == (world.clock.now(), "disabled_target")
    assert world.started() == []


@awaited
async def test_a_schedule_that_is_enabled_again_goes_on_from_there(world):
    await world.define(report=HOURLY | {"enabled": False})
    await world.passes("3h")
    await world.define(report=HOURLY)
    await world.passes("1h")
    skipped, ran = await world.runs()
    assert (skipped.reason, skipped.tick_count, ran.status) == ("disabled", 3, "SUCCESS")
    assert world.started("report") == ["16:00"]


@awaited
async def test_a_schedule_that_is_disabled_can_be_started_by_hand_and_a_target_cannot(world):
    await world.define(
        report=HOURLY | {"enabled": False},
        other=HOURLY | {"run": {"command": ["true"], "enabled": False}},
    )
    await world.beat.start("report")
    await world.beat.settle()
    assert await world.told("status", "report") == ["SUCCESS"]
    with pytest.raises(InvalidSchedule) as refused:
        await world.beat.start("other")
    assert str(refused.value) == "run.enabled: the target is disabled (enabled: true)"


# -- by hand only


@awaited
async def test_what_has_no_trigger_but_a_hand_runs_when_it_is_started_and_never_by_itself(world):
    await world.define(rebuild={"manual": True})
    await world.passes("400d")
    assert (await world.schedule("rebuild")).next_run_at is None
    assert await world.told("status") == []
    await world.beat.start("rebuild", request_id="once")
    await world.beat.start("rebuild", request_id="once")
    await world.passes("1h")
    assert await world.told("status") == ["SUCCESS"]
    told = await world.beat.why("rebuild", world.clock.now() // 1000)
    assert (told.kind, told.headline) == ("no_tick", "it is not a tick")
    assert told.sentences == ["it has no ticks: it runs only when it is started"]
    assert (told.previous, told.following) == (None, None)
