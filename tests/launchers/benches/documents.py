"""The stores of a bench, and what a node has recorded in them."""

from onbeat.app.stores import SystemClock
from onbeat.stores.sqlite.store import SqliteStore


class Stores:
    """The stores that the nodes of a bench open on one file."""

    def __init__(self, folder):
        self._path, self._open = folder / "onbeat.db", []

    async def new(self):
        store = await SqliteStore.open(self._path, clock=SystemClock())
        self._open.append(store)
        return store

    async def document(self, kind, name):
        """Return the body of a document, which any node may have stored; None: there is none."""
        row = await (self._open[0] if self._open else await self.new()).kept(kind, name)
        return None if row is None else row.body

    async def close(self):
        while self._open:
            await self._open.pop().close()
