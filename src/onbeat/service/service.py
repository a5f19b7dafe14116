"""The use cases: what the command line, Python and every other surface can ask for.

Surfaces translate and say who asks; what is allowed and what it means is here, once.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from onbeat.core.decide.backfill import Choice
from onbeat.core.explain.tick_diff import WEEK
from onbeat.core.policy import GROUP
from onbeat.core.runs.run import Accepted, Failed, StartedBy, Succeeded
from onbeat.core.schedule import Schedule, follows, from_definition
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.core.triggers.past import STARTUP
from onbeat.errors import InvalidSchedule, NoSuchSchedule, naming, shown
from onbeat.ports.launcher import Launchers, check_launch
from onbeat.ports.rows import BackfillStep, RunRow, ScheduleFilter, ScheduleRow
from onbeat.ports.store import NO_POSITIONS, NOTHING_EXPECTED, InitialPosition, Store, Upserted
from onbeat.service.access import LOCAL, Caller, as_allowed, check_change
from onbeat.service.apply_plan import ApplyPlan, compare, touched
from onbeat.service.queries import MOST_RUNS, PAGE, Queries
from onbeat.service.tokens import Tokens

Action = Literal["pause", "resume", "delete"]
AT_ONCE = 64  # schedules, of what is done to many
MOST_PLACES = 10_000  # of a group
MOST_BACKFILLED = 10_000  # ticks in one stretch
CHECKED_AT_ONCE = 100  # schedules, before others have their turn


class Service(Queries):
    """The use cases on one store. `wake` has a node in this process look at what was changed."""

    def __init__(
        self,
        store: Store,
        launchers: Launchers,
        *,
        new_id: Callable[[], str],
        wake: Callable[[], None] = lambda: None,
        caller: Caller = LOCAL,
        tokens: Tokens | None = None,
    ) -> None:
        self._all, self._launchers, self._new_id, self._wake = store, launchers, new_id, wake
        super().__init__(store, caller)
        self.tokens = (tokens or Tokens(store)).of(caller)

    def of(self, caller: Caller) -> "Service":
        """Return the same use cases as this caller may have them."""
        return Service(
            self._all,
            self._launchers,
            new_id=self._new_id,
            wake=self._wake,
            caller=caller,
            tokens=self.tokens,
        )

    def new_id(self) -> str:
        """Return an id that nothing else has."""
        return self._new_id()

    def as_allowed(self, schedule: Schedule) -> Schedule:
        """Return a schedule as whoever asks may define it, or refuse it."""
        return as_allowed(self.caller, schedule)

    async def define(
        self,
        schedules: Sequence[Schedule],
        *,
        source: str | None = None,
        user_id: str = "",
        remove: Collection[str] = (),
        expected: Mapping[str, int | None] = NOTHING_EXPECTED,
        beginnings: Mapping[str, InitialPosition] = NO_POSITIONS,
        update_waiting: bool = False,
    ) -> list[Upserted]:
        """Define schedules and take others away, all or none; what changes nothing writes nothing.

        The contract of the rest is `Store.upsert`.
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
            beginnings=beginnings,
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
        """Return what applying these definitions of a source would do; nothing is touched.

        It is refused if the source has, or would have, more schedules than `most`. With a `horizon`
        of 0 nothing is counted, and nothing of the past is foreseen. The contract of the rest is
        `compare`.
        """
        self._needs("read")
        allowed = await self._allowed(schedules)
        limit = None if most is None else most + 1
        found = await self._store.schedules(ScheduleFilter(source=source), limit=limit)
        if most is not None and max(len(found), len(allowed)) > most:
            hint = f"{most} at most; onbeat apply has no bound"
            raise InvalidSchedule("schedules", "the source has too many", hint=hint)
        known = {row.schedule_id for row in found}
        others = [each.schedule_id for each in allowed if each.schedule_id not in known]
        for begin in range(0, len(others), PAGE):
            found += await self._store.schedules(ScheduleFilter(ids=others[begin : begin + PAGE]))
        is_edited = any(row.is_edited for row in found)
        ids: list[str] = []
        if horizon:
            ids = await asyncio.to_thread(touched, allowed, found, moves=update_waiting)
        changes = await asyncio.to_thread(
            compare,
            allowed,
            found,
            source=source,
            now=self._store.clock.now(),
            prune=prune,
            take_over=take_over,
            told=await self._store.audit(limit=MOST_RUNS) if is_edited else (),
            horizon=horizon,
            work=work,
            owed=await self._store.before_edits(ids) if ids else {},
            update_waiting=update_waiting,
        )
        given = {*(each.schedule_id for each in allowed), *changes.removed}
        await self.check_changes([row for row in found if row.schedule_id in given])
        return changes

    async def apply(self, changes: ApplyPlan, *, user_id: str = "") -> list[Upserted]:
        """Do what was planned, all or nothing; it is refused if a schedule was changed since."""
        self._needs("define")
        changes.refuse_taken()
        return await self.define(
            changes.schedules,
            source=changes.source,
            user_id=user_id,
            remove=changes.removed,
            expected=changes.expected,
            update_waiting=changes.update_waiting,
        )

    async def _allowed(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """Return schedules as whoever asks may define them, or refuse them."""
        found: list[Schedule] = []
        for schedule in schedules:
            if len(found) % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            with naming(schedule.schedule_id):
                found.append(as_allowed(self.caller, schedule))
                self.check(found[-1])
        return found

    async def check_changes(self, rows: Sequence[ScheduleRow]) -> None:
        """Refuse a caller that may not change or delete some of these; the store checks again."""
        self._needs("read")
        if self.caller.may("admin"):
            return
        for n, row in enumerate(rows):
            if n % CHECKED_AT_ONCE == CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            check_change(self.caller, row.schedule_id, _read(row))

    async def _check_followed(self, schedules: Sequence[Schedule]) -> None:
        """Refuse to follow schedules that are not there for whoever asks."""
        if self.caller.only_of is None:
            return
        own = {schedule.schedule_id for schedule in schedules}
        others = {name for each in schedules for name in follows(each)} - own - {STARTUP}
        there = await self._store.schedules(ScheduleFilter(ids=sorted(others))) if others else []
        if missing := others - {row.schedule_id for row in there}:
            raise NoSuchSchedule(min(missing), [row.schedule_id for row in there])

    def check(self, schedule: Schedule) -> None:
        """Refuse a schedule whose target, or condition, could never be launched."""
        check_launch(schedule, self._launchers)

    async def pause(self, schedule_id: str, *, note: str = "", until: int | None = None) -> bool:
        """Start nothing more of a schedule by itself; return whether that is a change.

        It goes on by itself when `until` is reached.
        """
        self._needs("operate")
        now = self._store.clock.now()
        if until is not None and until <= now:
            problem = f"{rfc3339_ms(until)} is past"
            raise InvalidSchedule("until", problem, hint=f"later than {rfc3339_ms(now)}")
        changed = await self._store.pause(schedule_id, note=note, until=until)
        self._wake()
        return changed

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        """Let a schedule go on from now, and run what the pause left out only if asked to."""
        self._needs("operate")
        changed = await self._store.resume(schedule_id, catchup=catchup)
        self._wake()
        return changed

    async def delete(self, schedule_id: str, *, expected: int | None = None) -> None:
        """Take a schedule away. Its started runs finish."""
        self._needs("define")
        await self._store.delete(schedule_id, expected=expected)

    async def bulk(
        self, action: Action, which: ScheduleFilter, *, note: str = "", dry_run: bool = False
    ) -> tuple[list[str], list[str]]:
        """Do something to many schedules; return to which, and which were so already.

        Each is done by itself. One that is gone in the meantime is left out. Nothing is deleted if
        the caller may not delete one of them.
        """
        self._needs("define" if action == "delete" else "operate")
        ids: list[str] = []
        already: list[str] = []
        async for page in self.pages(which):
            if action == "delete":
                await self.check_changes(page)
            for row in page:
                (already if _is_so(action, row) else ids).append(row.schedule_id)
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
        for begin in range(0, len(ids), AT_ONCE):  # they share a commit where the store can
            some = await asyncio.gather(*map(do, ids[begin : begin + AT_ONCE]))
            done += [each for each in some if each is not None]
        self._wake()
        return done, already

    async def start(
        self,
        schedule_id: str,
        *,
        inputs: Mapping[str, object] | None = None,
        request_id: str | None = None,
        triggered_by: StartedBy = "manual",
        note: str = "",
    ) -> RunRow:
        """Start a run now, beside the schedule's ticks. The same `request_id` is the same run.

        A system that starts it by itself names its cause, and says in `note` what that was.
        """
        self._needs("operate")
        found = await self._store.enqueue(
            schedule_id,
            request_id=request_id or self._new_id(),
            inputs=inputs,
            triggered_by=triggered_by,
            note=note,
        )
        self._wake()
        asked = msgspec.json.decode(msgspec.json.encode(inputs)) if inputs else {}
        kept = found.inputs or {}
        if any(name not in kept or kept[name] != value for name, value in asked.items()):
            problem = f"run {found.run_id} has this request id, and other inputs"
            raise InvalidSchedule("request_id", problem, hint="another request id")
        return found

    async def cancel(self, run_id: int, *, note: str = "") -> RunRow:
        """Have a run end: one that waits at once, a started one as soon as its node can."""
        self._needs("operate")
        found = await self._store.cancel(run_id, note=note)
        self._wake()
        return found

    async def report(
        self, run: int | str, outcome: Succeeded | Failed | Accepted, *, external_id: str = ""
    ) -> RunRow:
        """Record what a target tells of a run that it had accepted, by the run's id or key."""
        self._needs("operate")
        found = await self._store.report(run, outcome, external_id=external_id)
        self._wake()
        return found

    async def preview_backfill(self, schedule_id: str, *, first: int, last: int) -> list[Choice]:
        """Return what a backfill of the ticks from `first` to `last` would do with each."""
        self._needs("read")
        await self._bounded(schedule_id, first, last)
        return await self._store.preview_backfill(
            schedule_id, first=first, last=last, limit=MOST_BACKFILLED
        )

    async def backfill(self, schedule_id: str, *, first: int, last: int) -> BackfillStep:
        """Run ticks of the past after all: as many as there is room for; go on from `following`."""
        self._needs("operate")
        await self._bounded(schedule_id, first, last)
        found = await self._store.backfill(
            schedule_id, first=first, last=last, limit=MOST_BACKFILLED
        )
        self._wake()
        return found

    async def _bounded(self, schedule_id: str, first: int, last: int) -> None:
        row = await self.schedule(schedule_id)
        trigger = from_definition(schedule_id, row.definition).trigger
        if last < first:
            problem = f"{rfc3339(last)} is before {rfc3339(first)}"
            raise InvalidSchedule("backfill", problem, hint="the earlier time first")
        count = len(trigger.between(first, last + 1))
        if count > MOST_BACKFILLED:
            hint = f"{MOST_BACKFILLED} at most: a shorter stretch"
            raise InvalidSchedule("backfill", f"{count} ticks", hint=hint)

    async def set_group(self, name: str, *, places: int) -> bool:
        """Say how many runs of a group may be started at the same time."""
        self._needs("admin")
        if not GROUP.fullmatch(name):
            hint = "letters, digits and . _ / -, at most 100"
            raise InvalidSchedule("group", f"{shown(name)} is no name of a group", hint=hint)
        if not 1 <= places <= MOST_PLACES:
            hint = f"1 to {MOST_PLACES}"
            raise InvalidSchedule("places", f"{places} is no number of places", hint=hint)
        changed = await self._store.set_group(name, places=places)
        self._wake()
        return changed

    async def keep(self, kind: str, name: str, body: object, *, user_id: str = "") -> None:
        """Keep something of a system beside schedules, such as the DAG of a workflow."""
        self._needs("define")
        await self._store.keep(kind, name, body, user_id=self.caller.owner or user_id)

    async def forget(self, kind: str, name: str) -> bool:
        """Keep something of a system no longer; return whether it was there."""
        self._needs("define")
        return await self._store.forget(kind, name)

    async def set_gate(self, *, is_open: bool) -> bool:
        """Turn the switch that stops everything; return whether that is a change."""
        self._needs("admin")
        changed = await self._store.set_gate(is_open=is_open)
        self._wake()
        return changed

    async def ask_to_stop(self, node_ids: Collection[str]) -> int:
        """Have nodes stop in good order; return how many are there to hear of it."""
        self._needs("admin")
        return await self._store.ask_to_stop(node_ids)

    async def record_gap(self) -> None:
        """Record what was planned up to now as missed: a backup was put back. No node is up."""
        self._needs("admin")
        self._needs_all()
        following: str | None = ""
        while following is not None:
            following = await self._store.record_gap(after=following)


def _is_so(action: Action, row: ScheduleRow) -> bool:
    """Return whether there is nothing left to do."""
    return action != "delete" and row.paused == (action == "pause")


def _read(row: ScheduleRow) -> Schedule | None:
    try:
        return from_definition(row.schedule_id, row.definition)
    except InvalidSchedule:
        return None
