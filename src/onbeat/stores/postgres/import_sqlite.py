"""Import all rows of another store in one transaction."""

from collections.abc import Iterator

from onbeat.errors import StoreUnusable
from onbeat.stores.postgres.database import SCHEMA, Connection
from onbeat.stores.sql.rows import storable_text
from onbeat.stores.sql.store import Table

OWN_META = frozenset({"store_id", "schema"})  # entries of this database, which stay
FOREIGN_META = frozenset({"next_run_id", "moved_to"})  # entries that are not imported

SET_SEQUENCES = """
SELECT setval('run_ids', (SELECT coalesce(max(run_id), 0) + 1 FROM schedule_runs), false),
       setval(pg_get_serial_sequence('events', 'event_id'),
              (SELECT coalesce(max(event_id), 0) + 1 FROM events), false),
       setval(pg_get_serial_sequence('outbox', 'message_id'),
              (SELECT coalesce(max(message_id), 0) + 1 FROM outbox), false)
"""


def import_rows(connection: Connection, tables: Iterator[Table]) -> dict[str, int]:
    """Import tables. The contract is `PostgresStore.import_tables`."""
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path = {SCHEMA}, pg_temp")
        connection.execute("SET LOCAL statement_timeout = 0")
        connection.execute("LOCK TABLE meta, nodes, schedules, due, schedule_runs, events")
        for table in ("schedules", "schedule_runs", "nodes"):
            if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:
                hint = "move to an empty database"
                raise StoreUnusable(f"the database is not empty: {table} has rows ({hint})")
        connection.execute("TRUNCATE events, outbox, tokens, documents, node_times")
        connection.execute("DELETE FROM meta WHERE name <> ALL($1)", (sorted(OWN_META),))
        moved = dict(_copy(connection, table) for table in tables)
        connection.execute(SET_SEQUENCES)
    connection.execute(f"ANALYZE {SCHEMA}.due, {SCHEMA}.schedule_state, {SCHEMA}.schedule_runs")
    return moved


def _copy(connection: Connection, table: Table) -> tuple[str, int]:
    """Copy the rows of a table; return its name, and how many were copied."""
    name, columns, rows = table
    copied = 0
    with connection.cursor().copy(f"COPY {name} ({', '.join(columns)}) FROM STDIN") as copy:
        for row in rows:
            entry, *_ = row
            if name == "meta" and entry in OWN_META | FOREIGN_META:
                continue
            copy.write_row(
                [storable_text(value) if isinstance(value, str) else value for value in row]
            )
            copied += 1
    return name, copied
