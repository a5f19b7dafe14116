"""Define many schedules together: new ones are written in batches, unchanged ones are left.

Other changes are made one by one in `define`: edits, and schedules that were deleted before.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from onbeat.core.decide.plan import defined_late, next_due
from onbeat.core.schedule import Schedule, definition
from onbeat.errors import RevisionConflict
from onbeat.events import ScheduleCreated
from onbeat.ports.store import Upserted
from onbeat.stores.sql.rows import replace_due
from onbeat.stores.sql.schedule_rows import SET_POSITIONS, is_foreign
from onbeat.stores.sql.taken_rows import State
from onbeat.stores.sql.transaction import Transaction, Value
from onbeat.stores.sql.write_decisions import Decided, carry_out

BATCH = 1000  # schedules whose rows are read and written together


class _Existing(NamedTuple):
    """The columns of a schedule that tell whether a definition changes it."""

    schedule_id: str
    definition: str
    revision: int
    source: str
    base: str | None
    user_id: str
    deleted_at: int | None


EXISTING = f"""
SELECT {", ".join(_Existing._fields)} FROM schedules WHERE schedule_id IN (?1[])
"""

REVISIONS = """
SELECT schedule_id, revision, user_id FROM schedules
 WHERE schedule_id IN (?1[]) AND deleted_at IS NULL
"""

CREATE = """
INSERT INTO schedules (source, user_id, revision, created_at, updated_at, schedule_id, definition,
       base)
VALUES {(?1,?2,1,?3,?3,?text,?text,?text)}
"""

CREATE_STATES = """
INSERT INTO schedule_state (decided_until, schedule_id) VALUES {(?1,?text)}
"""


def upsert_simple(
    tx: Transaction,
    schedules: Sequence[Schedule],
    *,
    source: str | None,
    user_id: str,
    but: Collection[str],
) -> dict[str, Upserted]:
    """Define schedules that are new; return them and those that are unchanged.

    The others are left to be defined one by one: those of `but`, those that are listed twice, and
    all that change or were deleted. The definitions and all of the schedules are held.
    """
    counts = Counter(each.schedule_id for each in schedules)
    if len(counts) < len(schedules):
        but = {*but, *(name for name, count in counts.items() if count > 1)}
    found: dict[str, Upserted] = {}
    for begin in range(0, len(schedules), BATCH):
        some = [each for each in schedules[begin : begin + BATCH] if each.schedule_id not in but]
        texts = {each.schedule_id: definition(each) for each in some}
        rows = map(_Existing._make, tx.all(EXISTING, (list(texts),)))
        existing = {row.schedule_id: row for row in rows}
        found |= _unchanged(tx, texts, existing, source)
        new = [each for each in some if each.schedule_id not in existing]
        if new:
            _create(tx, new, texts, source=source or "", user_id=user_id)
        found |= {each.schedule_id: Upserted(each.schedule_id, "created", 1) for each in new}
    return found


def check_revisions(tx: Transaction, expected: Mapping[str, int | None]) -> None:
    """Refuse if a schedule has another revision than expected; None: it must not exist."""
    names = list(expected)
    for begin in range(0, len(names), BATCH):
        some = names[begin : begin + BATCH]
        existing: dict[str, int] = {
            name: revision
            for name, revision, user_id in tx.all(REVISIONS, (some,))
            if not is_foreign(tx, user_id)
        }
        for name in some:
            if existing.get(name) != expected[name]:
                raise RevisionConflict(name, expected[name], existing.get(name))


def _unchanged(
    tx: Transaction,
    texts: Mapping[str, str],
    existing: Mapping[str, _Existing],
    source: str | None,
) -> dict[str, Upserted]:
    """Return the schedules that exist with the same definition, also as their source gave it."""
    found: dict[str, Upserted] = {}
    for name, row in existing.items():
        text = row.definition
        if text != texts[name] or row.deleted_at is not None or is_foreign(tx, row.user_id):
            continue
        if source is None or (row.source, row.base) == (source, text):
            found[name] = Upserted(name, "unchanged", row.revision)
    return found


def _create(
    tx: Transaction,
    schedules: Sequence[Schedule],
    texts: Mapping[str, str],
    *,
    source: str,
    user_id: str,
) -> None:
    until = tx.now // 1000
    rows: list[Value] = []
    for each in schedules:
        text = texts[each.schedule_id]
        rows += (each.schedule_id, text, text)
    tx.many(CREATE, rows, (source, user_id, tx.now))
    tx.many(CREATE_STATES, [each.schedule_id for each in schedules], (until,))
    state = State(until, 0, 0, 0, tx.now, 1, user_id)
    positions = _leave_missed(tx, [each for each in schedules if each.ticks_once], state)
    tx.many(SET_POSITIONS, [value for name, at in positions.items() for value in (at, name)])
    past = state.past
    due = [
        (each.schedule_id, next_due(each, positions.get(each.schedule_id, until), past))
        for each in schedules
    ]
    replace_due(tx, due)
    tx.events += [
        ScheduleCreated(name, 1, texts[name], None if at is None else at.run_at, user_id, None)
        for name, at in due
    ]


def _leave_missed(tx: Transaction, schedules: Sequence[Schedule], state: State) -> dict[str, int]:
    """Record single times that were past when they were defined; return how far each is decided."""
    positions: dict[str, int] = {}
    missed: list[Decided] = []
    for each in schedules:
        skip, positions[each.schedule_id] = defined_late(each, state.past, now=tx.now)
        if skip is not None:
            missed.append(Decided(each, state, [skip]))
    if missed:
        carry_out(tx, missed)
    return positions
