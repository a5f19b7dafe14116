"""Record the outcomes of attempts and what follows from them: retries, releases, follower ticks.

A transaction that ends a run holds its schedule and the schedules that follow it: their ticks are
written in the same transaction.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from onbeat.core.decide.outcomes import next_step, to_release
from onbeat.core.runs.apply import apply
from onbeat.core.runs.decisions import AwaitReport, Finish, Retry
from onbeat.core.runs.phase import STARTED, Status
from onbeat.core.runs.run import (
    Accepted,
    Busy,
    Canceled,
    Failed,
    Gone,
    Lost,
    Outcome,
    Run,
    Succeeded,
)
from onbeat.errors import NoSuchRun
from onbeat.events import RunAccepted, RunCanceled, RunFailed, RunRetrying, RunSkipped, RunSucceeded
from onbeat.ports.store import Finished
from onbeat.stores.sql.followers import cause, hold_with_followers
from onbeat.stores.sql.rows import (
    IS_STARTED,
    definition_at,
    definitions_of,
    failures_of,
    lift_limit,
    release,
    storable_text,
    stored_runs,
    tried_with,
    unfinished_of,
    write,
)
from onbeat.stores.sql.schedule_rows import is_foreign, pause_schedule
from onbeat.stores.sql.taken_rows import RUN_COLUMNS, StoredRun
from onbeat.stores.sql.transaction import Transaction, Value, as_json

LONGEST_TEXT = 64 * 1024  # characters of a result, an error and a log tail

BATCH = 128  # successes in one statement
TARGET_NOT_NOTIFIED = "its target had accepted it and was not notified"

SUCCEED_TOGETHER = f"""
  WITH given (run_id, fence, result, log_tail) AS (VALUES {{(?int,?int,?text,?text)}})
UPDATE schedule_runs AS r
   SET phase = 'SUCCESS', reason = NULL, error = NULL, exit_code = 0, result = given.result,
       log_tail = given.log_tail, finished_at = ?1, updated_at = ?1, leased_by = NULL,
       fence = r.fence + 1
  FROM given
 WHERE r.run_id = given.run_id AND r.fence = given.fence AND r.{IS_STARTED}
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
   SET phase = ?3, reason = ?5, error = ?6, exit_code = ?7, log_tail = ?8, finished_at = ?9,
       updated_at = ?9, result = ?10, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND phase = ?2 AND fence = ?4
"""

TRY_AGAIN = """
UPDATE schedule_runs
   SET phase = ?3, reason = ?5, error = ?6, exit_code = ?7, log_tail = ?8, due_at = ?9,
       updated_at = ?10, deferrals = ?11, deadline_at = ?12, tried = ?13, leased_by = NULL,
       fence = fence + 1
 WHERE run_id = ?1 AND phase = ?2 AND fence = ?4
"""

AWAIT = """
UPDATE schedule_runs
   SET phase = ?3, deadline_at = ?5, external_id = coalesce(nullif(?6, ''), external_id),
       log_tail = ?7, updated_at = ?8, leased_by = NULL, fence = fence + 1
 WHERE run_id = ?1 AND phase = ?2 AND fence = ?4
"""

SCHEDULE_OF_RUN = """
SELECT r.schedule_id, s.user_id FROM schedule_runs r LEFT JOIN schedules s USING (schedule_id)
 WHERE r.run_id = ?1
"""

ONE_RUN = f"SELECT {RUN_COLUMNS} FROM schedule_runs WHERE run_id = ?1"


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
        for stored in stored_runs(tx, ONE_RUN, (attempt.run_id,)):
            if stored.phase in STARTED and stored.fence == attempt.fence:
                end(tx, stored, each.outcome, log_tail=each.log_tail)
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


def end(tx: Transaction, stored: StoredRun, outcome: Outcome, *, log_tail: str = "") -> None:
    """Record the outcome of a started run, decide what follows, and release queued runs.

    The schedule and its followers are held.
    """
    run, schedule_id = stored.run, stored.schedule_id
    schedule, current = definitions_of(tx, schedule_id, run.revision)
    unfinished = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    if schedule is None and isinstance(outcome, Accepted):
        outcome = _with_timeout_of_revision(tx, schedule_id, run, outcome)
    step = next_step(schedule, run, outcome, unfinished, now=tx.now)
    error, exit_code = _error_and_exit_code(outcome)
    ids, tail = stored.ids, _tail(log_tail)
    pause_after = None if current is None else current.policy.pause_after
    if isinstance(step, Retry) and step.is_deferral:
        lifted = lift_limit(tx, schedule_id, run)
        if lifted is not None:
            step = replace(step, deadline_at=lifted.deadline_at)
    change = apply(run, step, now=tx.now)
    after = change.after
    if isinstance(step, AwaitReport):
        external_id = storable_text(step.external_id)
        write(tx, AWAIT, change, stored.fence, after.deadline_at, external_id, tail, tx.now)
        tx.emit(RunAccepted(*ids, run.attempt, step.deadline_at, external_id))
    elif isinstance(step, Finish):
        as_ended = (step.reason, error, exit_code, tail, tx.now, _result(outcome))
        write(tx, END, change, stored.fence, *as_ended)
        failures = failures_of(tx, schedule_id)
        if step.status is Status.SUCCESS:
            tx.many(NOTE_SUCCESS, [schedule_id], (tx.now,))
        elif step.status is Status.FAILED:
            tx.run(NOTE_FAILURE, (tx.now, exit_code, schedule_id))
        failures += step.status is Status.FAILED
        tx.emit(_finish_event(ids, run.attempt, step, error or "", failures))
        if step.status is Status.FAILED:
            _pause_after(tx, schedule_id, pause_after, failures)
        release(tx, schedule_id, step.release)
        cause(tx, schedule_id, step.status)
    else:
        assert schedule is not None or after.detached, "a run of a deleted schedule is not retried"
        tried = tried_with(tx, run, step.reason, error, exit_code)
        attempted = (step.reason, error, exit_code, tail)
        follows = (after.due_at, tx.now, after.deferrals, after.deadline_at, tried)
        write(tx, TRY_AGAIN, change, stored.fence, *attempted, *follows)
        tx.emit(RunRetrying(*ids, run.attempt, after.due_at, step.reason, error or ""))
        _pause_after(tx, schedule_id, pause_after, failures_of(tx, schedule_id))


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
    if tx.value("SELECT paused FROM schedules WHERE schedule_id = ?1", (schedule_id,)) == 0:
        note = f"{failures} runs in a row have failed" if failures > 1 else "a run has failed"
        pause_schedule(tx, schedule_id, note=note)


def release_next(tx: Transaction, schedule_id: str) -> None:
    """Release the first queued run of a schedule, if it may start now."""
    left = unfinished_of(tx, [schedule_id]).get(schedule_id, [])
    release(tx, schedule_id, to_release(left, now=tx.now))


def hold_run(tx: Transaction, run_id: int) -> StoredRun:
    """Hold the schedule of a run and its followers; return the run."""
    schedule_id = schedule_of_run(tx, run_id)
    if schedule_id is None:
        raise NoSuchRun(run_id)
    hold_with_followers(tx, [schedule_id])
    for stored in stored_runs(tx, ONE_RUN, (run_id,)):
        return stored
    raise NoSuchRun(run_id)  # it was pruned meanwhile


def schedule_of_run(tx: Transaction, run_id: int) -> str | None:
    """Return the schedule of a run that the caller may see, or None."""
    for schedule_id, user_id in tx.all(SCHEDULE_OF_RUN, (run_id,)):
        return None if is_foreign(tx, user_id or "") else schedule_id
    return None


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
