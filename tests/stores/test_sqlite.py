"""SQLite only: the file and its errors, the writer thread and group commit."""

import asyncio
import stat
import time
from types import MappingProxyType

import apsw
import pytest

from onbeat.core.decide.plan import plan
from onbeat.core.runs.run import Succeeded
from onbeat.core.schedule import definition
from onbeat.core.time.instants import parse_instant
from onbeat.errors import NoSuchSchedule, StoreFailed, StoreHeld, StoreUnusable
from onbeat.ports.rows import RunFilter
from onbeat.ports.store import Finished, Node, RescueResult
from onbeat.stores.sql import nodes
from onbeat.stores.sqlite.database import APPLICATION
from onbeat.stores.sqlite.migrations import MIGRATIONS
from onbeat.stores.sqlite.store import SqliteStore, find_lock_holder
from onbeat.testing import ManualClock, a_schedule
from tests.inside import in_transaction

NODE = Node("node-1", "here", frozenset({"command"}))


def planned(schedule, run_at, unfinished, past, now):
    return plan(schedule, run_at, unfinished, past, now=now)


def opened(path, clock=None, **how):
    return SqliteStore.open(path, clock=clock or ManualClock(), **how)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "onbeat.db"


def tamper(path, statement):
    database = apsw.Connection(str(path))
    database.execute(statement)
    database.close()


class TestFile:
    async def make(self, path):
        store = await opened(path)
        await store.upsert([a_schedule()])
        await store.close()

    def test_database_file_is_readable_by_its_owner_only(self, path):
        asyncio.run(self.make(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_reopened_database_has_its_schedules(self, path):
        async def again():
            store = await opened(path)
            found = [row.schedule_id for row in await store.schedules()]
            await store.close()
            return found

        asyncio.run(self.make(path))
        assert asyncio.run(again()) == ["a-schedule"]

    def test_database_uses_wal_and_full_synchronous(self, path):
        async def ask():
            store = await opened(path, inline=True)
            connection = store._worker._connection
            found = connection.pragma("journal_mode"), connection.pragma("synchronous")
            await store.close()
            return found

        assert asyncio.run(ask()) == ("wal", 2)

    @pytest.mark.parametrize(
        ("statement", "said"),
        [
            ("PRAGMA user_version = 999", "newer Onbeat (schema 999, this version supports"),
            ("PRAGMA application_id = 7", "a database of another application"),
        ],
    )
    def test_foreign_database_file_is_refused(self, path, statement, said):
        asyncio.run(self.make(path))
        tamper(path, statement)
        with pytest.raises(StoreUnusable, match=said.replace("(", r"\(")):
            asyncio.run(opened(path))

    def test_file_that_is_not_a_database_is_refused(self, path):
        path.write_bytes(b"not a database, but long enough to look like one" * 100)
        with pytest.raises(StoreUnusable, match="is not a database, or is damaged"):
            asyncio.run(opened(path))

    def test_missing_folder_is_reported(self, tmp_path):
        with pytest.raises(StoreUnusable, match="does not exist"):
            asyncio.run(opened(tmp_path / "no" / "onbeat.db"))

    def test_migrations_are_numbered_and_applied_in_one_transaction(self, path):
        asyncio.run(self.make(path))
        database = apsw.Connection(str(path))
        assert database.pragma("user_version") == len(MIGRATIONS)
        database.close()

    @pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
    def test_older_file_is_migrated_and_keeps_its_state(self, path, version):
        noon = parse_instant("2026-01-01T12:00:00Z")
        old = apsw.Connection(str(path))
        for script in MIGRATIONS[:version]:
            old.execute(script)
        old.pragma("application_id", APPLICATION)
        old.pragma("user_version", version)
        old.execute(
            "INSERT INTO schedules (schedule_id, source, user_id, definition, revision, created_at, "
            "updated_at) VALUES ('report', '', '', ?, 1, 0, 0)",
            (definition(a_schedule("report", every="1h")),),
        )
        old.execute("INSERT INTO schedule_state (schedule_id, decided_until) VALUES ('report', 0)")
        old.execute("INSERT INTO due VALUES (?, 'report', ?)", (noon * 1000, noon))
        old.close()

        async def story():
            store = await opened(path)
            await store.plan_due(planned, limit=9, node=None, slots=0)
            (run,), (schedule,) = await store.runs(), await store.schedules()
            await store.close()
            return run.run_at, run.status, schedule.next_run_at

        assert asyncio.run(story()) == (noon, "ENQUEUED", noon + 3600)
        new = apsw.Connection(str(path))
        assert new.pragma("user_version") == len(MIGRATIONS)
        new.close()

    def test_runs_that_waited_under_an_older_version_start_by_the_current_revision(self, path):
        old = apsw.Connection(str(path))
        for script in MIGRATIONS[:7]:
            old.execute(script)
        old.pragma("application_id", APPLICATION)
        old.pragma("user_version", 7)
        old.execute(
            "INSERT INTO schedules (schedule_id, source, user_id, definition, revision, created_at, "
            "updated_at) VALUES ('report', '', '', ?, 3, 0, 0)",
            (definition(a_schedule("report")),),
        )
        old.execute("INSERT INTO schedule_state (schedule_id, decided_until) VALUES ('report', 0)")
        columns = "run_id, schedule_id, run_at, request_id, due_at, status, triggered_by, needs, "
        columns += "revision, reason, created_at, updated_at"
        rows = [(1, "ENQUEUED", "command", None), (2, "ENQUEUED", "ray", "lost"),
                (3, "STARTED", "command", None)]  # fmt: skip
        for run_id, status, needs, reason in rows:
            old.execute(
                f"INSERT INTO schedule_runs ({columns}) VALUES "
                "(?, 'report', ?, '', 0, ?, 'timer', ?, 2, ?, 0, 0)",
                (run_id, run_id, status, needs, reason),
            )
        old.close()

        async def revisions():
            store = await opened(path)
            found = {run.run_id: run.revision for run in await store.runs()}
            await store.close()
            return found

        assert asyncio.run(revisions()) == {1: 3, 2: 2, 3: 2}

    def test_sqlite_tables_are_those_of_the_design(self, path):
        asyncio.run(self.make(path))
        database = apsw.Connection(str(path))
        tables = {
            name: {row[1] for row in database.execute(f"PRAGMA table_info({name})")}
            for name in ("schedules", "schedule_runs", "schedule_state", "due", "events", "nodes")
        }
        foreign = [row[2] for row in database.execute("PRAGMA foreign_key_list(schedule_runs)")]
        database.close()
        assert {"schedule_id", "definition", "revision", "user_id", "paused"} <= tables["schedules"]
        assert {"run_id", "run_at", "phase", "fence", "created_at"} <= tables["schedule_runs"]
        assert tables["due"] == {"due_at", "schedule_id", "run_at"}
        assert foreign == ["schedules"]


class TestFullDisk:
    def test_full_disk_changes_nothing_and_writes_resume_with_space(self, path):
        async def play():
            store = await opened(path, inline=True)
            await store.upsert([a_schedule("small")])
            connection = store._worker._connection
            pages = connection.pragma("page_count")
            connection.pragma("max_page_count", pages + 1)
            many = [a_schedule(f"s-{i}", description="x" * 1000) for i in range(200)]
            with pytest.raises(StoreFailed, match="the disk is full: nothing was changed"):
                await store.upsert(many)
            between = [row.schedule_id for row in await store.schedules()]
            connection.pragma("max_page_count", 2**30)
            await store.upsert(many)
            after = len(await store.schedules())
            await store.close()
            return between, after

        assert asyncio.run(play()) == (["small"], 201)


class TestLock:
    def test_second_node_is_refused_with_the_holder(self, path):
        async def play():
            first, second = await opened(path), await opened(path)
            await first.register(NODE)
            with pytest.raises(
                StoreHeld, match=r"in use by here, process \d+ \(stop it: onbeat down"
            ):
                await second.register(NODE)
            held = find_lock_holder(path)
            await second.upsert([a_schedule()])  # a client may
            await second.close()
            await first.close()
            return held, find_lock_holder(path)

        held, after = asyncio.run(play())
        assert held.name == "here"
        assert after is None


class TestWriter:
    def test_waiting_calls_share_one_commit(self, path):
        async def play():
            store = await opened(path)
            commits = []
            await in_transaction(
                store, lambda tx: tx.connection.set_commit_hook(lambda: commits.append(1) or False)
            )
            await asyncio.gather(*(store.upsert([a_schedule(f"s-{i}")]) for i in range(200)))
            found = len(await store.schedules())
            await store.close()
            return found, len(commits)

        found, commits = asyncio.run(play())
        assert found == 200
        assert commits < 100

    def test_failed_call_does_not_affect_others_of_its_commit(self, path):
        async def play():
            store = await opened(path)
            calls = [store.upsert([a_schedule("a")]), store.pause("nothing"), store.upsert([a_schedule("b")])]  # fmt: skip
            found = await asyncio.gather(*calls, return_exceptions=True)
            rows = [row.schedule_id for row in await store.schedules()]
            await store.close()
            return found, rows

        found, rows = asyncio.run(play())
        assert isinstance(found[1], NoSuchSchedule)
        assert rows == ["a", "b"]

    def test_caller_is_answered_even_if_its_call_crashed(self, path):
        class Died(BaseException):
            pass

        def dies(*_):
            raise Died

        async def play():
            clock = ManualClock()
            store = await opened(path, clock)
            await store.upsert([a_schedule()])
            clock.advance("1h")
            with pytest.raises(Died):
                await asyncio.wait_for(store.plan_due(dies, limit=9), 5)
            again = await store.plan_due(planned, limit=9)
            await store.close()
            return again.ticks

        assert asyncio.run(play()) == 1

    def test_write_waits_for_a_writing_process(self, path):
        async def play():
            store = await opened(path)
            other = apsw.Connection(str(path))
            other.execute("BEGIN IMMEDIATE")
            asked = asyncio.ensure_future(store.upsert([a_schedule()]))
            await asyncio.sleep(0.05)
            waited = not asked.done()
            other.execute("COMMIT")
            await asked
            other.close()
            await store.close()
            return waited

        assert asyncio.run(play())

    def test_cancelled_caller_does_not_undo_its_write(self, path):
        async def play():
            store = await opened(path)
            asked = asyncio.ensure_future(store.upsert([a_schedule()]))
            await asyncio.sleep(0)
            asked.cancel()
            rows = await in_transaction(store, lambda tx: tx.all("SELECT 1 FROM schedules"))
            await store.close()
            return len(rows)

        assert asyncio.run(play()) == 1


class TestZoneData:
    BERLIN = MappingProxyType({"cron": "0 9 * * *", "timezone": "Europe/Berlin"})

    async def with_stored(self, path, clock, version, due_at=None):
        store = await opened(path, clock, inline=True)
        await store.register(NODE)
        await store.upsert([a_schedule("zoned", **self.BERLIN), a_schedule("plain")])
        await store.close()
        tamper(path, f"UPDATE meta SET value = '{version}' WHERE name = 'tz'")
        tamper(path, "DELETE FROM meta WHERE name = 'tz_zones'")  # any zone may have changed
        if due_at is not None:  # as if other rules had computed it
            tamper(path, f"UPDATE due SET due_at = {due_at}000, run_at = {due_at} WHERE schedule_id = 'zoned'")  # fmt: skip

    def test_newer_zone_data_recomputes_due_rows(self, path):
        async def play():
            clock = ManualClock("2026-01-01T12:00:00Z")
            await self.with_stored(path, clock, "2000.1", due_at=1_767_340_800 + 3600)
            store = await opened(path, clock, inline=True)
            await store.register(NODE)
            rows = {row.schedule_id: row.next_run_at for row in await store.schedules()}
            await store.close()
            return rows

        assert asyncio.run(play()) == {"zoned": 1_767_340_800, "plain": 1_767_272_400}

    def test_tick_moved_into_the_past_by_newer_zone_data_is_not_lost(self, path):
        async def play():
            clock = ManualClock("2026-01-01T12:00:00Z")
            await self.with_stored(path, clock, "2000.1", due_at=1_767_340_800 + 3600)
            clock.advance("20h10m")  # ten minutes after nine in Berlin, fifty before the stored row
            store = await opened(path, clock, inline=True)
            await store.register(NODE)
            await store.plan_due(planned, limit=9)
            runs = await store.runs(RunFilter("zoned"))
            await store.close()
            return [(run.run_at, run.triggered_by) for run in runs]

        assert asyncio.run(play()) == [(1_767_340_800, "catchup")]

    def test_older_zone_data_plans_nothing_and_is_reported(self, path):
        async def play():
            clock = ManualClock()
            await self.with_stored(path, clock, "2999.1")
            store = await opened(path, clock, inline=True)
            try:
                with pytest.raises(
                    StoreUnusable, match=r"time zone data 2999\.1.*upgrade .*tzdata"
                ):
                    await store.register(NODE)
            finally:
                await store.close()

        asyncio.run(play())


def test_start_after_a_year_of_downtime_takes_under_two_seconds(path):
    async def play():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await opened(path, clock)
        await store.upsert([a_schedule(f"s-{i}", every="1s") for i in range(20)])
        await store.close()
        clock.advance("365d")
        began = time.perf_counter()
        store = await opened(path, clock)
        await store.register(NODE)
        done = await store.plan_due(planned, limit=500, node=NODE, slots=100)
        took = time.perf_counter() - began
        await store.finish([Finished(attempt, Succeeded()) for attempt in done.attempts])
        runs = await store.runs(limit=100)
        await store.close()
        return took, runs

    took, runs = asyncio.run(play())
    assert took < 2
    assert (
        len(runs) == 40
    )  # for each schedule what is too old, and the latest that stands for a day
    assert sum(run.tick_count for run in runs if run.schedule_id == "s-0") == 365 * 86_400


def test_reasons_of_a_dead_node_are_recorded(path):
    async def play():
        clock = ManualClock()
        store = await opened(path, clock, inline=True)
        await store.register(NODE)
        await store.upsert([a_schedule()])
        clock.advance("1h")
        await store.plan_due(planned, limit=9, node=NODE, slots=9)
        found = await in_transaction(
            store,
            lambda tx: nodes.register(tx, Node("node-2", "here", NODE.offers), RescueResult()),
        )
        (run,) = await store.runs()
        await store.close()
        return found.lost, run.status, run.reason, run.error

    assert asyncio.run(play()) == (
        1,
        "FAILED",
        "lost",
        "its node fell silent after announcing it: launched zero or one times",
    )
