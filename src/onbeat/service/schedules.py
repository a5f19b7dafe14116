"""Define, apply, pause, resume and delete schedules."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from onbeat.core.explain.tick_diff import WEEK
from onbeat.core.schedule import Schedule, follows, from_definition
from onbeat.core.time.instants import rfc3339_ms
from onbeat.core.triggers.past import STARTUP
from onbeat.errors import InvalidSchedule, NoSuchSchedule, in_field
from onbeat.ports.launcher import check_launch
from onbeat.ports.rows import ScheduleFilter, ScheduleRow
from onbeat.ports.store import NO_POSITIONS, NOTHING_EXPECTED, InitialPosition, Upserted
from onbeat.service.access import as_allowed, check_change
from onbeat.service.apply_plan import ApplyPlan, compare, touched
from onbeat.service.commands import Commands
from onbeat.service.queries import MOST_RUNS, PAGE

Action = Literal["pause", "resume", "delete"]
BULK_BATCH = 64  # schedules that are changed concurrently
CHECK_BATCH = 100  # schedules that are checked before the event loop gets control


class ScheduleCommands(Commands):
    """The use cases that change schedules."""

    def as_allowed(self, schedule: Schedule) -> Schedule:
        """Return a schedule as the caller may define it, or refuse it."""
        return as_allowed(self.caller, schedule)

    async def define(
        self,
        schedules: Sequence[Schedule],
        *,
        source: str | None = None,
        user_id: str = "",
        remove: Collection[str] = (),
        expected: Mapping[str, int | None] = NOTHING_EXPECTED,
        initial_positions: Mapping[str, InitialPosition] = NO_POSITIONS,
        update_waiting: bool = False,
    ) -> list[Upserted]:
        """Define schedules and delete those in `remove`, atomically.

        Unchanged schedules are not written. The rest of the contract is `Store.upsert`.
        """
        self._needs("define")
        allowed = await self._allowed(schedules)
        await self._check_followed(allowed)
        done = await self._store.upsert(
            allowed,
            source=source,
            user_id=self.caller.owner or user_id,
            remove=remove,
            expected=expected,
            initial_positions=initial_positions,
            update_waiting=update_waiting,
        )
        self._wake()
        return done

    async def plan_changes(
        self,
        schedules: Sequence[Schedule],
        *,
        source: str,
        prune: bool = False,
        take_over: bool = False,
        horizon: int = WEEK,
        most: int | None = None,
        work: int | None = None,
        update_waiting: bool = False,
    ) -> ApplyPlan:
        """Return the plan of applying these definitions of a source; nothing is changed.

        It is refused if the source has, or would have, more schedules than `most`. With a `horizon`
        of 0 no ticks are counted, and the effect on the past is not forecast. The rest of the
        contract is `compare`.
        """
        self._needs("read")
        allowed = await self._allowed(schedules)
        limit = None if most is None else most + 1
        rows = await self._store.schedules(ScheduleFilter(source=source), limit=limit)
        if most is not None and max(len(rows), len(allowed)) > most:
            hint = f"{most} at most; onbeat apply has no limit"
            raise InvalidSchedule("schedules", "the source has too many schedules", hint=hint)
        of_source = {row.schedule_id for row in rows}
        others = [each.schedule_id for each in allowed if each.schedule_id not in of_source]
        for begin in range(0, len(others), PAGE):
            rows += await self._store.schedules(ScheduleFilter(ids=others[begin : begin + PAGE]))
        is_edited = any(row.is_edited for row in rows)
        ids: list[str] = []
        if horizon:
            ids = await asyncio.to_thread(touched, allowed, rows, moves=update_waiting)
        changes = await asyncio.to_thread(
            compare,
            allowed,
            rows,
            source=source,
            now=self._store.clock.now(),
            prune=prune,
            take_over=take_over,
            audit=await self._store.audit(limit=MOST_RUNS) if is_edited else (),
            horizon=horizon,
            work=work,
            owed=await self._store.before_edits(ids) if ids else {},
            update_waiting=update_waiting,
        )
        changed = {*(each.schedule_id for each in allowed), *changes.removed}
        await self.check_changes([row for row in rows if row.schedule_id in changed])
        return changes

    async def apply(self, changes: ApplyPlan, *, user_id: str = "") -> list[Upserted]:
        """Apply a plan atomically; it is refused if a schedule has changed since."""
        self._needs("define")
        changes.refuse_conflicts()
        return await self.define(
            changes.schedules,
            source=changes.source,
            user_id=user_id,
            remove=changes.removed,
            expected=changes.expected,
            update_waiting=changes.update_waiting,
        )

    async def _allowed(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Return schedules as the caller may define them, or refuse them."""
        found: list[Schedule] = []
        for schedule in schedules:
            if len(found) % CHECK_BATCH == CHECK_BATCH - 1:
                await asyncio.sleep(0)
            with in_field(schedule.schedule_id):
                found.append(as_allowed(self.caller, schedule))
                self.check(found[-1])
        return found

    async def check_changes(self, rows: Sequence[ScheduleRow]) -> None:
        """Refuse a caller that may not change or delete one of these; the store checks again."""
        self._needs("read")
        if self.caller.may("admin"):
            return
        for n, row in enumerate(rows):
            if n % CHECK_BATCH == CHECK_BATCH - 1:
                await asyncio.sleep(0)
            check_change(self.caller, row.schedule_id, _read(row))

    async def _check_followed(self, schedules: Sequence[Schedule]) -> None:
        """Refuse to follow schedules that do not exist for the caller."""
        if self.caller.only_owner is None:
            return
        own = {schedule.schedule_id for schedule in schedules}
        others = {name for each in schedules for name in follows(each)} - own - {STARTUP}
        rows = await self._store.schedules(ScheduleFilter(ids=sorted(others))) if others else []
        if missing := others - {row.schedule_id for row in rows}:
            raise NoSuchSchedule(min(missing), [row.schedule_id for row in rows])

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule whose target or condition can never be launched."""
        check_launch(schedule, self._launchers)

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Pause a schedule; return whether it was not paused.

        At `until` it resumes automatically.
        """
        self._needs("operate")
        now = self._store.clock.now()
        if until is not None and until <= now:
            problem = f"{rfc3339_ms(until)} is in the past"
            raise InvalidSchedule("until", problem, hint=f"later than {rfc3339_ms(now)}")
        changed = await self._store.pause(schedule_id, note=note, until=until)
        self._wake()
        return changed

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Resume a schedule from now on; with `catchup` the latest tick of the pause runs."""
        self._needs("operate")
        changed = await self._store.resume(schedule_id, catchup=catchup)
        self._wake()
        return changed

    async def delete(self, schedule_id: str, *, expected: int | None = None) -> None:
        """Delete a schedule. Waiting runs are canceled, started ones finish."""
        self._needs("define")
        await self._store.delete(schedule_id, expected=expected)

    async def bulk(
        self, action: Action, which: ScheduleFilter, *, note: str = "", dry_run: bool = False
    ) -> tuple[list[str], list[str]]:
        """Change many schedules; return those changed, and those already in the wanted state.

        Each is changed by itself; one deleted in the meantime is left out. Nothing is deleted if
        the caller may not delete one of them.
        """
        self._needs("define" if action == "delete" else "operate")
        ids: list[str] = []
        already: list[str] = []
        async for page in self.pages(which):
            if action == "delete":
                await self.check_changes(page)
            for row in page:
                (already if _is_done(action, row) else ids).append(row.schedule_id)
        if dry_run:
            return ids, already

        async def do(schedule_id: str) -> str | None:
            try:
                match action:
                    case "pause":
                        await self._store.pause(schedule_id, note=note)
                    case "resume":
                        await self._store.resume(schedule_id)
                    case "delete":
                        await self._store.delete(schedule_id)
            except NoSuchSchedule:
                return None
            return schedule_id

        done: list[str] = []
        for begin in range(0, len(ids), BULK_BATCH):  # a store may commit them together
            some = await asyncio.gather(*map(do, ids[begin : begin + BULK_BATCH]))
            done += [each for each in some if each is not None]
        self._wake()
        return done, already


def _is_done(action: Action, row: ScheduleRow) -> bool:
    """Return whether a schedule is already in the wanted state."""
    return action != "delete" and row.paused == (action == "pause")


def _read(row: ScheduleRow) -> Schedule | None:
    try:
        return from_definition(row.schedule_id, row.definition)
    except InvalidSchedule:
        return None
