"""Following new time zone data: due rows that other rules computed are computed anew.

The invariant: no tick starts at a time that older zone data computed and newer data denies. So

    1. `meta.tz` is the version that due rows are computed with. A node with older data plans
       nothing; a node with newer data writes its own version there before it plans.
    2. Until `meta.tz_followed` is gone, a due row may still be of older data: it is computed anew
       in the transaction that decides, edits, resumes or deletes its schedule, before anything is
       decided by it. That holds for schedules with an id later than its cursor.
    3. A due row that newer data moves to an earlier time is found by `follow`: by `begin` what is
       due within hours, before the node plans; the rest in the background, by id.
    4. A writer with older data leaves `meta.tz_stale`: all schedules are followed again.

A batch holds the state rows of its schedules, so that nobody with older data is about to write one
of their due rows: who comes later sees the newer version, and leaves the mark of 4.
Schedules whose zones did not change since the version before are passed over unread.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from onbeat.core.decide.follow import decode_happened
from onbeat.core.decide.plan import next_due
from onbeat.core.runs.decisions import Due
from onbeat.core.schedule import read_once
from onbeat.core.time.zones import VERSION, digests
from onbeat.core.triggers.past import Past
from onbeat.errors import StoreUnusable
from onbeat.ports.rows import ZoneDataProgress
from onbeat.stores.sql.rows import KEEP, write_due
from onbeat.stores.sql.transaction import Row, Transaction, as_json

AT_ONCE = 1000  # schedules in one batch
SOON = 3 * 3_600_000  # milliseconds: rules seldom move a tick by more
MOST_SOON = 5000  # schedules, before a node plans

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
    """How far zone data is followed, as `meta.tz_followed` has it."""

    after: str = ""  # schedules up to this id are followed
    done: int = 0
    total: int = 0  # schedules there were when it began
    moved: int = 0  # due rows that were not where the newer data has them
    zones: Sequence[str] | None = None  # those whose rules changed; None: any may have
    since: int = 0  # milliseconds

    def is_open(self, schedule_id: str, text: str) -> bool:
        """Return whether the due row of a schedule may be of older data."""
        if schedule_id <= self.after:
            return False
        named = ZONE.findall(text)
        return bool(named) and (self.zones is None or not set(self.zones).isdisjoint(named))


class ZoneDataState:
    """What `meta` says of zone data."""

    def __init__(self, tx: Transaction) -> None:
        found: Mapping[str, str] = {name: str(value) for name, value in tx.all(STATE)}
        self.version = found.get("tz", "")
        self.is_stale = "tz_stale" in found
        self.cursor: ZoneDataCursor | None = None
        text = found.get("tz_followed")
        if self.is_stale:
            self.cursor = ZoneDataCursor()
        elif text is not None:
            is_json = text.startswith("{")  # else an older program began
            self.cursor = (
                msgspec.json.decode(text, type=ZoneDataCursor) if is_json else ZoneDataCursor(text)
            )

    @property
    def is_newer(self) -> bool:
        """Whether due rows are computed with newer data than this program has."""
        return self.version > VERSION


def begin(tx: Transaction) -> None:
    """Take over to the zone data of this program, and follow what is due soon.

    A store with few schedules is followed whole. Data that is older than that of the due rows is
    refused.
    """
    known = ZoneDataState(tx)
    if known.version != VERSION:
        tx.hold_gate()  # until no other node plans with its own data
        known = ZoneDataState(tx)
    if known.is_newer:
        used = known.version
        problem = f"due ticks were computed with time zone data {used}, this node has {VERSION}"
        raise StoreUnusable(f"{problem}: upgrade the package tzdata")
    if known.version != VERSION:
        _switch(tx, known)
    elif known.cursor is None and tx.one(DIGESTS) is None:
        tx.run(KEEP, ("tz_zones", as_json(digests())))
    cursor = ZoneDataState(tx).cursor
    if cursor is not None:
        soon = tx.all(SOONEST, (tx.now, tx.now + SOON, MOST_SOON))
        _follow(tx, cursor, [row[0] for row in soon])
        follow(tx, limit=AT_ONCE)


def _switch(tx: Transaction, known: ZoneDataState) -> None:
    """Keep this program's version, and from where on due rows are of another."""
    fresh, kept = digests(), tx.one(DIGESTS)
    zones: list[str] | None = None
    if kept is not None and not known.is_stale:
        before = msgspec.json.decode(kept[0], type=dict[str, str])
        zones = [name for name in {*fresh, *before} if fresh.get(name) != before.get(name)]
        if known.cursor is not None:  # what was not followed yet is of an even older version
            still = known.cursor.zones
            zones = None if still is None else sorted({*zones, *still})
    tx.run(KEEP, ("tz", VERSION))
    tx.run(KEEP, ("tz_zones", as_json(fresh)))
    if zones is None or zones:
        _start(tx, sorted(zones) if zones is not None else None)
    else:
        tx.run("DELETE FROM meta WHERE name = 'tz_followed'")


def _start(tx: Transaction, zones: Sequence[str] | None) -> ZoneDataCursor:
    counted = tx.one("SELECT count(*) FROM due")
    total = 0 if counted is None else int(counted[0])
    cursor = ZoneDataCursor(total=total, zones=zones, since=tx.now)
    tx.run("DELETE FROM meta WHERE name = 'tz_stale'")
    tx.run(KEEP, ("tz_followed", as_json(cursor)))
    return cursor


def follow(tx: Transaction, *, limit: int) -> ZoneDataProgress | None:
    """Compute the due rows of some schedules anew. The contract is `Store.follow_zones`."""
    tx.one("SELECT value FROM meta WHERE name = 'tz_followed' FOR UPDATE")
    known = ZoneDataState(tx)
    if known.cursor is None or known.version != VERSION:
        return None
    cursor = _start(tx, None) if known.is_stale else known.cursor
    ids = [row[0] for row in tx.all(IDS, (cursor.after, limit))]
    moved = cursor.moved + _follow(tx, cursor, ids)
    if len(ids) < limit:
        tx.run("DELETE FROM meta WHERE name = 'tz_followed'")
        done = max(cursor.done + len(ids), cursor.total)
        return ZoneDataProgress(VERSION, done, done, moved, cursor.since, is_done=True)
    done = cursor.done + len(ids)
    total = max(cursor.total, done)
    kept = ZoneDataCursor(ids[-1], done, total, moved, cursor.zones, cursor.since)
    tx.run(KEEP, ("tz_followed", as_json(kept)))
    return ZoneDataProgress(VERSION, done, total, moved, cursor.since)


def following(tx: Transaction) -> ZoneDataProgress | None:
    """Return how far the zone data is followed, or None: every due row is of it."""
    known = ZoneDataState(tx)
    cursor = known.cursor
    if cursor is None:
        return None
    total = max(cursor.total, cursor.done)
    return ZoneDataProgress(known.version, cursor.done, total, cursor.moved, cursor.since)


def follow_held(tx: Transaction, schedule_ids: Collection[str]) -> None:
    """Compute due rows anew, before anything is decided by them. The schedules are held."""
    known = ZoneDataState(tx)
    if known.cursor is not None and not known.is_newer and schedule_ids:
        _compute(tx, known.cursor, schedule_ids)


def follow_taken(tx: Transaction, cursor: ZoneDataCursor, rows: Sequence[Row]) -> list[Row]:
    """Return due rows that were taken, as `rows.DueRow`, with the ticks that they have by now.

    Those that have no tick any more are left out, and so is their due row.
    """
    found: list[Row] = []
    over: list[tuple[str, Due | None]] = []
    for row in rows:
        schedule_id, text, is_paused = row[0], row[2], row[13]
        if is_paused or not cursor.is_open(schedule_id, text):
            found.append(row)
            continue
        about = (row[3], row[6], row[7], row[12])  # as in ROWS
        due = _due(schedule_id, text, about, Due(row[1], 0))
        if due is None:
            over.append((schedule_id, None))
        else:
            found.append((schedule_id, due.run_at, *row[2:]))
    write_due(tx, over)
    return found


def _follow(tx: Transaction, cursor: ZoneDataCursor, schedule_ids: Collection[str]) -> int:
    """Hold schedules and compute their due rows anew; return how many were moved."""
    if not schedule_ids:
        return 0
    tx.hold(schedule_ids)
    return _compute(tx, cursor, schedule_ids)


def _compute(tx: Transaction, cursor: ZoneDataCursor, schedule_ids: Collection[str]) -> int:
    moved: list[tuple[str, Due | None]] = []
    for schedule_id, text, *about, run_at, due_at in tx.all(ROWS, (list(schedule_ids),)):
        if not cursor.is_open(schedule_id, text):
            continue
        kept = None if run_at is None else Due(run_at, due_at)
        due = _due(schedule_id, text, about, kept)
        if due is not None and due.run_at == run_at and run_at * 1000 <= tx.now:
            continue  # it is that tick, which was put off
        if due != kept:
            moved.append((schedule_id, due))
    write_due(tx, moved)
    return len(moved)


def _due(schedule_id: str, text: str, about: Sequence[Any], kept: Due | None) -> Due | None:
    """Return the due row that a schedule has by this program's zone data.

    Where that cannot be computed it is the one that it has: the planner parks it, and says why.
    """
    until, used, created_at, happened = about
    try:
        events = {} if happened is None else decode_happened(happened)
        past = Past(created_at=created_at // 1000, runs_used=used, happened=events)
        return next_due(read_once(schedule_id, text), until, past)
    except Exception:  # noqa: BLE001 - one poisoned definition must not hurt the others
        return kept
