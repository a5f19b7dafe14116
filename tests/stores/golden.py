"""A database with runs in every phase, as the version of Onbeat that runs this script writes it.

    python -m tests.stores.golden FOLDER

writes FOLDER/sqlite.sql and FOLDER/postgres.sql, which restore the databases. Each run gets where it
is by calls of `Store` as a node makes them; no row is written by hand. tests/data/before_phases
has what it wrote in a checkout of the commit before runs had named phases: it uses only what both
versions have.

A schedule has the name of what becomes of its runs: `test_upgrade.py` says what is expected of each.
All schedules end at three o'clock, so that a node that takes the database over has an end, too.
"""

import asyncio
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from itertools import groupby
from pathlib import Path

import tests.conftest  # noqa: F401 - it installs the kinds of target, where they are installed
from onbeat.core.decide.plan import plan
from onbeat.core.runs.run import Accepted, Busy, Canceled, Failed, Lost, Succeeded
from onbeat.core.time.instants import parse_instant
from onbeat.ports.rows import RunFilter
from onbeat.ports.store import Finished, Node
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule
from tests.postgres import find_binaries, shared_server

BEGIN, JOINS, END = "2026-01-01T10:00:00Z", "2026-01-01T11:58:00Z", "2026-01-01T15:00:00Z"
RAY = {"run": {"python": "reports:build", "on": "ray"}}
FLOW = {"run": {"flow": {"url": "/-/127.0.0.1/8125/-/"}}}
HTTP = {"run": {"http": {"url": "http://127.0.0.1:9/work"}}}
HERE = {"run": {"session": {"prompt": "Standup"}}}
THERE = {"run": {"session": {"prompt": "Standup", "url": "http://127.0.0.1:9"}}}
NAMED = {"run": {"python": "report"}}
OFFERS = frozenset({"command", "python:report", "ray", "flow", "http", "session", "session:url"})

DONE, FAILS, LOST, ENDED = Succeeded(7), Failed("no luck"), Lost(), Canceled("it was ended")
BUSY, ACCEPTED = Busy("try later", 50), Accepted("job-7")

# What is done with the run of noon of each schedule, one after the other: its fields, and the steps.
# Claimed runs of others are handed back.
HOURLY = {
    "waiting": ({}, ""),
    "waiting-named": (NAMED, ""),
    "waiting-unoffered": ({"run": {"python": "missing"}}, ""),
    "waiting-older-revision": ({}, "edit"),
    "waiting-deadline": ({"start_deadline": "2h"}, ""),
    "waiting-paused": ({}, "pause"),
    "waiting-handed-back": ({}, "start hand_back"),
    "retrying": ({"retry": ["30m"]}, "start FAILS"),
    "retrying-lost": ({"on_lost": "retry"}, "start LOST"),
    "retrying-handed-back": ({"retry": ["0s"]}, "start FAILS start hand_back"),
    "retrying-after-reattached": ({**RAY, "retry": ["0s", "30m"]}, "start LOST start FAILS"),
    "retrying-after-accepted": ({**HTTP, "retry": ["30m"]}, "start ACCEPTED report"),
    "deferred": (HTTP, "start BUSY"),
    "deferred-after-reattached": (RAY, "start LOST start BUSY"),
    "scheduled-handed-back": (HTTP, "start BUSY start hand_back"),
    "claimed": ({}, "claim"),
    "claimed-retry": ({"retry": ["0s"]}, "start FAILS claim"),
    "claimed-busy": (HTTP, "start BUSY claim"),
    "claimed-ray": (RAY, "claim"),
    "running": ({}, "start"),
    "running-at-least-once": ({"on_lost": "retry"}, "start"),
    "running-after-retry": ({"retry": ["0s"]}, "start FAILS start"),
    "running-ray": (RAY, "start"),
    "running-deleted": ({}, "start delete"),
    "canceling": ({}, "start cancel"),
    "canceling-ray": (RAY, "start cancel"),
    "canceling-reattached": (RAY, "start LOST start cancel"),
    "canceling-recalled": (RAY, "start LOST cancel start"),
    "accepted": (HTTP, "start ACCEPTED"),
    "accepted-flow": (FLOW, "start ACCEPTED"),
    "accepted-reattached": (FLOW, "start LOST start ACCEPTED"),
    "accepted-unreported": ({**HTTP, "timeout": "30m"}, "start ACCEPTED"),
    "reattaching": (RAY, "start LOST claim"),
    "reattached": (RAY, "start LOST start"),
    "reattached-flow": (FLOW, "start LOST start"),
    "recalling": (RAY, "start LOST cancel claim"),
    "success": ({}, "start DONE"),
    "success-retried": ({"retry": ["0s"]}, "start FAILS start DONE"),
    "failed": ({}, "start FAILS"),
    "failed-lost": ({}, "start LOST"),
    "canceled": ({}, "cancel"),
    "canceled-running": ({}, "start cancel ENDED"),
    "detached": (RAY, "start LOST"),
    "detached-at-least-once": ({**RAY, "on_lost": "retry"}, "start LOST"),
    "detached-flow": (FLOW, "start LOST"),
    "detached-session": (HERE, "start LOST"),
    "detached-session-url": (THERE, "start LOST"),
    "detached-deadline": ({**RAY, "start_deadline": "30m"}, "start LOST"),
    "detached-handed-back": (RAY, "start LOST start hand_back"),
    "detached-again": (RAY, "start LOST start LOST"),
    "detached-paused": (RAY, "start LOST pause"),
    "recalled": (RAY, "start LOST cancel"),
    "recalled-lost": (RAY, "start cancel LOST"),
    "recalled-handed-back": (RAY, "start LOST start cancel hand_back"),
    "recalled-deadline": (
        {**RAY, "retry": ["0s"], "start_deadline": "30m"},
        "start FAILS start cancel hand_back",
    ),
    "grouped": ({"group": "narrow", "priority": 9}, "start"),
    "grouped-waiting": ({"group": "narrow"}, ""),
}  # fmt: skip

# The same for schedules that tick every five minutes, of which later ticks meet the first run.
BRISK = {
    "queued": ({"overlap": "queue"}, "start"),
    "queued-behind-detached": ({**RAY, "overlap": "queue"}, "start LOST"),
    "skipped": ({}, "start"),
    "replaced": ({"overlap": "replace"}, "start"),
    "beside": ({"overlap": "allow"}, "start"),
}  # fmt: skip

# Schedules whose tick of ten o'clock is backfilled before noon; the one of noon is in its way.
QUEUED = {
    "queued-backfill": ({"overlap": "queue"}, ""),
    "queued-retry": ({"overlap": "queue", "retry": ["0s"]}, "start FAILS"),
    "queued-busy": ({**HTTP, "overlap": "queue"}, "start BUSY"),
}


class Writer:
    """A node, and what it does with the runs of schedules."""

    def __init__(self, store, clock):
        self.store, self.clock = store, clock
        self.node = Node("node-1", "here", OFFERS, lease=5_000)

    async def define(self, schedule_id, every, fields):
        timing = {"every": every, "start_at": BEGIN, "end_at": END}
        await self.store.upsert([a_schedule(schedule_id, **timing, **fields)])

    async def until(self, time):
        self.clock.advance(parse_instant(f"2026-01-01T{time}:00Z") * 1000 - self.clock.now())
        await self.store.heartbeat(self.node)

    async def plan(self):
        def decide(schedule, run_at, unfinished, past, now):
            return plan(schedule, run_at, unfinished, past, now=now)

        while (await self.store.plan_due(decide, limit=100)).ticks:
            pass

    async def play(self, steps_of):
        """Do with the first run of each schedule what its steps say, all in step."""
        held = {}
        for n in range(max(len(steps.split()) for steps in steps_of.values())):
            self.clock.advance(100)
            now = {
                name: steps.split()[n] for name, steps in steps_of.items() if len(steps.split()) > n
            }
            claims = {name for name, step in now.items() if step in ("claim", "start")}
            held |= await self.claim(claims)
            for name, step in now.items():
                await self.take(name, step, held.get(name))

    async def take(self, schedule_id, step, held):
        """Take one step with the first run of a schedule, which is claimed if it has to be."""
        match step:
            case "claim":
                pass
            case "start":
                assert await self.store.announce(self.node, [held]) == [held]
            case "hand_back":
                await self.store.hand_back([held])
            case "cancel":
                await self.store.cancel(await self.first_run(schedule_id), note="enough")
            case "report":
                await self.store.report(await self.first_run(schedule_id), FAILS)
            case "pause":
                await self.store.pause(schedule_id, note="for the upgrade")
            case "delete":
                await self.store.delete(schedule_id)
            case "edit":
                await self.define(schedule_id, "1h", {"run": {"command": ["false"]}})
            case outcome:
                done = await self.store.finish([Finished(held, globals()[outcome])])
                assert done == [held.run_id], (schedule_id, step)

    async def claim(self, wanted):
        """Claim the runs of these schedules; hand others back that were claimed with them."""
        found = await self.store.claim(self.node, limit=1000) if wanted else []
        await self.store.hand_back([each for each in found if each.schedule_id not in wanted])
        claimed = {each.schedule_id: each for each in found if each.schedule_id in wanted}
        assert claimed.keys() == wanted, wanted - claimed.keys()
        return claimed

    async def first_run(self, schedule_id):
        return (await self.store.runs(RunFilter(schedule_id), limit=100))[-1].run_id

    async def backfill(self, schedule_id, first, last):
        seconds = parse_instant(first), parse_instant(last)
        await self.store.backfill(schedule_id, first=seconds[0], last=seconds[1], limit=10)


async def write(store, clock):
    """Bring runs into every phase, and leave them there."""
    writer = Writer(store, clock)
    await store.register(writer.node)
    await store.set_group("narrow", places=1)
    for name, (fields, _) in QUEUED.items():
        await writer.define(name, "5m", fields)
        await writer.backfill(name, BEGIN, BEGIN)
    await writer.play(steps_of(QUEUED))
    for every, schedules in (("1h", HOURLY), ("5m", BRISK)):
        for name, (fields, _) in schedules.items():
            await writer.define(name, every, fields)
    await writer.define("revoked", "10m", {**HTTP, "overlap": "replace"})
    await writer.define("scheduled", "1h", {"jitter": "30m"})
    await writer.define("followed", "1h", {})
    followed = {"after": {"schedule": "followed", "outcome": "success"}, "end_at": END}
    await store.upsert([a_schedule("follower", **followed)])
    for name in ("backfill", "backfill-revived"):
        await writer.define(name, "5m", {})
    await writer.until("12:00")
    await writer.plan()
    at_noon = {"revoked": "start ACCEPTED", "backfill-revived": "start", "followed": "start DONE"}
    await writer.play(steps_of(HOURLY | BRISK) | dict.fromkeys(QUEUED, "start") | at_noon)
    await writer.until("12:05")
    await writer.plan()
    await writer.define("scheduled", "30m", {"jitter": "30m"})
    await writer.until("12:10")
    await writer.plan()
    await writer.backfill("backfill", BEGIN, "2026-01-01T10:10:00Z")
    await writer.backfill("backfill-revived", "2026-01-01T12:05:00Z", "2026-01-01T12:10:00Z")


def steps_of(schedules):
    return {name: steps for name, (_, steps) in schedules.items()}


async def write_sqlite(path):
    clock = ManualClock(JOINS)
    store = await SqliteStore.open(path, clock=clock, inline=True)
    await write(store, clock)
    await store.close()


def dump_sqlite(path):
    with closing(sqlite3.connect(path)) as database:
        names = ("application_id", "user_version")
        values = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
        pragmas = [f"PRAGMA {n} = {value};" for n, value in zip(names, values, strict=True)]
        return [*pragmas, *database.iterdump()]


async def write_postgres(url):
    clock = ManualClock(JOINS)
    store = await PostgresStore.open(url, clock=clock)
    await write(store, clock)
    await store.close()


def dump_postgres(url):
    command = [find_binaries() / "pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = (line for line in dump.splitlines() if not re.match(r"--|\\|$", line))
    tables = groupby(lines, lambda line: line.partition(" VALUES ")[0])
    # Rows are stored in no particular order.
    return [line for name, rows in tables for line in (sorted(rows) if "INSERT" in name else rows)]


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "onbeat.db")
        asyncio.run(write_sqlite(path))
        (folder / "sqlite.sql").write_text("\n".join(dump_sqlite(path)) + "\n")
    url = shared_server().new_database()
    asyncio.run(write_postgres(url))
    (folder / "postgres.sql").write_text("\n".join(dump_postgres(url)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
