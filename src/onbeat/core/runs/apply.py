"""What a step makes of a run: the phase that follows, and the fields that change with it.

The stores write these changes, and a simulation plays them.
"""

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.decisions import (
    Announce,
    AwaitReport,
    Cancel,
    Claim,
    Detach,
    Finish,
    HandBack,
    Release,
    RequestCancel,
    Requeue,
    Retry,
    RunStep,
    Supersede,
)
from onbeat.core.runs.phase import (
    STARTED,
    TO_START,
    UNANNOUNCED,
    WHEN_ANNOUNCED,
    WHEN_CANCEL_REQUESTED,
    WHEN_CLAIMED,
    Phase,
    phases_where,
)
from onbeat.core.runs.run import Run


class RunChange(msgspec.Struct, frozen=True, gc=False):
    """A run before and after a step. The step from one phase to the other is allowed."""

    before: Run
    after: Run

    def __post_init__(self) -> None:
        allowed = self.before.phase.facts.follows
        assert self.after.phase in allowed, f"{self.before.phase} to {self.after.phase}"


# The phases from which each step is taken. The table of phases limits where it leads.
TAKEN_FROM: dict[type[RunStep], frozenset[Phase]] = {
    Supersede: UNANNOUNCED,
    Cancel: UNANNOUNCED,
    Release: frozenset({Phase.QUEUED}),
    Requeue: TO_START,
    Claim: frozenset(WHEN_CLAIMED),
    Announce: frozenset(WHEN_ANNOUNCED),
    HandBack: phases_where(lambda facts: facts.is_leased),
    RequestCancel: frozenset(WHEN_CANCEL_REQUESTED),
    Retry: STARTED,
    Detach: STARTED,
    AwaitReport: STARTED,
    Finish: phases_where(lambda facts: not facts.is_over),
}


def apply(run: Run, step: RunStep, *, now: int) -> RunChange:
    """Return what a step makes of a run. `now` is in milliseconds."""
    assert run.phase in TAKEN_FROM[type(step)], f"{type(step).__name__} of a {run.phase} run"
    return RunChange(run, _after(run, step, now))


def _after(run: Run, step: RunStep, now: int) -> Run:
    match step:
        case Finish(status=status):
            return replace(run, phase=Phase(status))
        case Supersede():
            return replace(run, phase=run.unstarted_end)
        case Cancel():
            return replace(run, phase=Phase.CANCELED)
        case Release():
            return _idle(replace(run, blocked_by=None))
        case Requeue(blocked_by=blocked_by):
            return replace(run, phase=Phase.QUEUED, blocked_by=blocked_by)
        case Claim():
            return replace(run, phase=WHEN_CLAIMED[run.phase])
        case Announce():
            phase = WHEN_ANNOUNCED[run.phase]
            return replace(run, phase=phase, attempt=run.attempt + 1, was_busy=False)
        case HandBack():
            return _handed_back(run)
        case RequestCancel(reason=reason):
            phase = WHEN_CANCEL_REQUESTED[run.phase]
            deadline_at = now if phase is Phase.REVOKED else run.deadline_at
            return replace(run, phase=phase, ending=reason, deadline_at=deadline_at)
        case Retry(is_deferral=is_deferral):
            return replace(
                run, phase=Phase.DEFERRED if is_deferral else Phase.RETRYING, due_at=step.due_at,
                deferrals=run.deferrals + is_deferral, deadline_at=step.deadline_at,
                was_busy=is_deferral,
            )  # fmt: skip
        case Detach():
            phase = Phase.DETACHED if run.ending is None else Phase.RECALLED
            return replace(run, phase=phase, due_at=now, deadline_at=None)
        case AwaitReport(deadline_at=deadline_at):
            return replace(run, phase=Phase.ACCEPTED, deadline_at=deadline_at)


def _handed_back(run: Run) -> Run:
    """Return a run that was freed: a number is announced once, so that attempt is a deferral."""
    match run.phase:
        case Phase.CLAIMED:
            return _idle(run)
        case Phase.RUNNING:
            return _idle(replace(run, deferrals=run.deferrals + 1))
        case Phase.REATTACHING:
            return replace(run, phase=Phase.DETACHED)
        case Phase.REATTACHED:
            return replace(run, phase=Phase.DETACHED, deferrals=run.deferrals + 1)
        case Phase.RECALLING:
            return replace(run, phase=Phase.RECALLED)
        case Phase.CANCELING if run.may_run_detached:
            return replace(run, phase=Phase.RECALLED, deferrals=run.deferrals + 1, deadline_at=None)
        case phase:
            raise AssertionError(f"{phase} is not handed back")


def _idle(run: Run) -> Run:
    return replace(run, phase=idle_phase(run))


def idle_phase(run: Run) -> Phase:
    """Return the phase in which a run waits to be claimed for an attempt."""
    if run.was_busy:
        return Phase.DEFERRED
    if run.was_tried:
        return Phase.RETRYING
    if run.is_backfill:
        return Phase.BACKFILL
    return Phase.SCHEDULED if run.due_at > run.created_at else Phase.WAITING


def first_phase(due_at: int, blocked_by: int | None, *, now: int) -> Phase:
    """Return the phase of a new run that waits. Instants are in milliseconds."""
    if blocked_by is not None:
        return Phase.QUEUED
    return Phase.SCHEDULED if due_at > now else Phase.WAITING
