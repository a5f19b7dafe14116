"""Decide the runs of silent nodes: announced ones are lost, claimed ones are free again."""

from collections.abc import Mapping, Sequence

from onbeat.core.explain.attempts import UNLAUNCHED
from onbeat.core.runs.apply import apply
from onbeat.core.runs.decisions import HandBack
from onbeat.core.runs.phase import AWAITS_REPORT, STARTED, Phase
from onbeat.core.runs.run import Canceled, Lost, Run
from onbeat.events import RunHandedBack
from onbeat.ports.store import Node
from onbeat.stores.sql.expire import end_unreported
from onbeat.stores.sql.finish import end, release_next
from onbeat.stores.sql.rows import (
    definition_of,
    listed,
    stored_runs,
    write,
)
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction, Value

HAND_BACK = """
UPDATE schedule_runs
   SET phase = ?3, deferrals = ?5, deadline_at = ?6, updated_at = ?7, leased_by = NULL,
       started_at = NULL, fence = fence + 1
 WHERE run_id = ?1 AND phase = ?2 AND fence = ?4
"""

HELD = f"""
  WITH held (id, token) AS (VALUES {{(?int,?int)}})
SELECT {RUN_COLUMNS} FROM schedule_runs JOIN held ON run_id = id AND fence = token
 WHERE leased_by IS NOT NULL AND finished_at IS NULL
"""

HELD_BY = f"""
SELECT {RUN_COLUMNS}
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IN (?1[]) AND schedule_id IN (?2[])
 ORDER BY run_id
"""

UNREPORTED_RUNS = f"""
SELECT {RUN_COLUMNS}
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND phase IN ({listed(AWAITS_REPORT)}) AND deadline_at <= ?1
   AND schedule_id IN (?2[])
 ORDER BY run_id
"""

FOLLOWED = "SELECT DISTINCT followed FROM follows WHERE followed IN (?1[])"


def end_lost_and_expired(
    tx: Transaction, unfinished: Mapping[str, Sequence[Run]], node: Node | None
) -> tuple[set[str], set[str]]:
    """End runs that would block schedules, which are held, though no node or target runs them.

    Those are runs of silent nodes, except `node`, and accepted runs whose target has not reported
    in time. Returns the schedules whose unfinished runs have changed, and those that are left out:
    ending their runs requires more locks, as schedules follow them or a failure may pause them.
    """
    if not unfinished:
        return set(), set()
    late = [
        schedule_id
        for schedule_id, runs in unfinished.items()
        if any(run.is_unreported(tx.now) for run in runs)
    ]
    unreported = stored_runs(tx, UNREPORTED_RUNS, (tx.now, late)) if late else []
    silent: list[str] = []
    if tx.is_shared:  # else the node has decided them when it registered
        found = tx.all("SELECT node_id FROM nodes WHERE alive_until < ?1", (tx.now,))
        silent = [node_id for (node_id,) in found if node is None or node_id != node.node_id]
    lost = stored_runs(tx, HELD_BY, (silent, list(unfinished))) if silent else []
    concerned = sorted({stored.schedule_id for stored in (*unreported, *lost)})
    if not concerned:
        return set(), set()
    out = set(tx.column(FOLLOWED, (concerned,)))
    for schedule_id in concerned:
        schedule = definition_of(tx, schedule_id)
        if schedule is not None and schedule.policy.pause_after is not None:
            out.add(schedule_id)
    for stored in unreported:
        if stored.schedule_id not in out:
            end_unreported(tx, stored)
    end_runs_of(tx, silent, [each for each in concerned if each not in out])
    return set(concerned) - out, out


def end_runs_of(
    tx: Transaction, nodes: Sequence[str], schedule_ids: Sequence[str]
) -> tuple[int, int]:
    """Decide the runs that nodes hold, of schedules that are held; return the lost and the freed.

    Announced runs are lost, claimed ones are free again.
    """
    lost = freed = 0
    for stored in stored_runs(tx, HELD_BY, (list(nodes), list(schedule_ids))):
        if stored.phase in STARTED:
            end(tx, stored, Lost())
            lost += 1
        else:
            free(tx, (stored.run_id, stored.fence))
            freed += 1
    return lost, freed


def free(tx: Transaction, fences: Sequence[Value]) -> None:
    """Free the runs of these ids and fences, which alternate; their schedules are held.

    A run whose cancellation was requested is canceled: it was not launched. A freed run is judged
    again when it is claimed, and may no longer block another: the queue is released.
    """
    freed: set[str] = set()
    for row in tx.each(HELD, fences):
        stored = StoredRun(*row)
        run = stored.run
        if run.phase is Phase.CANCELING and not run.may_run_detached:
            end(tx, stored, Canceled(UNLAUNCHED))
        else:
            _hand_back(tx, stored)
            freed.add(stored.schedule_id)
    for schedule_id in sorted(freed):
        release_next(tx, schedule_id)


def _hand_back(tx: Transaction, stored: StoredRun) -> None:
    change = apply(stored.run, HandBack(), now=tx.now)
    after, announced = change.after, stored.phase in STARTED
    write(tx, HAND_BACK, change, stored.fence, after.deferrals, after.deadline_at, tx.now)
    attempt = stored.attempt if announced else 0
    tx.emit(RunHandedBack(*stored.ids, stored.fence + 1, attempt))
