"""What follows the outcome of an attempt, and whether a waiting run may start."""

from collections.abc import Iterable, Sequence

from onbeat.core.policy import Policy
from onbeat.core.runs.decisions import (
    AboutRun,
    AboutTick,
    AfterAttempt,
    AwaitReport,
    Detach,
    Finish,
    Launch,
    Queue,
    RequestCancel,
    Retry,
    Skip,
    Supersede,
    Tick,
)
from onbeat.core.runs.phase import UNANNOUNCED, Status
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
from onbeat.core.runs.stable_hash import stable_share
from onbeat.core.schedule import Schedule
from onbeat.core.target import Target

MOST_LOST = 5  # further attempts at a run whose nodes are lost: the run may be the cause
UNREPORTED = "its target accepted it and reported no outcome by its deadline: it may still run"
REPORT_TIMEOUT = 3_600_000  # milliseconds an accepted run is in flight if no timeout is set


def next_step(
    schedule: Schedule | None,
    run: Run,
    outcome: Outcome,
    unfinished: Sequence[Run],
    *,
    now: int,
) -> AfterAttempt:
    """Decide what follows the outcome of an attempt. `unfinished` has the schedule's other runs.

    - A failed run is retried while the policy has delays left for its reason, unless a newer tick
      waits in the queue: then that tick has its turn.
    - A lost run is retried under `on_lost: retry`, or is detached if it can be reattached. The
      number of attempts is limited, since the run may be what kills its nodes.
    - A run whose cancellation was requested is not retried, except to reattach and then end it.
    - A schedule that was deleted, or cannot be read, is None: none of its runs is retried.
    - An accepted run is in flight until it is reported or its deadline passes: the timeout of the
      schedule, else of the launcher, else REPORT_TIMEOUT. The next tick does not shorten this.
    """
    policy = schedule.policy if schedule is not None else Policy()
    release = to_release([other for other in unfinished if other.run_id != run.run_id], now=now)
    queued = any(other.blocked_by is not None and not other.is_backfill for other in unfinished)
    superseded = queued and not run.request_id
    is_last = superseded or run.ending is not None or schedule is None
    delays, tries = policy.retry.delays, run.attempt - run.deferrals
    match outcome:
        case Succeeded():
            return Finish(Status.SUCCESS, None, release)
        case Accepted():
            if run.ending is not None:
                return Finish(Status.CANCELED, run.ending, release)
            return AwaitReport(now + _report_timeout(policy, outcome), outcome.external_id)
        case Canceled():
            return Finish(Status.CANCELED, run.ending or "canceled", release)
        case Gone():
            return Finish(Status.FAILED, "invalid_target", release)
        case Busy():
            if not is_last:
                due_at = now + outcome.retry_in
                return Retry(due_at, "busy", is_deferral=True, deadline_at=run.deadline_at)
            return Finish(_status_if_busy(run), run.ending or "busy", release)
        case Lost():
            wanted = policy.on_lost == "retry" or run.reattachable
            may_retry = wanted and tries <= len(delays) + MOST_LOST
            if may_retry and run.reattachable:
                return Detach(run.ending or "lost")  # a run to be canceled is reattached first
            if may_retry and not is_last:
                return Retry(now, "lost", deadline_at=_start_by(policy, now))
            return Finish(Status.FAILED, "lost", release)
        case Failed():
            may_retry = policy.retry.allows_retry(outcome.reason, failures=tries)
            if outcome.retryable and not is_last and may_retry:
                vary = stable_share(f"retry:{run.run_id}:{run.attempt}", policy.retry.jitter + 1)
                due_at = now + delays[tries - 1] + vary
                return Retry(due_at, outcome.reason, deadline_at=_start_by(policy, due_at))
            return Finish(Status.FAILED, outcome.reason, release)


def _start_by(policy: Policy, due_at: int) -> int | None:
    """Return by when an attempt that is due then must start."""
    return None if policy.start_deadline is None else due_at + policy.start_deadline


def _report_timeout(policy: Policy, outcome: Accepted) -> int:
    if policy.timeout is not None:
        return policy.timeout
    return outcome.timeout if outcome.timeout is not None else REPORT_TIMEOUT


def _status_if_busy(run: Run) -> Status:
    """Return the status of a run whose last attempt found its target busy."""
    if run.ending is not None:
        return Status.CANCELED
    return Status.SKIPPED if run.attempt - run.deferrals <= 1 else Status.FAILED


def to_release(unfinished: Iterable[Run], *, now: int) -> Run | None:
    """Return the first run in the queue, if no run before it is in flight.

    A later run that will be rechecked is not before it: it will find the other in flight.
    """
    runs = list(unfinished)
    waiting = [run for run in runs if run.blocked_by is not None]
    first = min(waiting, key=lambda run: (run.is_backfill, run.run_at), default=None)
    if first is None:
        return None
    before = [run for run in runs if not (run.awaits_recheck and run.run_at > first.run_at)]
    return None if any(run.in_flight(now) for run in before) else first


def recheck_overlap(
    schedule: Schedule, run: Run, unfinished: Sequence[Run], *, now: int
) -> tuple[Sequence[AboutRun], AboutTick]:
    """Decide again about a run that was decided before it was due, and now is due.

    Returns the decisions about other runs, and the one about the run itself. Later runs of the same
    kind do not block it: they will be rechecked themselves.
    """
    tick, place, policy = Tick(run.run_at, run.due_at), (run.due_at, run.run_at), schedule.policy
    others = [
        other
        for other in unfinished
        if other.run_id != run.run_id
        and other.in_flight(now)
        and not (other.awaits_recheck and (other.due_at, other.run_at) > place)
    ]
    most = 1 if policy.overlap != "allow" else policy.max_active
    if run.request_id or most is None or len(others) < most:
        return (), Launch(tick)
    if policy.overlap == "queue" or run.is_backfill:
        return (), Queue(tick, others[0].run_at)
    older = all(other.run_at < run.run_at for other in others)
    if policy.overlap == "replace" and older:
        decisions, left = displace(others, newer=run.run_at)
        return decisions, Launch(tick) if left is None else Queue(tick, left.run_at)
    is_replaced = run.was_tried or policy.overlap == "replace"
    return (), Skip(tick, "superseded" if is_replaced else "overlap", others[0].run_at)


def condition_holds(condition: Target, outcome: Outcome) -> bool | None:
    """Return whether a condition holds, by the outcome of its evaluation; None if unknown.

    A target whose kind says so answers by its result, any other by whether it succeeded.
    """
    match outcome:
        case Succeeded():
            return not condition.facts.answers_by_result or bool(outcome.result)
        case Accepted():
            return True
        case Busy() | Gone():
            return False
        case Failed(reason="exit") | Failed(reason="error", retryable=False):
            return False
        case _:
            return None


def displace(
    others: Iterable[Run], *, newer: int | None = None
) -> tuple[list[AboutRun], Run | None]:
    """Decide how replaced runs end; return also a run that must end first, if there is one."""
    decisions: list[AboutRun] = []
    left = None
    for run in others:
        if run.phase in UNANNOUNCED:
            decisions.append(Supersede(run, newer=newer))
            continue
        left = run
        if run.ending is None:
            decisions.append(RequestCancel(run))
    return decisions, left
