"""Limits that hold across nodes: the places of a group, and a rate."""

import asyncio
from itertools import pairwise

from onbeat.core.decide.plan import plan
from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import ManualClock, a_schedule
from tests.nodes.test_nodes import a_beat, until

RUNS, SCHEDULES = 1000, 20


def test_group_of_one_never_has_two_runs_across_three_nodes(postgres_url):
    going, most, called = 0, 0, []

    async def work(run):
        nonlocal going, most
        going += 1
        most = max(most, going)
        await asyncio.sleep(0)
        called.append(run.run_id)
        going -= 1

    async def story():
        beats = [a_beat(postgres_url, lease=10_000) for _ in range(3)]
        for beat in beats:
            beat.register("work", work)
        names = [f"job-{n}" for n in range(SCHEDULES)]
        async with beats[0], beats[1], beats[2]:
            target = {"python": "work"}
            await beats[0].define(
                *(a_schedule(name, run=target, group="one", every="1d") for name in names)
            )
            for n in range(RUNS):
                await beats[n % 3].start(names[n % SCHEDULES])
            await until(lambda: len(called) >= RUNS, longest=60)
            await asyncio.sleep(0.1)
            return await beats[0].service.runs(limit=10_000)

    rows = asyncio.run(story())
    assert sorted(called) == sorted(row.run_id for row in rows), "each was started once"
    assert most == 1
    spans = sorted((row.started_at, row.finished_at) for row in rows)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(spans)), "also by the books"


def test_rate_is_never_exceeded_with_several_planners(postgres_url):
    clock = ManualClock("2026-01-01T12:00:00Z")

    def decide(schedule, run_at, unfinished, past, now):
        return plan(schedule, run_at, unfinished, past, now=now)

    async def story():
        stores = [await PostgresStore.open(postgres_url, clock=clock) for _ in range(3)]
        fields = {"every": "7s", "rate": "5/minute", "overlap": "allow", "catchup": "all"}
        await stores[0].upsert([a_schedule(f"job-{n}", **fields) for n in range(5)])
        try:
            for step in (7, 1, 30, 90, 3, 14, 21, 200, 5, 60) * 3:
                clock.advance(step * 1000)
                await asyncio.gather(*(store.plan_due(decide, limit=100) for store in stores))
            return await stores[0].runs(limit=10_000)
        finally:
            for store in stores:
                await store.close()

    rows = asyncio.run(story())
    started = {row.schedule_id: [] for row in rows}
    for row in sorted(rows, key=lambda row: row.run_id):
        if row.status == "ENQUEUED":
            started[row.schedule_id].append(row.created_at)
    for times in started.values():
        assert times == sorted(times)
        sixth = zip(times, times[5:], strict=False)
        assert all(later - first >= 60_000 for first, later in sixth)
    assert {row.reason for row in rows} == {None, "rate"}
