"""A node whose database is lost: it keeps running, whichever statement fails and however."""

import asyncio
import re
from collections import Counter, defaultdict

import psycopg
import pytest
from psycopg import errors

from onbeat import Onbeat
from onbeat.engine import store_retry
from onbeat.errors import StoreFailed, StoreUnusable
from onbeat.events import RunStarted
from onbeat.stores.postgres import database
from onbeat.testing import a_schedule
from tests.given_settings import given_settings
from tests.inside import engine_of

RUNS = 40  # manual ones, besides a tick each second


def admin_shutdown():
    return errors.AdminShutdown("terminating connection due to administrator command")


def server_closed():
    return psycopg.OperationalError("server closed the connection unexpectedly")


def connection_closed():
    return psycopg.OperationalError("the connection is closed")


def connection_timeout():
    return errors.ConnectionTimeout("connection timeout expired")


def interface_error():
    return psycopg.InterfaceError("the connection is closed")


def too_many_files():
    return OSError(24, "Too many open files")


FAULTS = (
    admin_shutdown,
    server_closed,
    connection_closed,
    connection_timeout,
    interface_error,
    too_many_files,
)
# Whether the statement was executed before that, and whether the connection is gone by then.
WAYS = [
    *((fault, False, True) for fault in FAULTS),
    (server_closed, True, True),
    (admin_shutdown, True, False),
]


class Faulty:
    """Has each statement fail in each way, one way at a time, until all were tried on it."""

    def __init__(self, monkeypatch, ways):
        self._execute, self._ways = database.DeadlineCursor.execute, ways
        self._left = defaultdict(lambda: list(self._ways))
        self.is_on, self.hit = False, Counter()
        self.statements = self._left.keys()
        faulty = self

        def execute(cursor, query, params=None, **options):
            return faulty._do(cursor, query, params, options)

        monkeypatch.setattr(database.DeadlineCursor, "execute", execute)

    def _do(self, cursor, query, params, options):
        ways = self._left[re.sub(r"\s+", " ", str(query))] if self.is_on else []
        if not ways:
            return self._execute(cursor, query, params, **options)
        fault, is_done, is_gone = ways.pop()
        self.hit[fault.__name__] += 1
        if is_done:
            self._execute(cursor, query, params, **options)
        if is_gone:
            cursor.connection.close()
        raise fault()


def a_beat(url, **settings):
    given = {"lease": 3_000, "roles": ("plan", "run"), **settings}
    return Onbeat(settings=given_settings(database=url, **given))


async def surely(call):
    """Ask until it is answered, as a client would."""
    for _ in range(10_000):
        try:
            return await call()
        except StoreFailed:
            await asyncio.sleep(0.001)
    raise AssertionError("it was never answered")


async def until(reached, *, longest=60.0):
    limit = asyncio.get_running_loop().time() + longest
    while not await reached():
        assert asyncio.get_running_loop().time() < limit, "it never came to that"
        await asyncio.sleep(0.02)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(store_retry, "FIRST_BACKOFF", 0.001)
    monkeypatch.setattr(store_retry, "LONGEST_BACKOFF", 0.01)
    monkeypatch.setattr("onbeat.engine.lease.HEARTBEATS", 300)
    monkeypatch.setattr("onbeat.engine.node.PRUNE_EVERY", 0.1)
    monkeypatch.setattr("onbeat.app.onbeat.START_LIMIT", 60.0)


def test_node_survives_every_fault_at_every_statement(postgres_url, monkeypatch, quick):
    called = Counter()

    async def work(run):
        called[run.run_id, run.attempt] += 1

    async def story():
        faulty = Faulty(monkeypatch, WAYS)
        beat = a_beat(postgres_url)
        beat.register("work", work)
        faulty.is_on = True  # from the first statement of the start on
        async with beat:
            target = {"python": "work"}
            schedules = [a_schedule("ticks", every="1s", run=target, overlap="queue")]
            schedules += [a_schedule(f"job-{n}", every="1d", run=target) for n in range(4)]
            await surely(lambda: beat.define(*schedules))
            for n in range(RUNS):
                asked = f"request-{n}"
                await surely(lambda asked=asked, n=n: beat.start(f"job-{n % 4}", request_id=asked))

            async def is_over():
                rows = await surely(lambda: beat.runs(limit=10_000))
                by_hand = [row for row in rows if row.request_id]
                ticks = [row for row in rows if not row.request_id and row.status == "SUCCESS"]
                ended = sum(row.finished_at is not None for row in by_hand)
                return ended == RUNS and len(ticks) >= 2

            await until(is_over)
            faulty.is_on = False
            assert not beat._runtime.ended.done(), "the node ended by itself"
            assert not engine_of(beat).failed.done()
            rows = await beat.runs(limit=10_000)
            told = await beat.service.events(after=0, limit=100_000)
        return rows, faulty, [row.event for row in told]

    rows, faulty, told = asyncio.run(story())
    hit = faulty.hit
    assert len(faulty.statements) > 60, "the whole life of a node was covered"
    assert hit.keys() == {fault.__name__ for fault in FAULTS}
    assert sorted(row.request_id for row in rows if row.request_id) == sorted(
        f"request-{n}" for n in range(RUNS)
    )
    ended = Counter(row.status for row in rows if row.request_id)
    assert ended == {"SUCCESS": RUNS}
    assert max(called.values()) == 1, "an attempt was launched twice"
    assert called.keys() >= {(row.run_id, row.attempt) for row in rows if row.status == "SUCCESS"}
    announced = Counter((e.run_id, e.attempt) for e in told if isinstance(e, RunStarted))
    assert max(announced.values()) == 1, "an attempt was announced twice"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_start_fails_with_the_last_error_after_its_time_limit(
    postgres_url, monkeypatch, quick, fault
):
    monkeypatch.setattr("onbeat.app.onbeat.START_LIMIT", 0.1)

    async def story():
        faulty = Faulty(monkeypatch, [(fault, False, True)] * 1_000_000)
        faulty.is_on = True
        with pytest.raises(StoreFailed):
            async with a_beat(postgres_url):
                raise AssertionError("it came up")
        return faulty.hit.total()

    assert asyncio.run(story()) > 1, "it tried once only"


def test_refused_password_ends_a_start_but_not_a_running_node():
    refused = psycopg.OperationalError('FATAL:  password authentication failed for user "onbeat"')
    address = database.ServerAddress("postgresql://onbeat@127.0.0.1/onbeat")
    assert isinstance(address._unreachable(refused), StoreUnusable)
    address.is_proven = True
    assert type(address._unreachable(refused)) is StoreFailed


@pytest.mark.parametrize(
    "kind", [errors.InsufficientPrivilege, errors.InvalidSchemaName, errors.UndefinedTable]
)
def test_lost_tables_do_not_end_a_running_node(kind):
    assert not isinstance(database.as_store_error(kind("gone")), StoreFailed)
    assert type(database.as_store_error(kind("gone"), is_proven=True)) is StoreFailed


def test_database_clock_never_moves_backward_between_responses():
    clock = database.DatabaseClock()
    clock.WINDOW = 0.0  # each answer begins a new window
    clock.see(1_000_000)
    first = clock.now()
    for _ in range(100):
        clock.see(1_000_000)
        assert clock.now() >= first
