"""Bring the schedules of one source in step with its definitions: decide, then act.

`reconcile` compares the definitions that a source has now with the stored schedules, and returns
actions. `SourceSchedules` carries them out in one transaction, and `Problems` has the reasons why
definitions are refused, each logged once.

`service.apply_plan` is for a source that is applied as a whole, or not at all. Here a refused
definition does not affect the others, and no ticks are counted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from onbeat.core.schedule import Schedule
from onbeat.errors import InvalidSchedule, in_field
from onbeat.ports.rows import ScheduleFilter, ScheduleRow
from onbeat.ports.store import NO_POSITIONS, InitialPosition
from onbeat.service.service import Service
from onbeat.systems.field_names import renamed_errors


@dataclass(frozen=True, slots=True)
class Wanted:
    """A definition of the source; `field` is where the source has its target, for errors."""

    schedule: Schedule
    field: str


@dataclass(frozen=True, slots=True)
class RejectId:
    """The id belongs to a schedule of another source, which stays unchanged."""

    schedule_id: str


@dataclass(frozen=True, slots=True)
class RejectDefinition:
    """No launcher accepts the definition."""

    schedule_id: str
    why: InvalidSchedule


@dataclass(frozen=True, slots=True)
class DefineSchedule:
    """Define a schedule; `row` is the stored one. The store does not write an unchanged one."""

    schedule: Schedule
    row: ScheduleRow | None


@dataclass(frozen=True, slots=True)
class KeepSchedule:
    """Leave a schedule that the source may still define: a part of the source is unreadable."""

    row: ScheduleRow


@dataclass(frozen=True, slots=True)
class DeleteSchedule:
    """Delete a schedule that the source no longer defines, or defines in a way that is refused."""

    row: ScheduleRow


ScheduleAction = RejectId | RejectDefinition | DefineSchedule | KeepSchedule | DeleteSchedule

Check = Callable[[Wanted], None]
"""Refuse a definition that no launcher accepts, by InvalidSchedule."""


def _is_readable(_: ScheduleRow) -> bool:
    return True


def reconcile(
    wanted: Iterable[Wanted],
    rows: Iterable[ScheduleRow],
    *,
    source: str,
    check: Check,
    is_readable: Callable[[ScheduleRow], bool] = _is_readable,
) -> list[ScheduleAction]:
    """Return what brings the stored schedules of a source in step with its definitions.

    `rows` are the schedules of the source, and those of other sources with the ids of `wanted`.
    `is_readable` returns whether the part of the source is readable that defined a schedule.
    The order of the actions is: rejected ids, rejected definitions, then deleted, kept and defined
    schedules.
    """
    stored = {row.schedule_id: row for row in rows}
    taken: list[ScheduleAction] = []
    rejected: list[ScheduleAction] = []
    defined: dict[str, ScheduleAction] = {}
    for each in wanted:
        schedule_id = each.schedule.schedule_id
        row = stored.get(schedule_id)
        if row is not None and row.source != source:
            taken.append(RejectId(schedule_id))
            continue
        try:
            check(each)
        except InvalidSchedule as refused:
            rejected.append(RejectDefinition(schedule_id, refused))
        else:
            defined[schedule_id] = DefineSchedule(each.schedule, row)
    own = [row for _, row in sorted(stored.items()) if row.source == source]
    absent = [row for row in own if row.schedule_id not in defined]
    kept = [KeepSchedule(row) for row in absent if not is_readable(row)]
    deleted = [DeleteSchedule(row) for row in absent if is_readable(row)]
    return [*taken, *rejected, *deleted, *kept, *defined.values()]


class SourceSchedules:
    """The stored schedules of one source.

    `field_names` are the names of fields in errors: `{"run.command": "argv"}`.
    """

    def __init__(
        self, service: Service, source: str, *, field_names: Mapping[str, str], user_id: str = ""
    ) -> None:
        self._service, self._source, self._user_id = service, source, user_id
        self._field_names = field_names

    async def rows(self) -> list[ScheduleRow]:
        """Return the stored schedules of the source."""
        return await self._service.schedules(ScheduleFilter(source=self._source))

    async def compare(
        self,
        wanted: Iterable[Wanted],
        *,
        is_readable: Callable[[ScheduleRow], bool] = _is_readable,
    ) -> list[ScheduleAction]:
        """Return what would bring the store in step with these definitions; nothing is changed."""
        definitions, rows = list(wanted), await self.rows()
        own = {row.schedule_id for row in rows}
        ids = [each.schedule.schedule_id for each in definitions]
        others = [each for each in ids if each not in own]
        if others:
            rows += await self._service.schedules(ScheduleFilter(ids=others))
        return reconcile(
            definitions, rows, source=self._source, check=self._check, is_readable=is_readable
        )

    async def carry_out(
        self,
        actions: Iterable[ScheduleAction],
        *,
        initial_positions: Mapping[str, InitialPosition] = NO_POSITIONS,
    ) -> None:
        """Define and delete schedules in one transaction, all or none."""
        defined: list[Schedule] = []
        removed: list[str] = []
        for action in actions:
            match action:
                case DefineSchedule(schedule):
                    defined.append(schedule)
                case DeleteSchedule(row):
                    removed.append(row.schedule_id)
                case RejectId() | RejectDefinition() | KeepSchedule():
                    pass
        await self._service.define(
            defined,
            source=self._source,
            user_id=self._user_id,
            remove=removed,
            initial_positions=initial_positions,
        )

    def _check(self, wanted: Wanted) -> None:
        with in_field(wanted.field), renamed_errors(self._field_names):
            self._service.check(wanted.schedule)


class Problems:
    """The current problem of each id; a problem is new until it is recorded."""

    def __init__(self) -> None:
        self.by_id: dict[str, str] = {}

    def record(self, each: str, problem: str) -> bool:
        """Record the problem of an id; return whether it is new and has to be logged."""
        is_new = self.by_id.get(each) != problem
        self.by_id[each] = problem
        return is_new

    def replace(self, found: Mapping[str, str]) -> dict[str, str]:
        """Replace all problems; return the new ones, which have to be logged."""
        new = {each: why for each, why in found.items() if self.by_id.get(each) != why}
        self.by_id = dict(found)
        return new

    def clear(self, each: str) -> None:
        """Forget the problem of an id, since it is solved."""
        self.by_id.pop(each, None)
