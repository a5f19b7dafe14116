"""Timers of services while the process starts, idles and stops."""

import asyncio

import pytest

from onbeat.systems.services.system import TimerSystem
from tests.inside import store_of
from tests.systems.services.conftest import HOURLY
from tests.waiting import engine_has_looked, until

PERSISTENT = HOURLY | {"persistent": True}


@pytest.mark.req("S63")
def test_overdue_timer_starts_only_after_the_services_file_is_read(world, monkeypatch):
    world.write(PERSISTENT)

    async def first(its):
        await its.let_pass("1s")

    world.play(first)
    world.clock.advance("3h")
    order, read = [], TimerSystem.start

    async def start(system):
        await read(system)
        await asyncio.sleep(0.05)  # long enough for a planner that did not wait
        order.append(("file read", len(world.commands.attempts)))

    monkeypatch.setattr(TimerSystem, "start", start)

    async def second(its):
        await its.let_pass("1s")

    world.play(second)
    assert order == [("file read", 0)]
    assert world.started == ["hourly"]


@pytest.mark.req("S64")
def test_no_timer_starts_while_the_process_waits_for_its_last_run(world, monkeypatch):
    world.write()
    may_end = asyncio.Event()
    launch = world.commands.launch

    async def launch_and_wait(attempt):
        outcome = await launch(attempt)
        await may_end.wait()
        return outcome

    monkeypatch.setattr(world.commands, "launch", launch_and_wait)

    async def story(its):
        its.clock.advance("1h")
        while not its.started:  # noqa: ASYNC110 - the launcher notes it
            await asyncio.sleep(0.01)
        before = list(its.started)
        stopping = asyncio.create_task(its.beat.close())
        await until(lambda: not its.beat.activity.begins_runs)
        its.clock.advance("3h")
        its.write({"id": "late", "target": "backup", "on_startup_sec": 0})
        its.beat.wake()
        await asyncio.sleep(0.05)
        was_waiting = not stopping.done()
        may_end.set()
        await stopping
        return was_waiting, its.started == before

    assert world.play(story) == (True, True)


@pytest.mark.req("S75")
def test_idle_timers_are_not_polled(world):
    world.write()

    async def story(its):
        await its.beat.settle()
        store = store_of(its.beat)
        planned, real = [], store.plan_due

        def plan_due(*given, **named):
            planned.append(its.clock.now())
            return real(*given, **named)

        store.plan_due = plan_due
        await engine_has_looked(its.beat)
        idle = len(planned)
        await its.let_pass("1h")
        return idle, len(planned) > 0, its.started

    assert world.play(story) == (0, True, ["hourly"])
