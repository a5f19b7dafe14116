"""The lease of a node: when it holds, when it expires, and how it is renewed."""

import asyncio
import contextlib
import threading
import time

import pytest

from onbeat.engine.lease import Lease, renew_in_thread
from onbeat.errors import StoreFailed
from onbeat.ports.store import HeartbeatResult, Node
from onbeat.testing import ManualClock
from tests.waiting import SOON, forever

NODE = Node("node", "here", frozenset(), lease=6_000)


class Answers:
    """A store that returns given answers to heartbeats, each after a given time."""

    is_shared = True

    def __init__(self, clock, *answers):
        self._clock, self._answers = clock, list(answers)

    async def heartbeat(self, node):
        if not self._answers:
            raise asyncio.CancelledError
        passes, answer = self._answers.pop(0)
        self._clock.advance(passes)
        if isinstance(answer, Exception):
            raise answer
        return answer


def kept(*answers, lease=NODE):
    """Return a lease after these answers, with its clock."""
    clock = ManualClock()
    store = Answers(clock, *answers)
    found = Lease(store, clock, lease)

    async def keep():
        with contextlib.suppress(asyncio.CancelledError):
            await found.keep()

    asyncio.run(keep())
    return found, clock


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    async def at_once(seconds):
        pass

    monkeypatch.setattr("onbeat.engine.lease.asyncio.sleep", at_once)


ALIVE = HeartbeatResult(is_known=True)
AWAY = StoreFailed("away")


def test_lease_holds_for_two_thirds_of_its_length_after_the_request():
    lease, clock = kept((1_000, ALIVE))
    clock.advance(2_999)
    assert lease.holds
    clock.advance(1)
    assert not lease.holds


def test_failed_heartbeat_renews_nothing():
    lease, _ = kept((1_000, ALIVE), (2_000, AWAY), (2_000, AWAY))
    assert not lease.holds
    assert lease.lapses == 0, "it is still away"


def test_lapse_of_a_renewed_lease_is_counted():
    """A check at intervals may have missed its beginning and its end."""
    lease, _ = kept((0, ALIVE), (5_000, AWAY), (0, ALIVE))
    assert (lease.holds, lease.lapses) == (True, 1)
    lease, _ = kept((0, ALIVE), (3_000, AWAY), (0, ALIVE))
    assert (lease.holds, lease.lapses) == (True, 0)


def test_forgotten_node_has_no_lease():
    lease, _ = kept((0, HeartbeatResult(is_known=False)))
    assert not lease.holds
    assert lease.is_forgotten


def test_lease_of_an_unshared_store_always_holds(monkeypatch):
    monkeypatch.setattr(Answers, "is_shared", False)
    lease, clock = kept((0, ALIVE))
    clock.advance("1h")
    assert lease.holds


def test_renewal_in_a_thread_continues_while_the_loop_is_blocked(monkeypatch):
    monkeypatch.undo()
    beats = []

    async def work():
        while True:
            beats.append(threading.get_ident())
            await asyncio.sleep(0.01)

    async def story():
        task = asyncio.create_task(renew_in_thread(work))
        await asyncio.sleep(0.05)
        before = len(beats)
        until = time.monotonic() + SOON
        while len(beats) < before + 5 and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251 - as a target may
        held = len(beats) - before
        task.cancel()
        await asyncio.wait([task])
        return held

    assert asyncio.run(story()) >= 5
    assert threading.get_ident() not in beats


def test_renewal_thread_cancelled_before_its_start_ends(monkeypatch):
    monkeypatch.undo()

    async def story():
        for delay in (0, 0, 0.001):
            task = asyncio.create_task(renew_in_thread(forever))
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    asyncio.run(asyncio.wait_for(story(), 10))


def test_failed_renewal_in_a_thread_is_raised(monkeypatch):
    monkeypatch.undo()

    async def work():
        raise StoreFailed("say")

    with pytest.raises(StoreFailed, match="say"):
        asyncio.run(renew_in_thread(work))
