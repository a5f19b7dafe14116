"""Define and delete schedules.

A change that moves a due row first decides the ticks that were planned up to now, so that no tick
is lost between two definitions and no past tick is fired.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from onbeat.core.decide.edits import is_retimed
from onbeat.core.decide.follow import causes_after_end, encode_happened
from onbeat.core.decide.plan import defined_late, set_aside
from onbeat.core.runs.decisions import Decision
from onbeat.core.runs.phase import UNANNOUNCED, Status
from onbeat.core.runs.run import Run
from onbeat.core.schedule import Schedule, definition
from onbeat.errors import NotAllowed, RevisionConflict
from onbeat.events import ScheduleArmed, ScheduleCreated, ScheduleDeleted
from onbeat.ports.store import NO_POSITIONS, NOTHING_EXPECTED, InitialPosition, Upserted
from onbeat.stores.sql.bulk_create import check_revisions, upsert_simple
from onbeat.stores.sql.edits import edit, move_waiting
from onbeat.stores.sql.followers import happen, keep_follows
from onbeat.stores.sql.groups import keep_groups
from onbeat.stores.sql.rows import cancel_waiting, replace_due, unfinished_of
from onbeat.stores.sql.schedule_rows import (
    KEEP_DEFINITION,
    StoredSchedule,
    check_change,
    existing,
    find,
    find_all,
    hold_schedule,
    is_foreign,
    keep_definition,
    pause_schedule,
    set_positions,
)
from onbeat.stores.sql.taken_rows import State
from onbeat.stores.sql.transaction import Transaction
from onbeat.stores.sql.write_decisions import Decided, carry_out
from onbeat.stores.sql.zone_data import follow_held

CREATE = """
INSERT INTO schedules (schedule_id, source, user_id, definition, revision, created_at, updated_at,
       base)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?4)
    ON CONFLICT (schedule_id) DO UPDATE SET source = ?2, user_id = ?3, definition = ?4, base = ?4,
       revision = ?5, paused = 0, pause_note = '', paused_until = NULL, deleted_at = NULL,
       created_at = ?6, updated_at = ?7
"""

CREATE_STATE = """
INSERT INTO schedule_state (schedule_id, decided_until) VALUES (?1, ?2)
    ON CONFLICT (schedule_id) DO UPDATE SET decided_until = ?2, iteration = 0, runs_used = 0,
       spread_until = 0, rated = NULL, happened = NULL,
       last_run_at = NULL, last_success_at = NULL, last_failure_at = NULL, last_exit = NULL,
       last_missed_at = NULL, last_miss_reason = NULL, consecutive_failures = 0
"""

INIT_STATE = """
UPDATE schedule_state
   SET last_run_at = ?2, last_success_at = ?3, last_failure_at = ?4, last_exit = ?5,
       last_missed_at = ?6, last_miss_reason = ?7, happened = ?8
 WHERE schedule_id = ?1
"""

KEEP_SOURCE = "UPDATE schedules SET source = ?1, base = ?2 WHERE schedule_id = ?3"


def upsert(
    tx: Transaction,
    schedules: Sequence[Schedule],
    *,
    source: str | None = None,
    user_id: str = "",
    remove: Collection[str] = (),
    expected: Mapping[str, int | None] = NOTHING_EXPECTED,
    initial_positions: Mapping[str, InitialPosition] = NO_POSITIONS,
    update_waiting: bool = False,
) -> list[Upserted]:
    """Define schedules. The contract is `Store.upsert`."""
    tx.keep_gate()
    tx.hold_definitions()
    ids = [*(schedule.schedule_id for schedule in schedules), *remove]
    tx.hold(ids)
    follow_held(tx, ids)
    check_revisions(tx, expected)
    for schedule_id in remove:
        delete(tx, schedule_id)
    simple = upsert_simple(
        tx, schedules, source=source, user_id=user_id, but=initial_positions.keys() | set(remove)
    )
    retimed = _retimed(tx, [each for each in schedules if each.schedule_id in initial_positions])
    done: list[Upserted] = []
    for schedule in schedules:
        found = simple.get(schedule.schedule_id)
        if found is None:
            position = initial_positions.get(schedule.schedule_id)
            found = _upsert(tx, schedule, source, user_id, position)
        if update_waiting and found.change != "created":
            moved = move_waiting(tx, schedule, found.revision)
            found = Upserted(found.schedule_id, found.change, found.revision, moved)
        done.append(found)
    for schedule, each in zip(schedules, done, strict=True):
        position = initial_positions.get(schedule.schedule_id)
        if position is not None and each.change != "created":
            _rearm(tx, schedule, position, from_now=schedule.schedule_id in retimed)
    pairs = zip(schedules, done, strict=True)
    changed = [schedule for schedule, each in pairs if each.change != "unchanged"]
    keep_follows(tx, changed)
    keep_groups(tx, changed)
    return done


def _upsert(
    tx: Transaction,
    schedule: Schedule,
    source: str | None,
    user_id: str,
    position: InitialPosition | None,
) -> Upserted:
    stored, text = find(tx, schedule.schedule_id), definition(schedule)
    if stored is not None and is_foreign(tx, stored.state.user_id):
        problem = f"schedule {schedule.schedule_id} belongs to another owner"
        raise NotAllowed(problem, hint="use another id")
    if stored is None or stored.deleted:
        created = _create(
            tx, schedule, stored, position, text=text, source=source or "", user_id=user_id
        )
        if position is not None and position.paused:
            pause_schedule(tx, schedule.schedule_id, note="")
        return created
    check_change(tx, stored)
    is_new_source = source is not None and (stored.source, stored.base) != (source, text)
    done = Upserted(schedule.schedule_id, "unchanged", stored.state.revision)
    if stored.text != text:
        done = edit(tx, stored, schedule, text, user_id=user_id)
    if is_new_source:
        tx.run(KEEP_SOURCE, (source, text, schedule.schedule_id))
    return done


def _create(
    tx: Transaction,
    schedule: Schedule,
    old: StoredSchedule | None,
    position: InitialPosition | None,
    *,
    text: str,
    source: str,
    user_id: str,
) -> Upserted:
    revision = old.state.revision + 1 if old is not None else 1
    decided = old.state.decided_run_at if old is not None else 0
    until, since, created_at = max(decided, tx.now // 1000), None, tx.now
    if position is not None and position.ticked_at is not None:
        # Ticks before a deletion were decided then, by the definition of that time.
        deleted_at = 0 if old is None or old.deleted_at is None else old.deleted_at
        last = max(position.ticked_at, deleted_at) // 1000
        until = since = min(until, max(decided, last))
        created_at = min(since * 1000, tx.now)
    if old is not None:
        keep_definition(tx, old, "", max(created_at, (old.deleted_at or 0) + 1))
    row = (schedule.schedule_id, source, user_id, text, revision, created_at, tx.now)
    tx.run(CREATE, row)
    tx.run(CREATE_STATE, (schedule.schedule_id, until))
    state = State(until, decided, 0, 0, created_at, revision, user_id)
    if position is not None:
        state = _with_past(tx, schedule, state, position)
    if old is None and since is None and schedule.ticks_once:
        missed, until = defined_late(schedule, state.past, now=tx.now)
        carry_out(tx, [Decided(schedule, state, [missed])] if missed is not None else [])
    (run_at,) = set_positions(tx, [(schedule, state, until)])
    tx.emit(ScheduleCreated(schedule.schedule_id, revision, text, run_at, user_id, since))
    return Upserted(schedule.schedule_id, "created", revision)


def _with_past(
    tx: Transaction, schedule: Schedule, state: State, position: InitialPosition
) -> State:
    """Store what a new schedule did elsewhere before: its next tick may follow from that."""
    happened = None
    succeeded = position.last_success_at
    if succeeded is not None and schedule.trigger.needs_past:
        until, past = state.decided_until, state.past
        happened = encode_happened(
            causes_after_end(schedule.trigger, past, "", Status.SUCCESS, now=succeeded, until=until)
        )
    tx.run(
        INIT_STATE,
        (schedule.schedule_id, position.last_run_at, succeeded, position.last_failure_at,
         position.last_exit, position.last_missed_at, position.last_miss_reason, happened),
    )  # fmt: skip
    return replace(state, happened=happened)


def _retimed(tx: Transaction, schedules: Sequence[Schedule]) -> set[str]:
    """Return which of these schedules exist and would tick at other times than now."""
    new = {schedule.schedule_id: schedule for schedule in schedules}
    return {
        stored.schedule_id
        for stored in (find_all(tx, list(new)) if new else ())
        if is_retimed(stored.schedule(), new[stored.schedule_id])
    }


def _rearm(
    tx: Transaction, schedule: Schedule, position: InitialPosition, *, from_now: bool
) -> None:
    """Give a schedule without a next tick the tick that follows its last success.

    If that tick is past, it is due immediately; with `from_now` its delay counts from now instead:
    an edit that changes when a schedule ticks starts nothing of the past.
    """
    stored, succeeded = existing(tx, schedule.schedule_id), position.last_success_at
    if stored.paused or stored.run_at is not None or succeeded is None:
        return
    if not schedule.trigger.needs_past or unfinished_of(tx, [schedule.schedule_id]):
        return
    until = max(stored.state.decided_until, tx.now // 1000)  # a past tick is due immediately
    trigger, past = schedule.trigger, stored.state.past
    happened = causes_after_end(trigger, past, "", Status.SUCCESS, now=succeeded, until=until)
    first = trigger.next_after(until, replace(past, happened=happened))
    if from_now and first == until + 1:
        happened = causes_after_end(trigger, past, "", Status.SUCCESS, now=tx.now, until=until)
    happen(tx, stored, schedule, happened)
    armed = existing(tx, schedule.schedule_id)
    if armed.run_at is not None:
        tx.emit(ScheduleArmed(schedule.schedule_id, armed.run_at))


def delete(tx: Transaction, schedule_id: str, *, expected: int | None = None) -> bool:
    """Delete a schedule. The contract is `Store.delete`."""
    stored = hold_schedule(tx, schedule_id)
    if expected is not None and expected != stored.state.revision:
        raise RevisionConflict(schedule_id, expected, stored.state.revision)
    check_change(tx, stored)
    schedule = stored.schedule()
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    if schedule is not None:
        run_at = stored.first_undecided(schedule)
        if run_at is not None:
            past = stored.state.past
            undecided = set_aside(schedule, run_at, past, now=tx.now, reason="canceled")
            _carry_out(tx, stored, schedule, [undecided] if undecided else [], unfinished)
    for run in unfinished:
        if run.phase in UNANNOUNCED:
            cancel_waiting(tx, schedule_id, run, "the schedule was deleted")
    tx.run(
        "UPDATE schedules SET deleted_at = ?1, updated_at = ?1 WHERE schedule_id = ?2",
        (tx.now, schedule_id),
    )
    replace_due(tx, [(schedule_id, None)])
    tx.run("DELETE FROM follows WHERE schedule_id = ?1", (schedule_id,))
    keep_definition(tx, stored, stored.text, tx.now)
    before_creation = (schedule_id, 0, stored.state.created_at, "")
    tx.run(KEEP_DEFINITION, before_creation)
    tx.emit(ScheduleDeleted(schedule_id))
    return True


def _carry_out(
    tx: Transaction,
    stored: StoredSchedule,
    schedule: Schedule,
    decisions: Sequence[Decision],
    unfinished: Sequence[Run],
) -> StoredSchedule:
    """Carry out decisions; return the schedule as it is afterwards."""
    if decisions:
        carry_out(tx, [Decided(schedule, stored.state, decisions, unfinished)])
    return existing(tx, stored.schedule_id)
