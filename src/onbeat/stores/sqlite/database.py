"""One SQLite file: how it is opened, and how calls become transactions.

Everything that writes goes through one connection, in BEGIN IMMEDIATE. A thread takes all calls
that wait, each in its own savepoint, and commits them as one: one wait for the disk, however many
calls. Nothing awaits inside a transaction.
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
from onbeat.stores.sql.rows import GOES_ON, KEEP
from onbeat.stores.sql.transaction import Bindings, Call, Row, Transaction, Values, as_json
from onbeat.stores.sqlite.migrations import MIGRATIONS

APPLICATION = 0x4F4E4254  # marks the file as Onbeat's
BUSY_LIMIT = 5.0  # seconds that a call waits for another process to finish writing
SETS = (128, 64, 32, 16, 8, 4, 2, 1)  # rows in a statement: few sizes, each stays prepared
LARGEST_GROUP = 500  # calls in one commit
BREATH = 0.001  # a pause after a long stretch of commits lets other processes have the lock
LONG_STRETCH = 0.02

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
SELECT r.run_id, r.schedule_id, r.run_at, r.due_at, r.attempt, r.fence, r.request_id,
       r.triggered_by, r.iteration, r.tick_count, r.first_run_at, r.inputs, r.created_at,
       r.deferrals, r.deadline_at, r.grp, r.rendered, r.reason = 'lost',
       {GOES_ON}, r.end_asked_at IS NOT NULL,
       CASE WHEN r.revision = s.revision THEN s.definition ELSE (
           SELECT p.definition FROM past_definitions p
            WHERE p.schedule_id = r.schedule_id AND p.revision = r.revision AND p.definition <> ''
            LIMIT 1) END,
       r.revision, CASE WHEN r.revision <> s.revision THEN s.definition END, s.user_id
  FROM schedule_runs r INDEXED BY waiting_runs JOIN schedules s USING (schedule_id)
 WHERE r.status = 'ENQUEUED' AND r.leased_by IS NULL AND r.blocked_by IS NULL AND r.due_at <= ?1
   AND r.needs IN (?2[]) AND (
        s.paused = 0 OR r.request_id <> '' OR r.triggered_by = 'backfill' OR {GOES_ON})
   AND (r.grp IS NULL OR NOT (r.grp IN (?4[])) OR {GOES_ON}) AND NOT (r.schedule_id IN (?5[]))
   AND (r.deadline_at IS NULL OR r.deadline_at > ?1)
 ORDER BY r.priority DESC, r.due_at, r.run_at, r.schedule_id
 LIMIT ?3
"""


class SqliteTransaction(Transaction):
    """What SQLite adds: whoever writes is alone, so that there is nothing to be held."""

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
        # SQLite takes a whole set in one step, during which other threads run; with a step a row,
        # two threads would wait for each other at each of them.
        before = self.connection.total_changes()
        for statement, some in _in_sets(sql, values, first):
            self.connection.execute(statement, some)
        return self.connection.total_changes() - before

    def each(self, sql: str, values: Values, first: Bindings = ()) -> list[Row]:
        found: list[Row] = []
        for statement, some in _in_sets(sql, values, first):
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

    def take_due(self, limit: int) -> list[Row]:
        return self.all(DUE, (self.now, limit))

    def take_waiting(
        self, needs: Sequence[str], limit: int, but_groups: Sequence[str], but: Sequence[str]
    ) -> list[Row]:
        return self.all(WAITING, (self.now, needs, limit, but_groups, but))

    def take_groups(self, names: Sequence[str]) -> dict[str, int]:
        return dict(self.all("SELECT name, places FROM groups WHERE name IN (?1[])", (names,)))

    def take_run_ids(self, n: int) -> Sequence[int]:
        row = self.one("SELECT value FROM meta WHERE name = 'next_run_id'")
        first = 1 if row is None else int(row[0])
        self.run(KEEP, ("next_run_id", first + n))
        return range(first, first + n)

    def leave_out_ids(self, n: int) -> None:
        self.take_run_ids(n)
        self.run("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = 'events'", (n,))


@cache
def _in_sqlite(sql: str) -> str:
    """Return a statement as SQLite reads it."""
    sql = re.sub(r"\?(\d+)\[\]", r"SELECT value FROM json_each(?\1)", sql)
    sql = re.sub(r"\?(int|text)\b", "?", sql)
    return re.sub(r"\bFOR (KEY SHARE|UPDATE( SKIP LOCKED)?)", "", sql)


def _bound(bindings: Bindings) -> Values:
    """Return what a statement binds: a list is bound as JSON."""
    return [as_json(value) if isinstance(value, list) else value for value in bindings]  # type: ignore[misc]


def _in_sets(sql: str, values: Values, first: Bindings) -> Iterator[tuple[str, Bindings]]:
    begin = 0
    for size in SETS:
        statement, width = _for_rows(sql, size, len(first))
        while len(values) - begin >= size * width:
            some = values[begin : begin + size * width]
            yield statement, [*first, *some] if first else some
            begin += size * width


@lru_cache(maxsize=256)
def _for_rows(sql: str, rows: int, first: int) -> tuple[str, int]:
    """Return a statement for so many rows, and how many values each has.

    Only the first row tells their numbers: a `?` without one is the next after the highest so far.
    """
    before, row, after = re.split("[{}]", _in_sqlite(sql))
    begins, *rest = re.split(r"\?(?!\d)", row)
    numbered = begins + "".join(f"?{n}{text}" for n, text in enumerate(rest, first + 1))
    return f"{before}{','.join([numbered] + [row] * (rows - 1))}{after}", len(rest)


class PendingCall(Generic[T]):
    """A call, and what came of it."""

    __slots__ = ("at", "call", "error", "events", "future", "result")

    def __init__(self, call: Call[T], future: "asyncio.Future[T] | None" = None) -> None:
        self.call, self.future = call, future
        self.result: T | None = None
        self.error: BaseException | None = None
        self.events: list[Event] = []
        self.at = 0  # the `now` of what they tell

    def answer(self) -> T:
        """Return the result, or raise what went wrong."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # it is set when there is no error


class SqliteWorker(Protocol):
    """Who executes calls: threads of their own, or whoever asks."""

    async def write(self, call: Call[T]) -> T:
        """Do a call as a transaction that is durable when this returns."""

    async def read(self, call: Call[T]) -> T:
        """Do a call that changes nothing, outside of a transaction."""

    async def glance(self, call: Call[T]) -> T:
        """Do the same for the engine, which waits for no reader."""

    async def peek(self, call: Call[T]) -> T:
        """Do the same on the connection that writes."""

    def close(self) -> None:
        """End, with everything done that was asked for."""


class Inline:
    """Calls are done at once by whoever asks: for tests and the simulator, without threads."""

    def __init__(self, connection: apsw.Connection, clock: Clock, listener: Listener) -> None:
        self._connection, self._clock, self._listener = connection, clock, listener

    async def write(self, call: Call[T]) -> T:
        asked = PendingCall(call)
        commit(self._connection, self._clock, [asked])
        self._listener(asked.at, asked.events)
        return asked.answer()

    async def read(self, call: Call[T]) -> T:
        asked = PendingCall(call)
        look(self._connection, self._clock, [asked])
        return asked.answer()

    glance = peek = read

    def close(self) -> None:
        self._connection.close()


class Threaded:
    """One thread writes, and others read, if more connections can be had: `another` opens one.

    The engine has a reader of its own: what people ask for may take long.
    """

    def __init__(
        self,
        writing: apsw.Connection,
        another: Callable[[], apsw.Connection] | None,
        clock: Clock,
        listener: Listener,
    ) -> None:
        self._another, self._clock, self._listener = another, clock, listener
        self._writer = _ReaderPool(writing, clock, listener)
        self._readers: dict[str, _ReaderPool] = {}  # opened when they are needed

    async def write(self, call: Call[T]) -> T:
        return await self._writer.ask(call, commit)

    async def read(self, call: Call[T]) -> T:
        return await self._reader("people").ask(call, look)

    async def glance(self, call: Call[T]) -> T:
        return await self._reader("engine").ask(call, look)

    async def peek(self, call: Call[T]) -> T:
        return await self._writer.ask(call, look)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._writer.close()

    def _reader(self, whose: str) -> "_ReaderPool":
        if self._another is None:
            return self._writer
        if whose not in self._readers:
            self._readers[whose] = _ReaderPool(self._another(), self._clock, self._listener)
        return self._readers[whose]


Way = Callable[[apsw.Connection, Clock, "list[PendingCall[Any]]"], None]


class _ReaderPool:
    """A connection and the thread that has it to itself."""

    def __init__(self, connection: apsw.Connection, clock: Clock, listener: Listener) -> None:
        self._connection, self._clock, self._listener = connection, clock, listener
        self._asked: queue.SimpleQueue[tuple[PendingCall[Any], Way] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="onbeat-sqlite", daemon=True)
        self._thread.start()

    async def ask(self, call: Call[T], way: Way) -> T:
        asked = PendingCall(call, asyncio.get_running_loop().create_future())
        self._asked.put((asked, way))
        # Shielded: a caller that is cancelled must not undo what may already be committed.
        return await asyncio.shield(asked.future)  # type: ignore[arg-type]  # it was just made

    def close(self) -> None:
        self._asked.put(None)
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        busy_since, last = time.monotonic(), False
        while not last:
            first = self._asked.get()
            waiting = [] if first is None else [first]
            last = first is None
            while not last and len(waiting) < LARGEST_GROUP and not self._asked.empty():
                following = self._asked.get()
                if following is None:
                    last = True
                else:
                    waiting.append(following)
            for way in {way: None for _, way in waiting}:
                group = [asked for asked, its_way in waiting if its_way is way]
                try:
                    way(self._connection, self._clock, group)
                except BaseException as broken:  # noqa: BLE001 - whoever asked must not wait for ever
                    for asked in group:
                        asked.error, asked.events = asked.error or broken, []
                self._answer(group)
            if self._asked.empty():
                busy_since = time.monotonic()
            elif time.monotonic() - busy_since > LONG_STRETCH:
                time.sleep(BREATH)
                busy_since = time.monotonic()

    def _answer(self, group: list[PendingCall[Any]]) -> None:
        assert group[0].future is not None, "a lane's calls have futures"
        loop = group[0].future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._settle, group)

    def _settle(self, group: list[PendingCall[Any]]) -> None:
        for asked in group:
            if asked.events:
                self._listener(asked.at, asked.events)
            if asked.future is None or asked.future.done():
                continue
            if asked.error is not None:
                asked.future.set_exception(asked.error)
            else:
                asked.future.set_result(asked.result)


def commit(connection: apsw.Connection, clock: Clock, group: list[PendingCall[Any]]) -> None:
    """Do calls in one transaction. One that fails changes nothing, and does not hurt the others."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for asked in group:
                _attempt(connection, clock, asked)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except (apsw.Error, OnbeatError) as broken:
        told = as_store_error(broken)
        for asked in group:
            asked.error, asked.events = asked.error or told, []


def _attempt(connection: apsw.Connection, clock: Clock, asked: PendingCall[Any]) -> None:
    transaction = SqliteTransaction(connection, clock.now())
    connection.execute("SAVEPOINT a_call")
    try:
        asked.result = asked.call(transaction)
        transaction.write_events()
        asked.at, asked.events = transaction.now, transaction.events
    except Exception as broken:
        asked.error = as_store_error(broken)
        if isinstance(asked.error, StoreFailed | StoreUnusable):
            raise asked.error from broken  # the file itself: nothing of the group can be trusted
        connection.execute("ROLLBACK TO a_call")
    connection.execute("RELEASE a_call")


def look(connection: apsw.Connection, clock: Clock, group: list[PendingCall[Any]]) -> None:
    """Do calls that change nothing."""
    for asked in group:
        try:
            asked.result = asked.call(SqliteTransaction(connection, clock.now()))
        except Exception as broken:  # noqa: BLE001 - it is raised where it was asked
            asked.error = as_store_error(broken)


def data_version(tx: Transaction) -> int:
    """Return a number that changes when another connection commits."""
    row = tx.one("PRAGMA data_version")
    assert row is not None, "the pragma has a row"
    return int(row[0])


def as_store_error(broken: Exception) -> Exception:
    """Return what a caller is to see of an error of SQLite; others are left as they are."""
    match broken:
        case apsw.FullError():
            return StoreFailed("the disk is full: nothing was changed")
        case apsw.BusyError() | apsw.LockedError():
            return StoreFailed("another process held the database for more than 5 seconds")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreUnusable(f"the database is damaged: {broken}")
        case apsw.ReadOnlyError():
            return StoreFailed("the database, or its folder, cannot be written to")
        case apsw.ConstraintError() | apsw.SQLError():
            return broken  # a rule of ours was broken: that is a defect, not a state of the file
        case apsw.Error():
            return StoreFailed(f"SQLite: {broken}")
        case _:
            return broken


def connect(path: Path | None) -> apsw.Connection:
    """Open a file, or memory, with the settings that durability rests on."""
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
    """Bring the tables up to this program's, or refuse the file; return the store's own id."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _migrate(connection, path)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        row = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchone()
    except apsw.Error as broken:
        raise _unusable(path, broken) from None
    assert row is not None, "the first migration makes it"
    return str(row[0])


def _migrate(connection: apsw.Connection, path: Path | None) -> None:
    version = connection.pragma("user_version")
    if version > len(MIGRATIONS):
        problem = f"{path} was written by a newer Onbeat (schema {version}, this one knows"
        raise StoreUnusable(f"{problem} {len(MIGRATIONS)}): upgrade this one")
    for script in MIGRATIONS[version:]:
        connection.execute(script)
    if version < len(MIGRATIONS):
        connection.pragma("application_id", APPLICATION)
        connection.pragma("user_version", len(MIGRATIONS))


def _refuse_foreign(connection: apsw.Connection, path: Path | None) -> None:
    application = connection.pragma("application_id")
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION and tables != (0,):
        hint = "give Onbeat a file of its own"
        raise StoreUnusable(f"{path} is a database of something else ({hint})")


def _create_privately(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise StoreUnusable(f"{path.parent} does not exist (make the folder first)") from None
    except OSError as broken:
        raise StoreUnusable(f"{path} cannot be made: {broken.strerror}") from None


def _unusable(path: Path | None, broken: apsw.Error) -> StoreUnusable:
    match broken:
        case apsw.NotADBError():
            return StoreUnusable(f"{path} is not a database, or is damaged")
        case apsw.CorruptError():
            return StoreUnusable(f"{path} is damaged: {broken} (put back a copy)")
        case apsw.BusyError():
            return StoreUnusable(f"{path} is held by another process that writes without end")
        case apsw.FullError():
            return StoreUnusable(f"{path} cannot be opened: the disk is full")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            if path is not None and path.is_dir():
                return StoreUnusable(f"{path} is a folder (name a file in it)")
            hint = "whoever only reads needs that too, for the file and its folder"
            return StoreUnusable(f"{path} cannot be opened for writing ({hint})")
        case _:
            return StoreUnusable(f"{path}: {broken}")


class _BusyHandler:
    """Ask for the lock again every millisecond: SQLite keeps no queue of those who wait."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._since = time.monotonic()
        time.sleep(0.001)
        return time.monotonic() - self._since < BUSY_LIMIT
