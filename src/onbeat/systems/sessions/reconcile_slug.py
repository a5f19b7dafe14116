"""What to do about a slug: a decision from its files, its schedule, and the record of both.

A slug is reconciled in stages, since some decisions need the outcome of others: the definition,
the record of an adopted folder, the last run of another scheduler, edits of the last run, the
files, and at last waiting runs. Each stage returns its actions in the order in which they have to
become durable. That order is why a crash between any two of them is not taken for an edit:

- A schedule is defined before its record is stored. Without a record its folder is adopted again.
- A record is stored before the files are written. It has the contents agreed on before, too, so
  files that were not written yet are recognized. Those are forgotten when the files are written.
- A record has the note of a pause before the schedule is paused, so the pause ends with the repair.
- Files are removed before their record. Files without a record would be adopted as a new slug.
- A requested run is started before the request is forgotten, under a key made of the request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from msgspec.structs import replace

from onbeat.core.runs.run import StartedBy
from onbeat.core.time.instants import parse_instant_ms, rfc3339_ms
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import RunRow, ScheduleRow
from onbeat.systems.sessions import definitions
from onbeat.systems.sessions.definitions import Fields, PromptDefaults, PromptRefused
from onbeat.systems.sessions.files import DEFINITION, LAST_RUN, Corrupt, Folder
from onbeat.systems.sessions.slug_actions import (
    AwaitChange,
    CancelOvertaken,
    CancelRetries,
    CancelWaiting,
    CheckName,
    Define,
    Delete,
    ForgetRecord,
    ForgetRequest,
    ForgetSession,
    Hold,
    Log,
    Pause,
    ReadAgain,
    ReconcileAgain,
    RemoveFiles,
    Resume,
    SaveRecord,
    SetSession,
    SlugAction,
    Solve,
    Stage,
    StartRun,
    WriteFiles,
)
from onbeat.systems.sessions.status import (
    SlugRecord,
    adopt_later_run,
    default_definition,
    initial_position,
    is_before_next_tick,
    prompt_status,
    read_last_run,
)

LONGEST_NOTE = 200  # characters
EMPTY, DEFAULTS = Folder(None, None), PromptDefaults()

Actions = list[SlugAction]


@dataclass(frozen=True, kw_only=True)
class SlugState:
    """What is known of a slug when a stage is decided."""

    slug: str
    now: int  # milliseconds; the same in all stages
    folder: Folder = EMPTY  # the contents of its files when the first stage was decided
    row: ScheduleRow | None = None
    record: SlugRecord | None = None
    defaults: PromptDefaults = DEFAULTS
    is_taken: bool = False  # a schedule of another source has this id
    is_to_fill: bool = False  # its folder is being filled with what is stored
    is_removed: bool = False  # its folder was written and does not exist any more
    is_broken: bool = False  # its files are known to be broken
    too_often: str | None = None  # why the operator does not allow it so frequently any more
    # Only for the stage "files":
    runs: Sequence[RunRow] = ()  # the latest
    session_id: str | None = None  # that its runs share
    overwrites: bool = False  # the files, whatever they contain

    @cached_property
    def last_run(self) -> Fields | Corrupt | None:
        """The checked contents of last-run.json."""
        found = self.folder.last_run
        if not isinstance(found, dict):
            return found
        try:
            return read_last_run(found)
        except InvalidSchedule as refused:
            return Corrupt(LAST_RUN, str(refused))


def reconcile(state: SlugState, stage: Stage = "definition") -> Actions:
    """Return what to do about a slug; with `ReadAgain` last, another stage has to be decided."""
    return STAGES[stage](state)


# -- the definition


def _reconcile_definition(state: SlugState) -> Actions:
    """Bring the schedule in step with definition.json."""
    definition, last_run, record = state.folder.definition, state.last_run, state.record
    if state.row is not None and state.is_to_fill:
        is_known = isinstance(last_run, dict)
        return _adopt_later_run(state) if is_known else [ReadAgain("files")]
    if isinstance(definition, Corrupt):
        return hold(state, definition)
    if isinstance(last_run, Corrupt):
        return hold(state, last_run)
    if definition is None:
        return _without_definition(state)
    if state.row is None and record is not None and record.is_ours(definition):
        return drop()  # the schedule was deleted elsewhere
    try:
        return _apply_definition(state, definition, last_run)
    except (PromptRefused, InvalidSchedule) as refused:
        return refuse(state, str(refused))


def _apply_definition(state: SlugState, definition: Fields, last_run: Fields | None) -> Actions:
    row, record = state.row, state.record
    if row is None or record is None:
        return _adopt(state, definition, last_run)
    if not record.is_ours(definition):
        return [*_edit(state, row, record, definition), *_continue(definition, state)]
    if record.held is not None and state.too_often is None:
        return [*_release(row, record), *_continue(definition, state)]
    name = CheckName(definition.get("slug", state.slug))
    return [name, *([ReadAgain("files")] if last_run is None else _adopt_later_run(state))]


def _continue(definition: Fields, state: SlugState) -> Actions:
    """Continue with the last run, now that the definition is applied."""
    then: Stage = "files" if state.last_run is None else "other scheduler"
    return [CheckName(definition.get("slug", state.slug)), ReadAgain(then)]


def _adopt(state: SlugState, definition: Fields, last_run: Fields | None) -> Actions:
    """Define the schedule of a new folder, continuing from its last run."""
    enabled = definitions.is_enabled(definition)
    if state.is_taken:
        problem = f"another schedule is called {state.slug}"
        raise PromptRefused(409, problem, hint="choose another slug")
    schedule = definitions.read_definition(
        state.slug,
        definition,
        state.defaults,
        begins_at=max(_first_due(last_run, state.now), state.now) // 1000,
        now=state.now,
    )
    position = initial_position(last_run, paused=not enabled)
    return [Define(schedule, position=position), ReadAgain("adoption")]


def _record_adoption(state: SlugState) -> Actions:
    """Store the record of a new folder whose schedule is defined by now."""
    definition, last_run, row = state.folder.definition, state.last_run, _row_of(state)
    assert isinstance(definition, dict), "it was adopted"
    assert not isinstance(last_run, Corrupt), "it was adopted"
    actions: Actions = []
    record = SlugRecord(definition)
    if last_run is not None:
        written = {name: last_run[name] for name in ("sessionId", "nextRun")}
        ran = {name: last_run[name] for name in record.ran}
        record = replace(record, written=written, ran=ran)
        if definitions.is_persistent(definition) and last_run["sessionId"] is not None:
            actions.append(SetSession(last_run["sessionId"], row.created_at))
    is_planned = last_run is not None and last_run["nextRun"] is not None
    due_at = _first_due(last_run, state.now)
    # Without a last run it is due now, unless it follows another schedule.
    is_due = is_planned or not definitions.is_dependent(definition)
    if is_due and is_before_next_tick(row, due_at):
        cause: StartedBy = "overdue" if due_at <= state.now else "next_run"
        record = record.awaiting(rfc3339_ms(due_at), state.now, cause)
    return [*actions, SaveRecord(record), *_continue(definition, state)]


def _first_due(last_run: Fields | None, now: int) -> int:
    """Return when a new folder is due first, in milliseconds."""
    due = last_run and last_run["nextRun"]
    return now if due is None else parse_instant_ms(due)


def _edit(state: SlugState, row: ScheduleRow, record: SlugRecord, definition: Fields) -> Actions:
    """Apply an edited definition."""
    first = begins_at(row, record.definition, definition, now=state.now)
    schedule = definitions.read_definition(
        state.slug, definition, state.defaults, begins_at=first, now=state.now
    )
    return [
        Define(schedule, user_id=row.user_id),
        *switch(row, record, enabled=definitions.is_enabled(definition)),
        SaveRecord(replace(record, definition=definition, before=(), held=None)),
    ]


def _release(row: ScheduleRow, record: SlugRecord) -> Actions:
    """Resume a schedule that was paused because of its files, now that they are repaired."""
    resumes = record.is_held(row) and definitions.is_enabled(record.definition)
    return [*([Resume()] if resumes else []), SaveRecord(replace(record, held=None))]


def _without_definition(state: SlugState) -> Actions:
    """Delete the schedule of a removed folder; write a missing definition again."""
    if state.row is None:
        return [Solve()] if state.record is None else drop()
    if state.is_removed:
        message = "the schedule is deleted, because its folder was removed"
        return [Log(message), Delete(), *drop()]
    return [ReadAgain("files")]


def hold(state: SlugState, why: Corrupt) -> Actions:
    """Pause a slug whose files are broken, and leave the files unchanged."""
    pause: Actions = []
    if state.row is not None and not state.row.paused:
        note = f"{why.name}: {why.why}"[:LONGEST_NOTE]
        record = state.record or SlugRecord(definition_of(state.row, None))
        pause = [SaveRecord(replace(record, held=note)), Pause(note)]
    then: Actions = [] if state.row is None else [ReadAgain("runs")]
    return [Hold(why), *pause, AwaitChange(), *then]


def refuse(state: SlugState, problem: str) -> Actions:
    """Hold a slug whose definition can be read and is refused."""
    return hold(state, Corrupt(DEFINITION, problem, is_refused=True))


def drop() -> Actions:
    """Remove everything of a slug without a schedule."""
    return [RemoveFiles(), ForgetRecord(), ForgetSession(), Solve()]


def switch(row: ScheduleRow, record: SlugRecord | None, *, enabled: bool) -> list[Pause | Resume]:
    """Enable or disable a schedule."""
    is_held = record is not None and record.is_held(row)
    if enabled and row.paused:
        return [Resume()]
    if not enabled and (not row.paused or is_held):
        return [Pause("disabled")]
    return []


# -- the last run


def _adopt_later_run(state: SlugState) -> Actions:
    """Adopt a `lastRun` that is later than ours: ticks up to it are not sent here.

    It was written by another scheduler that had the files meanwhile.
    """
    row, last_run = _row_of(state), _last_run_of(state)
    record = state.record or SlugRecord(definition_of(row, None))
    record, elsewhere = adopt_later_run(record, last_run, state.now)
    if elsewhere is None:
        return [ReadAgain("files")] if state.is_to_fill else _apply_last_run(state)
    skips: Actions = []
    if not row.paused and row.next_due_at is not None and row.next_due_at <= elsewhere:
        note = f"another scheduler ran it at {rfc3339_ms(elsewhere)}"
        skips = [Log(note), Pause(note), Resume()]  # records the owed ticks as skipped
    then: Stage = "files" if state.is_to_fill else "last run"
    return [SaveRecord(record), *skips, ReadAgain(then)]


def _apply_last_run(state: SlugState) -> Actions:
    """Apply an edit of last-run.json: its session and its next run."""
    row, last_run, record = _row_of(state), _last_run_of(state), state.record
    assert record is not None, "the definition is applied"
    fields = {name: last_run[name] for name in ("sessionId", "nextRun")}
    before = [each for each in (record.written, *record.written_before) if each is not None]
    if fields in before:
        return [ReadAgain("files")]
    session: Actions = []
    session_id, next_run = last_run["sessionId"], last_run["nextRun"]
    is_changed = all(session_id != each["sessionId"] for each in before)
    if is_changed and definitions.is_persistent(record.definition):
        session = [
            ForgetSession() if session_id is None else SetSession(session_id, row.created_at)
        ]
    record = replace(record, written=fields, written_before=())
    if next_run is not None and all(next_run != each["nextRun"] for each in before):
        is_first = is_before_next_tick(row, parse_instant_ms(next_run))
        record = record.awaiting(str(next_run) if is_first else None, state.now)
    return [*session, SaveRecord(record), ReadAgain("files")]


def start_requested_run(state: SlugState) -> Actions:
    """Start the run that an edit of `nextRun` requested, now that it is due."""
    row, record = state.row, state.record
    if row is None or record is None or record.awaited is None:
        return [ForgetRequest()]
    if state.is_broken:
        return []
    start: Actions = []
    if not row.paused:
        # The same edit gives the same run, even after a crash before the record is stored.
        edit = f"{state.slug}\n{row.created_at}\n{record.awaited}\n{record.awaited_count}"
        request = f"next-run-{sha256(edit.encode()).hexdigest()[:32]}"
        start = [CancelRetries(but=request), StartRun(request, record.awaited_as, record.awaited)]
    return [*start, SaveRecord(replace(record, awaited=None)), ReconcileAgain()]


# -- the files


def _write_files(state: SlugState) -> Actions:
    """Write the stored state to the files."""
    row, record = _row_of(state), state.record
    definition = definition_of(row, record)
    if record is None:
        record = SlugRecord(definition)
    elif definition != record.definition:
        definition["updatedAt"] = rfc3339_ms(state.now)
        record = record.with_definition(definition)
    status = prompt_status(row, state.runs, record, state.session_id, now=state.now)
    last_run = status.as_last_run(persists=definitions.is_persistent(definition))
    fields = {"sessionId": last_run.get("sessionId"), "nextRun": last_run["nextRun"]}
    record = replace(
        record.with_written(fields), ran=status.ran, run=status.run, awaited=status.awaited
    )
    write = WriteFiles(
        row,
        definition,
        last_run,
        expected=None if state.overwrites else state.folder,
        written=replace(record, before=(), written_before=(), is_written=True),
        solves=state.too_often is None,
    )
    return [SaveRecord(record), write, ReadAgain("checks")]


# -- waiting runs


def _check(state: SlugState) -> Actions:
    """Hold a schedule that is more frequent than the operator allows by now."""
    if state.row is not None and not state.is_broken and state.too_often is not None:
        return refuse(state, state.too_often)
    return _reconcile_runs(state)


def _reconcile_runs(state: SlugState) -> Actions:
    """Cancel waiting runs that were overtaken, or created before the schedule was disabled."""
    row, record = state.row, state.record
    if row is None or record is None:
        return []
    is_disabled = row.paused and not record.is_held(row)
    if is_disabled and record.disabled_at is None:
        # Runs that are started manually while it is disabled are sent all the same.
        disabled = SaveRecord(replace(record, disabled_at=row.updated_at))
        return [CancelOvertaken(), CancelWaiting(row.updated_at), disabled, ReconcileAgain()]
    if not is_disabled and record.disabled_at is not None:
        return [CancelOvertaken(), SaveRecord(replace(record, disabled_at=None))]
    return [CancelOvertaken()]


# -- what a schedule and its record say


def definition_of(row: ScheduleRow, record: SlugRecord | None) -> Fields:
    """Return the definition of a slug as stored."""
    before = record.definition if record is not None else default_definition(row)
    found = definitions.definition_from_store(row.definition, before)
    is_held = record is not None and record.is_held(row)
    if not is_held and definitions.is_enabled(found) == row.paused:
        found["enabled"] = not row.paused
    return found


def begins_at(row: ScheduleRow | None, before: Fields, after: Fields, *, now: int) -> int:
    """Return the second from which an interval is counted: unchanged if its length is."""
    same = definitions.is_same_interval(before.get("schedule"), after.get("schedule"))
    found = definitions.begins_at(row.definition) if row is not None and same else None
    return now // 1000 if found is None else found


def _row_of(state: SlugState) -> ScheduleRow:
    assert state.row is not None, "the stage needs a schedule"
    return state.row


def _last_run_of(state: SlugState) -> Fields:
    assert isinstance(state.last_run, dict), "the stage needs a last run"
    return state.last_run


STAGES: Mapping[Stage, Callable[[SlugState], Actions]] = {
    "definition": _reconcile_definition,
    "adoption": _record_adoption,
    "other scheduler": _adopt_later_run,
    "last run": _apply_last_run,
    "files": _write_files,
    "checks": _check,
    "runs": _reconcile_runs,
}
