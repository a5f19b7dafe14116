"""The plan of applying the definitions of a source, computed before anything is changed.

The source owns definitions, the runtime owns pauses and positions. Three versions are compared:
the definition last applied from the source, the current one, and the new one of the source. So an
edit made elsewhere in between is reported before it is overwritten.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from onbeat.core.decide.edits import (
    EMPTY_FORECAST,
    EditContext,
    EditForecast,
    describe_forecast,
    forecast_edit,
    forecast_move,
)
from onbeat.core.explain.describe import describe
from onbeat.core.explain.tick_diff import (
    WEEK,
    Difference,
    TickDifference,
    differing,
    tick_difference,
)
from onbeat.core.schedule import Schedule, definition, from_definition
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.core.time.zones import DAY
from onbeat.core.triggers.past import Past
from onbeat.errors import InvalidSchedule, SourceConflict
from onbeat.events import ScheduleChanged
from onbeat.ports.rows import EventRow, ScheduleRow

Kind = Literal["create", "change", "unchanged", "remove", "keep", "taken"]

MOST_NAMED = 5  # schedules in one refusal
PAUSED = "paused, and stays so"
NOT_COUNTED = "its ticks were not counted: there are too many changes"
NOTHING_OWED: Mapping[str, EditContext] = {}
NO_EFFECT, UNCOUNTED = TickDifference(), TickDifference(is_known=False)


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """The planned change to one schedule."""

    schedule_id: str
    kind: Kind
    revision: int | None = None  # the current one, which the change expects
    source: str = ""  # the current one
    words: str = ""  # the new trigger in words
    fields: Sequence[Difference] = ()  # that differ from the current definition
    overwritten: frozenset[str] = frozenset()  # those of them that were edited elsewhere
    edited_by: str = ""
    effect: TickDifference = NO_EFFECT
    notes: Sequence[str] = ()
    foreseen: EditForecast = EMPTY_FORECAST  # effect on past ticks and on waiting runs


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The planned changes to the schedules of a source, and conflicts with other sources."""

    source: str
    changes: Sequence[ScheduleChange]
    schedules: Sequence[Schedule]  # all that the source defines
    update_waiting: bool = False  # waiting runs are moved to the new definitions

    def of(self, *kinds: Kind) -> list[ScheduleChange]:
        """Return the changes of these kinds."""
        return [each for each in self.changes if each.kind in kinds]

    @property
    def changes_nothing(self) -> bool:
        """Whether there is nothing to do."""
        moves = any(each.foreseen.moves for each in self.changes)
        return not (moves or self.of("create", "change", "remove", "taken"))

    @property
    def removed(self) -> list[str]:
        """The schedules to delete, as the source no longer has them."""
        return [each.schedule_id for each in self.of("remove")]

    @property
    def expected(self) -> dict[str, int | None]:
        """The revisions that this plan was computed for; it is not valid for others."""
        seen = self.of("create", "change", "unchanged", "remove")
        return {each.schedule_id: each.revision for each in seen}

    def refuse_conflicts(self) -> None:
        """Refuse a plan that conflicts with schedules of another source."""
        taken = self.of("taken")
        if taken:
            named = [f"{each.schedule_id} is {_of(each.source)}" for each in taken[:MOST_NAMED]]
            more = [f"{len(taken) - MOST_NAMED} more"] if len(taken) > MOST_NAMED else []
            raise SourceConflict(f"{', '.join(named + more)}: nothing was changed")


class _TickCounter:
    """Counts ticks gained and lost, up to a limit of work."""

    def __init__(self, now: int, horizon: int, work: int | None) -> None:
        self._now, self._horizon, self._left = now, horizon, work
        self._new = Past(created_at=now // 1000)

    def effect_of(
        self, old: Schedule | None, new: Schedule | None, past: Past | None = None
    ) -> tuple[TickDifference, list[str]]:
        """Return the effect on the ticks, and notes about it."""
        if self._left is not None:
            parts = sum(each.trigger.cost for each in (old, new) if each is not None)
            self._left -= parts * -(-self._horizon // DAY)
            if self._left < 0:
                return UNCOUNTED, [NOT_COUNTED]
        past = past or self._new
        return tick_difference(old, new, now=self._now, horizon=self._horizon, past=past), []


def compare(
    schedules: Sequence[Schedule],
    rows: Iterable[ScheduleRow],
    *,
    source: str,
    now: int,
    prune: bool = False,
    take_over: bool = False,
    audit: Iterable[EventRow] = (),
    horizon: int = WEEK,
    work: int | None = None,
    owed: Mapping[str, EditContext] = NOTHING_OWED,
    update_waiting: bool = False,
) -> ApplyPlan:
    """Return the plan to define these schedules as those of a source at `now`.

    `rows` are the current schedules with these ids and those of the source, `audit` is the audit
    log, latest first. Schedules of the source that are not in `schedules` are kept, unless `prune`
    deletes them. Ticks gained and lost are counted up to a `horizon` in seconds, and up to a limit
    of `work`: one day of a plain trigger is 1. `owed` has the past ticks and waiting runs of
    schedules; for others their effect is not forecast.
    """
    edits = [row.event for row in audit if isinstance(row.event, ScheduleChanged)]
    editors = {(edit.schedule_id, edit.revision): edit.by for edit in edits}
    current = {row.schedule_id: row for row in rows}
    counter = _TickCounter(now, horizon, work)
    changes = []
    for schedule in schedules:
        row = current.pop(schedule.schedule_id, None)
        by = "" if row is None else editors.get((row.schedule_id, row.revision), "")
        changes.append(_change(schedule, row, source, by, counter, take_over=take_over))
    absent = [row for row in current.values() if row.source == source]
    changes += [_absence(row, counter, prune=prune) for row in absent]
    by_id = {schedule.schedule_id: schedule for schedule in schedules}
    changes = [
        replace(
            each,
            foreseen=_foreseen(
                each,
                by_id.get(each.schedule_id),
                owed.get(each.schedule_id),
                now=now,
                update_waiting=update_waiting,
            ),
        )
        for each in changes
    ]
    return ApplyPlan(source, changes, schedules, update_waiting)


def touched(
    schedules: Sequence[Schedule], rows: Iterable[ScheduleRow], *, moves: bool = False
) -> list[str]:
    """Return the ids of `rows` to be changed or deleted; all of them if waiting runs move."""
    texts = {schedule.schedule_id: definition(schedule) for schedule in schedules}
    return [
        row.schedule_id for row in rows if moves or texts.get(row.schedule_id) != row.definition
    ]


def _foreseen(
    change: ScheduleChange,
    new: Schedule | None,
    context: EditContext | None,
    *,
    now: int,
    update_waiting: bool,
) -> EditForecast:
    """Return the effect of a change on the past ticks and the waiting runs of a schedule."""
    if change.kind == "create" and new is not None:
        return forecast_edit(None, new, now=now)
    if context is None:
        return EMPTY_FORECAST
    if change.kind == "remove":
        return forecast_edit(context, None, now=now)
    is_same = change.kind == "unchanged" or not change.fields
    if change.kind in ("change", "unchanged") and is_same:
        return forecast_move(context) if update_waiting else EMPTY_FORECAST
    if change.kind == "change" and new is not None:
        return forecast_edit(context, new, now=now, update_waiting=update_waiting)
    return EMPTY_FORECAST


def _change(
    schedule: Schedule,
    row: ScheduleRow | None,
    source: str,
    by: str,
    counter: _TickCounter,
    *,
    take_over: bool,
) -> ScheduleChange:
    words = describe(schedule.trigger)
    if row is None:
        effect, notes = counter.effect_of(None, schedule)
        return ScheduleChange(
            schedule.schedule_id, "create", None, "", words, effect=effect, notes=notes
        )
    notes = [PAUSED] if row.paused else []
    is_other = row.source != source
    if is_other and not take_over:
        return ScheduleChange(schedule.schedule_id, "taken", row.revision, row.source, words)
    if is_other:
        notes.append(f"taken over, it was {_of(row.source)}")
    text = definition(schedule)
    if row.definition == text and not is_other:
        return ScheduleChange(
            schedule.schedule_id, "unchanged", row.revision, source, words, notes=notes
        )
    current, new = _decoded(row.definition), msgspec.json.decode(text)
    fields = differing(current, new)
    edits = differing(_decoded(row.base), current) if row.is_edited and row.base else []
    edited = {each.field for each in fields if any(_overlap(each.field, e.field) for e in edits)}
    effect, limits = counter.effect_of(_read(row), schedule, _past(row))
    return ScheduleChange(
        schedule.schedule_id, "change", row.revision, row.source, words, fields,
        frozenset(edited), by if edited else "", effect, notes + limits,
    )  # fmt: skip


def _absence(row: ScheduleRow, counter: _TickCounter, *, prune: bool) -> ScheduleChange:
    """Return the change to a schedule that the source no longer has."""
    old = _read(row)
    words = describe(old.trigger) if old is not None else ""
    if not prune:
        return ScheduleChange(row.schedule_id, "keep", row.revision, row.source, words)
    effect, limits = counter.effect_of(old, None, _past(row))
    notes = ["it is paused", *limits] if row.paused else limits
    return ScheduleChange(
        row.schedule_id, "remove", row.revision, row.source, words, effect=effect, notes=notes
    )


def _past(row: ScheduleRow) -> Past:
    return Past(created_at=row.created_at // 1000, runs_used=row.runs_used)


def _read(row: ScheduleRow) -> Schedule | None:
    try:
        return from_definition(row.schedule_id, row.definition)
    except InvalidSchedule:  # written by another version: no ticks are counted as lost
        return None


def _decoded(text: str | None) -> object:
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.MsgspecError:
        return text


def _overlap(one: str, other: str) -> bool:
    """Return whether one field equals the other or contains it."""
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}["))


def _of(source: str) -> str:
    return f"of {source}" if source else "of no source"


class EffectFields(msgspec.Struct, frozen=True):
    """Ticks gained and lost in the coming week.

    Without `is_known`, ticks that follow runs are not counted, or none are, as a note states.
    """

    gained: int
    lost: int
    first_gained: Sequence[str]
    first_lost: Sequence[str]
    is_known: bool


class DifferenceFields(msgspec.Struct, frozen=True):
    """A field that differs; `old` or `new` is absent where the field has its default."""

    field: str
    overwritten: bool  # whether it was edited since the source was last applied
    old: object = msgspec.UNSET
    new: object = msgspec.UNSET


class TicksFields(msgspec.Struct, frozen=True):
    """The number of ticks, the first and the last of them."""

    count: int
    first: str
    last: str


class RecordFields(TicksFields, frozen=True):
    """Ticks that are recorded in one row without a run, and the reason."""

    reason: str


class WaitingFields(msgspec.Struct, frozen=True):
    """The number of waiting runs with a revision of the schedule."""

    revision: int
    runs: int


class PastFields(msgspec.Struct, frozen=True):
    """The effect of a change on overdue ticks and on waiting runs.

    `starts` are ticks that start a run, or queue one, with `revision`; with `by_planner` the
    planner starts them right after the definition is applied. If no node is up, one has to be up
    by `start_by` for the last of them to start. `records` are ticks without a run. `keeps` are
    waiting runs that keep their revision, `moves` those moved to the new one, `cancels` those of a
    deleted schedule, and `ends` those that a tick supersedes. `words` describes the same in text.
    """

    starts: TicksFields | None
    start_by: str | None
    revision: int
    by_planner: bool
    records: Sequence[RecordFields]
    keeps: Sequence[WaitingFields]
    moves: Sequence[WaitingFields]
    ends: int
    cancels: int
    words: Sequence[str]


class ChangeFields(msgspec.Struct, frozen=True):
    """The planned change to one schedule, as JSON."""

    schedule_id: str
    change: Kind
    revision: int | None
    source: str
    words: str
    fields: Sequence[DifferenceFields]
    edited_by: str
    effect: EffectFields
    notes: Sequence[str]
    past: PastFields


def change_fields(change: ScheduleChange) -> ChangeFields:
    """Return the JSON fields of a change."""
    effect, edited = change.effect, change.overwritten
    return ChangeFields(
        change.schedule_id,
        change.kind,
        change.revision,
        change.source,
        change.words,
        [DifferenceFields(f.field, f.field in edited, f.old, f.new) for f in change.fields],
        change.edited_by,
        EffectFields(
            effect.gained,
            effect.lost,
            [rfc3339(tick) for tick in effect.first_gained],
            [rfc3339(tick) for tick in effect.first_lost],
            effect.is_known,
        ),
        change.notes,
        _past_fields(change.foreseen),
    )


def _past_fields(foreseen: EditForecast) -> PastFields:
    starts = foreseen.starts
    return PastFields(
        TicksFields(len(starts), rfc3339(starts[0]), rfc3339(starts[-1])) if starts else None,
        None if foreseen.start_by is None else rfc3339_ms(foreseen.start_by),
        foreseen.revision,
        foreseen.by_planner,
        [
            RecordFields(each.count, rfc3339(each.first), rfc3339(each.last), each.reason)
            for each in foreseen.records
        ],
        [WaitingFields(revision, n) for revision, n in sorted(foreseen.keeps.items())],
        [WaitingFields(revision, n) for revision, n in sorted(foreseen.moves.items())],
        foreseen.ends,
        foreseen.cancels,
        describe_forecast(foreseen),
    )
