"""The use cases: what the command line, Python and every other surface can ask for.

Surfaces translate and say who asks; what is allowed and what it means is here, once.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from onbeat.access import LOCAL, Caller, Scope, as_allowed
from onbeat.changes import Changes, compare
from onbeat.core.backfill import Choice
from onbeat.core.effect import WEEK
from onbeat.core.instants import read_typed, rfc3339_ms
from onbeat.core.model import STARTUP
from onbeat.core.policies import GROUP
from onbeat.core.runs import Accepted, Failed, StartedBy, Succeeded
from onbeat.core.schedules import Schedule, Target, follows, from_definition
from onbeat.core.standings import Standings
from onbeat.core.why import Why, explain
from onbeat.core.zones import Zone, zone
from onbeat.errors import InvalidSchedule, NoSuchRun, NoSuchSchedule, NotAllowed, naming, shown
from onbeat.ports import (
    ALL,
    ALL_RUNS,
    NO_BEGINNINGS,
    NOTHING_EXPECTED,
    Beginning,
    Clock,
    Launcher,
    Launchers,
    Store,
    Upserted,
)
from onbeat.records import (
    Backfilled,
    ChannelRow,
    DocumentRow,
    EventRow,
    Figures,
    GroupRow,
    NodeRow,
    Overview,
    RunRow,
    ScheduleRow,
    Which,
    WhichRuns,
)
from onbeat.tokens import Tokens

Action = Literal["pause", "resume", "delete"]
AT_ONCE = 64  # schedules, of what is done to many
MOST_RUNS = 10_000  # in one answer
MOST_PLACES = 10_000  # of a group
MOST_BACKFILLED = 10_000  # ticks in one stretch
MOST_LIKE_IT = 500  # schedules after the beginning of an id, and as many more, that it may mean
CHECKED_AT_ONCE = 100  # schedules, before others have their turn


class Service:
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
        self._store = store.asked_by(caller.name, only_of=caller.only_of)
        self.caller = caller
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

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may plan and run on the store."""
        return self._store.is_shared

    def new_id(self) -> str:
        """Return an id that nothing else has."""
        return self._new_id()

    def as_allowed(self, schedule: Schedule) -> Schedule:
        """Return a schedule as whoever asks may define it, or refuse it."""
        return as_allowed(self.caller, schedule)

    @property
    def clock(self) -> Clock:
        """By which the store tells the time."""
        return self._store.clock

    async def define(
        self,
        schedules: Sequence[Schedule],
        *,
        source: str | None = None,
        user_id: str = "",
        remove: Collection[str] = (),
        expected: Mapping[str, int | None] = NOTHING_EXPECTED,
        beginnings: Mapping[str, Beginning] = NO_BEGINNINGS,
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
    ) -> Changes:
        """Return what applying these definitions of a source would do; nothing is touched.

        It is refused if the source has, or would have, more schedules than `most`. The contract of
        the rest is `compare`.
        """
        self._needs("read")
        allowed = await self._allowed(schedules)
        limit = None if most is None else most + 1
        found = await self._store.schedules(Which(source=source), limit=limit)
        if most is not None and max(len(found), len(allowed)) > most:
            hint = f"{most} at most; onbeat apply has no bound"
            raise InvalidSchedule("schedules", "the source has too many", hint=hint)
        found += await self._store.schedules(Which(ids=[each.schedule_id for each in allowed]))
        is_edited = any(row.is_edited for row in found)
        return await asyncio.to_thread(
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
        )

    async def apply(self, changes: Changes, *, user_id: str = "") -> list[Upserted]:
        """Do what was planned, all or nothing; it is refused if a schedule was changed since."""
        self._needs("define")
        changes.refuse_taken()
        return await self.define(
            changes.schedules,
            source=changes.source,
            user_id=user_id,
            remove=changes.removed,
            expected=changes.expected,
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

    async def _check_followed(self, schedules: Sequence[Schedule]) -> None:
        """Refuse to follow schedules that are not there for whoever asks."""
        if self.caller.only_of is None:
            return
        own = {schedule.schedule_id for schedule in schedules}
        others = {name for each in schedules for name in follows(each)} - own - {STARTUP}
        there = await self._store.schedules(Which(ids=sorted(others))) if others else []
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
        self, action: Action, which: Which, *, note: str = "", dry_run: bool = False
    ) -> tuple[list[str], list[str]]:
        """Do something to many schedules; return to which, and which were so already.

        Each is done by itself. One that is gone in the meantime is left out.
        """
        self._needs("define" if action == "delete" else "operate")
        found = await self._store.schedules(which)
        already = {row.schedule_id for row in found if _is_so(action, row)}
        ids = [row.schedule_id for row in found if row.schedule_id not in already]
        if dry_run:
            return ids, sorted(already)

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
        return done, sorted(already)

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

    async def backfill(self, schedule_id: str, *, first: int, last: int) -> Backfilled:
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
        count = len(trigger.between(first, last + 1)) if first <= last else 0
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

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return what is kept under a name."""
        self._needs("read")
        return await self._store.kept(kind, name)

    async def kept_all(
        self,
        kind: str,
        *,
        after: str = "",
        limit: int | None = None,
        since: int | None = None,
        but: Collection[str] = (),
    ) -> list[DocumentRow]:
        """Return what is kept of a kind. The contract is `Store.kept_all`."""
        self._needs("read")
        return await self._store.kept_all(kind, after=after, limit=limit, since=since, but=but)

    async def forget(self, kind: str, name: str) -> bool:
        """Keep something of a system no longer; return whether it was there."""
        self._needs("define")
        return await self._store.forget(kind, name)

    async def channels(self) -> list[ChannelRow]:
        """Return what became of the messages of each channel, by name."""
        self._needs("operate")
        return await self._store.channels()

    async def groups(self) -> list[GroupRow]:
        """Return the groups there are, by name, and how full they are."""
        self._needs("read")
        self._needs_all()
        return await self._store.groups()

    async def standings(self, *, most: int | None = None) -> Standings:
        """Return how things stand: what `onbeat.simulate` begins with.

        It is refused if there are more schedules than `most`.
        """
        self._needs("read")
        if most is not None and (await self._store.overview()).schedules > most:
            hint = f"{most} at most; onbeat simulate has no bound"
            raise InvalidSchedule("schedules", "there are too many to forecast here", hint=hint)
        return await self._store.standings()

    async def set_gate(self, *, is_open: bool) -> bool:
        """Turn the switch that stops everything; return whether that is a change."""
        self._needs("admin")
        changed = await self._store.set_gate(is_open=is_open)
        self._wake()
        return changed

    async def schedules(
        self, which: Which = ALL, *, after: str = "", limit: int | None = None
    ) -> list[ScheduleRow]:
        """Return schedules by id: those later than `after`, up to `limit`."""
        self._needs("read")
        return await self._store.schedules(which, after=after, limit=limit)

    async def schedule(self, schedule_id: str) -> ScheduleRow:
        """Return one schedule."""
        self._needs("read")
        found = await self.find(schedule_id)
        if found is None:
            begin = schedule_id[: len(schedule_id) // 2]
            near = await self._store.schedules(after=begin, limit=MOST_LIKE_IT)
            near += await self._store.schedules(limit=MOST_LIKE_IT)
            known = {row.schedule_id for row in near}
            raise await asyncio.to_thread(NoSuchSchedule, schedule_id, known)
        return found

    async def find(self, schedule_id: str) -> ScheduleRow | None:
        """Return one schedule, if it is there."""
        self._needs("read")
        return await self._store.schedule(schedule_id)

    async def runs(self, which: WhichRuns = ALL_RUNS, *, limit: int = 50) -> list[RunRow]:
        """Return runs, latest first."""
        self._needs("read")
        found = await self._store.runs(which, limit=min(limit, MOST_RUNS))
        if which.schedule_id is not None and not found:  # one that was deleted has its history
            await self.schedule(which.schedule_id)
        return found

    async def run(self, run_id: int) -> RunRow:
        """Return one run."""
        self._needs("read")
        found = await self._store.run(run_id)
        if found is None:
            raise NoSuchRun(run_id)
        return found

    async def why(self, schedule_id: str, at: int | str | None = None) -> Why:
        """Say why a schedule ran, or did not, at an instant: by default of its latest tick.

        A text is an instant with its offset, or a local time in the zone of the schedule. Of one
        that the clocks show twice, it is the first that is a tick; `also` has the other.
        """
        self._needs("read")
        if not isinstance(at, str):
            return explain(await self._store.facts(schedule_id, at))
        typed = read_typed(at, await self.zone_of(schedule_id))
        instants = [typed.at] if typed.again is None else [typed.at, typed.again]
        answers = [explain(await self._store.facts(schedule_id, each)) for each in instants]
        chosen = next((each for each in answers if each.is_tick), answers[0])
        also = [each for each in instants if each != chosen.at]
        return replace(chosen, note=typed.note, also=also)

    async def zone_of(self, schedule_id: str) -> Zone:
        """Return the zone of a schedule; UTC if it is not there, or cannot be read."""
        row = await self.find(schedule_id)
        if row is not None:
            with suppress(InvalidSchedule):
                return zone(from_definition(schedule_id, row.definition).timezone)
        return zone("UTC")

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

    async def overview(self) -> Overview:
        """Return how things stand."""
        self._needs("read")
        return await self._store.overview()

    async def figures(self) -> Figures:
        """Return what metrics tell besides how things stand."""
        self._needs("read")
        self._needs_all()
        return await self._store.figures()

    async def nodes(self) -> list[NodeRow]:
        """Return the nodes there are, the oldest first."""
        self._needs("read")
        self._needs_all()
        return await self._store.nodes()

    async def audit(
        self,
        *,
        schedule_id: str | None = None,
        before: tuple[int, int] | None = None,
        limit: int = 50,
    ) -> list[EventRow]:
        """Return what somebody had done, the latest first. The contract is `Store.audit`."""
        self._needs("read")
        return await self._store.audit(
            schedule_id=schedule_id, before=before, limit=min(limit, MOST_RUNS)
        )

    async def events(
        self, *, after: int, but: Collection[int] = (), limit: int = 1000
    ) -> list[EventRow]:
        """Return what happened since an event row. The contract is `Store.events`."""
        self._needs("read")
        return await self._store.events(after=after, but=but, limit=limit)

    async def newest_event(self, *, before: int | None = None) -> int:
        """Return the number of the newest event row, or the newest that was written before then."""
        self._needs("read")
        return await self._store.newest_event(before=before)

    def _needs(self, scope: Scope) -> None:
        if not self.caller.may(scope):
            problem = f"{self.caller.name or 'this caller'} may {self.caller.scope}, not {scope}"
            raise NotAllowed(problem, hint=f"a token with scope {scope}")

    def _needs_all(self) -> None:
        if self.caller.only_of is not None:
            problem = f"this is about everybody's schedules, not only {self.caller.only_of}'s"
            raise NotAllowed(problem, hint="a token without an owner")


def _is_so(action: Action, row: ScheduleRow) -> bool:
    """Return whether there is nothing left to do."""
    return action != "delete" and row.paused == (action == "pause")


def check_launch(schedule: Schedule, launchers: Launchers) -> None:
    """Refuse a schedule whose target, or condition, could never be launched."""
    with naming("run"):
        launcher = _launcher_of(schedule.target, launchers)
        launcher.check(schedule.target)
    if schedule.policy.overlap == "replace" and not launcher.can_cancel(schedule.target):
        problem = "what it starts cannot be ended, so that nothing could take its place"
        raise InvalidSchedule("overlap", problem, hint="skip, queue or allow")
    if schedule.when is not None:
        with naming("when"):
            _launcher_of(schedule.when, launchers).check(schedule.when)


def _launcher_of(target: Target, launchers: Launchers) -> Launcher:
    launcher = launchers.get(target.kind)
    if launcher is None:
        raise InvalidSchedule(
            target.kind, "nothing launches it", hint=f"known: {', '.join(launchers)}"
        )
    return launcher
