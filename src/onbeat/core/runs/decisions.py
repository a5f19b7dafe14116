"""Decisions about ticks and runs, as values: whoever gets one carries it out.

Ticks are planned in seconds (`run_at`), everything else is in milliseconds.
"""

from typing import Literal

import msgspec

from onbeat.core.runs.run import Reason, ReasonDetail, Run, Status


class Tick(msgspec.Struct, frozen=True, gc=False):
    """One planned instant, or a range of them that one row stands for."""

    run_at: int  # of the latest
    due_at: int
    first_run_at: int | None = None  # of the earliest, if there are several
    count: int = 1  # of the ticks, or of the events that one follows


class Launch(msgspec.Struct, frozen=True, gc=False):
    """Start a run as soon as its `due_at` is reached."""

    tick: Tick
    triggered_by: Literal["timer", "catchup"] = "timer"
    detail: ReasonDetail | None = None  # what the decision knew beyond that


class Queue(msgspec.Struct, frozen=True, gc=False):
    """Start a run when those before it have ended. `behind` is the `run_at` of one in flight."""

    tick: Tick
    behind: int
    triggered_by: Literal["timer", "catchup"] = "timer"
    detail: ReasonDetail | None = None


class Skip(msgspec.Struct, frozen=True, gc=False):
    """Start nothing, for a reason. `blocked_by` is the `run_at` of the run in the way."""

    tick: Tick
    reason: Reason
    blocked_by: int | None = None
    detail: ReasonDetail | None = None


class Supersede(msgspec.Struct, frozen=True, gc=False):
    """End a run that waits: a fresh tick is here."""

    run: Run
    reason: Reason = "superseded"
    newer: int | None = None  # the `run_at` of that tick


class Release(msgspec.Struct, frozen=True, gc=False):
    """Let a queued run start: what it waited for was dropped."""

    run: Run


class RequestCancel(msgspec.Struct, frozen=True, gc=False):
    """Have the node of a started run end it: a fresh tick is to take its place."""

    run: Run


AboutTick = Launch | Queue | Skip
AboutRun = Supersede | Release | RequestCancel
Decision = AboutTick | AboutRun


class Due(msgspec.Struct, frozen=True, gc=False):
    """The due row of a schedule: its next undecided tick and when that is to be decided."""

    run_at: int
    due_at: int


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What becomes of the ticks that are due, and of the schedule's due row."""

    decisions: tuple[Decision, ...]
    due: Due | None  # None: there are no more ticks
    catchups: int = 0  # how much of the allowance it takes
    spread_until: int = 0  # milliseconds: by then the missed ticks that are left are to start
    is_short: bool = False  # it would take more of the allowance


class Finish(msgspec.Struct, frozen=True, gc=False):
    """A run is over."""

    status: Status
    reason: Reason | None = None
    release: Run | None = None  # the queued run that may start now


class Retry(msgspec.Struct, frozen=True, gc=False):
    """A run is to be attempted again, under the same key."""

    due_at: int
    reason: Reason  # why there has to be another attempt
    is_deferral: bool = False  # the target was busy: this was no failure


class AwaitReport(msgspec.Struct, frozen=True, gc=False):
    """A run goes on elsewhere: whoever has it will tell of its end, or it is over by then."""

    deadline_at: int
    external_id: str
