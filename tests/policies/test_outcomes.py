"""What follows the outcome of a target: retries, accepted runs, busy and missing targets."""

import pytest

from onbeat.core.runs.run import Accepted, Busy, Failed, Gone, Succeeded
from onbeat.errors import NoSuchRun, RunIsOver
from tests.policies.world import HOUR, MINUTE, SECOND, awaited

HOURLY = {"every": "1h"}
POST = HOURLY | {"run": {"http": "https://example.org/start"}}
NO = Failed("no")


async def the_run(world):
    (run,) = await world.runs()
    return run


# -- retry


@awaited
async def test_retry_list_sets_the_delay_of_each_attempt(world):
    world.answer_with("report", NO, NO, Succeeded({"rows": 3}))
    await world.define(report=HOURLY | {"retry": ["30s", "2m"]})
    await world.passes("1h")
    run = await the_run(world)
    assert (run.status, run.attempt, run.error) == ("ENQUEUED", 1, "no")
    assert run.due_at == world.clock.now() + 30 * SECOND
    await world.passes("30s")
    run = await the_run(world)
    assert (run.attempt, run.due_at) == (2, world.clock.now() + 2 * MINUTE)
    await world.passes(2 * MINUTE - 1)
    assert (await the_run(world)).attempt == 2
    await world.passes(1)
    run = await the_run(world)
    assert (run.status, run.attempt, run.result, run.error) == ("SUCCESS", 3, {"rows": 3}, None)
    assert len({attempt.key for attempt in world.targets.attempts}) == 1


@awaited
async def test_backoff_doubles_each_delay_up_to_its_maximum(world):
    world.answer_with("report", NO)
    policy = {"retry": {"attempts": 5, "backoff": "1m", "max": "3m"}, "every": "12h"}
    await world.define(report=policy)
    await world.passes("12h")
    waits = []
    while (run := await the_run(world)).status == "ENQUEUED":
        waits.append((run.due_at - world.clock.now()) // MINUTE)
        await world.passes(run.due_at - world.clock.now())
    assert waits == [1, 2, 3, 3]
    assert (run.status, run.reason, run.attempt) == ("FAILED", "error", 5)


@awaited
async def test_retry_jitter_only_lengthens_a_delay(world):
    world.answer_with("report", NO)
    policy = {"retry": {"attempts": 9, "backoff": "1m", "max": "1m", "jitter": "30s"}}
    await world.define(report=policy | {"every": "12h"})
    await world.passes("12h")
    waits = []
    while (run := await the_run(world)).status == "ENQUEUED":
        waits.append(run.due_at - world.clock.now())
        await world.passes(waits[-1])
    assert all(MINUTE <= wait <= MINUTE + 30 * SECOND for wait in waits)
    assert len(set(waits)) > 1


@awaited
async def test_non_retryable_failure_is_not_retried(world):
    world.answer_with("report", Failed("exit code 3", "exit", retryable=False, exit_code=3))
    await world.define(report=HOURLY | {"retry": ["1m"]})
    await world.passes("1h", "1m")
    run = await the_run(world)
    assert (run.status, run.reason, run.attempt, run.exit_code) == ("FAILED", "exit", 1, 3)


@awaited
async def test_run_waiting_for_its_retry_can_be_canceled(world):
    world.answer_with("report", NO)
    await world.define(report=HOURLY | {"retry": ["10m"]})
    await world.passes("1h")
    canceled = await world.beat.cancel((await the_run(world)).run_id)
    assert (canceled.status, canceled.reason, canceled.error) == (
        "CANCELED", "canceled", "canceled manually",
    )  # fmt: skip
    await world.passes("30m")
    assert len(world.targets.attempts) == 1


# -- accepted


@pytest.mark.parametrize("by", ["run_id", "key"])
@awaited
async def test_accepted_run_is_in_flight_until_its_target_reports(world, by):
    world.answer_with("report", Accepted("order-7"))
    await world.define(report=POST)
    await world.passes("1h", "30m")
    run = await the_run(world)
    assert (run.status, run.external_id, run.leased_by) == ("STARTED", "order-7", None)
    assert run.key == world.targets.attempts[0].key
    answer = await world.beat.report(getattr(run, by), Succeeded({"rows": 3}))
    assert (answer.status, answer.result, answer.external_id) == ("SUCCESS", {"rows": 3}, "order-7")
    row = await world.schedule("report")
    assert row.last_success_at == world.clock.now()


@awaited
async def test_reported_failure_is_retried_if_retryable(world):
    world.answer_with("report", Accepted())
    await world.define(report=POST | {"retry": ["1m", "1m"]})
    await world.passes("1h")
    run = await the_run(world)
    answer = await world.beat.report(run.run_id, Failed("half of it"))
    assert (answer.status, answer.error, answer.due_at) == (
        "ENQUEUED", "half of it", world.clock.now() + MINUTE,
    )  # fmt: skip
    await world.passes("1m")
    answer = await world.beat.report(run.key, Failed("none of it", retryable=False))
    assert (answer.status, answer.reason, answer.attempt) == ("FAILED", "error", 2)


@awaited
async def test_manual_run_is_reported_by_its_key(world):
    world.answer_with("report", Accepted())
    await world.define(report=POST)
    run = await world.beat.start("report", request_id="order-7")
    await world.beat.settle()
    answer = await world.beat.report(run.key, Succeeded())
    assert (answer.run_id, answer.status) == (run.run_id, "SUCCESS")


@awaited
async def test_repeated_report_changes_nothing_and_another_is_refused(world):
    world.answer_with("report", Accepted())
    await world.define(report=POST)
    await world.passes("1h")
    run = await the_run(world)
    first = await world.beat.report(run.run_id, Succeeded(1))
    await world.passes("1m")
    assert await world.beat.report(run.run_id, Succeeded(2)) == first
    with pytest.raises(RunIsOver, match="run 1 is SUCCESS: nothing was changed"):
        await world.beat.report(run.run_id, Failed("no"))
    assert await the_run(world) == first


@awaited
async def test_empty_report_is_refused(world):
    for which in (7, "no-key"):
        with pytest.raises(NoSuchRun):
            await world.beat.report(which, Succeeded())


@awaited
async def test_accepted_run_that_is_never_reported_fails_at_its_deadline(world):
    world.answer_with("report", Accepted(), Succeeded())
    await world.define(report={"every": "50m"})
    await world.passes("50m")
    run = await the_run(world)
    assert run.deadline_at == world.clock.now() + HOUR
    await world.passes(50 * MINUTE)
    assert await world.columns("status reason") == [("STARTED", None), ("SKIPPED", "overlap")]
    await world.passes(10 * MINUTE - 1)
    assert (await world.columns("status"))[0] == "STARTED"
    await world.passes(1)
    error = "its target accepted it and reported no outcome by its deadline: it may still run"
    assert (await world.columns("status reason error"))[0] == ("FAILED", "timeout", error)
    await world.passes(40 * MINUTE)
    assert await world.columns("status") == ["FAILED", "SKIPPED", "SUCCESS"]


@awaited
async def test_report_after_the_deadline_is_refused_with_the_field_to_raise(world):
    world.answer_with("report", Accepted())
    await world.define(report=POST | {"every": "1d"})
    await world.passes("1d", "1h")
    run = await the_run(world)
    with pytest.raises(RunIsOver, match="raise the timeout of the schedule"):
        await world.beat.report(run.key, Succeeded())
    assert "it reported SUCCESS at 2026-01-02T" in (await the_run(world)).error


@pytest.mark.parametrize(
    ("policy", "awaited_for"),
    [({}, HOUR), ({"timeout": "3h"}, 3 * HOUR), ({"timeout": "5m"}, 5 * MINUTE)],
    ids=str,
)
@awaited
async def test_accepted_run_has_an_hour_unless_its_schedule_has_a_timeout(
    world, policy, awaited_for
):
    world.answer_with("report", Accepted())
    await world.define(report={"every": "12h"} | policy)
    await world.passes("12h", awaited_for - 1)
    assert (await the_run(world)).status == "STARTED"
    await world.passes(1)
    assert (await the_run(world)).reason == "timeout"


@awaited
async def test_accepted_run_can_be_canceled_without_notifying_its_target(world):
    world.answer_with("report", Accepted())
    await world.define(report=HOURLY)
    await world.passes("1h")
    run = await world.beat.cancel((await the_run(world)).run_id, note="not needed")
    assert (run.status, run.reason) == ("CANCELED", "canceled")
    assert run.error == "not needed; its target had accepted it and was not notified"
    with pytest.raises(RunIsOver):
        await world.beat.report(run.run_id, Succeeded())


# -- busy


@awaited
async def test_busy_target_is_retried_without_using_a_retry(world):
    busy = Busy("too many sessions", 10 * MINUTE)
    world.answer_with("report", busy, busy, NO, busy, Succeeded())
    await world.define(report={"every": "12h", "retry": ["1m"]})
    await world.passes("12h")
    run = await the_run(world)
    assert (run.status, run.reason, run.error) == ("ENQUEUED", "busy", "too many sessions")
    assert (run.deferrals, run.due_at) == (1, world.clock.now() + 10 * MINUTE)
    await world.passes("10m", "10m")
    assert (await the_run(world)).reason == "error"
    await world.passes("1m", "10m")
    run = await the_run(world)
    assert (run.status, run.attempt, run.deferrals) == ("SUCCESS", 5, 3)


@awaited
async def test_run_with_a_target_busy_until_the_next_tick_is_skipped(world):
    world.answer_with("report", Busy("later", 2 * HOUR), Succeeded())
    await world.define(report=HOURLY)
    await world.passes("1h", "1h")
    assert await world.columns("status") == ["SKIPPED", "SUCCESS"]


@awaited
async def test_run_with_a_target_busy_beyond_its_start_deadline_is_skipped_as_busy(world):
    world.answer_with("report", Busy("later", 10 * MINUTE))
    await world.define(report={"every": "12h", "start_deadline": "25m"})
    await world.passes("12h", "10m", "10m", "5m")
    run = await the_run(world)
    assert (run.status, run.reason, run.deferrals) == ("SKIPPED", "busy", 3)
    await world.passes("1h")
    assert len(world.targets.attempts) == 3


@awaited
async def test_busy_target_does_not_count_as_a_failure(world):
    world.answer_with("report", Busy("later", 10 * MINUTE))
    await world.define(report={"every": "12h", "pause_after": 1})
    await world.passes("12h", "10m", "10m")
    row = await world.schedule("report")
    assert (row.paused, row.consecutive_failures, row.last_failure_at) == (False, 0, None)


# -- gone


@awaited
async def test_missing_target_fails_its_run_without_retry(world):
    world.answer_with("report", Gone("no such session"))
    await world.define(report=HOURLY | {"retry": ["1m"]})
    await world.passes("1h", "1m")
    run = await the_run(world)
    assert (run.status, run.reason, run.error) == ("FAILED", "invalid_target", "no such session")
    assert run.attempt == 1
