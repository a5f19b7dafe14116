"""Taking over what another store kept: every row, in one transaction."""

from collections.abc import Iterator

from onbeat.errors import StoreUnusable
from onbeat.stores.postgres.database import SCHEMA, Connection
from onbeat.stores.sql.rows import plain
from onbeat.stores.sql.store import Table

OURS = frozenset({"store_id", "schema"})  # what a database says of itself
THEIRS = frozenset({"next_run_id", "moved_to"})  # what another says of itself

GO_ON = """
SELECT setval('run_ids', (SELECT coalesce(max(run_id), 0) + 1 FROM schedule_runs), false),
       setval(pg_get_serial_sequence('events', 'event_id'),
              (SELECT coalesce(max(event_id), 0) + 1 FROM events), false),
       setval(pg_get_serial_sequence('outbox', 'message_id'),
              (SELECT coalesce(max(message_id), 0) + 1 FROM outbox), false)
"""


def import_rows(connection: Connection, tables: Iterator[Table]) -> dict[str, int]:
    """Take tables over. The contract is `PostgresStore.take_in`."""
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path = {SCHEMA}, pg_temp")
        connection.execute("SET LOCAL statement_timeout = 0")
        connection.execute("LOCK TABLE meta, nodes, schedules, due, schedule_runs, events")
        for table in ("schedules", "schedule_runs", "nodes"):
            if connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:
                hint = "give it a database of its own"
                raise StoreUnusable(f"there is something in it already: {table} has rows ({hint})")
        connection.execute("TRUNCATE events, outbox, tokens, documents, node_times")
        connection.execute("DELETE FROM meta WHERE name <> ALL($1)", (sorted(OURS),))
        moved = {table[0]: _copy(connection, table) for table in tables}
        connection.execute(GO_ON)
    connection.execute(f"ANALYZE {SCHEMA}.due, {SCHEMA}.schedule_state, {SCHEMA}.schedule_runs")
    return moved


def _copy(connection: Connection, table: Table) -> int:
    name, columns, rows = table
    copied = 0
    with connection.cursor().copy(f"COPY {name} ({', '.join(columns)}) FROM STDIN") as copy:
        for row in rows:
            if name == "meta" and row[0] in OURS | THEIRS:
                continue
            copy.write_row([plain(value) if isinstance(value, str) else value for value in row])
            copied += 1
    return copied
