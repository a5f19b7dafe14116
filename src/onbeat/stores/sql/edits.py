"""Edits: owed ticks are decided by the old definition; the new one plans from now on.

Waiting runs keep the revision they were decided by, unless the caller asks to move them.
"""

from collections.abc import Sequence

from onbeat.core.decide.edits import EditContext, decide, is_retimed
from onbeat.core.runs.phase import UNSTARTED
from onbeat.core.runs.run import Reason, ReasonDetail, run_key
from onbeat.core.schedule import Schedule
from onbeat.core.target import read_inputs
from onbeat.events import RunMoved, ScheduleChanged
from onbeat.ports.store import Upserted
from onbeat.stores.sql.rows import (
    definitions_of,
    earlier,
    gate_closed_at,
    gate_is_open,
    is_up,
    listed,
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
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction, as_json
from onbeat.stores.sql.write_decisions import Decided, carry_out

WAITING = f"""
SELECT {RUN_COLUMNS}, inputs, detail
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND schedule_id = ?1 AND phase IN ({listed(UNSTARTED)})
   AND revision <> ?2
 ORDER BY run_at, run_id
"""

MOVE = """
UPDATE schedule_runs
   SET revision = ?3, needs = ?4, priority = ?5, grp = ?6, inputs = ?7, deadline_at = ?8,
       idempotency_key = coalesce(idempotency_key, ?9), reattachable = ?10, rendered = NULL,
       updated_at = ?11
 WHERE run_id = ?1 AND phase = ?2
"""


def edit(
    tx: Transaction, stored: StoredSchedule, schedule: Schedule, text: str, *, user_id: str
) -> Upserted:
    """Give a schedule, which is held, another definition.

    Owed ticks are decided first, see `core/decide/edits.py`, so that none is lost between two
    definitions. If the ticks stay the same, they are left to the planner and the new definition.
    """
    schedule_id, revision = schedule.schedule_id, stored.state.revision + 1
    before = stored.schedule()
    retimed = is_retimed(before, schedule)
    if before is not None and retimed:
        stored = _decide_owed(tx, stored, before, schedule)
    keep_definition(tx, stored, stored.text, tx.now)
    tx.run(
        "UPDATE schedules SET definition = ?1, revision = ?2, updated_at = ?3 "
        "WHERE schedule_id = ?4",
        (text, revision, tx.now, schedule_id),
    )
    run_at = stored.run_at
    if retimed:
        until = max(stored.state.decided_run_at, tx.now // 1000)
        (run_at,) = set_positions(tx, [(schedule, stored.state, until)], are_due=not stored.paused)
    tx.emit(ScheduleChanged(schedule_id, revision, text, run_at, user_id))
    return Upserted(schedule_id, "changed", revision)


def _decide_owed(
    tx: Transaction, stored: StoredSchedule, before: Schedule, schedule: Schedule
) -> StoredSchedule:
    """Decide owed ticks by the old definition; return the schedule as it is afterwards."""
    (context,) = _contexts(tx, [stored])
    decisions = decide(context, schedule, now=tx.now)
    if decisions:
        carry_out(tx, [Decided(before, stored.state, decisions, context.unfinished)])
    return existing(tx, stored.schedule_id)


def before_edits(tx: Transaction, schedule_ids: Sequence[str]) -> dict[str, EditContext]:
    """Return what edits of schedules depend on. The contract is `Store.before_edits`."""
    visible = [
        stored
        for stored in find_all(tx, schedule_ids)
        if not (stored.deleted or is_foreign(tx, stored.state.user_id))
    ]
    contexts = _contexts(tx, visible)
    return {stored.schedule_id: context for stored, context in zip(visible, contexts, strict=True)}


def _contexts(tx: Transaction, schedules: Sequence[StoredSchedule]) -> list[EditContext]:
    unfinished = unfinished_of(tx, [stored.schedule_id for stored in schedules])
    is_open, is_down = gate_is_open(tx), not is_up(tx)
    contexts: list[EditContext] = []
    for stored in schedules:
        schedule, runs = stored.schedule(), unfinished.get(stored.schedule_id, ())
        run_at = None if schedule is None else stored.first_undecided(schedule)
        held: Reason | None = "paused" if stored.paused else None if is_open else "gate_off"
        state = stored.state
        why = stored.pause_detail() if stored.paused else ReasonDetail(since=gate_closed_at(tx))
        about = (schedule, state.revision, run_at, state.past, tuple(runs), held)
        contexts.append(EditContext(*about, None if held is None else why, is_down))
    return contexts


def move_waiting(tx: Transaction, schedule: Schedule, revision: int) -> int:
    """Move the waiting runs of a schedule to this revision; return how many were moved.

    Claimed and detached runs keep theirs. A start deadline counts from now; the limit of an edit
    that was made while no node was up stays. So do inputs of manual runs that differ from those of
    the run's revision.
    """
    schedule_id, target, policy = schedule.schedule_id, schedule.target, schedule.policy
    rows = tx.all(WAITING, (schedule_id, revision))
    for *columns, run_inputs, detail in rows:
        run, inputs = StoredRun(*columns), target.inputs_text
        if run.request_id:
            inputs = _manual_inputs(tx, schedule, run_inputs, run.revision)
        wait = None if run.triggered_by == "backfill" else policy.start_deadline
        deadline_at = None if wait is None else max(run.due_at, tx.now) + wait
        start_by = read_detail(detail).start_by
        if start_by is not None and start_by == run.deadline_at:
            deadline_at = earlier(deadline_at, start_by)
        key = run_key(schedule_id, run.run_at, run.request_id) if target.may_report else None
        waits = (schedule.needs, policy.priority, policy.group, inputs, deadline_at, key)
        tx.run(MOVE, (run.run_id, run.phase, revision, *waits, int(target.reattachable), tx.now))
        tx.emit(RunMoved(*run.ids, revision, run.revision))
    return len(rows)


def _manual_inputs(
    tx: Transaction, schedule: Schedule, inputs: str | None, revision: int
) -> str | None:
    """Return the inputs of a manual run under another definition: its own ones stay."""
    old, _ = definitions_of(tx, schedule.schedule_id, revision)
    usual = {} if old is None else old.target.inputs
    own = {
        name: value
        for name, value in read_inputs(inputs).items()
        if name not in usual or usual[name] != value
    }
    merged = {**schedule.target.inputs, **own}
    return as_json(merged) if merged else None
