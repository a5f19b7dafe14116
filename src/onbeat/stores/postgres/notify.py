"""Hints from other nodes: they are quick, and may get lost."""

import threading
from contextlib import suppress

import psycopg

from onbeat.errors import StoreFailed, StoreUnusable
from onbeat.stores.postgres.database import (
    CHANNEL,
    Connection,
    DeadlineWatch,
    PooledConnection,
    ServerAddress,
)


class NotifyListener:
    """A thread that hears when another node says that there may be something to do."""

    AGAIN = 1.0  # seconds until it tries again to listen

    def __init__(self, address: ServerAddress, watch: DeadlineWatch, name: str) -> None:
        self._address, self._watch, self._name = address, watch, name
        self._heard, self._stopped = threading.Event(), threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="onbeat-listen", daemon=True)
        self._thread.start()

    def has_heard(self) -> bool:
        """Return whether there was a hint since this was last asked."""
        if not self._heard.is_set():
            return False
        self._heard.clear()  # one that comes just now is answered for as well
        return True

    def close(self) -> None:
        self._stopped.set()
        if self._connection is not None:
            self._connection.cut()
        self._thread.join()

    def _run(self) -> None:
        lane = PooledConnection(self._address, self._watch)
        while not self._stopped.is_set():
            with suppress(psycopg.Error, StoreFailed, StoreUnusable):
                lane.use(self._listen)
            self._stopped.wait(self.AGAIN)
        lane.close()

    def _listen(self, connection: Connection) -> None:
        if connection.is_pooled:
            self._stopped.wait()  # a pooler lets nobody listen: looking now and then has to do
            return
        self._connection = connection
        connection.execute(f"LISTEN {CHANNEL}")
        while not self._stopped.is_set():
            for hint in connection.notifies(timeout=1.0):
                if hint.payload != self._name:
                    self._heard.set()
