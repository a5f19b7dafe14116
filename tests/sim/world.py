"""One simulated life: schedules, users, a node that dies and is started again, and a witness."""

import asyncio
import math
import random
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import apsw

from onbeat.errors import StoreFailed
from onbeat.host.plugs import plugs
from onbeat.stores.sqlite.store import SqliteStore
from tests.sim.clockwork import Clock, VirtualLoop
from tests.sim.faults import Crash, Faults
from tests.sim.nodes import LEASE, SimNode
from tests.sim.outside import NOT_RECORDED, Outside
from tests.sim.phases import Phases
from tests.sim.targets import Launched
from tests.sim.users import Acknowledged, Users

MINUTES = 10  # of faults and users; then a quiet time in which everything has to come right
QUIET = 240.0
LONGEST_STOP = 300.0  # what runs may take its time, and so may a store that fails

RECORDED = ("run.succeeded", "run.failed", "run.canceled", "run.accepted", "run.retrying", "run.skipped")  # fmt: skip

plugs()  # a definition is read with the kinds of target that are installed


class Simulation:
    """Everything of one seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.seen = Counter()  # the rare things that happened
        self.launched: list[Launched] = []
        self.probes: list[Launched] = []  # of conditions
        self.probed: dict[tuple[int, int], str] = {}  # what they answered, by run and fence
        self.asks: list[tuple[float, int]] = []  # when runs were asked to end
        self.acknowledged: list[Acknowledged] = []
        self.sent: dict[tuple[int, int], float] = {}  # when the claim of a run was sent
        self.folder = Path(tempfile.mkdtemp(prefix="onbeat-sim-", dir=_memory()))
        self.path = self.folder / "onbeat.db"
        self.loop = VirtualLoop()
        self.offset = 0
        self.quiet = False
        self.nodes = 0
        self.stops: set[str] = set()  # nodes that were stopped in good order
        self.phases, self.outside = Phases(), Outside(self)
        self.catchup_per_second = self.rng.choice([5, 100])

    def play(self):
        """Live through it; return the path of what is left."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._live())
        finally:
            self.loop.close()
            asyncio.set_event_loop(None)

    def forget(self):
        shutil.rmtree(self.folder)

    def hear(self, at, events):
        """Hear what was just committed."""
        for event in events:
            if event.name == "run.end_asked":
                self.asks.append((self.loop.time(), event.run_id))
            elif event.name == "run.started":
                self._users.may_regret(event.run_id)
            elif _is_detached(event):
                self._users.may_regret(event.run_id, likely=0.1)
            if event.name in RECORDED and not _is_detached(event):
                self.outside.record(event.run_id, getattr(event, "attempt", math.inf))

    def will_tell(self, run_id):
        self._users.will_tell(run_id)

    def set_clock(self, step):
        self.clock.offset += step
        self.offset = self.clock.offset

    async def _live(self):
        still = Faults(self.rng, Counter())
        still.quiet = True
        self.clock = Clock(self.loop, still)
        store = await SqliteStore.open(self.path, clock=self.clock, inline=True, listener=self.hear)
        self.phases.watch(store._worker._connection)
        self.looking = apsw.Connection(str(self.path))
        self._users = Users(self, store)
        await self._users.define_all()
        ends = self.loop.time() + MINUTES * 60
        acting = self.loop.create_task(self._users.act(ends))
        while self.loop.time() < ends:
            await self._one_node(ends - self.loop.time())
            await asyncio.sleep(self.rng.choice([0.05, 0.3, 2, 5, 40, 150]))
        await acting
        self.quiet = True
        acting = self.loop.create_task(self._users.be_restless())
        await self._one_node(QUIET)
        await acting
        await self._users.leave()
        await store.close()
        self.outside.settle()
        self.looking.close()

    async def _one_node(self, longest):
        """Start a node, and see it die, stall or stop; in the quiet time it stops in good order."""
        node = SimNode(self)
        before = asyncio.all_tasks()
        try:
            await node.start()
            lasts = min(longest, self.rng.expovariate(1 / 60)) if not self.quiet else longest
            ends = self.loop.time() + lasts
            while not node.faults.dead and self.loop.time() < ends:
                await asyncio.sleep(0.1)
                node.check_alive()
            how = "stop" if self.quiet else self.rng.choice(["stop", "crash", "crash", "stall"])
            if node.faults.dead:
                return
            self.seen[f"node: {how}"] += 1
            if how == "stop":
                await self._stop(node)
            elif how == "stall":
                node.stalled_until = self.loop.time() + self.rng.uniform(12, 30)
                node.faults.countdown = 10**9
                self.loop.create_task(self._end_zombie(node, before))
                await asyncio.sleep(LEASE / 1000 + self.rng.uniform(0.1, 1))
                node.release_lock()
                node.left = True
        except Crash:
            pass
        finally:
            if not node.left:
                await self._bury(node, before)

    async def _stop(self, node):
        self.stopped_at = self.clock.now()
        self.stops.add(node.node.node_id)
        stopping = self.loop.create_task(node.engine.stop(self.rng.choice([0.5, 30])))
        node.more_tasks.append(stopping)
        latest = self.loop.time() + LONGEST_STOP
        while not stopping.done() and not node.faults.dead:
            await asyncio.sleep(0.1)
            node.check_alive()
            assert self.loop.time() < latest, "a node that is told to stop does not"
        if stopping.done() and not isinstance(stopping.exception(), StoreFailed):
            stopping.result()  # else the next start decides what is left

    async def _end_zombie(self, node, before):
        """Let a node that others think dead wake up, do harm if it can, and die."""
        await asyncio.sleep(node.stalled_until - self.loop.time() + self.rng.uniform(0, 10))
        await self._bury(node, before)

    async def _bury(self, node, before):
        node.faults.dead = True
        mine = [task for task in node.tasks() if task not in before]
        for task in mine:
            task.cancel()
        for task in mine:
            with suppress(BaseException):
                await task
        node.close()


def _is_detached(event):
    """Whether a run was lost with its node, and continues without it."""
    return event.name == "run.retrying" and event.reason in NOT_RECORDED


def _memory():
    """Return a folder in memory, where there is one: nothing of this need survive."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
