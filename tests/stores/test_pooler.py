"""Behind PgBouncer in transaction mode: every transaction may use another server process."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from onbeat.core.runs.run import Succeeded
from onbeat.ports.store import Finished
from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import ManualClock, a_schedule
from tests.postgres import shared_server
from tests.stores.conftest import Postgres, StoreHarness, a_node, planned

pytestmark = pytest.mark.postgres
PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/log
"""


@pytest.fixture(scope="module")
def pooler():
    """Return the port of a pooler before the server that the whole run has."""
    if PGBOUNCER is None:
        assert not os.environ.get("CI"), "CI installs pgbouncer"
        pytest.skip("there is no pgbouncer here")
    server = urlsplit(shared_server().url())
    folder = Path(tempfile.mkdtemp(prefix="onbeat-pooler-"))
    folder.chmod(0o777)
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    config = folder / "config"
    config.write_text(CONFIG.format(host=server.hostname, port=server.port, own=own, folder=folder))
    (folder / "users").write_text('"onbeat" ""\n')
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen([PGBOUNCER, "-q", *user, str(config)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(own, process, folder)
        yield own
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder)


def _wait_for(port, process, folder):
    limit = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < limit, "the pooler does not answer"
            time.sleep(0.02)
        else:
            return


class Pooled(Postgres):
    """A database that is reached through the pooler."""

    def __init__(self, port):
        super().__init__(None)
        self.url = self.url.replace(f":{urlsplit(self.url).port}/", f":{port}/")

    def close(self):
        with psycopg.connect(shared_server().url(), autocommit=True) as connection:
            name = urlsplit(self.url).path[1:]
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def world(runner, pooler):
    database = Pooled(pooler)
    world = StoreHarness(database)
    runner.run(world.open())
    runner.run(world.register())
    yield world
    runner.run(world.close())
    database.close()


async def test_a_pooler_is_recognised(world):
    assert await world.store._threads.use(lambda connection: connection.is_pooled)


async def test_life_cycle_of_a_schedule_works_behind_a_pooler(world):
    for _ in range(12):  # statements that would be prepared by then
        await world.define()
        await world.tick("1h")
        await world.end(await world.start_one())
        await world.store.pause("report")
        await world.store.resume("report")
        await world.store.set_gate(is_open=False)
        await world.store.set_gate(is_open=True)
    assert await world.runs("status") == ["SUCCESS"] * 12
    assert (await world.store.heartbeat(world.node)).is_known


async def test_several_clients_share_the_connections_of_a_pooler(world):
    stores = [world.store, *[await world.second() for _ in range(3)]]
    nodes = [world.node, *[a_node(f"other-{n}") for n in range(3)]]
    for store, node in zip(stores[1:], nodes[1:], strict=True):
        await store.register(node)
    names = [f"s-{n:02}" for n in range(40)]
    await world.store.upsert([a_schedule(name) for name in names])
    world.clock.advance("1h")

    async def work(store, node):
        for _ in range(40):
            found = await store.plan_due(planned, limit=3, node=node, slots=2)
            claimed = await store.announce(node, await store.claim(node, limit=2))
            await store.finish([Finished(a, Succeeded()) for a in (*found.attempts, *claimed)])

    await asyncio.gather(*map(work, stores, nodes))
    assert sorted(await world.runs("schedule_id status")) == [(name, "SUCCESS") for name in names]


async def test_transaction_settings_end_with_the_transaction(world):
    await world.define()
    store = await PostgresStore.open(world.database.url, clock=ManualClock())
    found = await store._threads.use(lambda c: c.execute("SHOW search_path").fetchone())
    assert found == ('"$user", public',)
    await store.close()


async def test_closed_store_leaves_no_listener_on_the_pooler(world):
    """A pooler passes its connections to other clients, which would receive our notifications."""
    store = await world.second()
    await store.register(a_node("other"))
    world._opened.remove(store)
    await store.close()
    with ExitStack() as stack:
        for _ in range(2):  # as many as the pooler has
            connection = stack.enter_context(psycopg.connect(world.database.url))
            assert connection.execute("SELECT pg_listening_channels()").fetchall() == []
