"""Requests take turns: few are begun at the same time, and none keeps its turn for ever."""

import asyncio
from collections.abc import Callable

from onbeat.web.concurrency_limit import MOST_CONCURRENT, limit_concurrency

START = {"type": "http.response.start", "status": 200, "headers": []}


def asked(path="/api/v1/schedules"):
    return {"type": "http", "path": path}


async def ignore(message):
    """Send nowhere."""


class Working:
    """An application that goes on until it is told to, and counts how many it works on."""

    def __init__(self, *, streams=False):
        self.streams, self.begun = streams, 0
        self.go_on = asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.begun += 1
        if self.streams:
            await send(START)
        await self.go_on.wait()
        await send(START)


async def crowd(app: Callable, n=MOST_CONCURRENT * 3, path="/api/v1/schedules"):
    tasks = [asyncio.create_task(app(asked(path), None, ignore)) for _ in range(n)]
    for _ in range(n):
        await asyncio.sleep(0)
    return tasks


def test_only_a_few_are_worked_on_at_the_same_time_and_all_have_their_turn():
    async def story():
        working = Working()
        tasks = await crowd(limit_concurrency(working))
        before = working.begun
        working.go_on.set()
        await asyncio.gather(*tasks)
        return before, working.begun

    assert asyncio.run(story()) == (MOST_CONCURRENT, MOST_CONCURRENT * 3)


def test_what_streams_gives_its_turn_back_when_it_begins():
    async def story():
        working = Working(streams=True)
        tasks = await crowd(limit_concurrency(working))
        begun = working.begun
        working.go_on.set()
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(story()) == MOST_CONCURRENT * 3


def test_what_breaks_or_is_broken_off_gives_its_turn_back():
    async def broken(scope, receive, send):
        raise OSError

    async def story():
        app = limit_concurrency(broken)
        failed = await asyncio.gather(*await crowd(app), return_exceptions=True)
        working = Working()
        turning = limit_concurrency(working)
        for task in await crowd(turning, MOST_CONCURRENT):
            task.cancel()
        await asyncio.sleep(0)
        await crowd(turning, MOST_CONCURRENT)
        return {type(each) for each in failed}, working.begun

    assert asyncio.run(story()) == ({OSError}, MOST_CONCURRENT * 2)


def test_that_it_is_alive_is_told_while_all_others_wait():
    async def story():
        working = Working()
        app = limit_concurrency(working)
        waiting = await crowd(app)
        alive = await crowd(app, 1, "/healthz")
        begun = working.begun
        working.go_on.set()
        await asyncio.gather(*waiting, *alive)
        return begun

    assert asyncio.run(story()) == MOST_CONCURRENT + 1
