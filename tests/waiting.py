"""Waiting in tests: for a condition or a signal, never for a length of time.

`test_gears.py` refuses a sleep of 0.1 s or more. Where a test shows that something does *not*
happen, it waits until the engine has had every chance to do it.
"""

import asyncio
import inspect
import time

SOON = 10.0  # seconds: far more than any condition takes
POLL = 0.005


async def forever(*_):
    """Do nothing until cancelled, as a target or a server that hangs."""
    await asyncio.Event().wait()


async def until(condition, *, longest=SOON):
    """Wait for a condition, which may be a coroutine function; return what it returned."""
    async with asyncio.timeout(longest):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(POLL)


def await_condition(condition, *, longest=SOON):
    """Wait for a condition outside an event loop; return what it returned."""
    limit = time.monotonic() + longest
    while not (found := condition()):
        assert time.monotonic() < limit, "the condition is not met"
        time.sleep(0.02)
    return found


async def engine_has_looked(engine):
    """Wait until an engine has noticed every change so far and has nothing more to do.

    `engine` is an `Engine` or an `Onbeat`. The second look begins after this call.
    """
    looks = engine.activity.looks + 2
    await until(lambda: engine.activity.looks >= looks and engine.activity.is_waiting)
