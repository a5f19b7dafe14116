"""Checks of the database: whether it is there, whole, of this program's kind, and who has it."""

from onbeat.doctor.findings import Check, Finding, InstallationFacts, fail, length, ok, size, warn
from onbeat.ports.rows import NodeRow

LARGE_WAL = 256 * 2**20  # bytes
OLDEST_POSTGRES = 13
FEW_CONNECTIONS = 10
CLOCKS_APART = 1_000  # milliseconds


def database(seen: InstallationFacts) -> Finding:
    """Judge whether the database can be used."""
    looked, address = seen.looked, seen.known.database_shown
    if looked.problem:
        level = fail if looked.is_there or not looked.hint else warn
        return level("database", looked.problem, looked.hint)
    if looked.postgres is not None and looked.postgres.lacks:
        return ok("database", f"{address} answers")  # the rights are judged by themselves
    if looked.schema > looked.known_schema:
        told = f"{address} was written by a newer Onbeat (schema {looked.schema})"
        return fail("database", told, f"upgrade this one, which knows {looked.known_schema}")
    if looked.schema < looked.known_schema:
        told = f"{address} is of an older Onbeat (schema {looked.schema} of {looked.known_schema})"
        return warn("database", told, "make a backup: the next start brings it up to date")
    figures = "" if looked.standing is None else f", {size(looked.standing.figures.size)}"
    return ok("database", f"{address}, schema {looked.schema}{figures}")


def integrity(seen: InstallationFacts) -> Finding | None:
    """Judge whether the file is whole, by SQLite's own check."""
    looked = seen.looked
    if looked.problem or seen.known.is_postgres or looked.is_checked is None:
        return None
    if looked.damage:
        hint = "stop the node, keep a copy of the file, and put back a backup"
        return fail("integrity", f"the file is damaged: {looked.damage}", hint)
    if not looked.is_checked:
        hint = "PRAGMA quick_check, on a copy"
        return warn("integrity", "the file is too large to be checked in a moment", hint)
    return ok("integrity", "quick_check finds nothing wrong")


def wal(seen: InstallationFacts) -> Finding | None:
    """Judge how much waits to be put into the file."""
    if seen.looked.problem or seen.known.is_postgres:
        return None
    told = f"the WAL has {size(seen.looked.wal)}"
    if seen.looked.wal > LARGE_WAL:
        return warn("wal", told, "some process reads without end: end it, and the WAL is reset")
    return ok("wal", told)


def nodes(seen: InstallationFacts) -> Finding | None:
    """Judge whether anybody plans and runs."""
    standing = seen.looked.standing
    if standing is None:
        return None
    if not seen.known.is_postgres:
        if seen.holder is not None:
            return ok("nodes", f"{seen.holder.name} is up")
        return warn("nodes", "no node is up: nothing is planned", "onbeat up")
    up = [row for row in standing.overview.nodes if is_up(seen, row)]
    for role, without in (("plan", "nothing is planned"), ("run", "nothing starts")):
        if not any(role in row.roles for row in up):
            return warn("nodes", f"no node is up that does `{role}`: {without}", "onbeat up")
    return ok("nodes", f"{len(up)} up")


def silent_nodes(seen: InstallationFacts) -> Finding | None:
    """Judge whether nodes went without a word."""
    standing = seen.looked.standing
    if standing is None:
        return None
    silent = [row for row in standing.overview.nodes if not is_up(seen, row)]
    if silent:
        told = ", ".join(row.name for row in silent)
        hint = "it died or is cut off: its runs are decided by others, or at the next start"
        return warn("silent nodes", f"{told} fell silent", hint)
    return ok("silent nodes", "none")


def stopping_nodes(seen: InstallationFacts) -> Finding | None:
    """Judge whether nodes have been asked to stop."""
    standing = seen.looked.standing
    asked = [row.name for row in standing.overview.nodes if row.is_stopping] if standing else []
    if not asked:
        return None
    return warn("stopping nodes", f"{', '.join(asked)} is to stop", "it waits for its runs to end")


def is_up(seen: InstallationFacts, row: NodeRow) -> bool:
    """Return whether a node is alive: of a file, its lock tells."""
    standing = seen.looked.standing
    if not seen.known.is_postgres:
        return seen.holder is not None and seen.holder.node_id == row.node_id
    return standing is not None and row.alive_until > standing.overview.now


def postgres_version(seen: InstallationFacts) -> Finding | None:
    """Judge the version of the server."""
    server = seen.looked.postgres
    if server is None:
        return None
    told = f"PostgreSQL {server.version}"
    if server.version < OLDEST_POSTGRES:
        return fail("postgresql", told, f"PostgreSQL {OLDEST_POSTGRES} or newer")
    return ok("postgresql", told)


def postgres_rights(seen: InstallationFacts) -> Finding | None:
    """Judge what the user may do."""
    server = seen.looked.postgres
    if server is None:
        return None
    if server.lacks:
        hint = "let the user own the schema onbeat"
        return fail("rights", f"the database user lacks {server.lacks[0]}", hint)
    return ok("rights", "the database user may do what it has to")


def postgres_settings(seen: InstallationFacts) -> Finding | None:
    """Judge the settings of the server that what is promised depends on."""
    server = seen.looked.postgres
    if server is None or not server.settings:
        return None
    given = server.settings
    if given.get("in_recovery") == "true" or given.get("default_transaction_read_only") == "on":
        told = "the server only reads: it is a standby, or default_transaction_read_only is on"
        return fail("server", told, "name the primary, with target_session_attrs=read-write")
    if given.get("fsync") == "off":
        told = "fsync is off: after a power failure the database may be damaged"
        return warn("server", told, "fsync = on")
    if given.get("full_page_writes") == "off":
        told = "full_page_writes is off: after a power failure the database may be damaged"
        return warn("server", told, "full_page_writes = on, unless the file system is atomic")
    if given.get("synchronous_commit") == "off":
        told = "synchronous_commit is off, and on for what Onbeat commits"
        return ok("server", told)
    return ok("server", "its settings keep what is committed")


def postgres_connections(seen: InstallationFacts) -> Finding | None:
    """Judge whether there is room for another node."""
    server = seen.looked.postgres
    if server is None or server.is_pooled:
        return None
    told = f"{server.connections_left} connections left"
    if server.connections_left < FEW_CONNECTIONS:
        hint = "a node takes up to 6: raise max_connections, or put a pooler between"
        return warn("connections", told, hint)
    return ok("connections", told)


def postgres_pooler(seen: InstallationFacts) -> Finding | None:
    """Judge what is between here and the server."""
    server = seen.looked.postgres
    if server is None or not server.is_pooled:
        return None
    told = (
        "there is a pooler in transaction mode: nodes do not hear of each other's changes at once"
    )
    return warn(
        "pooler", told, "they look every half a second; without a pooler, or in session mode"
    )


def postgres_clock(seen: InstallationFacts) -> Finding | None:
    """Judge how far the clocks are apart. The server's is the one that counts."""
    server = seen.looked.postgres
    if server is None:
        return None
    apart = abs(server.clock - server.asked_at)
    told = f"this clock and the server's are {length(apart)} apart"
    if apart > CLOCKS_APART:
        return warn("clock", told, "the server's counts: have both follow NTP")
    return ok("clock", told)


CHECKS: tuple[Check, ...] = (
    database, integrity, wal, postgres_version, postgres_rights, postgres_settings,
    postgres_connections, postgres_pooler, postgres_clock, nodes, silent_nodes, stopping_nodes,
)  # fmt: skip
