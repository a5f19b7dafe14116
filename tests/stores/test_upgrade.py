"""A database of the commit before runs had named phases is upgraded: nothing is lost or doubled.

`golden.py` wrote it, with runs in every phase that there was a way to express.
"""

import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from onbeat.core.runs.phase import PHASES, Phase
from onbeat.core.runs.run import Canceled, Succeeded
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.engine.node import Engine
from onbeat.ports.store import Node
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock
from tests.postgres import shared_server
from tests.stores import golden
from tests.stores.conftest import LIFELONG

DATA = Path(__file__).parent.parent / "data" / "before_phases"
TAKEN_OVER, LATER = "2026-01-01T12:11:00Z", "2026-01-01T15:40:00Z"
KINDS = ("command", "python", "ray", "flow", "http", "session")
OFFERED = {
    "python": ("python:report", "python:missing"), "session": ("session", "session:url"),
}  # fmt: skip

# The phase that each run gets, by its schedule and its tick. Runs of noon have the phase that begins
# the name of their schedule, but for these.
PHASE_OF_NOON = {
    "backfill": "WAITING",
    "backfill-revived": "RUNNING",
    "beside": "RUNNING",
    "followed": "SUCCESS",
    "follower": "WAITING",
    "grouped": "RUNNING",
    "grouped-waiting": "WAITING",
    "queued": "RUNNING",
    "queued-backfill": "RUNNING",
    "queued-behind-detached": "DETACHED",
    "queued-busy": "RUNNING",
    "queued-retry": "RUNNING",
    "replaced": "CANCELING",
    "skipped": "RUNNING",
}
PHASE_OF_OTHERS = {
    "backfill 10:00": "BACKFILL",
    "backfill 10:05": "BACKFILL",
    "backfill 10:10": "BACKFILL",
    "backfill 12:05": "SKIPPED",
    "backfill 12:10": "SKIPPED",
    "backfill-revived 12:05": "BACKFILL",
    "backfill-revived 12:10": "BACKFILL",
    "beside 12:05": "WAITING",
    "beside 12:10": "WAITING",
    "queued 12:05": "QUEUED",
    "queued 12:10": "QUEUED",
    "queued-backfill 10:00": "QUEUED",
    "queued-backfill 12:05": "QUEUED",
    "queued-backfill 12:10": "QUEUED",
    "queued-behind-detached 12:05": "QUEUED",
    "queued-behind-detached 12:10": "QUEUED",
    "queued-busy 10:00": "QUEUED",
    "queued-busy 12:05": "QUEUED",
    "queued-busy 12:10": "QUEUED",
    "queued-retry 10:00": "QUEUED",
    "queued-retry 12:05": "QUEUED",
    "queued-retry 12:10": "QUEUED",
    "replaced 12:05": "SKIPPED",
    "replaced 12:10": "QUEUED",
    "revoked 12:10": "QUEUED",
    "skipped 12:05": "SKIPPED",
    "skipped 12:10": "SKIPPED",
}

# What becomes of the runs of noon: their status and reason, how often the new node launched them
# and how often it found them running.
ONCE, FOUND, NEITHER = (1, 0), (0, 1), (0, 0)
END_OF_PHASE = {
    "WAITING": ("SUCCESS", None, *ONCE),
    "SCHEDULED": ("SUCCESS", None, *ONCE),
    "RETRYING": ("SUCCESS", None, *ONCE),
    "DEFERRED": ("SUCCESS", None, *ONCE),
    "BACKFILL": ("SUCCESS", None, *ONCE),
    "QUEUED": ("SUCCESS", None, *ONCE),
    "CLAIMED": ("SUCCESS", None, *ONCE),
    "RUNNING": ("FAILED", "lost", *NEITHER),
    "CANCELING": ("FAILED", "lost", *NEITHER),
    "ACCEPTED": ("SUCCESS", None, *NEITHER),
    "REVOKED": ("CANCELED", "superseded", *NEITHER),
    "DETACHED": ("SUCCESS", None, *FOUND),
    "REATTACHING": ("SUCCESS", None, *FOUND),
    "REATTACHED": ("SUCCESS", None, *FOUND),
    "RECALLED": ("CANCELED", "canceled", *FOUND),
    "RECALLING": ("CANCELED", "canceled", *FOUND),
}
END_OF_RUN = {
    "waiting-paused 12:00": ("SKIPPED", "paused", *NEITHER),
    "running-at-least-once 12:00": ("SUCCESS", None, *ONCE),
    "running-ray 12:00": ("SUCCESS", None, *FOUND),
    "canceling-ray 12:00": ("CANCELED", "canceled", *FOUND),
    "canceling-reattached 12:00": ("CANCELED", "canceled", *FOUND),
    "canceling-recalled 12:00": ("CANCELED", "canceled", *FOUND),
    "accepted-unreported 12:00": ("FAILED", "timeout", *NEITHER),
}


class Sqlite:
    """The golden database as a file."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "golden.db"
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript((DATA / "sqlite.sql").read_text())

    async def open(self, clock):
        return await SqliteStore.open(self.path, clock=clock, inline=True)

    async def create(self, clock):
        """Create a new database beside it."""
        self.path = self.folder / "new.db"
        return await self.open(clock)

    def read(self, statement):
        with closing(sqlite3.connect(self.path)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(statement)]

    def schema(self):
        found = self.read("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
        for row in found:
            row["sql"] = re.sub(r"[\s\"]+", " ", row["sql"] or "")
        return [*found, *self.read("PRAGMA user_version"), *self.read("PRAGMA application_id")]

    def close(self):
        """The folder is the test's."""


class Postgres:
    """The golden database on the server."""

    def __init__(self, folder):
        self.server = shared_server()
        self.urls = [self.server.new_database()]
        with psycopg.connect(self.urls[0], autocommit=True) as connection:
            connection.execute((DATA / "postgres.sql").read_text())

    async def open(self, clock):
        return await PostgresStore.open(self.urls[-1], clock=clock)

    async def create(self, clock):
        """Create a new database beside it."""
        self.urls.append(self.server.new_database())
        return await self.open(clock)

    def read(self, statement):
        options = "-csearch_path=onbeat"
        rows = psycopg.rows.dict_row
        with psycopg.connect(self.urls[-1], options=options, row_factory=rows) as connection:
            return connection.execute(statement).fetchall()

    def schema(self):
        columns = """
            SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name
              FROM information_schema.columns WHERE table_schema = 'onbeat'
             ORDER BY table_name, ordinal_position"""
        constraints = """
            SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
             WHERE connamespace = 'onbeat'::regnamespace ORDER BY 1, 2"""
        kept = """
            SELECT relname, relkind::text, reloptions FROM pg_class
             WHERE relnamespace = 'onbeat'::regnamespace ORDER BY 1"""
        indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'onbeat' ORDER BY indexname"
        version = "SELECT value FROM meta WHERE name = 'schema'"
        statements = (columns, constraints, kept, indexes, version)
        return [row for statement in statements for row in self.read(statement)]

    def close(self):
        for url in self.urls:
            self.server.drop_database(url)


@pytest.fixture(
    params=[Sqlite, pytest.param(Postgres, marks=pytest.mark.postgres)],
    ids=lambda each: each.__name__,
)
def database(request, tmp_path):
    found = request.param(tmp_path)
    yield found
    found.close()


def named(schedule_id, run_at):
    """Return the name of a run here: its schedule and the time of its tick."""
    return f"{schedule_id} {rfc3339(run_at)[11:16]}"


def expected_phase(schedule_id, run_at):
    name = named(schedule_id, run_at)
    if name in PHASE_OF_OTHERS:
        return Phase(PHASE_OF_OTHERS[name])
    assert name.endswith("12:00")
    return Phase(PHASE_OF_NOON.get(schedule_id, schedule_id.partition("-")[0].upper()))


async def migrated(database, clock):
    store = await database.open(clock)
    await store.close()
    return database.read("SELECT * FROM schedule_runs ORDER BY run_id")


async def test_each_run_gets_the_phase_that_it_was_in(runner, database):
    before = database.read("SELECT * FROM schedule_runs ORDER BY run_id")
    after = await migrated(database, ManualClock(TAKEN_OVER))
    found = {named(row["schedule_id"], row["run_at"]): row["phase"] for row in after}
    expected = {
        named(row["schedule_id"], row["run_at"]): expected_phase(row["schedule_id"], row["run_at"])
        for row in before
    }
    assert found == expected
    assert len(found) == len(before)
    assert set(found.values()) == set(Phase), "the database has a run in every phase"


async def test_upgrade_keeps_the_public_status_and_every_other_column(runner, database):
    before = database.read("SELECT * FROM schedule_runs ORDER BY run_id")
    after = await migrated(database, ManualClock(TAKEN_OVER))
    for old, new in zip(before, after, strict=True):
        phase = Phase(new.pop("phase"))
        assert phase.facts.status == old.pop("status")
        may_detach = old["needs"] in ("ray", "flow", "session", "session:url")
        assert new.pop("reattachable") == (may_detach and old["finished_at"] is None)
        if phase.facts.is_detached:  # no deadline for its start applies any more
            assert new["deadline_at"] is None
            old["deadline_at"] = None
        assert new == old


async def test_upgraded_runs_have_the_columns_of_their_phases(runner, database):
    for row in await migrated(database, ManualClock(TAKEN_OVER)):
        check_columns(row)


def check_columns(row):
    """Check that a row of a run has the columns that its phase says."""
    facts = PHASES[Phase(row["phase"])]
    assert (row["leased_by"] is not None) == facts.is_leased, row
    assert (row["finished_at"] is not None) == facts.is_over, row
    if not facts.is_over:
        assert (row["blocked_by"] is not None) == facts.is_queued, row
        assert (row["end_asked_at"] is not None) == facts.is_to_end, row


async def test_upgraded_schema_is_that_of_a_new_database(runner, database):
    clock = ManualClock(TAKEN_OVER)
    await migrated(database, clock)
    upgraded = database.schema()
    await (await database.create(clock)).close()
    assert upgraded == database.schema()


class Witness:
    """Targets that know which runs were started, and what continued without its node."""

    def __init__(self, rows):
        self.launched, self.reattached = Counter(), Counter()
        self.order = defaultdict(list)
        self._alive = {
            row["run_id"]
            for row in rows
            if row["reattachable"] and row["attempt"] > row["deferrals"]
        }

    def launch(self, attempt):
        run_id = attempt.run_id
        if attempt.may_run and run_id in self._alive:
            self.reattached[run_id] += 1
            self._alive.discard(run_id)
            return Canceled("ended") if attempt.is_cancel_requested else Succeeded(7)
        assert not attempt.is_cancel_requested, "a run to be canceled is not launched"
        assert not attempt.may_run or attempt.at_least_once, "an attempt that may run is found"
        self.launched[run_id] += 1
        self.order[attempt.schedule_id].append(attempt.run_at)
        return Succeeded(7)


class Launcher:
    """A launcher whose attempts end at once, as the witness says."""

    def __init__(self, kind, witness):
        self._kind, self._witness = kind, witness

    def offers(self):
        return OFFERED.get(self._kind, (self._kind,))

    def check(self, target):
        """Accept every target."""

    def can_cancel(self, target):
        return True

    async def launch(self, attempt):
        return self._witness.launch(attempt), ""

    def kill(self, run_ids):
        """Do nothing: no attempt is running."""

    async def recover(self):
        return 0

    async def close(self):
        """Do nothing."""


async def play(database, runner):
    """Have a node take the database over until all schedules have ended; return what it did."""
    clock = ManualClock(TAKEN_OVER)
    before = await migrated(database, clock)
    store, witness = await database.open(clock), Witness(before)
    for row in before:
        if row["phase"] == "ACCEPTED" and row["schedule_id"] != "accepted-unreported":
            await store.report(row["run_id"], Succeeded(7))
    for schedule_id in ("waiting-paused", "detached-paused"):
        await store.resume(schedule_id)
    offers = frozenset(name for kind in KINDS for name in OFFERED.get(kind, (kind,)))
    node = Node("node-2", "here", offers, lease=LIFELONG)
    engine = Engine(store, clock, node, {kind: Launcher(kind, witness) for kind in KINDS})
    await engine.start()
    await engine.settle()
    while clock.now() < parse_instant(LATER) * 1000:
        clock.advance("1m")
        await engine.settle()
    await engine.stop(1)
    await store.close()
    return before, database.read("SELECT * FROM schedule_runs ORDER BY run_id"), witness


async def test_upgrade_loses_and_doubles_no_run(runner, database):
    before, after, witness = await play(database, runner)
    found = {
        named(row["schedule_id"], row["run_at"]): (
            row["phase"], row["reason"],
            witness.launched[row["run_id"]], witness.reattached[row["run_id"]],
        )
        for row in after[: len(before)]
    }  # fmt: skip
    expected = {}
    for row in before:
        name, phase = named(row["schedule_id"], row["run_at"]), row["phase"]
        over = (phase, row["reason"], *NEITHER)
        expected[name] = END_OF_RUN.get(name, END_OF_PHASE.get(phase, over))
    assert found == expected
    launched = {row["run_id"]: witness.launched[row["run_id"]] for row in after[len(before) :]}
    assert set(launched.values()) == {1}
    assert witness.launched.keys() <= {row["run_id"] for row in after}
    for row in after:
        check_columns(row)


async def test_upgraded_queues_start_in_their_order(runner, database):
    _, _, witness = await play(database, runner)
    five, ten = (parse_instant(f"2026-01-01T12:{minute}:00Z") for minute in ("05", "10"))
    early = parse_instant(golden.BEGIN)
    for schedule_id in ("queued", "queued-behind-detached"):
        assert witness.order[schedule_id][:2] == [five, ten]
    for schedule_id in ("queued-backfill", "queued-retry", "queued-busy"):
        assert [at for at in witness.order[schedule_id] if at <= ten] == [five, ten, early]


async def test_upgraded_schedules_have_a_row_for_every_tick(runner, database):
    _, after, _ = await play(database, runner)
    ticks = defaultdict(list)
    for row in after:
        if row["triggered_by"] in ("timer", "catchup"):
            assert row["first_run_at"] is None
            ticks[row["schedule_id"]].append(row["run_at"])
    noon, end = parse_instant("2026-01-01T12:00:00Z"), parse_instant(golden.END)
    brisk = golden.BRISK.keys() | golden.QUEUED.keys() | {"backfill"}
    spans = dict.fromkeys(golden.HOURLY, 3600) | dict.fromkeys(brisk, 300)
    del spans["running-deleted"]
    for schedule_id, span in spans.items():
        assert sorted(ticks[schedule_id]) == list(range(noon, end + 1, span)), schedule_id
