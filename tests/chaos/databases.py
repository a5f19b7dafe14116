"""The two databases that chaos comes to: a SQLite file with one node, and PostgreSQL with three."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import apsw
import psycopg

from onbeat.core.runs.phase import STARTED
from onbeat.events import decode_events
from tests.chaos.history import COLUMNS, History, Row, read_halted, read_witness
from tests.chaos.node import POINTS, SHARED_POINTS
from tests.postgres import Server

LEVEL = 500  # milliseconds that a due row may wait to be decided
DANGLING = """
SELECT 'due', schedule_id FROM due WHERE schedule_id NOT IN (SELECT schedule_id FROM schedules)
UNION ALL SELECT 'run', schedule_id FROM schedule_runs
 WHERE schedule_id NOT IN (SELECT schedule_id FROM schedules)
UNION ALL SELECT 'without state', schedule_id FROM schedules
 WHERE schedule_id NOT IN (SELECT schedule_id FROM schedule_state)
"""
CHANGED = """
SELECT schedule_id, until_at FROM past_definitions
UNION SELECT schedule_id, created_at FROM schedules
ORDER BY 1, 2
"""
ALARMS = (b"PANIC", b"corrupt", b"invalid page", b"could not read block")


class Database(ABC):
    """A database that nodes work on, as the driver and the checker look at it."""

    nodes: int  # so many at a time
    points: tuple[str, ...]  # where they die
    server: Server | None = None

    def __init__(self) -> None:
        self._store_id = ""

    @abstractmethod
    def url(self, name: str = "onbeat") -> str:
        """Return the address for whoever is called so."""

    @abstractmethod
    def query(self, sql: str) -> list[tuple]:
        """Return what a statement finds, or nothing if there are no tables yet."""

    @abstractmethod
    def damage(self) -> list[str]:
        """Return what is wrong with the database itself."""

    @property
    def store_id(self) -> str:
        """The store's own id, which its runs carry; empty if it is not known yet."""
        if not self._store_id:
            for (found,) in self.query("SELECT value FROM meta WHERE name = 'store_id'"):
                self._store_id = found
        return self._store_id

    def is_level(self, now: int) -> bool:
        """Return whether nothing is undecided that was due a moment ago."""
        return not self.query(f"SELECT 1 FROM due WHERE due_at < {now - LEVEL} LIMIT 1")

    def is_settled(self) -> bool:
        """Return whether every run has ended."""
        return not self.query("SELECT 1 FROM schedule_runs WHERE finished_at IS NULL LIMIT 1")

    def started(self) -> set[tuple[int, int]]:
        """Return which attempts are told to be going on, with their run."""
        rows = self.query(
            "SELECT run_id, attempt, phase FROM schedule_runs WHERE finished_at IS NULL"
        )
        return {(run_id, attempt) for run_id, attempt, phase in rows if phase in STARTED}

    def read(self, folder: Path) -> History:
        """Read what is left, in the database and in a folder."""
        rows = self.query(f"SELECT {', '.join(COLUMNS)} FROM schedule_runs")
        told = self.query("SELECT at, body FROM events ORDER BY event_id")
        live = self.query("SELECT schedule_id FROM schedules WHERE deleted_at IS NULL")
        changed_at: dict[str, list[int]] = defaultdict(list)
        for schedule_id, at in self.query(CHANGED):
            changed_at[schedule_id].append(at)
        return History(
            rows={row[0]: Row(*row) for row in rows},
            events=[(at, event) for at, body in told for event in decode_events(str(body))],
            witness=read_witness(folder / "witness"),
            live={name for (name,) in live},
            due=Counter(name for (name,) in self.query("SELECT schedule_id FROM due")),
            nodes=[name for (name,) in self.query("SELECT name FROM nodes")],
            changed_at=dict(changed_at),
            damage=self.damage(),
            halted=read_halted(folder / "halted"),
        )


class SqliteFile(Database):
    """A file, which has one node at a time."""

    nodes, points = 1, POINTS

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def url(self, name: str = "onbeat") -> str:
        return f"sqlite:///{self._path}"

    def query(self, sql: str) -> list[tuple]:
        with closing(apsw.Connection(str(self._path))) as connection:
            connection.set_busy_timeout(5000)
            try:
                return connection.execute(sql).fetchall()
            except apsw.SQLError:  # a node was killed before there was a table
                return []

    def damage(self) -> list[str]:
        found = [text for (text,) in self.query("PRAGMA integrity_check") if text != "ok"]
        return found + [f"foreign key: {row}" for row in self.query("PRAGMA foreign_key_check")]


class PostgresDatabase(Database):
    """A database of its own on a server, shared by three nodes."""

    nodes, points = 3, SHARED_POINTS

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server, self._url = server, server.new_database()

    def url(self, name: str = "onbeat") -> str:
        return f"{self._url}?application_name={name}"

    def query(self, sql: str) -> list[tuple]:
        with psycopg.connect(
            self.url("chaos"), autocommit=True, connect_timeout=5, options="-c search_path=onbeat"
        ) as connection:
            try:
                return connection.execute(sql).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

    def end_backends(self, name: str, most: int) -> int:
        """End up to so many connections of clients whose name is LIKE this; return how many."""
        found = self.query(
            "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "
            f"WHERE application_name LIKE '{name}' ORDER BY random() LIMIT {most}) chosen"
        )
        return len(found)

    def damage(self) -> list[str]:
        log = (self.server.folder / "server.log").read_bytes().splitlines()
        told = [line.decode() for line in log if any(alarm in line for alarm in ALARMS)]
        return told + [f"dangling: {row}" for row in self.query(DANGLING)]
