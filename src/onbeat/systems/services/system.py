"""Timers at work: a file of services and timers, the store, and the file of what became of them.

This is the one way in, and the gate is asked here and nowhere else: while it, or its parent, is off
there are no schedules of timers in the store, and the state file is not so much as looked for.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from onbeat.errors import InvalidFile, InvalidSchedule, NoSuchSchedule, naming, shown
from onbeat.events import Event
from onbeat.records import ScheduleRow, Which
from onbeat.service import Service
from onbeat.systems.beside import Keeper
from onbeat.systems.services.listing import Listing, kept_of, list_timers
from onbeat.systems.services.state import Kept, StateFile
from onbeat.systems.services.timers import Services, Timers
from onbeat.systems.wording import told_in

log = logging.getLogger("onbeat.systems")

SOURCE = "services"  # whose schedules these are, in the store
SWITCHED = "services.enabled"  # what is kept of timers that were switched on or off by hand
EVERY = 0.5  # seconds, between two looks at the file
WORDS = {"run.command": "argv", "run.env": "env", "run.cwd": "cwd"}  # the core's, and ours


class Source(Protocol):
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

    def __init__(self, service: Service, source: Source, *, timezone: str = "UTC") -> None:
        """`timezone` is where timers are whose file names no zone."""
        self._service, self._source, self._timezone = service, source, timezone
        self._keeper = Keeper("timers", self.step, every=EVERY)
        self._alone = asyncio.Lock()
        # While the gate is open, and the file could be read:
        self._timers: Timers | None = None
        self._state: StateFile | None = None
        self._switched: Mapping[str, bool] = {}
        self._kept: dict[str, Kept] = {}
        self._rows: dict[str, ScheduleRow] = {}
        self._to_look_at: set[str] = set()

    # -- beside a node

    async def begin(self) -> None:
        """Have the store be as the file says, and keep it so."""
        await self._take_up()
        await self._save()
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
        """Take up what was changed in the file or by hand, and write what became of timers."""
        has_changed = await asyncio.to_thread(self._source.has_changed)
        if has_changed or await self._is_switched():
            await self._take_up()
        await self._save()

    # -- for those who look, and those who switch

    async def listed(self, service: Service | None = None) -> Listing | None:
        """Return how timers stand, for whoever asks; None while the gate is closed."""
        services = await asyncio.to_thread(self._gate)
        if services is None:
            return None
        asked = service or self._service
        timers = await self._checked(services, await self._switched_by_hand())
        rows = await asked.schedules(Which(source=SOURCE))
        state = None if len(rows) == len(timers.right) else self._state_file(services)
        kept = {} if state is None else await asyncio.to_thread(state.load)
        return await list_timers(asked, timers, rows, kept)

    async def switch(self, timer_id: str, *, on: bool) -> bool | None:
        """Have a timer be enabled or not, whatever its file says; return whether that is a change.

        None: the gate is closed, and nothing was done.
        """
        services = await asyncio.to_thread(self._gate)
        if services is None:
            return None
        was = services.timers(await self._switched_by_hand()).right
        if timer_id not in was:
            raise NoSuchSchedule(timer_id, was)
        if was[timer_id].is_enabled_there == on:
            await self._service.forget(SWITCHED, timer_id)
        else:
            await self._service.keep(SWITCHED, timer_id, on)
        now = services.timers(await self._switched_by_hand()).right[timer_id]
        known = await self._service.find(timer_id)
        if known is not None and known.source == SOURCE:
            await self._service.define([now.schedule], source=SOURCE)
        return was[timer_id].is_enabled != on

    def _gate(self) -> Services | None:
        return _behind_gate(self._source, self._timezone)

    async def _take_up(self) -> None:
        """Have the store be as the file says; what cannot be read leaves all as it is."""
        async with self._alone:
            try:
                services = await asyncio.to_thread(self._gate)
                if services is None:
                    await self._withdraw()
                else:
                    await self._define(services)
            except InvalidFile as refused:
                self._tell(str(refused))
            except InvalidSchedule as refused:
                self._tell(f"{self._source.path}: {refused}")
            except BaseException:
                self._source.put_back()
                raise

    def _tell(self, problem: str) -> None:
        log.error("timers: they stay as they are: %s", problem)

    async def _withdraw(self) -> None:
        """Have no timers: nothing of them starts any more, and nothing is written."""
        self._timers, self._state = None, None
        self._kept, self._rows, self._to_look_at = {}, {}, set()
        there = await self._service.schedules(Which(source=SOURCE))
        if there:
            ids = [row.schedule_id for row in there]
            await self._service.define([], source=SOURCE, remove=ids)

    async def _define(self, services: Services) -> None:
        """Define the timers that are right, and take away those of before that are not among them.

        One that the store does not know goes on where the state file says it was.
        """
        state, switched = self._state_file(services), await self._switched_by_hand()
        timers = await self._checked(services, switched)
        there = {row.schedule_id for row in await self._service.schedules(Which(source=SOURCE))}
        if state is None or self._state is None or state.path != self._state.path:
            self._state = state
            self._kept = {} if state is None else await asyncio.to_thread(state.load)
        beginnings = {
            timer_id: kept.beginning(is_persistent=timers.right[timer_id].is_persistent)
            for timer_id, kept in self._kept.items()
            if timer_id in timers.right and timer_id not in there
        }
        schedules = [timer.schedule for timer in timers.right.values()]
        gone = there - timers.right.keys()
        await self._service.define(schedules, source=SOURCE, remove=gone, beginnings=beginnings)
        told = {} if self._timers is None else self._timers.invalid
        for timer_id, reason in timers.invalid.items():
            if told.get(timer_id) != reason:
                log.warning("timers: %s is left out: %s", timer_id, reason)
        self._timers, self._switched = timers, switched
        self._to_look_at = set(timers.right)

    async def _checked(self, services: Services, switched: Mapping[str, bool]) -> Timers:
        """Return timers, with those that nothing could start, or that are others', as wrong."""
        timers = await asyncio.to_thread(services.timers, switched)
        right, invalid = dict(timers.right), dict(timers.invalid)
        known = await self._service.schedules(Which(ids=list(right)))
        for row in known:
            if row.source != SOURCE:
                invalid[row.schedule_id] = f"{shown(row.schedule_id)} is a schedule, and no timer"
                del right[row.schedule_id]
        for timer_id, timer in list(right.items()):
            try:
                with naming(f"services.{timer.target}"), told_in(WORDS):
                    self._service.check(timer.schedule)
            except InvalidSchedule as refused:
                invalid[timer_id] = str(refused)
                del right[timer_id]
        return Timers(right, dict(sorted(invalid.items())))

    # -- what was switched by hand, and what became of timers

    async def _switched_by_hand(self) -> dict[str, bool]:
        rows = await self._service.kept_all(SWITCHED)
        return {row.name: row.body for row in rows if isinstance(row.body, bool)}

    async def _is_switched(self) -> bool:
        """Return whether somebody has switched a timer since they were taken up."""
        return self._timers is not None and await self._switched_by_hand() != self._switched

    def _state_file(self, services: Services) -> StateFile | None:
        name = services.state_file
        return (
            None if name is None else StateFile(self._source.path.parent / Path(name).expanduser())
        )

    async def _save(self) -> None:
        """Write what became of timers, if the file does not say so."""
        async with self._alone:
            timers, state = self._timers, self._state
            if timers is None or state is None:
                return
            rows = await self._service.schedules(Which(source=SOURCE))
            changed = {row.schedule_id for row in rows if self._rows.get(row.schedule_id) != row}
            looked_at, self._to_look_at = self._to_look_at, set()
            for row in rows:
                if row.schedule_id in changed | looked_at:
                    self._kept[row.schedule_id], _ = await kept_of(self._service, row)
            self._rows = {row.schedule_id: row for row in rows}
            # One that is wrong just now keeps what it had; one that nobody names any more does not.
            stay = self._rows.keys() | timers.invalid.keys()
            self._kept = {name: kept for name, kept in self._kept.items() if name in stay}
            await asyncio.to_thread(state.save, self._kept)


def is_open(source: Source, *, timezone: str = "UTC") -> bool:
    """Return whether the gate of timers is open, and its parent on."""
    return _behind_gate(source, timezone) is not None


def _behind_gate(source: Source, timezone: str) -> Services | None:
    """Return what a file says if its timers are on; whatever concerns timers asks this first."""
    services = Services(source.read(), timezone=timezone)
    return services if services.are_timers_on else None
