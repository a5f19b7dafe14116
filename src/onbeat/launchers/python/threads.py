"""A pool of daemon threads for plain functions, which grows with demand up to a limit.

A thread that is woken and takes a call wakes the next thread if there are more calls. So a few
threads serve functions that return quickly, and functions that block soon have a thread each.

There is no lock. Correctness depends on the order of steps that are atomic in the interpreter: a
caller first adds its call, then checks whether a thread is waking; a thread that was woken first
declares that it is awake, then looks for a call. So no call waits while a thread sleeps.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

Function = Callable[[], object]
Answer = tuple[object, BaseException | None]  # what a function returned, or raised


class CallThreads:
    """Calls functions in threads. A function that hangs does not keep the process from ending.

    Used from one event loop at a time.
    """

    def __init__(self, most: int) -> None:
        self._limit, self._started = most, 0
        self._starting = threading.Lock()
        self._queue: deque[_PendingCall] = deque()
        self._sleeping: list[
            threading.Lock
        ] = []  # the lock that each waits for; the last is woken first
        self._is_waking = False  # a thread was woken or started, and is not awake yet
        self._answers: _Answers | None = None

    async def call(self, function: Function) -> object:
        """Call a function in a thread; raise what it raises."""
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = _Answers(loop)
        call = _PendingCall(function, loop.create_future(), self._answers)
        self._queue.append(call)
        self._wake()
        if not self._started:
            call.future.cancel()  # a thread that starts later must not call it
            raise RuntimeError("no thread could be started: out of threads or memory")
        result, error = await call.future
        if error is not None:
            raise error
        return result

    def _wake(self) -> None:
        """Wake or start a thread, unless one is waking: that one then wakes the next."""
        while not self._is_waking:
            self._is_waking = True
            if self._wake_sleeping() or self._start_thread():
                return
            # All threads are awake, and look for a call before they sleep. But while this flag was
            # set, one may have gone to sleep and a caller may have added a call.
            self._is_waking = False
            if not (self._queue and self._sleeping):
                return

    def _wake_sleeping(self) -> bool:
        """Wake the thread that fell asleep last, if any sleeps."""
        try:
            self._sleeping.pop().release()
        except IndexError:
            return False
        return True

    def _start_thread(self) -> bool:
        """Start a thread, within the limits of the pool and of the machine."""
        with self._starting:
            if self._started == self._limit:
                return False
            try:
                threading.Thread(target=self._serve, name="onbeat-run", daemon=True).start()
            except RuntimeError:  # out of threads or memory: the running ones do the work
                return False
            self._started += 1
            return True

    def _serve(self) -> None:
        wake_up = threading.Lock()
        wake_up.acquire()
        self._is_waking = False
        while True:
            try:
                call = self._queue.popleft()
            except IndexError:
                self._sleeping.append(wake_up)
                if self._queue and self._cancel_sleep(wake_up):  # added just before the append
                    continue
                wake_up.acquire()
                self._is_waking = False
                continue
            if self._queue:
                self._wake()
            if not call.future.done():  # else it was cancelled: it must not be called any more
                call.answers.put(call.future, _answer(call.function))
            del call  # keep no reference while asleep

    def _cancel_sleep(self, wake_up: threading.Lock) -> bool:
        """Stay awake; return False if another thread is already waking this one."""
        try:
            self._sleeping.remove(wake_up)
        except ValueError:
            return False
        return True


class _Answers:
    """The results for an event loop, which takes all of them each time it is woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[asyncio.Future[Answer], Answer]] = deque()
        self._is_scheduled = False

    def put(self, future: "asyncio.Future[Answer]", answer: Answer) -> None:
        self._waiting.append((future, answer))
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_scheduled = False  # first: a later `put` schedules it again
        while self._waiting:
            future, answer = self._waiting.popleft()
            if not future.done():
                future.set_result(answer)


class _PendingCall(NamedTuple):
    function: Function
    future: "asyncio.Future[Answer]"
    answers: _Answers


def _answer(function: Function) -> Answer:
    try:
        return function(), None
    except StopIteration as error:  # a future refuses it, and a coroutine may not raise it
        return None, RuntimeError(f"StopIteration: {error}")
    except BaseException as error:  # noqa: BLE001 - it is raised in the caller
        return None, error
