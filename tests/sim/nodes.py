"""One process: its own store, clock and engine, and its own way to die."""

import asyncio
import os
from unittest.mock import patch

from onbeat.engine.node import Engine
from onbeat.errors import StoreFailed
from onbeat.ports.store import Node, RescueResult
from onbeat.stores.sql import nodes, zone_data
from onbeat.stores.sql.rows import KEEP
from onbeat.stores.sqlite.store import SqliteStore
from tests.sim.clockwork import Clock
from tests.sim.faults import Crash, Faults
from tests.sim.outside import OutsideTargets
from tests.sim.targets import Targets

LEASE = 5_000
LATE = 0.02  # how many announcements take so long that nothing may be launched any more

ZONED = """
SELECT schedule_id, definition, d.run_at, d.due_at FROM due d JOIN schedules s USING (schedule_id)
 WHERE s.paused = 0 AND d.due_at > ?1 AND d.due_at = d.run_at * 1000
"""


class SimNode:
    """A node in a world."""

    def __init__(self, world):
        self.world, self.rng = world, world.rng
        self.faults = Faults(world.rng, world.seen)
        self.faults.quiet = world.quiet
        self.clock = _NodeClock(world, self.faults)
        world.nodes += 1
        self.node = Node(f"node-{world.nodes}", "sim", frozenset({"command", "outside"}), LEASE)
        self.stalled_until, self.left, self.store, self.engine = 0.0, False, None, None
        self.more_tasks, self.slow_until = [], 0.0  # until when calls take very long

    async def start(self):
        self.store = await SqliteStore.open(
            self.world.path, clock=self.clock, inline=True, listener=self.world.hear
        )
        self.world.phases.watch(self.store._worker._connection)
        self.faults.trace(self.store._worker._connection)
        if not self.world.quiet and self.rng.random() < 0.3:
            self.store.register = self._register_with_newer_zone_data
        self.engine = Engine(
            _Calls(self),
            self.clock,
            self.node,
            {"command": Targets(self), "outside": OutsideTargets(self)},
            concurrency=50 if self.world.quiet else self.rng.choice([2, 20]),
            catchup_per_second=self.world.catchup_per_second,
        )
        while True:
            try:
                await self.engine.start()
            except StoreFailed:
                await asyncio.sleep(0.5)  # as whoever supervises it would
            else:
                return

    async def _register_with_newer_zone_data(self, node):
        """Join with newer zone data than the due rows were computed with, as it turns out."""
        self.store._take_lock(node)

        def call(tx):
            tx.run(KEEP, ("tz", "1999a"))
            tx.run("DELETE FROM meta WHERE name = 'tz_zones'")
            for schedule_id, text, run_at, due_at in tx.all(ZONED, (tx.now,)):
                by = self.rng.choice([0, -40, -7, 7, 40]) if '"timezone"' in text else 0
                moved = (run_at + by, due_at + by * 1000, schedule_id)
                tx.run("UPDATE due SET run_at = ?1, due_at = ?2 WHERE schedule_id = ?3", moved)
                self.world.seen["a due row of older zone data"] += by != 0
            return nodes.register(tx, node, RescueResult())

        with patch.object(zone_data, "BATCH", 1), patch.object(zone_data, "MOST_SOON", 1):
            return await self.store._worker.write(call)

    @property
    def is_well(self):
        """Whether it could have heard, all the time, that a run is to end."""
        unwell = self.faults.dead or self.stalled_until or self.engine.failed.done()
        return not (unwell or self.more_tasks)  # one that stops ends all, when it is time

    def check_alive(self):
        """A part of the node that ended by itself is a defect, unless the node died."""
        if self.engine.failed.done():
            error = self.engine.failed.exception()
            if not isinstance(error, Crash):
                raise AssertionError(f"a part of the node ended: {error!r}") from error
            self.faults.dead = True

    def end_if_nobody_took_over(self):
        """Die on waking up if the lock is free and still this node's: no file has two nodes."""
        mine = self.world.looking.execute(
            "SELECT 1 FROM nodes WHERE node_id = ?", (self.node.node_id,)
        ).fetchone()
        if mine and self.store is not None and self.store._lock is None:
            self.faults.die("waking up alone")

    def tasks(self):
        if self.engine is None:
            return []
        dispatcher = self.engine.dispatcher
        running = [each.task for each in dispatcher.attempts]
        checks = [task for task, _ in dispatcher.starter.checks()]
        own = (*self.engine._starting, *self.engine._looking, *self.engine._serving)
        return [*own, *running, *checks, *self.more_tasks]

    def release_lock(self):
        """Let another node have the file, as a lease that ran out would."""
        os.close(self.store._lock)
        self.store._lock = None

    def close(self):
        if self.engine is not None and self.engine.failed.done():
            self.engine.failed.exception()  # seen
        if self.store is not None:
            self.store._worker._connection.exec_trace = None
            self.store._worker.close()
            if self.store._lock is not None:
                self.release_lock()
            self.store = None


class _NodeClock(Clock):
    def __init__(self, world, faults):
        super().__init__(world.loop, faults)
        self._world = world

    @property
    def offset(self):
        return self._world.offset

    @offset.setter
    def offset(self, value):
        pass


class _Calls:
    """The store as a node sees it: calls take their time, and the node may die on either side."""

    def __init__(self, node):
        self._node = node

    def __getattr__(self, name):
        method = getattr(self._node.store, name)
        if not callable(method):
            return method

        async def call(*given, **named):
            node, rng = self._node, self._node.rng
            sent = node.world.loop.time()
            await self._wait(rng)
            node.faults.reach(f"call of {name}")
            if name == "announce" and not node.world.quiet and rng.random() < LATE:
                await asyncio.sleep(node.node.lease / 1000)  # what is announced is handed back
            answer = await method(*given, **named)
            self._keep_when_it_was_sent(name, given, answer, sent)
            node.faults.reach(f"answer of {name}")
            await self._wait(rng)
            return answer

        return call

    def _keep_when_it_was_sent(self, name, given, answer, sent):
        """What a node has to launch in time counts from here: a run that is asked first, later."""
        attempts = []
        if name == "claim":
            attempts = answer
        elif name == "plan_due":
            attempts = answer.attempts
        elif name == "announce":
            attempts = [attempt for attempt in given[1] if attempt.when is not None]
        self._node.world.sent |= {(each.run_id, each.fence): sent for each in attempts}

    async def _wait(self, rng):
        node = self._node
        quick = 0.0 if rng.random() < 0.5 else rng.choice([0.001, 0.02, 0.3])
        slow = rng.uniform(3, 8) if not node.world.quiet and rng.random() < 0.001 else 0
        if slow:
            node.slow_until = max(node.slow_until, node.world.loop.time() + slow)
        await asyncio.sleep(quick + slow)
        stalled = node.stalled_until - node.world.loop.time()
        if stalled > 0:
            await asyncio.sleep(stalled)
            node.end_if_nobody_took_over()
