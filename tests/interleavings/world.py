"""One schedule in the middle of its life, and everything that can be done to it at that moment.

It is three o'clock on New Year's Day and a tick is due. The hourly schedule queues: the run of one
o'clock runs on node `one`, that of two o'clock waits behind it. Of manual runs, two are claimed
by node `one`, one was started and one was claimed by node `two`, which has fallen silent, and one
waits for any node. Where `two` plans, another schedule has its first tick at this moment.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from unittest.mock import patch

import psycopg

from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import NoSuchSchedule
from onbeat.ports.rows import RunFilter
from onbeat.ports.store import Finished, Node
from onbeat.stores.postgres import store as postgres
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.postgres.transaction import TransactionCache
from onbeat.stores.sql.store import TABLES
from onbeat.testing import ManualClock, a_schedule
from tests.interleavings.stepper import Actor
from tests.sim.checker import Checker, decode_events
from tests.sim.world import Acknowledged, Launched
from tests.stores.conftest import LIFELONG, planned

OFFERS = frozenset({"command", "outside"})
# In a zone, which makes no difference but to who follows the data of zones.
REPORT = {"overlap": "queue", "retry": ["30s"], "timezone": "Europe/Berlin"}
ONE, TWO = Node("one", "one", OFFERS, LIFELONG), Node("two", "two", OFFERS, 5_000)
BEFORE = {  # how things have to stand for some calls
    "claim in a group": "grouped",
    "recreate": "deleted",
    "open": "closed",
    "resume": "paused",
    "plan by two": "beside_another",
    "follow": "unfollowed",
}
NUMBERS = "SELECT sequencename, last_value FROM pg_sequences WHERE last_value IS NOT NULL"
STATE = " UNION ALL ".join(f"SELECT '{table}', {table}::text FROM {table}" for table in TABLES)


class Situation:
    """How things stand, kept in a schema of its own, to be put back for each order."""

    def __init__(self, url, schema):
        self._schema = schema
        self.launched, self.acknowledged, self.held = [], [], {}
        self.started, self.claimed = [], []  # attempts that node `one` has, announced and not yet
        self.keeping = psycopg.connect(url, autocommit=True, options="-csearch_path=onbeat")

    def keep(self):
        self.keeping.execute(f"CREATE SCHEMA {self._schema}")
        for table in TABLES:
            self.keeping.execute(f"CREATE TABLE {self._schema}.{table} AS TABLE {table}")
        self._numbers = self.keeping.execute(NUMBERS).fetchall()

    def put_back(self):
        words = [f"SELECT setval('{name}', {last})" for name, last in self._numbers]
        for table in TABLES:  # so few rows are deleted sooner than a table is made anew
            over = "OVERRIDING SYSTEM VALUE" if table in ("events", "outbox") else ""
            words += [
                f"DELETE FROM {table}",
                f"INSERT INTO {table} {over} TABLE {self._schema}.{table}",
            ]
        self.keeping.execute("; ".join(words))  # one transaction


class TwoClients:
    """A database with two clients, and the situations that calls are tried in."""

    is_shared = True
    situation_names = ("usual", *BEFORE.values())

    def __init__(self, url):
        self.url, self.clock = url, ManualClock("2026-01-01T12:00:00Z")
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        with patch.object(postgres, "SIZE", 1):  # so that it is known who serves a call
            self.stores = [self._wait(PostgresStore.open(url, clock=self.clock)) for _ in range(2)]
        self.pids = [self._wait(store._threads.use(_backend_pid)) for store in self.stores]
        self.situations, self.started, self.claimed = {}, [], []
        for name in self.situation_names:
            self.situations[name] = self._make(name)
        self.watching = psycopg.connect(url, autocommit=True, options="-csearch_path=onbeat")

    def close(self):
        for store in self.stores:
            self._wait(store.close())
        for situation in self.situations.values():
            situation.keeping.close()
        self.watching.close()
        self.runner.close()

    def _wait(self, work):
        return self.runner.run(work)

    # -- how things stand

    def _make(self, name):
        situation = Situation(self.url, f"as_{name}")
        self.launched, self.acknowledged = situation.launched, situation.acknowledged
        situation.keeping.execute(f"TRUNCATE {', '.join(t for t in TABLES if t != 'meta')}")
        situation.keeping.execute(
            "DELETE FROM meta WHERE name LIKE 'gate%' OR name = 'tz_followed'"
        )
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.stores[0]._threads.clock_override = self.stores[1]._threads.clock_override = self.clock
        self._forget()
        self._wait(self._live(situation, beside_another=name == "beside_another"))
        if name == "deleted":
            self._wait(self.call(self.stores[0], "delete", "report"))
        if name == "paused":
            self._wait(self.call(self.stores[0], "pause", "report"))
        if name == "closed":
            self._wait(self.call(self.stores[0], "set_gate", is_open=False))
        if name == "grouped":
            self._wait(self._crowd())
        if name == "unfollowed":  # older zone data had the tick of three o'clock at half past two
            situation.keeping.execute("INSERT INTO meta (name, value) VALUES ('tz_followed', '{}')")
            situation.keeping.execute(
                "UPDATE due SET due_at = due_at - 1800000, run_at = run_at - 1800"
            )
        situation.keep()
        return situation

    async def _live(self, situation, *, beside_another):
        store, held = self.stores[0], situation.held
        await store.register(ONE)
        await store.register(TWO)
        await self.call(store, "upsert", [a_schedule("report", **REPORT)])
        self.clock.advance("1h")
        (held["going"],) = await self.plan(store)
        self.clock.advance("1h")
        await self.plan(store)
        held["queued"] = (await store.runs(RunFilter("report"), limit=1))[0].run_id
        asked = {"claimed": ONE, "unwanted": ONE, "going": TWO, "held": TWO, "free": None}
        for request_id, node in asked.items():
            await self.call(store, "enqueue", "report", request_id=request_id)
            if node is not None:
                (held[request_id, node],) = await store.claim(node, limit=1)
        await self.announce(store, TWO, [held["going", TWO]])
        self.clock.advance("30m")
        situation.started = [held["going"]]
        situation.claimed = [held[name, ONE] for name in ("claimed", "unwanted")]
        if beside_another:
            await self.call(store, "upsert", [a_schedule("other")])
        self.clock.advance("30m")

    async def _crowd(self):
        """Have two schedules want the one place of a group."""
        for name in ("left", "right"):
            await self.call(
                self.stores[0], "upsert", [a_schedule(name, group="narrow", priority=5)]
            )
            await self.call(self.stores[0], "enqueue", name, request_id="now")

    def _forget(self):
        for store in self.stores:
            store._threads._cache = TransactionCache()

    # -- what can be done

    async def call(self, store, name, *given, **named):
        """Have a user ask for something; keep what was answered."""
        answer = await getattr(store, name)(*given, **named)
        schedule_id = "" if name == "set_gate" else "report"
        if name == "upsert":
            schedule_id = answer[0].schedule_id
        if name in ("enqueue", "cancel"):
            schedule_id = answer.schedule_id
        self.acknowledged.append(Acknowledged(name, schedule_id, answer))
        return answer

    async def plan(self, store, node=ONE):
        found = await store.plan_due(planned, limit=10, node=node, slots=10)
        return self._launch(node, found.attempts)

    async def claim(self, store, limit=10):
        found = await store.claim(ONE, limit=limit)
        self.claimed += found

    async def announce(self, store, node, attempts):
        self._launch(node, await store.announce(node, attempts))

    def _launch(self, node, attempts):
        """Start the runs of a node, as it does immediately; `two` will not see their outcomes."""
        for a in attempts:
            row = ("RUNNING", a.attempt, a.fence)
            self.launched.append(
                Launched(a.run_id, a.schedule_id, a.run_at, a.request_id, a.attempt, a.fence, a.key, 0, 0, row,
                         tuple(a.target.fields[a.target.kind]), revision=a.revision,
                         may_run=a.may_run, is_cancel_requested=a.is_cancel_requested)
            )  # fmt: skip
            self.started += [a] if node is ONE else []
        return list(attempts)

    async def _release_unknown(self, store, held):
        known = {(held["going"].run_id, held["going"].fence)}
        await store.release_unknown(ONE, known, before=self.clock.now() - 2_000)

    def calls(self, held):
        """Return everything that can be done, by name."""
        edited = a_schedule("report", every="30m", overlap="skip", run={"command": ["new"]})
        ended = [
            Finished(held["going"], Failed("it broke")),
            Finished(held["going", TWO], Succeeded()),
        ]
        return {
            "plan": self.plan,
            "plan by two": lambda store: self.plan(store, TWO),
            "claim": self.claim,
            "announce": lambda store: self.announce(store, ONE, [held["claimed", ONE]]),
            "announce late": lambda store: self.announce(store, TWO, [held["held", TWO]]),
            "finish": lambda store: store.finish(ended),
            "hand back": lambda store: store.hand_back([held["unwanted", ONE]]),
            "release_unknown": lambda store: self._release_unknown(store, held),
            "lost": lambda store: store.rescue(ONE),
            "edit": lambda store: self.call(store, "upsert", [edited]),
            "move": lambda store: self.call(store, "upsert", [edited], update_waiting=True),
            "pause": lambda store: self.call(store, "pause", "report"),
            "resume": lambda store: self.call(store, "resume", "report", catchup=True),
            "delete": lambda store: self.call(store, "delete", "report"),
            "recreate": lambda store: self.call(store, "upsert", [edited]),
            "run": lambda store: self.call(store, "enqueue", "report", request_id="now"),
            "cancel": lambda store: self.call(store, "cancel", held["going"].run_id),
            "cancel waiting": lambda store: self.call(store, "cancel", held["queued"]),
            "backfill": self._backfill,
            "claim in a group": lambda store: self.claim(store, limit=1),
            "expire": lambda store: store.expire(limit=10),
            "close": lambda store: self.call(store, "set_gate", is_open=False),
            "open": lambda store: self.call(store, "set_gate", is_open=True),
            "follow": lambda store: store.follow_zones(limit=10),
        }

    async def _backfill(self, store):
        noon = self.clock.now() // 1000
        await store.backfill("report", first=noon - 6 * 3600, last=noon, limit=10)

    def situation_for(self, *names):
        (name,) = {BEFORE[name] for name in names if name in BEFORE} or {"usual"}
        return self.situations[name]

    def actors(self, names):
        """Put everything back, and return the two calls that are about to be made."""
        situation = self.situation_for(*names)
        situation.put_back()
        self._forget()
        self.launched, self.acknowledged = list(situation.launched), list(situation.acknowledged)
        self.started, self.claimed = list(situation.started), list(situation.claimed)
        calls, actors = self.calls(situation.held), []
        for n, name in enumerate(names):
            work = _in_a_loop(calls[name], self.stores[n])
            actors.append(
                Actor(f"{name} {n}" if names[0] == names[1] else name, self.pids[n], work)
            )
        return actors

    # -- results

    def state(self):
        """Return the state that all later steps depend on: `check` is the same for equal states."""
        cache = self.stores[0]._threads._cache
        here = (self.launched, self.acknowledged, self.started, self.claimed)
        rows = self.watching.execute(STATE).fetchall()
        return repr((sorted(rows), here, cache.due_from, cache._definitions))

    def check(self):
        """Let everything end, and return the problems that the checker finds."""
        try:
            self._wait(self._settle())
        except AssertionError as broken:  # a store refuses a change that its rows do not allow
            return [("the store's own assertions hold", str(broken))]
        self.seen, self.catchup_per_second = Counter(), 100
        self.stopped_at = self.clock.now()
        rows = self.watching.execute("SELECT at, body FROM events ORDER BY event_id").fetchall()
        checker = Checker(self)
        checker._pending = {}
        checker.replay([(at, decode_events(body)) for at, body in rows])
        checker.finish(self.watching)
        return checker.wrong

    async def _settle(self):
        store = self.stores[0]
        await store.follow_zones(limit=10)
        await self.call(store, "set_gate", is_open=True)
        with suppress(NoSuchSchedule):
            await self.call(store, "resume", "report")
        while await store.rescue(ONE) is not None:
            pass
        started = {(each.run_id, each.fence) for each in self.launched}
        unstarted = [each for each in self.claimed if (each.run_id, each.fence) not in started]
        await store.hand_back(unstarted)
        for _ in range(20):
            await store.finish([Finished(each, Succeeded()) for each in self.started])
            self.started.clear()
            await self.plan(store)
            await self.announce(store, ONE, await store.claim(ONE, limit=100))
            if not self.started:
                return


def _in_a_loop(call, store):
    return lambda: asyncio.run(call(store))


def _backend_pid(connection):
    return connection.info.backend_pid
