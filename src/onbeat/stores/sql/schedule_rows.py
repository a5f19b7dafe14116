"""Rows of existing schedules, and operations that several calls share."""

from collections.abc import Sequence

from onbeat.core.decide.plan import next_due
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import ReasonDetail
from onbeat.core.schedule import Schedule, from_definition
from onbeat.errors import InvalidSchedule, NoSuchSchedule
from onbeat.events import SchedulePaused
from onbeat.stores.sql.rows import replace_due, storable_text
from onbeat.stores.sql.taken_rows import State
from onbeat.stores.sql.transaction import Row, Transaction
from onbeat.stores.sql.zone_data import follow_held

SCHEDULE = """
SELECT s.schedule_id, s.definition, s.paused, s.pause_note, s.paused_until, s.deleted_at, s.source,
       d.run_at, s.base, s.paused_at, s.paused_by,
       t.decided_until, t.decided_run_at, t.iteration, t.runs_used,
       s.created_at, s.revision, s.user_id, t.spread_until, t.rated, t.happened
  FROM schedules s JOIN schedule_state t USING (schedule_id) LEFT JOIN due d USING (schedule_id)
 WHERE s.schedule_id = ?1
"""

KEEP_DEFINITION = """
INSERT INTO past_definitions (schedule_id, revision, until_at, definition)
VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (schedule_id, revision, until_at) DO NOTHING
"""

SET_POSITIONS = """
  WITH given (until, schedule_id) AS (VALUES {(?int,?text)})
UPDATE schedule_state AS t SET decided_until = given.until
  FROM given
 WHERE t.schedule_id = given.schedule_id
"""

MOST_SIMILAR = 500  # ids with the same beginning, and as many others, that are compared

SCHEDULES = SCHEDULE.replace("= ?1", "IN (?1[]) ORDER BY s.schedule_id")


class StoredSchedule:
    """A schedule as stored, including one that was deleted and still has runs."""

    def __init__(self, row: Row) -> None:
        schedule_id, text, paused, note, paused_until, deleted_at, source, *more = row
        run_at, base, paused_at, paused_by, *state = more
        self.schedule_id, self.text = schedule_id, text
        self.paused, self.deleted = bool(paused), deleted_at is not None
        self.deleted_at: int | None = deleted_at
        self.pause_note: str = note
        self.paused_until: int | None = paused_until
        self.source: str = source
        # From the due row. A paused schedule has one only to be resumed at `paused_until`.
        self.run_at: int | None = None if self.paused else run_at
        self.state = State(*state)
        self.base: str | None = base  # the definition that its source gave last
        self.paused_at: int | None = paused_at
        self.paused_by: str = paused_by

    def schedule(self) -> Schedule | None:
        """Return its definition, or None if that cannot be read."""
        try:
            return from_definition(self.schedule_id, self.text)
        except InvalidSchedule:
            return None

    def pause_detail(self, until: int | None = None) -> ReasonDetail:
        """Return the detail to store with the ticks that fell into its pause."""
        return ReasonDetail(
            since=self.paused_at, until=until, by=self.paused_by, note=self.pause_note
        )

    def first_undecided(self, schedule: Schedule) -> int | None:
        """Return the tick that its due row has, or would have if it were not paused."""
        if self.run_at is not None or not self.paused:
            return self.run_at
        due = next_due(schedule, self.state.decided_until, self.state.past)
        return None if due is None else due.run_at


def find(tx: Transaction, schedule_id: str) -> StoredSchedule | None:
    """Return a schedule, including one that was deleted and still has runs."""
    row = tx.one(SCHEDULE, (schedule_id,))
    return None if row is None else StoredSchedule(row)


def find_all(tx: Transaction, schedule_ids: Sequence[str]) -> list[StoredSchedule]:
    """Return schedules, by id."""
    return [StoredSchedule(row) for row in tx.all(SCHEDULES, (list(schedule_ids),))]


def hold_schedule(tx: Transaction, schedule_id: str) -> StoredSchedule:
    """Hold a schedule and return it; raise NoSuchSchedule if it does not exist."""
    tx.hold([schedule_id])
    follow_held(tx, [schedule_id])
    return existing(tx, schedule_id)


def existing(tx: Transaction, schedule_id: str) -> StoredSchedule:
    """Return a schedule; raise NoSuchSchedule if it does not exist."""
    stored = find(tx, schedule_id)
    if stored is None or stored.deleted or is_foreign(tx, stored.state.user_id):
        raise NoSuchSchedule(schedule_id, _names_like(tx, schedule_id))
    return stored


def is_foreign(tx: Transaction, user_id: str) -> bool:
    """Return whether the caller may not see what belongs to this owner."""
    return tx.only_owner is not None and tx.only_owner != user_id


def check_change(tx: Transaction, stored: StoredSchedule) -> None:
    """Refuse to change or delete a schedule if the caller may not. It is held."""
    if tx.check_change is not None:
        tx.check_change(stored.schedule_id, stored.schedule())


def _names_like(tx: Transaction, schedule_id: str) -> set[str]:
    """Return ids that may have been meant: those with the same beginning, and some others."""
    owned = "" if tx.only_owner is None else "AND user_id = ?3 "
    sql = (
        "SELECT schedule_id FROM schedules WHERE deleted_at IS NULL AND schedule_id >= ?1 "
        f"{owned}ORDER BY schedule_id LIMIT ?2"
    )
    owner = () if tx.only_owner is None else (tx.only_owner,)
    begins = (schedule_id[: len(schedule_id) // 2], "")
    return {name for begin in begins for name in tx.column(sql, (begin, MOST_SIMILAR, *owner))}


def pause_schedule(
    tx: Transaction, schedule_id: str, *, note: str, until: int | None = None
) -> None:
    """Pause a schedule, which is held. Its due row then holds when it is resumed, if ever."""
    tx.run(
        "UPDATE schedules SET pause_note = ?1, paused_until = ?2, updated_at = ?3, paused = 1, "
        "paused_at = CASE WHEN paused = 1 THEN paused_at ELSE ?3 END, "
        "paused_by = CASE WHEN paused = 1 THEN paused_by ELSE ?5 END WHERE schedule_id = ?4",
        (storable_text(note), until, tx.now, schedule_id, tx.by),
    )
    replace_due(tx, [(schedule_id, due_row_while_paused(until))])
    tx.emit(SchedulePaused(schedule_id, note, until))


def due_row_while_paused(until: int | None) -> Due | None:
    """Return the due row of a schedule that is paused until then; None: without an end."""
    return None if until is None else Due(until // 1000, until)


def keep_definition(tx: Transaction, stored: StoredSchedule, text: str, until: int) -> None:
    """Store the definition of a schedule up to then, for runs that start by it; "": it had none."""
    tx.run(KEEP_DEFINITION, (stored.schedule_id, stored.state.revision, until, text))


def set_positions(
    tx: Transaction, positions: Sequence[tuple[Schedule, State, int]], *, are_due: bool = True
) -> list[int | None]:
    """Set how far schedules are decided, and their due rows; return their next ticks.

    Without `are_due` the due rows stay: paused schedules keep theirs.
    """
    until_each = [value for s, _, until in positions for value in (until, s.schedule_id)]
    tx.many(SET_POSITIONS, until_each)
    due = [
        (schedule.schedule_id, next_due(schedule, until, state.past))
        for schedule, state, until in positions
    ]
    if are_due:
        replace_due(tx, due)
    return [None if each is None else each.run_at for _, each in due]
