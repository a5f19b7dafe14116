"""A PostgreSQL database: how it is reached, and how calls become transactions.

Calls are done by a few threads, each with a connection of its own, which it makes anew when it
breaks. Nothing is kept in a session, so that a pooler may stand between: settings hold for one
transaction, and so do locks. Each statement has a deadline on this side too, after which the
connection is cut: a server that hangs does not hang us.
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

SCHEMA = "onbeat"  # where our tables are, whatever else is in the database
CHANNEL = "onbeat"
ANSWER_LIMIT = 10.0  # seconds that a statement may take, seen from here
LOCK_LIMIT, STATEMENT_LIMIT, IDLE_LIMIT = 5_000, 9_000, 5_000  # milliseconds, seen from there
CONNECT_LIMIT = 5  # seconds
TRIES = 3  # of a call that PostgreSQL ended to break a deadlock
HINTS = (  # events after which another node may have something to do
    GateChanged, RunEnqueued, RunHandedBack, RunReleased, ScheduleChanged, ScheduleCreated,
    ScheduleResumed,
)  # fmt: skip

# Plans are made once and kept, mostly while tables are small: they must not read whole tables.
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
DURABLY = """CASE WHEN current_setting('synchronous_commit') = 'off'
THEN set_config('synchronous_commit', 'on', true) END"""


def _beginning(level: str, settings: Mapping[str, str]) -> str:
    """Return what begins a transaction: its settings, which end with it, and what time it is."""
    each = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"BEGIN ISOLATION LEVEL {level}; SELECT {each}, {DURABLY}; SELECT {NOW}"


TO_WRITE = _beginning("READ COMMITTED READ WRITE", SETTINGS)
# Whoever reads holds nothing up, and may take its time to make something of a million rows.
PATIENTLY = SETTINGS | {"idle_in_transaction_session_timeout": "60000"}
TO_READ = _beginning("REPEATABLE READ READ ONLY", PATIENTLY)

# What a server says last on a connection: its end may be read only later.
GONE = (errors.AdminShutdown, errors.CrashShutdown, errors.DatabaseDropped)

T = TypeVar("T")
Answer = tuple[T, int, Sequence[Event]]  # of a call, with its `now` and what it told


class Connection(psycopg.Connection[Row]):
    """A connection whose statements have a deadline, which a `DeadlineWatch` enforces."""

    answer_by: float | None = None  # by the monotonic clock
    is_pooled = False  # each transaction may be another server's

    def cut(self) -> None:
        """Have a statement that waits for its answer fail; any thread may do this."""
        with (
            suppress(OSError, psycopg.Error),
            closing(socket.socket(fileno=os.dup(self.fileno()))) as same,
        ):
            same.shutdown(socket.SHUT_RDWR)


class DeadlineCursor(psycopg.RawCursor[Row]):
    """A cursor that says by when it needs an answer."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:  # noqa: ANN401
        assert isinstance(self.connection, Connection), "it was made by one"
        self.connection.answer_by = time.monotonic() + ANSWER_LIMIT
        try:
            return super().execute(query, params, **options)
        finally:
            self.connection.answer_by = None


class DeadlineWatch:
    """A thread that cuts connections whose answer is overdue."""

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
    """Where a database is. `shown` has no password in it.

    `is_proven` is set once a store was opened there. From then on a refusal is a loss that may
    pass, such as a password that is being changed: StoreFailed, and never StoreUnusable.
    """

    def __init__(self, url: str) -> None:
        self.is_proven = False
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as refused:
            # It quotes the address, which may hold a password.
            told = str(refused).replace(url, "").strip().partition("\n")[0]
            told = re.sub(r'[: ]*"([^"]{4,}|)"?', "", told)
            hint = "postgresql://user:password@host:5432/name"
            raise StoreUnusable(f"the address cannot be read: {told} ({hint})") from None
        self.shown = without_password(url)
        defaults: dict[str, Any] = {
            "connect_timeout": CONNECT_LIMIT,
            "application_name": "onbeat",
            "tcp_user_timeout": int(ANSWER_LIMIT * 1000),
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        }
        self._conninfo = make_conninfo(**defaults | given)

    def connect(self, watch: DeadlineWatch) -> Connection:
        """Connect; raise StoreFailed if that may work later, StoreUnusable if it will not."""
        try:
            connection = Connection.connect(
                self._conninfo, autocommit=True, cursor_factory=DeadlineCursor
            )
        except psycopg.OperationalError as broken:
            raise self._unreachable(broken) from None
        except (psycopg.Error, OSError) as broken:  # such as too many open files
            raise StoreFailed(f"{self.shown} cannot be reached: {broken}") from None
        adapters = connection.adapters
        adapters.register_dumper(int, Int8BinaryDumper)  # one type each, so one plan a statement
        adapters.register_dumper(str, StrBinaryDumper)
        watch.add(connection)
        try:
            served_by = connection.execute("SELECT pg_backend_pid()").fetchone()
        except (psycopg.Error, OSError) as broken:
            watch.remove(connection)
            connection.close()
            raise StoreFailed(f"{self.shown} does not answer: {_told(broken)}") from None
        # A pooler answers for a server whose number it does not tell.
        connection.is_pooled = served_by != (connection.info.backend_pid,)
        connection.prepare_threshold = None if connection.is_pooled else 2
        return connection

    def _unreachable(self, broken: psycopg.OperationalError) -> StoreFailed | StoreUnusable:
        told = " ".join(str(broken).split()).partition(" Is the server running")[0]
        told = re.sub(r"^connection (failed|is bad): (.* FATAL: )?", "", told).strip()
        for part, hint in WRONG_ADDRESS.items():
            if part in told and not self.is_proven:
                return StoreUnusable(f"{self.shown}: {told} ({hint})")
        return StoreFailed(f"{self.shown} cannot be reached: {told}")


WRONG_ADDRESS = {
    "password authentication failed": "the user or the password in the address is wrong",
    "no password supplied": "put a password into the address, or into a .pgpass file",
    "does not exist": "createdb and createuser make what is missing",
    "no pg_hba.conf entry": "the server does not let this user in from here",
    "permission denied for database": "GRANT CONNECT, CREATE ON DATABASE to the user",
    "server does not support SSL": "sslmode in the address asks for it",
}


class DatabaseClock:
    """The database's clock, as far as it can be known between two answers.

    An answer is never newer than the clock, so the furthest ahead of a few seconds is the best.
    """

    WINDOW = 5.0

    def __init__(self) -> None:
        # How far it is ahead of our monotonic time: before, and lately; and since when "lately" is.
        # One value, replaced as a whole: the threads that answer and those that ask are others.
        self._ahead = (float("-inf"), float("-inf"), time.monotonic())

    def see(self, now: int) -> None:
        """Take note of an answer."""
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
    """Calls are done by up to `size` threads, each with a connection of its own.

    `clock` replaces the database's. `name` tells other nodes whose hints these are.
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
        self.given_clock, self._time = clock, DatabaseClock()
        self.clock: Clock = clock or self._time
        self._known, self.watch = TransactionCache(), DeadlineWatch()
        self._own, self._lanes = threading.local(), list[PooledConnection]()
        self._pool = ThreadPoolExecutor(size, "onbeat-postgres")

    async def write(self, call: Call[T]) -> T:
        return await self._ask(lambda: self._do(call, TO_WRITE))

    async def glance(self, call: Call[T]) -> T:
        return await self.read(call)  # each call has a connection

    async def read(self, call: Call[T]) -> T:
        return await self._ask(lambda: self._do(call, TO_READ))

    async def use(self, work: Callable[[Connection], T]) -> T:
        """Do something with a connection that is not a call of the store's."""
        return await self._ask(lambda: (self._lane().use(work), 0, ()))

    def close(self) -> None:
        """End, with everything done that was asked for."""
        self._pool.shutdown(wait=True)
        self.watch.close()
        for lane in self._lanes:
            lane.close()

    async def _ask(self, work: Callable[[], Answer[T]]) -> T:
        done = asyncio.get_running_loop().run_in_executor(self._pool, work)
        done.add_done_callback(self._tell)
        # Shielded: a caller that is cancelled must not undo what may already be committed.
        return (await asyncio.shield(done))[0]

    def _tell(self, done: "asyncio.Future[Answer[T]]") -> None:
        failed = done.cancelled() or done.exception() is not None
        if self._listener is None or failed:
            return
        _, at, events = done.result()
        if events:
            self._listener(at, events)

    def _lane(self) -> "PooledConnection":
        lane: PooledConnection | None = getattr(self._own, "lane", None)
        if lane is None:
            lane = self._own.lane = PooledConnection(self._address, self.watch)
            self._lanes.append(lane)
        return lane

    def _do(self, call: Call[T], begin: str) -> Answer[T]:
        lane, tries = self._lane(), 0
        while True:
            tries += 1
            try:
                return lane.use(lambda connection: self._transact(connection, call, begin))
            except SerializationClash as clash:
                if tries == TRIES:
                    raise StoreFailed(str(clash)) from None

    def _transact(self, connection: Connection, call: Call[T], begin: str) -> Answer[T]:
        cursor = connection.cursor()
        try:
            now = self._begin(connection, cursor, begin)
            tx = PostgresTransaction(cursor, now, self.given_clock, self._known)
            result = call(tx)
            tx.write_events()
            if any(isinstance(event, HINTS) for event in tx.events):
                cursor.execute("SELECT pg_notify($1, $2)", (CHANNEL, self._name))
        except BaseException:
            roll_back(connection)
            raise
        _commit(connection, changes=begin is TO_WRITE)
        return result, tx.now, tx.events

    def _begin(self, connection: Connection, cursor: psycopg.Cursor[Row], begin: str) -> int:
        """Begin a transaction; return what time it is."""
        try:
            cursor.execute(begin)
        except (psycopg.OperationalError, OSError) as broken:
            if not (connection.broken or isinstance(broken, GONE)):
                raise
            # It broke while it was idle, as when the server was restarted: another will do.
            raise SerializationClash(f"the connection was lost: {broken}") from None
        while cursor.nextset():
            pass
        ((now,),) = cursor.fetchall()
        self._time.see(now)
        return int(now) if self.given_clock is None else self.given_clock.now()


def roll_back(connection: Connection) -> None:
    """End a transaction that failed; a connection on which that fails too is closed."""
    try:
        connection.execute("ROLLBACK")
    except (psycopg.Error, OSError):
        connection.close()


def _commit(connection: Connection, *, changes: bool) -> None:
    try:
        cursor = connection.execute("COMMIT")
    except (psycopg.Error, OSError) as broken:
        # A commit that waits for a standby is ended after it was made durable here.
        if not ((connection.broken or isinstance(broken, (*GONE, OSError))) and changes):
            raise
        doubt = "the database did not answer whether it kept what was asked"
        raise StoreInDoubt(doubt) from broken
    if cursor.statusmessage != "COMMIT":
        raise StoreFailed("the database did not keep what was asked")


class PooledConnection:
    """A connection that one thread has to itself."""

    def __init__(self, address: ServerAddress, watch: DeadlineWatch) -> None:
        self._address, self._watch = address, watch
        self._connection: Connection | None = None

    def use(self, work: Callable[[Connection], T]) -> T:
        """Do something with the connection, made anew if it is not there any more."""
        if self._connection is None:
            self._connection = self._address.connect(self._watch)
        connection, is_gone = self._connection, False
        try:
            return work(connection)
        except (psycopg.Error, OSError, StoreInDoubt, SerializationClash) as broken:
            is_gone = not isinstance(broken, psycopg.Error) or isinstance(broken, GONE)
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
    """A transaction was ended so that another could go on, or never began: it is done again."""


def _told(broken: Exception) -> str:
    said = broken.diag.message_primary if isinstance(broken, psycopg.Error) else None
    return " ".join((said or str(broken)).split())


def as_store_error(broken: Exception, *, is_proven: bool = False) -> Exception:
    """Return what a caller is to see of an error of PostgreSQL; a defect of ours stays as it is.

    A store that was open before, `is_proven`, has lost what it had: that may come back.
    """
    told = _told(broken)
    match broken:
        case errors.DeadlockDetected() | errors.SerializationFailure():
            return SerializationClash(f"others changed the same schedules at the same time: {told}")
        case errors.LockNotAvailable():
            return StoreFailed(f"others held the schedules for more than {LOCK_LIMIT // 1000} s")
        case errors.QueryCanceled():
            return StoreFailed(f"the database took more than {STATEMENT_LIMIT // 1000} s")
        case errors.DiskFull():
            return StoreFailed("the database's disk is full: nothing was changed")
        case errors.ReadOnlySqlTransaction():
            return StoreFailed("the database takes no changes now: it is a standby, or read-only")
        case errors.InsufficientPrivilege() | errors.InvalidSchemaName():
            hint = f'it has to own the schema "{SCHEMA}", or may create it'
            kind = StoreFailed if is_proven else StoreUnusable
            return kind(f"the database user may not do this: {told} ({hint})")
        case errors.UndefinedTable() | errors.FeatureNotSupported() if is_proven:
            # Tables that are being restored, or were changed by a newer Onbeat.
            return StoreFailed(f"the tables are not as they were: {told}")
        case psycopg.OperationalError() | psycopg.InternalError() | psycopg.InterfaceError():
            return StoreFailed(f"PostgreSQL: {told}")
        case OSError():
            return StoreFailed(f"PostgreSQL cannot be reached: {told}")
        case _:
            return broken
