"""The status of a scheduled prompt: the outcome of its last run, and its next run."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.phase import Status
from onbeat.core.runs.run import StartedBy
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import DocumentRow, RunRow, ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.systems.sessions.definitions import Fields
from onbeat.systems.sessions.waiting_runs import is_detached

LOST = "unknown whether it arrived: its node stopped responding, and it is not sent again"
NOT_RUN: Fields = {"lastRun": None, "lastResult": None, "lastError": None}


class SlugRecord(msgspec.Struct, frozen=True):
    """What is stored of a slug beside its schedule, to recognize edits of its files.

    `definition` and `written` are the contents that the files and the store agreed on last. While
    new contents are being written, `before` and `written_before` hold what the files may still be.
    """

    definition: Fields
    before: tuple[str, ...] = ()  # digests of definitions
    written: Fields | None = msgspec.field(default=None, name="told")  # of last-run.json
    written_before: tuple[Fields, ...] = msgspec.field(default=(), name="told_before")
    ran: Fields = msgspec.field(default_factory=lambda: dict(NOT_RUN))
    run: tuple[int, int] | None = None  # the run and attempt that `ran` is of
    awaited: str | None = None  # the nextRun that an edit of last-run.json requested
    awaited_since: int = 0  # when that edit was read, in milliseconds
    awaited_count: int = 0  # how many such edits there were
    awaited_as: StartedBy = "next_run"  # the cause of the requested run
    is_written: bool = False  # the files existed: if they are missing, they were removed
    held: str | None = None  # the note of a pause because of broken files
    disabled_at: int | None = None  # milliseconds; runs created before were canceled

    def with_definition(self, definition: Fields) -> "SlugRecord":
        """Return this with a new definition that is being written to the file."""
        before = dict.fromkeys((*self.before, digest_of(self.definition)))
        return replace(self, definition=definition, before=tuple(before))

    def with_written(self, fields: Fields) -> "SlugRecord":
        """Return this with new contents of last-run.json that are being written."""
        if fields == self.written:
            return self
        is_new = self.written is not None and self.written not in self.written_before
        before = (*self.written_before, self.written) if is_new else self.written_before
        return replace(self, written=fields, written_before=tuple(each for each in before if each))

    def awaiting(self, text: str | None, now: int, cause: StartedBy = "next_run") -> "SlugRecord":
        """Return this with the next run that an edit of last-run.json requested."""
        count = self.awaited_count + 1
        return replace(self, awaited=text, awaited_since=now, awaited_count=count, awaited_as=cause)

    def is_ours(self, definition: Fields) -> bool:
        """Return whether Onbeat wrote what the definition file contains."""
        return _is_same(definition, self.definition) or digest_of(definition) in self.before

    def is_held(self, row: ScheduleRow) -> bool:
        """Return whether a schedule is paused because of its broken files."""
        return row.paused and self.held is not None and row.pause_note == self.held


def adopt_later_run(
    record: SlugRecord, last_run: Fields, now: int
) -> tuple[SlugRecord, int | None]:
    """Return the record with the last run of a file if that is later, and its instant.

    Another scheduler has made that run. An instant in the future is ignored.
    """
    ours, theirs = _last_run_of(record.ran), _last_run_of(last_run, now)
    if theirs is None or (ours is not None and ours >= theirs):
        return record, None
    return replace(record, ran={name: last_run[name] for name in NOT_RUN}, run=None), theirs


def _last_run_of(ran: Fields, now: int | None = None) -> int | None:
    """Return when the last run began, in milliseconds, unless later than `now`."""
    text = ran["lastRun"]
    found = None if text is None else parse_instant_ms(str(text))
    return None if found is None or (now is not None and found > now) else found


def digest_of(definition: Fields) -> str:
    """Return a digest that identifies a definition."""
    return sha256(msgspec.json.encode(definition, order="sorted")).hexdigest()[:32]


def _is_same(one: object, other: object) -> bool:
    """Return whether two values are the same JSON; `true` is not 1."""
    match one, other:
        case (bool(), _) | (_, bool()):
            return one is other
        case dict(), dict():
            return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
        case list(), list():
            return len(one) == len(other) and all(map(_is_same, one, other))
        case _:
            return one == other


@dataclass(frozen=True, slots=True)
class PromptStatus:
    """The current status. Instants are strings."""

    ran: Fields
    run: tuple[int, int] | None
    next_run: str | None
    session_id: str | None
    awaited: str | None  # the requested next run, while it is still to come

    def as_last_run(self, *, persists: bool) -> Fields:
        """Return the contents of last-run.json."""
        session = {"sessionId": self.session_id} if persists else {}
        return self.ran | session | {"nextRun": self.next_run}


def prompt_status(
    row: ScheduleRow,
    runs: Iterable[RunRow],
    record: SlugRecord,
    session_id: str | None,
    *,
    now: int,
) -> PromptStatus:
    """Return the status of a schedule, given the latest of its runs."""
    ran, which, awaited = record.ran, record.run, record.awaited
    tried = [run for run in runs if _was_tried(run)]
    last = max(tried, key=lambda run: (run.started_at or 0, run.run_id), default=None)
    if last is not None and _is_later(last, record, now):
        ran, which = _last_run_fields(last), (last.run_id, last.attempt)
        if (last.started_at or 0) > record.awaited_since:
            awaited = None
    waiting = [run.due_at for run in tried if run.status == Status.ENQUEUED]
    if awaited is not None:
        waiting.append(parse_instant_ms(awaited))
    tick = _next_tick(row, now)
    first = min([*waiting, *([] if tick is None else [tick])], default=None)
    next_run = None if first is None else rfc3339_ms(first)
    return PromptStatus(ran, which, next_run, session_id, awaited)


def _is_later(run: RunRow, record: SlugRecord, now: int) -> bool:
    """Return whether a run is later than the recorded last run.

    A last run that another scheduler wrote into the file stays until a later run begins here.
    """
    last = _last_run_of(record.ran, None if record.run is not None else now)
    if last is None:
        return True
    return (run.started_at or 0) >= last and (run.run_id, run.attempt) != record.run


def read_last_run(fields: Fields) -> Fields:
    """Return the fields of last-run.json, or refuse them."""
    found = {name: fields.get(name) for name in (*NOT_RUN, "sessionId", "nextRun")}
    for name, value in found.items():
        if value is not None and (not isinstance(value, str) or len(value) > LONGEST[name]):
            raise InvalidSchedule(name, "it is not a string", hint="a string, or null")
    for name in ("lastRun", "nextRun"):
        if found[name] is not None:
            parse_instant_ms(found[name])
    if found["sessionId"] in {".", ".."}:
        raise InvalidSchedule("sessionId", "it is a path", hint="an id, or null")
    if found["sessionId"] == "":
        found["sessionId"] = None
    return found


def _was_tried(run: RunRow) -> bool:
    """Return whether a run was attempted, and the outcome of that attempt is known."""
    has_ended = run.finished_at is not None or (
        run.status == Status.ENQUEUED and not is_detached(run)
    )
    return run.started_at is not None and run.attempt > 0 and has_ended


def _last_run_fields(run: RunRow) -> Fields:
    assert run.started_at is not None, "_was_tried(run)"
    succeeded = run.status == Status.SUCCESS
    error = None if succeeded else run.error or run.reason or "error"
    if run.reason == "lost":
        error = LOST
    result = "success" if succeeded else "error"
    return {"lastRun": rfc3339_ms(run.started_at), "lastResult": result, "lastError": error}


def _next_tick(row: ScheduleRow, now: int) -> int | None:
    """Return the next tick; for a disabled schedule, the tick it would have."""
    if row.next_due_at is not None and not row.paused:
        return row.next_due_at
    tick = from_definition(row.schedule_id, row.definition).trigger.next_after(now // 1000)
    return None if tick is None else tick * 1000


def initial_position(last_run: Fields | None, *, paused: bool) -> InitialPosition:
    """Return the initial position of a schedule whose last run is recorded in a file."""
    if last_run is None or last_run["lastRun"] is None:
        return InitialPosition(paused=paused)
    at = parse_instant_ms(str(last_run["lastRun"]))
    match last_run["lastResult"]:
        case "success":
            return InitialPosition(paused=paused, last_run_at=at, last_success_at=at)
        case "error":
            return InitialPosition(paused=paused, last_run_at=at, last_failure_at=at)
        case _:
            return InitialPosition(paused=paused, last_run_at=at)


def is_before_next_tick(row: ScheduleRow, at: int) -> bool:
    """Return whether an instant is earlier than the next tick of an enabled schedule."""
    return not row.paused and (row.next_due_at is None or at < row.next_due_at)


def default_definition(row: ScheduleRow) -> Fields:
    """Return the definition of a schedule for which no record is stored."""
    return {
        "slug": row.schedule_id,
        "prompt": "",
        "enabled": not row.paused,
        "schedule": {},
        "sessionConfig": {"persistSession": True},
        "createdAt": rfc3339_ms(row.created_at),
        "updatedAt": rfc3339_ms(row.updated_at),
    }


LONGEST = {"lastRun": 64, "nextRun": 64, "lastResult": 64, "lastError": 65_536, "sessionId": 200}


def to_record(row: DocumentRow | None) -> SlugRecord | None:
    """Return the record of a slug from its document."""
    return None if row is None else msgspec.convert(row.body, SlugRecord)
