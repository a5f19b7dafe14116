"""Timers at work: a file of services and timers, the store, and the file of what became of them.

This is the one way in, and the gate is asked here and nowhere else: while it, or its parent, is off
there are no schedules of timers in the store, and the state file is not so much as looked for.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from onbeat.errors import InvalidFile, InvalidSchedule, Mistake, NoSuchSchedule, naming, shown
from onbeat.events import Event
from onbeat.ports.rows import ScheduleFilter, ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.service.service import Service
from onbeat.systems.base import PeriodicTask
from onbeat.systems.field_names import renamed_errors
from onbeat.systems.services.state import StateFile, TimerHistory
from onbeat.systems.services.timer_list import (
    NOTHING_KEPT,
    TimerList,
    at_work,
    kept_of,
    list_timers,
)
from onbeat.systems.services.timers import Services, ServiceTimer, Timers, timers_there

log = logging.getLogger("onbeat.systems")

SOURCE = "services"  # whose schedules these are, in the store
SWITCHED = "services.enabled"  # what is kept of timers that were switched on or off by hand
EVERY = 0.5  # seconds, between two looks at the file
MOST_RESTS = 10  # looks at which nothing was new, before all is looked at whatever is told
WORDS = {"run.command": "argv", "run.env": "env", "run.cwd": "cwd"}  # the core's, and ours


class ServicesSource(Protocol):
    """Where services and timers are written down."""

    path: Path

    def read(self) -> object:
        """Return the fields, or refuse what cannot be read."""

    def has_changed(self) -> bool:
        """Return whether there is something new to read; it counts as read then."""

    def put_back(self) -> None:
        """Have it count as new again: it could not be taken up."""


class TimerSystem:
    """The timers of one file."""

    def __init__(self, service: Service, source: ServicesSource, *, timezone: str = "UTC") -> None:
        """`timezone` is where timers are whose file names no zone."""
        self._service, self._source, self._timezone = service, source, timezone
        self._keeper = PeriodicTask("timers", self.step, every=EVERY)
        self._alone = asyncio.Lock()
        self._has_begun = False
        self._is_closed = False  # the gate, when the file was last read
        self._told = ""
        # While the gate is open, and the file could be read:
        self._timers: Timers | None = None
        self._state: StateFile | None = None
        self._switched: Mapping[str, bool] = {}
        self._kept: dict[str, TimerHistory] = {}
        self._rows: dict[str, ScheduleRow] = {}
        self._of_others: set[str] = set()
        self._to_look_at: set[str] = set()
        self._newest, self._rested = -1, 0  # the last event that was seen, and steps without one

    # -- beside a node

    async def begin(self) -> None:
        """Have the store be as the file says, and keep it so; refuse to begin with a wrong file."""
        await self._take_up(at_start=True)
        invalid = () if self._timers is None else self._timers.invalid
        if invalid:
            told = "1 timer is" if len(invalid) == 1 else f"{len(invalid)} timers are"
            log.warning("timers: %s invalid: onbeat timers tells why", told)
        await self._save()
        self._has_begun = True
        self._keeper.begin()

    def heard(self, at: int, events: Sequence[Event]) -> None:
        """Note of which timers something is to be written."""
        del at
        if self._timers is None:
            return
        told = {getattr(event, "schedule_id", "") for event in events}
        if told := told & self._timers.right.keys():
            self._to_look_at |= told
            self._keeper.wake()

    async def end(self) -> None:
        """Stop. What the file says stays in the store, for the next start."""
        await self._keeper.end()
        await self._save()

    async def step(self) -> None:
        """Take up what was changed in the file or by hand, and write what became of timers.

        It depends on how things are, not on what was heard: what others did, or what was missed,
        is made good by the next step.
        """
        has_changed = await asyncio.to_thread(self._source.has_changed)
        newest = await self._service.newest_event()
        is_quiet = newest == self._newest and not has_changed and not self._to_look_at
        if is_quiet and self._rested < MOST_RESTS:
            self._rested += 1
            return
        if has_changed or await self._is_apart():
            await self._take_up()
        await self._save()
        await self._arm()
        self._newest, self._rested = newest, 0

    # -- for those who look, and those who switch

    async def listed(self, service: Service | None = None) -> TimerList | None:
        """Return how timers stand, for whoever asks; None while the gate is closed."""
        services = await asyncio.to_thread(self._gate)
        if services is None:
            return None
        asked = service or self._service
        timers, _ = await self._checked(services, await self._switched_by_hand())
        rows = await asked.schedules(ScheduleFilter(source=SOURCE))
        return await list_timers(asked, timers, rows, await self._known(services))

    async def listed_by_store(self) -> TimerList:
        """Return how timers stand that are at work while their file is wrong: it has no say."""
        rows = await self._there()
        return await list_timers(self._service, timers_there(rows), rows, self._kept)

    async def _known(self, services: Services) -> Mapping[str, TimerHistory]:
        """Return what was known of timers before; whoever is not beside a node reads it."""
        state = self._state_file(services)
        if state is None or (self._state is not None and self._state.path == state.path):
            return self._kept
        return await asyncio.to_thread(state.load)

    async def switch(self, timer_id: str, *, on: bool) -> bool | None:
        """Have a timer be enabled or not, whatever its file says; return whether that is a change.

        The node takes that up with its next step. None: the gate is closed, and nothing was done.
        """
        services = await asyncio.to_thread(self._gate)
        if services is None:
            return None
        timers, _ = await self._checked(services, await self._switched_by_hand())
        if timer_id in timers.invalid and timer_id not in timers.right:
            raise InvalidSchedule(timer_id, timers.invalid[timer_id], hint="nothing was switched")
        if timer_id not in timers.right:
            raise NoSuchSchedule(timer_id, timers.right)
        was = timers.right[timer_id]
        if was.is_enabled_there == on:
            await self._service.forget(SWITCHED, timer_id)
        else:
            await self._service.keep(SWITCHED, timer_id, on)
        return was.is_enabled != on

    def _gate(self) -> Services | None:
        return _behind_gate(self._source, self._timezone)

    async def _take_up(self, *, at_start: bool = False) -> None:
        """Have the store be as the file says; what cannot be read leaves all as it is.

        At the start it is refused, as nobody looks at the log for what has always been wrong.
        """
        async with self._alone:
            try:
                with _told_of(self._source):
                    services = await asyncio.to_thread(self._gate)
                    if services is None:
                        await self._withdraw()
                    else:
                        await self._define(services)
                self._told = ""
            except InvalidFile as refused:
                if at_start:
                    raise
                self._tell(str(refused))
            except BaseException:
                self._source.put_back()
                raise

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            log.error("timers: they stay as they are: %s", problem)
        self._told = problem

    async def _withdraw(self) -> None:
        """Have no timers: nothing of them starts any more, and nothing is written."""
        self._is_closed, self._timers, self._state = True, None, None
        self._kept, self._rows, self._to_look_at = {}, {}, set()
        there = await self._service.schedules(ScheduleFilter(source=SOURCE))
        if there:
            ids = [row.schedule_id for row in there]
            await self._service.define([], source=SOURCE, remove=ids)

    async def _define(self, services: Services) -> None:
        """Define the timers that are right, and take away those of before that are not among them.

        One that the store does not know goes on where the state file says it was.
        """
        self._is_closed = False
        switched = await self._switched_by_hand()
        timers, of_others = await self._checked(services, switched)
        there = {row.schedule_id: row for row in await self._there()}
        await self._keep_in(self._state_file(services))
        beginnings = {
            timer_id: beginning
            for timer_id, timer in timers.right.items()
            if (beginning := self._beginning(timer_id, timer, there.get(timer_id))) is not None
        }
        schedules = [timer.schedule for timer in timers.right.values()]
        gone = there.keys() - timers.right.keys()
        await self._service.define(schedules, source=SOURCE, remove=gone, beginnings=beginnings)
        if self._has_begun:  # at the start it is told how many there are
            self._tell_of_invalid(timers)
        self._timers, self._of_others = timers, of_others
        self._switched = await self._without_strangers(switched, timers)
        self._to_look_at = set(timers.right)

    def _tell_of_invalid(self, timers: Timers) -> None:
        told = {} if self._timers is None else self._timers.invalid
        for timer_id, reason in timers.invalid.items():
            if told.get(timer_id) != reason:
                log.warning("timers: %s is left out: %s", timer_id, reason)

    async def _keep_in(self, state: StateFile | None) -> None:
        """Have this be the state file; another than before is read first."""
        if state is None or self._state is None or state.path != self._state.path:
            self._state = state
            self._kept = {} if state is None else await asyncio.to_thread(state.load)

    def _beginning(
        self, timer_id: str, timer: ServiceTimer, row: ScheduleRow | None
    ) -> InitialPosition | None:
        """Return where a timer goes on: one that is there, if it follows its last success."""
        kept = self._kept.get(timer_id)
        if row is None:
            return None if kept is None else kept.beginning(is_persistent=timer.is_persistent)
        if not timer.follows_success or not self._has_just_succeeded(row):
            return None
        return InitialPosition(last_success_at=row.last_success_at)

    def _has_just_succeeded(self, row: ScheduleRow) -> bool:
        """Return whether nothing has ended otherwise since: by a failure, or by hand."""
        if row.last_success_at is None or row.consecutive_failures:
            return False
        kept = self._kept.get(row.schedule_id)
        started_at = None if kept is None else kept.last_run_at
        is_past = started_at is not None and started_at <= self._service.clock.now()
        return not is_past or (started_at or 0) <= row.last_success_at

    async def _arm(self) -> None:
        """Have timers follow their last success whose tick for that was missed, or skipped."""
        async with self._alone:
            timers = {} if self._timers is None else self._timers.right
            at_rest = [
                row.schedule_id
                for row in self._rows.values()
                if row.next_run_at is None and not row.paused and row.schedule_id in timers
            ]
            at_rest = [each for each in at_rest if self._may_follow(timers[each], self._rows[each])]
            if not at_rest:
                return
            busy = await at_work(self._service, at_rest)
            beginnings = {
                each: InitialPosition(last_success_at=self._rows[each].last_success_at)
                for each in at_rest
                if each not in busy
            }
            again = [timers[each].schedule for each in beginnings]
            if again:
                await self._service.define(again, source=SOURCE, beginnings=beginnings)

    def _may_follow(self, timer: ServiceTimer, row: ScheduleRow) -> bool:
        return timer.follows_success and timer.may_start and self._has_just_succeeded(row)

    async def _checked(
        self, services: Services, switched: Mapping[str, bool]
    ) -> tuple[Timers, set[str]]:
        """Return timers, with those that nothing could start, or that are others', as wrong.

        Of those that are others' also the ids.
        """
        with _told_of(self._source):
            timers = await asyncio.to_thread(services.timers, switched)
        right, invalid = dict(timers.right), dict(timers.invalid)
        known = await self._service.schedules(ScheduleFilter(ids=list(right)))
        of_others = {row.schedule_id for row in known if row.source != SOURCE}
        for timer_id in of_others:
            invalid[timer_id] = f"{shown(timer_id)} is a schedule, and no timer"
            del right[timer_id]
        for timer_id, timer in list(right.items()):
            try:
                with naming(f"services.{timer.target}"), renamed_errors(WORDS):
                    self._service.check(timer.schedule)
            except InvalidSchedule as refused:
                invalid[timer_id] = str(refused)
                del right[timer_id]
        return Timers(right, dict(sorted(invalid.items()))), of_others

    async def _there(self) -> list[ScheduleRow]:
        return await self._service.schedules(ScheduleFilter(source=SOURCE))

    async def _is_apart(self) -> bool:
        """Return whether the store is not as the file says, by what others did since."""
        timers = self._timers
        if timers is None:
            return self._is_closed and bool(await self._there())
        if {row.schedule_id for row in await self._there()} != timers.right.keys():
            return True
        if self._of_others:
            still = await self._service.schedules(ScheduleFilter(ids=sorted(self._of_others)))
            if len(still) < len(self._of_others):
                return True
        return await self._switched_by_hand() != self._switched

    # -- what was switched by hand, and what became of timers

    async def _switched_by_hand(self) -> dict[str, bool]:
        rows = await self._service.kept_all(SWITCHED)
        return {row.name: row.body for row in rows if isinstance(row.body, bool)}

    async def _without_strangers(
        self, switched: Mapping[str, bool], timers: Timers
    ) -> dict[str, bool]:
        """Return what was switched, without timers that have left the file: those are forgotten."""
        strangers = switched.keys() - timers.right.keys() - timers.invalid.keys()
        for timer_id in strangers:
            await self._service.forget(SWITCHED, timer_id)
        return {name: on for name, on in switched.items() if name not in strangers}

    def _state_file(self, services: Services) -> StateFile | None:
        name = services.state_file
        return (
            None if name is None else StateFile(self._source.path.parent / Path(name).expanduser())
        )

    async def _save(self) -> None:
        """Write what became of timers, if the file does not say so."""
        async with self._alone:
            timers, state = self._timers, self._state
            if timers is None:
                return
            if state is not None and state.is_unread:
                await self._read_late(state)
            looked_at, self._to_look_at = self._to_look_at, set()
            rows = await self._there()
            to_look_at = [
                row
                for row in rows
                if row.schedule_id in looked_at or self._rows.get(row.schedule_id) != row
            ]
            found = await kept_of(self._service, to_look_at, self._kept, timers)
            self._kept |= {timer_id: each.kept for timer_id, each in found.items()}
            self._rows = {row.schedule_id: row for row in rows}
            # One that is wrong just now keeps what it had; one that nobody names any more does not.
            stay = self._rows.keys() | timers.invalid.keys()
            self._kept = {name: kept for name, kept in self._kept.items() if name in stay}
            if state is not None:
                await asyncio.to_thread(state.save, self._kept)

    async def _read_late(self, state: StateFile) -> None:
        """Read a state file that could not be before: what is known since is later."""
        now = self._service.clock.now()
        for timer_id, kept in (await asyncio.to_thread(state.load)).items():
            since = self._kept.get(timer_id, NOTHING_KEPT)
            self._kept[timer_id] = since.since(kept, now=now)


def is_open(source: ServicesSource, *, timezone: str = "UTC") -> bool:
    """Return whether the gate of timers is open, and its parent on."""
    return _behind_gate(source, timezone) is not None


def invalid_timers(source: ServicesSource, *, timezone: str = "UTC") -> Mapping[str, str]:
    """Return why timers of a file are invalid, by id; of a file whose gate is closed, none."""
    services = _behind_gate(source, timezone)
    with _told_of(source):
        return {} if services is None else services.timers().invalid


def _behind_gate(source: ServicesSource, timezone: str) -> Services | None:
    """Return what a file says if its timers are on; whatever concerns timers asks this first."""
    given = source.read()
    with _told_of(source):
        services = Services(given, timezone=timezone)
    return services if services.are_timers_on else None


@contextmanager
def _told_of(source: ServicesSource) -> Iterator[None]:
    """Have what is wrong with the whole be told with the name of the file."""
    try:
        yield
    except InvalidSchedule as refused:
        mistake = Mistake(None, refused.field, refused.problem, refused.hint)
        raise InvalidFile(str(source.path), [mistake]) from None
