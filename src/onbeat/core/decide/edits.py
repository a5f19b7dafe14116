"""What an edit does with owed ticks and with waiting runs.

The store carries out what `decide` returns in the transaction of the edit. `foresee` forecasts the
same with the same function: it is what `onbeat plan` shows.

Ticks are in seconds, everything else is in milliseconds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from onbeat.core.decide.plan import decide_edit, defined_late, due_at, next_due, plan, set_aside
from onbeat.core.runs.decisions import Decision, Launch, Queue, Skip, Supersede, Tick
from onbeat.core.runs.phase import UNANNOUNCED, UNSTARTED
from onbeat.core.runs.run import Reason, ReasonDetail, Run
from onbeat.core.schedule import Schedule
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.core.triggers.past import NO_PAST, Past

MOST_LISTED = 1000  # single times of a new schedule that are examined
NO_RUNS: Mapping[int, int] = {}
MISSED: Mapping[Reason, str] = {"edited": "missed (edited)", "missed": "missed"}


class EditContext(msgspec.Struct, frozen=True):
    """The state before an edit: the schedule, its first owed tick, and its unfinished runs."""

    schedule: Schedule | None  # None: its definition cannot be read
    revision: int
    run_at: int | None = None  # the first undecided tick
    past: Past = NO_PAST
    unfinished: tuple[Run, ...] = ()
    held: Reason | None = None  # why its ticks do not start: `paused` or `gate_off`
    held_by: ReasonDetail | None = None  # since when, and by which caller
    is_down: bool = False  # no node is up


class PlannedRecord(msgspec.Struct, frozen=True):
    """Ticks that are recorded in one row, and start nothing."""

    reason: Reason
    count: int
    first: int
    last: int


class EditForecast(msgspec.Struct, frozen=True):
    """What defining or deleting a schedule now would do with owed ticks and waiting runs."""

    starts: Sequence[int] = ()  # ticks that would start or be queued
    revision: int = 0  # the revision by which these would start
    records: Sequence[PlannedRecord] = ()
    keeps: Mapping[int, int] = NO_RUNS  # by revision: how many waiting runs keep it
    moves: Mapping[int, int] = NO_RUNS  # by revision: how many waiting runs move to the new one
    ends: int = 0  # waiting runs that are superseded by a tick
    cancels: int = 0  # waiting runs of a schedule that is deleted
    by_planner: bool = False  # the edit leaves owed ticks to the planner, which decides them next
    has_more: bool = False  # the planner decides further ticks after these
    start_by: int | None = None  # no node is up: by when a node must be up for the last tick

    @property
    def changes_nothing(self) -> bool:
        """Whether it contains nothing to report."""
        return not (self.starts or self.records or self.keeps or self.moves or self.cancels)


EMPTY_FORECAST = EditForecast()


def is_retimed(old: Schedule | None, new: Schedule) -> bool:
    """Return whether an edit changes when a schedule ticks: it is then planned from now on."""
    return old is None or not new.is_timed_like(old)


def decide(found: EditContext, new: Schedule, *, now: int) -> tuple[Decision, ...]:
    """Decide the owed ticks under the old definition, before `new` replaces it.

    If the ticks stay the same, nothing is decided: the planner decides them under `new`.
    """
    old, run_at = found.schedule, found.run_at
    if old is None or run_at is None or not is_retimed(old, new):
        return ()
    if found.held is not None:
        aside = set_aside(old, run_at, found.past, now=now, reason=found.held, detail=found.held_by)
        return () if aside is None else (aside,)
    decisions = decide_edit(old, run_at, found.unfinished, found.past, now=now)
    if not found.is_down:
        return decisions
    return _within_grace(decisions, found.unfinished, lateness=old.policy.lateness)


def _within_grace(
    decisions: Sequence[Decision], unfinished: Sequence[Run], *, lateness: int
) -> tuple[Decision, ...]:
    """Limit the start of runs that wait only for a node to the grace of their ticks.

    Otherwise an edit made while no node is up would start past ticks whenever the next node starts.
    A run that is queued behind a started run is not limited.
    """
    started = {run.run_at for run in unfinished if run.phase not in UNSTARTED}
    bounded: list[Decision] = []
    for each in decisions:
        if isinstance(each, Launch) or (isinstance(each, Queue) and each.behind not in started):
            detail = replace(each.detail or ReasonDetail(), start_by=each.tick.due_at + lateness)
            bounded.append(replace(each, detail=detail))
        else:
            bounded.append(each)
    return tuple(bounded)


def forecast_edit(
    found: EditContext | None, new: Schedule | None, *, now: int, update_waiting: bool = False
) -> EditForecast:
    """Forecast what defining `new` now would do, or deleting the schedule if `new` is None."""
    if found is None:
        return EMPTY_FORECAST if new is None else _foresee_new(new, now)
    if new is None:
        return _foresee_deletion(found, now)
    decisions, has_more = decide(found, new, now=now), False
    by_planner = not is_retimed(found.schedule, new)
    if by_planner and found.held is None and found.run_at is not None:
        planned = plan(new, found.run_at, found.unfinished, found.past, now=now)
        decisions = planned.decisions
        has_more = planned.due is not None and planned.due.run_at * 1000 <= now
    ended = {each.run.run_id for each in decisions if isinstance(each, Supersede)}
    waiting = Counter(run.revision for run in _waiting(found) if run.run_id not in ended)
    return EditForecast(
        _started(decisions),
        found.revision + 1 if by_planner or update_waiting else found.revision,
        _records(decisions),
        NO_RUNS if update_waiting else dict(waiting),
        dict(waiting) if update_waiting else NO_RUNS,
        ends=len(ended),
        by_planner=by_planner,
        has_more=has_more,
        start_by=max(_limits(decisions), default=None),
    )


def forecast_move(found: EditContext) -> EditForecast:
    """Forecast what moving the waiting runs to the current revision would do."""
    runs = (run.revision for run in _waiting(found))
    moves = Counter(revision for revision in runs if revision != found.revision)
    return EditForecast(revision=found.revision - 1, moves=dict(moves)) if moves else EMPTY_FORECAST


def describe_forecast(foreseen: EditForecast) -> list[str]:
    """Return a forecast as text, one line for each effect."""
    lines = [f"records {_ticks(each)} as {MISSED[each.reason]}" for each in foreseen.records
             if each.reason in MISSED]  # fmt: skip
    lines += [f"skips {_ticks(each)}: {each.reason}" for each in foreseen.records
              if each.reason not in MISSED]  # fmt: skip
    if foreseen.starts:
        starts = PlannedRecord(
            "missed", len(foreseen.starts), foreseen.starts[0], foreseen.starts[-1]
        )
        verb = "the planner then starts" if foreseen.by_planner else "starts"
        more = ", and further ticks after that" if foreseen.has_more else ""
        by = f"{_if_up(foreseen)}, by revision {foreseen.revision}{more}"
        lines.append(f"{verb} {_ticks(starts)}{by}")
    if foreseen.ends:
        lines.append(f"ends {_runs(foreseen.ends)}: superseded by a tick")
    for revision, n in sorted(foreseen.keeps.items()):
        lines.append(f"keeps {_runs(n)} of revision {revision} (--update-waiting moves them)")
    for revision, n in sorted(foreseen.moves.items()):
        lines.append(f"moves {_runs(n)} of revision {revision} to the new revision")
    if foreseen.cancels:
        lines.append(f"cancels {_runs(foreseen.cancels)}")
    return lines


def _foresee_new(new: Schedule, now: int) -> EditForecast:
    """Forecast single times that are past when they are defined."""
    if not new.ticks_once:
        return EMPTY_FORECAST
    past = Past(created_at=now // 1000)
    missed, until = defined_late(new, past, now=now)
    due, starts = next_due(new, until, past), list[int]()
    while due is not None and len(starts) < MOST_LISTED and due_at(new, due.run_at, past) <= now:
        starts.append(due.run_at)
        due = next_due(new, due.run_at, past)
    records = _records([] if missed is None else [missed])
    return EditForecast(starts, 1, records, by_planner=True)


def _foresee_deletion(found: EditContext, now: int) -> EditForecast:
    aside = None
    if found.schedule is not None and found.run_at is not None:
        aside = set_aside(found.schedule, found.run_at, found.past, now=now, reason="canceled")
    records = _records([] if aside is None else [aside])
    cancels = sum(run.phase in UNANNOUNCED for run in found.unfinished)
    return EditForecast(records=records, cancels=cancels)


def _waiting(found: EditContext) -> list[Run]:
    """Return the waiting runs that can be moved to another revision."""
    return [run for run in found.unfinished if run.phase in UNSTARTED]


def _limits(decisions: Iterable[Decision]) -> list[int]:
    found = [each.detail for each in decisions if isinstance(each, (Launch, Queue))]
    return [each.start_by for each in found if each is not None and each.start_by is not None]


def _if_up(foreseen: EditForecast) -> str:
    if foreseen.start_by is None:
        return ""
    by = rfc3339_ms(foreseen.start_by)
    if len(foreseen.starts) == 1:
        return f" if a node is up by {by}"
    return f", each if a node is up within its grace (the last by {by})"


def _started(decisions: Iterable[Decision]) -> list[int]:
    return [each.tick.run_at for each in decisions if isinstance(each, (Launch, Queue))]


def _records(decisions: Iterable[Decision]) -> list[PlannedRecord]:
    return [_record(each.tick, each.reason) for each in decisions if isinstance(each, Skip)]


def _record(tick: Tick, reason: Reason) -> PlannedRecord:
    first = tick.run_at if tick.first_run_at is None else tick.first_run_at
    return PlannedRecord(reason, tick.count, first, tick.run_at)


def _ticks(record: PlannedRecord) -> str:
    if record.first == record.last:
        return f"1 tick ({rfc3339(record.first)})"
    return f"{record.count} ticks ({rfc3339(record.first)} to {rfc3339(record.last)})"


def _runs(n: int) -> str:
    return f"{n} waiting run{'s' * (n != 1)}"
