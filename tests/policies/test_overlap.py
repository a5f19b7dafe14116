"""The overlap policies: skip, queue, allow and replace."""

import asyncio

import pytest

from onbeat import InvalidSchedule, every
from onbeat.core.runs.run import Failed, Succeeded
from tests.policies.world import ACCEPTED, SOON, at, awaited

LONG = {"every": "1h", "timeout": "12h"}  # what was accepted is in flight for as long as that


async def ends(world, place, outcome=Succeeded()):  # noqa: B008 - it is frozen
    """Report the outcome of the run at that index."""
    run = (await world.runs())[place]
    await world.beat.report(run.run_id, outcome)
    await world.beat.settle()


# -- skip


@awaited
async def test_tick_is_skipped_while_a_run_is_in_flight_and_names_it(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG)
    await world.passes("1h", "1h")
    first, second = await world.runs()
    assert (first.status, second.status, second.reason) == ("STARTED", "SKIPPED", "overlap")
    assert second.blocked_by == first.run_id
    row = await world.schedule("report")
    assert (row.last_missed_at, row.last_miss_reason) == (world.clock.now(), "overlap")


@awaited
async def test_tick_after_the_end_of_a_run_starts(world):
    world.answer_with("report", ACCEPTED, Succeeded())
    await world.define(report=LONG)
    await world.passes("1h")
    await ends(world, 0)
    await world.passes("1h")
    assert await world.columns("status") == ["SUCCESS", "SUCCESS"]


@awaited
async def test_manual_run_starts_beside_a_running_one(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG)
    await world.passes("1h")
    await world.beat.start("report")
    await world.beat.settle()
    assert await world.columns("triggered_by status") == [
        ("timer", "STARTED"),
        ("manual", "STARTED"),
    ]


@awaited
async def test_new_tick_supersedes_a_waiting_retry(world):
    world.answer_with("report", Failed("no"), Succeeded())
    await world.define(report={"every": "1h", "retry": ["90m"]})
    await world.passes("1h", "1h", "1h")
    assert await world.columns("status reason attempt") == [
        ("FAILED", "superseded", 1), ("SUCCESS", None, 1), ("SUCCESS", None, 1),
    ]  # fmt: skip


@awaited
async def test_superseded_retry_has_the_times_of_its_last_attempt(world):
    world.answer_with("report", Failed("no"), Succeeded())
    await world.define(report={"every": "1h", "retry": ["90m"]})
    await world.passes("1h", "1h")
    latest, dropped = await world.beat.runs("report")
    assert (dropped.reason, dropped.finished_at - dropped.started_at) == ("superseded", 3_600_000)
    assert (dropped.ended_waiting, latest.ended_waiting) == (True, False)


# -- allow


@awaited
async def test_overlap_allow_starts_every_tick(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG | {"overlap": "allow"})
    await world.passes("1h", "1h", "1h")
    assert await world.columns("status") == ["STARTED"] * 3


@awaited
async def test_runs_in_flight_never_exceed_max_active(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG | {"overlap": "allow", "max_active": 2})
    await world.passes("1h", "1h", "1h")
    assert await world.columns("status reason") == [
        ("STARTED", None), ("STARTED", None), ("SKIPPED", "overlap"),
    ]  # fmt: skip
    await ends(world, 0)
    await world.passes("1h")
    assert await world.columns("status") == ["SUCCESS", "STARTED", "SKIPPED", "STARTED"]


@awaited
async def test_retry_beyond_max_active_is_superseded(world):
    world.answer_with("report", Failed("no"), ACCEPTED)
    policy = {"overlap": "allow", "max_active": 1, "retry": ["90m"]}
    await world.define(report=LONG | policy)
    await world.passes("1h", "1h", "30m")
    assert await world.columns("status reason") == [("FAILED", "superseded"), ("STARTED", None)]


# -- queue


@awaited
async def test_queued_ticks_start_one_after_another_in_order(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG | {"overlap": "queue"})
    await world.passes("1h", "1h", "1h")
    first, second, third = await world.runs()
    assert [run.status for run in (first, second, third)] == ["STARTED", "ENQUEUED", "ENQUEUED"]
    assert (second.blocked_by, third.blocked_by) == (first.run_id, first.run_id)
    await ends(world, 0, Failed("no", retryable=False))
    assert await world.columns("status") == ["FAILED", "STARTED", "ENQUEUED"]
    await ends(world, 1)
    assert await world.columns("status") == ["FAILED", "SUCCESS", "STARTED"]
    assert world.started("report") == ["13:00", "14:00", "15:00"]


@awaited
async def test_tick_beyond_the_queue_limit_is_skipped(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG | {"overlap": "queue", "queue_limit": 1})
    await world.passes("1h", "1h", "1h")
    assert await world.columns("status reason") == [
        ("STARTED", None), ("ENQUEUED", None), ("SKIPPED", "queue_full"),
    ]  # fmt: skip
    await ends(world, 0)
    assert world.started("report") == ["13:00", "14:00"]


@awaited
async def test_queue_keep_latest_drops_the_longest_waiting_run(world):
    world.answer_with("report", ACCEPTED)
    policy = {"overlap": "queue", "queue_limit": 2, "queue_keep": "latest"}
    await world.define(report=LONG | policy)
    await world.passes("1h", "1h", "1h", "1h")
    assert await world.columns("status reason") == [
        ("STARTED", None), ("SKIPPED", "queue_full"), ("ENQUEUED", None), ("ENQUEUED", None),
    ]  # fmt: skip
    await ends(world, 0)
    assert world.started("report") == ["13:00", "15:00"]


@awaited
async def test_queued_run_can_be_canceled_and_the_next_starts(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG | {"overlap": "queue"})
    await world.passes("1h", "1h", "1h")
    _, second, _ = await world.runs()
    canceled = await world.beat.cancel(second.run_id, note="not needed")
    assert (canceled.status, canceled.reason, canceled.error) == ("CANCELED", "canceled", "not needed")  # fmt: skip
    await ends(world, 0)
    assert world.started("report") == ["13:00", "15:00"]


# -- replace


@awaited
async def test_new_tick_replaces_a_detached_run(world):
    world.answer_with("report", ACCEPTED)
    await world.define(report=LONG | {"overlap": "replace"})
    await world.passes("1h", "1h")
    first, second = await world.runs()
    assert (first.status, first.reason, second.status) == ("CANCELED", "superseded", "STARTED")
    assert first.error == "its target had accepted it and was not notified"


class Held:
    """A launcher of attempts that run until they end, or after a cancellation until released."""

    def __init__(self):
        self.begun, self.asked = [], []
        self.over, self.let_go = asyncio.Event(), asyncio.Event()

    def check(self, target):
        pass

    def can_cancel(self, target):
        return True

    def offers(self):
        return ["command"]

    async def launch(self, attempt):
        self.begun.append(at(attempt.run_at))
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            self.asked.append(at(attempt.run_at))
            await self.let_go.wait()
            raise
        return Succeeded(), ""

    def kill(self, run_ids):
        pass

    async def recover(self):
        return 0

    async def close(self):
        pass


@pytest.mark.parametrize("world", [Held], indirect=True)
@awaited
async def test_newest_tick_waits_for_the_replaced_run_and_older_ticks_do_not_start(
    world,
):
    held = world.targets

    async def come_to(*expected, begun, asked=()):
        """Wait for runs in these states, and for the attempts begun and canceled by then."""
        world.beat.wake()
        async with asyncio.timeout(SOON / 4):
            while (  # noqa: ASYNC110 - it is the engine's doing
                await world.columns("status reason") != list(expected)
                or held.begun != begun.split()
                or held.asked != list(asked)
            ):
                await asyncio.sleep(0.005)

    await world.define(report={"every": "1h", "overlap": "replace"})
    try:
        world.clock.advance("1h")
        await come_to(("STARTED", None), begun="13:00")
        world.clock.advance("1h")
        going, asked = ("STARTED", "superseded"), ["13:00"]
        await come_to(going, ("ENQUEUED", None), begun="13:00", asked=asked)
        world.clock.advance("1h")
        dropped = ("SKIPPED", "superseded")
        await come_to(going, dropped, ("ENQUEUED", None), begun="13:00", asked=asked)
        held.let_go.set()
        ended = ("CANCELED", "superseded")
        await come_to(ended, dropped, ("STARTED", None), begun="13:00 15:00", asked=asked)
    finally:
        held.let_go.set()
        held.over.set()
    await come_to(ended, dropped, ("SUCCESS", None), begun="13:00 15:00", asked=asked)


@awaited
async def test_ended_run_is_not_replaced(world):
    await world.define(report=LONG | {"overlap": "replace"})
    await world.passes("1h", "1h")
    assert await world.columns("status") == ["SUCCESS", "SUCCESS"]


NOT_TO_BE_ENDED = (
    "overlap: the target cannot be canceled, so a new run cannot replace the old one "
    "(skip, queue or allow)"
)


def test_target_that_cannot_be_canceled_cannot_be_replaced(world):
    async def main():
        async with world.beat:
            await world.define(report=LONG | {"overlap": "replace", "run": {"python": "plain"}})

    world.beat.register("plain", lambda: None)
    with pytest.raises(InvalidSchedule) as refused:
        asyncio.run(main())
    assert str(refused.value) == f"report.{NOT_TO_BE_ENDED}"


def test_decorated_function_that_cannot_be_canceled_cannot_be_replaced(world):
    async def main():
        world.beat.schedule(every("1h"), name="report", overlap="replace")(lambda: None)
        async with world.beat:
            pass

    with pytest.raises(InvalidSchedule) as refused:
        asyncio.run(main())
    assert str(refused.value) == f"report.{NOT_TO_BE_ENDED}"
