"""`onbeat move` from SQLite to PostgreSQL: no row is lost, and the file is refused afterwards."""

import asyncio
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from onbeat.app.settings import Settings
from onbeat.app.stores import move_to_postgres
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import InvalidSettings, StoreHeld, StoreUnusable
from onbeat.ports.store import Finished, Node
from onbeat.stores.postgres.store import PostgresStore
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule
from tests.stores.conftest import planned

NODE = Node("node", "here", frozenset({"command"}))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "onbeat.db"


async def live(path, clock):
    """Leave a file behind that has a bit of everything in it."""
    store = await SqliteStore.open(path, clock=clock, inline=True)
    await store.register(NODE)
    queue = {"overlap": "queue", "retry": ["30s"]}
    await store.upsert(
        [
            a_schedule("hourly"),
            a_schedule("queued", **queue),
            a_schedule("gone"),
            a_schedule("lost"),
        ],
        source="onbeat.yaml",
        user_id="ada",
    )
    clock.advance("1h")
    found = await store.plan_due(planned, limit=9, node=NODE, slots=9)
    ends = {
        "hourly": Succeeded({"n": 1}),
        "queued": Failed("it \N{SNOWMAN} broke"),
        "gone": Succeeded(),
    }
    ended = [a for a in found.attempts if a.schedule_id in ends]
    await store.finish([Finished(a, ends[a.schedule_id], "said\0 this") for a in ended])
    await store.enqueue("hourly", request_id="by-hand", inputs={"limit": 3})
    await store.pause("hourly", note="for now")
    await store.delete("gone")
    await store.keep("workflow", "report", {"nodes": ["\0"]}, user_id="ada")
    for _ in range(2):
        clock.advance("1h")
        await store.plan_due(planned, limit=9)
    kept = await everything(store)
    await store.close()
    return kept


async def everything(store):
    """Return all that can be asked of a store."""
    schedules = await store.schedules()
    runs = await store.runs(limit=1000)
    events = await store.events(limit=1000)
    told = [(row.at, row.event) for row in events]
    return (
        schedules,
        [without_nul(run) for run in runs],
        told,
        await store.list_documents("workflow"),
    )


def without_nul(run):
    return {
        name: getattr(run, name).replace("\0", "\N{SYMBOL FOR NULL}")
        if isinstance(getattr(run, name), str)
        else getattr(run, name)
        for name in run.__dataclass_fields__
    }


def moved(path, url):
    return asyncio.run(
        move_to_postgres(Settings(database=f"sqlite:///{path}"), Settings(database=url))
    )


def test_moved_database_has_all_rows_and_continues(path, postgres_url):
    clock = ManualClock()
    before = asyncio.run(live(path, clock))
    assert moved(path, postgres_url)["schedule_runs"] == len(before[1])

    async def go_on():
        store = await PostgresStore.open(postgres_url, clock=clock)
        after = await everything(store)
        found = await store.register(Node("another", "there", NODE.offers))
        clock.advance("1h")
        planned_now = await store.plan_due(planned, limit=9)
        rows = await store.runs(limit=1000)
        await store.close()
        return after, found.lost, planned_now.ticks, rows

    after, lost, ticks, rows = asyncio.run(go_on())
    assert after == before
    assert lost == 1, "the run that the file's node had started is decided by whoever comes"
    assert ticks == 2
    assert len({row.run_id for row in rows}) == len(rows) == len(before[1]) + 2
    assert len({(row.schedule_id, row.run_at, row.request_id) for row in rows}) == len(rows)


def test_waiting_run_keeps_its_revision_after_a_move(path, postgres_url):
    clock = ManualClock()

    async def leave():
        store = await SqliteStore.open(path, clock=clock, inline=True)
        await store.upsert([a_schedule("report", run={"command": ["old"]})])
        clock.advance("1h")
        await store.plan_due(planned, limit=9)
        await store.upsert([a_schedule("report", run={"command": ["new"]})])
        await store.close()

    async def start():
        store = await PostgresStore.open(postgres_url, clock=clock)
        await store.register(NODE)
        found = await store.claim(NODE, limit=9)
        await store.close()
        return [(each.target.fields["command"], each.revision) for each in found]

    asyncio.run(leave())
    moved(path, postgres_url)
    assert asyncio.run(start()) == [(["old"], 1)]


def test_moved_file_is_refused_afterwards(path, postgres_url):
    asyncio.run(live(path, ManualClock()))
    moved(path, postgres_url)
    with pytest.raises(StoreUnusable, match=r"was moved to postgresql://127\.0\.0\.1"):
        asyncio.run(SqliteStore.open(path, clock=ManualClock()))


def test_refused_move_leaves_the_file_unchanged(path, postgres_url):
    async def take():
        store = await PostgresStore.open(postgres_url, clock=ManualClock())
        await store.upsert([a_schedule("theirs")])
        await store.close()

    kept = asyncio.run(live(path, ManualClock()))
    asyncio.run(take())
    with pytest.raises(StoreUnusable, match="the database is not empty"):
        moved(path, postgres_url)

    async def still_there():
        store = await SqliteStore.open(path, clock=ManualClock())
        found = await everything(store)
        await store.close()
        return found

    assert asyncio.run(still_there()) == kept


def test_move_to_a_database_without_schedules_is_possible(path, postgres_url):
    async def look():
        store = await PostgresStore.open(postgres_url, clock=ManualClock())
        await store.register(NODE)
        await store.unregister(NODE)
        await store.close()

    asyncio.run(live(path, ManualClock()))
    asyncio.run(look())
    assert moved(path, postgres_url)["schedules"] == 4


def test_interrupted_move_can_be_repeated(path, postgres_url, monkeypatch):
    asyncio.run(live(path, ManualClock()))
    tables = SqliteStore.tables

    def broken(self, **given):
        for n, table in enumerate(tables(self, **given)):
            if n == 5:
                raise KeyboardInterrupt
            yield table

    monkeypatch.setattr(SqliteStore, "tables", broken)
    with pytest.raises(KeyboardInterrupt):
        moved(path, postgres_url)
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM onbeat.schedules").fetchone() == (0,)
    monkeypatch.undo()
    assert moved(path, postgres_url)["schedules"] == 4


def test_file_held_by_a_node_is_not_moved(path, postgres_url):
    async def hold():
        store = await SqliteStore.open(path, clock=ManualClock(), inline=True)
        await store.register(NODE)
        try:
            with pytest.raises(StoreHeld, match="onbeat down"):
                await move_to_postgres(
                    Settings(database=f"sqlite:///{path}"), Settings(database=postgres_url)
                )
        finally:
            await store.close()

    asyncio.run(hold())
    with closing(apsw.Connection(str(path))) as database:
        assert database.execute("SELECT * FROM meta WHERE name = 'moved_to'").fetchall() == []


def test_move_only_from_a_file_to_postgresql(path, postgres_url):
    for source, target in (
        (postgres_url, f"sqlite:///{path}"),
        ("sqlite://", postgres_url),
        (postgres_url, postgres_url),
    ):
        with pytest.raises(InvalidSettings, match="only a SQLite file can be moved"):
            asyncio.run(move_to_postgres(Settings(database=source), Settings(database=target)))


def test_move_prints_the_number_of_rows(path, postgres_url):
    asyncio.run(live(path, ManualClock()))
    command = [
        sys.executable,
        "-m",
        "onbeat",
        "move",
        postgres_url,
        "--database",
        f"sqlite:///{path}",
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["rows"]["schedules"] == 4
    assert told["to"] == postgres_url.replace("onbeat@", "")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (69, "")
    assert "the database is not empty" in again.stderr


def test_file_of_definitions_is_the_same_source_after_a_move(path, postgres_url, monkeypatch):
    monkeypatch.chdir(path.parent)
    Path("onbeat.yaml").write_text("schedules:\n  report: {every: 1h, run: {command: ['true']}}\n")

    def onbeat(*arguments):
        command = [sys.executable, "-m", "onbeat", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    onbeat("apply", "--database", f"sqlite:///{path.name}")
    onbeat("move", postgres_url, "--database", f"sqlite:///{path.name}")
    assert onbeat("apply", "--database", postgres_url) == "1 unchanged\n"
