"""Virtual time: an event loop that never waits, and a wall clock that can be set."""

import asyncio
import selectors


class _Selector(selectors.SelectSelector):
    """Instead of waiting, let that much time have passed."""

    def __init__(self):
        super().__init__()
        self.loop = None

    def select(self, timeout=None):
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        self.loop.passed += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only where it would have waited."""

    def __init__(self):
        self.passed = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self):
        return self.passed


class Clock:
    """The clock of a node. Reading it is a point at which the node may die."""

    def __init__(self, loop, faults):
        self._loop, self._faults = loop, faults
        self.offset = 0  # milliseconds by which the wall clock was set

    def now(self):
        self._faults.reach("clock")
        return START + round(self._loop.passed * 1000) + self.offset

    def monotonic(self):
        return self._loop.passed


class WitnessClock(Clock):
    """The same time, for those who only look."""

    def __init__(self, loop, of):
        self._loop, self._of = loop, of

    def now(self):
        return START + round(self._loop.passed * 1000) + self._of.offset


START = 1_767_268_800_000  # noon on New Year's Day 2026
