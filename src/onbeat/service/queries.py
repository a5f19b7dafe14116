"""The use cases that only read: schedules, runs, events, and `why`. Each is for who may read it."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from onbeat.core.explain.why import Why, explain
from onbeat.core.schedule import from_definition
from onbeat.core.snapshot import Snapshot
from onbeat.core.time.instants import read_typed
from onbeat.core.time.zones import Zone, zone
from onbeat.errors import InvalidSchedule, NoSuchRun, NoSuchSchedule, NotAllowed
from onbeat.ports.clock import Clock
from onbeat.ports.rows import (
    BROKEN,
    ChannelRow,
    DocumentRow,
    EventRow,
    GroupRow,
    NodeRow,
    Overview,
    RunFilter,
    RunRow,
    ScheduleFilter,
    ScheduleRow,
    StoreFigures,
)
from onbeat.ports.store import ALL, ALL_RUNS, Store
from onbeat.service.access import Caller, Scope, check_change

FIRST_PAGE, PAGE = 100, 1000  # schedules
MOST_RUNS = 10_000  # in one answer
MOST_LIKE_IT = 500  # schedules after the beginning of an id, and as many more, that it may mean


class Queries:
    """What a caller may read of one store."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store.as_caller(
            caller.name,
            only_of=caller.only_of,
            check_change=None if caller.may("admin") else partial(check_change, caller),
        )
        self.caller = caller

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may plan and run on the store."""
        return self._store.is_shared

    @property
    def clock(self) -> Clock:
        """By which the store tells the time."""
        return self._store.clock

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

    async def channels(self) -> list[ChannelRow]:
        """Return what became of the messages of each channel, by name."""
        self._needs("operate")
        return await self._store.channels()

    async def groups(self) -> list[GroupRow]:
        """Return the groups there are, by name, and how full they are."""
        self._needs("read")
        self._needs_all()
        return await self._store.groups()

    async def standings(self, *, most: int | None = None) -> Snapshot:
        """Return how things stand: what `onbeat.simulate.simulation` begins with.

        It is refused if there are more schedules than `most`.
        """
        self._needs("read")
        if most is not None and (await self._store.overview()).schedules > most:
            hint = f"{most} at most; onbeat simulate has no bound"
            raise InvalidSchedule("schedules", "there are too many to forecast here", hint=hint)
        return await self._store.standings()

    async def schedules(
        self, which: ScheduleFilter = ALL, *, after: str = "", limit: int | None = None
    ) -> list[ScheduleRow]:
        """Return schedules by id: those later than `after`, up to `limit`."""
        self._needs("read")
        return await self._store.schedules(which, after=after, limit=limit)

    async def pages(self, which: ScheduleFilter = ALL) -> AsyncIterator[list[ScheduleRow]]:
        """Yield all schedules by id, a page at a time: the first is short, and soon there.

        Each is of its own moment. What is defined or deleted meanwhile may be among them or not.
        """
        self._needs("read")
        after, limit = "", FIRST_PAGE
        while found := await self._store.schedules(which, after=after, limit=limit):
            yield found
            if len(found) < limit:
                return
            after, limit = found[-1].schedule_id, PAGE

    async def schedule(self, schedule_id: str) -> ScheduleRow:
        """Return one schedule."""
        self._needs("read")
        found = await self.find(schedule_id)
        if found is None:
            await self._refuse_broken(schedule_id)
            begin = schedule_id[: len(schedule_id) // 2]
            near = await self._store.schedules(after=begin, limit=MOST_LIKE_IT)
            near += await self._store.schedules(limit=MOST_LIKE_IT)
            known = {row.schedule_id for row in near}
            raise await asyncio.to_thread(NoSuchSchedule, schedule_id, known)
        return found

    async def broken(self) -> dict[str, str]:
        """Return what is wrong with definitions that a system has and cannot use, by id."""
        self._needs("read")
        return {row.name: _why_broken(row) for row in await self._store.kept_all(BROKEN)}

    async def _refuse_broken(self, schedule_id: str) -> None:
        """Say what is wrong with the definition of a schedule that is not there for it."""
        kept = await self._store.kept(BROKEN, schedule_id)
        if kept is not None:
            raise NoSuchSchedule(schedule_id, why=_why_broken(kept))

    async def find(self, schedule_id: str) -> ScheduleRow | None:
        """Return one schedule, if it is there."""
        self._needs("read")
        return await self._store.schedule(schedule_id)

    async def runs(self, which: RunFilter = ALL_RUNS, *, limit: int = 50) -> list[RunRow]:
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
        try:
            return await self._why(schedule_id, at)
        except NoSuchSchedule:
            await self._refuse_broken(schedule_id)
            raise

    async def _why(self, schedule_id: str, at: int | str | None) -> Why:
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

    async def overview(self) -> Overview:
        """Return how things stand."""
        self._needs("read")
        return await self._store.overview()

    async def figures(self) -> StoreFigures:
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


def _why_broken(kept: DocumentRow) -> str:
    body = kept.body if isinstance(kept.body, Mapping) else {}
    kind = "refused" if body.get("is_refused") else "corrupt"
    return f"{body.get('where')} is {kind}: {body.get('why')}"
