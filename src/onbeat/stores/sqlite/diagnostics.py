"""What `onbeat doctor` reads from a file, which is neither created nor migrated."""

import time
from contextlib import closing
from pathlib import Path

import apsw

from onbeat.ports.clock import Clock
from onbeat.stores.sql.diagnostics import DatabaseFacts, examine
from onbeat.stores.sqlite.database import APPLICATION, MOVED_TO, SqliteTransaction
from onbeat.stores.sqlite.migrations import MIGRATIONS

CHECK_LIMIT = 10.0  # seconds that a check of the whole file may take
STEPS = 100_000  # of SQLite's virtual machine, between two checks of the time limit
LIBRARY = apsw.sqlite_lib_version()


def look(path: Path, clock: Clock, *, quick: bool = False) -> DatabaseFacts:
    """Examine a file in any state. All of it is read, unless `quick`."""
    if not path.exists() or not path.stat().st_size:
        return DatabaseFacts(
            problem=f"{path} does not exist", hint="onbeat up creates it", is_there=False
        )
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(2000)
            return _look(connection, path, clock, quick=quick)
    except (apsw.CorruptError, apsw.NotADBError) as broken:
        return DatabaseFacts(problem=f"{path} is damaged: {broken}", hint="restore a backup")
    except apsw.BusyError:
        return DatabaseFacts(problem=f"{path} is locked by a process that does not stop writing")
    except apsw.CantOpenError:
        hint = "run doctor as the user of the node, or as root"
        return DatabaseFacts(problem=f"{path} cannot be opened", hint=hint)
    except apsw.Error as broken:
        return DatabaseFacts(problem=f"{path}: {broken}", hint="onbeat up shows more")


def _look(connection: apsw.Connection, path: Path, clock: Clock, *, quick: bool) -> DatabaseFacts:
    schema, newest = int(connection.pragma("user_version")), len(MIGRATIONS)
    if connection.pragma("application_id") != APPLICATION:
        hint = "name another file with --database"
        return DatabaseFacts(problem=f"{path} is a database of another application", hint=hint)
    for (address,) in connection.execute(MOVED_TO):
        return DatabaseFacts(
            problem=f"{path} was moved to {address}", hint="name that with --database"
        )
    damage, is_checked = ("", None) if quick else _check(connection)
    wal = path.with_name(f"{path.name}-wal")
    facts = None
    if schema == newest and not damage:
        facts = examine(SqliteTransaction(connection, clock.now()))
    return DatabaseFacts(
        facts,
        schema=schema,
        known_schema=newest,
        damage=damage,
        is_checked=is_checked,
        wal=wal.stat().st_size if wal.exists() else 0,
    )


def _check(connection: apsw.Connection) -> tuple[str, bool]:
    """Return the damage that SQLite finds, and whether the check was completed in time."""
    until = time.monotonic() + CHECK_LIMIT
    connection.set_progress_handler(lambda: time.monotonic() > until, STEPS)
    try:
        found = connection.execute("PRAGMA quick_check(3)").fetchall()
    except apsw.InterruptError:
        return "", False
    except apsw.CorruptError as broken:
        return str(broken), True
    finally:
        connection.set_progress_handler(None)
    damage = "; ".join(str(text) for (text,) in found if text != "ok")
    return " ".join(damage.replace("*** in database main ***", "").split()), True
