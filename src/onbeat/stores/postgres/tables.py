"""Create and migrate the tables: the first node to connect does so."""

from onbeat.errors import StoreUnusable
from onbeat.stores.postgres.database import SCHEMA, Connection, ServerAddress, roll_back
from onbeat.stores.postgres.migrations import MIGRATIONS
from onbeat.stores.postgres.transaction import MIGRATING

OLDEST = 13  # supported version of PostgreSQL


def prepare(connection: Connection, address: ServerAddress) -> str:
    """Migrate the tables to this program's schema or refuse the database; return the store's id."""
    version = connection.info.server_version // 10_000
    if version < OLDEST:
        problem = f"{address.shown} is PostgreSQL {version}"
        raise StoreUnusable(f"{problem}: Onbeat requires {OLDEST} or newer")
    if _supported_version(connection, address) < len(MIGRATIONS):
        _migrate(connection, address)
    found = connection.execute(f"SELECT value FROM {SCHEMA}.meta WHERE name = 'store_id'")
    ((store_id,),) = found.fetchall()
    return str(store_id)


def _migrate(connection: Connection, address: ServerAddress) -> None:
    connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
    try:
        # One at a time: a node that waited here finds the tables migrated.
        connection.execute("SELECT pg_advisory_xact_lock($1)", (MIGRATING,))
        exists = connection.execute("SELECT to_regnamespace($1) IS NOT NULL", (SCHEMA,)).fetchone()
        if exists != (True,):
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(f"SET LOCAL search_path = {SCHEMA}, pg_temp")
        for script in MIGRATIONS[_supported_version(connection, address) :]:
            connection.execute(script)
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('schema', $1) "
            "ON CONFLICT (name) DO UPDATE SET value = $1",
            (str(len(MIGRATIONS)),),
        )
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    connection.execute(f"ANALYZE {SCHEMA}.due, {SCHEMA}.schedule_state, {SCHEMA}.schedule_runs")


def schema_version(connection: Connection) -> int:
    """Return how many migrations were applied."""
    if connection.execute("SELECT to_regclass($1)", (f"{SCHEMA}.meta",)).fetchone() == (None,):
        return 0
    found = connection.execute(f"SELECT value FROM {SCHEMA}.meta WHERE name = 'schema'").fetchall()
    return next((int(version) for (version,) in found), 0)


def _supported_version(connection: Connection, address: ServerAddress) -> int:
    """Return how many migrations were applied; refuse tables of a newer Onbeat."""
    version = schema_version(connection)
    if version > len(MIGRATIONS):
        problem = f"{address.shown} was written by a newer Onbeat (schema {version}, this version"
        raise StoreUnusable(f"{problem} supports {len(MIGRATIONS)}): upgrade Onbeat")
    return version
