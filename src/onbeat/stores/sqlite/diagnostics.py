"""What a doctor sees of a file: it is only read, and neither made nor brought up to date."""

import time
from contextlib import closing
from pathlib import Path

import apsw

from onbeat.ports.clock import Clock
from onbeat.stores.sql.diagnostics import DatabaseFacts, examine
from onbeat.stores.sqlite.database import APPLICATION, SqliteTransaction
from onbeat.stores.sqlite.migrations import MIGRATIONS

CHECK_LIMIT = 10.0  # seconds that a check of the whole file may take
STEPS = 100_000  # of SQLite's machine, between two looks at the clock
LIBRARY = apsw.sqlite_lib_version()


def look(path: Path, clock: Clock, *, quick: bool = False) -> DatabaseFacts:
    """Look at a file, whatever state it is in; all of it is read, unless it is to be quick."""
    if not path.exists() or not path.stat().st_size:
        return DatabaseFacts(
            problem=f"{path} does not exist", hint="onbeat up makes it", is_there=False
        )
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(2000)
            return _look(connection, path, clock, quick=quick)
    except (apsw.CorruptError, apsw.NotADBError) as broken:
        return DatabaseFacts(problem=f"{path} is damaged: {broken}", hint="put back a backup")
    except apsw.BusyError:
        return DatabaseFacts(problem=f"{path} is held by a process that writes without end")
    except apsw.CantOpenError:
        hint = "doctor needs the rights of the node: its user, or root"
        return DatabaseFacts(problem=f"{path} cannot be opened", hint=hint)
    except apsw.Error as broken:
        return DatabaseFacts(problem=f"{path}: {broken}", hint="onbeat up says more")


def _look(connection: apsw.Connection, path: Path, clock: Clock, *, quick: bool) -> DatabaseFacts:
    schema, known = int(connection.pragma("user_version")), len(MIGRATIONS)
    if connection.pragma("application_id") != APPLICATION:
        hint = "--database names another"
        return DatabaseFacts(problem=f"{path} is a database of something else", hint=hint)
    moved = connection.execute("SELECT value FROM meta WHERE name = 'moved_to'").fetchone()
    if moved is not None:
        return DatabaseFacts(
            problem=f"{path} was moved to {moved[0]}", hint="--database names that"
        )
    damage, is_checked = ("", None) if quick else _check(connection)
    wal = path.with_name(f"{path.name}-wal")
    standing = None
    if schema == known and not damage:
        standing = examine(SqliteTransaction(connection, clock.now()))
    return DatabaseFacts(
        standing,
        schema=schema,
        known_schema=known,
        damage=damage,
        is_checked=is_checked,
        wal=wal.stat().st_size if wal.exists() else 0,
    )


def _check(connection: apsw.Connection) -> tuple[str, bool]:
    """Return what SQLite finds wrong with the file, and whether it had the time to look."""
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
    told = "; ".join(str(row[0]) for row in found if row[0] != "ok")
    return " ".join(told.replace("*** in database main ***", "").split()), True
