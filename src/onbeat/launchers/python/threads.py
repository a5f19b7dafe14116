"""Threads for plain functions: as many as are needed at once, up to a limit.

A thread that is woken and finds work wakes the next if there is more. So functions that return at
once are called by a few threads, one after another; those that wait have a thread each in a moment.

No lock guards this. It rests on the order of steps that each are one for the interpreter: whoever
asks first adds the call and then looks whether a thread is on its way; a thread on its way first
says that it has come and then looks for a call. So no call waits while a thread sleeps.
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
    """Calls functions beside the event loop. One that hangs does not keep the process from ending.

    Used from one event loop at a time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._all = most, 0
        self._starting = threading.Lock()
        self._asked: deque[_PendingCall] = deque()
        self._asleep: list[threading.Lock] = []  # what each waits for; the last is woken first
        self._one_is_coming = False  # it was woken, and has not looked for a call yet
        self._answers: _Answers | None = None

    async def call(self, function: Function) -> object:
        """Call a function in a thread; raise what it raises."""
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = _Answers(loop)
        asked = _PendingCall(function, loop.create_future(), self._answers)
        self._asked.append(asked)
        self._wake_one()
        if not self._all:
            asked.future.cancel()  # whoever finds it later must not call it
            raise RuntimeError("the machine can start no thread")
        found, broken = await asked.future
        if broken is not None:
            raise broken
        return found

    def _wake_one(self) -> None:
        """Have a thread come, unless one is on its way: it sees to the next."""
        while not self._one_is_coming:
            self._one_is_coming = True
            if self._rouse_one() or self._start_one():
                return
            # All are up, and look for a call before they lie down. But one may have lain down, and
            # somebody have asked, while this said that one was coming.
            self._one_is_coming = False
            if not (self._asked and self._asleep):
                return

    def _rouse_one(self) -> bool:
        """Wake the thread that lay down last, if any sleeps."""
        try:
            self._asleep.pop().release()
        except IndexError:
            return False
        return True

    def _start_one(self) -> bool:
        """Start a thread if there may be one more, and the machine has one."""
        with self._starting:
            if self._all == self._most:
                return False
            try:
                threading.Thread(target=self._serve, name="onbeat-run", daemon=True).start()
            except RuntimeError:  # no more threads, or no memory: those that there are will do
                return False
            self._all += 1
            return True

    def _serve(self) -> None:
        woken = threading.Lock()
        woken.acquire()
        self._one_is_coming = False
        while True:
            try:
                asked = self._asked.popleft()
            except IndexError:
                self._asleep.append(woken)
                if self._asked and self._stays_up(woken):  # asked for before this one lay down
                    continue
                woken.acquire()
                self._one_is_coming = False
                continue
            if self._asked:
                self._wake_one()
            if not asked.future.done():  # else it was given up: it must not be called any more
                asked.answers.put(asked.future, _answer(asked.function))
            del asked  # nothing is held while asleep

    def _stays_up(self, woken: threading.Lock) -> bool:
        """Return whether nobody has begun to wake this thread."""
        try:
            self._asleep.remove(woken)
        except ValueError:
            return False
        return True


class _Answers:
    """What an event loop is still to be told: all there is, each time it is woken."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[asyncio.Future[Answer], Answer]] = deque()
        self._is_told = False

    def put(self, future: "asyncio.Future[Answer]", answer: Answer) -> None:
        self._waiting.append((future, answer))
        if not self._is_told:
            self._is_told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_told = False  # first: whoever comes from now on tells again
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
    except StopIteration as broken:  # no future takes it, and no coroutine may raise it
        return None, RuntimeError(f"StopIteration: {broken}")
    except BaseException as broken:  # noqa: BLE001 - it is raised where it was asked
        return None, broken
