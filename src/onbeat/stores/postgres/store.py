"""The store on PostgreSQL: `Store`'s contract, for any number of nodes at the same time.

Nodes share the database and nothing else. `now` is the database's, so that a node whose own clock
is wrong fires nothing early.
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

SIZE = 4  # calls at the same time, each with a connection


class PostgresStore(SqlStore):
    """A store that several nodes share. Open it with `open`."""

    is_shared = True

    def __init__(
        self, address: ServerAddress, threads: PostgresWorkers, store_id: str, name: str
    ) -> None:
        super().__init__(threads, threads.clock, store_id)
        self.address = address
        self._threads, self._name = threads, name
        # So that a heartbeat never waits for what else is asked for.
        self._pulse = PostgresWorkers(address, size=1, clock=threads.given_clock)
        self._ear: NotifyListener | None = None

    @classmethod
    async def open(
        cls, url: str, *, clock: Clock | None = None, listener: Listener | None = None
    ) -> "PostgresStore":
        """Reach a database, and bring its tables up to date.

        `clock` replaces the database's, for tests. `listener` is told the events of this object's
        own transactions, once they are durable.
        """
        address, name = ServerAddress(url), str(uuid.uuid4())
        threads = PostgresWorkers(address, size=SIZE, clock=clock, listener=listener, name=name)
        try:
            store_id = await threads.use(lambda connection: prepare(connection, address))
            await threads.read(lambda _: None)  # so that its clock is known before it is asked
        except BaseException:
            threads.close()
            raise
        address.is_proven = True
        return cls(address, threads, store_id, name)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)  # calls that are still under way take their time

    def _close(self) -> None:
        if self._ear is not None:
            self._ear.close()
        self._pulse.close()
        self._threads.close()

    async def hold(self, node: Node) -> None:
        """There is nothing to hold: any number of nodes may join."""

    async def register(self, node: Node) -> RescueResult:
        found = await self._threads.write(nodes.end_orphans)
        while (more := await self.rescue(node)) is not None:
            found += more
        await self._threads.write(zone_data.begin)
        if self._ear is None:
            self._ear = NotifyListener(self.address, self._threads.watch, self._name)
        return await self._threads.write(lambda tx: nodes.register(tx, node, found))

    async def heartbeat(self, node: Node) -> HeartbeatResult:
        return await self._pulse.write(lambda tx: nodes.heartbeat(tx, node))

    async def changed_elsewhere(self) -> bool:
        return self._ear is not None and self._ear.has_heard()

    async def take_in(self, tables: Callable[[], Iterator[Table]]) -> dict[str, int]:
        """Take over all that another store kept, whole or not at all; return how many rows of each.

        A database that has anything in it already is refused.
        """
        return await self._threads.use(lambda connection: import_rows(connection, tables()))
