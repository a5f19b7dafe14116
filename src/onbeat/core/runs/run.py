"""Runs: the rows of decided ticks and of manual starts, and the outcomes of attempts.

What a run may do next depends on its phase: see `core/runs/phase.py`.
"""

from hashlib import sha256
from typing import Literal, get_args

import msgspec

from onbeat.core.runs.phase import AWAITS_REPORT, UNSTARTED, Blocks, Phase, Status

# What caused a run. `timer` and `catchup` are ticks; `backfill` is a past tick that was requested.
# StartedBy lists the starts that are not ticks: `manual` is a person or an API caller, `artifact`
# an artifact that an agent consumes, `overdue` a prompt that was due before its folder was adopted,
# `next_run` a time written to last-run.json. A target receives `retry` from the second attempt on;
# the run keeps its cause.
StartedBy = Literal["manual", "artifact", "overdue", "next_run"]
TriggeredBy = Literal[
    "timer", "manual", "catchup", "retry", "backfill", "artifact", "overdue", "next_run"
]
Reason = Literal[
    "overlap", "queue_full", "group_full", "missed", "coalesced", "condition", "rate", "gate_off",
    "paused", "disabled", "disabled_target", "deadline", "superseded", "canceled", "timeout",
    "lost", "exit", "signal", "error", "launch_failed", "busy", "invalid_target", "edited",
]  # fmt: skip
REASONS: tuple[Reason, ...] = get_args(Reason)
MAY_STILL_RUN: frozenset[Reason] = frozenset({"lost"})  # after these an attempt may still run


# By which rule a tick was missed; `resumed`: a catch-up was requested at the end of a pause.
Rule = Literal["at_definition", "catchup", "window", "resumed"]
# What a run was waiting for when it was ended.
WaitedFor = Literal["queue", "retry", "due", "pause", "node", "group", "place"]


class ReasonDetail(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Further facts behind a decision, stored with the run as JSON. Instants: milliseconds."""

    rule: Rule | None = None
    waited_for: WaitedFor | None = None
    behind: int | None = None  # the run before it in the queue
    newer: int | None = None  # seconds: the tick that took its place
    since: int | None = None  # when the pause began, or the gate was closed
    until: int | None = None  # when the pause or closing ended, if not at the decision
    start_by: int | None = None  # when the grace ends of a tick that an edit decided without a node
    by: str = ""  # the caller who requested it, or paused the schedule
    note: str = ""  # the note of that caller


class PastAttempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that ended, and was followed by another or would have been."""

    attempt: int
    started_at: int | None
    ended_at: int  # when its outcome was recorded
    reason: Reason
    exit_code: int | None = None
    error: str = ""


class Run(msgspec.Struct, frozen=True, gc=False):
    """An unfinished run, as far as decisions depend on it."""

    run_id: int
    run_at: int
    phase: Phase
    due_at: int  # milliseconds: when it may start
    created_at: int = 0  # milliseconds
    request_id: str = ""  # of a manual start; empty for a tick
    attempt: int = 0  # number of announcements so far
    blocked_by: int | None = None  # the run that it is queued behind
    deferrals: int = 0  # attempts that do not count: the target was busy, or it was handed back
    deadline_at: int | None = None  # milliseconds: the deadline for its start, or for its report
    ending: Reason | None = None  # the reason for which cancellation was requested
    is_backfill: bool = False  # this past tick was requested by a backfill
    reattachable: bool = False  # it continues without its node, and can be reattached by its key
    revision: int = 0  # the revision of its schedule by which it starts
    was_busy: bool = False  # the last attempt found its target busy

    @property
    def status(self) -> Status:
        """Its public status."""
        return self.phase.facts.status

    @property
    def leased(self) -> bool:
        """Whether a node holds it."""
        return self.phase.facts.is_leased

    @property
    def detached(self) -> bool:
        """Whether its node is lost and it may still run: it is to be reattached."""
        return self.phase.facts.is_detached

    @property
    def was_tried(self) -> bool:
        """Whether an attempt was launched, or found its target busy.

        An attempt that was handed back was not launched; it counts as a deferral.
        """
        return self.attempt > self.deferrals or self.was_busy

    @property
    def awaits_retry(self) -> bool:
        """Whether it waits for another attempt after one that failed or found its target busy."""
        return self.phase in UNSTARTED and self.was_tried

    @property
    def is_requested(self) -> bool:
        """Whether a caller requested it: then no pause holds it."""
        return bool(self.request_id) or self.is_backfill

    @property
    def is_accepted(self) -> bool:
        """Whether its target accepted it, and no node holds it."""
        return self.phase in AWAITS_REPORT

    def is_unreported(self, now: int) -> bool:
        """Return whether it was accepted, and its outcome was not reported by the deadline."""
        return self.is_accepted and self.deadline_at is not None and self.deadline_at <= now

    @property
    def unstarted_end(self) -> Phase:
        """The phase it gets if it is ended while it waits, other than by a cancellation."""
        return Phase.FAILED if self.attempt > self.deferrals else Phase.SKIPPED

    @property
    def may_run_detached(self) -> bool:
        """Whether an attempt before the announced one may still run without a node."""
        return self.reattachable and self.attempt - self.deferrals > 1

    @property
    def was_deferred(self) -> bool:
        """Whether it starts later than it was decided: its overlap is rechecked when claimed."""
        return self.was_tried or self.due_at > self.created_at or self.is_backfill

    @property
    def awaits_recheck(self) -> bool:
        """Whether its overlap will be rechecked: it is deferred, and not claimed yet."""
        return self.phase in UNSTARTED and self.was_deferred

    def in_flight(self, now: int) -> bool:
        """Return whether it blocks other ticks: it is about to start, or started."""
        if self.request_id:
            return False
        match self.phase.facts.blocks:
            case Blocks.ALWAYS:
                return True
            case Blocks.NEVER:
                return False
            case Blocks.UNTIL_DEADLINE:
                return not self.is_unreported(now)
            case Blocks.ONCE_DUE:
                # A run that was due when it was decided stays due, even if the clock is moved back.
                return self.due_at <= max(now, self.created_at)


def run_key(schedule_id: str, run_at: int, request_id: str = "") -> str:
    """Return the idempotency key of a run, the same for each of its attempts."""
    text = f"{schedule_id}:manual:{request_id}" if request_id else f"{schedule_id}:{run_at}"
    return sha256(text.encode()).hexdigest()


class Succeeded(msgspec.Struct, frozen=True):
    """The target succeeded. `result` is a JSON value."""

    result: object = None


class Failed(msgspec.Struct, frozen=True):
    """The target failed. `retryable` is whether another attempt may succeed."""

    error: str
    reason: Reason = "error"
    retryable: bool = True
    exit_code: int | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The target accepted the run, and will report the outcome later, by the run's id or key.

    `timeout` is its time for that in milliseconds, used if the schedule has no timeout.
    """

    external_id: str = ""
    timeout: int | None = None


class Busy(msgspec.Struct, frozen=True):
    """The target is busy. The next attempt is due in `retry_in` milliseconds."""

    error: str
    retry_in: int


class Gone(msgspec.Struct, frozen=True):
    """The target does not exist any more: another attempt cannot succeed."""

    error: str


class Canceled(msgspec.Struct, frozen=True):
    """The attempt was canceled: by request, or because its node was stopped."""

    error: str


class Lost(msgspec.Struct, frozen=True):
    """The run was announced by a node that was then lost: it was launched once or not at all."""


Outcome = Succeeded | Failed | Accepted | Busy | Gone | Canceled | Lost
