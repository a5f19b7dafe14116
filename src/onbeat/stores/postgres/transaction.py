"""`PostgresTransaction`: how a call reads, writes and locks rows on PostgreSQL.

Every statement sees what was committed before it began. So rows that a decision depends on are read
after the locks that serialize it are taken: the gate, a node's row, the state rows of schedules.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from time import monotonic
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from onbeat.ports.clock import Clock
from onbeat.stores.sql.rows import IGNORES_PAUSE, IS_DETACHED, is_claimable
from onbeat.stores.sql.taken_rows import WAITING_COLUMNS, DueRow, State, WaitingRow
from onbeat.stores.sql.transaction import Bindings, Row, Transaction, Value, Values

# Advisory locks, with numbers that other users of the database are unlikely to use.
MIGRATING, GATE, DEFINITIONS = (0x4F4E_4254_0000_0000 + n for n in (1, 2, 3))
FULL_SCAN_EVERY = 0.5  # seconds between two scans of all due rows, more if they take long
WRITERS_FOR = 1000  # milliseconds for which the oldest writer of events is cached
MOST_DEFINITIONS = 100_000  # in the cache

NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# The clock is read when all rows are locked.
HOLD = f"""
SELECT {NOW}, count(*) FROM (
    SELECT 1 FROM schedule_state WHERE schedule_id IN (?1[]) ORDER BY schedule_id FOR UPDATE) held
"""

TAKE_DUE = """
SELECT d.due_at, d.schedule_id, d.run_at, t.decided_until, t.decided_run_at, t.iteration,
       t.runs_used, t.spread_until, t.rated, t.happened
  FROM due d JOIN schedule_state t USING (schedule_id)
 WHERE d.due_at BETWEEN ?1 AND ?2
 ORDER BY d.due_at, d.schedule_id
 LIMIT ?3
   FOR UPDATE OF d, t SKIP LOCKED
"""

TAKE_WAITING = f"""
SELECT {WAITING_COLUMNS}, NULL, NULL, NULL
  FROM schedule_runs r JOIN schedule_state t USING (schedule_id)
 WHERE {is_claimable("r.")} AND r.due_at <= ?1
   AND r.needs IN (?2[]) AND ({IGNORES_PAUSE} OR NOT EXISTS (
        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))
   AND (r.grp IS NULL OR NOT (r.grp IN (?4[])) OR r.{IS_DETACHED}) AND NOT (r.schedule_id IN (?5[]))
   AND (r.deadline_at IS NULL OR r.deadline_at > ?1)
 ORDER BY r.priority DESC, r.due_at, r.run_at, r.schedule_id
 LIMIT ?3
   FOR UPDATE OF r, t SKIP LOCKED
"""

TAKE_GROUPS = """
SELECT name, places FROM groups WHERE name IN (?1[]) ORDER BY name FOR UPDATE SKIP LOCKED
"""

SCHEDULES = """
SELECT schedule_id, revision, created_at, user_id, paused FROM schedules
 WHERE schedule_id IN (?1[])
"""

PAST_DEFINITIONS = """
SELECT schedule_id, revision, definition FROM past_definitions
 WHERE schedule_id IN (?1[]) AND revision IN (?2[]) AND definition <> ''
"""

DEFINITIONS_OF = "SELECT schedule_id, definition FROM schedules WHERE schedule_id IN (?1[])"


# The start of the oldest open transaction that has written events, including one whose commit
# waits. The start of another user's transaction may be hidden: then 0, at any time.
OLDEST_WRITER = """
SELECT min(coalesce((extract(epoch FROM a.xact_start) * 1000)::bigint, 0))
  FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
 WHERE l.relation = 'events'::regclass AND l.mode = 'RowExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class SqlCursor(Protocol):
    """The part of a cursor that a transaction uses."""

    @property
    def rowcount(self) -> int:
        """The rows that the last statement changed."""

    def execute(self, query: str, params: Sequence[object] | None = None) -> object:
        """Execute a statement, whose values are $1, $2 and so on."""

    def fetchall(self) -> list[Row]:
        """Return the remaining rows."""

    def fetchone(self) -> Row | None:
        """Return the next row."""


class _HeldSchedule(NamedTuple):
    """A schedule whose state row is held."""

    definition: str
    revision: int
    created_at: int
    user_id: str
    paused: int


class TransactionCache:
    """What a store caches between transactions, to read less: correctness does not depend on it."""

    def __init__(self) -> None:
        self.due_from = 0  # no row is due before it, unless one was handed back since
        self._next_full_scan = 0.0
        self._definitions: dict[tuple[str, int, int], str] = {}
        self.writers: tuple[int, int | None] = (0, None)  # when read, and the oldest

    def scan_from(self) -> int:
        """Return the due time to scan due rows from: 0, a full scan, at intervals.

        Dead rows collect at the head of the queue while an old snapshot keeps vacuum from removing
        them.
        """
        return self.due_from if monotonic() < self._next_full_scan else 0

    def note_scan(self, since: float, began: int, first: int | None) -> None:
        """Record a scan from due time `began`, started at `since`, and its first row."""
        now = monotonic()
        if not began:
            self._next_full_scan = now + max(FULL_SCAN_EVERY, 10 * (now - since))
        if first is not None:
            self.due_from = first

    def definitions(
        self, tx: "PostgresTransaction", keys: Mapping[str, tuple[str, int, int]]
    ) -> dict[str, str]:
        """Return the definitions of schedules; keys are their id, revision and creation time."""
        cached = self._definitions  # other threads use it, too
        found = {name: cached[key] for name, key in keys.items() if key in cached}
        missing = keys.keys() - found.keys()
        if missing:
            if len(cached) > MOST_DEFINITIONS:
                cached = self._definitions = {}
            for schedule_id, text in tx.all(DEFINITIONS_OF, (list(missing),)):
                found[schedule_id] = cached[keys[schedule_id]] = text
        return found


class PostgresTransaction(Transaction):
    """A transaction on PostgreSQL: others write concurrently, so that rows are locked."""

    __slots__ = ("_cache", "_clock", "_cursor")
    is_shared = True
    SIZE = """SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
 WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"""

    def __init__(
        self, cursor: SqlCursor, now: int, clock: Clock | None, cache: TransactionCache
    ) -> None:
        super().__init__(now)
        self._cursor, self._clock, self._cache = cursor, clock, cache

    @property
    def written_at(self) -> str:
        return f"greatest(?1, {NOW})" if self._clock is None else "?1"

    def write_events(self) -> None:
        if self._clock is not None:
            self.now = self._clock.now()
        super().write_events()

    @property
    def due_from(self) -> int:
        return self._cache.scan_from()

    def oldest_writer(self, before: int) -> int | None:
        if self._clock is not None:  # the server does not use the clock of a test
            return None
        read_at, oldest = self._cache.writers
        # A transaction that began after the last read has written no older events.
        if read_at < max(before, self.now - WRITERS_FOR):
            oldest = self.value(OLDEST_WRITER)
            self._cache.writers = self.now, oldest
        return oldest

    def all(self, sql: str, bindings: Bindings = ()) -> list[Row]:
        self._cursor.execute(in_postgres(sql), bindings)
        return self._cursor.fetchall()

    def one(self, sql: str, bindings: Bindings = ()) -> Row | None:
        self._cursor.execute(in_postgres(sql), bindings)
        return self._cursor.fetchone()

    def run(self, sql: str, bindings: Bindings = ()) -> int:
        self._cursor.execute(in_postgres(sql), bindings)
        return self._cursor.rowcount

    def many(self, sql: str, values: Values, first: Bindings = ()) -> int:
        if not values:
            return 0
        self._execute_many(sql, values, first)
        return self._cursor.rowcount

    def each(self, sql: str, values: Values, first: Bindings = ()) -> list[Row]:
        if not values:
            return []
        self._execute_many(sql, values, first)
        return self._cursor.fetchall()

    def hold(self, schedule_ids: Collection[str]) -> None:
        if schedule_ids:
            ((now, _),) = self.all(HOLD, (list(schedule_ids),))
            self.now = now if self._clock is None else self._clock.now()

    def hold_definitions(self) -> None:
        self.run("SELECT pg_advisory_xact_lock(?1)", (DEFINITIONS,))

    def keep_gate(self) -> None:
        self.run("SELECT pg_advisory_xact_lock_shared(?1)", (GATE,))

    def hold_gate(self) -> None:
        self.run("SELECT pg_advisory_xact_lock(?1)", (GATE,))
        now = self.value(f"SELECT {NOW}")  # others may have decided while this waited
        self.now = now if self._clock is None else self._clock.now()

    def take_due(self, limit: int) -> list[DueRow]:
        since, began = monotonic(), self.due_from
        # By due time and schedule: the columns after these never decide, a schedule has one row.
        taken = sorted(self.all(TAKE_DUE, (began, self.now, limit)))
        self._cache.note_scan(since, began, next((due_at for due_at, *_ in taken), None))
        if not taken:
            return []
        schedules = self._schedules([schedule_id for _, schedule_id, *_ in taken])
        rows: list[DueRow] = []
        for _, schedule_id, run_at, *position, spread_until, rated, happened in taken:
            definition, revision, created_at, user_id, paused = schedules[schedule_id]
            columns = [*position, created_at, revision, user_id, spread_until, rated, happened]
            rows.append(DueRow(schedule_id, run_at, definition, State(*columns), paused))
        return rows

    def take_waiting(
        self, needs: Sequence[str], limit: int, but_groups: Sequence[str], but: Sequence[str]
    ) -> list[WaitingRow]:
        bindings = (self.now, list(needs), limit, list(but_groups), list(but))
        taken = [WaitingRow.of_columns(row) for row in self.all(TAKE_WAITING, bindings)]
        if not taken:
            return []
        schedules = self._schedules(list({row.stored.schedule_id for row in taken}))
        keys = {(row.stored.schedule_id, row.stored.revision) for row in taken}
        before = {(name, n) for name, n in keys if n != schedules[name].revision}
        past = self._past_definitions(before) if before else {}
        rows: list[WaitingRow] = []
        for row in taken:
            own = row.stored.schedule_id, row.stored.revision
            held = schedules[row.stored.schedule_id]
            if held.paused and not row.ignores_pause:
                continue  # it was paused since the rows were selected
            current, user_id = held.definition, held.user_id
            if own in before:
                found = replace(row, definition=past.get(own), current=current, user_id=user_id)
            else:
                found = replace(row, definition=current, user_id=user_id)
            rows.append(found)
        return rows

    def take_groups(self, names: Sequence[str]) -> dict[str, int]:
        return dict(self.all(TAKE_GROUPS, (list(names),)))

    def take_run_ids(self, n: int) -> Sequence[int]:
        return self.column("SELECT nextval('run_ids') FROM generate_series(1, ?1)", (n,))

    def leave_out_ids(self, n: int) -> None:
        events = "pg_get_serial_sequence('events', 'event_id')"
        for name in ("'run_ids'", events):
            self.all(f"SELECT setval({name}, nextval({name}) + ?1)", (n,))

    def _past_definitions(self, which: Collection[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Return definitions of earlier revisions."""
        ids, revisions = map(list, zip(*which, strict=True))
        found = self.all(PAST_DEFINITIONS, (ids, revisions))
        return {(schedule_id, revision): text for schedule_id, revision, text in found}

    def _schedules(self, schedule_ids: Sequence[str]) -> dict[str, _HeldSchedule]:
        """Return what a planner and a claim need of schedules, which are held, by id."""
        rows = self.all(SCHEDULES, (list(schedule_ids),))
        keys = {name: (name, revision, created) for name, revision, created, *_ in rows}
        texts = self._cache.definitions(self, keys)
        return {name: _HeldSchedule(texts[name], *columns) for name, *columns in rows}

    def _execute_many(self, sql: str, values: Values, first: Bindings) -> None:
        statement, kinds = for_many(sql, len(first))
        width = len(kinds)
        columns = [
            (_integers if kind == "int" else _texts)(values[n::width])
            for n, kind in enumerate(kinds)
        ]
        self._cursor.execute(statement, (*first, *columns))


@cache
def in_postgres(sql: str) -> str:
    """Return a statement in PostgreSQL's notation."""
    sql = re.sub(r"IN \(\?(\d+)\[\]\)", r"= ANY($\1)", sql)
    sql = re.sub(r"INDEXED BY \w+", "", sql)
    return re.sub(r"\?(\d+)", r"$\1", sql)


@lru_cache(maxsize=256)
def for_many(sql: str, first: int) -> tuple[str, tuple[str, ...]]:
    """Return a statement that takes the values of many rows as an array for each column.

    Also returns the kind of each column, `int` or `text`. The arrays are unnested into rows.
    """
    before, row, after = re.split("[{}]", sql)
    kinds = tuple(re.findall(r"\?(int|text)\b", row))
    arrays = [
        f"${n}::{'bigint' if kind == 'int' else 'text'}[]"
        for n, kind in enumerate(kinds, first + 1)
    ]
    if before.endswith("IN ("):
        return in_postgres(f"{before.removesuffix('IN (')}= ANY({arrays[0]}{after}"), kinds
    names = iter(f"each_row.v{n}" for n in range(len(kinds)))
    columns = ", ".join(f"v{n}" for n in range(len(kinds)))
    row = re.sub(
        r"\?(int|text)\b", lambda _: next(names), row.strip().removeprefix("(").removesuffix(")")
    )
    select = f"SELECT {row} FROM unnest({', '.join(arrays)}) AS each_row ({columns})"
    return in_postgres(f"{before.rstrip().removesuffix('VALUES')}{select}{after}"), kinds


def _integers(values: Sequence[Value]) -> str:
    """Return an array literal. Every batch does this, so it is written for speed."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def _texts(values: Sequence[Value]) -> str:
    return f"{{{','.join(['NULL' if value is None else _quoted(str(value)) for value in values])}}}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
