"""Checks of the database: reachable, intact, of the right schema, and which nodes use it."""

from onbeat.doctor.findings import (
    Check,
    Finding,
    InstallationFacts,
    fail,
    length,
    names,
    ok,
    size,
    warn,
)
from onbeat.ports.rows import NodeRow

LARGE_WAL = 256 * 2**20  # bytes
OLDEST_POSTGRES = 13
FEW_CONNECTIONS = 10
LARGEST_CLOCK_SKEW = 1_000  # milliseconds


def database(facts: InstallationFacts) -> Finding:
    """Check whether the database can be used."""
    db, address = facts.database, facts.usable_settings.database_shown
    if db.problem:
        level = fail if db.is_there or not db.hint else warn
        return level("database", db.problem, db.hint)
    if db.postgres is not None and db.postgres.lacks:
        return ok("database", f"{address} answers")  # privileges have a check of their own
    if db.schema > db.known_schema:
        problem = f"{address} was written by a newer Onbeat: its schema is {db.schema}"
        hint = f"upgrade the Onbeat on this machine, which knows schema {db.known_schema}"
        return fail("database", problem, hint)
    if db.schema < db.known_schema:
        problem = f"{address} has schema {db.schema}, this Onbeat has {db.known_schema}"
        return warn("database", problem, "make a backup; the next onbeat up migrates it")
    figures = "" if facts.store is None else f", {size(facts.store.figures.size)}"
    return ok("database", f"{address}, schema {db.schema}{figures}")


def integrity(facts: InstallationFacts) -> Finding | None:
    """Check whether a SQLite file is intact."""
    db = facts.database
    if db.problem or facts.usable_settings.is_postgres or db.is_checked is None:
        return None
    if db.damage:
        hint = "onbeat down; keep a copy of the file; put back a backup; onbeat up --restored"
        return fail("integrity", f"the file is damaged: {db.damage}", hint)
    if not db.is_checked:
        problem = "quick_check did not finish in time: the file is too large"
        return warn("integrity", problem, "run PRAGMA quick_check on a copy of the file")
    return ok("integrity", "quick_check finds nothing wrong")


def wal(facts: InstallationFacts) -> Finding | None:
    """Check the size of the write-ahead log."""
    if facts.database.problem or facts.usable_settings.is_postgres:
        return None
    current = f"the WAL has {size(facts.database.wal)}"
    if facts.database.wal > LARGE_WAL:
        problem = f"{current}, more than {size(LARGE_WAL)}: a reader keeps it from being reset"
        return warn("wal", problem, "end the process that keeps a read transaction open (lsof)")
    return ok("wal", current)


def nodes(facts: InstallationFacts) -> Finding | None:
    """Check whether a node plans and a node runs."""
    if facts.store is None:
        return None
    if not facts.usable_settings.is_postgres:
        if facts.lock_holder is not None:
            return ok("nodes", f"{facts.lock_holder.name} is up")
        return warn("nodes", "no node is up: nothing is planned or started", "onbeat up")
    up = [row for row in facts.store.overview.nodes if is_up(facts, row)]
    for role, consequence in (("plan", "nothing is planned"), ("run", "nothing starts")):
        if not any(role in row.roles for row in up):
            problem = f"no node with the role `{role}` is up: {consequence}"
            return warn("nodes", problem, f"onbeat up --roles {role}")
    return ok("nodes", f"{len(up)} up")


def silent_nodes(facts: InstallationFacts) -> Finding | None:
    """Check whether a node stopped renewing its lease."""
    if facts.store is None:
        return None
    silent = [row for row in facts.store.overview.nodes if not is_up(facts, row)]
    if silent:
        fell_silent = f"{', '.join(row.name for row in silent)} fell silent: its lease has expired"
        hint = "look at its log; a living node takes over its runs, or the next onbeat up"
        return warn("silent nodes", fell_silent, hint)
    return ok("silent nodes", "none")


def stopping_nodes(facts: InstallationFacts) -> Finding | None:
    """Check whether a node is shutting down."""
    store = facts.store
    stopping = [row.name for row in store.overview.nodes if row.is_stopping] if store else []
    if not stopping:
        return None
    hint = "it waits for its runs to end: onbeat runs --status started; onbeat cancel NAME"
    return warn("stopping nodes", f"{', '.join(stopping)} is stopping", hint)


def is_up(facts: InstallationFacts, row: NodeRow) -> bool:
    """Return whether a node is alive: by its lock on a SQLite file, by its lease on PostgreSQL."""
    if not facts.usable_settings.is_postgres:
        return facts.lock_holder is not None and facts.lock_holder.node_id == row.node_id
    return facts.store is not None and row.alive_until > facts.store.overview.now


def postgres_version(facts: InstallationFacts) -> Finding | None:
    """Check the version of the server."""
    server = facts.database.postgres
    if server is None:
        return None
    version = f"PostgreSQL {server.version}"
    if server.version < OLDEST_POSTGRES:
        problem = f"{version} is too old: Onbeat needs {OLDEST_POSTGRES} or newer"
        return fail("postgresql", problem, f"upgrade the server to PostgreSQL {OLDEST_POSTGRES}")
    return ok("postgresql", version)


def postgres_rights(facts: InstallationFacts) -> Finding | None:
    """Check the privileges of the database user."""
    server = facts.database.postgres
    if server is None:
        return None
    if server.lacks:
        hint = "GRANT it, or make the user the owner: ALTER SCHEMA onbeat OWNER TO <user>"
        return fail("rights", f"the database user lacks {names(server.lacks)}", hint)
    return ok("rights", "the database user has all privileges that Onbeat needs")


def postgres_settings(facts: InstallationFacts) -> Finding | None:
    """Check the server settings that durability depends on."""
    server = facts.database.postgres
    if server is None or not server.settings:
        return None
    values = server.settings
    if values.get("in_recovery") == "true" or values.get("default_transaction_read_only") == "on":
        problem = "the server is read-only: it is a standby, or default_transaction_read_only is on"
        hint = "connect to the primary: add target_session_attrs=read-write to the database URL"
        return fail("server", problem, hint)
    if values.get("fsync") == "off":
        problem = "fsync is off: a power failure can damage the database"
        return warn("server", problem, "fsync = on in postgresql.conf")
    if values.get("full_page_writes") == "off":
        problem = "full_page_writes is off: a power failure can damage the database"
        hint = "full_page_writes = on in postgresql.conf, unless the file system writes atomically"
        return warn("server", problem, hint)
    if values.get("synchronous_commit") == "off":
        return ok("server", "synchronous_commit is off; Onbeat turns it on for its transactions")
    return ok("server", "its settings make commits durable")


def postgres_connections(facts: InstallationFacts) -> Finding | None:
    """Check whether another node can connect."""
    server = facts.database.postgres
    if server is None or server.is_pooled:
        return None
    left = f"{server.connections_left} connections left"
    if server.connections_left < FEW_CONNECTIONS:
        hint = "a node uses up to 6: raise max_connections, or put a pooler in front"
        return warn("connections", left, hint)
    return ok("connections", left)


def postgres_pooler(facts: InstallationFacts) -> Finding | None:
    """Check for a pooler in transaction mode."""
    server = facts.database.postgres
    if server is None or not server.is_pooled:
        return None
    problem = "a pooler in transaction mode: nodes poll every 0.5 s instead of being notified"
    return warn("pooler", problem, "connect without the pooler, or switch it to session mode")


def postgres_clock(facts: InstallationFacts) -> Finding | None:
    """Check the clock skew. Onbeat uses the clock of the server."""
    server = facts.database.postgres
    if server is None:
        return None
    skew = abs(server.clock - server.asked_at)
    difference = f"the clocks of this machine and the server differ by {length(skew)}"
    if skew > LARGEST_CLOCK_SKEW:
        hint = "Onbeat uses the server's clock: synchronize both by NTP (timedatectl)"
        return warn("clock", difference, hint)
    return ok("clock", difference)


CHECKS: tuple[Check, ...] = (
    database, integrity, wal, postgres_version, postgres_rights, postgres_settings,
    postgres_connections, postgres_pooler, postgres_clock, nodes, silent_nodes, stopping_nodes,
)  # fmt: skip
