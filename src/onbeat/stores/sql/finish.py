"""Record the outcomes of attempts and what follows from them: retries, releases, follower ticks.

A transaction that ends a run holds its schedule and the schedules that follow it: their ticks are
written in the same transaction.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from onbeat.core.decide.outcomes import next_step, to_release
from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import AwaitReport, Finish, Retry
from onbeat.core.runs.run import (
    Accepted,
    Busy,
    Canceled,
    Failed,
    Gone,
    Lost,
    Outcome,
    Run,
    Status,
    Succeeded,
)
from onbeat.errors import NoSuchRun
from onbeat.events import RunAccepted, RunCanceled, RunFailed, RunRetrying, RunSkipped, RunSucceeded
from onbeat.ports.store import Finished
from onbeat.stores.sql.followers import cause, hold_with_followers
from onbeat.stores.sql.rows import (
    RUN_OF_SCHEDULE,
    as_run,
    definition_at,
    definitions_of,
    failures_of,
    lift_limit,
    release,
    storable_text,
    tried_with,
    unfinished_of,
)
from onbeat.stores.sql.schedule_rows import is_foreign, pause_schedule
from onbeat.stores.sql.transaction import Row, Transaction, Value, as_json

LONGEST_TEXT = 64 * 1024  # characters of a result, an error and a log tail

BATCH = 128  # successes in one statement
TARGET_NOT_NOTIFIED = "its target had accepted it and was not notified"

SUCCEED_TOGETHER = """
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

# Mostly no schedule fails: the index holds only those that do.
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

SCHEDULE_OF_RUN = """
SELECT r.schedule_id, s.user_id FROM schedule_runs r LEFT JOIN schedules s USING (schedule_id)
 WHERE r.run_id = ?1
"""

RUN_AND_FENCE = f"SELECT {RUN_OF_SCHEDULE}, fence FROM schedule_runs WHERE run_id = ?1"


def finish(tx: Transaction, finished: Sequence[Finished]) -> list[int]:
    """Record outcomes. The contract is `Store.finish`."""
    followed = hold_with_followers(tx, {each.attempt.schedule_id for each in finished})
    in_order = followed | {  # schedules with other outcomes too: the last one reported counts
        each.attempt.schedule_id for each in finished if not isinstance(each.outcome, Succeeded)
    }
    independent, others = finished, list[Finished]()
    if in_order:
        independent = [each for each in finished if each.attempt.schedule_id not in in_order]
        others = [each for each in finished if each.attempt.schedule_id in in_order]
    done: list[int] = []
    for begin in range(0, len(independent), BATCH):
        done += _succeed(tx, independent[begin : begin + BATCH], others)
    for each in others:
        attempt = each.attempt
        row = tx.one(RUN_AND_FENCE, (attempt.run_id,))
        if row is not None and (row[3], row[-1]) == ("STARTED", attempt.fence):
            end(tx, row, each.outcome, log_tail=each.log_tail)
            done.append(attempt.run_id)
    return done


def _succeed(tx: Transaction, finished: Sequence[Finished], others: list[Finished]) -> list[int]:
    """Record successes together if every fence holds and no run waits for any of them.

    Returns the recorded runs. Those that do not qualify, found by halving, are added to `others`.
    """
    values: list[Value] = []
    for each in finished:
        attempt = each.attempt
        values += (attempt.run_id, attempt.fence, _result(each.outcome), _tail(each.log_tail))
    tx.run("SAVEPOINT successes")
    all_recorded = tx.many(SUCCEED_TOGETHER, values, (tx.now,)) == len(finished)
    if not all_recorded:
        tx.run("ROLLBACK TO successes")
    tx.run("RELEASE successes")
    if all_recorded:
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
    """Return the consecutive failures of those schedules whose last run failed."""
    if tx.one(ANY_FAILING) is None:
        return {}
    return dict(tx.each(FAILING, schedule_ids))


def end(tx: Transaction, row: Row, outcome: Outcome, *, log_tail: str = "") -> None:
    """Record the outcome of a started run, decide what follows, and release queued runs.

    The row has the columns of `RUN_OF_SCHEDULE` and the fence. The schedule and its followers are
    held.
    """
    *columns, fence = row
    run, schedule_id = as_run(tuple(columns)), row[0]
    schedule, current = definitions_of(tx, schedule_id, run.revision)
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    if schedule is None and isinstance(outcome, Accepted):
        outcome = _with_timeout_of_revision(tx, schedule_id, run, outcome)
    found = next_step(schedule, run, outcome, unfinished, now=tx.now)
    error, exit_code = _error_and_exit_code(outcome)
    ids, held, tail = (schedule_id, run.run_id, run.run_at), (run.run_id, fence), _tail(log_tail)
    policy = schedule.policy if schedule is not None else Policy()
    pause_after = None if current is None else current.policy.pause_after
    if isinstance(found, AwaitReport):
        external_id = storable_text(found.external_id)
        tx.run(AWAIT, (*held, found.deadline_at, external_id, tail, tx.now))
        tx.emit(RunAccepted(*ids, run.attempt, found.deadline_at, external_id))
    elif isinstance(found, Retry):
        detached = isinstance(outcome, Lost) and run.reattachable
        assert schedule is not None or detached, "a run of a deleted schedule is not retried"
        wait = None if detached else policy.start_deadline  # a detached run has started already
        deadline = None if wait is None else found.due_at + wait
        again = (found.due_at, tx.now, int(found.is_deferral), deadline)
        if found.is_deferral:
            lift_limit(tx, schedule_id, run)
        tried = tried_with(tx, run, found.reason, error, exit_code)
        tx.run(TRY_AGAIN, (*held, found.reason, error, exit_code, tail, *again, tried))
        tx.emit(RunRetrying(*ids, run.attempt, found.due_at, found.reason, error or ""))
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
        tx.emit(_finish_event(ids, run.attempt, found, error or "", failures))
        if found.status is Status.FAILED:
            _pause_after(tx, schedule_id, pause_after, failures)
        release(tx, schedule_id, found.release)
        cause(tx, schedule_id, found.status)


def _finish_event(
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
    """Pause a schedule if its current definition says so after this many failures in a row."""
    if pause_after is None or failures < pause_after:
        return
    paused = tx.one("SELECT paused FROM schedules WHERE schedule_id = ?1", (schedule_id,))
    if paused == (0,):
        note = f"{failures} runs in a row have failed" if failures > 1 else "a run has failed"
        pause_schedule(tx, schedule_id, note=note)


def release_next(tx: Transaction, schedule_id: str) -> None:
    """Release the first queued run of a schedule, if it may start now."""
    left = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    release(tx, schedule_id, to_release(left, now=tx.now))


def hold_run(tx: Transaction, run_id: int) -> Row:
    """Hold the schedule of a run and its followers; return the run's row, and its fence last."""
    row = tx.one(SCHEDULE_OF_RUN, (run_id,))
    if row is None or is_foreign(tx, row[1] or ""):
        raise NoSuchRun(run_id)
    hold_with_followers(tx, [row[0]])
    found = tx.one(RUN_AND_FENCE, (run_id,))
    if found is None:  # it was pruned meanwhile
        raise NoSuchRun(run_id)
    return found


def _with_timeout_of_revision(
    tx: Transaction, schedule_id: str, run: Run, outcome: Accepted
) -> Accepted:
    """Return the outcome with the timeout of the run's revision: its schedule was deleted."""
    schedule = definition_at(tx, schedule_id, run.revision)
    timeout = None if schedule is None else schedule.policy.timeout
    return outcome if timeout is None else replace(outcome, timeout=timeout)


def _error_and_exit_code(outcome: Outcome) -> tuple[str | None, int | None]:
    """Return the error and the exit code to store for an outcome."""
    match outcome:
        case Succeeded():
            return None, 0
        case Accepted():
            return None, None
        case Failed():
            return storable_text(outcome.error[:LONGEST_TEXT]), outcome.exit_code
        case Canceled() | Busy() | Gone():
            return storable_text(outcome.error[:LONGEST_TEXT]), None
        case Lost():
            return "its node fell silent after announcing it: launched zero or one times", None


def _result(outcome: Outcome) -> str | None:
    """Return a result as it is stored, or a note if it is too long or not JSON."""
    if not isinstance(outcome, Succeeded) or outcome.result is None:
        return None
    try:
        text = as_json(outcome.result)
    except (TypeError, ValueError, RecursionError):
        return as_json(f"<a {type(outcome.result).__name__}, not serializable as JSON>")
    return (
        text
        if len(text) <= LONGEST_TEXT
        else as_json(f"<{len(text)} characters of JSON, not stored>")
    )


def _tail(text: str) -> str | None:
    return storable_text(text[-LONGEST_TEXT:]) if text else None
