"""What an edit does with ticks that are owed and with runs that wait: decided once, for all.

The store carries out what `decide` returns in the transaction of the edit. `foresee` says the same
beforehand, by the same function, for whoever asks what applying a definition would do.

Ticks are in seconds, everything else is in milliseconds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from onbeat.core.decisions import Decision, Launch, Queue, Skip, Tick
from onbeat.core.model import NO_PAST, Past
from onbeat.core.plan import decide_edit, defined_late, due_at, next_due, plan, set_aside
from onbeat.core.runs import Reason, Run, Status
from onbeat.core.schedules import Schedule


class Found(msgspec.Struct, frozen=True):
    """What an edit finds: a schedule, the ticks that it owes, and its unfinished runs."""

    schedule: Schedule | None  # None: its definition cannot be read
    revision: int
    run_at: int | None = None  # the first undecided tick
    past: Past = NO_PAST
    unfinished: tuple[Run, ...] = ()
    held: Reason | None = None  # why none of its ticks starts: `paused` or `gate_off`


class Record(msgspec.Struct, frozen=True):
    """Ticks that get one row, which starts nothing."""

    reason: Reason
    count: int
    first: int
    last: int


class Foreseen(msgspec.Struct, frozen=True):
    """What defining or deleting a schedule now would do with its past and its waiting runs."""

    starts: Sequence[int] = ()  # ticks that would start, or wait for their turn
    revision: int = 0  # that these would start by
    records: Sequence[Record] = ()
    keeps: Mapping[int, int] = {}  # how many waiting runs keep which revision
    cancels: int = 0  # waiting runs
    by_planner: bool = False  # ticks are left as they are: the planner decides them right after

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.starts or self.records or self.keeps or self.cancels)


def is_retimed(old: Schedule | None, new: Schedule) -> bool:
    """Return whether an edit changes when a schedule ticks, so that it goes on from now."""
    return old is None or not new.is_timed_like(old)


def decide(found: Found, new: Schedule, *, now: int) -> tuple[Decision, ...]:
    """Decide what a definition owes before `new` takes over: all by the old one.

    If the ticks stay the same, nothing is decided: they are left to the planner and to `new`.
    """
    old, run_at = found.schedule, found.run_at
    if old is None or run_at is None or not is_retimed(old, new):
        return ()
    if found.held is not None:
        aside = set_aside(old, run_at, found.past, now=now, reason=found.held)
        return () if aside is None else (aside,)
    return decide_edit(old, run_at, found.unfinished, found.past, now=now)


def can_be_moved(run: Run) -> bool:
    """Return whether a run waits, so that it can be given another revision."""
    return run.status is Status.ENQUEUED and not (run.leased or run.goes_on)


def foresee(
    found: Found | None, new: Schedule | None, *, now: int, update_waiting: bool = False
) -> Foreseen:
    """Say what defining `new` now, or deleting what is there if it is None, would do."""
    if found is None:
        return Foreseen() if new is None else _foresee_new(new, now)
    waiting = [run for run in found.unfinished if can_be_moved(run)]
    if new is None:
        aside = None
        if found.schedule is not None and found.run_at is not None:
            aside = set_aside(found.schedule, found.run_at, found.past, now=now, reason="canceled")
        records = _records([] if aside is None else [aside])
        return Foreseen(records=records, cancels=len(waiting))
    decisions = decide(found, new, now=now)
    revision, by_planner = found.revision, not is_retimed(found.schedule, new)
    if by_planner and found.held is None and found.run_at is not None:
        decisions = plan(new, found.run_at, found.unfinished, found.past, now=now).decisions
        revision += 1
    if update_waiting:
        revision = found.revision + 1
    keeps = Counter() if update_waiting else Counter(run.revision for run in waiting)
    return Foreseen(_started(decisions), revision, _records(decisions), dict(keeps), 0, by_planner)


def _foresee_new(new: Schedule, now: int) -> Foreseen:
    """Say what becomes of single times that are past when they are defined."""
    if not new.ticks_once:
        return Foreseen()
    past = Past(created_at=now // 1000)
    missed, until = defined_late(new, past, now=now)
    due, starts = next_due(new, until, past), list[int]()
    while due is not None and due_at(new, due.run_at, past) <= now:
        starts.append(due.run_at)
        due = next_due(new, due.run_at, past)
    return Foreseen(starts, 1, _records([] if missed is None else [missed]), by_planner=True)


def _started(decisions: Iterable[Decision]) -> list[int]:
    return [each.tick.run_at for each in decisions if isinstance(each, (Launch, Queue))]


def _records(decisions: Iterable[Decision]) -> list[Record]:
    return [_record(each.tick, each.reason) for each in decisions if isinstance(each, Skip)]


def _record(tick: Tick, reason: Reason) -> Record:
    first = tick.run_at if tick.first_run_at is None else tick.first_run_at
    return Record(reason, tick.count, first, tick.run_at)
