"""LISTEN/NOTIFY: hints from other nodes, which are fast and may get lost."""

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
    """A thread that is notified when another node has written something to act on."""

    RETRY_AFTER = 1.0  # seconds

    def __init__(self, address: ServerAddress, watch: DeadlineWatch, name: str) -> None:
        self._address, self._watch, self._name = address, watch, name
        self._notified, self._stopped = threading.Event(), threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="onbeat-listen", daemon=True)
        self._thread.start()

    def was_notified(self) -> bool:
        """Return whether a notification came since the last call."""
        if not self._notified.is_set():
            return False
        self._notified.clear()  # a notification at this moment is covered by this answer
        return True

    def close(self) -> None:
        self._stopped.set()
        if self._connection is not None:
            self._connection.cut()
        self._thread.join()

    def _run(self) -> None:
        pooled = PooledConnection(self._address, self._watch)
        while not self._stopped.is_set():
            with suppress(psycopg.Error, StoreFailed, StoreUnusable):
                pooled.use(self._listen)
            self._stopped.wait(self.RETRY_AFTER)
        pooled.close()

    def _listen(self, connection: Connection) -> None:
        if connection.is_pooled:
            self._stopped.wait()  # LISTEN does not work through a pooler: the engine polls instead
            return
        self._connection = connection
        connection.execute(f"LISTEN {CHANNEL}")
        while not self._stopped.is_set():
            for hint in connection.notifies(timeout=1.0):
                if hint.payload != self._name:
                    self._notified.set()
