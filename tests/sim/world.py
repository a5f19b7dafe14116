"""One simulated life: schedules, users, a node that dies and is started again, and a witness."""

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from onbeat.core.plan import QUEUE_LIMIT
from onbeat.core.runs import Canceled, Failed, Succeeded
from onbeat.core.schedules import definition, read_schedule
from onbeat.engine.loop import Engine
from onbeat.errors import OnbeatError, StoreFailed
from onbeat.ports import Node
from onbeat.stores.sqlite import SqliteStore
from tests.sim.clockwork import Clock, VirtualLoop, WitnessClock
from tests.sim.faults import Crash, Faults

LEASE = 5_000
NAMES = ["a", "b", "c", "d", "e", "once"]
OVERLAPS = ["skip", "queue", "allow"]
CATCHUPS = ["once", "none", "all", "spread"]
MINUTES = 10  # of faults and users; then a quiet time in which everything has to come right
QUIET = 240.0
PUT_OFF = """
SELECT d.schedule_id, count(r.run_id) AS queued
  FROM due d LEFT JOIN schedule_runs r ON r.schedule_id = d.schedule_id AND r.finished_at IS NULL
 WHERE d.run_at * 1000 <= ?1 AND d.due_at > ?1
 GROUP BY 1 ORDER BY queued DESC, 1 LIMIT 1
"""  # by jitter, or for want of room


@dataclass
class Launched:
    """What a target knows of its own start: the witness that no row can talk over."""

    run_id: int
    schedule_id: str
    run_at: int
    request_id: str
    attempt: int
    fence: int
    key: str
    at: int  # by the wall clock
    after_claim: float  # seconds since the claim was sent
    row: tuple  # status, attempt and fence of its row at that moment


@dataclass
class Acknowledged:
    """A call of a user that was answered."""

    call: str
    schedule_id: str
    answer: object


class World:
    """Everything of one seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.seen = Counter()  # the rare things that happened
        self.launched: list[Launched] = []
        self.acknowledged: list[Acknowledged] = []
        self.sent: dict[int, float] = {}  # when the claim of a run was sent
        self.folder = Path(tempfile.mkdtemp(prefix="onbeat-sim-", dir=_memory()))
        self.path = self.folder / "onbeat.db"
        self.loop = VirtualLoop()
        self.offset = 0
        self.quiet = False
        self.nodes = 0
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

    async def _live(self):
        still = Faults(self.rng, Counter())
        still.quiet = True
        self.clock = Clock(self.loop, still)
        self.users_store = await SqliteStore.open(self.path, clock=self.clock, inline=True)
        self.looking = apsw.Connection(str(self.path))
        await self._define_all()
        ends = self.loop.time() + MINUTES * 60
        users = self.loop.create_task(self._users(ends))
        while self.loop.time() < ends:
            await self._one_node(ends - self.loop.time())
            await asyncio.sleep(self.rng.choice([0.05, 0.3, 2, 5, 40, 150]))
        await users
        self.quiet = True
        users = self.loop.create_task(self._restless_users())
        await self._one_node(QUIET)
        await users
        await self.users_store.close()
        self.looking.close()

    # -- the node

    async def _one_node(self, longest):
        """Start a node, and see it die, stall or stop; in the quiet time it stops in good order."""
        node = _Node(self)
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
                self.stopped_at = self.clock.now()
                stopping = self.loop.create_task(node.engine.stop(self.rng.choice([0.5, 30])))
                node.more_tasks.append(stopping)
                while not stopping.done() and not node.faults.dead:
                    await asyncio.sleep(0.1)
                    node.check_alive()
                if stopping.done() and not isinstance(stopping.exception(), StoreFailed):
                    stopping.result()  # else the next start decides what is left
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

    # -- the users

    async def _define_all(self):
        for name in NAMES:
            await self._call("upsert", name, [self._draw(name)])

    async def _users(self, ends):
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 7))
            if self.loop.time() >= ends:
                return
            name = self.rng.choice(NAMES)
            what = self.rng.choices(
                [
                    "edit",
                    "retune",
                    "interfere",
                    "crowd",
                    "again",
                    "pause",
                    "resume",
                    "delete",
                    "enqueue",
                    "gate",
                    "step",
                    "poison",
                ],
                [4, 3, 2, 0.4, 2, 3, 5, 2, 4, 2, 1.2, 0.3],
            )[0]
            await getattr(self, f"_{what}")(name)

    async def _restless_users(self):
        """Pause and resume, close and open, while nothing fails; and leave everything open."""
        for _ in range(60):
            await asyncio.sleep(self.rng.random() * 2)
            name = self.rng.choice(NAMES)
            await getattr(self, self.rng.choice(["_pause", "_resume", "_resume", "_gate"]))(name)
        for name in NAMES:
            await self._resume(name)
        await self._call("set_gate", "", is_open=True)

    async def _call(self, call, name, *given, **named):
        """Have a user ask for something; keep what was answered."""
        try:
            answer = await getattr(self.users_store, call)(*given, **named)
        except OnbeatError:
            return None
        self.acknowledged.append(Acknowledged(call, name, answer))
        return answer

    async def _edit(self, name):
        answer = await self._call("upsert", name, [self._draw(name)])
        if answer and answer[0].change == "created":
            self.seen["recreated"] += 1

    async def _retune(self, name):
        """Change how a schedule is treated, and not when it ticks."""
        row = await self.users_store.schedule(name)
        if row is None or row.definition == "poison":
            return
        fields = _fields(row.definition)
        fields |= {"overlap": self.rng.choice(OVERLAPS), "catchup": self.rng.choice(CATCHUPS)}
        await self._call("upsert", name, [read_schedule(name, fields)])

    async def _interfere(self, name):
        """Change the schedule with the longest queue of those that have ticks put off, if any."""
        found = self.looking.execute(PUT_OFF, (self.clock.now(),)).fetchone()
        if found is not None:
            crowded, queued = found
            how = "the queue was full" if queued >= QUEUE_LIMIT else "ticks were put off"
            self.seen[f"changed while {how}"] += 1
            await self.rng.choice([self._edit, self._retune, self._pause])(crowded)

    async def _crowd(self, name):
        """Have more ticks missed at once than a queue takes; interfere with what is put off."""
        fields = {"every": "3s", "catchup": "all", "overlap": "queue", "run": {"command": ["true"]}}
        await self._call("upsert", name, [read_schedule(name, fields)])
        await asyncio.sleep(self.rng.choice([1, 5]))
        self._set_clock(400_000)
        await asyncio.sleep(self.rng.choice([2, 25]))
        await self._interfere(name)

    async def _again(self, name):
        """Define a schedule as it is: nothing may be written."""
        row = await self.users_store.schedule(name)
        if row is None or row.definition == "poison":
            return
        before = self.looking.execute("SELECT count(*) FROM events").fetchall()
        same = read_schedule(name, _fields(row.definition))
        assert definition(same) == row.definition
        (answer,) = await self.users_store.upsert([same], source="")
        assert answer.change == "unchanged"
        assert before == self.looking.execute("SELECT count(*) FROM events").fetchall()

    async def _pause(self, name):
        await self._call("pause", name, name)

    async def _resume(self, name):
        await self._call("resume", name, name, catchup=self.rng.random() < 0.3)

    async def _delete(self, name):
        await self._call("delete", name, name)

    async def _enqueue(self, name):
        request = f"r{self.rng.randrange(40)}"
        await self._call("enqueue", name, name, request_id=request)

    async def _gate(self, name):
        await self._call("set_gate", "", is_open=self.rng.random() < 0.7)

    async def _step(self, name):
        self._set_clock(self.rng.choice([-3_600_000, 3_600_000, -30_000, -1_500, 20_000]))

    def _set_clock(self, step):
        self.seen["clock set back" if step < 0 else "clock set forth"] += 1
        self.clock.offset += step
        self.offset = self.clock.offset

    async def _poison(self, name):
        """Damage a definition, as a bug or a bad disk would; a later edit cures it."""
        if name == "e":
            self.looking.execute(
                "UPDATE schedules SET definition = 'poison' WHERE schedule_id = 'e'"
            )
            self.seen["poisoned"] += 1

    def _draw(self, name):
        """Draw a definition."""
        rng = self.rng
        now = (self.clock.now() // 1000) if hasattr(self, "clock") else 0
        if name == "once":
            when = now + rng.choice([-600, -20, 30, 200])
            trigger = {"at": [_utc(when), _utc(when + rng.choice([5, 90]))]}
        else:
            trigger = rng.choice(
                [
                    {"every": f"{rng.choice([3, 5, 7, 15, 30])}s"},
                    {"cron": rng.choice(["* * * * *", "*/20 * * * * *", "*/5 * * * *"])},
                    {"any": [{"every": "20s"}, {"cron": "30 * * * * *"}]},
                    {"every": "4s", "max_runs": rng.choice([2, 10])},
                    {"every": "6s", "end_at": _utc(now + 300)},
                ]
            )
        fields = {
            "run": {"command": ["true", str(rng.randrange(3))]},
            "overlap": rng.choice(OVERLAPS),
            "catchup": rng.choice(CATCHUPS),
            "grace": rng.choice(["2s", "10s", "60s"]),
            "catchup_window": rng.choice(["1m", "24h"]),
            "jitter": rng.choice(["0s", "0s", "3s", "30s"]),
            "retry": rng.choice([[], ["1s"], ["1s", "20s"]]),
            "on_lost": rng.choice(["fail", "retry"]),
        }
        return read_schedule(name, trigger | fields)


class _Node:
    """One process: its own store, clock and engine, and its own way to die."""

    def __init__(self, world):
        self.world, self.rng = world, world.rng
        self.faults = Faults(world.rng, world.seen)
        self.faults.quiet = world.quiet
        self.clock = _NodeClock(world, self.faults)
        world.nodes += 1
        self.node = Node(f"node-{world.nodes}", "sim", frozenset({"command"}), LEASE)
        self.stalled_until, self.left, self.store, self.engine = 0.0, False, None, None
        self.more_tasks = []

    async def start(self):
        self.store = await SqliteStore.open(self.world.path, clock=self.clock, inline=True)
        self.faults.trace(self.store._worker._connection)
        calls = _Calls(self)
        launcher = _Launcher(self)
        self.engine = Engine(
            calls,
            self.clock,
            self.node,
            {"command": launcher},
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
        running = [task for task, _ in self.engine.dispatcher._running.values()]
        own = (*self.engine._starting, *self.engine._looking, *self.engine._serving)
        return [*own, *running, *self.more_tasks]

    def release_lock(self):
        """Let another node have the file, as a lease that ran out would."""
        import os  # noqa: PLC0415 - the only place that closes a lock

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
            answer = await method(*given, **named)
            if name == "claim":
                node.world.sent |= {(a.run_id, a.fence): sent for a in answer}
            if name == "plan_due":
                node.world.sent |= {(a.run_id, a.fence): sent for a in answer.attempts}
            node.faults.reach(f"answer of {name}")
            await self._wait(rng)
            return answer

        return call

    async def _wait(self, rng):
        node = self._node
        quick = 0.0 if rng.random() < 0.5 else rng.choice([0.001, 0.02, 0.3])
        slow = rng.uniform(3, 8) if not node.world.quiet and rng.random() < 0.001 else 0
        await asyncio.sleep(quick + slow)
        stalled = node.stalled_until - node.world.loop.time()
        if stalled > 0:
            await asyncio.sleep(stalled)
            node.end_if_nobody_took_over()


class _Launcher:
    """Targets that last a while and end as the dice say; each writes down that it was started."""

    def __init__(self, node):
        self._node = node

    def check(self, target):
        pass

    def offers(self):
        return ["command"]

    async def recover(self):
        return 0

    async def close(self):
        pass

    async def launch(self, attempt):
        node, world, rng = self._node, self._node.world, self._node.rng
        node.faults.reach("launch")
        row = world.looking.execute(
            "SELECT status, attempt, fence FROM schedule_runs WHERE run_id = ?", (attempt.run_id,)
        ).fetchone()
        sent = world.sent.get((attempt.run_id, attempt.fence), float("-inf"))
        seen = Launched(
            attempt.run_id, attempt.schedule_id, attempt.run_at, attempt.request_id,
            attempt.attempt, attempt.fence, attempt.key, WitnessClock(world.loop, world).now(),
            world.loop.time() - sent, row,
        )  # fmt: skip
        world.launched.append(seen)
        node.faults.reach("launched")
        await asyncio.sleep(rng.choice([0, 0.1, 1, 4, 25]) * rng.random())
        node.faults.reach("outcome")
        draw = rng.random()
        if draw < 0.65:
            return Succeeded({"n": attempt.attempt}), ""
        if draw < 0.9:
            return Failed("exit code 1", "exit", exit_code=1), "it failed"
        if draw < 0.95:
            return Failed("ended by SIGKILL", "signal", retryable=False, exit_code=-9), ""
        if draw < 0.97:
            return Canceled("asked to end"), ""
        raise RuntimeError("a launcher with a defect")


def _utc(second):
    from onbeat.core.instants import rfc3339  # noqa: PLC0415 - read where it is used

    return rfc3339(second)


def _fields(text):
    import msgspec  # noqa: PLC0415 - read where it is used

    return msgspec.json.decode(text)


def _memory():
    """Return a folder in memory, where there is one: nothing of this need survive."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
