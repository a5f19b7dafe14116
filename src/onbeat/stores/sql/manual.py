"""Start runs manually."""

from collections.abc import Mapping

from onbeat.core.runs.run import ReasonDetail, StartedBy, run_key
from onbeat.core.schedule import from_definition
from onbeat.errors import InvalidSchedule
from onbeat.events import RunEnqueued
from onbeat.ports.rows import RunRow
from onbeat.stores.sql.queries import written_run
from onbeat.stores.sql.rows import detail_text, storable_text
from onbeat.stores.sql.schedule_rows import hold_schedule
from onbeat.stores.sql.transaction import Transaction, as_json

ENQUEUE = """
INSERT INTO schedule_runs (run_id, schedule_id, run_at, request_id, due_at, phase, triggered_by,
       needs, iteration, revision, inputs, priority, grp, deadline_at, idempotency_key, detail,
       reattachable, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, 'WAITING', ?14, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?15, ?16, ?5,
       ?5)
"""


def enqueue(
    tx: Transaction,
    schedule_id: str,
    *,
    request_id: str,
    inputs: Mapping[str, object] | None = None,
    triggered_by: StartedBy = "manual",
    note: str = "",
) -> RunRow:
    """Enqueue a manual run. The contract is `Store.enqueue`."""
    stored = hold_schedule(tx, schedule_id)
    same = tx.value(
        "SELECT run_id FROM schedule_runs WHERE schedule_id = ?1 AND request_id = ?2",
        (schedule_id, request_id),
    )
    if same is not None:
        return written_run(tx, same)
    schedule = from_definition(schedule_id, stored.text)
    if not schedule.target.is_enabled:
        raise InvalidSchedule("run.enabled", "the target is disabled", hint="enabled: true")
    merged = {**schedule.target.inputs, **(inputs or {})}
    (run_id,), run_at, iteration = tx.take_run_ids(1), tx.now // 1000, stored.state.iteration + 1
    policy, wait, key = schedule.policy, schedule.policy.start_deadline, None
    if schedule.target.may_report:
        key = run_key(schedule_id, run_at, request_id)
    tx.run(
        ENQUEUE,
        (run_id, schedule_id, run_at, request_id, tx.now, schedule.needs, iteration,
         stored.state.revision, as_json(merged) if merged else None, policy.priority, policy.group,
         None if wait is None else tx.now + wait, key, triggered_by,
         detail_text(ReasonDetail(by=tx.by, note=storable_text(note))),
         int(schedule.target.reattachable)),
    )  # fmt: skip
    tx.run(
        "UPDATE schedule_state SET iteration = ?1 WHERE schedule_id = ?2", (iteration, schedule_id)
    )
    tx.emit(RunEnqueued(schedule_id, run_id, run_at, tx.now, triggered_by))
    return written_run(tx, run_id)
