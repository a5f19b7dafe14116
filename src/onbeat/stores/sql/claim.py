"""Claim and announce runs, and hand back runs that were not launched.

A claim gives a run a new fence; a later write with an older fence changes nothing. A run whose
target was of an unknown kind to the node that decided it is resolved by a node that knows the kind.
"""

from collections.abc import Iterable, Sequence

import msgspec

from onbeat.core.decide.outcomes import recheck_overlap
from onbeat.core.decide.start import check_start
from onbeat.core.runs.apply import apply
from onbeat.core.runs.decisions import Finish, Launch, Queue, Requeue, Skip, Supersede
from onbeat.core.runs.phase import WHEN_ANNOUNCED, WHEN_CLAIMED, Status
from onbeat.core.runs.run import MAY_STILL_RUN, Run, run_key
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target
from onbeat.core.target_kinds import KINDS, UNRESOLVED
from onbeat.errors import InvalidSchedule
from onbeat.events import RunClaimed, RunEnqueued, RunFailed, RunStarted
from onbeat.ports.store import Attempt, Node
from onbeat.stores.sql.cancel import carry_out_on_run
from onbeat.stores.sql.finish import release_next
from onbeat.stores.sql.lost import end_lost_and_expired, free
from onbeat.stores.sql.rendered_targets import rendered
from onbeat.stores.sql.rows import (
    END_WAITING,
    HOLDS_PLACE,
    IGNORES_PAUSE,
    IS_DETACHED,
    end_waiting,
    full_groups,
    late_by,
    listed,
    may_start,
    read_definition,
    stored_runs,
    unfinished_of,
    write,
)
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun, WaitingRow
from onbeat.stores.sql.transaction import Transaction, Value, as_json

CLAIM = """
  WITH given (run_id, before, phase, node_id, fence, at, rendered)
       AS (VALUES {(?int,?text,?text,?text,?int,?int,?text)})
UPDATE schedule_runs AS r
   SET phase = given.phase, leased_by = given.node_id, fence = given.fence,
       rendered = coalesce(r.rendered, given.rendered), updated_at = given.at
  FROM given
 WHERE r.run_id = given.run_id AND r.phase = given.before
"""

# Every run of this phase has `end_asked_at`: the condition only makes the index usable.
TO_END = """
SELECT run_id, fence FROM schedule_runs INDEXED BY runs_to_end
 WHERE leased_by = ?1 AND end_asked_at IS NOT NULL AND finished_at IS NULL
   AND phase = 'CANCELING'
"""

RESOLVE = """
UPDATE schedule_runs
   SET needs = ?3, reattachable = ?4, idempotency_key = coalesce(idempotency_key, ?5)
 WHERE run_id = ?1 AND phase = ?2
"""

AFTER_ANNOUNCEMENT = " ".join(
    f"WHEN '{before}' THEN '{after}'" for before, after in WHEN_ANNOUNCED.items()
)

ANNOUNCE = f"""
  WITH held (id, token) AS (VALUES {{(?int,?int)}})
UPDATE schedule_runs AS r
   SET phase = CASE r.phase {AFTER_ANNOUNCEMENT} END, attempt = r.attempt + 1,
       started_at = ?1, updated_at = ?1, reason = CASE WHEN r.{IS_DETACHED} THEN r.reason END
  FROM held
 WHERE r.run_id = held.id AND r.fence = held.token
   AND r.phase IN ({listed(WHEN_ANNOUNCED)}) AND r.leased_by || '' = ?2
   AND ({IGNORES_PAUSE} OR NOT EXISTS (
        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))
RETURNING run_id
"""

REQUEUE = """
UPDATE schedule_runs SET phase = ?3, blocked_by = ?4, updated_at = ?5
 WHERE run_id = ?1 AND phase = ?2
"""

CLAIMED = f"""
SELECT {RUN_COLUMNS} FROM schedule_runs WHERE run_id IN (?1[]) AND phase = 'CLAIMED'
 ORDER BY schedule_id, run_at, run_id
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
        self._changed: set[int] = set()  # runs that were changed since their rows were read
        self._full = full_groups(tx)
        self._places: dict[str, int] = {}  # of the groups that are held
        self._claims: list[Value] = []  # what CLAIM binds, of those that are not written yet
        self._has_ended_any = False  # a run ended, for which another may have waited

    def look(self, limit: int) -> bool:
        """Look at up to `limit` runs, claim those that may start; return whether to look again."""
        tx = self._tx
        without = sorted(self._full), sorted(self._left_out)
        needs = sorted(self._node.offers.union(KINDS.unresolved_needs))
        rows = tx.take_waiting(needs, limit, *without)
        if not rows:
            return False
        out: set[str] = set()
        self._changed.clear()
        if tx.is_shared:  # runs of silent nodes must not be in the way of these
            _, out = end_lost_and_expired(
                tx, unfinished_of(tx, {row.stored.schedule_id for row in rows}), self._node
            )
            self._left_out |= out
        self._hold_groups({row.grp for row in rows if row.grp is not None})
        for row in rows:
            run, schedule_id = row.stored.run, row.stored.schedule_id
            group = None if run.detached else row.grp  # a detached run still holds its place
            if schedule_id in out or group in self._full or run.run_id in self._changed:
                continue
            schedule = read_definition(schedule_id, row.definition)
            if schedule is None:
                _refuse(tx, row.stored)
                self._has_ended_any = True
            elif self._can_launch(row, schedule) and self._may_start(row, schedule, run):
                self._take_place(group)
                self._claims += self._claim(_attempt(tx, row, schedule, run), row, run)
        self._write()
        ended, self._has_ended_any = self._has_ended_any, False
        return len(rows) == limit or bool(out or self._changed) or ended

    def _can_launch(self, row: WaitingRow, schedule: Schedule) -> bool:
        """Return whether this node can launch a run.

        The row of a run that it cannot launch gets what the run needs, so that it is not taken
        again. The condition of a detached run is not checked.
        """
        run, target, when = row.stored.run, schedule.target, schedule.when
        is_condition_known = run.detached or when is None or when.facts.is_known
        if target.facts.is_known and is_condition_known and not row.needs.startswith(UNRESOLVED):
            return True
        needs = target.needs if run.detached else schedule.needs
        if needs != row.needs:
            known, key = target.facts.is_known, None
            if known and target.may_report:
                key = run_key(row.stored.schedule_id, run.run_at, run.request_id)
            reattachable = target.reattachable if known else run.reattachable
            self._tx.run(RESOLVE, (run.run_id, run.phase, needs, int(reattachable), key))
        return needs in self._node.offers

    def _may_start(self, row: WaitingRow, schedule: Schedule, run: Run) -> bool:
        """Judge a run again that was decided before it was due, if anything can be in its way."""
        tx, schedule_id = self._tx, schedule.schedule_id
        current = schedule if row.current is None else read_definition(schedule_id, row.current)
        match check_start(schedule, current, run, now=tx.now):
            case "start":
                return True
            case "wait":
                return False  # `Store.expire` ends it
            case "recheck":
                self._write()  # runs claimed just now are in flight, and may be superseded by it
                return self._recheck(schedule, run)
            case Supersede(reason=off):
                end_waiting(tx, schedule_id, run, off)
                release_next(tx, schedule_id)
                self._has_ended_any = True
                return False

    def _recheck(self, schedule: Schedule, run: Run) -> bool:
        """Decide again about a run, carry the decisions out, and return whether it may start."""
        tx, schedule_id = self._tx, schedule.schedule_id
        unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
        ids = {other.run_at: other.run_id for other in unfinished if not other.request_id}
        about_others, own = recheck_overlap(schedule, run, unfinished, now=tx.now)
        for decision in about_others:
            carry_out_on_run(tx, schedule_id, decision)
            self._changed.add(decision.run.run_id)
        match own:
            case Launch():
                return True
            case Queue(behind=behind):
                blocker = ids[behind]
                write(tx, REQUEUE, apply(run, Requeue(blocker), now=tx.now), blocker, tx.now)
                of_run = schedule_id, run.run_id, run.run_at
                tx.emit(RunEnqueued(*of_run, run.due_at, blocked_by=blocker))
            case Skip(reason=reason, blocked_by=blocked_by):
                blocked = ids.get(blocked_by) if blocked_by is not None else None
                newer = blocked_by if reason == "superseded" else None
                end_waiting(tx, schedule_id, run, reason, blocked_by=blocked, newer=newer)
        return False

    def _write(self) -> None:
        self._tx.many(CLAIM, self._claims)
        self._claims.clear()

    def _claim(self, attempt: Attempt, row: WaitingRow, run: Run) -> tuple[Value, ...]:
        self.attempts.append(attempt)
        node_id, now = self._node.node_id, self._tx.now
        self._tx.emit(RunClaimed(*row.stored.ids, node_id, attempt.fence))
        is_new = row.rendered is None and attempt.is_rendered
        fields = as_json(attempt.target.fields) if is_new else None
        phase = WHEN_CLAIMED[run.phase]
        return run.run_id, run.phase, phase, node_id, attempt.fence, now, fields

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
    tx.hold(_schedules(attempts))
    fences = {attempt.run_id: attempt.fence for attempt in attempts}
    held = [
        stored
        for stored in stored_runs(tx, CLAIMED, (list(fences),))
        if fences[stored.run_id] == stored.fence
    ]
    for stored in held:
        end_waiting(tx, stored.schedule_id, stored.run, "condition")
    for schedule_id in sorted({stored.schedule_id for stored in held}):
        release_next(tx, schedule_id)


def to_end(tx: Transaction, node: Node) -> list[tuple[int, int]]:
    """Return the runs that a node is to cancel. The contract is `Store.to_end`."""
    rows = tx.all(TO_END, (node.node_id,))
    return [(run_id, fence) for run_id, fence in rows]


def _attempt(tx: Transaction, row: WaitingRow, schedule: Schedule, run: Run) -> Attempt:
    """Return a run as a node gets it."""
    stored, policy, target, inputs = row.stored, schedule.policy, schedule.target, row.inputs
    is_detached = run.detached
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
        stored.run_id,
        stored.schedule_id,
        stored.run_at,
        stored.due_at,
        attempt=stored.attempt + 1,
        fence=stored.fence + 1,
        target=target,
        request_id=stored.request_id,
        triggered_by="retry" if stored.attempt > stored.deferrals else stored.triggered_by,
        iteration=row.iteration,
        tick_count=row.tick_count,
        first_run_at=row.first_run_at,
        revision=stored.revision,
        inputs_text=inputs,
        timeout=policy.timeout,
        user_id=row.user_id,
        cancel_grace=policy.cancel_grace,
        when=None if is_detached else schedule.when,
        is_rendered=is_rendered,
        group=row.grp,
        may_run=is_detached or stored.reason in MAY_STILL_RUN,
        is_cancel_requested=run.phase.facts.is_to_end,
        at_least_once=policy.on_lost == "retry",
        cause=stored.triggered_by,
    )


def _refuse(tx: Transaction, stored: StoredRun) -> None:
    """Fail a waiting run whose definition can no longer be read."""
    error = f"the schedule's definition cannot be read: revision {stored.revision}"
    change = apply(stored.run, Finish(Status.FAILED), now=tx.now)
    write(tx, END_WAITING, change, "invalid_target", tx.now, None, error, None)
    tx.emit(RunFailed(*stored.ids, stored.attempt, "invalid_target", error))
    release_next(tx, stored.schedule_id)


def _fences(attempts: Iterable[Attempt]) -> list[Value]:
    return [value for attempt in attempts for value in (attempt.run_id, attempt.fence)]


def _schedules(attempts: Iterable[Attempt]) -> set[str]:
    return {attempt.schedule_id for attempt in attempts}
