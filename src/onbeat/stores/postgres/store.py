"""`PostgresStore`: the store on PostgreSQL, for any number of nodes.

Nodes share the database and nothing else. `now` is the database's time, so that a node with a wrong
clock fires nothing early.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator

from onbeat.ports.clock import Clock
from onbeat.ports.store import HeartbeatResult, Listener, Node, RescueResult
from onbeat.stores.postgres.database import PostgresWorkers, ServerAddress
from onbeat.stores.postgres.import_sqlite import import_rows
from onbeat.stores.postgres.notify import NotifyListener
from onbeat.stores.postgres.tables import prepare
from onbeat.stores.sql import nodes, zone_data
from onbeat.stores.sql.store import SqlStore, Table

SIZE = 4  # concurrent calls, each with a connection


class PostgresStore(SqlStore):
    """A store that several nodes share. Open it with `open`."""

    is_shared = True

    def __init__(
        self, address: ServerAddress, threads: PostgresWorkers, store_id: str, name: str
    ) -> None:
        super().__init__(threads, threads.clock, store_id)
        self.address = address
        self._threads, self._name = threads, name
        # Separate, so that a heartbeat never waits for other calls.
        self._heartbeat_worker = PostgresWorkers(address, size=1, clock=threads.clock_override)
        self._notify_listener: NotifyListener | None = None

    @classmethod
    async def open(
        cls, url: str, *, clock: Clock | None = None, listener: Listener | None = None
    ) -> "PostgresStore":
        """Connect to a database and migrate its tables.

        `clock` replaces the database's, for tests. `listener` is called with the events of this
        object's transactions once they are durable.
        """
        address, name = ServerAddress(url), str(uuid.uuid4())
        threads = PostgresWorkers(address, size=SIZE, clock=clock, listener=listener, name=name)
        try:
            store_id = await threads.use(lambda connection: prepare(connection, address))
            await threads.read(lambda _: None)  # so that the database's clock is known
        except BaseException:
            threads.close()
            raise
        address.is_proven = True
        return cls(address, threads, store_id, name)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)  # pending calls may take a while

    def _close(self) -> None:
        if self._notify_listener is not None:
            self._notify_listener.close()
        self._heartbeat_worker.close()
        self._threads.close()

    async def acquire(self, node: Node) -> None:
        """Do nothing: any number of nodes may join."""

    async def register(self, node: Node) -> RescueResult:
        found = await self._threads.write(nodes.end_orphans)
        while (more := await self.rescue(node)) is not None:
            found += more
        await self._threads.write(zone_data.begin)
        if self._notify_listener is None:
            self._notify_listener = NotifyListener(self.address, self._threads.watch, self._name)
        return await self._threads.write(lambda tx: nodes.register(tx, node, found))

    async def heartbeat(self, node: Node) -> HeartbeatResult:
        return await self._heartbeat_worker.write(lambda tx: nodes.heartbeat(tx, node))

    async def changed_elsewhere(self) -> bool:
        return self._notify_listener is not None and self._notify_listener.was_notified()

    async def import_tables(self, tables: Callable[[], Iterator[Table]]) -> dict[str, int]:
        """Import all tables of another store in one transaction; return the rows of each.

        A database that is not empty is refused.
        """
        return await self._threads.use(lambda connection: import_rows(connection, tables()))
