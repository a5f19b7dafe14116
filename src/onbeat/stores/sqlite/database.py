"""One SQLite file: how it is opened, and how calls become transactions.

All writes go through one connection, in BEGIN IMMEDIATE. A thread executes all waiting calls, each
in a savepoint, and commits them together: one wait for the disk, however many calls. Nothing awaits
inside a transaction.
"""

import asyncio
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import apsw

from onbeat.errors import OnbeatError, StoreFailed, StoreUnusable
from onbeat.events import Event
from onbeat.ports.clock import Clock
from onbeat.ports.store import Listener
from onbeat.stores.sql.rows import IGNORES_PAUSE, IS_DETACHED, KEEP, is_claimable
from onbeat.stores.sql.taken_rows import WAITING_COLUMNS, DueRow, State, WaitingRow
from onbeat.stores.sql.transaction import Bindings, Call, Row, Transaction, Values, as_json
from onbeat.stores.sqlite.migrations import MIGRATIONS

APPLICATION = 0x4F4E4254  # marks the file as Onbeat's
MOVED_TO = "SELECT value FROM meta WHERE name = 'moved_to'"  # the new address of its rows
BUSY_LIMIT = 5.0  # seconds that a call waits for another process to finish writing
ROW_COUNTS = (128, 64, 32, 16, 8, 4, 2, 1)  # rows in a statement: few sizes stay prepared
LARGEST_GROUP = 500  # calls in one commit
YIELD_AFTER = 0.02  # seconds of uninterrupted commits until other processes get the lock
YIELD_FOR = 0.001  # seconds
CLOSED = "the store is closed"

T = TypeVar("T")

DUE = """
SELECT d.schedule_id, d.run_at, s.definition, t.decided_until, t.decided_run_at, t.iteration,
       t.runs_used, s.created_at, s.revision, s.user_id, t.spread_until, t.rated, t.happened,
       s.paused
  FROM due d JOIN schedules s USING (schedule_id) JOIN schedule_state t USING (schedule_id)
 WHERE d.due_at <= ?1
 ORDER BY d.due_at, d.schedule_id
 LIMIT ?2
"""

WAITING = f"""
SELECT {WAITING_COLUMNS},
       CASE WHEN r.revision = s.revision THEN s.definition ELSE (
           SELECT p.definition FROM past_definitions p
            WHERE p.schedule_id = r.schedule_id AND p.revision = r.revision AND p.definition <> ''
            LIMIT 1) END,
       CASE WHEN r.revision <> s.revision THEN s.definition END, s.user_id
  FROM schedule_runs r INDEXED BY waiting_runs JOIN schedules s USING (schedule_id)
 WHERE {is_claimable("r.")} AND r.due_at <= ?1
   AND r.needs IN (?2[]) AND (s.paused = 0 OR {IGNORES_PAUSE})
   AND (r.grp IS NULL OR NOT (r.grp IN (?4[])) OR r.{IS_DETACHED}) AND NOT (r.schedule_id IN (?5[]))
   AND (r.deadline_at IS NULL OR r.deadline_at > ?1)
 ORDER BY r.priority DESC, r.due_at, r.run_at, r.schedule_id
 LIMIT ?3
"""


class SqliteTransaction(Transaction):
    """A transaction on SQLite: the only writer, so that there is nothing to lock."""

    __slots__ = ("connection",)
    is_shared = False
    SIZE = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"

    def __init__(self, connection: apsw.Connection, now: int) -> None:
        super().__init__(now)
        self.connection = connection

    def all(self, sql: str, bindings: Bindings = ()) -> list[Row]:
        return self.connection.execute(_in_sqlite(sql), _bound(bindings)).fetchall()

    def one(self, sql: str, bindings: Bindings = ()) -> Row | None:
        return self.connection.execute(_in_sqlite(sql), _bound(bindings)).fetchone()

    def run(self, sql: str, bindings: Bindings = ()) -> int:
        self.connection.execute(_in_sqlite(sql), _bound(bindings))
        return self.connection.changes()

    def many(self, sql: str, values: Values, first: Bindings = ()) -> int:
        # SQLite executes many rows in one step, during which other threads run; with a step for
        # each row, two threads would wait for each other at each of them.
        before = self.connection.total_changes()
        for statement, some in _in_batches(sql, values, first):
            self.connection.execute(statement, some)
        return self.connection.total_changes() - before

    def each(self, sql: str, values: Values, first: Bindings = ()) -> list[Row]:
        found: list[Row] = []
        for statement, some in _in_batches(sql, values, first):
            found += self.connection.execute(statement, some)
        return found

    def hold(self, schedule_ids: Collection[str]) -> None:
        pass

    def hold_definitions(self) -> None:
        pass

    def keep_gate(self) -> None:
        pass

    def hold_gate(self) -> None:
        pass

    def take_due(self, limit: int) -> list[DueRow]:
        return [
            DueRow(schedule_id, run_at, definition, State(*state), paused)
            for schedule_id, run_at, definition, *state, paused in self.all(DUE, (self.now, limit))
        ]

    def take_waiting(
        self, needs: Sequence[str], limit: int, but_groups: Sequence[str], but: Sequence[str]
    ) -> list[WaitingRow]:
        found = self.all(WAITING, (self.now, needs, limit, but_groups, but))
        return [WaitingRow.of_columns(row) for row in found]

    def take_groups(self, names: Sequence[str]) -> dict[str, int]:
        return dict(self.all("SELECT name, places FROM groups WHERE name IN (?1[])", (names,)))

    def take_run_ids(self, n: int) -> Sequence[int]:
        first = int(self.value("SELECT value FROM meta WHERE name = 'next_run_id'") or 1)
        self.run(KEEP, ("next_run_id", first + n))
        return range(first, first + n)

    def leave_out_ids(self, n: int) -> None:
        self.take_run_ids(n)
        self.run("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'events'", (n,))


@cache
def _in_sqlite(sql: str) -> str:
    """Return a statement in SQLite's notation."""
    sql = re.sub(r"\?(\d+)\[\]", r"SELECT value FROM json_each(?\1)", sql)
    sql = re.sub(r"\?(int|text)\b", "?", sql)
    return re.sub(r"\bFOR (KEY SHARE|UPDATE( SKIP LOCKED)?)", "", sql)


def _bound(bindings: Bindings) -> Values:
    """Return the bindings of a statement: a list is bound as JSON."""
    return [as_json(value) if isinstance(value, list) else value for value in bindings]  # type: ignore[misc]


def _in_batches(sql: str, values: Values, first: Bindings) -> Iterator[tuple[str, Bindings]]:
    begin = 0
    for size in ROW_COUNTS:
        statement, width = _for_rows(sql, size, len(first))
        while len(values) - begin >= size * width:
            some = values[begin : begin + size * width]
            yield statement, [*first, *some] if first else some
            begin += size * width


@lru_cache(maxsize=256)
def _for_rows(sql: str, rows: int, first: int) -> tuple[str, int]:
    """Return a statement for this many rows, and how many values each row has.

    Only the first row numbers its values: a `?` without a number follows the highest so far.
    """
    before, row, after = re.split("[{}]", _in_sqlite(sql))
    head, *rest = re.split(r"\?(?!\d)", row)
    numbered = head + "".join(f"?{n}{text}" for n, text in enumerate(rest, first + 1))
    return f"{before}{','.join([numbered] + [row] * (rows - 1))}{after}", len(rest)


class PendingCall(Generic[T]):
    """A call that is to be executed, and its result."""

    __slots__ = ("at", "call", "error", "events", "future", "result")

    def __init__(self, call: Call[T], future: "asyncio.Future[T] | None" = None) -> None:
        self.call, self.future = call, future
        self.result: T | None = None
        self.error: BaseException | None = None
        self.events: list[Event] = []
        self.at = 0  # the `now` of the events

    def answer(self) -> T:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # set if there is no error


class SqliteWorker(Protocol):
    """Executes calls, in threads or in the caller."""

    async def write(self, call: Call[T]) -> T:
        """Execute a call as a transaction, which is durable when this returns."""

    async def read(self, call: Call[T]) -> T:
        """Execute a call that changes nothing, outside of a transaction."""

    async def read_for_engine(self, call: Call[T]) -> T:
        """Execute a call that changes nothing for the engine, without waiting for other reads."""

    async def read_on_writer(self, call: Call[T]) -> T:
        """Execute a call that changes nothing on the writing connection."""

    def close(self) -> None:
        """Execute all pending calls and close."""


class InlineWorker:
    """Executes calls directly in the caller, without threads: for tests and the simulator."""

    def __init__(self, connection: apsw.Connection, clock: Clock, listener: Listener) -> None:
        self._connection, self._clock, self._listener = connection, clock, listener

    async def write(self, call: Call[T]) -> T:
        pending = PendingCall(call)
        commit(self._connection, self._clock, [pending])
        self._listener(pending.at, pending.events)
        return pending.answer()

    async def read(self, call: Call[T]) -> T:
        pending = PendingCall(call)
        execute_reads(self._connection, self._clock, [pending])
        return pending.answer()

    read_for_engine = read_on_writer = read

    def close(self) -> None:
        self._connection.close()


class ThreadedWorker:
    """Executes calls in threads: one writes, others read. `another` opens a reading connection.

    The engine has its own reader, as other reads may take long. A database in memory has one
    connection for everything.
    """

    def __init__(
        self,
        writing: apsw.Connection,
        another: Callable[[], apsw.Connection] | None,
        clock: Clock,
        listener: Listener,
    ) -> None:
        self._another, self._clock, self._listener = another, clock, listener
        self._writer = _ConnectionThread(writing, clock, listener)
        self._readers: dict[str, _ConnectionThread] = {}  # opened when they are needed
        self._is_closed = False

    async def write(self, call: Call[T]) -> T:
        return await self._writer.submit(call, commit)

    async def read(self, call: Call[T]) -> T:
        return await self._reader("clients").submit(call, execute_reads)

    async def read_for_engine(self, call: Call[T]) -> T:
        return await self._reader("engine").submit(call, execute_reads)

    async def read_on_writer(self, call: Call[T]) -> T:
        return await self._writer.submit(call, execute_reads)

    def close(self) -> None:
        self._is_closed = True
        for reader in self._readers.values():
            reader.close()
        self._writer.close()

    def _reader(self, user: str) -> "_ConnectionThread":
        if self._another is None or self._is_closed:
            return self._writer
        if user not in self._readers:
            self._readers[user] = _ConnectionThread(self._another(), self._clock, self._listener)
        return self._readers[user]


Execute = Callable[[apsw.Connection, Clock, "list[PendingCall[Any]]"], None]


class _ConnectionThread:
    """A connection, and the only thread that uses it."""

    def __init__(self, connection: apsw.Connection, clock: Clock, listener: Listener) -> None:
        self._connection, self._clock, self._listener = connection, clock, listener
        self._is_closed, self._closing = False, threading.Lock()
        self._queue: queue.SimpleQueue[tuple[PendingCall[Any], Execute] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._serve, name="onbeat-sqlite", daemon=True)
        self._thread.start()

    async def submit(self, call: Call[T], execute: Execute) -> T:
        pending = PendingCall(call, asyncio.get_running_loop().create_future())
        with self._closing:  # the thread would never execute a call that is queued after its end
            if self._is_closed:
                raise StoreUnusable(CLOSED)
            self._queue.put((pending, execute))
        # Shielded: a caller that is cancelled must not undo what may already be committed.
        return await asyncio.shield(pending.future)  # type: ignore[arg-type]  # it was just made

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        busy_since, last = time.monotonic(), False
        while not last:
            first = self._queue.get()
            waiting = [] if first is None else [first]
            last = first is None
            while not last and len(waiting) < LARGEST_GROUP and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    last = True
                else:
                    waiting.append(following)
            for execute in {execute: None for _, execute in waiting}:
                group = [pending for pending, its_execute in waiting if its_execute is execute]
                try:
                    execute(self._connection, self._clock, group)
                except BaseException as broken:  # noqa: BLE001 - no caller must wait forever
                    for pending in group:
                        pending.error, pending.events = pending.error or broken, []
                self._answer(group)
            if self._queue.empty():
                busy_since = time.monotonic()
            elif time.monotonic() - busy_since > YIELD_AFTER:
                time.sleep(YIELD_FOR)
                busy_since = time.monotonic()

    def _answer(self, group: list[PendingCall[Any]]) -> None:
        first, *_ = group
        assert first.future is not None, "a thread's calls have futures"
        loop = first.future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._settle, group)

    def _settle(self, group: list[PendingCall[Any]]) -> None:
        """Return the results to the callers, then pass the events to the listener.

        A listener that fails must not keep the result of a committed call.
        """
        for pending in group:
            if pending.future is None or pending.future.done():
                continue
            if pending.error is not None:
                pending.future.set_exception(pending.error)
            else:
                pending.future.set_result(pending.result)
        for pending in group:
            if pending.events:
                self._listener(pending.at, pending.events)


def commit(connection: apsw.Connection, clock: Clock, group: list[PendingCall[Any]]) -> None:
    """Execute calls in one transaction. A failed call changes nothing and affects no other."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for pending in group:
                _attempt(connection, clock, pending)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except (apsw.Error, OnbeatError) as broken:
        error = as_store_error(broken)
        for pending in group:
            pending.error, pending.events = pending.error or error, []


def _attempt(connection: apsw.Connection, clock: Clock, pending: PendingCall[Any]) -> None:
    transaction = SqliteTransaction(connection, clock.now())
    connection.execute("SAVEPOINT a_call")
    try:
        pending.result = pending.call(transaction)
        transaction.write_events()
        pending.at, pending.events = transaction.now, transaction.events
    except Exception as broken:
        pending.error = as_store_error(broken)
        if isinstance(pending.error, StoreFailed | StoreUnusable):
            raise pending.error from broken  # the file itself is at fault: undo the whole group
        connection.execute("ROLLBACK TO a_call")
    connection.execute("RELEASE a_call")


def execute_reads(connection: apsw.Connection, clock: Clock, group: list[PendingCall[Any]]) -> None:
    """Execute calls that change nothing."""
    for pending in group:
        try:
            pending.result = pending.call(SqliteTransaction(connection, clock.now()))
        except Exception as broken:  # noqa: BLE001 - raised to the caller
            pending.error = as_store_error(broken)


def data_version(tx: Transaction) -> int:
    """Return a number that changes when another connection commits."""
    return int(tx.value("PRAGMA data_version"))


def as_store_error(broken: Exception) -> Exception:
    """Return the error to raise for an error of SQLite; other errors are returned as they are."""
    match broken:
        case apsw.FullError():
            return StoreFailed("the disk is full: nothing was changed")
        case apsw.BusyError() | apsw.LockedError():
            return StoreFailed(f"another process held the database for more than {BUSY_LIMIT:g} s")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreUnusable(f"the database is damaged: {broken}")
        case apsw.ConnectionClosedError():
            return StoreUnusable(CLOSED)
        case apsw.ReadOnlyError():
            return StoreFailed("the database file or its folder is not writable")
        case apsw.ConstraintError() | apsw.SQLError():
            return broken  # a defect of this program, not a state of the file
        case apsw.Error():
            return StoreFailed(f"SQLite: {broken}")
        case _:
            return broken


def connect(path: Path | None) -> apsw.Connection:
    """Open a file, or memory for None, with the settings that durability depends on."""
    if path is not None and not path.exists():
        _create_privately(path)
    try:
        name = ":memory:" if path is None else str(path)
        connection = apsw.Connection(name, statementcachesize=256)
        connection.set_busy_handler(_BusyHandler())
        _refuse_foreign(connection, path)  # before anything is set that would change the file
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA journal_mode = WAL")
    except apsw.Error as broken:
        raise _unusable(path, broken) from None
    return connection


def migrate(connection: apsw.Connection, path: Path | None) -> str:
    """Migrate the tables to this program's schema, or refuse the file; return the store's id."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _migrate(connection, path)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        found = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchall()
    except apsw.Error as broken:
        raise _unusable(path, broken) from None
    ((store_id,),) = found
    return str(store_id)


def _migrate(connection: apsw.Connection, path: Path | None) -> None:
    version = connection.pragma("user_version")
    if version > len(MIGRATIONS):
        problem = f"{path} was written by a newer Onbeat (schema {version}, this version supports"
        raise StoreUnusable(f"{problem} {len(MIGRATIONS)}): upgrade Onbeat")
    for script in MIGRATIONS[version:]:
        connection.execute(script)
    if version < len(MIGRATIONS):
        connection.pragma("application_id", APPLICATION)
        connection.pragma("user_version", len(MIGRATIONS))


def _refuse_foreign(connection: apsw.Connection, path: Path | None) -> None:
    application = connection.pragma("application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION and tables != (0,):
        hint = "use a separate file for Onbeat"
        raise StoreUnusable(f"{path} is a database of another application ({hint})")


def _create_privately(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise StoreUnusable(f"{path.parent} does not exist (make the folder first)") from None
    except OSError as broken:
        raise StoreUnusable(f"{path} cannot be created: {broken.strerror}") from None


def _unusable(path: Path | None, broken: apsw.Error) -> StoreUnusable:
    match broken:
        case apsw.NotADBError():
            return StoreUnusable(f"{path} is not a database, or is damaged")
        case apsw.CorruptError():
            return StoreUnusable(f"{path} is damaged: {broken} (restore a backup)")
        case apsw.BusyError():
            return StoreUnusable(f"{path} is locked by another process that does not stop writing")
        case apsw.FullError():
            return StoreUnusable(f"{path} cannot be opened: the disk is full")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            if path is not None and path.is_dir():
                return StoreUnusable(f"{path} is a folder (name a file in it)")
            hint = "reading needs write access too, to the file and its folder"
            return StoreUnusable(f"{path} cannot be opened for writing ({hint})")
        case _:
            return StoreUnusable(f"{path}: {broken}")


class _BusyHandler:
    """Try to get the lock every millisecond: SQLite has no queue of waiting processes."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._since = time.monotonic()
        time.sleep(0.001)
        return time.monotonic() - self._since < BUSY_LIMIT
