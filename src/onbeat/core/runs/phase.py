"""The phases of a run: one table of what each means and of what may follow it.

A run is in exactly one phase, which its row stores. Everything that depends on how far a run is
reads this table: its public `status`, whether a node holds it, whether it blocks other ticks,
whether it holds a place in its group, whether it may be claimed.
"""

from collections.abc import Callable, Iterator
from enum import Enum, StrEnum, auto

import msgspec


class Status(StrEnum):
    """The status of a run, as users see it."""

    ENQUEUED = "ENQUEUED"  # waiting to start, in a queue, or for a retry
    STARTED = "STARTED"  # announced, then launched immediately
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    SKIPPED = "SKIPPED"  # never started, for the reason it has


class Phase(StrEnum):
    """The phase of a run. The phases of finished runs have the names of their status."""

    WAITING = "WAITING"
    SCHEDULED = "SCHEDULED"
    RETRYING = "RETRYING"
    DEFERRED = "DEFERRED"
    BACKFILL = "BACKFILL"
    QUEUED = "QUEUED"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    CANCELING = "CANCELING"
    ACCEPTED = "ACCEPTED"
    REVOKED = "REVOKED"
    DETACHED = "DETACHED"
    REATTACHING = "REATTACHING"
    REATTACHED = "REATTACHED"
    RECALLED = "RECALLED"
    RECALLING = "RECALLING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    SKIPPED = "SKIPPED"

    @property
    def facts(self) -> "PhaseFacts":
        """The row of this phase in the table."""
        return PHASES[self]


class Blocks(Enum):
    """When a run blocks other ticks of its schedule: when it is in flight."""

    NEVER = auto()
    ONCE_DUE = auto()
    UNTIL_DEADLINE = auto()
    ALWAYS = auto()


class PhaseFacts(msgspec.Struct, frozen=True):
    """What a phase means. Columns that are not named may have any value."""

    meaning: str
    status: Status
    follows: frozenset[Phase]  # the phases that may follow
    blocks: Blocks = Blocks.NEVER
    is_leased: bool = False  # a node holds the run: `leased_by` is set, else it is not
    is_queued: bool = False  # it waits for another run: `blocked_by` is set
    is_claimable: bool = False  # a node may claim it
    holds_place: bool = False  # it holds a place in its group
    is_detached: bool = False  # its node was lost, and it may still run without it
    is_to_end: bool = False  # cancellation was requested: `end_asked_at` is set

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: then `finished_at` is set, else it is not."""
        return self.status not in (Status.ENQUEUED, Status.STARTED)


def _after(*groups: Phase | frozenset[Phase]) -> frozenset[Phase]:
    return frozenset().union(*({each} if isinstance(each, Phase) else each for each in groups))


P = Phase
# The phases in which a run waits to be claimed for an attempt.
TO_START = frozenset({P.WAITING, P.SCHEDULED, P.RETRYING, P.DEFERRED, P.BACKFILL})
STARTED_END = frozenset({P.SUCCESS, P.FAILED, P.CANCELED})
UNSTARTED_END = frozenset({P.SKIPPED, P.FAILED, P.CANCELED})
WHEN_RECHECKED = _after(P.CLAIMED, P.QUEUED, UNSTARTED_END)  # its overlap is decided again

PHASES: dict[Phase, PhaseFacts] = {
    P.WAITING: PhaseFacts(
        "it was due when it was decided, and starts as soon as a node claims it",
        Status.ENQUEUED, _after(P.CLAIMED, UNSTARTED_END), Blocks.ONCE_DUE, is_claimable=True,
    ),
    P.SCHEDULED: PhaseFacts(
        "it is due later than it was decided; its overlap is rechecked then",
        Status.ENQUEUED, WHEN_RECHECKED, Blocks.ONCE_DUE, is_claimable=True,
    ),
    P.RETRYING: PhaseFacts(
        "an attempt failed, and another is due",
        Status.ENQUEUED, _after(P.CLAIMED, P.QUEUED, P.FAILED, P.CANCELED), is_claimable=True,
    ),
    P.DEFERRED: PhaseFacts(
        "the last attempt found its target busy, and another is due",
        Status.ENQUEUED, WHEN_RECHECKED, is_claimable=True,
    ),
    P.BACKFILL: PhaseFacts(
        "a past tick that was requested by a backfill; ticks of the present have precedence",
        Status.ENQUEUED, WHEN_RECHECKED, is_claimable=True,
    ),
    P.QUEUED: PhaseFacts(
        "it waits for another run of its schedule to end",
        Status.ENQUEUED, _after(TO_START, UNSTARTED_END), is_queued=True,
    ),
    P.CLAIMED: PhaseFacts(
        "a node has claimed it and will announce it",
        Status.ENQUEUED, _after(P.RUNNING, TO_START, UNSTARTED_END), Blocks.ALWAYS,
        is_leased=True, holds_place=True,
    ),
    P.RUNNING: PhaseFacts(
        "a node has announced it and launches it, or it runs",
        Status.STARTED,
        _after(P.CANCELING, P.ACCEPTED, P.DETACHED, TO_START, STARTED_END, P.SKIPPED),
        Blocks.ALWAYS, is_leased=True, holds_place=True,
    ),
    P.CANCELING: PhaseFacts(
        "its cancellation was requested: its node is to cancel it",
        Status.STARTED, _after(P.RECALLED, STARTED_END), Blocks.ALWAYS,
        is_leased=True, holds_place=True, is_to_end=True,
    ),
    P.ACCEPTED: PhaseFacts(
        "its target accepted it and reports its outcome by a deadline; no node holds it",
        Status.STARTED, _after(P.REVOKED, P.RETRYING, STARTED_END), Blocks.UNTIL_DEADLINE,
        holds_place=True,
    ),
    P.REVOKED: PhaseFacts(
        "its target accepted it, and its cancellation was requested: its deadline is now",
        Status.STARTED, STARTED_END, Blocks.ALWAYS, holds_place=True, is_to_end=True,
    ),
    P.DETACHED: PhaseFacts(
        "its node was lost and it may run without it: a node is to reattach to it",
        Status.ENQUEUED, _after(P.REATTACHING, P.RECALLED, P.FAILED), Blocks.ALWAYS,
        is_claimable=True, holds_place=True, is_detached=True,
    ),
    P.REATTACHING: PhaseFacts(
        "a node has claimed it to reattach to it",
        Status.ENQUEUED, _after(P.REATTACHED, P.DETACHED, P.RECALLED, P.FAILED), Blocks.ALWAYS,
        is_leased=True, holds_place=True, is_detached=True,
    ),
    P.REATTACHED: PhaseFacts(
        "a node has announced that it reattaches to it, or it runs again under a node",
        Status.STARTED,
        _after(P.CANCELING, P.ACCEPTED, P.DETACHED, P.RETRYING, P.DEFERRED, STARTED_END),
        Blocks.ALWAYS, is_leased=True, holds_place=True,
    ),
    P.RECALLED: PhaseFacts(
        "it is detached, and its cancellation was requested: a node is to reattach and cancel it",
        Status.ENQUEUED, _after(P.RECALLING, P.FAILED), Blocks.ALWAYS,
        is_claimable=True, holds_place=True, is_detached=True, is_to_end=True,
    ),
    P.RECALLING: PhaseFacts(
        "a node has claimed it to reattach to it and cancel it",
        Status.ENQUEUED, _after(P.CANCELING, P.RECALLED, P.FAILED), Blocks.ALWAYS,
        is_leased=True, holds_place=True, is_detached=True, is_to_end=True,
    ),
    P.SUCCESS: PhaseFacts("it succeeded", Status.SUCCESS, _after()),
    P.FAILED: PhaseFacts("it failed", Status.FAILED, _after()),
    P.CANCELED: PhaseFacts("it was canceled", Status.CANCELED, _after()),
    P.SKIPPED: PhaseFacts(
        "it never ran; a backfill can start it after all",
        Status.SKIPPED, _after(P.BACKFILL),
    ),
}  # fmt: skip

# The phases that a new row may have.
FIRST = frozenset({P.WAITING, P.SCHEDULED, P.BACKFILL, P.QUEUED, P.RUNNING, P.SKIPPED})

WHEN_CLAIMED = {
    **dict.fromkeys(sorted(TO_START), P.CLAIMED),
    P.DETACHED: P.REATTACHING,
    P.RECALLED: P.RECALLING,
}
WHEN_ANNOUNCED = {
    P.CLAIMED: P.RUNNING,
    P.REATTACHING: P.REATTACHED,
    P.RECALLING: P.CANCELING,
}
WHEN_CANCEL_REQUESTED = {
    P.RUNNING: P.CANCELING,
    P.REATTACHED: P.CANCELING,
    P.ACCEPTED: P.REVOKED,
    P.DETACHED: P.RECALLED,
    P.REATTACHING: P.RECALLED,
}


def phases_where(holds: Callable[[PhaseFacts], bool]) -> frozenset[Phase]:
    """Return the phases for which a condition holds."""
    return frozenset(phase for phase, facts in PHASES.items() if holds(facts))


def phases_of(status: str) -> frozenset[Phase]:
    """Return the phases of a status."""
    return phases_where(lambda facts: facts.status == status)


UNSTARTED = TO_START | {P.QUEUED}  # it waits for an attempt, and no node holds it
UNANNOUNCED = UNSTARTED | {P.CLAIMED}  # it can be ended without cancelling an attempt
AWAITS_REPORT = frozenset({P.ACCEPTED, P.REVOKED})
CLAIMABLE = phases_where(lambda facts: facts.is_claimable)
DETACHED = phases_where(lambda facts: facts.is_detached)
STARTED = phases_of(Status.STARTED)
ENQUEUED = phases_of(Status.ENQUEUED)


def edges() -> Iterator[tuple[Phase, Phase]]:
    """Yield each phase with each that may follow it."""
    for phase, facts in PHASES.items():
        for then in Phase:
            if then in facts.follows:
                yield phase, then
