"""Runs that take too long: detected by past runs or `warn_after`, and marked once.

It is noon on New Year's Day; schedules are hourly and called `report` by default.
"""

import asyncio

from onbeat.core.explain.why import explain
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.core.runs.stuck import ENOUGH, LEAST
from onbeat.events import RunSkipped, RunStuck
from onbeat.ports.rows import RunFilter

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


async def ran(world, length, times=1, outcome=None):
    """Have the next ticks start runs that take so long."""
    for _ in range(times):
        await world.tick()
        (attempt,) = await world.start()
        world.clock.advance(length)
        await world.end(attempt, outcome or Succeeded())


async def events_of(world, kind):
    rows = await world.store.events(limit=10_000)
    return [row.event for row in rows if isinstance(row.event, kind)]


async def begin(world):
    await world.tick()
    (attempt,) = await world.start()
    return attempt


async def test_a_run_longer_than_three_times_its_p99_is_stuck(world):
    await world.define()
    await ran(world, MINUTE, ENOUGH)
    attempt = await begin(world)
    world.clock.advance(3 * MINUTE)
    await world.store.mark_stuck()
    assert await events_of(world, RunStuck) == []
    world.clock.advance(1)
    await world.store.mark_stuck()
    (found,) = await events_of(world, RunStuck)
    assert (found.run_id, found.rule, found.limit) == (attempt.run_id, "p99", 3 * MINUTE)
    assert found.lasts == 3 * MINUTE + 1
    assert (await world.store.run(attempt.run_id)).stuck_at == world.clock.now()
    assert (await world.store.overview()).stuck == 1
    stuck = await world.store.runs(RunFilter(is_stuck=True), limit=10)
    assert [run.run_id for run in stuck] == [attempt.run_id]


async def test_stuck_run_is_marked_once_by_any_node(world):
    await world.define(warn_after="1m")
    await begin(world)
    world.clock.advance(2 * MINUTE)
    await asyncio.gather(*(world.store.mark_stuck() for _ in range(5)))
    await world.store.mark_stuck()
    world.clock.advance(HOUR)
    await world.store.mark_stuck()
    assert len(await events_of(world, RunStuck)) == 1


async def test_ended_run_is_not_counted_as_stuck(world):
    await world.define(warn_after="1m")
    attempt = await begin(world)
    world.clock.advance(2 * MINUTE)
    await world.store.mark_stuck()
    await world.end(attempt, Succeeded())
    assert (await world.store.overview()).stuck == 0
    assert await world.store.runs(RunFilter(is_stuck=True), limit=10) == []
    assert (await world.store.run(attempt.run_id)).stuck_at is not None


async def test_run_waiting_for_its_retry_is_not_counted_as_stuck(world):
    await world.define(warn_after="1m", retry=["10m"])
    attempt = await begin(world)
    world.clock.advance(2 * MINUTE)
    await world.store.mark_stuck()
    await world.end(attempt, Failed("no", retryable=True))
    (run,) = await world.store.runs(RunFilter(), limit=10)
    assert (run.status, run.stuck_at is None) == ("ENQUEUED", False)
    assert (await world.store.overview()).stuck == 0
    assert await world.store.runs(RunFilter(is_stuck=True), limit=10) == []
    world.clock.advance(10 * MINUTE)
    (again,) = await world.start()
    told = explain(await world.store.facts("report", again.run_at)).sentences
    assert not any("it takes longer" in each for each in told)
    assert any("an earlier attempt took longer than " in each for each in told), told


async def test_run_is_not_stuck_with_too_few_past_runs(world):
    await world.define()
    await ran(world, MINUTE, ENOUGH - 1)
    await ran(world, MINUTE, 5, outcome=Failed("no", retryable=False))
    await begin(world)
    world.clock.advance(10 * HOUR)
    await world.store.mark_stuck()
    assert await events_of(world, RunStuck) == []


async def test_short_runs_are_not_stuck_within_seconds(world):
    await world.define()
    await ran(world, 5, ENOUGH)
    await begin(world)
    world.clock.advance(LEAST)
    await world.store.mark_stuck()
    assert await events_of(world, RunStuck) == []
    world.clock.advance(1)
    await world.store.mark_stuck()
    assert len(await events_of(world, RunStuck)) == 1


async def test_warn_after_replaces_the_limit_from_past_runs(world):
    await world.define(warn_after="2h")
    await ran(world, SECOND, ENOUGH)
    await begin(world)
    world.clock.advance(HOUR)
    await world.store.mark_stuck()
    assert await events_of(world, RunStuck) == []
    world.clock.advance(HOUR + 1)
    await world.store.mark_stuck()
    (found,) = await events_of(world, RunStuck)
    assert (found.rule, found.limit) == ("warn_after", 2 * HOUR)


async def test_all_runs_in_flight_are_checked_in_pages(world):
    for n in range(5):
        await world.define(f"s{n}", warn_after="1m")
    await world.tick()
    assert len(await world.start()) == 5
    world.clock.advance(2 * MINUTE)
    pages, following = 0, 0
    while following is not None:
        following = await world.store.mark_stuck(after=following, limit=2)
        pages += 1
    assert (pages, len(await events_of(world, RunStuck))) == (3, 5)


async def test_stuck_event_is_marked_for_notification(world):
    await world.define(warn_after="1m")
    await begin(world)
    world.clock.advance(2 * MINUTE)
    before = (await world.store.figures()).to_notify
    await world.store.mark_stuck()
    assert (await world.store.figures()).to_notify == before + 1


async def test_consecutive_overlaps_are_counted_up_to_six(world):
    await world.define()
    attempt = await begin(world)
    for _ in range(8):
        await world.tick()
    found = [(each.overlaps, each.is_notable) for each in await events_of(world, RunSkipped)]
    assert found == [(n, False) for n in range(1, 6)] + [(6, True)] * 3
    await world.end(attempt, Succeeded())
    await begin(world)
    await world.tick()
    assert (await events_of(world, RunSkipped))[-1].overlaps == 1
