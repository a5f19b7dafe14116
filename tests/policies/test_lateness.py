"""Ticks that start later than planned: missed ticks and ticks with jitter."""

import pytest

from tests.policies.world import HOUR, MINUTE, SECOND, PolicyHarness, at, awaited

HOURLY = {"every": "1h"}


@pytest.fixture
def file(tmp_path):
    return f"sqlite:///{tmp_path}/onbeat.db"


async def missed(file, **policy):
    """Return a world that is open again after the scheduler was down from 12:00 to 17:30."""
    before = PolicyHarness(file)
    async with before.beat:
        await before.define(report=HOURLY | policy)
    before.clock.advance("330m")
    return PolicyHarness(file, clock=before.clock)


# -- catchup


@awaited
async def test_catchup_none_records_missed_ticks_in_one_row(file):
    world = await missed(file, catchup="none")
    async with world.beat:
        await world.beat.settle()
        (run,) = await world.runs()
        assert (run.status, run.reason, run.tick_count) == ("SKIPPED", "missed", 5)
        assert (at(run.first_run_at), at(run.run_at)) == ("13:00", "17:00")
        row = await world.schedule("report")
        assert (row.last_missed_at, row.last_miss_reason) == (world.clock.now(), "missed")
        await world.is_now("18:00")
        assert world.started("report") == ["18:00"]


@awaited
async def test_catchup_once_runs_the_latest_tick_for_all(file):
    world = await missed(file)
    async with world.beat:
        await world.beat.settle()
        assert await world.columns("status triggered_by tick_count") == [("SUCCESS", "catchup", 5)]
        assert world.started("report") == ["17:00"]


@awaited
async def test_catchup_all_runs_each_tick_in_order(file):
    world = await missed(file, catchup="all", overlap="queue")
    async with world.beat:
        await world.beat.settle()
        assert world.started("report") == ["13:00", "14:00", "15:00", "16:00", "17:00"]
        assert set(await world.columns("status triggered_by tick_count")) == {("SUCCESS", "catchup", 1)}  # fmt: skip
        assert set(await world.columns("started_at")) == {world.clock.now()}


@awaited
async def test_catchup_spread_starts_ticks_evenly_over_a_minute(file):
    world = await missed(file, catchup="spread")
    async with world.beat:
        began = world.clock.now()
        await world.beat.settle()
        for _ in range(60):
            await world.passes("1s")
        starts = [(run.started_at - began) // SECOND for run in await world.runs()]
        assert starts == [0, 12, 24, 36, 48]
        assert world.started("report") == ["13:00", "14:00", "15:00", "16:00", "17:00"]
        assert len({run.key for run in await world.runs()}) == 5
        await world.is_now("18:00")
        assert world.started("report")[5:] == ["18:00"]


@awaited
async def test_spreading_ends_at_the_next_tick(file):
    world = await missed(file, catchup="spread")
    world.clock.advance("1770s")  # that is in 30 seconds
    async with world.beat:
        began = world.clock.now()
        await world.beat.settle()
        for _ in range(30):
            await world.passes("1s")
        starts = [(run.started_at - began) // SECOND for run in await world.runs()]
        assert starts == [0, 6, 12, 18, 24, 30]
        assert world.started("report")[-1] == "18:00"


@awaited
async def test_ticks_older_than_the_window_are_missed_and_the_rest_caught_up(file):
    world = await missed(file, catchup="all", catchup_window="2h30m")
    async with world.beat:
        await world.beat.settle()
        skipped, *others = await world.runs()
        assert (skipped.reason, skipped.tick_count, at(skipped.run_at)) == ("missed", 2, "14:00")
        assert [at(run.run_at) for run in others] == ["15:00", "16:00", "17:00"]


@awaited
async def test_tick_within_its_grace_is_on_time(world):
    await world.define(report=HOURLY | {"grace": "10m", "catchup": "none"})
    await world.passes("70m")
    assert await world.columns("status triggered_by") == [("SUCCESS", "timer")]
    await world.passes(HOUR + 1)
    assert (await world.columns("status reason"))[1] == ("SKIPPED", "missed")


# -- jitter


async def through(world, ticks):
    """Let that many ticks come to be due, each at its very time; return the runs."""
    for _ in range(ticks):
        row = await world.schedule("report")
        await world.passes(row.next_due_at - world.clock.now() - 1)
        before = len(await world.runs())
        await world.passes(1)
        assert len(await world.runs()) == before + 1
    return await world.runs()


def offsets(runs):
    return [run.due_at - run.run_at * 1000 for run in runs]


@awaited
async def test_jitter_only_delays_and_is_stable_for_a_tick(world):
    await world.define(report=HOURLY | {"jitter": "10m"})
    found = await through(world, 12)
    assert all(0 <= offset < 10 * MINUTE for offset in offsets(found))
    assert len(set(offsets(found))) == 12
    assert all(run.started_at == run.due_at for run in found)


@awaited
async def test_jitter_around_is_as_often_before_as_after_the_tick(world):
    await world.define(report=HOURLY | {"jitter": "10m", "jitter_around": True})
    found = await through(world, 48)
    assert all(-10 * MINUTE <= offset < 10 * MINUTE for offset in offsets(found))
    early = sum(offset < 0 for offset in offsets(found))
    assert 12 < early < 36
    assert min(offsets(found)) < -8 * MINUTE
    assert max(offsets(found)) > 8 * MINUTE
    assert all(run.started_at == run.due_at for run in found)
    planned = [run.run_at for run in found]
    assert planned == list(range(planned[0], planned[0] + 48 * 3600, 3600))


@awaited
async def test_jitter_of_a_tick_is_the_same_after_a_restart(file):
    found = []
    for _ in range(2):
        world = PolicyHarness(file)
        async with world.beat:
            await world.define(report=HOURLY | {"jitter": "10m", "jitter_around": True})
            found.append((await world.schedule("report")).next_due_at)
    assert found[0] == found[1]
