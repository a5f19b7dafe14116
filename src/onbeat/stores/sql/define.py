"""Define and delete schedules.

Whatever moves a due row here first decides the ticks that were planned up to now, so that no tick
falls between two definitions and none of the past is fired.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from onbeat.core.decide.edits import is_retimed
from onbeat.core.decide.follow import encode_happened, ended
from onbeat.core.decide.plan import defined_late, set_aside
from onbeat.core.runs.decisions import Decision
from onbeat.core.runs.run import Run, Status
from onbeat.core.schedule import Schedule, definition
from onbeat.errors import ChangedSince, NotAllowed
from onbeat.events import ScheduleArmed, ScheduleCreated, ScheduleDeleted
from onbeat.ports.store import NO_POSITIONS, NOTHING_EXPECTED, InitialPosition, Upserted
from onbeat.stores.sql.bulk_create import check_revisions, upsert_plain
from onbeat.stores.sql.edits import edit, move_waiting
from onbeat.stores.sql.followers import happen, keep_follows
from onbeat.stores.sql.groups import keep_groups
from onbeat.stores.sql.rows import State, cancel_waiting, replace_due, unfinished_of
from onbeat.stores.sql.schedule_rows import (
    KEEP_DEFINITION,
    StoredSchedule,
    check_change,
    existing,
    find,
    find_all,
    held,
    is_foreign,
    keep_definition,
    rest_schedule,
    set_positions,
)
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

BEGIN_WITH = """
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
    source: str | None,
    user_id: str,
    remove: Collection[str] = (),
    expected: Mapping[str, int | None] = NOTHING_EXPECTED,
    beginnings: Mapping[str, InitialPosition] = NO_POSITIONS,
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
    plain = upsert_plain(
        tx, schedules, source=source, user_id=user_id, but=beginnings.keys() | set(remove)
    )
    retimed = _retimed(tx, [each for each in schedules if each.schedule_id in beginnings])
    done: list[Upserted] = []
    for schedule in schedules:
        found = plain.get(schedule.schedule_id)
        if found is None:
            beginning = beginnings.get(schedule.schedule_id)
            found = _upsert(tx, schedule, source, user_id, beginning)
        if update_waiting and found.change != "created":
            moved = move_waiting(tx, schedule, found.revision)
            found = Upserted(found.schedule_id, found.change, found.revision, moved)
        done.append(found)
    for schedule, each in zip(schedules, done, strict=True):
        beginning = beginnings.get(schedule.schedule_id)
        if beginning is not None and each.change != "created":
            _arm_anew(tx, schedule, beginning, from_now=schedule.schedule_id in retimed)
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
    beginning: InitialPosition | None,
) -> Upserted:
    known, text = find(tx, schedule.schedule_id), definition(schedule)
    if known is not None and is_foreign(tx, known.state.user_id):
        problem = f"{schedule.schedule_id} is another owner's"
        raise NotAllowed(problem, hint="take another id")
    if known is None or known.deleted:
        begun = _create(
            tx, schedule, known, beginning, text=text, source=source or "", user_id=user_id
        )
        if beginning is not None and beginning.paused:
            rest_schedule(tx, schedule.schedule_id, note="")
        return begun
    check_change(tx, known)
    is_new_source = source is not None and (known.source, known.base) != (source, text)
    done = Upserted(schedule.schedule_id, "unchanged", known.state.revision)
    if known.text != text:
        done = edit(tx, known, schedule, text, user_id=user_id)
    if is_new_source:
        tx.run(KEEP_SOURCE, (source, text, schedule.schedule_id))
    return done


def _create(
    tx: Transaction,
    schedule: Schedule,
    old: StoredSchedule | None,
    beginning: InitialPosition | None,
    *,
    text: str,
    source: str,
    user_id: str,
) -> Upserted:
    revision = old.state.revision + 1 if old is not None else 1
    decided = old.state.decided_run_at if old is not None else 0
    until, since, begins_at = max(decided, tx.now // 1000), None, tx.now
    if beginning is not None and beginning.ticked_at is not None:
        # What was before a deletion was decided then, by what it said then.
        deleted_at = 0 if old is None or old.deleted_at is None else old.deleted_at
        last = max(beginning.ticked_at, deleted_at) // 1000
        until = since = min(until, max(decided, last))
        begins_at = min(since * 1000, tx.now)
    if old is not None:
        keep_definition(tx, old, "", max(begins_at, (old.deleted_at or 0) + 1))
    about = (schedule.schedule_id, source, user_id, text, revision, begins_at, tx.now)
    tx.run(CREATE, about)
    tx.run(CREATE_STATE, (schedule.schedule_id, until))
    state = State(until, decided, 0, 0, begins_at, revision, user_id)
    if beginning is not None:
        state = _begin_with(tx, schedule, state, beginning)
    if old is None and since is None and schedule.ticks_once:
        missed, until = defined_late(schedule, state.past, now=tx.now)
        carry_out(tx, [Decided(schedule, state, [missed])] if missed is not None else [])
    (run_at,) = set_positions(tx, [(schedule, state, until)])
    tx.tell(ScheduleCreated(schedule.schedule_id, revision, text, run_at, user_id, since))
    return Upserted(schedule.schedule_id, "created", revision)


def _begin_with(
    tx: Transaction, schedule: Schedule, state: State, beginning: InitialPosition
) -> State:
    """Have a new schedule know of what was before: its next tick may follow from that."""
    happened = None
    succeeded = beginning.last_success_at
    if succeeded is not None and schedule.trigger.needs_past:
        until, past = state.decided_until, state.past
        happened = encode_happened(
            ended(schedule.trigger, past, "", Status.SUCCESS, now=succeeded, until=until)
        )
    tx.run(
        BEGIN_WITH,
        (schedule.schedule_id, beginning.last_run_at, succeeded, beginning.last_failure_at,
         beginning.last_exit, beginning.last_missed_at, beginning.last_miss_reason, happened),
    )  # fmt: skip
    return replace(state, happened=happened)


def _retimed(tx: Transaction, schedules: Sequence[Schedule]) -> set[str]:
    """Return which of these schedules are there, and would tick at other times than they do."""
    given = {schedule.schedule_id: schedule for schedule in schedules}
    return {
        known.schedule_id
        for known in (find_all(tx, list(given)) if given else ())
        if is_retimed(known.schedule(), given[known.schedule_id])
    }


def _arm_anew(
    tx: Transaction, schedule: Schedule, beginning: InitialPosition, *, from_now: bool
) -> None:
    """Give a schedule that has come to rest the tick that follows its last success.

    If that tick is past, it is due at once; or `from_now` its delay is counted from now: an edit
    that changes when a schedule ticks starts nothing of the past.
    """
    known, succeeded = existing(tx, schedule.schedule_id), beginning.last_success_at
    if known.paused or known.run_at is not None or succeeded is None:
        return
    if not schedule.trigger.needs_past or unfinished_of(tx, [schedule.schedule_id]):
        return
    until = max(known.state.decided_until, tx.now // 1000)  # what is past by now is due at once
    trigger, past = schedule.trigger, known.state.past
    happened = ended(trigger, past, "", Status.SUCCESS, now=succeeded, until=until)
    first = trigger.next_after(until, replace(past, happened=happened))
    if from_now and first == until + 1:
        happened = ended(trigger, past, "", Status.SUCCESS, now=tx.now, until=until)
    happen(tx, known, schedule, happened)
    armed = existing(tx, schedule.schedule_id)
    if armed.run_at is not None:
        tx.tell(ScheduleArmed(schedule.schedule_id, armed.run_at))


def delete(tx: Transaction, schedule_id: str, *, expected: int | None = None) -> bool:
    """Delete a schedule. The contract is `Store.delete`."""
    known = held(tx, schedule_id)
    if expected is not None and expected != known.state.revision:
        raise ChangedSince(schedule_id, expected, known.state.revision)
    check_change(tx, known)
    schedule = known.schedule()
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    if schedule is not None:
        run_at = known.first_undecided(schedule)
        if run_at is not None:
            past = known.state.past
            undecided = set_aside(schedule, run_at, past, now=tx.now, reason="canceled")
            _carry_out(tx, known, schedule, [undecided] if undecided else [], unfinished)
    for run in unfinished:
        if run.status is Status.ENQUEUED and not run.detached:
            cancel_waiting(tx, schedule_id, run, "the schedule was deleted")
    tx.run(
        "UPDATE schedules SET deleted_at = ?1, updated_at = ?1 WHERE schedule_id = ?2",
        (tx.now, schedule_id),
    )
    replace_due(tx, [(schedule_id, None)])
    tx.run("DELETE FROM follows WHERE schedule_id = ?1", (schedule_id,))
    keep_definition(tx, known, known.text, tx.now)
    first = (schedule_id, 0, known.state.created_at, "")  # until then there was nothing
    tx.run(KEEP_DEFINITION, first)
    tx.tell(ScheduleDeleted(schedule_id))
    return True


def _carry_out(
    tx: Transaction,
    known: StoredSchedule,
    schedule: Schedule,
    decisions: Sequence[Decision],
    unfinished: Sequence[Run],
) -> StoredSchedule:
    """Carry decisions out, and return the schedule as that leaves it."""
    if decisions:
        carry_out(tx, [Decided(schedule, known.state, decisions, unfinished)])
    return existing(tx, known.schedule_id)
