"""What applying the definitions of a source would do, found before anything is touched.

The source owns definitions, the runtime owns pause and position. Three are compared: what the
source said when it was last applied, what is there now, and what it says today. So an edit that
somebody made elsewhere in between is seen before it is overwritten.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from onbeat.core.decide.edits import (
    NOTHING_FORESEEN,
    EditContext,
    EditForecast,
    foresee,
    foresee_move,
    foreseen_words,
)
from onbeat.core.explain.describe import describe
from onbeat.core.explain.tick_diff import WEEK, Difference, Effect, differing, effect_of
from onbeat.core.schedule import Schedule, definition, from_definition
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.core.time.zones import DAY
from onbeat.core.triggers.past import Past
from onbeat.errors import InvalidSchedule, OfAnotherSource
from onbeat.events import ScheduleChanged
from onbeat.ports.rows import EventRow, ScheduleRow

Kind = Literal["create", "change", "unchanged", "remove", "keep", "taken"]

MOST_NAMED = 5  # schedules in one refusal
PAUSED = "paused, and stays so"
NOT_COUNTED = "its ticks were not counted: too much changes at once"
NOTHING_OWED: Mapping[str, EditContext] = {}
NO_EFFECT, UNCOUNTED = Effect(), Effect(is_known=False)


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """What would become of one schedule."""

    schedule_id: str
    kind: Kind
    revision: int | None = None  # the one that is there, by which it is known again
    source: str = ""  # where the one that is there comes from
    words: str = ""  # when it runs, afterwards
    fields: Sequence[Difference] = ()  # that differ from what is there
    overwritten: frozenset[str] = frozenset()  # those of them that were edited since
    edited_by: str = ""
    effect: Effect = NO_EFFECT
    notes: Sequence[str] = ()
    foreseen: EditForecast = NOTHING_FORESEEN  # of the past, and of runs that wait


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What would become of the schedules of a source, and of those that are in their way."""

    source: str
    changes: Sequence[ScheduleChange]
    schedules: Sequence[Schedule]  # all that the source defines
    update_waiting: bool = False  # runs that wait are moved to the new definitions

    def of(self, *kinds: Kind) -> list[ScheduleChange]:
        """Return the changes of these kinds."""
        return [each for each in self.changes if each.kind in kinds]

    @property
    def is_nothing(self) -> bool:
        """Whether there is nothing to do."""
        moves = any(each.foreseen.moves for each in self.changes)
        return not (moves or self.of("create", "change", "remove", "taken"))

    @property
    def removed(self) -> list[str]:
        """What goes, as it is not in the source any more."""
        return [each.schedule_id for each in self.of("remove")]

    @property
    def expected(self) -> dict[str, int | None]:
        """The revisions that this was found for: with others it may be something else."""
        seen = self.of("create", "change", "unchanged", "remove")
        return {each.schedule_id: each.revision for each in seen}

    def refuse_taken(self) -> None:
        """Refuse what would take schedules away from another source."""
        taken = self.of("taken")
        if taken:
            named = [f"{each.schedule_id} is {_of(each.source)}" for each in taken[:MOST_NAMED]]
            more = [f"{len(taken) - MOST_NAMED} more"] if len(taken) > MOST_NAMED else []
            raise OfAnotherSource(f"{', '.join(named + more)}: nothing was changed")


class _Counting:
    """Counts ticks gained and lost, as long as that is not too much work."""

    def __init__(self, now: int, horizon: int, work: int | None) -> None:
        self._now, self._horizon, self._left = now, horizon, work
        self._new = Past(created_at=now // 1000)

    def effect_of(
        self, old: Schedule | None, new: Schedule | None, past: Past | None = None
    ) -> tuple[Effect, list[str]]:
        """Return what becomes of the ticks, and what is to be noted of that."""
        if self._left is not None:
            parts = sum(each.trigger.cost for each in (old, new) if each is not None)
            self._left -= parts * -(-self._horizon // DAY)
            if self._left < 0:
                return UNCOUNTED, [NOT_COUNTED]
        past = past or self._new
        return effect_of(old, new, now=self._now, horizon=self._horizon, past=past), []


def compare(
    schedules: Sequence[Schedule],
    rows: Iterable[ScheduleRow],
    *,
    source: str,
    now: int,
    prune: bool = False,
    take_over: bool = False,
    told: Iterable[EventRow] = (),
    horizon: int = WEEK,
    work: int | None = None,
    owed: Mapping[str, EditContext] = NOTHING_OWED,
    update_waiting: bool = False,
) -> ApplyPlan:
    """Return what defining these schedules as those of a source would do at `now`.

    `rows` has what is there of these ids and of the source, `told` what somebody had done, the
    latest first. What is there of the source and not among the schedules is kept, unless `prune`
    removes it. Ticks gained and lost are counted up to the `horizon` of seconds, and only until so
    much `work` was done for it: a day of a plain trigger is 1. `owed` has what edits find of the
    past and of waiting runs: of schedules that are not in it, nothing is foreseen.
    """
    edits = [row.event for row in told if isinstance(row.event, ScheduleChanged)]
    editors = {(edit.schedule_id, edit.revision): edit.by for edit in edits}
    there = {row.schedule_id: row for row in rows}
    counting = _Counting(now, horizon, work)
    found = []
    for schedule in schedules:
        row = there.pop(schedule.schedule_id, None)
        by = "" if row is None else editors.get((row.schedule_id, row.revision), "")
        found.append(_change(schedule, row, source, by, counting, take_over=take_over))
    gone = [row for row in there.values() if row.source == source]
    found += [_gone(row, counting, prune=prune) for row in gone]
    by_id = {schedule.schedule_id: schedule for schedule in schedules}
    found = [
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
        for each in found
    ]
    return ApplyPlan(source, found, schedules, update_waiting)


def touched(
    schedules: Sequence[Schedule], rows: Iterable[ScheduleRow], *, moves: bool = False
) -> list[str]:
    """Return what is there and would be changed or removed; all of it, if waiting runs move."""
    texts = {schedule.schedule_id: definition(schedule) for schedule in schedules}
    return [
        row.schedule_id for row in rows if moves or texts.get(row.schedule_id) != row.definition
    ]


def _foreseen(
    change: ScheduleChange,
    new: Schedule | None,
    found: EditContext | None,
    *,
    now: int,
    update_waiting: bool,
) -> EditForecast:
    """Return what a change would do with the past of a schedule and with its waiting runs."""
    if change.kind == "create" and new is not None:
        return foresee(None, new, now=now)
    if found is None:
        return NOTHING_FORESEEN
    if change.kind == "remove":
        return foresee(found, None, now=now)
    is_same = change.kind == "unchanged" or not change.fields
    if change.kind in ("change", "unchanged") and is_same:
        return foresee_move(found) if update_waiting else NOTHING_FORESEEN
    if change.kind == "change" and new is not None:
        return foresee(found, new, now=now, update_waiting=update_waiting)
    return NOTHING_FORESEEN


def _change(
    schedule: Schedule,
    row: ScheduleRow | None,
    source: str,
    by: str,
    counting: _Counting,
    *,
    take_over: bool,
) -> ScheduleChange:
    told = describe(schedule.trigger)
    if row is None:
        effect, notes = counting.effect_of(None, schedule)
        return ScheduleChange(
            schedule.schedule_id, "create", None, "", told, effect=effect, notes=notes
        )
    notes = [PAUSED] if row.paused else []
    is_other = row.source != source
    if is_other and not take_over:
        return ScheduleChange(schedule.schedule_id, "taken", row.revision, row.source, told)
    if is_other:
        notes.append(f"taken over, it was {_of(row.source)}")
    text = definition(schedule)
    if row.definition == text and not is_other:
        return ScheduleChange(
            schedule.schedule_id, "unchanged", row.revision, source, told, notes=notes
        )
    current, new = _decoded(row.definition), msgspec.json.decode(text)
    fields = differing(current, new)
    edits = differing(_decoded(row.base), current) if row.is_edited and row.base else []
    touched = {each.field for each in fields if any(_meet(each.field, e.field) for e in edits)}
    effect, cut = counting.effect_of(_read(row), schedule, _past(row))
    return ScheduleChange(
        schedule.schedule_id, "change", row.revision, row.source, told, fields,
        frozenset(touched), by if touched else "", effect, notes + cut,
    )  # fmt: skip


def _gone(row: ScheduleRow, counting: _Counting, *, prune: bool) -> ScheduleChange:
    old = _read(row)
    told = describe(old.trigger) if old is not None else ""
    if not prune:
        return ScheduleChange(row.schedule_id, "keep", row.revision, row.source, told)
    effect, cut = counting.effect_of(old, None, _past(row))
    notes = ["it is paused", *cut] if row.paused else cut
    return ScheduleChange(
        row.schedule_id, "remove", row.revision, row.source, told, effect=effect, notes=notes
    )


def _past(row: ScheduleRow) -> Past:
    return Past(created_at=row.created_at // 1000, runs_used=row.runs_used)


def _read(row: ScheduleRow) -> Schedule | None:
    try:
        return from_definition(row.schedule_id, row.definition)
    except InvalidSchedule:  # of another version: it has no ticks that could be lost
        return None


def _decoded(text: str | None) -> object:
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.MsgspecError:
        return text


def _meet(one: str, other: str) -> bool:
    """Return whether one field is the other, or a part of it."""
    short, long = sorted((one, other), key=len)
    return long == short or long.startswith((f"{short}.", f"{short}["))


def _of(source: str) -> str:
    return f"of {source}" if source else "of no source"


class EffectFields(msgspec.Struct, frozen=True):
    """Ticks gained and lost in the coming week.

    If it is not known, those that follow runs are left out, or all, as a note then says.
    """

    gained: int
    lost: int
    first_gained: Sequence[str]
    first_lost: Sequence[str]
    is_known: bool


class DifferenceFields(msgspec.Struct, frozen=True):
    """A field that differs; `old` or `new` is not there where the field is at its default."""

    field: str
    overwritten: bool  # it was edited since the source was last applied
    old: object = msgspec.UNSET
    new: object = msgspec.UNSET


class TicksFields(msgspec.Struct, frozen=True):
    """Ticks: how many, the first and the last of them."""

    count: int
    first: str
    last: str


class RecordFields(TicksFields, frozen=True):
    """Ticks that get one row, which starts nothing, and why."""

    reason: str


class WaitingFields(msgspec.Struct, frozen=True):
    """Waiting runs, and the revision of the schedule that they start by."""

    revision: int
    runs: int


class PastFields(msgspec.Struct, frozen=True):
    """What becomes of ticks that are owed and of runs that wait.

    `starts` begin, or wait for their turn, as `revision` says; if `by_planner`, right after the
    definition was applied and not by that. If no node is up, `start_by` says by when one has to be
    for the last of them to start. `records` start nothing. `keeps` are waiting runs that
    keep their revision, `moves` those that are given the new one, `cancels` those of what is
    removed, and `ends` those whose place a tick takes. `words` says the same.
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
    """What would become of one schedule, as JSON tells it."""

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
    """Return a change as JSON tells it."""
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
        foreseen_words(foreseen),
    )
