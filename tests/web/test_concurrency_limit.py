"""The limit on concurrent requests: few run at the same time, and each releases its permit."""

import asyncio
from collections.abc import Callable

from onbeat.web.concurrency_limit import MOST_CONCURRENT, limit_concurrency

START = {"type": "http.response.start", "status": 200, "headers": []}


def asked(path="/api/v1/schedules"):
    return {"type": "http", "path": path}


async def ignore(message):
    """Discard a message."""


class Working:
    """An application that runs until released, and counts its concurrent requests."""

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


def test_few_requests_run_concurrently_and_all_are_answered():
    async def story():
        working = Working()
        tasks = await crowd(limit_concurrency(working))
        before = working.begun
        working.go_on.set()
        await asyncio.gather(*tasks)
        return before, working.begun

    assert asyncio.run(story()) == (MOST_CONCURRENT, MOST_CONCURRENT * 3)


def test_stream_releases_its_permit_when_it_begins():
    async def story():
        working = Working(streams=True)
        tasks = await crowd(limit_concurrency(working))
        begun = working.begun
        working.go_on.set()
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(story()) == MOST_CONCURRENT * 3


def test_failed_or_aborted_request_releases_its_permit():
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


def test_liveness_is_answered_while_all_permits_are_held():
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
