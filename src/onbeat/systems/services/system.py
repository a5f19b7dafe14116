"""The timers of services: keeps a services file, the store and the state file in step.

All access is behind the gate, which is checked only here: while it or its parent is off, the store
has no schedules of timers, and the state file is not read.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from onbeat.errors import (
    InvalidFile,
    InvalidSchedule,
    Mistake,
    NoSuchSchedule,
    quote_value,
)
from onbeat.events import Event
from onbeat.ports.rows import ScheduleFilter, ScheduleRow
from onbeat.ports.store import InitialPosition
from onbeat.service.service import Service
from onbeat.systems.base import PeriodicTask
from onbeat.systems.reconcile import (
    DefineSchedule,
    Problems,
    RejectDefinition,
    RejectId,
    ScheduleAction,
    SourceSchedules,
    Wanted,
)
from onbeat.systems.services.state import StateFile, TimerHistory
from onbeat.systems.services.timer_list import (
    NO_HISTORY,
    TimerList,
    busy_timers,
    list_timers,
    stored_timers,
)
from onbeat.systems.services.timers import Services, ServiceTimer, Timers, timers_from_rows

log = logging.getLogger("onbeat.systems")

SOURCE = "services"  # the `source` of these schedules in the store
SWITCHED = "services.enabled"  # document kind: timers that were enabled or disabled manually
CHECKED_EVERY = 0.5  # seconds between two checks of the file
MOST_IDLE_STEPS = 10  # steps without news before everything is checked
FIELD_NAMES = {"run.command": "argv", "run.env": "env", "run.cwd": "cwd"}  # core name: ours


class ServicesSource(Protocol):
    """The file that defines services and their timers."""

    path: Path

    def read(self) -> object:
        """Return the fields, or raise if the file cannot be read."""

    def has_changed(self) -> bool:
        """Return whether the file is new or changed since the last call."""

    def put_back(self) -> None:
        """Report the file as changed next time, because it could not be applied."""


class TimerSystem:
    """The timers of one file."""

    def __init__(self, service: Service, source: ServicesSource, *, timezone: str = "UTC") -> None:
        """`timezone` is the default zone."""
        self._service, self._source, self._timezone = service, source, timezone
        self._schedules = SourceSchedules(service, SOURCE, field_names=FIELD_NAMES)
        self._problems = Problems()  # of timers that are ignored
        self._reconciling = PeriodicTask("timers", self.step, every=CHECKED_EVERY)
        self._one_at_a_time = asyncio.Lock()
        self._has_started = False
        self._is_closed = False  # the gate, when the file was last read
        self._last_problem = ""
        # Only while the gate is open and the file is readable:
        self._timers: Timers | None = None
        self._state: StateFile | None = None
        self._switched: Mapping[str, bool] = {}
        self._history: dict[str, TimerHistory] = {}
        self._rows: dict[str, ScheduleRow] = {}
        self._foreign_ids: set[str] = set()
        self._changed: set[str] = set()
        self._newest_event, self._idle_steps = -1, 0

    # -- background work

    async def start(self) -> None:
        """Apply the file to the store, and keep it in step; raise if the file is invalid."""
        await self._apply_file(at_start=True)
        invalid = () if self._timers is None else self._timers.invalid
        if invalid:
            count = "1 timer is" if len(invalid) == 1 else f"{len(invalid)} timers are"
            log.warning("services file: %s invalid; onbeat timers lists the reasons", count)
        await self._save()
        self._has_started = True
        self._reconciling.start()

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        """Note the timers whose history has changed."""
        del at
        if self._timers is None:
            return
        ids = {getattr(event, "schedule_id", "") for event in events}
        if ids := ids & self._timers.valid.keys():
            self._changed |= ids
            self._reconciling.wake()

    async def stop(self) -> None:
        """Stop. Schedules stay in the store for the next start."""
        await self._reconciling.stop()
        await self._save()

    async def step(self) -> None:
        """Apply changes of the file and of switches, and write the history of timers.

        It compares states instead of relying on events, so that a missed event does no harm.
        """
        has_changed = await asyncio.to_thread(self._source.has_changed)
        newest = await self._service.newest_event()
        is_quiet = newest == self._newest_event and not has_changed and not self._changed
        if is_quiet and self._idle_steps < MOST_IDLE_STEPS:
            self._idle_steps += 1
            return
        if has_changed or await self._is_out_of_step():
            await self._apply_file()
        await self._save()
        await self._rearm()
        self._newest_event, self._idle_steps = newest, 0

    # -- API calls

    async def listed(self, service: Service | None = None) -> TimerList | None:
        """Return the status of timers for the caller; None while the gate is closed."""
        services = await asyncio.to_thread(self._gate)
        if services is None:
            return None
        reader = service or self._service
        timers, _ = await self._compare(services, await self._switches())
        rows = await reader.schedules(ScheduleFilter(source=SOURCE))
        return await list_timers(reader, timers, rows, await self._known_history(services))

    async def listed_by_store(self) -> TimerList:
        """Return the status of the timers in the store, while their file is invalid."""
        rows = await self._schedules.rows()
        return await list_timers(self._service, timers_from_rows(rows), rows, self._history)

    async def _known_history(self, services: Services) -> Mapping[str, TimerHistory]:
        """Return the known history of timers; without a node, read it from the state file."""
        state = self._state_file(services)
        if state is None or (self._state is not None and self._state.path == state.path):
            return self._history
        return await asyncio.to_thread(state.load)

    async def switch(self, timer_id: str, *, on: bool) -> bool | None:
        """Enable or disable a timer, overriding its file; return whether that is a change.

        The node applies it with its next step. None: the gate is closed, and nothing was done.
        """
        services = await asyncio.to_thread(self._gate)
        if services is None:
            return None
        timers, _ = await self._compare(services, await self._switches())
        if timer_id in timers.invalid and timer_id not in timers.valid:
            raise InvalidSchedule(timer_id, timers.invalid[timer_id], hint="nothing was switched")
        if timer_id not in timers.valid:
            raise NoSuchSchedule(timer_id, timers.valid)
        was = timers.valid[timer_id]
        if was.is_enabled_there == on:
            await self._service.forget(SWITCHED, timer_id)
        else:
            await self._service.keep(SWITCHED, timer_id, on)
        return was.is_enabled != on

    def _gate(self) -> Services | None:
        return _behind_gate(self._source, self._timezone)

    async def _apply_file(self, *, at_start: bool = False) -> None:
        """Apply the file to the store; an unreadable one changes nothing.

        At the start an invalid file is refused instead of logged.
        """
        async with self._one_at_a_time:
            try:
                with _with_file_name(self._source):
                    services = await asyncio.to_thread(self._gate)
                    if services is None:
                        await self._withdraw()
                    else:
                        await self._define(services)
                self._last_problem = ""
            except InvalidFile as refused:
                if at_start:
                    raise
                self._log_problem(str(refused))
            except BaseException:
                self._source.put_back()
                raise

    def _log_problem(self, problem: str) -> None:
        if problem != self._last_problem:
            log.error(
                "timers stay unchanged, because the services file is not applied: %s", problem
            )
        self._last_problem = problem

    async def _withdraw(self) -> None:
        """Delete all timers, and stop writing their history."""
        self._is_closed, self._timers, self._state = True, None, None
        self._history, self._rows, self._changed = {}, {}, set()
        self._problems.replace({})
        actions = await self._schedules.compare(())
        if actions:
            await self._schedules.carry_out(actions)

    async def _define(self, services: Services) -> None:
        """Define the valid timers, and delete those that are no longer in the file.

        A timer that is not in the store continues from the state file.
        """
        self._is_closed = False
        switched = await self._switches()
        timers, actions = await self._compare(services, switched)
        await self._use_state_file(self._state_file(services))
        positions = {
            timer_id: position
            for timer_id, row in _defined(actions).items()
            if (position := self._initial_position(timer_id, timers.valid[timer_id], row))
            is not None
        }
        await self._schedules.carry_out(actions, initial_positions=positions)
        new = self._problems.replace(timers.invalid)
        if self._has_started:  # at the start their number is logged
            for timer_id, reason in new.items():
                log.warning("timer %s is ignored: %s", timer_id, reason)
        self._timers, self._foreign_ids = timers, _rejected_ids(actions)
        self._switched = await self._forget_unknown(switched, timers)
        self._changed = set(timers.valid)

    async def _use_state_file(self, state: StateFile | None) -> None:
        """Set the state file; a different one is read first."""
        if state is None or self._state is None or state.path != self._state.path:
            self._state = state
            self._history = {} if state is None else await asyncio.to_thread(state.load)

    def _initial_position(
        self, timer_id: str, timer: ServiceTimer, row: ScheduleRow | None
    ) -> InitialPosition | None:
        """Return where a new timer continues, or an existing timer that follows its success."""
        if row is None:
            history = self._history.get(timer_id)
            if history is None:
                return None
            return history.initial_position(is_persistent=timer.is_persistent)
        if not timer.follows_success or not self._has_just_succeeded(row):
            return None
        return InitialPosition(last_success_at=row.last_success_at)

    def _has_just_succeeded(self, row: ScheduleRow) -> bool:
        """Return whether the last run succeeded; a later failed or manual run does not count."""
        if row.last_success_at is None or row.consecutive_failures:
            return False
        history = self._history.get(row.schedule_id)
        started_at = None if history is None else history.last_run_at
        is_past = started_at is not None and started_at <= self._service.clock.now()
        return not is_past or (started_at or 0) <= row.last_success_at

    async def _rearm(self) -> None:
        """Set the next tick of timers that follow their success and whose tick was not run."""
        async with self._one_at_a_time:
            timers = {} if self._timers is None else self._timers.valid
            idle = [
                row.schedule_id
                for row in self._rows.values()
                if row.next_run_at is None and not row.paused and row.schedule_id in timers
            ]
            idle = [each for each in idle if self._may_follow(timers[each], self._rows[each])]
            if not idle:
                return
            busy = await busy_timers(self._service, idle)
            positions = {
                each: InitialPosition(last_success_at=self._rows[each].last_success_at)
                for each in idle
                if each not in busy
            }
            again = [DefineSchedule(timers[each].schedule, self._rows[each]) for each in positions]
            if again:
                await self._schedules.carry_out(again, initial_positions=positions)

    def _may_follow(self, timer: ServiceTimer, row: ScheduleRow) -> bool:
        return timer.follows_success and timer.may_start and self._has_just_succeeded(row)

    async def _compare(
        self, services: Services, switched: Mapping[str, bool]
    ) -> tuple[Timers, list[ScheduleAction]]:
        """Return the timers, and what brings the store in step with them; nothing is changed.

        Timers that no launcher accepts, or whose id is taken, are invalid.
        """
        with _with_file_name(self._source):
            timers = await asyncio.to_thread(services.timers, switched)
        actions = await self._schedules.compare(
            Wanted(timer.schedule, f"services.{timer.target}") for timer in timers.valid.values()
        )
        valid, invalid = dict(timers.valid), dict(timers.invalid)
        for action in actions:
            match action:
                case RejectId(timer_id):
                    invalid[timer_id] = f"{quote_value(timer_id)} is the id of another schedule"
                    del valid[timer_id]
                case RejectDefinition(timer_id, why):
                    invalid[timer_id] = str(why)
                    del valid[timer_id]
                case _:
                    pass
        return Timers(valid, dict(sorted(invalid.items()))), actions

    async def _is_out_of_step(self) -> bool:
        """Return whether the store has changed and differs from the file."""
        timers = self._timers
        if timers is None:
            return self._is_closed and bool(await self._schedules.rows())
        if {row.schedule_id for row in await self._schedules.rows()} != timers.valid.keys():
            return True
        if self._foreign_ids:
            still = await self._service.schedules(ScheduleFilter(ids=sorted(self._foreign_ids)))
            if len(still) < len(self._foreign_ids):
                return True
        return await self._switches() != self._switched

    # -- switches and history

    async def _switches(self) -> dict[str, bool]:
        rows = await self._service.list_documents(SWITCHED)
        return {row.name: row.body for row in rows if isinstance(row.body, bool)}

    async def _forget_unknown(
        self, switched: Mapping[str, bool], timers: Timers
    ) -> dict[str, bool]:
        """Return the switches, and forget those of timers that are no longer in the file."""
        unknown = switched.keys() - timers.valid.keys() - timers.invalid.keys()
        for timer_id in unknown:
            await self._service.forget(SWITCHED, timer_id)
        return {name: on for name, on in switched.items() if name not in unknown}

    def _state_file(self, services: Services) -> StateFile | None:
        name = services.state_file
        return (
            None if name is None else StateFile(self._source.path.parent / Path(name).expanduser())
        )

    async def _save(self) -> None:
        """Write the history of timers, if it has changed."""
        async with self._one_at_a_time:
            timers, state = self._timers, self._state
            if timers is None:
                return
            if state is not None and state.is_unread:
                await self._read_late(state)
            changed, self._changed = self._changed, set()
            rows = await self._schedules.rows()
            changed_rows = [
                row
                for row in rows
                if row.schedule_id in changed or self._rows.get(row.schedule_id) != row
            ]
            found = await stored_timers(self._service, changed_rows, self._history, timers)
            self._history |= {timer_id: each.history for timer_id, each in found.items()}
            self._rows = {row.schedule_id: row for row in rows}
            # Keep the history of timers that are invalid for now, but not of removed ones.
            stay = self._rows.keys() | timers.invalid.keys()
            self._history = {name: each for name, each in self._history.items() if name in stay}
            if state is not None:
                await asyncio.to_thread(state.save, self._history)

    async def _read_late(self, state: StateFile) -> None:
        """Read a state file that was unreadable before; the history since then is later."""
        now = self._service.clock.now()
        for timer_id, earlier in (await asyncio.to_thread(state.load)).items():
            since = self._history.get(timer_id, NO_HISTORY)
            self._history[timer_id] = since.since(earlier, now=now)


def _defined(actions: Iterable[ScheduleAction]) -> dict[str, ScheduleRow | None]:
    """Return the stored rows of the schedules to define, by id."""
    found = (each for each in actions if isinstance(each, DefineSchedule))
    return {each.schedule.schedule_id: each.row for each in found}


def _rejected_ids(actions: Iterable[ScheduleAction]) -> set[str]:
    """Return the ids that belong to schedules of other sources."""
    return {each.schedule_id for each in actions if isinstance(each, RejectId)}


def is_open(source: ServicesSource, *, timezone: str = "UTC") -> bool:
    """Return whether the old file does not enable and its parent are open."""
    return _behind_gate(source, timezone) is not None


def invalid_timers(source: ServicesSource, *, timezone: str = "UTC") -> Mapping[str, str]:
    """Return why timers of a file are invalid, by id; empty while the gate is closed."""
    services = _behind_gate(source, timezone)
    with _with_file_name(source):
        return {} if services is None else services.timers().invalid


def _behind_gate(source: ServicesSource, timezone: str) -> Services | None:
    """Return the services of a file if the gate is open; all access to timers comes here first."""
    fields = source.read()
    with _with_file_name(source):
        services = Services(fields, timezone=timezone)
    return services if services.are_timers_on else None


@contextmanager
def _with_file_name(source: ServicesSource) -> Iterator[None]:
    """Raise errors of the whole file with its name."""
    try:
        yield
    except InvalidSchedule as refused:
        mistake = Mistake(None, refused.field, refused.problem, refused.hint)
        raise InvalidFile(str(source.path), [mistake]) from None
