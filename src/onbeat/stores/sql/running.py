"""Claiming, announcing and finishing runs.

A claim gives a run a new fence; whoever comes later with an older one changes nothing.
"""

from collections.abc import Container, Iterable, Sequence

from msgspec.structs import replace

from onbeat.core.plan import Launch, Queue, Retry, Skip, after, judge, to_release
from onbeat.core.runs import Canceled, Failed, Lost, Outcome, Run, Status, Succeeded
from onbeat.core.schedules import from_definition
from onbeat.errors import InvalidSchedule
from onbeat.events import (
    RunCanceled,
    RunClaimed,
    RunEnqueued,
    RunFailed,
    RunHandedBack,
    RunRetrying,
    RunStarted,
    RunSucceeded,
)
from onbeat.ports import Attempt, Finished, Node
from onbeat.stores.sql.rows import (
    END_WAITING,
    RUN_OF_SCHEDULE,
    WaitingRow,
    as_run,
    definition_of,
    end_waiting,
    may_start,
    plain,
    release,
    unfinished_of,
)
from onbeat.stores.sql.transaction import Transaction, Value, as_json

LONGEST_TEXT = 64 * 1024  # of a result, an error and the last of what was printed
AT_ONCE = 128  # successes in one statement

CLAIM = """
  WITH given (node_id, fence, revision, at, run_id) AS (VALUES {(?text,?int,?int,?int,?int)})
UPDATE schedule_runs AS r
   SET leased_by = given.node_id, fence = given.fence, revision = given.revision,
       updated_at = given.at
  FROM given
 WHERE r.run_id = given.run_id
"""

ANNOUNCE = """
  WITH held (id, token) AS (VALUES {(?int,?int)})
UPDATE schedule_runs AS r
   SET status = 'STARTED', attempt = r.attempt + 1, reason = NULL, started_at = ?1, updated_at = ?1
  FROM held
 WHERE r.run_id = held.id AND r.fence = held.token
   AND r.status = 'ENQUEUED' AND r.leased_by || '' = ?2
   AND (r.request_id <> '' OR NOT EXISTS (
        SELECT 1 FROM schedules s WHERE s.schedule_id = r.schedule_id AND s.paused = 1))
RETURNING run_id
"""

HAND_BACK = """
  WITH held (id, token) AS (VALUES {(?int,?int)})
UPDATE schedule_runs AS r
   SET attempt = r.attempt - CASE WHEN r.status = 'STARTED' THEN 1 ELSE 0 END,
       status = 'ENQUEUED', leased_by = NULL, started_at = NULL, fence = r.fence + 1,
       updated_at = ?1
  FROM held
 WHERE r.run_id = held.id AND r.fence = held.token
   AND r.status IN ('ENQUEUED', 'STARTED') AND r.leased_by IS NOT NULL
RETURNING schedule_id, run_id, run_at, fence
"""

SUCCEED_ALONE = """
  WITH given (run_id, fence, result, log_tail) AS (VALUES {(?int,?int,?text,?text)})
UPDATE schedule_runs AS r
   SET status = 'SUCCESS', reason = NULL, error = NULL, exit_code = 0, result = given.result,
       log_tail = given.log_tail, finished_at = ?1, updated_at = ?1, leased_by = NULL,
       fence = r.fence + 1
  FROM given
 WHERE r.run_id = given.run_id AND r.fence = given.fence AND r.status = 'STARTED'
   AND NOT EXISTS (
        SELECT 1 FROM schedule_runs AS q INDEXED BY blocked_runs
         WHERE q.schedule_id = r.schedule_id AND q.blocked_by IS NOT NULL AND q.finished_at IS NULL)
"""

NOTE_SUCCESS = """
UPDATE schedule_state
   SET last_run_at = ?1, last_success_at = ?1, last_exit = 0, consecutive_failures = 0
 WHERE schedule_id IN ({?text})
"""

NOTE_FAILURE = """
UPDATE schedule_state
   SET last_run_at = ?1, last_failure_at = ?1, last_exit = ?2,
       consecutive_failures = consecutive_failures + 1
 WHERE schedule_id = ?3
"""

END = """
UPDATE schedule_runs
   SET status = ?3, reason = ?4, error = ?5, exit_code = ?6, log_tail = ?7, finished_at = ?8,
       updated_at = ?8, result = ?9, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""

TRY_AGAIN = """
UPDATE schedule_runs
   SET status = 'ENQUEUED', reason = ?3, error = ?4, exit_code = ?5, log_tail = ?6, due_at = ?7,
       updated_at = ?8, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""

HELD_BY = f"""
SELECT {RUN_OF_SCHEDULE}, fence
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IN (?1[]) AND schedule_id IN (?2[])
 ORDER BY run_id
"""

STARTED = """
SELECT run_id, run_at, status, due_at, created_at, request_id, attempt, blocked_by
  FROM schedule_runs
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""


def claim(tx: Transaction, node: Node, *, limit: int) -> list[Attempt]:
    """Claim runs for a node. The contract is `Store.claim`."""
    if limit < 1 or not may_start(tx, node):
        return []
    attempts: list[Attempt] = []
    while (left := limit - len(attempts)) and _claim_some(tx, node, left, attempts) == left:
        pass  # some of them were not to start after all: there may be more
    return attempts


def _claim_some(tx: Transaction, node: Node, limit: int, attempts: list[Attempt]) -> int:
    """Look at up to `limit` runs, and claim those that may start; return how many there were."""
    rows = [WaitingRow(*row) for row in tx.take_waiting(sorted(node.offers), limit)]
    if not rows:
        return 0
    end_silent(tx, sorted({row.schedule_id for row in rows}), node)
    claims: list[Value] = []
    claimed: set[int] = set()
    for row in rows:
        attempt = _attempt(row)
        if attempt is None:
            _refuse(tx, row)
        elif _may_start(tx, row, claimed):
            claimed.add(attempt.run_id)
            attempts.append(attempt)
            claims += (node.node_id, attempt.fence, attempt.revision, tx.now, attempt.run_id)
            tx.tell(
                RunClaimed(
                    attempt.schedule_id, attempt.run_id, attempt.run_at, node.node_id, attempt.fence
                )
            )
    tx.many(CLAIM, claims)
    return len(rows)


def announce(tx: Transaction, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Announce claimed runs. The contract is `Store.announce`."""
    if not may_start(tx, node):
        return []
    tx.hold(_schedules(attempts))
    held = {run_id for (run_id,) in tx.each(ANNOUNCE, _fences(attempts), (tx.now, node.node_id))}
    announced = [attempt for attempt in attempts if attempt.run_id in held]
    tx.events += [
        RunStarted(a.schedule_id, a.run_id, a.run_at, a.attempt, node.node_id, a.fence)
        for a in announced
    ]
    return announced


def hand_back(tx: Transaction, attempts: Sequence[Attempt]) -> None:
    """Free runs that were not launched. The contract is `Store.hand_back`."""
    tx.hold(_schedules(attempts))
    free(tx, _fences(attempts))


def free(tx: Transaction, fences: Sequence[Value]) -> None:
    """Free the runs of these ids and fences, one after the other; their schedules are held."""
    tx.events += [RunHandedBack(*row) for row in tx.each(HAND_BACK, fences, (tx.now,))]


def finish(tx: Transaction, finished: Sequence[Finished]) -> list[int]:
    """Record outcomes. The contract is `Store.finish`."""
    tx.hold(_schedules(each.attempt for each in finished))
    in_order = {  # schedules with more than successes: the last outcome told is what counts
        each.attempt.schedule_id for each in finished if not isinstance(each.outcome, Succeeded)
    }
    alone, others = finished, list[Finished]()
    if in_order:
        alone = [each for each in finished if each.attempt.schedule_id not in in_order]
        others = [each for each in finished if each.attempt.schedule_id in in_order]
    done: list[int] = []
    for begin in range(0, len(alone), AT_ONCE):
        done += _succeed(tx, alone[begin : begin + AT_ONCE], others)
    for each in others:
        attempt = each.attempt
        row = tx.one(STARTED, (attempt.run_id, attempt.fence))
        if row is not None:
            run = Run(row[0], row[1], Status(row[2]), *row[3:])
            held = attempt.schedule_id, attempt.fence
            _end(tx, run, each.outcome, *held, log_tail=each.log_tail)
            done.append(attempt.run_id)
    return done


def _succeed(tx: Transaction, finished: Sequence[Finished], others: list[Finished]) -> list[int]:
    """Record successes together where each is still held and nothing waits for it.

    Returns which; those for which it is not so are added to `others`, found by halving.
    """
    given: list[Value] = []
    for each in finished:
        held = each.attempt
        given += (held.run_id, held.fence, _result(each.outcome), _tail(each.log_tail))
    tx.run("SAVEPOINT successes")
    all_alone = tx.many(SUCCEED_ALONE, given, (tx.now,)) == len(finished)
    if not all_alone:
        tx.run("ROLLBACK TO successes")
    tx.run("RELEASE successes")
    if all_alone:
        attempts = [each.attempt for each in finished]
        tx.many(NOTE_SUCCESS, [attempt.schedule_id for attempt in attempts], (tx.now,))
        tx.events += [RunSucceeded(a.schedule_id, a.run_id, a.run_at, a.attempt) for a in attempts]
        return [attempt.run_id for attempt in attempts]
    if len(finished) == 1:
        others += finished
        return []
    half = len(finished) // 2
    return [*_succeed(tx, finished[:half], others), *_succeed(tx, finished[half:], others)]


def _end(
    tx: Transaction, run: Run, outcome: Outcome, schedule_id: str, fence: int, *, log_tail: str = ""
) -> None:
    """Record one outcome, decide what follows, and release who waited."""
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    found = after(definition_of(tx, schedule_id), run, outcome, unfinished, now=tx.now)
    error, exit_code = _told(outcome)
    ids, held, tail = (schedule_id, run.run_id, run.run_at), (run.run_id, fence), _tail(log_tail)
    if isinstance(found, Retry):
        tx.run(TRY_AGAIN, (*held, found.reason, error, exit_code, tail, found.due_at, tx.now))
        tx.tell(RunRetrying(*ids, run.attempt, found.due_at, found.reason, error or ""))
        return
    result = _result(outcome)
    tx.run(END, (*held, found.status, found.reason, error, exit_code, tail, tx.now, result))
    if found.status is Status.SUCCESS:
        tx.many(NOTE_SUCCESS, [schedule_id], (tx.now,))
        tx.tell(RunSucceeded(*ids, run.attempt))
    elif found.status is Status.CANCELED:
        tx.tell(RunCanceled(*ids, error or ""))
    else:
        tx.run(NOTE_FAILURE, (tx.now, exit_code, schedule_id))
        tx.tell(RunFailed(*ids, run.attempt, str(found.reason), error or ""))
    release(tx, schedule_id, found.release)


def end_silent(tx: Transaction, schedule_ids: Sequence[str], node: Node | None) -> None:
    """Decide what nodes that have fallen silent hold of these schedules, but for this node."""
    if not tx.is_shared:
        return  # whoever plans here has seen to it when it registered
    found = tx.all("SELECT node_id FROM nodes WHERE alive_until < ?1", (tx.now,))
    silent = [node_id for (node_id,) in found if node is None or node_id != node.node_id]
    if silent:
        end_runs_of(tx, silent, schedule_ids)


def end_runs_of(
    tx: Transaction, nodes: Sequence[str], schedule_ids: Sequence[str]
) -> tuple[int, int]:
    """Decide what nodes hold of schedules that are held; return how many were lost, and freed.

    What was announced is lost, what was only claimed is free again.
    """
    lost = freed = 0
    for *row, fence in tx.all(HELD_BY, (list(nodes), list(schedule_ids))):
        run = as_run(tuple(row))
        if run.status is Status.STARTED:
            _end(tx, run, Lost(), row[0], fence)
            lost += 1
        else:
            free(tx, (run.run_id, fence))
            freed += 1
    return lost, freed


def _may_start(tx: Transaction, row: WaitingRow, claimed: Container[int]) -> bool:
    """Judge a run again that was decided before it was due; carry out what that says.

    Those `claimed` just now are in flight, though their rows do not say so yet.
    """
    run = Run(
        row.run_id, row.run_at, Status.ENQUEUED, row.due_at, row.created_at, row.request_id,
        row.attempt,
    )  # fmt: skip
    if run.request_id or not run.was_deferred:
        return True
    schedule = from_definition(row.schedule_id, row.definition)
    if schedule.policy.overlap == "allow":  # nothing is in its way, however much there is
        return True
    unfinished = [
        replace(other, leased=True) if other.run_id in claimed else other
        for other in unfinished_of(tx, [row.schedule_id]).get(row.schedule_id, [])
    ]
    ids = {other.run_at: other.run_id for other in unfinished if not other.request_id}
    match judge(schedule, run, unfinished, now=tx.now):
        case Launch():
            return True
        case Queue(behind=behind):
            tx.run(
                "UPDATE schedule_runs SET blocked_by = ?1, updated_at = ?2 WHERE run_id = ?3",
                (ids[behind], tx.now, run.run_id),
            )
            tx.tell(
                RunEnqueued(
                    row.schedule_id, run.run_id, run.run_at, run.due_at, blocked_by=ids[behind]
                )
            )
        case Skip(reason=reason, blocked_by=blocked_by):
            blocker = ids.get(blocked_by) if blocked_by is not None else None
            end_waiting(tx, row.schedule_id, run, reason, blocked_by=blocker)
    return False


def _attempt(row: WaitingRow) -> Attempt | None:
    """Return what a node gets of a run, or None if its schedule cannot be read any more."""
    try:
        schedule = from_definition(row.schedule_id, row.definition)
    except InvalidSchedule:
        return None
    return Attempt(
        row.run_id,
        row.schedule_id,
        row.run_at,
        row.due_at,
        attempt=row.attempt + 1,
        fence=row.fence + 1,
        target=schedule.target,
        request_id=row.request_id,
        triggered_by=row.triggered_by,
        iteration=row.iteration,
        tick_count=row.tick_count,
        first_run_at=row.first_run_at,
        revision=row.revision,
        inputs_text=row.inputs,
        timeout=schedule.policy.timeout,
        user_id=row.user_id,
    )


def _refuse(tx: Transaction, row: WaitingRow) -> None:
    """End a waiting run whose schedule cannot be read any more."""
    told = "the schedule's definition cannot be read"
    tx.run(END_WAITING, (row.run_id, "FAILED", "invalid_target", tx.now, None, told))
    tx.tell(RunFailed(row.schedule_id, row.run_id, row.run_at, row.attempt, "invalid_target", told))
    others = unfinished_of(tx, [row.schedule_id]).get(row.schedule_id, [])
    release(tx, row.schedule_id, to_release(others, now=tx.now))


def _told(outcome: Outcome) -> tuple[str | None, int | None]:
    """Return the error and the exit code that are kept of an outcome."""
    match outcome:
        case Succeeded():
            return None, 0
        case Failed():
            return plain(outcome.error[:LONGEST_TEXT]), outcome.exit_code
        case Canceled():
            return plain(outcome.error[:LONGEST_TEXT]), None
        case Lost():
            return "its node fell silent after announcing it: launched zero or one times", None


def _result(outcome: Outcome) -> str | None:
    """Return a result as it is kept, or a note instead of one that is too long or no JSON."""
    if not isinstance(outcome, Succeeded) or outcome.result is None:
        return None
    try:
        text = as_json(outcome.result)
    except (TypeError, ValueError, RecursionError):
        return as_json(f"<a {type(outcome.result).__name__}, which JSON cannot say>")
    return (
        text
        if len(text) <= LONGEST_TEXT
        else as_json(f"<{len(text)} characters of JSON, not kept>")
    )


def _tail(text: str) -> str | None:
    return plain(text[-LONGEST_TEXT:]) if text else None


def _fences(attempts: Iterable[Attempt]) -> list[Value]:
    return [value for attempt in attempts for value in (attempt.run_id, attempt.fence)]


def _schedules(attempts: Iterable[Attempt]) -> set[str]:
    return {attempt.schedule_id for attempt in attempts}
