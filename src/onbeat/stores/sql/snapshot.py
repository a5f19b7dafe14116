"""Read a snapshot: the state of all schedules and groups that a simulation starts from."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from statistics import median_low
from typing import Any

from onbeat.core.runs.decisions import Due
from onbeat.core.schedule import Schedule, from_definition
from onbeat.core.snapshot import ScheduleSnapshot, Snapshot
from onbeat.errors import InvalidSchedule
from onbeat.stores.sql.rows import GROUPS, gate_is_open
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, State, StoredRun
from onbeat.stores.sql.transaction import Row, Transaction

SCHEDULES = """
SELECT s.schedule_id, s.definition, s.paused, s.paused_until, d.run_at, d.due_at,
       t.decided_until, t.decided_run_at, t.iteration, t.runs_used, s.created_at, s.revision,
       s.user_id, t.spread_until, t.rated, t.happened
  FROM schedules s JOIN schedule_state t USING (schedule_id) LEFT JOIN due d USING (schedule_id)
 WHERE s.deleted_at IS NULL AND (?1 = '' OR s.user_id = ?2)
 ORDER BY s.schedule_id
"""

IN_FLIGHT = f"""
SELECT {RUN_COLUMNS}
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL {{own}}
 ORDER BY schedule_id, run_at, run_id
"""

OWN = "AND schedule_id IN (SELECT schedule_id FROM schedules WHERE user_id = ?1)"

# Only the last hundred rows of each schedule: a history may be long. CROSS JOIN makes SQLite start
# with the schedules, which are fewer.
RUN_LENGTHS = """
  WITH since (schedule_id, run_id) AS MATERIALIZED (
       SELECT s.schedule_id, coalesce((
              SELECT q.run_id FROM schedule_runs q WHERE q.schedule_id = s.schedule_id
               ORDER BY q.run_id DESC LIMIT 1 OFFSET 99), 0)
         FROM schedules s WHERE s.deleted_at IS NULL {own})
SELECT r.schedule_id, r.finished_at - r.started_at
  FROM since CROSS JOIN schedule_runs r
 WHERE r.schedule_id = since.schedule_id AND r.run_id >= since.run_id
   AND r.phase = 'SUCCESS' AND r.started_at IS NOT NULL
 ORDER BY r.schedule_id
"""


def read_snapshot(tx: Transaction) -> Snapshot:
    """Return the state of all schedules. The contract is `Store.read_snapshot`."""
    owner = tx.only_owner
    own, by_owner, is_own = ((), "", "") if owner is None else ((owner,), OWN, "AND user_id = ?1")
    runs = _by_schedule(tx.all(IN_FLIGHT.format(own=by_owner), own))
    past = _by_schedule(tx.all(RUN_LENGTHS.format(own=is_own), own))
    lengths = {name: _median(rows) for name, rows in past.items()}
    found: list[ScheduleSnapshot] = []
    unreadable: list[str] = []
    for schedule_id, text, *row in tx.all(
        SCHEDULES, ("" if owner is None else "owned", owner or "")
    ):
        try:
            schedule = from_definition(schedule_id, text)
        except InvalidSchedule:
            unreadable.append(schedule_id)
            continue
        of_schedule = runs.get(schedule_id, []), lengths.get(schedule_id)
        found.append(_schedule_snapshot(schedule, row, *of_schedule))
    alive = tx.one("SELECT 1 FROM nodes WHERE alive_until > ?1 LIMIT 1", (tx.now,))
    return Snapshot(
        tx.now,
        tuple(found),
        {name: places for name, places, _ in tx.all(GROUPS)},
        gate_is_open=gate_is_open(tx),
        is_up=alive is not None,
        unreadable=tuple(unreadable),
    )


def _schedule_snapshot(
    schedule: Schedule, row: Iterable[Any], runs: Iterable[Row], length: int | None
) -> ScheduleSnapshot:
    paused, paused_until, run_at, due_at, *columns = row
    state = State(*columns)
    unfinished = [StoredRun(*run) for run in runs]
    return ScheduleSnapshot(
        schedule,
        state.decided_until,
        state.decided_run_at,
        state.past,
        None if run_at is None else Due(run_at, due_at),
        tuple(stored.run for stored in unfinished),
        {each.run_id: each.started_at for each in unfinished if each.started_at is not None},
        bool(paused),
        paused_until,
        length,
    )


def _by_schedule(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by their first column, by which they are ordered."""
    return {name: list(found) for name, found in groupby(rows, itemgetter(0))}


def _median(rows: Iterable[Row]) -> int:
    """Return the lower median of run lengths, at least 1."""
    lengths: list[int] = [length for _, length in rows]
    return max(median_low(lengths), 1)
