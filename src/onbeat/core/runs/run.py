"""Runs: the rows of decided ticks and of manual starts, and what can become of them.

ENQUEUED ──► STARTED ──► SUCCESS | FAILED | CANCELED
    │  ▲        │
    │  └────────┘ a retry, or handed back before it was launched
    └──► SKIPPED | CANCELED | FAILED
"""

from enum import StrEnum
from hashlib import sha256
from typing import Literal, get_args

import msgspec

# What caused a run. `timer` and `catchup` are ticks; `backfill` is a past tick that was asked for.
# StartedBy lists the starts beside the ticks: `manual` is a person or an API caller, `artifact` one
# that an agent consumes, `overdue` a prompt that was due before its folder was adopted, `next_run`
# a time that was written to last-run.json. A target gets `retry` from the second attempt on; the
# run keeps its cause.
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


# By which rule a tick is missed, or that a catch-up was asked for when a pause ended.
Rule = Literal["at_definition", "catchup", "window", "resumed"]
# What kept a run from starting that was ended while it waited.
WaitedFor = Literal["queue", "retry", "due", "pause", "node", "group", "place"]


class ReasonDetail(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What a decision knew beyond its reason, kept with the run as JSON. Instants: milliseconds."""

    rule: Rule | None = None
    waited_for: WaitedFor | None = None
    behind: int | None = None  # the run that it waited behind in a queue
    newer: int | None = None  # seconds: the tick that took its place
    since: int | None = None  # when the pause began, or the gate was closed
    until: int | None = None  # when the pause was over, if that is not when this was decided
    start_by: int | None = None  # an edit decided it while no node was up: when its grace ends
    by: str = ""  # who asked for it, or paused it
    note: str = ""  # what they said


class PastAttempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that ended, and was to be followed by another."""

    attempt: int
    started_at: int | None
    ended_at: int  # when its outcome was recorded
    reason: Reason
    exit_code: int | None = None
    error: str = ""


class Status(StrEnum):
    """Where a run is in its life."""

    ENQUEUED = "ENQUEUED"  # waiting: to start, in a queue, or for a retry
    STARTED = "STARTED"  # announced, and launched at once
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    SKIPPED = "SKIPPED"  # never started, for the reason it has


class Run(msgspec.Struct, frozen=True, gc=False):
    """An unfinished run, as far as decisions depend on it."""

    run_id: int
    run_at: int
    status: Status
    due_at: int  # milliseconds: when it may start
    created_at: int = 0  # milliseconds
    request_id: str = ""  # of a manual start; empty for a tick
    attempt: int = 0  # announcements so far
    blocked_by: int | None = None  # it is queued behind this run
    leased: bool = False  # a node has claimed it
    deferrals: int = 0  # attempts that do not count: the target was busy, or it was handed back
    deadline_at: int | None = None  # milliseconds: by when it is to start, or to be heard of
    ending: Reason | None = None  # it was asked to end, for this reason
    is_backfill: bool = False  # somebody asked for this tick afterwards
    reattachable: bool = False  # it goes on without its node, and is found by its key
    detached: bool = False  # its node is gone, and it may run elsewhere: it is to be found again
    revision: int = 0  # of its schedule: the one that it starts by
    was_handed_back: bool = False  # what was announced last was not launched, nothing failed before

    @property
    def was_tried(self) -> bool:
        """Whether an attempt was launched, or was to be and found its target busy."""
        return self.attempt > 0 and not self.was_handed_back

    @property
    def awaits_retry(self) -> bool:
        """Whether an attempt failed, or found its target busy, and the next one is to come."""
        waits = self.status is Status.ENQUEUED and self.was_tried
        return waits and not (self.leased or self.detached)

    @property
    def is_asked_for(self) -> bool:
        """Whether a person wanted it, so that no pause holds it."""
        return bool(self.request_id) or self.is_backfill

    @property
    def is_accepted(self) -> bool:
        """Whether it goes on elsewhere, and no node has it."""
        return self.status is Status.STARTED and not self.leased

    def is_unheard_of(self, now: int) -> bool:
        """Return whether it was accepted, and nobody has told of its end in time."""
        return self.is_accepted and self.deadline_at is not None and self.deadline_at <= now

    @property
    def unstarted_end(self) -> "Status":
        """What it becomes if it is ended while it waits, and not because somebody wished so."""
        return Status.FAILED if self.attempt > self.deferrals else Status.SKIPPED

    @property
    def was_deferred(self) -> bool:
        """Whether it is not of a tick decided just then, so that it is judged when claimed."""
        return self.was_tried or self.due_at > self.created_at or self.is_backfill

    @property
    def awaits_judgement(self) -> bool:
        """Whether it will be judged again: deferred, and not claimed yet."""
        waits = self.status is Status.ENQUEUED and not (self.leased or self.detached)
        return waits and self.was_deferred

    def in_flight(self, now: int) -> bool:
        """Return whether it stands in the way of another tick: about to start, or started."""
        if self.request_id or self.blocked_by is not None or self.awaits_retry:
            return False
        if self.detached:
            return True
        if self.is_backfill and self.status is Status.ENQUEUED and not self.leased:
            return False  # it lets ticks of the present go before it
        if self.ending is None and self.is_unheard_of(now):
            return False  # one that was asked to end is in the way until it has
        # One that was due when it was decided stays so, even if the clock is set back.
        due = self.due_at <= max(now, self.created_at)
        return due or self.leased or self.status is Status.STARTED


def run_key(schedule_id: str, run_at: int, request_id: str = "") -> str:
    """Return the key under which every attempt of a run is launched, so that a target knows it."""
    text = f"{schedule_id}:manual:{request_id}" if request_id else f"{schedule_id}:{run_at}"
    return sha256(text.encode()).hexdigest()


class Succeeded(msgspec.Struct, frozen=True):
    """The target did its work. `result` is what JSON can say."""

    result: object = None


class Failed(msgspec.Struct, frozen=True):
    """The target did not do its work; `retryable` says whether another attempt could."""

    error: str
    reason: Reason = "error"
    retryable: bool = True
    exit_code: int | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The target took it on, and will report the outcome later, by the run's id or key.

    `timeout` is how long it has for that, in milliseconds, where its schedule has no timeout.
    """

    external_id: str = ""
    timeout: int | None = None


class Busy(msgspec.Struct, frozen=True):
    """The target cannot take it now; it is to be asked again in so many milliseconds."""

    error: str
    retry_in: int


class Gone(msgspec.Struct, frozen=True):
    """The target is no more: no attempt could help."""

    error: str


class Canceled(msgspec.Struct, frozen=True):
    """It was ended from outside: asked to, or because its node was stopped."""

    error: str


class Lost(msgspec.Struct, frozen=True):
    """It was announced by a node that then fell silent: launched zero or one times."""


Outcome = Succeeded | Failed | Accepted | Busy | Gone | Canceled | Lost
