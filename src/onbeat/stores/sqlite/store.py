"""`SqliteStore`: the store on one SQLite file, with one writing connection in each process.

A file has one node at a time, which holds a lock file beside it; any number of other processes may
open the file as clients, to define, pause, start and read.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from pathlib import Path

import msgspec

from onbeat.errors import StoreHeld, StoreUnusable
from onbeat.events import Event
from onbeat.ports.clock import Clock
from onbeat.ports.store import HeartbeatResult, Listener, Node, RescueResult
from onbeat.stores.sql import nodes
from onbeat.stores.sql.rows import KEEP
from onbeat.stores.sql.store import TABLES, SqlStore, Table
from onbeat.stores.sql.transaction import Row
from onbeat.stores.sqlite.database import (
    MOVED_TO,
    InlineWorker,
    SqliteWorker,
    ThreadedWorker,
    connect,
    data_version,
    migrate,
)


class SqliteStore(SqlStore):
    """A store on one file or in memory. Open it with `open`."""

    is_shared = False

    def __init__(
        self, path: Path | None, worker: SqliteWorker, clock: Clock, store_id: str
    ) -> None:
        super().__init__(worker, clock, store_id)
        self.path = path
        self._worker = worker
        self._lock: int | None = None
        self._file = _identity(path)
        self._data_version: int | None = None

    @classmethod
    async def open(
        cls,
        path: Path | None,
        *,
        clock: Clock,
        inline: bool = False,
        listener: Listener | None = None,
        to_move: bool = False,
    ) -> "SqliteStore":
        """Open a file, which is created if needed, or memory for None; migrate its tables.

        `listener` is called with the events of this object's transactions once they are durable. A
        store that was moved to another database is refused, except with `to_move`.
        """
        writing = connect(path)
        store_id = migrate(writing, path)
        moved = writing.execute(MOVED_TO).fetchall()
        for (address,) in moved if not to_move else ():
            writing.close()
            raise StoreUnusable(f"{path} was moved to {address} (name that with --database)")
        notify = listener or _ignore_events
        if inline:
            return cls(path, InlineWorker(writing, clock, notify), clock, store_id)
        another = partial(connect, path) if path is not None else None
        return cls(path, ThreadedWorker(writing, another, clock, notify), clock, store_id)

    async def close(self) -> None:
        self._worker.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def acquire(self, node: Node) -> None:
        self._take_lock(node)

    async def register(self, node: Node) -> RescueResult:
        self._take_lock(node)
        return await self._worker.write(lambda tx: nodes.register(tx, node, RescueResult()))

    async def record_gap(self, *, after: str = "") -> str | None:
        holder = None if self.path is None else find_lock_holder(self.path)
        if self.path is not None and (holder is None or holder.pid != os.getpid()):
            raise StoreHeld(f"{self.path} is not held by this process (onbeat up --restored)")
        return await super().record_gap(after=after)

    async def heartbeat(self, node: Node) -> HeartbeatResult:
        if _identity(self.path) != self._file:
            problem = f"{self.path} was deleted or replaced: everything written to it is lost"
            raise StoreUnusable(f"{problem} (restart on the right file)")
        return await super().heartbeat(node)

    async def take_back(self) -> None:
        """Make this store usable again after a move that failed."""
        delete = "DELETE FROM meta WHERE name = 'moved_to'"
        await self._worker.write(lambda tx: tx.run(delete))

    def tables(self, *, moved_to: str) -> Iterator[Table]:
        """Yield all tables; then mark the store as moved, so that it can no longer be opened.

        The caller has acquired the store.
        """
        assert self.path is not None, "a store in memory cannot be moved"
        with closing(connect(self.path)) as connection:
            for name in TABLES:
                found = connection.execute("SELECT name FROM pragma_table_info(?)", (name,))
                columns = [str(column) for (column,) in found]
                rows = connection.execute(f"SELECT {', '.join(columns)} FROM {name}")
                yield name, columns, self._with_absolute_sources(name, columns, rows)
            connection.execute(KEEP, ("moved_to", moved_to))

    def _with_absolute_sources(
        self, name: str, columns: list[str], rows: Iterable[Row]
    ) -> Iterator[Row]:
        """Yield rows for another database: relative paths of source files become absolute."""
        at = columns.index("source") if name == "schedules" else None
        for row in rows:
            file = None if at is None or self.path is None else self.path.parent / str(row[at])
            if at is not None and file is not None and row[at] and file.is_file():
                yield (*row[:at], str(file.resolve()), *row[at + 1 :])
            else:
                yield row

    async def changed_elsewhere(self) -> bool:
        before, self._data_version = (
            self._data_version,
            await self._worker.read_on_writer(data_version),
        )
        return before is not None and before != self._data_version

    def _take_lock(self, node: Node) -> None:
        """Lock the lock file, and write the node into it; raise StoreHeld if it is locked."""
        if self.path is None or self._lock is not None:
            return
        try:
            lock = os.open(lock_path(self.path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as broken:
            problem = f"{lock_path(self.path)} cannot be opened: {broken.strerror}"
            raise StoreUnusable(problem) from None
        if not _locked(lock):
            os.close(lock)
            holder = find_lock_holder(self.path)
            who = f"{holder.name}, process {holder.pid}" if holder is not None else "another node"
            raise StoreHeld(f"{self.path} is in use by {who} (stop it: onbeat down)") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(LockHolder(os.getpid(), node.name, node.node_id)), 0)
        self._lock = lock


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return device and inode of the file that a path names now, if any."""
    try:
        found = path.stat() if path is not None else None
    except FileNotFoundError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _locked(lock: int) -> bool:
    """Try to lock a file, a few times: `find_lock_holder` has the lock for a moment."""
    for _ in range(10):
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except OSError:
            time.sleep(0.01)
        else:
            return True
    return False


class LockHolder(msgspec.Struct, frozen=True):
    """The node that holds a file."""

    pid: int
    name: str
    node_id: str


def lock_path(path: Path) -> Path:
    """Return the path of the lock file."""
    return path.with_name(f"{path.name}.lock")


def find_lock_holder(path: Path) -> LockHolder | None:
    """Return the node that holds the lock of a file now, or None."""
    try:
        lock = os.open(lock_path(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except OSError:
        try:
            return msgspec.json.decode(os.pread(lock, 4096, 0), type=LockHolder)
        except msgspec.MsgspecError:
            return None
    else:
        return None
    finally:
        os.close(lock)


def _ignore_events(at: int, events: Sequence[Event]) -> None:
    """Do nothing: the listener if none is given."""
