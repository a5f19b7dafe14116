"""Where a scheduled prompt stands: what became of its last run, and when the next one is."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from onbeat.core.runs.run import StartedBy, Status
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import RunRow, ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.systems.sessions.definitions import Fields
from onbeat.systems.sessions.waiting_runs import is_detached

LOST = "it is not known whether it arrived: its node fell silent, and it is not sent again"
NOT_RUN: Fields = {"lastRun": None, "lastResult": None, "lastError": None}


class SlugRecord(msgspec.Struct, frozen=True):
    """What is kept of a slug beside its schedule, so that edits of its files can be told from ours.

    `definition` and `told` are what the files last said that both sides agree on; while ours are on
    the way to a file, `before` and `told_before` are all that it may say until then.
    """

    definition: Fields
    before: tuple[str, ...] = ()  # digests of definitions
    told: Fields | None = None  # sessionId and nextRun of last-run.json
    told_before: tuple[Fields, ...] = ()
    ran: Fields = msgspec.field(default_factory=lambda: dict(NOT_RUN))
    run: tuple[int, int] | None = None  # the run and attempt that `ran` is of
    awaited: str | None = None  # somebody has put the next run there
    awaited_since: int = 0  # when that was seen, in milliseconds
    awaited_count: int = 0  # how often somebody has
    awaited_as: StartedBy = "next_run"  # the cause of the run at that time
    is_written: bool = False  # there have been files: if they are gone, somebody removed them
    held: str | None = None  # the note of the pause that is ours, not somebody's
    disabled_at: int | None = None  # milliseconds: what waited since before was canceled then

    def with_definition(self, definition: Fields) -> "SlugRecord":
        """Return this with another definition, which is on its way to the file."""
        before = dict.fromkeys((*self.before, digest_of(self.definition)))
        return replace(self, definition=definition, before=tuple(before))

    def with_told(self, told: Fields) -> "SlugRecord":
        """Return this with other words in last-run.json, which are on their way there."""
        if told == self.told:
            return self
        is_new = self.told is not None and self.told not in self.told_before
        before = (*self.told_before, self.told) if is_new else self.told_before
        return replace(self, told=told, told_before=tuple(each for each in before if each))

    def awaiting(self, text: str | None, now: int, cause: StartedBy = "next_run") -> "SlugRecord":
        """Return this with the next run where somebody has put it."""
        count = self.awaited_count + 1
        return replace(self, awaited=text, awaited_since=now, awaited_count=count, awaited_as=cause)

    def is_ours(self, definition: Fields) -> bool:
        """Return whether nobody else has written what the file says."""
        return _is_same(definition, self.definition) or digest_of(definition) in self.before

    def is_held(self, row: ScheduleRow) -> bool:
        """Return whether a schedule is paused by us, until its files are repaired."""
        return row.paused and self.held is not None and row.pause_note == self.held


def later_of(known: SlugRecord, last_run: Fields, now: int) -> tuple[SlugRecord, int | None]:
    """Return what is known, with the last run of a file if that is later, and when that was.

    Another scheduler has made that run. A time that is to come is not believed.
    """
    ours, theirs = _last_run_of(known.ran), _last_run_of(last_run, now)
    if theirs is None or (ours is not None and ours >= theirs):
        return known, None
    return replace(known, ran={name: last_run[name] for name in NOT_RUN}, run=None), theirs


def _last_run_of(ran: Fields, now: int | None = None) -> int | None:
    """Return when the last run began, in milliseconds, unless that is later than `now`."""
    text = ran["lastRun"]
    found = None if text is None else parse_instant_ms(str(text))
    return None if found is None or (now is not None and found > now) else found


def digest_of(definition: Fields) -> str:
    """Return what tells a definition from any other."""
    return sha256(msgspec.json.encode(definition, order="sorted")).hexdigest()[:32]


def _is_same(one: object, other: object) -> bool:
    """Return whether two values are the same JSON: `true` is not 1."""
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
    """Where one stands. Instants are texts."""

    ran: Fields
    run: tuple[int, int] | None
    next_run: str | None
    session_id: str | None
    awaited: str | None  # what somebody has put the next run to, if it is still to come

    def as_last_run(self, *, persists: bool) -> Fields:
        """Return what last-run.json says."""
        session = {"sessionId": self.session_id} if persists else {}
        return self.ran | session | {"nextRun": self.next_run}


def standing(
    row: ScheduleRow, runs: Iterable[RunRow], known: SlugRecord, session_id: str | None, *, now: int
) -> PromptStatus:
    """Return where a schedule stands, given the latest of its runs."""
    ran, which, awaited = known.ran, known.run, known.awaited
    tried = [run for run in runs if _was_tried(run)]
    last = max(tried, key=lambda run: (run.started_at or 0, run.run_id), default=None)
    if last is not None and _is_news(last, known, now):
        ran, which = _told(last), (last.run_id, last.attempt)
        if (last.started_at or 0) > known.awaited_since:
            awaited = None
    waiting = [run.due_at for run in tried if run.status == Status.ENQUEUED]
    if awaited is not None:
        waiting.append(parse_instant_ms(awaited))
    tick = _next_tick(row, now)
    first = min([*waiting, *([] if tick is None else [tick])], default=None)
    next_run = None if first is None else rfc3339_ms(first)
    return PromptStatus(ran, which, next_run, session_id, awaited)


def _is_news(run: RunRow, known: SlugRecord, now: int) -> bool:
    """Return whether nothing is known of a run yet, and of none that began later.

    While a run is tried again it has no end: the one before it is not the latest for that. A last
    run that another scheduler wrote into the file stays until a later run began here.
    """
    last = _last_run_of(known.ran, None if known.run is not None else now)
    if last is None:
        return True
    return (run.started_at or 0) >= last and (run.run_id, run.attempt) != known.run


def read_last_run(given: Fields) -> Fields:
    """Return what last-run.json says, or refuse it: it is then as good as none."""
    found = {name: given.get(name) for name in (*NOT_RUN, "sessionId", "nextRun")}
    for name, value in found.items():
        if value is not None and (not isinstance(value, str) or len(value) > LONGEST[name]):
            raise InvalidSchedule(name, "it is no text", hint="a text, or null")
    for name in ("lastRun", "nextRun"):
        if found[name] is not None:
            parse_instant_ms(found[name])
    if found["sessionId"] in {".", ".."}:
        raise InvalidSchedule("sessionId", "it is a path", hint="an id, or null")
    if found["sessionId"] == "":
        found["sessionId"] = None
    return found


def _was_tried(run: RunRow) -> bool:
    """Return whether it has been attempted, and what came of that is known."""
    is_over = run.finished_at is not None or (
        run.status == Status.ENQUEUED and not is_detached(run)
    )
    return run.started_at is not None and run.attempt > 0 and is_over


def _told(run: RunRow) -> Fields:
    assert run.started_at is not None, "it was tried"
    is_well = run.status == Status.SUCCESS
    error = None if is_well else run.error or run.reason or "error"
    if run.reason == "lost":
        error = LOST
    result = "success" if is_well else "error"
    return {"lastRun": rfc3339_ms(run.started_at), "lastResult": result, "lastError": error}


def _next_tick(row: ScheduleRow, now: int) -> int | None:
    """Return when it ticks next, or would if it were enabled."""
    if row.next_due_at is not None and not row.paused:
        return row.next_due_at
    tick = from_definition(row.schedule_id, row.definition).trigger.next_after(now // 1000)
    return None if tick is None else tick * 1000


def beginning(last_run: Fields | None, *, paused: bool) -> InitialPosition:
    """Return where a schedule begins whose last run is in a file."""
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


def comes_first(row: ScheduleRow, at: int) -> bool:
    """Return whether an instant is earlier than the next tick of a schedule that is enabled."""
    return not row.paused and (row.next_due_at is None or at < row.next_due_at)


def fresh(row: ScheduleRow) -> Fields:
    """Return the definition of a schedule of which nothing is known yet."""
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
