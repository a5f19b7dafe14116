"""Opening the store that the settings name: one SQLite file, or PostgreSQL."""

import logging
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings, StoreInDoubt, StoreUnusable
from onbeat.events import Event
from onbeat.host.extras import install_command
from onbeat.ports.clock import Clock
from onbeat.ports.store import Listener, Node
from onbeat.stores.sql.store import SqlStore
from onbeat.stores.sqlite.store import LockHolder, SqliteStore, find_lock_holder

if TYPE_CHECKING:
    from onbeat.stores.postgres.store import PostgresStore

log = logging.getLogger("onbeat.store")


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


async def open_store(
    settings: Settings, clock: Clock | None = None, listeners: Sequence[Listener] = ()
) -> SqlStore:
    """Open the store of the settings. Each listener receives the events that it commits."""
    failed: set[int] = set()  # the listeners whose failure was logged

    def listener(at: int, events: Sequence[Event]) -> None:
        for each in listeners:
            try:
                each(at, events)
            except Exception:  # the transaction is committed, and others still listen
                if id(each) not in failed:
                    failed.add(id(each))
                    log.exception("a listener of events failed: %r", each)

    if settings.is_postgres:
        store: SqlStore = await open_postgres(settings, clock, listener)
    else:
        path = settings.database_path
        store = await SqliteStore.open(path, clock=clock or SystemClock(), listener=listener)
    store.marks_successes = any(channel.rule.wants_successes for channel in settings.notify)
    return store


async def open_postgres(
    settings: Settings, clock: Clock | None = None, listener: Listener | None = None
) -> "PostgresStore":
    """Open a store on PostgreSQL, whose driver is an optional dependency."""
    try:
        from onbeat.stores.postgres.store import PostgresStore  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        problem = "PostgreSQL needs a driver that is not installed"
        raise StoreUnusable(f"{problem} ({install_command('postgres')})") from None
    return await PostgresStore.open(settings.database, clock=clock, listener=listener)


def lock_holder(settings: Settings) -> LockHolder | None:
    """Return the node that holds the lock of a SQLite file, if one does."""
    return None if settings.database_path is None else find_lock_holder(settings.database_path)


async def move_to_postgres(settings: Settings, to: Settings) -> dict[str, int]:
    """Move all rows of a SQLite file to PostgreSQL; return the number of rows of each table.

    The file must have no node. It is refused from then on, so that nothing runs twice. An
    interrupted move may be repeated.
    """
    if settings.database_path is None or not to.is_postgres:
        raise InvalidSettings(
            "move", "only a SQLite file can be moved, and only to PostgreSQL", hint="--database"
        )
    source = await SqliteStore.open(settings.database_path, clock=SystemClock(), to_move=True)
    try:
        await source.acquire(Node(str(uuid.uuid4()), "onbeat move", frozenset()))
        target = await open_postgres(to)
        try:
            # The file is closed for use before the target commits: there are never two live copies.
            return await target.import_tables(lambda: source.tables(moved_to=to.database_shown))
        except StoreInDoubt:
            raise  # the commit may have succeeded
        except BaseException:
            await source.take_back()
            raise
        finally:
            await target.close()
    finally:
        await source.close()
