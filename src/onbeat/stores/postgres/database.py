"""A PostgreSQL database: how it is reached, and how calls become transactions.

Calls are executed by a few threads, each with its own connection, which it reopens when it breaks.
There is no session state, so that a connection pooler can be used: settings and locks last for one
transaction. Each statement also has a deadline on this side, after which the connection is shut
down: a server that hangs does not hang the node.
"""

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from onbeat.errors import StoreFailed, StoreInDoubt, StoreUnusable, without_password
from onbeat.events import (
    Event,
    GateChanged,
    RunEnqueued,
    RunHandedBack,
    RunReleased,
    ScheduleChanged,
    ScheduleCreated,
    ScheduleResumed,
)
from onbeat.ports.clock import Clock
from onbeat.ports.store import Listener
from onbeat.stores.postgres.transaction import NOW, PostgresTransaction, TransactionCache
from onbeat.stores.sql.transaction import Call, Row

SCHEMA = "onbeat"  # of all tables, so that other schemas of the database do not matter
CHANNEL = "onbeat"
ANSWER_LIMIT = 10.0  # seconds that a statement may take, measured by the client
LOCK_LIMIT, STATEMENT_LIMIT, IDLE_LIMIT = 5_000, 9_000, 5_000  # milliseconds, by the server
CONNECT_LIMIT = 5  # seconds
TRIES = 3  # of a call that PostgreSQL aborted to break a deadlock
NOTIFIED_EVENTS = (  # events after which another node may have something to do
    GateChanged, RunEnqueued, RunHandedBack, RunReleased, ScheduleChanged, ScheduleCreated,
    ScheduleResumed,
)  # fmt: skip

# Plans are cached, mostly while tables are small: they must not scan whole tables.
SETTINGS = {
    "search_path": f"{SCHEMA}, pg_temp",
    "idle_in_transaction_session_timeout": str(IDLE_LIMIT),
    "lock_timeout": str(LOCK_LIMIT),
    "statement_timeout": str(STATEMENT_LIMIT),
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
# A lost commit would be a run that starts twice.
DURABLE_COMMIT = """CASE WHEN current_setting('synchronous_commit') = 'off'
THEN set_config('synchronous_commit', 'on', true) END"""


def _begin_statement(level: str, settings: Mapping[str, str]) -> str:
    """Return the statements that begin a transaction: its local settings, and the time."""
    each = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"BEGIN ISOLATION LEVEL {level}; SELECT {each}, {DURABLE_COMMIT}; SELECT {NOW}"


BEGIN_WRITE = _begin_statement("READ COMMITTED READ WRITE", SETTINGS)
# A read blocks nothing, and may take long to process a million rows.
READ_SETTINGS = SETTINGS | {"idle_in_transaction_session_timeout": "60000"}
BEGIN_READ = _begin_statement("REPEATABLE READ READ ONLY", READ_SETTINGS)

# The last message of a server on a connection: the end of the connection may be noticed later.
DISCONNECTED = (errors.AdminShutdown, errors.CrashShutdown, errors.DatabaseDropped)

T = TypeVar("T")
Answer = tuple[T, int, Sequence[Event]]  # the result of a call, its `now` and its events


class Connection(psycopg.Connection[Row]):
    """A connection whose statements have a deadline, enforced by a `DeadlineWatch`."""

    answer_by: float | None = None  # by the monotonic clock
    is_pooled = False  # each transaction may run on another server connection

    def cut(self) -> None:
        """Make a statement that waits for its answer fail; any thread may call this."""
        with (
            suppress(OSError, psycopg.Error),
            closing(socket.socket(fileno=os.dup(self.fileno()))) as same,
        ):
            same.shutdown(socket.SHUT_RDWR)


class DeadlineCursor(psycopg.RawCursor[Row]):
    """A cursor that sets the deadline of its connection for each statement."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:  # noqa: ANN401
        assert isinstance(self.connection, Connection), "it belongs to a Connection"
        self.connection.answer_by = time.monotonic() + ANSWER_LIMIT
        try:
            return super().execute(query, params, **options)
        finally:
            self.connection.answer_by = None


class DeadlineWatch:
    """A thread that shuts down connections whose answer is overdue."""

    EVERY = 0.5  # seconds

    def __init__(self) -> None:
        self._watched: set[Connection] = set()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._watched.add(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onbeat-watch", daemon=True)
                self._thread.start()

    def remove(self, connection: Connection) -> None:
        with self._lock:
            self._watched.discard(connection)

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self.EVERY):
            with self._lock:
                for connection in self._watched:
                    answer_by = connection.answer_by
                    if answer_by is not None and time.monotonic() > answer_by:
                        connection.cut()


class ServerAddress:
    """The address of a database. `shown` is without the password.

    `is_proven` is set once a store was opened there. From then on a refusal may be temporary, such
    as a password that is being changed: it raises StoreFailed, never StoreUnusable.
    """

    def __init__(self, url: str) -> None:
        self.is_proven = False
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.ProgrammingError as refused:
            # The message quotes the address, which may contain a password.
            reason = str(refused).replace(url, "").strip()
            reason, _, _ = reason.partition("\n")
            reason = re.sub(r'[: ]*"([^"]{4,}|)"?', "", reason)
            hint = "postgresql://user:password@host:5432/name"
            raise StoreUnusable(f"the address cannot be parsed: {reason} ({hint})") from None
        self.shown = without_password(url)
        defaults: dict[str, Any] = {
            "connect_timeout": CONNECT_LIMIT,
            "application_name": "onbeat",
            "tcp_user_timeout": int(ANSWER_LIMIT * 1000),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        self._conninfo = make_conninfo(**defaults | parameters)

    def connect(self, watch: DeadlineWatch) -> Connection:
        """Connect; raise StoreFailed if a retry may succeed, StoreUnusable if it cannot."""
        try:
            connection = Connection.connect(
                self._conninfo, autocommit=True, cursor_factory=DeadlineCursor
            )
        except psycopg.OperationalError as broken:
            raise self._unreachable(broken) from None
        except (psycopg.Error, OSError) as broken:  # such as too many open files
            raise StoreFailed(f"{self.shown} cannot be reached: {broken}") from None
        adapters = connection.adapters
        adapters.register_dumper(
            int, Int8BinaryDumper
        )  # one type for each, so that each statement has one plan
        adapters.register_dumper(str, StrBinaryDumper)
        watch.add(connection)
        try:
            served_by = connection.execute("SELECT pg_backend_pid()").fetchone()
        except (psycopg.Error, OSError) as broken:
            watch.remove(connection)
            connection.close()
            raise StoreFailed(f"{self.shown} does not answer: {_message(broken)}") from None
        # Behind a pooler the process id of the server is another one.
        connection.is_pooled = served_by != (connection.info.backend_pid,)
        connection.prepare_threshold = None if connection.is_pooled else 2
        return connection

    def _unreachable(self, broken: psycopg.OperationalError) -> StoreFailed | StoreUnusable:
        reason, _, _ = " ".join(str(broken).split()).partition(" Is the server running")
        reason = re.sub(r"^connection (failed|is bad): (.* FATAL: )?", "", reason).strip()
        for part, hint in WRONG_ADDRESS.items():
            if part in reason and not self.is_proven:
                return StoreUnusable(f"{self.shown}: {reason} ({hint})")
        return StoreFailed(f"{self.shown} cannot be reached: {reason}")


WRONG_ADDRESS = {
    "password authentication failed": "the user or the password in the address is wrong",
    "no password supplied": "put a password into the address or into a .pgpass file",
    "does not exist": "create what is missing with createdb or createuser",
    "no pg_hba.conf entry": "the server does not accept this user from this host",
    "permission denied for database": "GRANT CONNECT, CREATE ON DATABASE to the user",
    "server does not support SSL": "sslmode in the address requires it",
}


class DatabaseClock:
    """The database's clock, estimated between two answers.

    An answer is never ahead of the clock, so the largest offset of the last seconds is the best.
    """

    WINDOW = 5.0

    def __init__(self) -> None:
        # The offset to the monotonic clock in the last window and in this one, and when this one
        # began. One value that is replaced as a whole, as several threads use it.
        self._ahead = (float("-inf"), float("-inf"), time.monotonic())

    def see(self, now: int) -> None:
        """Record a time that the database has returned."""
        here = time.monotonic()
        before, lately, since = self._ahead
        if here - since > self.WINDOW:
            before, lately, since = lately, float("-inf"), here
        self._ahead = before, max(lately, now - here * 1000), since

    def now(self) -> int:
        before, lately, _ = self._ahead
        return int(time.monotonic() * 1000 + max(before, lately))

    def monotonic(self) -> float:
        return time.monotonic()


class PostgresWorkers:
    """Executes calls in up to `size` threads, each with its own connection.

    `clock` replaces the database's. `name` is sent with notifications, to recognize own ones.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        size: int,
        clock: Clock | None = None,
        listener: Listener | None = None,
        name: str = "",
    ) -> None:
        self._address, self._listener, self._name = address, listener, name
        self.clock_override, self._database_clock = clock, DatabaseClock()
        self.clock: Clock = clock or self._database_clock
        self._cache, self.watch = TransactionCache(), DeadlineWatch()
        self._local, self._connections = threading.local(), list[PooledConnection]()
        self._pool = ThreadPoolExecutor(size, "onbeat-postgres")

    async def write(self, call: Call[T]) -> T:
        return await self._submit(lambda: self._execute(call, BEGIN_WRITE))

    async def read_for_engine(self, call: Call[T]) -> T:
        return await self.read(call)  # each call has a connection

    async def read(self, call: Call[T]) -> T:
        return await self._submit(lambda: self._execute(call, BEGIN_READ))

    async def use(self, work: Callable[[Connection], T]) -> T:
        """Execute work on a connection, outside of a transaction of the store."""
        return await self._submit(lambda: (self._thread_connection().use(work), 0, ()))

    def close(self) -> None:
        """Execute all pending calls and close."""
        self._pool.shutdown(wait=True)
        self.watch.close()
        for pooled in self._connections:
            pooled.close()

    async def _submit(self, work: Callable[[], Answer[T]]) -> T:
        try:
            done = asyncio.get_running_loop().run_in_executor(self._pool, work)
        except RuntimeError:  # of the pool: it takes no more calls
            raise StoreUnusable("the store is closed") from None
        done.add_done_callback(self._notify_listener)
        # Shielded: a caller that is cancelled must not undo what may already be committed.
        answer, _, _ = await asyncio.shield(done)
        return answer

    def _notify_listener(self, done: "asyncio.Future[Answer[T]]") -> None:
        failed = done.cancelled() or done.exception() is not None
        if self._listener is None or failed:
            return
        _, at, events = done.result()
        if events:
            self._listener(at, events)

    def _thread_connection(self) -> "PooledConnection":
        pooled: PooledConnection | None = getattr(self._local, "pooled", None)
        if pooled is None:
            pooled = self._local.pooled = PooledConnection(self._address, self.watch)
            self._connections.append(pooled)
        return pooled

    def _execute(self, call: Call[T], begin: str) -> Answer[T]:
        pooled, tries = self._thread_connection(), 0
        while True:
            tries += 1
            try:
                return pooled.use(lambda connection: self._transact(connection, call, begin))
            except SerializationClash as clash:
                if tries == TRIES:
                    raise StoreFailed(str(clash)) from None

    def _transact(self, connection: Connection, call: Call[T], begin: str) -> Answer[T]:
        cursor = connection.cursor()
        try:
            now = self._begin(connection, cursor, begin)
            tx = PostgresTransaction(cursor, now, self.clock_override, self._cache)
            result = call(tx)
            tx.write_events()
            if any(isinstance(event, NOTIFIED_EVENTS) for event in tx.events):
                cursor.execute("SELECT pg_notify($1, $2)", (CHANNEL, self._name))
        except BaseException:
            roll_back(connection)
            raise
        _commit(connection, changes=begin is BEGIN_WRITE)
        return result, tx.now, tx.events

    def _begin(self, connection: Connection, cursor: psycopg.Cursor[Row], begin: str) -> int:
        """Begin a transaction; return its time."""
        try:
            cursor.execute(begin)
        except (psycopg.OperationalError, OSError) as broken:
            if not (connection.broken or isinstance(broken, DISCONNECTED)):
                raise
            # It broke while idle, as when the server was restarted: retry on a new connection.
            raise SerializationClash(f"the connection was lost: {broken}") from None
        while cursor.nextset():
            pass
        ((now,),) = cursor.fetchall()
        self._database_clock.see(now)
        return int(now) if self.clock_override is None else self.clock_override.now()


def roll_back(connection: Connection) -> None:
    """Roll back a failed transaction; close the connection if that fails too."""
    try:
        connection.execute("ROLLBACK")
    except (psycopg.Error, OSError):
        connection.close()


def _commit(connection: Connection, *, changes: bool) -> None:
    try:
        cursor = connection.execute("COMMIT")
    except (psycopg.Error, OSError) as broken:
        # A commit that waits for a standby is aborted after it became durable on the primary.
        if not ((connection.broken or isinstance(broken, (*DISCONNECTED, OSError))) and changes):
            raise
        doubt = "the database did not answer whether the transaction was committed"
        raise StoreInDoubt(doubt) from broken
    if cursor.statusmessage != "COMMIT":
        raise StoreFailed("the database rolled the transaction back")


class PooledConnection:
    """A connection that only one thread uses."""

    def __init__(self, address: ServerAddress, watch: DeadlineWatch) -> None:
        self._address, self._watch = address, watch
        self._connection: Connection | None = None

    def use(self, work: Callable[[Connection], T]) -> T:
        """Execute work on the connection, which is reopened if it was closed."""
        if self._connection is None:
            self._connection = self._address.connect(self._watch)
        connection, is_gone = self._connection, False
        try:
            return work(connection)
        except (psycopg.Error, OSError, StoreInDoubt, SerializationClash) as broken:
            is_gone = not isinstance(broken, psycopg.Error) or isinstance(broken, DISCONNECTED)
            if isinstance(broken, StoreFailed):
                raise
            raise as_store_error(broken, is_proven=self._address.is_proven) from broken
        finally:
            if connection.closed or is_gone:
                self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._watch.remove(self._connection)
            self._connection.close()
            self._connection = None


class SerializationClash(StoreFailed):
    """A transaction was aborted in favour of another, or never began: it is retried."""


def _message(broken: Exception) -> str:
    primary = broken.diag.message_primary if isinstance(broken, psycopg.Error) else None
    return " ".join((primary or str(broken)).split())


def as_store_error(broken: Exception, *, is_proven: bool = False) -> Exception:
    """Return the error to raise for an error of PostgreSQL; a defect is returned as it is.

    On a store that was open before, `is_proven`, missing tables or rights may be temporary.
    """
    message = _message(broken)
    match broken:
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return SerializationClash(f"concurrent changes of the same schedules: {message}")
        case errors.LockNotAvailable():
            return StoreFailed(f"the schedules were locked for more than {LOCK_LIMIT // 1000} s")
        case errors.QueryCanceled():
            return StoreFailed(f"the database took more than {STATEMENT_LIMIT // 1000} s")
        case errors.DiskFull():
            return StoreFailed("the database's disk is full: nothing was changed")
        case errors.ReadOnlySqlTransaction():
            return StoreFailed("the database accepts no changes: it is a standby or read-only")
        case errors.InsufficientPrivilege() | errors.InvalidSchemaName():
            hint = f'it must own the schema "{SCHEMA}" or be allowed to create it'
            kind = StoreFailed if is_proven else StoreUnusable
            return kind(f"the database user lacks a privilege: {message} ({hint})")
        case errors.UndefinedTable() | errors.FeatureNotSupported() if is_proven:
            # Tables that are being restored, or were changed by a newer Onbeat.
            return StoreFailed(f"the tables have changed: {message}")
        case psycopg.OperationalError() | psycopg.InternalError() | psycopg.InterfaceError():
            return StoreFailed(f"PostgreSQL: {message}")
        case OSError():
            return StoreFailed(f"PostgreSQL cannot be reached: {message}")
        case _:
            return broken
