"""Where a scheduled prompt stands: what became of its last run, and when the next one is."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from onbeat.core.instants import parse_instant_ms, rfc3339_ms
from onbeat.core.runs import Status
from onbeat.core.schedules import from_definition
from onbeat.errors import InvalidSchedule
from onbeat.records import RunRow, ScheduleRow
from onbeat.systems.sessions.definitions import Fields

NOT_RUN: Fields = {"lastRun": None, "lastResult": None, "lastError": None}


class Known(msgspec.Struct, frozen=True):
    """What is kept of a slug beside its schedule, so that edits of its files can be told from ours.

    `definition` and `told` are what the files last said that both sides agree on; while ours are on
    the way to a file, `definition_before` and `told_before` are what it says until then.
    """

    definition: Fields
    definition_before: Fields | None = None
    told: Fields | None = None  # sessionId and nextRun of last-run.json
    told_before: Fields | None = None
    ran: Fields = msgspec.field(default_factory=lambda: dict(NOT_RUN))
    run: tuple[int, int] | None = None  # the run and attempt that `ran` is of
    awaited: str | None = None  # somebody has put the next run there
    is_written: bool = False  # there have been files: if they are gone, somebody removed them


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one stands. Instants are texts."""

    ran: Fields
    run: tuple[int, int] | None
    next_run: str | None
    session_id: str | None

    def as_last_run(self, *, persists: bool) -> Fields:
        """Return what last-run.json says."""
        session = {"sessionId": self.session_id} if persists else {}
        return self.ran | session | {"nextRun": self.next_run}


def standing(
    row: ScheduleRow, runs: Iterable[RunRow], known: Known, session_id: str | None, *, now: int
) -> Standing:
    """Return where a schedule stands, given the latest of its runs."""
    ran, which = known.ran, known.run
    tried = [run for run in runs if _was_tried(run)]
    last = max(tried, key=lambda run: run.started_at or 0, default=None)
    if last is not None and (last.run_id, last.attempt) != which:
        ran, which = _told(last), (last.run_id, last.attempt)
    waiting = [run.due_at for run in tried if run.status == Status.ENQUEUED]
    if known.awaited is not None:
        waiting.append(parse_instant_ms(known.awaited))
    tick = _next_tick(row, now)
    first = min([*waiting, *([] if tick is None else [tick])], default=None)
    return Standing(ran, which, None if first is None else rfc3339_ms(first), session_id)


def read_last_run(given: Fields) -> Fields:
    """Return what last-run.json says, or refuse it: it is then as good as none."""
    found = {name: given.get(name) for name in (*NOT_RUN, "sessionId", "nextRun")}
    for name, value in found.items():
        if value is not None and (not isinstance(value, str) or len(value) > LONGEST[name]):
            raise InvalidSchedule(name, "it is no text", hint="a text, or null")
    for name in ("lastRun", "nextRun"):
        if found[name] is not None:
            parse_instant_ms(found[name])
    if found["sessionId"] == "":
        found["sessionId"] = None
    return found


def _was_tried(run: RunRow) -> bool:
    """Return whether it has been attempted, and what came of that is known."""
    is_over = run.finished_at is not None or run.status == Status.ENQUEUED
    return run.started_at is not None and run.attempt > 0 and is_over


def _told(run: RunRow) -> Fields:
    assert run.started_at is not None, "it was tried"
    is_well = run.status == Status.SUCCESS
    error = None if is_well else run.error or run.reason or "error"
    result = "success" if is_well else "error"
    return {"lastRun": rfc3339_ms(run.started_at), "lastResult": result, "lastError": error}


def _next_tick(row: ScheduleRow, now: int) -> int | None:
    """Return when it ticks next, or would if it were enabled."""
    if row.next_due_at is not None and not row.paused:
        return row.next_due_at
    tick = from_definition(row.schedule_id, row.definition).trigger.next_after(now // 1000)
    return None if tick is None else tick * 1000


LONGEST = {"lastRun": 64, "nextRun": 64, "lastResult": 64, "lastError": 65_536, "sessionId": 200}
