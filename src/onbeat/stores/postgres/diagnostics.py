"""What `onbeat doctor` reads from a PostgreSQL server, without creating or changing any table."""

from onbeat.errors import StoreFailed, StoreUnusable
from onbeat.ports.clock import Clock
from onbeat.stores.postgres.database import SCHEMA, Connection, PostgresWorkers, ServerAddress
from onbeat.stores.postgres.migrations import MIGRATIONS
from onbeat.stores.postgres.tables import schema_version
from onbeat.stores.postgres.transaction import NOW
from onbeat.stores.sql.diagnostics import DatabaseFacts, PostgresFacts, examine

LEFT = """
SELECT current_setting('max_connections')::int
       - current_setting('superuser_reserved_connections')::int
       - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
"""

SETTINGS = """
SELECT name, setting FROM pg_settings
 WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'default_transaction_read_only')
UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
"""

# Tables on which the user lacks a privilege.
LACKS = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind = 'r'
   AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
 ORDER BY 1
"""


async def look(url: str, clock: Clock) -> DatabaseFacts:
    """Examine a database in any state."""
    try:
        threads = PostgresWorkers(ServerAddress(url), size=1)
    except StoreUnusable as refused:
        return DatabaseFacts(problem=str(refused), is_there=False)
    try:
        server, schema = await threads.use(lambda connection: _look(connection, clock))
        facts = None
        if schema == len(MIGRATIONS) and not server.lacks:
            facts = await threads.read(examine)
    except (StoreFailed, StoreUnusable) as broken:
        return DatabaseFacts(problem=str(broken), is_there=False)
    finally:
        threads.close()
    is_there = schema > 0 or bool(server.lacks)
    return DatabaseFacts(
        facts,
        problem="" if is_there else f"the schema {SCHEMA!r} does not exist yet",
        hint="" if is_there else "onbeat up creates it",
        is_there=is_there,
        schema=schema,
        known_schema=len(MIGRATIONS),
        postgres=server,
    )


def _look(connection: Connection, clock: Clock) -> tuple[PostgresFacts, int]:
    ((now,),) = connection.execute(f"SELECT {NOW}").fetchall()
    asked_at = clock.now()
    ((left,),) = connection.execute(LEFT).fetchall()
    lacks, schema = _rights(connection)
    version = connection.info.server_version // 10_000
    settings = {name: str(value) for name, value in connection.execute(SETTINGS).fetchall()}
    server = PostgresFacts(
        version, int(now), asked_at, connection.is_pooled, int(left), lacks, settings
    )
    return server, schema


def _rights(connection: Connection) -> tuple[list[str], int]:
    """Return the privileges that the user lacks, and the version of the tables, 0 if unknown."""
    exists = connection.execute("SELECT to_regnamespace($1) IS NOT NULL", (SCHEMA,)).fetchone()
    if exists != (True,):
        may = "SELECT has_database_privilege(current_database(), 'CREATE')"
        made = connection.execute(may).fetchone() == (True,)
        return ([] if made else [f"CREATE on the database, for the schema {SCHEMA!r}"]), 0
    used = "SELECT has_schema_privilege($1, 'USAGE')"
    if connection.execute(used, (SCHEMA,)).fetchone() != (True,):
        return [f"USAGE of the schema {SCHEMA!r}"], 0
    names = connection.execute(LACKS, (SCHEMA,)).fetchall()
    lacks = [f"reading and changing {SCHEMA}.{name}" for (name,) in names]
    return lacks, 0 if lacks else schema_version(connection)
