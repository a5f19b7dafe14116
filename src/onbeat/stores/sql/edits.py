"""Edits: what a schedule owes is decided by its old definition, and the new one plans from now on.

Runs that wait keep the revision they were decided under, unless the edit is asked to move them.
"""

from collections.abc import Sequence

from onbeat.core.decide.edits import EditContext, decide, is_retimed
from onbeat.core.runs.run import Reason, ReasonDetail, run_key
from onbeat.core.schedule import Schedule
from onbeat.core.target import read_inputs
from onbeat.events import RunMoved, ScheduleChanged
from onbeat.ports.store import Upserted
from onbeat.stores.sql.rows import (
    GOES_ON,
    definitions_of,
    earlier,
    gate_closed_at,
    gate_is_open,
    is_up,
    read_detail,
    unfinished_of,
)
from onbeat.stores.sql.schedule_rows import (
    StoredSchedule,
    existing,
    find_all,
    is_foreign,
    keep_definition,
    set_positions,
)
from onbeat.stores.sql.transaction import Transaction, as_json
from onbeat.stores.sql.write_decisions import Decided, carry_out

WAITING = f"""
SELECT run_id, run_at, due_at, request_id, triggered_by, inputs, revision, deadline_at, detail
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id = ?1 AND status = 'ENQUEUED' AND leased_by IS NULL
   AND revision <> ?2 AND NOT {GOES_ON}
 ORDER BY run_at, run_id
"""

MOVE = """
UPDATE schedule_runs
   SET revision = ?2, needs = ?3, priority = ?4, grp = ?5, inputs = ?6, deadline_at = ?7,
       idempotency_key = coalesce(idempotency_key, ?8), rendered = NULL, updated_at = ?9
 WHERE run_id = ?1
"""


def edit(
    tx: Transaction, known: StoredSchedule, schedule: Schedule, text: str, *, user_id: str
) -> Upserted:
    """Give a schedule, which is held, another definition.

    Ticks that are owed are decided first, as `core.edits` says, so that none falls between two
    definitions. If the ticks stay the same, they are left to the planner and the new definition.
    """
    schedule_id, revision = schedule.schedule_id, known.state.revision + 1
    before = known.schedule()
    retimed = is_retimed(before, schedule)
    if before is not None and retimed:
        known = _decide_owed(tx, known, before, schedule)
    keep_definition(tx, known, known.text, tx.now)
    tx.run(
        "UPDATE schedules SET definition = ?1, revision = ?2, updated_at = ?3 "
        "WHERE schedule_id = ?4",
        (text, revision, tx.now, schedule_id),
    )
    run_at = known.run_at
    if retimed:
        until = max(known.state.decided_run_at, tx.now // 1000)
        (run_at,) = set_positions(tx, [(schedule, known.state, until)], are_due=not known.paused)
    tx.tell(ScheduleChanged(schedule_id, revision, text, run_at, user_id))
    return Upserted(schedule_id, "changed", revision)


def _decide_owed(
    tx: Transaction, known: StoredSchedule, before: Schedule, schedule: Schedule
) -> StoredSchedule:
    """Decide what is owed by the old definition; return where that leaves the schedule."""
    (found,) = _found(tx, [known])
    decisions = decide(found, schedule, now=tx.now)
    if decisions:
        carry_out(tx, [Decided(before, known.state, decisions, found.unfinished)])
    return existing(tx, known.schedule_id)


def before_edits(tx: Transaction, schedule_ids: Sequence[str]) -> dict[str, EditContext]:
    """Return what edits of schedules would find. The contract is `Store.before_edits`."""
    there = [
        known
        for known in find_all(tx, schedule_ids)
        if not (known.deleted or is_foreign(tx, known.state.user_id))
    ]
    return {known.schedule_id: found for known, found in zip(there, _found(tx, there), strict=True)}


def _found(tx: Transaction, there: Sequence[StoredSchedule]) -> list[EditContext]:
    unfinished = unfinished_of(tx, [known.schedule_id for known in there])
    is_open, is_down = gate_is_open(tx), not is_up(tx)
    found: list[EditContext] = []
    for known in there:
        schedule, runs = known.schedule(), unfinished.get(known.schedule_id, ())
        run_at = None if schedule is None else known.first_undecided(schedule)
        held: Reason | None = "paused" if known.paused else None if is_open else "gate_off"
        state = known.state
        why = known.pause_detail() if known.paused else ReasonDetail(since=gate_closed_at(tx))
        about = (schedule, state.revision, run_at, state.past, tuple(runs), held)
        found.append(EditContext(*about, None if held is None else why, is_down))
    return found


def move_waiting(tx: Transaction, schedule: Schedule, revision: int) -> int:
    """Have the waiting runs of a schedule start by this revision; return how many are moved.

    Runs that a node has claimed, and those that are to be reattached, keep theirs. A start deadline
    counts from now; the limit that an edit without a node has set stays. Inputs that were given by
    hand stay: those that differ from what the run's revision had.
    """
    schedule_id, target, policy = schedule.schedule_id, schedule.target, schedule.policy
    rows = tx.all(WAITING, (schedule_id, revision))
    for run_id, run_at, due_at, request_id, triggered_by, given, before, limit, detail in rows:
        inputs = target.inputs_text
        if request_id:
            inputs = _inputs_by_hand(tx, schedule, given, before)
        wait = None if triggered_by == "backfill" else policy.start_deadline
        deadline_at = None if wait is None else max(due_at, tx.now) + wait
        start_by = read_detail(detail).start_by
        if start_by is not None and start_by == limit:
            deadline_at = earlier(deadline_at, start_by)
        key = run_key(schedule_id, run_at, request_id) if target.may_report else None
        waits = (target.needs, policy.priority, policy.group, inputs, deadline_at, key)
        tx.run(MOVE, (run_id, revision, *waits, tx.now))
        tx.tell(RunMoved(schedule_id, run_id, run_at, revision, before))
    return len(rows)


def _inputs_by_hand(
    tx: Transaction, schedule: Schedule, inputs: str | None, revision: int
) -> str | None:
    """Return the inputs of a run that was started by hand, under another definition."""
    old, _ = definitions_of(tx, schedule.schedule_id, revision)
    usual = {} if old is None else old.target.inputs
    own = {
        name: value
        for name, value in read_inputs(inputs).items()
        if name not in usual or usual[name] != value
    }
    given = {**schedule.target.inputs, **own}
    return as_json(given) if given else None
