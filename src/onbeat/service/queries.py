"""The use cases that only read: schedules, runs, events, and `why`, with the caller's rights."""

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
MOST_SIMILAR = 500  # schedules that are read twice to suggest an id for an unknown one


class Queries:
    """The read-only use cases on one store, with the rights of a caller."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store.as_caller(
            caller.name,
            only_owner=caller.only_owner,
            check_change=None if caller.may("admin") else partial(check_change, caller),
        )
        self.caller = caller

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may plan and run on the store."""
        return self._store.is_shared

    @property
    def clock(self) -> Clock:
        """The clock of the store."""
        return self._store.clock

    async def kept(self, kind: str, name: str) -> DocumentRow | None:
        """Return a stored document of a system."""
        self._needs("read")
        return await self._store.kept(kind, name)

    async def list_documents(
        self,
        kind: str,
        *,
        after: str = "",
        limit: int | None = None,
        since: int | None = None,
        but: Collection[str] = (),
    ) -> list[DocumentRow]:
        """Return the stored documents of a kind. The contract is `Store.list_documents`."""
        self._needs("read")
        return await self._store.list_documents(
            kind, after=after, limit=limit, since=since, but=but
        )

    async def channels(self) -> list[ChannelRow]:
        """Return the delivery status of each notification channel, by name."""
        self._needs("operate")
        return await self._store.channels()

    async def groups(self) -> list[GroupRow]:
        """Return all groups by name, with their limit and usage."""
        self._needs("read")
        self._needs_all()
        return await self._store.groups()

    async def read_snapshot(self, *, most: int | None = None) -> Snapshot:
        """Return a snapshot of all schedules, from which a simulation starts.

        It is refused if there are more schedules than `most`.
        """
        self._needs("read")
        if most is not None and (await self._store.overview()).schedules > most:
            hint = f"{most} at most; onbeat simulate has no limit"
            raise InvalidSchedule("schedules", "there are too many to forecast", hint=hint)
        return await self._store.read_snapshot()

    async def schedules(
        self, which: ScheduleFilter = ALL, *, after: str = "", limit: int | None = None
    ) -> list[ScheduleRow]:
        """Return schedules by id: those later than `after`, up to `limit`."""
        self._needs("read")
        return await self._store.schedules(which, after=after, limit=limit)

    async def pages(self, which: ScheduleFilter = ALL) -> AsyncIterator[list[ScheduleRow]]:
        """Yield all schedules by id, a page at a time; the first page is short, for fast output.

        Pages are read one after another: schedules defined or deleted meanwhile may be missing.
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
            near = await self._store.schedules(after=begin, limit=MOST_SIMILAR)
            near += await self._store.schedules(limit=MOST_SIMILAR)
            similar = {row.schedule_id for row in near}
            raise await asyncio.to_thread(NoSuchSchedule, schedule_id, similar)
        return found

    async def broken(self) -> dict[str, str]:
        """Return why definitions of systems are not usable, by id."""
        self._needs("read")
        return {row.name: _why_broken(row) for row in await self._store.list_documents(BROKEN)}

    async def _refuse_broken(self, schedule_id: str) -> None:
        """Refuse a schedule that does not exist because a system has no valid definition of it."""
        document = await self._store.kept(BROKEN, schedule_id)
        if document is not None:
            raise NoSuchSchedule(schedule_id, why=_why_broken(document))

    async def find(self, schedule_id: str) -> ScheduleRow | None:
        """Return one schedule, or None."""
        self._needs("read")
        return await self._store.schedule(schedule_id)

    async def runs(self, which: RunFilter = ALL_RUNS, *, limit: int = 50) -> list[RunRow]:
        """Return runs, latest first."""
        self._needs("read")
        found = await self._store.runs(which, limit=min(limit, MOST_RUNS))
        if which.schedule_id is not None and not found:  # a deleted schedule may still have runs
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
        """Explain why a schedule ran or did not run at an instant, by default at its latest tick.

        A text is an instant with an offset, or a local time in the zone of the schedule. A local
        time that occurs twice means the first instant that is a tick; `also` has the other.
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
        """Return the zone of a schedule; UTC if it does not exist or cannot be read."""
        row = await self.find(schedule_id)
        if row is not None:
            with suppress(InvalidSchedule):
                return zone(from_definition(schedule_id, row.definition).timezone)
        return zone("UTC")

    async def overview(self) -> Overview:
        """Return the current state of the installation."""
        self._needs("read")
        return await self._store.overview()

    async def figures(self) -> StoreFigures:
        """Return figures for metrics, in addition to the overview."""
        self._needs("read")
        self._needs_all()
        return await self._store.figures()

    async def nodes(self) -> list[NodeRow]:
        """Return the registered nodes, oldest first."""
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
        """Return the audit log, latest first. The contract is `Store.audit`."""
        self._needs("read")
        return await self._store.audit(
            schedule_id=schedule_id, before=before, limit=min(limit, MOST_RUNS)
        )

    async def events(
        self, *, after: int, but: Collection[int] = (), limit: int = 1000
    ) -> list[EventRow]:
        """Return the events after an event row. The contract is `Store.events`."""
        self._needs("read")
        return await self._store.events(after=after, but=but, limit=limit)

    async def newest_event(self, *, before: int | None = None) -> int:
        """Return the number of the newest event row, or of the newest written before `before`."""
        self._needs("read")
        return await self._store.newest_event(before=before)

    def _needs(self, scope: Scope) -> None:
        if not self.caller.may(scope):
            problem = f"{self.caller.name or 'this caller'} may {self.caller.scope}, not {scope}"
            raise NotAllowed(problem, hint=f"a token with scope {scope}")

    def _needs_all(self) -> None:
        if self.caller.only_owner is not None:
            problem = (
                f"this concerns the schedules of all owners, not only {self.caller.only_owner}"
            )
            raise NotAllowed(problem, hint="a token without an owner")


def _why_broken(document: DocumentRow) -> str:
    body = document.body if isinstance(document.body, Mapping) else {}
    kind = "refused" if body.get("is_refused") else "corrupt"
    return f"{body.get('where')} is {kind}: {body.get('why')}"
