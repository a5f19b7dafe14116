"""Schedules that start no runs: paused, paused after failures, and disabled."""

import pytest

from onbeat import InvalidSchedule
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from tests.policies.world import ACCEPTED, HOUR, MINUTE, at, awaited

HOURLY = {"every": "1h"}
BROKEN = Failed("no", retryable=False)


# -- pause, until a time


@awaited
async def test_pause_ends_automatically_and_leaves_one_row(world):
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
async def test_pause_without_due_ticks_leaves_no_row(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report", until=world.clock.now() + 30 * MINUTE)
    await world.passes("30m", "30m")
    assert await world.columns("status") == ["SUCCESS"]


@awaited
async def test_pause_can_be_extended_or_made_endless(world):
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
    assert await world.columns("status") == []


@awaited
async def test_schedule_resumed_early_is_not_resumed_twice(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report", until=world.clock.now() + 2 * HOUR)
    await world.is_now("13:10")
    assert await world.beat.resume("report")
    for time in ("14:00", "15:00"):
        await world.is_now(time)
    assert await world.columns("status tick_count") == [
        ("SKIPPED", 1),
        ("SUCCESS", 1),
        ("SUCCESS", 1),
    ]


@awaited
async def test_resume_with_catchup_runs_the_ticks_of_a_pause_once(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report", until=world.clock.now() + 12 * HOUR)
    await world.is_now("15:10")
    await world.beat.resume("report", catchup=True)
    await world.beat.settle()
    assert await world.columns("status triggered_by tick_count") == [("SUCCESS", "catchup", 3)]


@awaited
async def test_pause_with_a_past_end_is_refused(world):
    await world.define(report=HOURLY)
    with pytest.raises(InvalidSchedule) as refused:
        await world.beat.pause("report", until=world.clock.now())
    assert str(refused.value) == (
        "until: 2026-01-01T12:00:00.000Z is in the past (later than 2026-01-01T12:00:00.000Z)"
    )
    assert not (await world.schedule("report")).paused


@awaited
async def test_started_run_finishes_during_a_pause(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=HOURLY | {"timeout": "12h"})
    await world.passes("1h")
    await world.beat.pause("report")
    (run,) = await world.runs()
    await world.beat.report(run.run_id, Succeeded())
    assert await world.columns("status") == ["SUCCESS"]


@awaited
async def test_manual_run_starts_during_a_pause(world):
    await world.define(report=HOURLY)
    await world.beat.pause("report")
    await world.beat.start("report")
    await world.beat.settle()
    assert await world.columns("status triggered_by") == [("SUCCESS", "manual")]


# -- pause_after


@awaited
async def test_pause_after_pauses_a_schedule_with_a_note(world):
    world.answer_with("report", BROKEN, BROKEN, Succeeded(), BROKEN)
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
async def test_resuming_resets_the_count_of_failures(world):
    world.answer_with("report", BROKEN)
    await world.define(report=HOURLY | {"pause_after": 2})
    await world.passes("1h", "1h")
    assert await world.beat.resume("report")
    assert (await world.schedule("report")).consecutive_failures == 0
    await world.passes("1h")
    assert not (await world.schedule("report")).paused
    await world.passes("1h")
    assert (await world.schedule("report")).paused
    assert await world.columns("status") == ["FAILED"] * 4


@awaited
async def test_retried_attempts_do_not_count_as_failures(world):
    world.answer_with("report", Failed("no"), Failed("no"), Succeeded())
    await world.define(report=HOURLY | {"pause_after": 1, "retry": ["1m", "1m"]})
    await world.passes("1h", "1m", "1m")
    assert await world.columns("status attempt") == [("SUCCESS", 3)]
    assert not (await world.schedule("report")).paused


@pytest.mark.parametrize("outcome", [Accepted(), Failed("no", "timeout", retryable=False)], ids=["unheard of", "failed"])  # fmt: skip
@awaited
async def test_pause_after_one_failure(world, outcome):
    world.answer_with("report", outcome)
    await world.define(report=HOURLY | {"pause_after": 1})
    await world.passes("1h", "59m", "1m")
    row = await world.schedule("report")
    assert (row.paused, row.pause_note) == (True, "a run has failed")


@awaited
async def test_canceled_and_skipped_runs_do_not_change_the_count_of_failures(world):
    world.answer_with("report", BROKEN, ACCEPTED, BROKEN)
    await world.define(report=HOURLY | {"pause_after": 2, "timeout": "12h"})
    await world.passes("1h", "1h")
    _, detached = await world.runs()
    await world.passes("1h")
    await world.beat.cancel(detached.run_id)
    assert not (await world.schedule("report")).paused
    await world.passes("1h")
    assert await world.columns("status") == ["FAILED", "CANCELED", "SKIPPED", "FAILED"]
    assert (await world.schedule("report")).paused


# -- enabled


@awaited
async def test_ticks_of_a_disabled_schedule_have_the_reason_disabled(world):
    await world.define(report=HOURLY | {"enabled": False})
    await world.passes("1h")
    assert await world.columns("status reason") == [("SKIPPED", "disabled")]
    row = await world.schedule("report")
    assert (row.last_missed_at, row.last_miss_reason) == (world.clock.now(), "disabled")


@awaited
async def test_ticks_of_a_disabled_target_have_the_reason_disabled_target(world):
    await world.define(report=HOURLY | {"run": {"command": ["true"], "enabled": False}})
    await world.passes("1h")
    assert await world.columns("status reason") == [("SKIPPED", "disabled_target")]
    row = await world.schedule("report")
    assert (row.last_missed_at, row.last_miss_reason) == (world.clock.now(), "disabled_target")
    assert world.started() == []


@awaited
async def test_reenabled_schedule_continues_with_the_next_tick(world):
    await world.define(report=HOURLY | {"enabled": False})
    await world.passes("3h")
    await world.define(report=HOURLY)
    await world.passes("1h")
    skipped, ran = await world.runs()
    assert (skipped.reason, skipped.tick_count, ran.status) == ("disabled", 3, "SUCCESS")
    assert world.started("report") == ["16:00"]


@awaited
async def test_disabled_schedule_can_be_started_manually_but_not_a_disabled_target(world):
    await world.define(
        report=HOURLY | {"enabled": False},
        other=HOURLY | {"run": {"command": ["true"], "enabled": False}},
    )
    await world.beat.start("report")
    await world.beat.settle()
    assert await world.columns("status", "report") == ["SUCCESS"]
    with pytest.raises(InvalidSchedule) as refused:
        await world.beat.start("other")
    assert str(refused.value) == "run.enabled: the target is disabled (enabled: true)"


# -- manual only


@awaited
async def test_manual_schedule_runs_only_when_started(world):
    await world.define(rebuild={"manual": True})
    await world.passes("400d")
    assert (await world.schedule("rebuild")).next_run_at is None
    assert await world.columns("status") == []
    await world.beat.start("rebuild", request_id="once")
    await world.beat.start("rebuild", request_id="once")
    await world.passes("1h")
    assert await world.columns("status") == ["SUCCESS"]
    answer = await world.beat.why("rebuild", world.clock.now() // 1000)
    assert (answer.kind, answer.headline) == ("no_tick", "it is not a tick")
    assert answer.sentences == ["it has no ticks: its trigger is manual"]
    assert (answer.previous, answer.following) == (None, None)
