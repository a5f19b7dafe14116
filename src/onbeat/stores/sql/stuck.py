"""Mark runs that take too long, each once, in the transaction that writes its event."""

from collections import defaultdict
from collections.abc import Sequence

from onbeat.core.runs.stuck import MOST_LENGTHS, Limit, is_stuck, stuck_after
from onbeat.events import RunStuck
from onbeat.stores.sql.rows import IS_STARTED, stored_runs
from onbeat.stores.sql.schedule_rows import find_all
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction

SHORTEST = 1_000  # milliseconds: runs that are younger are not considered

# Runs that may be stuck. Short runs end before they are considered.
IN_FLIGHT = f"""
SELECT {RUN_COLUMNS} FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND {IS_STARTED} AND stuck_at IS NULL AND started_at <= ?1
   AND run_id > ?2
 ORDER BY run_id LIMIT ?3
"""

STILL_IN_FLIGHT = f"""
SELECT {RUN_COLUMNS} FROM schedule_runs
 WHERE run_id IN (?1[]) AND finished_at IS NULL AND {IS_STARTED} AND stuck_at IS NULL
 ORDER BY run_id
"""

LENGTHS = f"""
  WITH since (schedule_id, run_id) AS MATERIALIZED (
       SELECT s.schedule_id, coalesce((
              SELECT q.run_id FROM schedule_runs q WHERE q.schedule_id = s.schedule_id
               ORDER BY q.run_id DESC LIMIT 1 OFFSET {MOST_LENGTHS - 1}), 0)
         FROM schedules s WHERE s.schedule_id IN (?1[]))
SELECT r.schedule_id, r.finished_at - r.started_at
  FROM since CROSS JOIN schedule_runs r
 WHERE r.schedule_id = since.schedule_id AND r.run_id >= since.run_id
   AND r.phase = 'SUCCESS' AND r.started_at IS NOT NULL
 ORDER BY r.schedule_id
"""

MARK = f"""
UPDATE schedule_runs SET stuck_at = ?1, updated_at = ?1 WHERE run_id IN (?2[]) AND {IS_STARTED}
"""


def find(tx: Transaction, *, after: int, limit: int) -> tuple[dict[int, str], int | None]:
    """Return stuck runs later than `after` with their schedules, and where to continue."""
    runs = stored_runs(tx, IN_FLIGHT, (tx.now - SHORTEST, after, limit))
    stuck = {run.run_id: run.schedule_id for run, _, _ in _stuck(tx, runs)}
    return stuck, max(run.run_id for run in runs) if len(runs) == limit else None


def mark(tx: Transaction, found: dict[int, str]) -> int:
    """Mark runs that are still stuck and not marked yet; return how many."""
    tx.hold(sorted(set(found.values())))
    stuck = _stuck(tx, stored_runs(tx, STILL_IN_FLIGHT, (sorted(found),)))
    if stuck:
        tx.run(MARK, (tx.now, [run.run_id for run, _, _ in stuck]))
    for run, lasts, limit in stuck:
        tx.emit(RunStuck(*run.ids, run.attempt, lasts, limit.length, limit.rule))
    return len(stuck)


def _stuck(tx: Transaction, runs: Sequence[StoredRun]) -> list[tuple[StoredRun, int, Limit]]:
    """Return those of some runs that are stuck, how long each lasts, and the limit it exceeds."""
    ids = sorted({run.schedule_id for run in runs})
    if not ids:
        return []
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    for schedule_id, length in tx.all(LENGTHS, (ids,)):
        lengths[schedule_id].append(length)
    limits: dict[str, Limit | None] = {}
    for stored in find_all(tx, ids):
        schedule = stored.schedule()
        warn_after = None if schedule is None else schedule.policy.warn_after
        limits[stored.schedule_id] = stuck_after(warn_after, lengths[stored.schedule_id])
    found: list[tuple[StoredRun, int, Limit]] = []
    for run in runs:
        limit, since = limits.get(run.schedule_id), run.started_at
        if limit is None or since is None or not is_stuck(limit, started_at=since, now=tx.now):
            continue
        found.append((run, tx.now - since, limit))
    return found
