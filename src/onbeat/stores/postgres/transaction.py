"""How a call reads, writes and holds rows on PostgreSQL.

Every statement sees what was committed before it began. So what is decided by is read only after
what serialises it is held: the gate, then a node's row, then the state rows of schedules.
"""

import re
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from time import monotonic
from typing import Protocol

from onbeat.ports.clock import Clock
from onbeat.stores.sql.rows import GOES_ON
from onbeat.stores.sql.transaction import Bindings, Row, Transaction, Value, Values

# Our advisory locks: no other program of the database is likely to have these numbers.
MIGRATING, GATE, DEFINITIONS = (0x4F4E_4254_0000_0000 + n for n in (1, 2, 3))
FULL_LOOK = 0.5  # seconds between two looks at all that is due, or more if that takes long
WRITERS_FOR = 1000  # milliseconds for which a look at who writes events serves all who follow them
MOST_KNOWN = 100_000  # definitions that are remembered

NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# The clock is read when all the rows are held.
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
SELECT r.run_id, r.schedule_id, r.run_at, r.due_at, r.attempt, r.fence, r.request_id,
       r.triggered_by, r.iteration, r.tick_count, r.first_run_at, r.inputs, r.created_at,
       r.deferrals, r.deadline_at, r.grp, r.rendered, r.reason = 'lost',
       {GOES_ON}, r.end_asked_at IS NOT NULL, r.revision
  FROM schedule_runs r JOIN schedule_state t USING (schedule_id)
 WHERE r.status = 'ENQUEUED' AND r.leased_by IS NULL AND r.blocked_by IS NULL AND r.due_at <= ?1
   AND r.needs IN (?2[]) AND (
        r.request_id <> '' OR r.triggered_by = 'backfill' OR {GOES_ON} OR NOT EXISTS (
        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))
   AND (r.grp IS NULL OR NOT (r.grp IN (?4[])) OR {GOES_ON}) AND NOT (r.schedule_id IN (?5[]))
   AND (r.deadline_at IS NULL OR r.deadline_at > ?1)
 ORDER BY r.priority DESC, r.due_at, r.run_at, r.schedule_id
 LIMIT ?3
   FOR UPDATE OF r, t SKIP LOCKED
"""

TAKE_GROUPS = """
SELECT name, places FROM groups WHERE name IN (?1[]) ORDER BY name FOR UPDATE SKIP LOCKED
"""

SAID = """
SELECT schedule_id, revision, created_at, user_id, paused FROM schedules
 WHERE schedule_id IN (?1[])
"""

PAST_DEFINITIONS = """
SELECT schedule_id, revision, definition FROM past_definitions
 WHERE schedule_id IN (?1[]) AND revision IN (?2[]) AND definition <> ''
"""

DEFINITIONS_OF = "SELECT schedule_id, definition FROM schedules WHERE schedule_id IN (?1[])"


# Since when the oldest transaction is open that has written events. One whose commit
# waits is among them. That of another user is not shown to everyone: 0, any time.
OLDEST_WRITER = """
SELECT min(coalesce((extract(epoch FROM a.xact_start) * 1000)::bigint, 0))
  FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
 WHERE l.relation = 'events'::regclass AND l.mode = 'RowExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class SqlCursor(Protocol):
    """As much of a cursor as a transaction needs."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""

    def execute(self, query: str, params: Sequence[object] | None = None) -> object:
        """Execute a statement, whose values are $1, $2 and so on."""

    def fetchall(self) -> list[Row]:
        """Return the rows that are left."""

    def fetchone(self) -> Row | None:
        """Return the next row."""


class TransactionCache:
    """What a store remembers between transactions, to look at less: nothing depends on it."""

    def __init__(self) -> None:
        self.due_from = 0  # nothing is due before it, unless somebody gave it back since
        self._look_at = 0.0
        self._definitions: dict[tuple[str, int, int], str] = {}
        self.writers: tuple[int, int | None] = (0, None)  # when looked for, and the oldest

    def from_where(self) -> int:
        """Return from where on to look for due rows: now and then from the very beginning.

        The head of the queue is where rows have died; a vacuum that somebody's old snapshot holds
        up cannot take them away.
        """
        return self.due_from if monotonic() < self._look_at else 0

    def looked(self, since: float, began: int, first: int | None) -> None:
        """Take note of a look that began there, found that row first, and took until now."""
        now = monotonic()
        if not began:
            self._look_at = now + max(FULL_LOOK, 10 * (now - since))
        if first is not None:
            self.due_from = first

    def definitions(
        self, tx: "PostgresTransaction", keys: Sequence[tuple[str, int, int]]
    ) -> dict[str, str]:
        """Return what schedules say, of ids with their revision and when they were created."""
        known = self._definitions  # other threads use it, too
        found = {key[0]: known[key] for key in keys if key in known}
        unknown = {key[0]: key for key in keys if key[0] not in found}
        if unknown:
            if len(known) > MOST_KNOWN:
                known = self._definitions = {}
            for schedule_id, text in tx.all(DEFINITIONS_OF, (list(unknown),)):
                found[schedule_id] = known[unknown[schedule_id]] = text
        return found


class PostgresTransaction(Transaction):
    """What PostgreSQL adds: others write at the same time, so that rows are held."""

    __slots__ = ("_clock", "_cursor", "_known")
    is_shared = True
    SIZE = """SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
 WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"""

    def __init__(
        self, cursor: SqlCursor, now: int, clock: Clock | None, known: TransactionCache
    ) -> None:
        super().__init__(now)
        self._cursor, self._clock, self._known = cursor, clock, known

    @property
    def written_at(self) -> str:
        return f"greatest(?1, {NOW})" if self._clock is None else "?1"

    def write_events(self) -> None:
        if self._clock is not None:
            self.now = self._clock.now()
        super().write_events()

    @property
    def due_from(self) -> int:
        return self._known.from_where()

    def oldest_writer(self, before: int) -> int | None:
        if self._clock is not None:  # the server does not know the clock of a test
            return None
        looked, oldest = self._known.writers
        # Who began since the last look has written nothing that is older than it.
        if looked < max(before, self.now - WRITERS_FOR):
            row = self.one(OLDEST_WRITER)
            oldest = None if row is None else row[0]
            self._known.writers = self.now, oldest
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
            row = self.one(HOLD, (list(schedule_ids),))
            assert row is not None, "a count has a row"
            self.now = row[0] if self._clock is None else self._clock.now()

    def hold_definitions(self) -> None:
        self.run("SELECT pg_advisory_xact_lock(?1)", (DEFINITIONS,))

    def keep_gate(self) -> None:
        self.run("SELECT pg_advisory_xact_lock_shared(?1)", (GATE,))

    def hold_gate(self) -> None:
        self.run("SELECT pg_advisory_xact_lock(?1)", (GATE,))
        row = self.one(f"SELECT {NOW}")  # others may have decided while it was waited for
        assert row is not None, "a time has a row"
        self.now = row[0] if self._clock is None else self._clock.now()

    def take_due(self, limit: int) -> list[Row]:
        since, began = monotonic(), self.due_from
        taken = sorted(self.all(TAKE_DUE, (began, self.now, limit)), key=lambda row: row[:2])
        self._known.looked(since, began, taken[0][0] if taken else None)
        if not taken:
            return []
        said = self._said([row[1] for row in taken])
        rows: list[Row] = []
        for _, schedule_id, run_at, *state, spread_until, rated, happened in taken:
            definition, revision, created_at, user_id, paused = said[schedule_id]
            about = (created_at, revision, user_id, spread_until, rated, happened, paused)
            rows.append((schedule_id, run_at, definition, *state, *about))
        return rows

    def take_waiting(
        self, needs: Sequence[str], limit: int, but_groups: Sequence[str], but: Sequence[str]
    ) -> list[Row]:
        asked = (self.now, list(needs), limit, list(but_groups), list(but))
        taken = self.all(TAKE_WAITING, asked)
        said = self._said(list({row[1] for row in taken})) if taken else {}
        before = {(row[1], row[-1]) for row in taken if row[-1] != said[row[1]][1]}
        past = self._past_definitions(before) if before else {}
        rows: list[Row] = []
        for *row, own in taken:
            schedule_id = row[1]
            current, revision, _, user_id, paused = said[schedule_id]
            # It may have been paused since it was looked for.
            if paused and not (row[6] or row[7] == "backfill" or row[18]):
                continue
            if own == revision:
                rows.append((*row, current, own, None, user_id))
            else:
                rows.append((*row, past.get((schedule_id, own)), own, current, user_id))
        return rows

    def take_groups(self, names: Sequence[str]) -> dict[str, int]:
        return dict(self.all(TAKE_GROUPS, (list(names),)))

    def take_run_ids(self, n: int) -> Sequence[int]:
        rows = self.all("SELECT nextval('run_ids') FROM generate_series(1, ?1)", (n,))
        return [run_id for (run_id,) in rows]

    def leave_out_ids(self, n: int) -> None:
        events = "pg_get_serial_sequence('events', 'event_id')"
        for name in ("'run_ids'", events):
            self.all(f"SELECT setval({name}, nextval({name}) + ?1)", (n,))

    def _past_definitions(self, which: Collection[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Return what schedules said at earlier revisions."""
        ids, revisions = {each[0] for each in which}, {each[1] for each in which}
        found = self.all(PAST_DEFINITIONS, (list(ids), list(revisions)))
        return {(schedule_id, revision): text for schedule_id, revision, text in found}

    def _said(self, schedule_ids: Sequence[str]) -> dict[str, Row]:
        """Return what schedules that are held say, with their revision, time, user and pause."""
        rows = self.all(SAID, (list(schedule_ids),))
        texts = self._known.definitions(self, [row[:3] for row in rows])
        return {row[0]: (texts[row[0]], *row[1:]) for row in rows}

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
    """Return a statement as PostgreSQL reads it."""
    sql = re.sub(r"IN \(\?(\d+)\[\]\)", r"= ANY($\1)", sql)
    sql = re.sub(r"INDEXED BY \w+", "", sql)
    return re.sub(r"\?(\d+)", r"$\1", sql)


@lru_cache(maxsize=256)
def for_many(sql: str, first: int) -> tuple[str, tuple[str, ...]]:
    """Return a statement that takes the values of many rows as one array a column, and their kinds.

    A row of values becomes a row of the arrays side by side.
    """
    before, row, after = re.split("[{}]", sql)
    kinds = tuple(re.findall(r"\?(int|text)\b", row))
    arrays = [
        f"${n}::{'bigint' if kind == 'int' else 'text'}[]"
        for n, kind in enumerate(kinds, first + 1)
    ]
    if before.endswith("IN ("):
        return in_postgres(f"{before[:-4]}= ANY({arrays[0]}{after}"), kinds
    names = iter(f"each_row.v{n}" for n in range(len(kinds)))
    columns = ", ".join(f"v{n}" for n in range(len(kinds)))
    row = re.sub(r"\?(int|text)\b", lambda _: next(names), row.strip()[1:-1])
    select = f"SELECT {row} FROM unnest({', '.join(arrays)}) AS each_row ({columns})"
    return in_postgres(f"{before.rstrip().removesuffix('VALUES')}{select}{after}"), kinds


def _integers(values: Sequence[Value]) -> str:
    """Return an array as PostgreSQL reads it. This is the work of every batch, so it is direct."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def _texts(values: Sequence[Value]) -> str:
    return f"{{{','.join(['NULL' if value is None else _quoted(str(value)) for value in values])}}}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
