"""Outcomes that wait to be recorded while the store fails."""

import asyncio

from onbeat.core.decide.plan import plan
from onbeat.engine.dispatcher import Dispatcher
from onbeat.errors import StoreFailed
from onbeat.ports.rows import RunFilter
from onbeat.ports.store import Node
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule

NODE = Node("node-1", "here", frozenset({"command"}))


class Refusing:
    """A store whose `hand_back` fails until it is repaired."""

    def __init__(self, store):
        self._store, self.failed, self.repaired = store, asyncio.Event(), False

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def hand_back(self, attempts):
        if not self.repaired:
            self.failed.set()
            raise StoreFailed("away")
        await self._store.hand_back(attempts)


def decide(schedule, run_at, unfinished, past, now, **asked):
    return plan(schedule, run_at, unfinished, past, now=now, **asked)


async def two_announced(store, clock):
    """Return the attempts of two schedules, announced."""
    await store.register(NODE)
    await store.upsert([a_schedule("ends"), a_schedule("late")])
    clock.advance("1h")
    await store.plan_due(decide, limit=10)
    attempts = await store.announce(NODE, await store.claim(NODE, limit=10))
    return sorted(attempts, key=lambda each: each.schedule_id)


def test_outcome_waiting_behind_a_hand_back_is_known_to_its_node():
    """Otherwise its run is handed back as not launched, and starts twice."""

    async def story():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = Refusing(await SqliteStore.open(None, clock=clock, inline=True))
        launcher = RecordingLauncher()
        dispatcher = Dispatcher(store, clock, NODE, {"command": launcher}, concurrency=5)
        ends, late = await two_announced(store, clock)
        dispatcher.launch([late], clock.monotonic() - NODE.lease)
        dispatcher.launch([ends], clock.monotonic())
        await asyncio.sleep(0)  # both tasks end in their first step
        assert dispatcher.recorder.unrecorded
        assert late in dispatcher.recorder.kept()
        recording = asyncio.create_task(dispatcher.recorder.run())
        await store.failed.wait()
        clock.advance(NODE.lease)
        await dispatcher.release_unknown()
        store.repaired = True
        await dispatcher.recorder.idle()
        recording.cancel()
        rows = await store.runs(RunFilter(), limit=10)
        await store.close()
        return {row.schedule_id: (str(row.status), row.attempt) for row in rows}

    assert asyncio.run(story()) == {"ends": ("SUCCESS", 1), "late": ("ENQUEUED", 1)}
