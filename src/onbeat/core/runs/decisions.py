"""Decisions about ticks and runs, as values. The store carries them out.

Ticks are planned in seconds (`run_at`), everything else is in milliseconds.
"""

from typing import Literal

import msgspec

from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import Reason, ReasonDetail, Run


class Tick(msgspec.Struct, frozen=True, gc=False):
    """One planned instant, or a range of them that share one row."""

    run_at: int  # the latest, in a range
    due_at: int
    first_run_at: int | None = None  # the earliest, in a range
    count: int = 1  # of ticks in a range, or of events that one tick follows


class Launch(msgspec.Struct, frozen=True, gc=False):
    """Start a run as soon as its `due_at` is reached."""

    tick: Tick
    triggered_by: Literal["timer", "catchup"] = "timer"
    detail: ReasonDetail | None = None  # further facts behind the decision


class Queue(msgspec.Struct, frozen=True, gc=False):
    """Start a run when those before it have ended. `behind` is the `run_at` of a run in flight."""

    tick: Tick
    behind: int
    triggered_by: Literal["timer", "catchup"] = "timer"
    detail: ReasonDetail | None = None


class Skip(msgspec.Struct, frozen=True, gc=False):
    """Skip a tick, for a reason. `blocked_by` is the `run_at` of the blocking run."""

    tick: Tick
    reason: Reason
    blocked_by: int | None = None
    detail: ReasonDetail | None = None


class Supersede(msgspec.Struct, frozen=True, gc=False):
    """End a waiting run in favour of a newer tick."""

    run: Run
    reason: Reason = "superseded"
    newer: int | None = None  # the `run_at` of the newer tick


class Release(msgspec.Struct, frozen=True, gc=False):
    """Release a queued run: the run before it was dropped."""

    run: Run


class RequestCancel(msgspec.Struct, frozen=True, gc=False):
    """Request cancellation of a started or detached run, by default in favour of a newer tick."""

    run: Run
    reason: Reason = "superseded"


AboutTick = Launch | Queue | Skip
AboutRun = Supersede | Release | RequestCancel
Decision = AboutTick | AboutRun


class Due(msgspec.Struct, frozen=True, gc=False):
    """The due row of a schedule: its next undecided tick, and when to decide it."""

    run_at: int
    due_at: int


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The decisions about due ticks, and the next due row of the schedule."""

    decisions: tuple[Decision, ...]
    due: Due | None  # None: there are no more ticks
    catchups: int = 0  # how much of the catch-up allowance it uses
    spread_until: int = 0  # milliseconds: the remaining missed ticks start by then
    is_short: bool = False  # the allowance was too small for it


class Finish(msgspec.Struct, frozen=True, gc=False):
    """A run ends."""

    status: Status
    reason: Reason | None = None
    release: Run | None = None  # the queued run that may start now


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A run is attempted again, under the same key."""

    due_at: int
    reason: Reason  # why another attempt follows
    is_deferral: bool = False  # the target was busy, which is not a failure
    deadline_at: int | None = None  # by which the next attempt must start


class Detach(msgspec.Struct, frozen=True, gc=False):
    """A run is lost with its node and may run without it: it is to be reattached."""

    reason: Reason  # "lost", or why it is to be canceled once it is reattached


class AwaitReport(msgspec.Struct, frozen=True, gc=False):
    """A run was accepted by its target, which reports the outcome, or it fails at the deadline."""

    deadline_at: int
    external_id: str


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A node claims a run."""


class Announce(msgspec.Struct, frozen=True, gc=False):
    """The node that has claimed a run announces it: it will be launched."""


class HandBack(msgspec.Struct, frozen=True, gc=False):
    """A run is freed without having been launched."""


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """A run that was due has to wait for another run, whose id this is."""

    blocked_by: int


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """A run that has not started is canceled."""


AfterAttempt = Finish | Retry | Detach | AwaitReport
RunStep = AboutRun | AfterAttempt | Claim | Announce | HandBack | Requeue | Cancel
