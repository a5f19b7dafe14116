"""Claim and announce runs, and hand back runs that were not launched.

A claim gives a run a new fence; a later write with an older fence changes nothing.
"""

from collections.abc import Iterable, Sequence

import msgspec

from onbeat.core.decide.outcomes import recheck_overlap
from onbeat.core.decide.plan import switched_off
from onbeat.core.runs.decisions import Launch, Queue, Skip
from onbeat.core.runs.run import Reason, Run, Status
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.errors import InvalidSchedule
from onbeat.events import RunClaimed, RunEnqueued, RunFailed, RunStarted
from onbeat.ports.store import Attempt, Node
from onbeat.stores.sql.cancel import carry_out_on_run
from onbeat.stores.sql.finish import release_next
from onbeat.stores.sql.lost import end_lost_and_expired, free
from onbeat.stores.sql.rendered_targets import rendered
from onbeat.stores.sql.rows import (
    DETACHED,
    END_WAITING,
    HOLDS_PLACE,
    WaitingRow,
    end_waiting,
    full_groups,
    late_by,
    may_start,
    read_definition,
    unfinished_of,
)
from onbeat.stores.sql.transaction import Transaction, Value, as_json

CLAIM = """
  WITH given (node_id, fence, at, rendered, run_id)
       AS (VALUES {(?text,?int,?int,?text,?int)})
UPDATE schedule_runs AS r
   SET leased_by = given.node_id, fence = given.fence,
       rendered = coalesce(r.rendered, given.rendered), updated_at = given.at
  FROM given
 WHERE r.run_id = given.run_id
"""

ANNOUNCE = f"""
  WITH held (id, token) AS (VALUES {{(?int,?int)}})
UPDATE schedule_runs AS r
   SET status = 'STARTED', attempt = r.attempt + 1, started_at = ?1, updated_at = ?1,
       reason = CASE WHEN {DETACHED} THEN reason END
  FROM held
 WHERE r.run_id = held.id AND r.fence = held.token
   AND r.status = 'ENQUEUED' AND r.leased_by || '' = ?2
   AND (r.request_id <> '' OR r.triggered_by = 'backfill' OR {DETACHED} OR NOT EXISTS (
        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))
RETURNING run_id
"""

CLAIMED = """
SELECT run_id, fence FROM schedule_runs
 WHERE run_id IN (?1[]) AND status = 'ENQUEUED' AND leased_by IS NOT NULL
"""

IN_GROUPS = f"""
SELECT grp, count(*) FROM schedule_runs INDEXED BY runs_in_group
 WHERE grp IS NOT NULL AND finished_at IS NULL AND grp IN (?1[])
   AND {HOLDS_PLACE}
 GROUP BY grp
"""


def claim(tx: Transaction, node: Node, *, limit: int) -> list[Attempt]:
    """Claim runs for a node. The contract is `Store.claim`."""
    if limit < 1 or not may_start(tx, node):
        return []
    claiming = _Claiming(tx, node)
    while (left := limit - len(claiming.attempts)) and claiming.look(left):
        pass  # some were not to start: there may be more
    return claiming.attempts


class _Claiming:
    """What a node has claimed so far in one transaction."""

    def __init__(self, tx: Transaction, node: Node) -> None:
        self._tx, self._node = tx, node
        self.attempts: list[Attempt] = []
        self._left_out: set[str] = set()  # schedules that cannot be judged in this transaction
        self._full = full_groups(tx)
        self._places: dict[str, int] = {}  # of the groups that are held
        self._claims: list[Value] = []  # what CLAIM binds, of those that are not written yet
        self._has_ended_any = False  # a run ended, for which another may have waited

    def look(self, limit: int) -> bool:
        """Look at up to `limit` runs, claim those that may start; return whether to look again."""
        tx = self._tx
        without = sorted(self._full), sorted(self._left_out)
        found = tx.take_waiting(sorted(self._node.offers), limit, *without)
        rows = [WaitingRow(*row) for row in found]
        if not rows:
            return False
        out: set[str] = set()
        if tx.is_shared:  # runs of silent nodes must not be in the way of these
            _, out = end_lost_and_expired(
                tx, unfinished_of(tx, {row.schedule_id for row in rows}), self._node
            )
            self._left_out |= out
        self._hold_groups({row.grp for row in rows if row.grp is not None})
        for row in rows:
            # A detached run still holds its place.
            if row.schedule_id in out or (row.grp in self._full and not row.detached):
                continue
            schedule = read_definition(row.schedule_id, row.definition)
            if schedule is None:
                _refuse(tx, row)
                self._has_ended_any = True
            elif self._may_start(row, schedule):
                self._take_place(None if row.detached else row.grp)
                self._claims += self._claim(_attempt(tx, row, schedule), row)
        self._write()
        ended, self._has_ended_any = self._has_ended_any, False
        return len(rows) == limit or bool(out) or ended

    def _may_start(self, row: WaitingRow, schedule: Schedule) -> bool:
        """Judge a run again that was decided before it was due, if anything can be in its way."""
        run = Run(
            row.run_id, row.run_at, Status.ENQUEUED, row.due_at, row.created_at, row.request_id,
            row.attempt, deferrals=row.deferrals, deadline_at=row.deadline_at,
            is_backfill=row.triggered_by == "backfill", was_handed_back=row.was_handed_back,
        )  # fmt: skip
        if run.deadline_at is not None and run.deadline_at <= self._tx.now:
            return False  # `Store.expire` ends it
        if row.detached:
            return True  # it has started: the node only reattaches to it
        off = _switched_off(row, schedule, run)
        if off is not None:
            end_waiting(self._tx, row.schedule_id, run, off)
            release_next(self._tx, row.schedule_id)
            self._has_ended_any = True
            return False
        if run.request_id or not run.was_deferred:
            return True
        policy = schedule.policy
        if policy.overlap == "allow" and policy.max_active is None:
            return True  # other runs never block it
        self._write()  # runs claimed just now are in flight, and may be superseded by it
        return _judge(self._tx, schedule, run)

    def _write(self) -> None:
        self._tx.many(CLAIM, self._claims)
        self._claims.clear()

    def _claim(self, attempt: Attempt, row: WaitingRow) -> tuple[Value, ...]:
        node_id, now = self._node.node_id, self._tx.now
        self.attempts.append(attempt)
        ids = attempt.schedule_id, attempt.run_id, attempt.run_at
        self._tx.emit(RunClaimed(*ids, node_id, attempt.fence))
        is_new = row.rendered is None and attempt.is_rendered
        fields = as_json(attempt.target.fields) if is_new else None
        return node_id, attempt.fence, now, fields, attempt.run_id

    def _hold_groups(self, names: set[str]) -> None:
        """Lock groups for claiming; groups locked by another transaction count as full."""
        new = sorted(names - self._places.keys() - self._full)
        if not new:
            return
        places = self._tx.take_groups(new)
        used: dict[str, int] = dict(self._tx.all(IN_GROUPS, (new,)))
        for name in new:
            left = places.get(name, 0) - used.get(name, 0)
            self._places[name] = left
            if left <= 0:
                self._full.add(name)

    def _take_place(self, group: str | None) -> None:
        if group is not None:
            self._places[group] -= 1
            if self._places[group] <= 0:
                self._full.add(group)


def announce(tx: Transaction, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Announce claimed runs. The contract is `Store.announce`."""
    if not may_start(tx, node):
        return []
    tx.hold(_schedules(attempts))
    held = {run_id for (run_id,) in tx.each(ANNOUNCE, _fences(attempts), (tx.now, node.node_id))}
    announced = [attempt for attempt in attempts if attempt.run_id in held]
    tx.events += [
        RunStarted(
            a.schedule_id,
            a.run_id,
            a.run_at,
            a.attempt,
            node.node_id,
            a.fence,
            triggered_by=a.triggered_by,
            late=late_by(tx, a.due_at),
        )
        for a in announced
    ]
    return announced


def hand_back(tx: Transaction, attempts: Sequence[Attempt]) -> None:
    """Free runs that were not launched. The contract is `Store.hand_back`."""
    tx.hold(_schedules(attempts))
    free(tx, _fences(attempts))


def skip_condition(tx: Transaction, attempts: Sequence[Attempt]) -> None:
    """Skip claimed runs whose condition does not hold. The contract is `Store.skip_condition`."""
    ids = _schedules(attempts)
    tx.hold(ids)
    fences = {attempt.run_id: attempt.fence for attempt in attempts}
    rows = tx.all(CLAIMED, (list(fences),))
    still_held = {run_id for run_id, fence in rows if fences[run_id] == fence}
    for schedule_id, runs in unfinished_of(tx, ids).items():
        for run in runs:
            if run.run_id in still_held:
                end_waiting(tx, schedule_id, run, "condition")
        release_next(tx, schedule_id)


def to_end(tx: Transaction, node: Node) -> list[tuple[int, int]]:
    """Return the runs that a node is to cancel. The contract is `Store.to_end`."""
    rows = tx.all(
        "SELECT run_id, fence FROM schedule_runs WHERE leased_by = ?1 AND finished_at IS NULL "
        "AND end_asked_at IS NOT NULL AND status = 'STARTED'",
        (node.node_id,),
    )
    return [(run_id, fence) for run_id, fence in rows]


def _judge(tx: Transaction, schedule: Schedule, run: Run) -> bool:
    """Judge a run again, carry out the decisions, and return whether it may start."""
    schedule_id = schedule.schedule_id
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    ids = {other.run_at: other.run_id for other in unfinished if not other.request_id}
    *others, own = recheck_overlap(schedule, run, unfinished, now=tx.now)
    for decision in others:
        carry_out_on_run(tx, schedule_id, decision)
    match own:
        case Launch():
            return True
        case Queue(behind=behind):
            tx.run(
                "UPDATE schedule_runs SET blocked_by = ?1, updated_at = ?2 WHERE run_id = ?3",
                (ids[behind], tx.now, run.run_id),
            )
            of_run = schedule_id, run.run_id, run.run_at
            tx.emit(RunEnqueued(*of_run, run.due_at, blocked_by=ids[behind]))
        case Skip(reason=reason, blocked_by=blocked_by):
            blocker = ids.get(blocked_by) if blocked_by is not None else None
            newer = blocked_by if reason == "superseded" else None
            end_waiting(tx, schedule_id, run, reason, blocked_by=blocker, newer=newer)
        case _:
            raise AssertionError(f"{own} is not a decision about the run")
    return False


def _switched_off(row: WaitingRow, schedule: Schedule, run: Run) -> Reason | None:
    """Return why the current definition keeps a run from starting, whatever it was decided by."""
    now = schedule if row.current is None else read_definition(row.schedule_id, row.current)
    off = None if now is None else switched_off(now)
    if (
        now is not None and off is not None and run.is_requested
    ):  # a requested run ignores `enabled`
        return None if now.target.is_enabled else "disabled_target"
    return off


def _attempt(tx: Transaction, row: WaitingRow, schedule: Schedule) -> Attempt:
    """Return a run as a node gets it."""
    policy, target, inputs = schedule.policy, schedule.target, row.inputs
    is_rendered = row.rendered is not None or target.has_templates
    if row.rendered is not None:
        target = Target(target.kind, msgspec.json.decode(row.rendered))
    elif target.has_templates:
        try:
            target = rendered(tx, row, schedule)
        except InvalidSchedule:  # defined before templates existed: a plain text
            is_rendered = False
    if is_rendered:
        inputs = target.inputs_text
    return Attempt(
        row.run_id,
        row.schedule_id,
        row.run_at,
        row.due_at,
        attempt=row.attempt + 1,
        fence=row.fence + 1,
        target=target,
        request_id=row.request_id,
        triggered_by="retry" if row.attempt > row.deferrals else row.triggered_by,
        iteration=row.iteration,
        tick_count=row.tick_count,
        first_run_at=row.first_run_at,
        revision=row.revision,
        inputs_text=inputs,
        timeout=policy.timeout,
        user_id=row.user_id,
        cancel_grace=policy.cancel_grace,
        when=None if row.detached else schedule.when,
        is_rendered=is_rendered,
        group=row.grp,
        may_run=bool(row.was_lost or row.detached),
        is_cancel_requested=bool(row.is_cancel_requested),
        at_least_once=policy.on_lost == "retry",
        cause=row.triggered_by,
    )


def _refuse(tx: Transaction, row: WaitingRow) -> None:
    """Fail a waiting run whose definition can no longer be read."""
    error = f"the schedule's definition cannot be read: revision {row.revision}"
    tx.run(END_WAITING, (row.run_id, "FAILED", "invalid_target", tx.now, None, error, None))
    of_run = (row.schedule_id, row.run_id, row.run_at)
    tx.emit(RunFailed(*of_run, row.attempt, "invalid_target", error))
    release_next(tx, row.schedule_id)


def _fences(attempts: Iterable[Attempt]) -> list[Value]:
    return [value for attempt in attempts for value in (attempt.run_id, attempt.fence)]


def _schedules(attempts: Iterable[Attempt]) -> set[str]:
    return {attempt.schedule_id for attempt in attempts}
