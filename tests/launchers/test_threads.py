"""Threads for plain functions: no call waits while a thread sleeps, in any order of steps."""

import asyncio
import random
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from onbeat.launchers.python import threads as subject
from onbeat.launchers.python.threads import CallThreads

SOON = 5  # seconds: far more than anything here takes


@contextmanager
def many_orders(draw):
    """Delay threads at random between any two lines of the code under test."""

    def pause(frame, event, _):
        if frame.f_code.co_filename != subject.__file__:
            return None
        if event == "line" and draw.random() < 0.1:
            time.sleep(draw.choice([0, 0.0001, 0.001]))
        return pause

    before, of_threads = sys.gettrace(), threading.gettrace()
    threading.settrace(pause)
    sys.settrace(pause)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(of_threads)


async def all_of(threads, functions):
    async with asyncio.timeout(SOON):
        return await asyncio.gather(*(threads.call(each) for each in functions))


def play(story):
    """Run a story; a call without an answer fails it."""
    return asyncio.run(asyncio.wait_for(story, 4 * SOON))


def test_call_returns_or_raises_like_its_function():
    async def story():
        threads = CallThreads(2)
        assert await all_of(threads, [lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]
        with pytest.raises(ZeroDivisionError):
            await threads.call(lambda: 1 / 0)

    play(story())


def test_as_many_calls_run_concurrently_as_the_limit_allows():
    async def story():
        threads, meet = CallThreads(8), threading.Barrier(8, timeout=SOON)
        for _ in range(20):  # the first time they are started, then they are woken
            assert sorted(await all_of(threads, [meet.wait] * 8)) == list(range(8))

    play(story())


def test_no_more_calls_run_concurrently_than_the_limit_allows():
    running, most = [], []

    def work():
        running.append(1)
        most.append(len(running))
        threading.Event().wait(0.001)
        running.pop()

    play(all_of(CallThreads(3), [work] * 60))
    assert max(most) == 3


@pytest.mark.parametrize("seed", range(8))
def test_no_call_waits_while_a_thread_sleeps(seed):
    """Calls that are made one by one or together, that return or wait for each other: all end."""
    draw = random.Random(seed)

    async def story():
        threads = CallThreads(3)
        for _ in range(60):
            together = draw.randint(1, 3)
            meet = threading.Barrier(together, timeout=SOON)
            functions = [*[meet.wait] * together, *[lambda: -1] * draw.randint(0, 3)]
            found = await all_of(threads, draw.sample(functions, len(functions)))
            assert sorted(found) == [-1] * (len(functions) - together) + list(range(together))
            await asyncio.sleep(draw.choice([0, 0.0002, 0.001]))  # some lie down meanwhile

    with many_orders(draw):
        play(story())


class Pausing(CallThreads):
    """A pool that holds a caller which finds no sleeping thread to wake."""

    def __init__(self, most):
        super().__init__(most)
        self.is_full, self.is_there, self.go_on = False, threading.Event(), threading.Event()

    def _start_thread(self):
        if self.is_full:
            self.is_there.set()
            self.go_on.wait(SOON)
        return super()._start_thread()

    @property
    def asleep(self):
        return len(self._sleeping)


def test_call_added_while_another_finds_no_thread_to_wake_does_not_wait():
    """A call added while the flag `_is_waking` is set and then cleared must not wait."""
    threads, meet, busy = Pausing(2), threading.Barrier(2, timeout=SOON), threading.Event()

    async def until(condition):
        async with asyncio.timeout(SOON):
            while not condition():  # noqa: ASYNC110 - threads do not report that they sleep
                await asyncio.sleep(0.001)

    async def story():
        await all_of(threads, [meet.wait] * 2)
        await until(lambda: threads.asleep == 2)
        first = asyncio.create_task(threads.call(lambda: busy.wait(SOON)))
        await until(lambda: threads.asleep == 1)
        threads.is_full = True
        calls = [asyncio.create_task(threads.call(each)) for each in (meet.wait, lambda: None)]
        await until(threads.is_there.is_set)  # the second thread has one call, and sees the other
        busy.set()
        await first
        await until(lambda: threads.asleep == 1)  # the first has done that other one meanwhile
        last = asyncio.create_task(threads.call(meet.wait))
        await asyncio.sleep(0)
        threads.go_on.set()
        async with asyncio.timeout(SOON / 2):
            met, _, met_too = await asyncio.gather(*calls, last)
            assert {met, met_too} == {0, 1}

    play(story())


def test_functions_that_return_immediately_need_few_threads():
    async def story():
        threads = CallThreads(500)
        used = set(await all_of(threads, [threading.get_ident] * 500))
        assert len(used) < 100  # one more whenever the interpreter changes threads, not one a call

    play(story())


def test_answer_after_the_loop_was_closed_is_dropped():
    threads, go_on, ended = CallThreads(1), threading.Event(), threading.Event()

    def work():
        go_on.wait(SOON)
        ended.set()

    async def left_behind():
        calling = asyncio.create_task(threads.call(work))
        await asyncio.sleep(0.01)
        calling.cancel()

    play(left_behind())
    go_on.set()
    assert ended.wait(SOON)
    assert play(all_of(threads, [lambda: 7])) == [7]  # the thread serves the next loop


def test_call_without_any_thread_fails_and_is_not_made_later(monkeypatch):
    called = []

    async def story():
        threads = CallThreads(2)
        with monkeypatch.context() as without:
            without.setattr(threading.Thread, "start", _cannot)
            with pytest.raises(RuntimeError, match="no thread"):
                await threads.call(lambda: called.append("first"))
        await threads.call(lambda: called.append("second"))

    play(story())
    assert called == ["second"]


def test_running_threads_do_all_calls_if_no_more_can_be_started(monkeypatch):
    async def story():
        threads = CallThreads(9)
        await threads.call(lambda: None)
        monkeypatch.setattr(threading.Thread, "start", _cannot)
        assert await all_of(threads, [lambda: 1] * 9) == [1] * 9

    play(story())


def _cannot(_):
    raise RuntimeError("can't start new thread")
