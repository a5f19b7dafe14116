"""Decide the runs of silent nodes: announced ones are lost, claimed ones are free again."""

from collections.abc import Mapping, Sequence

from onbeat.core.explain.attempts import UNLAUNCHED
from onbeat.core.runs.run import Canceled, Lost, Run, Status
from onbeat.events import RunHandedBack
from onbeat.ports.store import Node
from onbeat.stores.sql.expire import end_unreported
from onbeat.stores.sql.finish import end, release_next
from onbeat.stores.sql.rows import REATTACHABLE, RUN_OF_SCHEDULE, definition_of
from onbeat.stores.sql.transaction import Transaction, Value

# A number is announced once: an announced attempt keeps its number, and is counted as a deferral,
# like one that found its target busy.
HAND_BACK = """
  WITH held (id, token) AS (VALUES {(?int,?int)})
UPDATE schedule_runs AS r
   SET deferrals = r.deferrals + CASE WHEN r.status = 'STARTED' THEN 1 ELSE 0 END,
       status = 'ENQUEUED', leased_by = NULL, started_at = NULL, fence = r.fence + 1,
       updated_at = ?1
  FROM held
 WHERE r.run_id = held.id AND r.fence = held.token
   AND r.status IN ('ENQUEUED', 'STARTED') AND r.leased_by IS NOT NULL
RETURNING schedule_id, run_id, run_at, fence
"""

# A run that was to be cancelled and was not launched is canceled, unless an earlier attempt may
# still run detached.
CANCEL_REQUESTED = f"""
  WITH held (id, token) AS (VALUES {{(?int,?int)}})
SELECT {RUN_OF_SCHEDULE}, fence FROM schedule_runs JOIN held ON run_id = id AND fence = token
 WHERE status = 'STARTED' AND end_asked_at IS NOT NULL
   AND NOT ({REATTACHABLE} AND attempt - deferrals > 1)
"""

ANNOUNCED = """
  WITH held (id, token) AS (VALUES {(?int,?int)})
SELECT run_id, attempt FROM schedule_runs JOIN held ON run_id = id AND fence = token
 WHERE status = 'STARTED' AND leased_by IS NOT NULL
"""

HELD_BY = f"""
SELECT {RUN_OF_SCHEDULE}, fence
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IN (?1[]) AND schedule_id IN (?2[])
 ORDER BY run_id
"""

UNREPORTED_RUNS = f"""
SELECT {RUN_OF_SCHEDULE}, fence
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND status = 'STARTED' AND leased_by IS NULL AND deadline_at <= ?1
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
    unreported = tx.all(UNREPORTED_RUNS, (tx.now, late)) if late else []
    silent: list[str] = []
    if tx.is_shared:  # else the node has decided them when it registered
        found = tx.all("SELECT node_id FROM nodes WHERE alive_until < ?1", (tx.now,))
        silent = [node_id for (node_id,) in found if node is None or node_id != node.node_id]
    lost = tx.all(HELD_BY, (silent, list(unfinished))) if silent else []
    concerned = sorted({row[0] for row in (*unreported, *lost)})
    if not concerned:
        return set(), set()
    out = {row[0] for row in tx.all(FOLLOWED, (concerned,))}
    for schedule_id in concerned:
        schedule = definition_of(tx, schedule_id)
        if schedule is not None and schedule.policy.pause_after is not None:
            out.add(schedule_id)
    for row in unreported:
        if row[0] not in out:
            end_unreported(tx, row)
    end_runs_of(tx, silent, [each for each in concerned if each not in out])
    return set(concerned) - out, out


def end_runs_of(
    tx: Transaction, nodes: Sequence[str], schedule_ids: Sequence[str]
) -> tuple[int, int]:
    """Decide the runs that nodes hold, of schedules that are held; return the lost and the freed.

    Announced runs are lost, claimed ones are free again.
    """
    lost = freed = 0
    for row in tx.all(HELD_BY, (list(nodes), list(schedule_ids))):
        if row[3] == Status.STARTED:
            end(tx, row, Lost())
            lost += 1
        else:
            free(tx, (row[1], row[-1]))
            freed += 1
    return lost, freed


def free(tx: Transaction, fences: Sequence[Value]) -> None:
    """Free the runs of these ids and fences, which alternate; their schedules are held.

    A run whose cancellation was requested is canceled: it was not launched. A freed run is judged
    again when it is claimed, and may no longer block another: the queue is released.
    """
    for row in tx.each(CANCEL_REQUESTED, fences):
        end(tx, row, Canceled(UNLAUNCHED))
    announced: dict[int, int] = dict(tx.each(ANNOUNCED, fences))
    freed = [
        RunHandedBack(schedule_id, run_id, run_at, fence, announced.get(run_id, 0))
        for schedule_id, run_id, run_at, fence in tx.each(HAND_BACK, fences, (tx.now,))
    ]
    tx.events += freed
    for schedule_id in sorted({each.schedule_id for each in freed}):
        release_next(tx, schedule_id)
