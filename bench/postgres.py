"""Planning on PostgreSQL: `python -m bench.postgres` for a herd, `--steady 300` for a steady load.

The herd: 100 000 hourly schedules are due at one instant. One planner process, then two, decide
them all, in batches, durably (fsync on): a run row, an event and the next due row for every tick.
Planners and server share the machine's two cores; rows moved in plain SQL, in one session and in
two, show the limit of the server.

Steady: 2 000 schedules that tick every second, planned and run to their SUCCESS by two nodes. For
each half minute it prints the ticks per second, how late they were decided and done, and the time
to read the head of the queue, where the dead rows are. It fails if that read slows down, or if
ticks fall behind.
"""

import argparse
import asyncio
import logging
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence

import psycopg

from onbeat import Onbeat
from onbeat.core.decide.plan import plan
from onbeat.core.runs.decisions import Plan
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule, definition
from onbeat.core.triggers.past import Past
from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import a_schedule
from tests.postgres import Server, new_folder

HERD, BATCH = 100_000, 1000
STEADY, STRETCH = 2_000, 30
AIM, BOUND = 1.5, 1.2  # two planners relative to one: the aim, and the bound on a busy machine
HOUR = 3600
FILL = """
INSERT INTO schedules (schedule_id, source, user_id, definition, revision, created_at, updated_at)
SELECT 's-' || n, 'bench', '', %(text)s, 1, %(now)s, %(now)s FROM generate_series(1, %(count)s) n;
INSERT INTO schedule_state (schedule_id, decided_until)
SELECT 's-' || n, %(due)s - 1 FROM generate_series(1, %(count)s) n;
INSERT INTO due (schedule_id, due_at, run_at)
SELECT 's-' || n, %(due)s * 1000::bigint, %(due)s FROM generate_series(1, %(count)s) n;
"""
BARE = """
WITH taken AS MATERIALIZED (
    SELECT schedule_id, run_at FROM due WHERE due_at <= %(now)s ORDER BY due_at, schedule_id
     LIMIT %(limit)s FOR UPDATE SKIP LOCKED),
moved AS (
    UPDATE due d SET due_at = d.due_at + 3600000, run_at = d.run_at + 3600 FROM taken t
     WHERE d.schedule_id = t.schedule_id),
decided AS (
    UPDATE schedule_state s SET decided_until = t.run_at, iteration = iteration + 1 FROM taken t
     WHERE s.schedule_id = t.schedule_id)
INSERT INTO schedule_runs (run_id, schedule_id, run_at, request_id, due_at, phase, triggered_by,
       needs, revision, created_at, updated_at)
SELECT nextval('run_ids'), schedule_id, run_at, '', run_at * 1000, 'WAITING', 'timer', 'command',
       1, %(now)s, %(now)s FROM taken
"""


def decide(
    schedule: Schedule, run_at: int, unfinished: Sequence[Run], past: Past, now: int
) -> Plan:
    return plan(schedule, run_at, unfinished, past, now=now)


def fill(url: str, count: int, *, due: int, every: str, run: object = None) -> None:
    """Create schedules in plain SQL, all due at one instant."""
    asyncio.run(_make_tables(url))
    target = {"command": ["true"]} if run is None else run
    # A long grace keeps them on time, whenever this runs.
    text = definition(a_schedule("s", every=every, grace="2h", run=target))
    given = {"text": text, "now": due * 1000, "due": due, "count": count}
    with psycopg.connect(url, options="-csearch_path=onbeat") as connection:
        for statement in FILL.split(";")[:-1]:
            connection.execute(statement, given)
        connection.execute("ANALYZE")


async def _make_tables(url: str) -> None:
    await (await PostgresStore.open(url)).close()


def plan_the_herd(url: str, ready, go, took) -> None:
    """Plan until nothing is due, and report the ticks and the end time."""

    async def work() -> tuple[int, float]:
        store = await PostgresStore.open(url)
        await store.nodes()  # connects
        ready.release()
        go.wait()
        ticks = 0
        while True:
            found = await store.plan_due(decide, limit=BATCH)
            if not found.ticks:
                break
            ticks += found.ticks
        ended = time.monotonic()
        await store.close()
        return ticks, ended

    took.put(asyncio.run(work()))


def herd(server: Server, planners: int) -> float:
    """Return how many ticks per second the planners decide."""
    url = server.new_database()
    due = int(time.time()) // HOUR * HOUR
    fill(url, HERD, due=due, every="1h")
    context = multiprocessing.get_context("spawn")
    ready, go, took = context.Semaphore(0), context.Event(), context.Queue()
    processes = [
        context.Process(target=plan_the_herd, args=(url, ready, go, took)) for _ in range(planners)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    began = time.monotonic()
    go.set()
    done = [took.get() for _ in processes]
    for process in processes:
        process.join()
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT count(*) FROM onbeat.schedule_runs").fetchone()
    assert rows == (HERD,), f"{rows}: not every tick has its row"
    server.drop_database(url)
    return sum(ticks for ticks, _ in done) / (max(ended for _, ended in done) - began)


def bare(server: Server, sessions: int) -> float:
    """Return how many rows per second the server moves without a planner."""
    url = server.new_database()
    due = int(time.time()) // HOUR * HOUR
    fill(url, HERD, due=due, every="1h")
    context = multiprocessing.get_context("spawn")
    began, took = time.monotonic(), context.Queue()
    processes = [
        context.Process(target=move_rows, args=(url, due * 1000 + 1, took)) for _ in range(sessions)
    ]
    for process in processes:
        process.start()
    spans = [took.get() for _ in processes]
    for process in processes:
        process.join()
    began = min(first for first, _ in spans)
    server.drop_database(url)
    return HERD / (max(last for _, last in spans) - began)


def move_rows(url: str, now: int, took) -> None:
    with psycopg.connect(url, options="-csearch_path=onbeat", autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET enable_hashjoin = off")
        connection.execute("SET enable_mergejoin = off")
        began = time.monotonic()
        while connection.execute(BARE, {"now": now, "limit": BATCH}).rowcount:
            pass
        took.put((began, time.monotonic()))


def compare(rounds: int) -> None:
    """Compare one and two planners, interleaved; exit with 1 if two are not fast enough."""
    with Server(new_folder(on_disk=True), durable=True) as server:
        version, one, two, alone = server.version, [], [], {1: [], 2: []}
        for _ in range(rounds):
            one.append(herd(server, 1))
            two.append(herd(server, 2))
            for sessions, rates in alone.items():
                rates.append(bare(server, sessions))
    median = statistics.median
    print(f"a herd of {HERD:,} on PostgreSQL {version}, medians of {rounds} rounds")
    print(f"  one planner     {median(one):8,.0f} ticks/s   {_each(one)}")
    print(f"  two planners    {median(two):8,.0f} ticks/s   {_each(two)}")
    for sessions, rates in alone.items():
        print(f"  bare SQL, {sessions}     {median(rates):8,.0f} rows/s    {_each(rates)}")
    ratio = median(two) / median(one)
    limit = median(two) / max(median(rates) for rates in alone.values())
    print(f"  two are {ratio:.2f} x one (aim: {AIM}), and {limit:.2f} of the rate of bare SQL")
    if ratio < BOUND and limit < 0.6:
        sys.exit(1)


def serve(url: str, seconds: float, began) -> None:
    """Run a node for some seconds."""

    async def noop() -> None:
        pass

    async def work() -> None:
        beat = Onbeat(url)
        beat.register("noop", noop)
        async with beat:
            began.release()
            await asyncio.sleep(seconds)

    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work())


HEAD = "SELECT 1 FROM due WHERE due_at <= %s ORDER BY due_at, schedule_id LIMIT 1"
LATENESS = """
SELECT count(*), percentile_disc(0.5) WITHIN GROUP (ORDER BY created_at - due_at),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY created_at - due_at),
       percentile_disc(0.99) WITHIN GROUP (ORDER BY finished_at - due_at)
  FROM schedule_runs WHERE run_at >= %s AND run_at < %s
"""
DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'due'"


def steady(seconds: int) -> None:
    """Print a line each half minute; exit with 1 if it gets slower."""
    with Server(new_folder(on_disk=True), durable=True) as server:
        url = server.new_database()
        fill(url, STEADY, due=int(time.time()), every="1s", run={"python": "noop"})
        context = multiprocessing.get_context("spawn")
        began = context.Semaphore(0)
        lasts = seconds + 5
        nodes = [context.Process(target=serve, args=(url, lasts, began)) for _ in range(2)]
        for node in nodes:
            node.start()
            began.acquire()
        time.sleep(3)
        print(f"{STEADY:,} ticks a second on PostgreSQL {server.version}, two nodes, {seconds} s")
        print("  seconds  ticks/s  decided p50, p99 ms  done p99 ms  head ms  dead due rows")
        reads, short = [], 0
        with psycopg.connect(url, autocommit=True, options="-csearch_path=onbeat") as connection:
            for passed in range(0, seconds, STRETCH):
                since = int(time.time())
                read = _read_head(connection, STRETCH)
                reads.append(read)
                row = connection.execute(LATENESS, (since, since + STRETCH)).fetchone()
                dead = connection.execute(DEAD).fetchone()[0]
                rate = row[0] / STRETCH
                short += rate < STEADY * 0.95
                print(
                    f"  {passed + STRETCH:7}  {rate:7,.0f}  {row[1]:11} {row[2]:7}  {row[3]:11}"
                    f"  {read:7.2f}  {dead:13,}",
                    flush=True,
                )
        for node in nodes:
            node.join()
        half = len(reads) // 2
        slower = statistics.median(reads[half:]) / statistics.median(reads[:half])
        print(f"  reading the head takes {slower:.2f} x as long in the second half as in the first")
        if short or slower > 2:
            sys.exit(1)


def _read_head(connection: psycopg.Connection, seconds: float) -> float:
    """Read the head of the queue four times a second; return the median time in ms."""
    took, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter()
        connection.execute(HEAD, (int(time.time() * 1000),))
        took.append((time.perf_counter() - began) * 1000)
        time.sleep(0.25)
    return statistics.median(took)


def _each(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:,.0f}" for rate in rates)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.postgres")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steady", type=int, metavar="SECONDS")
    given = parser.parse_args()
    if given.steady:
        steady(given.steady)
    else:
        compare(given.rounds)
