"""Cost of every use case at 1 000, 10 000 and 100 000 schedules with ten runs each: `make growth`.

For each use case and size: milliseconds (the best of three), statements, and on SQLite the
instructions of its engine in thousands, which measure the work independently of the machine's load.
A use case is flat if its cost does not grow with the size, else linear; a bounded one reads at most
a fixed number of rows. Use cases that grow more are marked with `!`, and the program exits with 1.

    python -m bench.growth                      # SQLite, all sizes
    python -m bench.growth --postgres --sizes 1000 10000
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from onbeat.app.stores import SystemClock
from onbeat.core.decide.plan import plan
from onbeat.core.schedule import Schedule
from onbeat.events import SchedulePaused, encode_events
from onbeat.ports.launcher import Launchers
from onbeat.ports.rows import RunFilter, ScheduleFilter
from onbeat.ports.store import Node
from onbeat.service.service import Service
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.postgres.transaction import PostgresTransaction
from onbeat.stores.sql.rows import KEEP
from onbeat.stores.sql.transaction import Transaction
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import RecordingLauncher, a_schedule

SIZES = (1_000, 10_000, 100_000)
RUNS = 10  # of each schedule
FEW = 10  # schedules of the small source
ROUNDS = 3
CHUNK = 5_000
STEPS = 100  # instructions between two calls of the handler
SPARE = 60  # thousand instructions, or milliseconds: tolerance for noise in a flat use case
GROWTH = 3.0  # factor by which a flat use case may grow

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo")

# Runs of all schedules, so that the latest belong to different ones; then waiting runs of a few.
FILL = """
INSERT INTO schedule_runs (run_id, schedule_id, run_at, request_id, due_at, phase, reason,
       triggered_by, needs, revision, attempt, started_at, finished_at, created_at, updated_at)
  WITH ordered (place, schedule_id) AS (
           SELECT row_number() OVER (ORDER BY schedule_id), schedule_id FROM schedules)
SELECT {i} * {count} + o.place, o.schedule_id, {now} - 3600 * ({runs} - {i}), '', 0,
       CASE WHEN o.place % 50 = 0 THEN 'FAILED' WHEN o.place % 99 = 0 THEN 'SKIPPED'
            ELSE 'SUCCESS' END,
       CASE WHEN o.place % 99 = 0 THEN 'overlap' END, 'timer', 'command', 1, 1,
       {now}000 - 3600000 * ({runs} - {i}), {now}000 - 3600000 * ({runs} - {i}) + 500, 0, 0
  FROM ordered o
"""
EVENTS = """
INSERT INTO events (at, body, asked_by, to_notify)
  WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
SELECT {now}000 - i, '{body}', CASE WHEN i % 10 = 0 THEN 'cli:ada' END, NULL FROM n
"""

Growth = Literal["flat", "bounded", "linear"]  # bounded: up to a fixed number of rows
Call = Callable[["World"], Awaitable[object]]


class Cost(NamedTuple):
    """The cost of a use case."""

    milliseconds: float
    statements: int
    steps: int | None  # thousand instructions of SQLite's engine


class World:
    """A store with the given number of schedules, their runs, and the use cases on it."""

    def __init__(self, store: SqliteStore | PostgresStore, count: int) -> None:
        launchers: Launchers = {"command": RecordingLauncher()}
        self.store, self.count, self._ids = store, count, 0
        self.service = Service(store, launchers, new_id=self.new_id)
        self.node = Node("growth", "growth", frozenset({"command"}), lease=10**12)
        self.now = store.clock.now() // 1000
        self._statements = self._steps = 0

    def new_id(self) -> str:
        """Return a new id."""
        self._ids += 1
        return f"new/{self._ids:09}"

    @property
    def middle(self) -> str:
        """The id of the schedule in the middle."""
        return name(self.count // 2)

    async def fill(self, runs: int = RUNS) -> None:
        """Define the schedules, most of them of one source, with runs."""
        await self.store.register(self.node)
        for begin in range(0, self.count, CHUNK):
            end = min(begin + CHUNK, self.count)
            await self.store.upsert([the_schedule(i) for i in range(begin, end)], source="large")
        small = [a_schedule(f"few/{i}", every="1d") for i in range(FEW)]
        await self.store.upsert(small, source="small", user_id="ada")
        body = encode_events([SchedulePaused("few/1")])
        about = {"runs": runs, "count": self.count + FEW, "now": self.now, "body": body}

        for i in range(runs):
            sql = FILL.format(i=i, **about)
            await self.store._work.write(lambda tx, sql=sql: tx.run(sql))  # noqa: SLF001

        def rows(tx: Transaction) -> None:
            tx.run(EVENTS.format(**about))
            if isinstance(self.store, SqliteStore):
                tx.run(KEEP, ("next_run_id", (self.count + FEW) * runs + 1))
            else:
                tx.all("SELECT setval('run_ids', ?1)", ((self.count + FEW) * runs + 1,))
                tx.run("ANALYZE")  # as autovacuum would within a minute

        await self.store._work.write(rows)  # noqa: SLF001 - no public call does this
        for i in range(FEW):
            await self.store.enqueue(f"few/{i}", request_id=self.new_id())

    def watch(self) -> None:
        """Count statements from now on, and on SQLite instructions."""
        if isinstance(self.store, SqliteStore):
            connection = self.store._worker._connection  # type: ignore[attr-defined]  # noqa: SLF001
            connection.exec_trace = self._count
            connection.set_progress_handler(self._step, STEPS)
            return
        for called in ("all", "one", "run", "many", "each"):
            setattr(
                PostgresTransaction, called, self._counting(getattr(PostgresTransaction, called))
            )

    def _counting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._statements += 1
            return method(*arguments)

        return counted

    def _count(self, *_: object) -> bool:
        self._statements += 1
        return True

    def _step(self) -> bool:
        self._steps += 1
        return False

    async def cost(self, call: Call, rounds: int = ROUNDS) -> Cost:
        """Return the best cost of a use case."""
        found: list[Cost] = []
        for _ in range(rounds):
            self._statements = self._steps = 0
            began = time.perf_counter()
            await call(self)
            took = (time.perf_counter() - began) * 1000
            steps = self._steps * STEPS // 1000 if isinstance(self.store, SqliteStore) else None
            found.append(Cost(took, self._statements, steps))
        return min(found)


def name(i: int) -> str:
    """Return the id of a schedule."""
    return f"s/{i:07}"


def the_schedule(i: int, **fields: object) -> Schedule:
    """Return a daily schedule; the time depends on `i`."""
    when = f"{i % 60} {i // 60 % 24} * * *"
    return a_schedule(name(i), cron=when, timezone=ZONES[i % len(ZONES)], **fields)


async def define_new(world: World) -> object:
    return await world.service.define([a_schedule(world.new_id())])


async def define_same(world: World) -> object:
    return await world.service.define([the_schedule(world.count // 2)], source="large")


async def edit(world: World) -> object:
    return await world.service.define([the_schedule(7, description=world.new_id())])


async def retime(world: World) -> object:
    minute = int(world.new_id()[-9:]) % 60
    return await world.service.define([a_schedule("few/1", cron=f"{minute} 3 * * *")])


async def pause(world: World) -> object:
    await world.service.pause("few/2")
    return await world.service.resume("few/2")


async def create_and_delete(world: World) -> object:
    (done,) = await world.service.define([a_schedule(world.new_id())])
    return await world.service.delete(done.schedule_id)


async def start_and_cancel(world: World) -> object:
    row = await world.service.start(world.middle)
    return await world.service.cancel(row.run_id)


async def gate(world: World) -> object:
    await world.service.set_gate(is_open=False)
    return await world.service.set_gate(is_open=True)


async def bulk_few(world: World) -> object:
    return await world.service.bulk("pause", ScheduleFilter(source="small"), dry_run=True)


async def plan_small(world: World) -> object:
    small = [a_schedule(f"few/{i}", every="1d") for i in range(FEW)]
    return await world.service.plan_changes(small, source="small", take_over=True)


async def backfill(world: World) -> object:
    first = world.now - 86_400 * 3
    return await world.service.preview_backfill(world.middle, first=first, last=world.now)


async def nothing_due(world: World) -> object:
    def decide(schedule: Any, run_at: Any, unfinished: Any, past: Any, now: int) -> Any:
        return plan(schedule, run_at, unfinished, past, now=now)

    await world.store.plan_due(decide, limit=500, node=world.node)
    await world.store.expire(limit=500)
    return await world.store.next_due(after=world.now * 1000)


async def claim(world: World) -> object:
    row = await world.service.start(world.middle)
    found = await world.store.claim(world.node, limit=5)
    await world.store.hand_back(found)
    return await world.service.cancel(row.run_id)


async def prune(world: World) -> object:
    return await world.store.prune(before=1)


async def documents(world: World) -> object:
    await world.service.keep("growth", "one", {"a": world.new_id()})
    await world.service.list_documents("growth", limit=100)
    return await world.service.kept("growth", "one")


async def every_schedule(world: World) -> object:
    return [len(page) async for page in world.service.pages()]


async def start_of_a_node(world: World) -> object:
    return await world.store.register(Node(world.new_id(), "another", frozenset(), lease=1))


async def zone_data(world: World) -> object:
    def age(tx: Transaction) -> None:
        tx.run(KEEP, ("tz", "1999a"))
        tx.run("DELETE FROM meta WHERE name = 'tz_zones'")

    await world.store._work.write(age)  # noqa: SLF001 - no public call does this
    return await start_of_a_node(world)


async def zone_data_whole(world: World) -> object:
    await zone_data(world)
    while (found := await world.store.follow_zones(limit=1000)) is not None:
        if found.is_done:
            break
    return None


def runs(**which: Any) -> Call:
    return lambda world: world.service.runs(RunFilter(**which))


def schedules(*, limit: int | None = 100, **which: Any) -> Call:
    return lambda world: world.service.schedules(ScheduleFilter(**which), limit=limit)


USES: Sequence[tuple[str, Growth, Call]] = (
    ("define a new one", "flat", define_new),
    ("define the same", "flat", define_same),
    ("edit one", "flat", edit),
    ("edit when one ticks", "flat", retime),
    ("pause and resume one", "flat", pause),
    ("create and delete one", "flat", create_and_delete),
    ("start and cancel a run", "flat", start_and_cancel),
    ("bulk: select a few", "flat", bulk_few),
    ("plan a small source", "bounded", plan_small),
    ("preview a backfill", "flat", backfill),
    ("close and open the gate", "linear", gate),
    ("keep and read documents", "flat", documents),
    ("groups", "flat", lambda world: world.service.groups()),
    ("channels", "flat", lambda world: world.service.channels()),
    ("nodes", "flat", lambda world: world.service.nodes()),
    ("schedules: first page", "flat", schedules()),
    ("schedules: a late page", "flat",
     lambda world: world.service.schedules(after=world.middle, limit=100)),
    ("schedules: of a small source", "flat", schedules(source="small")),
    ("schedules: of an owner", "flat", schedules(owner="ada")),
    ("schedules: failing", "flat", schedules(failing=True)),
    ("schedules: paused", "flat", schedules(paused=True)),
    (
        "schedules: by ids",
        "flat",
        lambda world: world.service.schedules(ScheduleFilter(ids=[world.middle])),
    ),
    ("schedules: search", "linear", schedules(search="no such text")),
    ("schedules: all, by pages", "linear", every_schedule),
    ("schedule", "flat", lambda world: world.service.schedule(world.middle)),
    ("runs: latest", "flat", runs()),
    ("runs: of a schedule", "flat",
     lambda world: world.service.runs(RunFilter(schedule_id=world.middle))),
    ("runs: waiting, of a schedule", "flat",
     lambda world: world.service.runs(RunFilter(schedule_id=world.middle, status="ENQUEUED"))),
    ("runs: failed", "flat", runs(status="FAILED")),
    ("runs: waiting", "flat", runs(status="ENQUEUED")),
    ("runs: started", "flat", runs(status="STARTED")),
    ("runs: canceled", "flat", runs(status="CANCELED")),
    ("runs: by reason", "flat", runs(reason="missed")),
    ("runs: manual", "flat", runs(triggered_by="catchup")),
    ("runs: of an hour", "linear",
     lambda world: world.service.runs(RunFilter(since=world.now - 9 * 3600,
                                                until=world.now - 8 * 3600))),
    ("runs: of a small source", "flat", runs(source="small")),
    ("run", "flat", lambda world: world.service.run(world.count)),
    ("why", "flat", lambda world: world.service.why(world.middle)),
    ("why, an hour ago", "flat", lambda world: world.service.why(world.middle, world.now - 3600)),
    ("overview", "linear", lambda world: world.service.overview()),
    ("figures", "flat", lambda world: world.service.figures()),
    ("audit", "flat", lambda world: world.service.audit()),
    ("events: newest", "flat", lambda world: world.service.newest_event()),
    ("snapshot", "linear", lambda world: world.service.read_snapshot()),
    ("planner: nothing due", "flat", nothing_due),
    ("claim, hand back", "flat", claim),
    ("prune, nothing old", "bounded", prune),
    ("start of a node", "flat", start_of_a_node),
    ("start after new zone data", "bounded", zone_data),
    ("follow new zone data", "linear", zone_data_whole),
)  # fmt: skip


async def measure(
    store: SqliteStore | PostgresStore, count: int, *, runs_each: int = RUNS, rounds: int = ROUNDS
) -> dict[str, Cost]:
    """Return the cost of every use case at this size."""
    world = World(store, count)
    began = time.perf_counter()
    await world.fill(runs_each)
    print(f"{count} schedules, {count * runs_each} runs: {time.perf_counter() - began:.1f} s")
    world.watch()
    return {use: await world.cost(call, rounds) for use, _, call in USES}


def grows(growth: Growth, first: Cost, last: Cost, times: float) -> bool:
    """Return whether a use case grows by more than it may, when the size grows by `times`."""
    allowed = GROWTH * (1 if growth == "flat" else times)
    pairs = [(first.statements, last.statements)]
    pairs.append(
        (first.milliseconds, last.milliseconds)
        if first.steps is None or last.steps is None
        else (first.steps, last.steps)
    )
    return any(later > allowed * max(earlier, 1) + SPARE for earlier, later in pairs)


def show(found: dict[int, dict[str, Cost]]) -> int:
    """Print the table, and return the number of use cases that grow by more than they may."""
    sizes = sorted(found)
    heads = "".join(f"{f'{size:,}':>26}" for size in sizes)
    print(f"{'':32}{heads}\n{'':32}" + f"{'ms   stmts  k steps':>26}" * len(sizes))
    wrong = 0
    for use, growth, _ in USES:
        costs = [found[size][use] for size in sizes]
        bad = grows(growth, costs[0], costs[-1], sizes[-1] / sizes[0])
        wrong += bad
        cells = "".join(
            f"{cost.milliseconds:>10.2f}{cost.statements:>8}"
            f"{'-' if cost.steps is None else cost.steps:>8}"
            for cost in costs
        )
        print(f"{'!' if bad else ' '} {use:30}{cells}  {growth}")
    print(f"{len(USES) - wrong} of {len(USES)} grow no more than they may")
    return wrong


async def on_sqlite(sizes: Sequence[int]) -> dict[int, dict[str, Cost]]:
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "growth.db"
            store = await SqliteStore.open(path, clock=SystemClock(), inline=True)
            found[size] = await measure(store, size)
            await store.close()
    return found


async def on_postgres(sizes: Sequence[int]) -> dict[int, dict[str, Cost]]:
    from tests.postgres import Server, new_folder  # noqa: PLC0415 - needed only here

    found = {}
    server = Server(new_folder()).__enter__()
    try:
        for size in sizes:
            store = await PostgresStore.open(server.new_database(), clock=SystemClock())
            found[size] = await measure(store, size)
            await store.close()
    finally:
        server.remove()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--postgres", action="store_true")
    given = parser.parse_args()
    measured = on_postgres(given.sizes) if given.postgres else on_sqlite(given.sizes)
    return 1 if show(asyncio.run(measured)) else 0


if __name__ == "__main__":
    sys.exit(main())
