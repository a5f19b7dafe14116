"""Following new time zone data: recompute due rows that older data has computed.

The invariant: no tick starts at a time that older zone data computed and newer data denies. So

    1. `meta.tz` is the version that due rows are computed with. A node with older data plans
       nothing; a node with newer data writes its own version there before it plans.
    2. While `meta.tz_followed` exists, a due row may still be from older data: the transaction
       that decides, edits, resumes or deletes its schedule first recomputes it. That applies to
       schedules with an id later than the cursor.
    3. Due rows that newer data moves to an earlier time are found by `follow`: those due within
       hours by `begin`, before the node plans; the rest in the background, by id.
    4. A writer with older data sets `meta.tz_stale`: all schedules are followed again.

A batch holds the state rows of its schedules, so that no writer with older data is about to write
one of their due rows: a later one sees the newer version, and sets the mark of 4.
Schedules whose zones have the same rules in both versions are skipped unread.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from onbeat.core.decide.follow import decode_happened
from onbeat.core.decide.plan import next_due
from onbeat.core.runs.decisions import Due
from onbeat.core.schedule import read_once
from onbeat.core.time.zones import VERSION, digests
from onbeat.core.triggers.past import Past
from onbeat.errors import StoreUnusable
from onbeat.ports.rows import ZoneDataProgress
from onbeat.stores.sql.rows import KEEP, write_due
from onbeat.stores.sql.taken_rows import DueRow
from onbeat.stores.sql.transaction import Transaction, as_json

BATCH = 1000  # schedules in one batch
SOON = 3 * 3_600_000  # milliseconds: rules seldom move a tick by more
MOST_SOON = 5000  # schedules that are followed before a node plans

STATE = "SELECT name, value FROM meta WHERE name IN ('tz', 'tz_followed', 'tz_stale')"
DIGESTS = "SELECT value FROM meta WHERE name = 'tz_zones'"

IDS = """
SELECT schedule_id FROM schedules WHERE schedule_id > ?1 ORDER BY schedule_id LIMIT ?2
"""

SOONEST = """
SELECT schedule_id FROM due WHERE due_at > ?1 AND due_at <= ?2
 ORDER BY due_at, schedule_id LIMIT ?3
"""

ROWS = """
SELECT s.schedule_id, s.definition, t.decided_until, t.runs_used, s.created_at, t.happened,
       d.run_at, d.due_at
  FROM schedules s JOIN schedule_state t USING (schedule_id) LEFT JOIN due d USING (schedule_id)
 WHERE s.schedule_id IN (?1[]) AND s.deleted_at IS NULL AND s.paused = 0
"""

ZONE = re.compile(r'"timezone":"([^"]*)"')


class ZoneDataCursor(msgspec.Struct, frozen=True):
    """How far zone data is followed: the value of `meta.tz_followed`."""

    after: str = ""  # schedules up to this id are followed
    done: int = 0
    total: int = 0  # schedules when it began
    moved: int = 0  # due rows that the newer data has moved
    zones: Sequence[str] | None = None  # whose rules changed; None: unknown
    since: int = 0  # milliseconds

    def is_open(self, schedule_id: str, text: str) -> bool:
        """Return whether the due row of a schedule may be from older data."""
        if schedule_id <= self.after:
            return False
        named = ZONE.findall(text)
        return bool(named) and (self.zones is None or not set(self.zones).isdisjoint(named))


class ZoneDataState:
    """The zone data entries of `meta`."""

    def __init__(self, tx: Transaction) -> None:
        found: Mapping[str, str] = {name: str(value) for name, value in tx.all(STATE)}
        self.version = found.get("tz", "")
        self.is_stale = "tz_stale" in found
        self.cursor: ZoneDataCursor | None = None
        text = found.get("tz_followed")
        if self.is_stale:
            self.cursor = ZoneDataCursor()
        elif text is not None:
            is_json = text.startswith("{")  # else an older program wrote it
            self.cursor = (
                msgspec.json.decode(text, type=ZoneDataCursor) if is_json else ZoneDataCursor(text)
            )

    @property
    def is_newer(self) -> bool:
        """Whether due rows are computed with newer data than this program has."""
        return self.version > VERSION


def begin(tx: Transaction) -> None:
    """Switch the store to the zone data of this program, and follow schedules that are due soon.

    A store with few schedules is followed completely. A program with older data than the store's is
    refused.
    """
    state = ZoneDataState(tx)
    if state.version != VERSION:
        tx.hold_gate()  # no other node plans with its own data meanwhile
        state = ZoneDataState(tx)
    if state.is_newer:
        used = state.version
        problem = f"due ticks were computed with time zone data {used}, this node has {VERSION}"
        raise StoreUnusable(f"{problem}: upgrade the package tzdata")
    if state.version != VERSION:
        _switch(tx, state)
    elif state.cursor is None and tx.one(DIGESTS) is None:
        tx.run(KEEP, ("tz_zones", as_json(digests())))
    cursor = ZoneDataState(tx).cursor
    if cursor is not None:
        _follow(tx, cursor, tx.column(SOONEST, (tx.now, tx.now + SOON, MOST_SOON)))
        follow(tx, limit=BATCH)


def _switch(tx: Transaction, state: ZoneDataState) -> None:
    """Store this program's version, and which due rows may be from another one."""
    fresh, stored = digests(), tx.value(DIGESTS)
    zones: list[str] | None = None
    if stored is not None and not state.is_stale:
        before = msgspec.json.decode(stored, type=dict[str, str])
        zones = [name for name in {*fresh, *before} if fresh.get(name) != before.get(name)]
        if state.cursor is not None:  # rows not followed yet are from an even older version
            pending = state.cursor.zones
            zones = None if pending is None else sorted({*zones, *pending})
    tx.run(KEEP, ("tz", VERSION))
    tx.run(KEEP, ("tz_zones", as_json(fresh)))
    if zones is None or zones:
        _start(tx, sorted(zones) if zones is not None else None)
    else:
        tx.run("DELETE FROM meta WHERE name = 'tz_followed'")


def _start(tx: Transaction, zones: Sequence[str] | None) -> ZoneDataCursor:
    total = tx.value("SELECT count(*) FROM due")
    cursor = ZoneDataCursor(total=total, zones=zones, since=tx.now)
    tx.run("DELETE FROM meta WHERE name = 'tz_stale'")
    tx.run(KEEP, ("tz_followed", as_json(cursor)))
    return cursor


def follow(tx: Transaction, *, limit: int = BATCH) -> ZoneDataProgress | None:
    """Recompute the due rows of some schedules. The contract is `Store.follow_zones`."""
    tx.one("SELECT value FROM meta WHERE name = 'tz_followed' FOR UPDATE")
    state = ZoneDataState(tx)
    if state.cursor is None or state.version != VERSION:
        return None
    cursor = _start(tx, None) if state.is_stale else state.cursor
    ids = tx.column(IDS, (cursor.after, limit))
    moved = cursor.moved + _follow(tx, cursor, ids)
    if len(ids) < limit:
        tx.run("DELETE FROM meta WHERE name = 'tz_followed'")
        done = max(cursor.done + len(ids), cursor.total)
        return ZoneDataProgress(VERSION, done, done, moved, cursor.since, is_done=True)
    done = cursor.done + len(ids)
    total = max(cursor.total, done)
    *_, last = ids
    advanced = ZoneDataCursor(last, done, total, moved, cursor.zones, cursor.since)
    tx.run(KEEP, ("tz_followed", as_json(advanced)))
    return ZoneDataProgress(VERSION, done, total, moved, cursor.since)


def following(tx: Transaction) -> ZoneDataProgress | None:
    """Return how far the zone data is followed, or None: every due row is up to date."""
    state = ZoneDataState(tx)
    cursor = state.cursor
    if cursor is None:
        return None
    total = max(cursor.total, cursor.done)
    return ZoneDataProgress(state.version, cursor.done, total, cursor.moved, cursor.since)


def follow_held(tx: Transaction, schedule_ids: Collection[str]) -> None:
    """Recompute the due rows of schedules, which are held, before anything is decided by them."""
    state = ZoneDataState(tx)
    if state.cursor is not None and not state.is_newer and schedule_ids:
        _recompute(tx, state.cursor, schedule_ids)


def follow_taken(tx: Transaction, cursor: ZoneDataCursor, rows: Sequence[DueRow]) -> list[DueRow]:
    """Return the rows of `Transaction.take_due` with their recomputed ticks.

    Those without a tick are left out, and their due row is deleted.
    """
    found: list[DueRow] = []
    removed: list[tuple[str, Due | None]] = []
    for row in rows:
        if row.paused or not cursor.is_open(row.schedule_id, row.definition):
            found.append(row)
            continue
        state = row.state
        about = (state.decided_until, state.runs_used, state.created_at, state.happened)
        due = _due(row.schedule_id, row.definition, about, Due(row.run_at, 0))
        if due is None:
            removed.append((row.schedule_id, None))
        else:
            found.append(replace(row, run_at=due.run_at))
    write_due(tx, removed)
    return found


def _follow(tx: Transaction, cursor: ZoneDataCursor, schedule_ids: Collection[str]) -> int:
    """Hold schedules and recompute their due rows; return how many moved."""
    if not schedule_ids:
        return 0
    tx.hold(schedule_ids)
    return _recompute(tx, cursor, schedule_ids)


def _recompute(tx: Transaction, cursor: ZoneDataCursor, schedule_ids: Collection[str]) -> int:
    moved: list[tuple[str, Due | None]] = []
    for schedule_id, text, *about, run_at, due_at in tx.all(ROWS, (list(schedule_ids),)):
        if not cursor.is_open(schedule_id, text):
            continue
        stored = None if run_at is None else Due(run_at, due_at)
        due = _due(schedule_id, text, about, stored)
        if due is not None and due.run_at == run_at and run_at * 1000 <= tx.now:
            continue  # the same tick, which was put off
        if due != stored:
            moved.append((schedule_id, due))
    write_due(tx, moved)
    return len(moved)


def _due(schedule_id: str, text: str, about: Sequence[Any], stored: Due | None) -> Due | None:
    """Return the due row of a schedule by this program's zone data.

    If it cannot be computed, the stored one stays: the planner parks the schedule and reports it.
    """
    until, used, created_at, happened = about
    try:
        events = {} if happened is None else decode_happened(happened)
        past = Past(created_at=created_at // 1000, runs_used=used, happened=events)
        return next_due(read_once(schedule_id, text), until, past)
    except Exception:  # noqa: BLE001 - one poisoned definition must not hurt the others
        return stored
