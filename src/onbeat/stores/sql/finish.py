"""The ends of runs: what nodes and targets tell of them, and what is decided without those.

Whoever ends a run holds its schedule, and those that follow it: their ticks are due in the
transaction that ends it.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from onbeat.core.decide.outcomes import UNREPORTED, next_step, to_release
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import (
    AwaitReport,
    Decision,
    Finish,
    Release,
    RequestCancel,
    Retry,
    Supersede,
)
from onbeat.core.runs.run import (
    Accepted,
    Busy,
    Canceled,
    Failed,
    Gone,
    Lost,
    Outcome,
    Reason,
    ReasonDetail,
    Run,
    Status,
    Succeeded,
)
from onbeat.errors import NoSuchRun, RunIsOver
from onbeat.events import (
    RunAccepted,
    RunCanceled,
    RunEndAsked,
    RunFailed,
    RunHandedBack,
    RunRetrying,
    RunSkipped,
    RunSucceeded,
)
from onbeat.ports.store import Finished, Node
from onbeat.stores.sql.followers import cause, hold_with_followers
from onbeat.stores.sql.rows import (
    GOES_ON,
    IS_FOUND_AGAIN,
    RUN_OF_SCHEDULE,
    as_run,
    cancel_waiting,
    definition_at,
    definition_of,
    definitions_of,
    end_waiting,
    failures_of,
    full_groups,
    gate_is_open,
    lift_limit,
    plain,
    read_detail,
    release,
    tried_with,
    unfinished_of,
)
from onbeat.stores.sql.schedule_rows import is_foreign, rest_schedule
from onbeat.stores.sql.transaction import Row, Transaction, Value, as_json

LONGEST_TEXT = 64 * 1024  # of a result, an error and the last of what was printed
AT_ONCE = 128  # successes in one statement

# An attempt that was announced keeps its number, and counts as little as one that found its target
# busy: a number is announced once.
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

# What was asked to end and not launched has ended, unless an attempt before may go on elsewhere.
ASKED = f"""
  WITH held (id, token) AS (VALUES {{(?int,?int)}})
SELECT {RUN_OF_SCHEDULE}, fence FROM schedule_runs JOIN held ON run_id = id AND fence = token
 WHERE status = 'STARTED' AND end_asked_at IS NOT NULL
   AND NOT ({IS_FOUND_AGAIN} AND attempt - deferrals > 1)
"""

ANNOUNCED = """
  WITH held (id, token) AS (VALUES {(?int,?int)})
SELECT run_id, attempt FROM schedule_runs JOIN held ON run_id = id AND fence = token
 WHERE status = 'STARTED' AND leased_by IS NOT NULL
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

# Mostly there is none, which an index knows that has only those.
ANY_FAILING = """
SELECT 1 FROM schedule_state INDEXED BY failing_schedules WHERE consecutive_failures > 0 LIMIT 1
"""

FAILING = """
SELECT schedule_id, consecutive_failures FROM schedule_state
 WHERE consecutive_failures > 0 AND schedule_id IN ({?text})
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
       updated_at = ?8, deferrals = deferrals + ?9,
       deadline_at = CASE WHEN ?9 = 1 THEN deadline_at ELSE ?10 END, tried = ?11,
       leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""

AWAIT = """
UPDATE schedule_runs
   SET deadline_at = ?3, external_id = coalesce(nullif(?4, ''), external_id), log_tail = ?5,
       updated_at = ?6, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND fence = ?2 AND status = 'STARTED'
"""

ASK_TO_END = """
UPDATE schedule_runs
   SET end_asked_at = ?2, reason = ?3, updated_at = ?2,
       deadline_at = CASE WHEN leased_by IS NULL THEN ?2 ELSE deadline_at END
 WHERE run_id = ?1 AND status = 'STARTED' AND end_asked_at IS NULL
"""

# One that is only to be found is found for that: whoever has claimed it for more claims it anew.
ASK_FOUND_TO_END = f"""
UPDATE schedule_runs
   SET end_asked_at = ?2, reason = ?3, updated_at = ?2, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND status = 'ENQUEUED' AND end_asked_at IS NULL AND {GOES_ON}
"""

HELD_BY = f"""
SELECT {RUN_OF_SCHEDULE}, fence
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IN (?1[]) AND schedule_id IN (?2[])
 ORDER BY run_id
"""

UNHEARD_OF = f"""
SELECT {RUN_OF_SCHEDULE}, fence
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND status = 'STARTED' AND leased_by IS NULL AND deadline_at <= ?1
   AND schedule_id IN (?2[])
 ORDER BY run_id
"""

OVERDUE = f"""
SELECT {RUN_OF_SCHEDULE}, fence, grp, reason, detail
  FROM schedule_runs INDEXED BY unfinished_runs
 WHERE finished_at IS NULL AND leased_by IS NULL AND deadline_at <= ?1 AND schedule_id IN (?2[])
 ORDER BY run_id
"""

OVERDUE_SCHEDULES = """
SELECT DISTINCT schedule_id FROM (
    SELECT schedule_id FROM schedule_runs
     WHERE deadline_at IS NOT NULL AND leased_by IS NULL AND finished_at IS NULL
       AND deadline_at <= ?1
     ORDER BY deadline_at LIMIT ?2) AS overdue
"""

FOLLOWED = "SELECT DISTINCT followed FROM follows WHERE followed IN (?1[])"

WHOSE_RUN = """
SELECT r.schedule_id, s.user_id FROM schedule_runs r LEFT JOIN schedules s USING (schedule_id)
 WHERE r.run_id = ?1
"""

ONE = f"SELECT {RUN_OF_SCHEDULE}, fence FROM schedule_runs WHERE run_id = ?1"


def finish(tx: Transaction, finished: Sequence[Finished]) -> list[int]:
    """Record outcomes. The contract is `Store.finish`."""
    followed = hold_with_followers(tx, {each.attempt.schedule_id for each in finished})
    in_order = followed | {  # with more than successes: the last outcome told is what counts
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
        row = tx.one(ONE, (attempt.run_id,))
        if row is not None and (row[3], row[-1]) == ("STARTED", attempt.fence):
            end(tx, row, each.outcome, log_tail=each.log_tail)
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
        ids = [attempt.schedule_id for attempt in attempts]
        failing = _failing(tx, ids)
        tx.many(NOTE_SUCCESS, ids, (tx.now,))
        tx.events += [
            RunSucceeded(
                a.schedule_id, a.run_id, a.run_at, a.attempt, failing.pop(a.schedule_id, 0)
            )
            for a in attempts
        ]
        return [attempt.run_id for attempt in attempts]
    if len(finished) == 1:
        others += finished
        return []
    half = len(finished) // 2
    return [*_succeed(tx, finished[:half], others), *_succeed(tx, finished[half:], others)]


def _failing(tx: Transaction, schedule_ids: Sequence[str]) -> dict[str, int]:
    """Return how many runs in a row have failed of those schedules whose last one did."""
    if tx.one(ANY_FAILING) is None:
        return {}
    return dict(tx.each(FAILING, schedule_ids))


def end(tx: Transaction, row: Row, outcome: Outcome, *, log_tail: str = "") -> None:
    """Record the outcome of a started run, decide what follows, and release who waited.

    The row has the columns of `RUN_OF_SCHEDULE` and the fence. All that is concerned is held.
    """
    *columns, fence = row
    run, schedule_id = as_run(tuple(columns)), row[0]
    schedule, current = definitions_of(tx, schedule_id, run.revision)
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    if schedule is None and isinstance(outcome, Accepted):
        outcome = _with_own_timeout(tx, schedule_id, run, outcome)
    found = next_step(schedule, run, outcome, unfinished, now=tx.now)
    error, exit_code = _told(outcome)
    ids, held, tail = (schedule_id, run.run_id, run.run_at), (run.run_id, fence), _tail(log_tail)
    policy = schedule.policy if schedule is not None else Policy()
    pause_after = None if current is None else current.policy.pause_after
    if isinstance(found, AwaitReport):
        external_id = plain(found.external_id)
        tx.run(AWAIT, (*held, found.deadline_at, external_id, tail, tx.now))
        tx.tell(RunAccepted(*ids, run.attempt, found.deadline_at, external_id))
    elif isinstance(found, Retry):
        detached = isinstance(outcome, Lost) and run.reattachable
        assert schedule is not None or detached, "nothing of what is gone is tried again"
        wait = None if detached else policy.start_deadline  # one that has started is not waiting
        deadline = None if wait is None else found.due_at + wait
        again = (found.due_at, tx.now, int(found.is_deferral), deadline)
        if found.is_deferral:
            lift_limit(tx, schedule_id, run)
        tried = tried_with(tx, run, found.reason, error, exit_code)
        tx.run(TRY_AGAIN, (*held, found.reason, error, exit_code, tail, *again, tried))
        tx.tell(RunRetrying(*ids, run.attempt, found.due_at, found.reason, error or ""))
        _pause_after(tx, schedule_id, pause_after, failures_of(tx, schedule_id))
    else:
        as_ended = (found.status, found.reason, error, exit_code, tail, tx.now, _result(outcome))
        tx.run(END, (*held, *as_ended))
        failures = failures_of(tx, schedule_id)
        if found.status is Status.SUCCESS:
            tx.many(NOTE_SUCCESS, [schedule_id], (tx.now,))
        elif found.status is Status.FAILED:
            tx.run(NOTE_FAILURE, (tx.now, exit_code, schedule_id))
        failures += found.status is Status.FAILED
        tx.tell(_told_of_end(ids, run.attempt, found, error or "", failures))
        if found.status is Status.FAILED:
            _pause_after(tx, schedule_id, pause_after, failures)
        release(tx, schedule_id, found.release)
        cause(tx, schedule_id, found.status)


def _told_of_end(
    ids: tuple[str, int, int], attempt: int, found: Finish, error: str, failures: int
) -> RunSucceeded | RunCanceled | RunSkipped | RunFailed:
    if found.status is Status.SUCCESS:
        return RunSucceeded(*ids, attempt, failures)
    reason = str(found.reason)
    if found.status is Status.CANCELED:
        return RunCanceled(*ids, error, reason)
    if found.status is Status.SKIPPED:
        return RunSkipped(*ids, reason)
    return RunFailed(*ids, attempt, reason, error, failures)


def _pause_after(tx: Transaction, schedule_id: str, pause_after: int | None, failures: int) -> None:
    """Pause a schedule of which too many runs in a row have failed, by what it says now."""
    if pause_after is None or failures < pause_after:
        return
    paused = tx.one("SELECT paused FROM schedules WHERE schedule_id = ?1", (schedule_id,))
    if paused == (0,):
        note = f"{failures} runs in a row have failed" if failures > 1 else "a run has failed"
        rest_schedule(tx, schedule_id, note=note)


def settle(
    tx: Transaction, unfinished: Mapping[str, Sequence[Run]], node: Node | None
) -> tuple[set[str], set[str]]:
    """Decide what is over of schedules, which are held, so that it is in nobody's way.

    That is what nodes hold that have fallen silent, but for this node, and what was accepted and
    not heard of in time. Returns the schedules whose unfinished runs have changed, and those for
    which it has to be left to others, who hold what else is concerned: because schedules follow
    them, or because a failure may pause them.
    """
    if not unfinished:
        return set(), set()
    late = [
        schedule_id
        for schedule_id, runs in unfinished.items()
        if any(run.is_unheard_of(tx.now) for run in runs)
    ]
    unheard = tx.all(UNHEARD_OF, (tx.now, late)) if late else []
    silent: list[str] = []
    if tx.is_shared:  # else whoever plans here has seen to it when it registered
        found = tx.all("SELECT node_id FROM nodes WHERE alive_until < ?1", (tx.now,))
        silent = [node_id for (node_id,) in found if node is None or node_id != node.node_id]
    lost = tx.all(HELD_BY, (silent, list(unfinished))) if silent else []
    concerned = sorted({row[0] for row in (*unheard, *lost)})
    if not concerned:
        return set(), set()
    out = {row[0] for row in tx.all(FOLLOWED, (concerned,))}
    for schedule_id in concerned:
        schedule = definition_of(tx, schedule_id)
        if schedule is not None and schedule.policy.pause_after is not None:
            out.add(schedule_id)
    for row in unheard:
        if row[0] not in out:
            _end_unheard_of(tx, row)
    end_runs_of(tx, silent, [each for each in concerned if each not in out])
    return set(concerned) - out, out


def end_runs_of(
    tx: Transaction, nodes: Sequence[str], schedule_ids: Sequence[str]
) -> tuple[int, int]:
    """Decide what nodes hold of schedules that are held; return how many were lost, and freed.

    What was announced is lost, what was only claimed is free again.
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
    """Free the runs of these ids and fences, one after the other; their schedules are held.

    Those that were asked to end have done so: they were not launched. One that is judged again when
    it is claimed may not be in the way of another that waits any more.
    """
    for row in tx.each(ASKED, fences):
        end(tx, row, Canceled("asked to end before it was launched"))
    announced: dict[int, int] = dict(tx.each(ANNOUNCED, fences))
    freed = [
        RunHandedBack(schedule_id, run_id, run_at, fence, announced.get(run_id, 0))
        for schedule_id, run_id, run_at, fence in tx.each(HAND_BACK, fences, (tx.now,))
    ]
    tx.events += freed
    for schedule_id in sorted({each.schedule_id for each in freed}):
        release_next(tx, schedule_id)


def expire(tx: Transaction, *, limit: int) -> int:
    """End what has waited too long. The contract is `Store.expire`."""
    tx.keep_gate()
    if not gate_is_open(tx):
        return 0
    ids = [schedule_id for (schedule_id,) in tx.all(OVERDUE_SCHEDULES, (tx.now, limit))]
    if not ids:
        return 0
    hold_with_followers(tx, ids)
    overdue = tx.all(OVERDUE, (tx.now, ids))
    waiting = [row for row in overdue if row[3] == Status.ENQUEUED]
    for *row, group, reason, detail in waiting:  # all before one of them is released
        run = as_run(tuple(row[:-1]))
        if run.was_tried or read_detail(detail).start_by != run.deadline_at:
            end_waiting(tx, row[0], run, _why_it_waited(tx, run, group, reason))
        elif not lift_limit(tx, row[0], run):
            end_waiting(tx, row[0], run, "edited", known=ReasonDetail(start_by=run.deadline_at))
    for *row, _, _, _ in overdue:
        if row[3] == Status.STARTED:
            _end_unheard_of(tx, tuple(row))
    for schedule_id in sorted({row[0] for row in waiting}):
        release_next(tx, schedule_id)
    return len(overdue)


def _end_unheard_of(tx: Transaction, row: Row) -> None:
    """End a run that was accepted and not heard of in time."""
    if as_run(tuple(row[:-1])).ending is not None:
        end(tx, row, Canceled("its target was not told: it had accepted it"))
        return
    end(tx, row, Failed(UNREPORTED, "timeout", retryable=False))


def _why_it_waited(tx: Transaction, run: Run, group: str | None, reason: str | None) -> Reason:
    """Return what kept a run from starting in time."""
    if reason == "busy":
        return "busy"
    if group is not None and run.blocked_by is None and group in full_groups(tx):
        return "group_full"
    return "deadline"


def cancel(tx: Transaction, run_id: int, *, note: str) -> None:
    """Have a run end. The contract is `Store.cancel`."""
    row = held_run(tx, run_id)
    run, schedule_id, told = as_run(tuple(row[:-1])), row[0], note or "canceled by hand"
    if run.detached:
        _ask_to_end(tx, schedule_id, run, "canceled", note)
    elif run.status is Status.ENQUEUED:
        cancel_waiting(tx, schedule_id, run, told)
        release_next(tx, schedule_id)
    elif run.is_accepted:
        end(tx, row, Canceled(f"{told}; its target was not told: it had accepted it"))
    elif run.status is Status.STARTED:
        _ask_to_end(tx, schedule_id, run, "canceled", note)
    else:
        raise RunIsOver(run_id, run.status)


def carry_out_about(tx: Transaction, schedule_id: str, decision: Decision) -> None:
    """Carry out a decision about a run that is there."""
    match decision:
        case Supersede():
            end_waiting(tx, schedule_id, decision.run, decision.reason, newer=decision.newer)
        case Release():
            release(tx, schedule_id, decision.run)
        case RequestCancel():
            _ask_to_end(tx, schedule_id, decision.run, "superseded")
        case _:
            raise AssertionError(f"{decision} is about a tick")


def release_next(tx: Transaction, schedule_id: str) -> None:
    """Let the first in the queue of a schedule start, if it is its turn."""
    left = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    release(tx, schedule_id, to_release(left, now=tx.now))


def _ask_to_end(
    tx: Transaction, schedule_id: str, run: Run, reason: Reason, note: str = ""
) -> None:
    sql = ASK_FOUND_TO_END if run.detached else ASK_TO_END
    if tx.run(sql, (run.run_id, tx.now, reason)):
        tx.tell(RunEndAsked(schedule_id, run.run_id, run.run_at, reason, plain(note)))


def held_run(tx: Transaction, run_id: int) -> Row:
    """Hold the schedule of a run, and those that follow it; return the run."""
    row = tx.one(WHOSE_RUN, (run_id,))
    if row is None or is_foreign(tx, row[1] or ""):
        raise NoSuchRun(run_id)
    hold_with_followers(tx, [row[0]])
    found = tx.one(ONE, (run_id,))
    if found is None:  # it was pruned since
        raise NoSuchRun(run_id)
    return found


def _with_own_timeout(tx: Transaction, schedule_id: str, run: Run, outcome: Accepted) -> Accepted:
    """Have a run of a schedule that was deleted be awaited for as long as its revision said."""
    own = definition_at(tx, schedule_id, run.revision)
    timeout = None if own is None else own.policy.timeout
    return outcome if timeout is None else replace(outcome, timeout=timeout)


def _told(outcome: Outcome) -> tuple[str | None, int | None]:
    """Return the error and the exit code that are kept of an outcome."""
    match outcome:
        case Succeeded():
            return None, 0
        case Accepted():
            return None, None
        case Failed():
            return plain(outcome.error[:LONGEST_TEXT]), outcome.exit_code
        case Canceled() | Busy() | Gone():
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
