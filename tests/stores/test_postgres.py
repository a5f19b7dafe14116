"""PostgreSQL only: several nodes, a server that fails and returns, and access rights."""

import asyncio
import socket
import threading
import time
from contextlib import closing
from uuid import uuid4

import psycopg
import pytest

from onbeat.core.runs.run import Succeeded
from onbeat.errors import StoreFailed, StoreInDoubt, StoreUnusable
from onbeat.events import NodeLost
from onbeat.ports.store import RescueResult
from onbeat.stores.postgres import database, tables, transaction
from onbeat.stores.postgres.database import ServerAddress
from onbeat.stores.postgres.migrations import MIGRATIONS
from onbeat.stores.postgres.notify import NotifyListener
from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import a_schedule
from tests.inside import in_transaction
from tests.postgres import Server, new_folder
from tests.stores.conftest import Postgres, a_node, planned
from tests.waiting import await_condition, until

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.parametrize("world", [Postgres], indirect=True),
]

MINUTE, HOUR = 60_000, 3_600_000


class Held:
    """A plan function that blocks in the middle of its batch until it is released."""

    def __init__(self):
        self.is_inside, self.may_go = threading.Event(), threading.Event()

    def __call__(self, *given):
        self.is_inside.set()
        self.may_go.wait(4)
        return planned(*given)


async def inside_a_batch(store, **given):
    """Start planning; return once the rows are locked, with the blocked plan function."""
    held = Held()
    planning = asyncio.create_task(store.plan_due(held, limit=100, **given))
    assert await asyncio.to_thread(held.is_inside.wait, 5)
    return planning, held


# -- several nodes at once


async def test_several_nodes_may_join(world):
    beside = await world.second()
    other = a_node("other", roles=frozenset({"plan"}))
    assert await beside.register(other) == RescueResult()
    rows = await world.store.nodes()
    assert [(row.node_id, row.roles) for row in rows] == [("node-1", {"plan", "run"}), ("other", {"plan"})]  # fmt: skip


async def test_planner_skips_due_rows_locked_by_another(world):
    beside = await world.second()
    await world.define("a")
    world.clock.advance("1h")
    planning, held = await inside_a_batch(world.store)
    await beside.upsert([a_schedule("b", at="2026-01-01T13:00:00Z")])
    assert (await beside.plan_due(planned, limit=100)).ticks == 1
    held.may_go.set()
    assert (await planning).ticks == 1
    assert sorted(await world.runs("schedule_id run_at")) == sorted(
        [(name, 1_767_272_400) for name in ("a", "b")]
    )


async def test_stalled_planner_releases_its_rows_and_commits_nothing(world, monkeypatch):
    """A process that is stopped in the middle of a batch, and woken up later."""
    beside = await world.second()
    await world.define("a")
    world.clock.advance("1h")
    limit = {"idle_in_transaction_session_timeout": "200"}
    begin = database._begin_statement("READ COMMITTED READ WRITE", database.SETTINGS | limit)
    monkeypatch.setattr(database, "BEGIN_WRITE", begin)
    planning, held = await inside_a_batch(world.store, node=world.node, slots=10)

    async def given_back():
        return (await beside.plan_due(planned, limit=100)).ticks

    assert await given_back() == 0
    assert await until(given_back) == 1
    held.may_go.set()
    with pytest.raises(StoreFailed):
        await planning
    assert await world.runs("status leased_by") == [("ENQUEUED", None)]
    assert (await world.tick("1h")).ticks == 1  # it has another connection by now


@pytest.mark.parametrize("limit", [3, 100])
async def test_two_planners_share_due_rows_without_a_gap_or_a_double(world, limit):
    beside = await world.second()
    names = [f"s-{n:03}" for n in range(60)]
    await world.store.upsert([a_schedule(name) for name in names])
    world.clock.advance("1h")

    async def plan_all(store):
        while (await store.plan_due(planned, limit=limit)).ticks:
            pass

    await asyncio.gather(plan_all(world.store), plan_all(beside))
    await plan_all(world.store)  # what the other had in its hands when this one gave up
    assert sorted(await world.runs("schedule_id")) == names


async def test_two_nodes_never_claim_the_same_run(world):
    beside, other = await world.second(), a_node("other")
    await beside.register(other)
    await world.store.upsert([a_schedule(f"s-{n:03}") for n in range(60)])
    await world.tick("1h")
    claimed = []

    async def claim_all(store, node):
        while found := await store.claim(node, limit=7):
            claimed.extend((each.run_id, each.fence) for each in found)

    await asyncio.gather(claim_all(world.store, world.node), claim_all(beside, other))
    await claim_all(beside, other)
    assert len(claimed) == len(set(claimed)) == 60


def until_a_lock_is_waited_for(world):
    """Return when a call waits for a lock."""
    sql = "SELECT 1 FROM pg_locks WHERE NOT granted"
    with psycopg.connect(world.database.url, autocommit=True) as connection:
        await_condition(lambda: connection.execute(sql).fetchone())


async def test_gate_closes_only_after_running_plans_commit(world):
    """What a planner decided meanwhile was decided before the gate was closed."""
    beside = await world.second()
    await world.define("a")
    world.clock.advance("1h")
    planning, held = await inside_a_batch(world.store)
    closing = asyncio.create_task(beside.set_gate(is_open=False))
    await asyncio.to_thread(until_a_lock_is_waited_for, world)
    world.clock.advance("3s")
    held.may_go.set()
    assert (await planning).ticks == 1
    assert await closing
    facts = await beside.facts("a", world.clock.now() // 1000)
    assert facts.gate_closed_at == world.clock.now()


async def test_run_ids_are_unique(world):
    beside = await world.second()
    await world.define()
    stores = [world.store, beside] * 20
    rows = await asyncio.gather(
        *(store.enqueue("report", request_id=f"r{n}") for n, store in enumerate(stores))
    )
    assert len({row.run_id for row in rows}) == len(stores)


async def test_node_with_older_zone_data_plans_nothing(world):
    await world.define()
    world.clock.advance("1h")
    world.database.tamper("UPDATE meta SET value = '9999z' WHERE name = 'tz'")
    found = await world.plan()
    assert (found.ticks, found.is_outdated) == (0, True)
    with pytest.raises(StoreUnusable, match="time zone data 9999z"):
        await world.store.register(a_node("older"))


async def test_newer_zone_data_waits_for_planners_and_then_applies_to_all(world):
    beside = await world.second()
    await world.define(cron="0 * * * *", timezone="Europe/Berlin")
    world.clock.advance("1h")
    world.database.tamper("UPDATE meta SET value = '1999a' WHERE name = 'tz'")
    planning, held = await inside_a_batch(world.store)
    joining = asyncio.create_task(beside.register(a_node("newer")))
    await asyncio.to_thread(until_a_lock_is_waited_for, world)
    assert not joining.done()
    held.may_go.set()
    assert (await planning).ticks == 1
    await joining
    assert (await world.schedule()).next_run_at == 1_767_276_000


# -- nodes that fall silent


async def silent_holder(world, **fields):
    """Have a node with a short lease start a run, and fall silent; return what it held."""
    gone = a_node("gone", lease=5_000)
    await world.store.register(gone)
    await world.define(**fields)
    world.clock.advance("1h")
    await world.store.heartbeat(gone)
    found = await world.store.plan_due(planned, limit=100, node=gone, slots=10)
    (attempt,) = found.attempts
    world.clock.advance(5_001)
    return gone, attempt


async def test_runs_of_a_silent_node_are_decided_by_another(world):
    gone, attempt = await silent_holder(world)
    await world.new_events()
    assert await world.store.rescue(world.node) == RescueResult(lost=1)
    assert await world.store.rescue(world.node) is None
    assert await world.runs("status reason") == [("FAILED", "lost")]
    assert NodeLost("gone", "here", lost=1) in await world.new_events()
    assert await world.end(attempt) == [], "its fence is old"
    assert not (await world.store.heartbeat(gone)).is_known


async def test_node_is_not_silent_before_its_lease_expires(world):
    gone, _ = await silent_holder(world)
    world.clock.step(-2)
    assert await world.store.rescue(world.node) is None
    assert (await world.store.heartbeat(gone)).is_known


async def test_run_of_a_silent_node_blocks_no_other(world):
    """It is decided before the next tick is judged, even before any rescue."""
    await silent_holder(world)
    world.clock.advance("1h")
    await world.plan()
    assert await world.runs("status reason") == [("FAILED", "lost"), ("ENQUEUED", None)]


async def test_silent_node_starts_nothing_once_others_have_decided(world):
    gone, _ = await silent_holder(world)
    await world.store.rescue(world.node)
    await world.store.enqueue("report", request_id="by-hand")
    assert await world.store.claim(gone, limit=9) == []
    world.clock.advance("1h")
    found = await world.store.plan_due(planned, limit=9, node=gone, slots=9)
    assert (found.ticks, list(found.attempts)) == (1, [])


async def test_rescue_skips_locked_nodes_and_loses_nothing(world):
    """A silent node that is just planning keeps its row: it is given up a moment later."""
    gone, _ = await silent_holder(world, overlap="allow")
    world.clock.advance("1h")
    planning, held = await inside_a_batch(world.store, node=gone, slots=10)
    assert await world.store.rescue(world.node) is None
    held.may_go.set()
    assert len((await planning).attempts) == 1
    assert await world.store.rescue(world.node) == RescueResult(lost=2)
    assert await world.runs("status") == ["FAILED", "FAILED"]


async def test_runs_unknown_to_their_node_are_freed(world):
    """It was started by a call whose answer did not come."""
    node = a_node("node", lease=6_000)
    await world.store.register(node)
    await world.store.upsert([a_schedule("known"), a_schedule("unknown")])
    world.clock.advance("1h")
    found = await world.store.plan_due(planned, limit=100, node=node, slots=10)
    known = {(a.run_id, a.fence) for a in found.attempts if a.schedule_id == "known"}
    now = world.clock.now()
    assert await world.store.release_unknown(node, known, before=now) == 0, (
        "it may still be launched"
    )
    assert await world.store.release_unknown(node, known, before=now + 1) == 1
    rows = {row.schedule_id: (row.status, row.attempt, row.leased_by) for row in await world.rows()}
    assert rows == {"known": ("STARTED", 1, "node"), "unknown": ("ENQUEUED", 1, None)}


async def test_unregister_waits_for_calls_of_the_node(world):
    """A call that the node has given up may still be under way, and claim runs for it."""
    leaving = a_node("leaving")
    beside = await world.second()
    await beside.register(leaving)
    await world.define()
    world.clock.advance("1h")
    planning, held = await inside_a_batch(beside, node=leaving, slots=10)
    gone = asyncio.create_task(world.store.unregister(leaving))
    await asyncio.to_thread(until_a_lock_is_waited_for, world)
    assert not gone.done()
    held.may_go.set()
    assert len((await planning).attempts) == 1
    await gone
    assert await world.store.rescue(world.node) == RescueResult(lost=1)
    assert await world.runs("status reason") == [("FAILED", "lost")]


async def test_runs_of_an_unregistered_node_are_decided_at_registration(world):
    await world.going()
    world.database.tamper("DELETE FROM nodes")
    assert await world.store.register(a_node("next")) == RescueResult(lost=1)


async def test_connection_that_breaks_right_after_connecting_fails_the_call(world, monkeypatch):
    monkeypatch.setattr(database.DeadlineCursor, "execute", broken_connection)
    with pytest.raises(StoreFailed, match="does not answer"):
        await PostgresStore.open(world.database.url)


def broken_connection(self, query, params=None, **options):
    raise psycopg.OperationalError("the connection was closed")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_tables_are_created_once_and_commits_are_durable_with_any_settings(world, isolation):
    url = world.database.server.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'"
        )
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    stores = await asyncio.gather(*(PostgresStore.open(url, clock=world.clock) for _ in range(4)))
    (durable,) = await in_transaction(
        stores[0], lambda tx: tx.one("SELECT current_setting('synchronous_commit')")
    )
    for store in stores:
        await store.close()
    world.database.server.drop_database(url)
    assert len({store.store_id for store in stores}) == 1
    assert durable == "on", "a lost commit would be a run that starts twice"


async def test_cached_definitions_are_shared_by_several_threads(world, monkeypatch):
    """One forgets them all while another waits for those that it did not know."""
    known = transaction.TransactionCache()
    monkeypatch.setattr(transaction, "MOST_DEFINITIONS", 0)

    class Slow:
        def all(self, sql, bindings):
            if bindings == (["b"],):
                known.definitions(Slow(), {"c": ("c", 1, 1)})
            return [(name, f"says {name}") for name in bindings[0]]

    known.definitions(Slow(), {"a": ("a", 1, 1)})
    keys = {"a": ("a", 1, 1), "b": ("b", 1, 1)}
    assert known.definitions(Slow(), keys) == {"a": "says a", "b": "says b"}


async def test_node_is_notified_of_a_request_to_stop(world):
    assert await world.store.request_stop([world.node.node_id, "nobody"]) == 1
    assert (await world.store.heartbeat(world.node)).is_stop_requested
    assert [row.is_stopping for row in await world.store.nodes()] == [True]


# -- a server that comes and goes


def end_backends(world):
    """Have the server end every connection to the database."""
    mine = "datname = current_database() AND pid <> pg_backend_pid()"
    world.database.tamper(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")


async def test_idle_connection_that_broke_is_replaced(world):
    await world.define()
    end_backends(world)
    assert await world.store.pause("report")


async def test_connection_that_breaks_during_a_call_fails_only_that_call(world):
    await world.define()
    world.clock.advance("1h")
    planning, held = await inside_a_batch(world.store)
    end_backends(world)
    held.may_go.set()
    with pytest.raises(StoreFailed):
        await planning
    assert (await world.plan()).ticks == 1


async def test_notifications_resume_after_a_broken_connection(world, monkeypatch):
    monkeypatch.setattr(NotifyListener, "RETRY_AFTER", 0.01)
    listens, beside = await world.second(), world.store
    await listens.register(a_node("listens"))
    await world.define()
    for _ in range(3):
        end_backends(world)
        async with asyncio.timeout(5):
            while not await listens.changed_elsewhere():
                await beside.enqueue("report", request_id=uuid4().hex)
                await asyncio.sleep(0.01)
    watched = listens._threads.watch._watched
    assert not any(connection.closed for connection in watched)


async def test_closing_store_blocks_no_other(world):
    """A pending call takes its time, and other work of the program continues."""
    store = await world.second()
    world._opened.remove(store)
    slow = asyncio.create_task(store._threads.use(lambda c: c.execute("SELECT pg_sleep(0.3)")))
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    assert not closing.done(), "it waits for the call"
    await asyncio.gather(closing, slow)


async def test_calls_fail_until_the_server_is_back(world):
    with Server(new_folder()) as server:
        store = await PostgresStore.open(server.new_database(), clock=world.clock)
        await store.upsert([a_schedule("report")])
        server.stop("immediate")
        with pytest.raises(StoreFailed, match="cannot be reached"):
            await store.pause("report")
        server.start()
        assert await store.pause("report")
        await store.close()


async def test_call_to_a_silent_server_times_out(world, monkeypatch):
    monkeypatch.setattr(database, "ANSWER_LIMIT", 0.3)
    monkeypatch.setattr(database.DeadlineWatch, "EVERY", 0.05)
    store = await PostgresStore.open(world.database.url, clock=world.clock)
    began = time.monotonic()
    with pytest.raises(StoreFailed):
        await store._threads.use(lambda c: c.execute("SELECT pg_sleep(5)"))
    assert time.monotonic() - began < 2
    assert await store.schedules() == []
    await store.close()


async def test_unanswered_commit_raises_store_in_doubt(world, monkeypatch):
    """The connection breaks when the commit is on its way: it happened, or it did not."""
    execute = database.DeadlineCursor.execute

    def cut_at_commit(self, query, params=None, **options):
        if query == "COMMIT":
            execute(self, "SELECT 1")
            self.connection.cut()
        return execute(self, query, params, **options)

    monkeypatch.setattr(database.DeadlineCursor, "execute", cut_at_commit)
    with pytest.raises(StoreInDoubt):
        await world.define()
    monkeypatch.undo()
    await world.define()
    assert len(await world.store.schedules()) == 1


async def test_call_in_a_deadlock_is_retried(world, monkeypatch):
    await world.store.upsert([a_schedule("a"), a_schedule("b")])
    calls = []

    def clash_once(tx):
        calls.append(tx)
        if len(calls) == 1:
            raise psycopg.errors.DeadlockDetected("simulated")
        return len(calls)

    assert await in_transaction(world.store, clash_once) == 2


async def test_clock_of_the_store_is_that_of_the_database(world):
    store = await PostgresStore.open(world.database.url)
    await store.upsert([a_schedule("report")])
    (row,) = await store.schedules()
    assert abs(row.created_at - time.time() * 1000) < 5_000
    assert abs(store.clock.now() - time.time() * 1000) < 1_000
    await store.close()


# -- who may use it


async def test_concurrent_first_opens_create_the_tables_once(world):
    url = world.database.server.new_database()
    stores = await asyncio.gather(*(PostgresStore.open(url, clock=world.clock) for _ in range(4)))
    assert len({store.store_id for store in stores}) == 1
    for store in stores:
        await store.close()
    world.database.server.drop_database(url)


async def test_pages_are_ordered_by_bytes_with_any_collation(world):
    """Callers compare names by their bytes: `list_dags` ends where a prefix does."""
    paged = {("documents", "name"), ("schedules", "schedule_id"), ("tokens", "token_id")}
    with psycopg.connect(world.database.url) as connection:
        found = connection.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = 'onbeat' AND collation_name = 'C'"
        ).fetchall()
    assert paged <= set(found)


async def test_tables_of_a_newer_version_are_refused(world):
    world.database.tamper("UPDATE meta SET value = '999' WHERE name = 'schema'")
    with pytest.raises(StoreUnusable, match=rf"newer Onbeat \(schema 999, this version supports {len(MIGRATIONS)}\)"):  # fmt: skip
        await world.second()
    world.database.tamper(f"UPDATE meta SET value = '{len(MIGRATIONS)}' WHERE name = 'schema'")


async def test_user_without_the_right_to_create_the_schema_is_refused(world):
    url = world.database.server.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS guest")
        connection.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreUnusable, match=r'permission denied .*own the schema "onbeat"'):
        await PostgresStore.open(url.replace("onbeat@", "guest@"), clock=world.clock)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA onbeat AUTHORIZATION guest")
    store = await PostgresStore.open(url.replace("onbeat@", "guest@"), clock=world.clock)
    await store.close()
    world.database.server.drop_database(url)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("/onbeat_", "/no_such_"), "does not exist .create what is missing with createdb"),
        (("onbeat@", "nobody_here@"), "does not exist"),
        (("127.0.0.1", "no-such-host.invalid"), "cannot be reached"),
        (("postgresql://", "postgresql://%zz"), "cannot be parsed"),
    ],
)
async def test_wrong_address_is_refused_with_a_hint(world, change, told):
    with pytest.raises((StoreUnusable, StoreFailed), match=told):
        await PostgresStore.open(world.database.url.replace(*change), clock=world.clock)


async def test_closed_port_is_reported_as_unreachable(world):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://ada:s3cret@127.0.0.1:{taken.getsockname()[1]}/onbeat"
        with pytest.raises(StoreFailed, match=r"cannot be reached: .*refused") as refused:
            await PostgresStore.open(url)
    assert "s3cret" not in str(refused.value)
    assert ServerAddress(url).shown == f"postgresql://127.0.0.1:{taken and url.rsplit(':', maxsplit=1)[-1].split('/', maxsplit=1)[0]}/onbeat"  # fmt: skip


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@[::bad/onbeat",
        "postgresql://ada:s3cret%zz@127.0.0.1:1/onbeat",
        "postgresql://ada:s3cret@127.0.0.1:1/onbeat?s3cret=x",
        "postgresql://ada:s3cret@127.0.0.1:1x/onbeat",
        "postgresql://ada:s3cret@127.0.0.1:1/onbeat",
    ],
)
async def test_errors_never_quote_a_password(world, url):
    with pytest.raises((StoreUnusable, StoreFailed)) as refused:
        await PostgresStore.open(url)
    told = str(refused.value)
    assert "s3cret@" not in told
    assert "s3cret%" not in told


async def test_unsupported_server_version_is_refused(world, monkeypatch):
    monkeypatch.setattr(tables, "OLDEST", 99)
    with pytest.raises(StoreUnusable, match=r"is PostgreSQL 1[0-9]: Onbeat requires 99 or newer"):
        await PostgresStore.open(world.database.url)


async def test_text_with_nul_is_stored_with_a_replacement(world):
    await world.end(await world.going(), Succeeded("a\0b"), log_tail="a\0b\ud800")
    row = await world.row()
    assert (row.result, row.log_tail) == ("a\0b", "a\N{SYMBOL FOR NULL}b?")


# -- what time it is


@pytest.fixture
def on_its_own_clock(world, runner):
    """A store that goes by the database's clock."""
    store = runner.run(PostgresStore.open(world.database.url))
    yield store
    runner.run(store.close())


async def test_database_time_is_known_when_the_store_is_open(on_its_own_clock):
    assert abs(on_its_own_clock.clock.now() - time.time() * 1000) < MINUTE


async def test_event_has_the_time_of_its_write_not_of_its_transaction(
    on_its_own_clock,
):
    """Who follows events takes old ones for complete: no row may appear among them."""
    began = on_its_own_clock.clock.now()

    def slowly(tx):
        time.sleep(0.09)
        tx.emit(NodeLost("node-9", "nine"))

    await in_transaction(on_its_own_clock, slowly)
    assert (await on_its_own_clock.events(after=0))[-1].at >= began + 90


async def test_event_has_the_time_of_its_write_on_a_test_clock(world):
    def slowly(tx):
        world.clock.advance("20s")
        tx.emit(NodeLost("node-9", "nine"))

    await in_transaction(world.store, slowly)
    assert (await world.store.events(after=0))[-1].at == world.clock.now()
