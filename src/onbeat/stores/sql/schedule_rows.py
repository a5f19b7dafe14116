"""Schedules that are there: their rows, and what several calls do to them."""

from collections.abc import Sequence

from onbeat.core.decide.plan import next_due
from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import ReasonDetail
from onbeat.core.schedule import Schedule, from_definition
from onbeat.errors import InvalidSchedule, NoSuchSchedule
from onbeat.events import SchedulePaused
from onbeat.stores.sql.rows import State, plain, replace_due
from onbeat.stores.sql.transaction import Row, Transaction
from onbeat.stores.sql.zone_data import follow_held

SCHEDULE = """
SELECT s.schedule_id, s.definition, s.paused, s.pause_note, s.paused_until, s.deleted_at, s.source,
       d.run_at,
       t.decided_until, t.decided_run_at, t.iteration, t.runs_used,
       s.created_at, s.revision, s.user_id, t.spread_until, t.rated, t.happened,
       s.base, s.paused_at, s.paused_by
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

MOST_LIKE_IT = 500  # ids that begin like one, and as many more, that it is compared with

SCHEDULES = SCHEDULE.replace("= ?1", "IN (?1[]) ORDER BY s.schedule_id")


class StoredSchedule:
    """A schedule that is there: its row, and what it says."""

    def __init__(self, row: Row) -> None:
        schedule_id, text, paused, note, paused_until, deleted_at, source, run_at = row[:8]
        self.schedule_id, self.text = schedule_id, text
        self.paused, self.deleted = bool(paused), deleted_at is not None
        self.deleted_at: int | None = deleted_at
        self.pause_note: str = note
        self.paused_until: int | None = paused_until
        self.source: str = source
        # Of the due row, which one that is paused has only if it is to go on by itself.
        self.run_at: int | None = None if self.paused else run_at
        self.state = State(*row[8:-3])
        self.base: str | None = row[-3]  # what its source said when it last defined it
        self.paused_at: int | None = row[-2]
        self.paused_by: str = row[-1]

    def schedule(self) -> Schedule | None:
        """Return what it says, or None if that cannot be read."""
        try:
            return from_definition(self.schedule_id, self.text)
        except InvalidSchedule:
            return None

    def pause_detail(self, until: int | None = None) -> ReasonDetail:
        """Return what is kept of its pause with the ticks that fell into it."""
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
    """Return a schedule, also one that was deleted and still has runs."""
    row = tx.one(SCHEDULE, (schedule_id,))
    return None if row is None else StoredSchedule(row)


def find_all(tx: Transaction, schedule_ids: Sequence[str]) -> list[StoredSchedule]:
    """Return schedules, by id."""
    return [StoredSchedule(row) for row in tx.all(SCHEDULES, (list(schedule_ids),))]


def held(tx: Transaction, schedule_id: str) -> StoredSchedule:
    """Hold a schedule, which has to be there."""
    tx.hold([schedule_id])
    follow_held(tx, [schedule_id])
    return existing(tx, schedule_id)


def existing(tx: Transaction, schedule_id: str) -> StoredSchedule:
    """Return a schedule, which has to be there."""
    known = find(tx, schedule_id)
    if known is None or known.deleted or is_foreign(tx, known.state.user_id):
        raise NoSuchSchedule(schedule_id, _names_like(tx, schedule_id))
    return known


def is_foreign(tx: Transaction, user_id: str) -> bool:
    """Return whether what has this owner is not there for whoever asks."""
    return tx.only_of is not None and tx.only_of != user_id


def check_change(tx: Transaction, known: StoredSchedule) -> None:
    """Refuse to change or delete a schedule, which is held, if the caller may not define it."""
    if tx.check_change is not None:
        tx.check_change(known.schedule_id, known.schedule())


def _names_like(tx: Transaction, schedule_id: str) -> set[str]:
    """Return ids that may have been meant: those that begin like this one, and a few more."""
    own = "" if tx.only_of is None else "AND user_id = ?3 "
    sql = (
        "SELECT schedule_id FROM schedules WHERE deleted_at IS NULL AND schedule_id >= ?1 "
        f"{own}ORDER BY schedule_id LIMIT ?2"
    )
    whose = () if tx.only_of is None else (tx.only_of,)
    begins = (schedule_id[: len(schedule_id) // 2], "")
    return {row[0] for begin in begins for row in tx.all(sql, (begin, MOST_LIKE_IT, *whose))}


def rest_schedule(
    tx: Transaction, schedule_id: str, *, note: str, until: int | None = None
) -> None:
    """Pause a schedule that is held; its due row is then of when it goes on by itself."""
    tx.run(
        "UPDATE schedules SET pause_note = ?1, paused_until = ?2, updated_at = ?3, paused = 1, "
        "paused_at = CASE WHEN paused = 1 THEN paused_at ELSE ?3 END, "
        "paused_by = CASE WHEN paused = 1 THEN paused_by ELSE ?5 END WHERE schedule_id = ?4",
        (plain(note), until, tx.now, schedule_id, tx.by),
    )
    replace_due(tx, [(schedule_id, resting_until(until))])
    tx.tell(SchedulePaused(schedule_id, note, until))


def resting_until(until: int | None) -> Due | None:
    """Return the due row of a schedule that is paused until then."""
    return None if until is None else Due(until // 1000, until)


def keep_definition(tx: Transaction, known: StoredSchedule, text: str, until: int) -> None:
    """Keep what a schedule said until then, or that it was not there: runs start by it."""
    tx.run(KEEP_DEFINITION, (known.schedule_id, known.state.revision, until, text))


def set_positions(
    tx: Transaction, positions: Sequence[tuple[Schedule, State, int]], *, are_due: bool = True
) -> list[int | None]:
    """Set where schedules are decided up to, and their due rows; return their next ticks.

    Those that are paused keep what due row they have.
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
