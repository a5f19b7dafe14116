"""The timer of flows: keeps the store in step with the exposes of a panel.

Every interval all exposes are read: new flows are scheduled, edited ones are updated, and removed
ones are deleted. What cannot be read stays unchanged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from onbeat.core.runs.phase import Status
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.errors import InvalidSchedule, NoSuchRun, NoSuchSchedule, NotAllowed
from onbeat.events import (
    Event,
    RunCanceled,
    RunFailed,
    RunNamed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
)
from onbeat.ports.rows import RunFilter, RunRow, ScheduleFilter, ScheduleRow
from onbeat.ports.store import Attempt
from onbeat.service.service import Service
from onbeat.systems.base import PeriodicTask
from onbeat.systems.flows.config import (
    FIELD_NAMES,
    SOURCE,
    TIMER_NAME,
    ScheduleStatus,
    TimerStatus,
    schedule_id_of,
)
from onbeat.systems.flows.exposes import ExposeSource, FoundExposes, read_exposes
from onbeat.systems.flows.timer_log import TimerLog, timer_logger
from onbeat.systems.reconcile import (
    DefineSchedule,
    DeleteSchedule,
    KeepSchedule,
    Problems,
    RejectDefinition,
    RejectId,
    SourceSchedules,
    Wanted,
)

log = timer_logger()

KEPT, NAME = "flows-timer", "timer"  # the document that describes the timer to other processes
LAUNCHES = "flow-launch"  # documents of the launcher, one for each launch
MOST_RUNNING = 1000  # runs that a status lists
NOT_CHECKED = "not checked yet"
NO_PANEL = "flows_panel is not set: flows wait for a node that has a panel"


class TimerMirror(Protocol):
    """A copy of the timer's state elsewhere, such as an actor of a cluster."""

    async def update(self, meta: Mapping[str, object]) -> None:
        """Replace the copy: `pid`, `schedules` and `running`. It may fail."""


class TimerRecord(msgspec.Struct, frozen=True):
    """The state that a timer stores about itself."""

    pid: int
    interval: int  # milliseconds
    user: str
    exposes: str
    invalid: dict[str, str]
    panel: str = ""  # its URL; empty: this process has none
    panel_problem: str = ""
    unread: str = ""  # why the exposes could not be read


LookAtPanel = Callable[[], Awaitable[str]]
"""Return why the timer cannot use the panel, or an empty string."""


class FlowTimer:
    """The timer of flows beside a node; `interval` is in milliseconds."""

    def __init__(
        self,
        service: Service,
        source: ExposeSource,
        *,
        user: str,
        interval: int,
        pid: int,
        timer_log: TimerLog,
        panel: str = "",
        look_at_panel: LookAtPanel | None = None,
        mirrors: Sequence[TimerMirror] = (),
    ) -> None:
        """`panel` is its URL; without one, flows wait for a node that has one."""
        self._service, self._source, self._user = service, source, user
        self._schedules = SourceSchedules(service, SOURCE, field_names=FIELD_NAMES, user_id=user)
        self._interval, self._pid, self._log = interval, pid, timer_log
        self._panel, self._look_at_panel, self._mirrors = panel, look_at_panel, mirrors
        seconds = interval / 1000
        self._reconciling = PeriodicTask("flows", self.reconcile, every=seconds)
        self._mirroring = PeriodicTask(
            "the mirror of the timer", self._update_mirrors, every=seconds
        )
        self._checking = PeriodicTask("the panel of flows", self._check_panel, every=seconds)
        self._panel_problem = NOT_CHECKED if look_at_panel is not None else ""
        self._triggers: dict[int, str] = {}  # causes of the runs that are being launched
        self._keys: dict[str, str] = {}  # keys of schedules, by id
        self._problems = Problems()  # of flows that are ignored, by key
        self._unread = ""
        self._one_at_a_time = asyncio.Lock()

    # -- background work

    async def start(self) -> None:
        """Apply the exposes to the store, and keep it in step."""
        try:
            self._log.open()
        except OSError as broken:
            log.warning("the log file of the timer cannot be written: %s", broken)
        if not self._panel:
            log.warning("%s", NO_PANEL)
        await self.reconcile()
        self._reconciling.start()
        self._mirroring.start()
        if self._look_at_panel is not None:
            self._checking.start()
            self._checking.wake()

    def on_events(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - of the protocol
        """Log the outcomes of flows, and update the mirrors."""
        own = [each for each in events if getattr(each, "schedule_id", "") in self._keys]
        for event in own:
            self._log_event(event)
        if own:
            self._mirroring.wake()

    async def stop(self) -> None:
        """Stop. Schedules stay in the store for the next start."""
        await self._reconciling.stop()
        await self._checking.abandon()
        await self._mirroring.abandon()
        await self._service.forget(KEPT, NAME)
        log.info("timer stopped with pid=%d", self._pid)
        self._log.close()

    async def reconcile(self) -> None:
        """Read all exposes and bring the store in step; what cannot be read stays unchanged."""
        async with self._one_at_a_time:
            try:
                rows = await asyncio.to_thread(self._source.read)
                self._unread = ""
            except InvalidSchedule as refused:
                if str(refused) != self._unread:
                    log.warning(
                        "flows stay unchanged, because the exposes cannot be read: %s", refused
                    )
                self._unread = str(refused)
                self._keys |= {
                    each.schedule_id: key_of(each) for each in await self._schedules.rows()
                }
            else:
                found = await asyncio.to_thread(read_exposes, rows, self._source.parse)
                await self._apply(found)
            await self._save()
            await self._forget_ended_launches()
            await self._update_mirrors()

    async def _apply(self, found: FoundExposes) -> None:
        """Bring the store in step with the exposes that could be read."""
        actions = await self._schedules.compare(
            (Wanted(each.schedule, "schedule") for each in found.valid.values()),
            is_readable=lambda row: row.schedule_id.partition("/")[0] not in found.unread,
        )
        for action in actions:
            match action:
                case RejectId(schedule_id):
                    problem = f"the schedule {schedule_id!r} exists already and is not a flow"
                    why = InvalidSchedule("url", problem, hint="choose another name")
                    found.refuse(found.valid.pop(schedule_id).key, why)
                case RejectDefinition(schedule_id, why):
                    found.refuse(found.valid.pop(schedule_id).key, why)
                case _:
                    pass
        await self._schedules.carry_out(actions)
        self._keys = {each: scheduled.key for each, scheduled in found.valid.items()}
        for action in actions:
            match action:
                case DeleteSchedule(row):
                    log.info("flow %s is no longer scheduled", key_of(row))
                case DefineSchedule(schedule, None):
                    scheduled = found.valid[schedule.schedule_id]
                    log.info("flow %s is scheduled: %s", scheduled.key, scheduled.config.cron)
                case DefineSchedule(_, ScheduleRow() as row) | KeepSchedule(row):
                    self._keys[row.schedule_id] = key_of(row)
                case _:
                    pass
        for key, problem in self._problems.replace(found.invalid).items():
            log.warning("flow %s is ignored: %s", key, problem)

    async def _save(self) -> None:
        invalid = dict(self._problems.by_id)
        record = TimerRecord(
            self._pid, self._interval, self._user, str(self._source.path), invalid,
            self._panel, self._panel_problem, self._unread,
        )  # fmt: skip
        body = msgspec.to_builtins(record)
        row = await self._service.kept(KEPT, NAME)
        if row is None or row.body != body:
            await self._service.keep(KEPT, NAME, body)

    async def _check_panel(self) -> None:
        """Log in to the panel, and store the result for `status`."""
        assert self._look_at_panel is not None, "the check was started"
        problem = await self._look_at_panel()
        if problem == self._panel_problem:
            return
        if problem:
            log.warning("the panel cannot be used: %s", problem)
        elif self._panel_problem != NOT_CHECKED:
            log.info("login to the panel at %s works again", self._panel)
        self._panel_problem = problem
        async with self._one_at_a_time:
            await self._save()

    async def _forget_ended_launches(self) -> None:
        """Forget launches whose runs have ended."""
        for row in await self._service.list_documents(LAUNCHES):
            has_ended = True
            with suppress(NoSuchRun):
                has_ended = (await self._service.run(int(row.name))).finished_at is not None
            if has_ended:
                await self._service.forget(LAUNCHES, row.name)

    # -- mirrors

    async def mirror(self) -> dict[str, object]:
        """Return the state for mirrors, read from the store."""
        listed = await self.schedules(self._service)
        schedules = {
            each.key: {
                "cron": each.cron,
                "enabled": each.enabled,
                "next_run": each.next_run,
                "last_run": each.last_run,
            }
            for each in listed
            if each.invalid is None
        }
        running = {each.key: each.running for each in listed if each.running}
        return {"pid": self._pid, "schedules": schedules, "running": running}

    async def _update_mirrors(self) -> None:
        if not self._mirrors:
            return
        meta = await self.mirror()
        for each in self._mirrors:
            try:
                await each.update(meta)
            except Exception as broken:  # noqa: BLE001 - a mirror must not break the timer
                log.warning("a copy of the timer's state could not be updated: %s", broken)

    def _log_event(self, event: Event) -> None:
        key = self._keys[str(getattr(event, "schedule_id", ""))]
        if isinstance(event, (RunSucceeded, RunCanceled, RunRetrying, RunFailed)):
            self._triggers.pop(event.run_id, None)
        match event:
            case RunStarted():
                self._triggers[event.run_id] = event.triggered_by
                message = "flow %s: run %d is being launched, triggered by %s"
                log.debug(message, key, event.run_id, event.triggered_by)
            case RunNamed():  # the panel has started it
                self._log_launched(event.schedule_id, event.run_id, event.external_id)
            case RunSucceeded():
                log.info("flow %s: run %d has finished", key, event.run_id)
            case RunCanceled():
                log.info("flow %s: run %d was canceled", key, event.run_id)
            case RunSkipped(reason="overlap"):
                message = "flow %s: already running (run %s), skipped"
                log.debug(message, key, event.blocked_by)
            case RunSkipped():
                log.debug("flow %s: skipped: %s", key, event.reason)
            case RunRetrying():
                log.warning("flow %s: run %d will be retried: %s", key, event.run_id, event.error)
            case RunFailed():
                log.error(
                    "flow %s: run %d failed: %s", key, event.run_id, event.error or event.reason
                )
            case _:
                return

    def on_begun(self, attempt: Attempt, actor: str) -> None:
        """Log that a Ray cluster has started a run, with the name of its actor."""
        if attempt.schedule_id in self._keys:
            self._log_launched(attempt.schedule_id, attempt.run_id, actor)

    def _log_launched(self, schedule_id: str, run_id: int, name: str) -> None:
        cause = self._triggers.get(run_id) or "timer"
        message = "flow %s: run %d is launched as %s, triggered by %s: %s"
        log.info(message, self._keys[schedule_id], run_id, self._user, cause, name)

    # -- API calls

    async def status(self, service: Service) -> TimerStatus:
        """Return the status of the timer, as far as the caller may see it."""
        sees_all = service.caller.only_owner in (None, self._user)
        return await status_of(service, own=self._service, sees_all=sees_all)

    async def schedules(self, service: Service) -> list[ScheduleStatus]:
        """Return the flows that the caller may see, by key, with the invalid ones."""
        sees_all = service.caller.only_owner in (None, self._user)
        found = await schedules_of(service)
        invalid = self._problems.by_id if sees_all else {}
        listed = [each for each in found if each.key not in invalid]
        wrong = [
            ScheduleStatus(key, schedule_id_of(key), invalid=why) for key, why in invalid.items()
        ]
        return sorted([*listed, *wrong], key=lambda each: each.key)

    async def run(self, service: Service, schedule_id: str) -> RunRow:
        """Start a flow now, even if it is running."""
        _check_may_operate(service)
        await find(service, schedule_id)
        return await service.start(schedule_id)

    async def pause(self, service: Service, schedule_id: str, *, paused: bool) -> ScheduleStatus:
        """Pause a flow, or resume it from now on; exposes do not change that."""
        _check_may_operate(service)
        await find(service, schedule_id)
        if paused:
            await service.pause(schedule_id)
        else:
            await service.resume(schedule_id)
        row = await find(service, schedule_id)
        return _status(row, await running_of(service))

    async def keys(self, service: Service) -> dict[str, str]:
        """Return the keys of scheduled flows, by schedule id."""
        return {
            each.schedule_id: key_of(each)
            for each in await service.schedules(ScheduleFilter(SOURCE))
        }

    async def runs(self, service: Service, *, limit: int) -> list[RunRow]:
        """Return the latest runs of flows."""
        return await service.runs(RunFilter(source=SOURCE), limit=limit)


async def status_of(
    service: Service, *, own: Service | None = None, sees_all: bool = True
) -> TimerStatus:
    """Return the status of the timer for the caller; `own` may read the timer's own record."""
    row = await (own or service).kept(KEPT, NAME)
    record = None if row is None else msgspec.convert(row.body, TimerRecord)
    total = len(await service.schedules(ScheduleFilter(source=SOURCE)))
    active = len(await service.runs(RunFilter(status=Status.STARTED, source=SOURCE), limit=10_000))
    return TimerStatus(
        TIMER_NAME,
        None if record is None else record.pid,
        record is not None,
        0 if record is None else record.interval / 1000,
        "" if record is None else record.user,
        "" if record is None or not sees_all else record.exposes,
        active,
        total,
        {} if record is None or not sees_all else record.invalid,
        "" if record is None or not sees_all else record.panel,
        [] if record is None else await _problems(own or service, record, sees_all=sees_all),
    )


async def _problems(service: Service, record: TimerRecord, *, sees_all: bool) -> list[str]:
    """Return what keeps flows from running or being read; owners see no paths or URLs."""
    found = []
    if record.unread:
        found.append(f"exposes: {record.unread if sees_all else 'cannot be read'}")
    if record.panel_problem:
        found.append(f"panel: {record.panel_problem if sees_all else 'cannot be used'}")
    elif not record.panel and not await _needs_no_panel(service):
        found.append(NO_PANEL)
    return found


async def _needs_no_panel(service: Service) -> bool:
    """Return whether another node has a panel, or every flow has an entry point."""
    seen = await service.overview()
    if any("flow" in node.offers for node in seen.nodes if node.alive_until > seen.now):
        return True
    targets = [
        _fields_of(row).get("run") for row in await service.schedules(ScheduleFilter(source=SOURCE))
    ]
    return bool(targets) and all(isinstance(each, dict) and "python" in each for each in targets)


async def schedules_of(service: Service) -> list[ScheduleStatus]:
    """Return the scheduled flows of a store that the caller may see, by id."""
    running = await running_of(service)
    rows = await service.schedules(ScheduleFilter(source=SOURCE))
    return [_status(row, running) for row in rows]


async def find(service: Service, schedule_id: str) -> ScheduleRow:
    """Return the schedule of a flow, or raise NoSuchSchedule."""
    row = await service.find(schedule_id)
    if row is None or row.source != SOURCE:
        flows = await service.schedules(ScheduleFilter(source=SOURCE), limit=1000)
        raise NoSuchSchedule(schedule_id, [each.schedule_id for each in flows])
    return row


async def running_of(service: Service) -> dict[str, list[int]]:
    """Return the started runs of flows, by schedule."""
    which = RunFilter(status=Status.STARTED, source=SOURCE)
    found: dict[str, list[int]] = {}
    for run in await service.runs(which, limit=MOST_RUNNING):
        found.setdefault(run.schedule_id, []).append(run.run_id)
    return found


def _check_may_operate(service: Service) -> None:
    """Refuse a caller without the scope, before anything is read."""
    if not service.caller.may("operate"):
        problem = f"this needs the scope operate, and {service.caller.name} has less"
        raise NotAllowed(problem, hint="a token with scope operate")


def key_of(row: ScheduleRow) -> str:
    """Return the key of the flow that a schedule launches, or its id."""
    run = _fields_of(row).get("run")
    flow = run.get("flow") if isinstance(run, Mapping) else None
    key = flow.get("key") if isinstance(flow, Mapping) else None
    return key if isinstance(key, str) else row.schedule_id


def _fields_of(row: ScheduleRow) -> Mapping[str, object]:
    try:
        found = msgspec.json.decode(row.definition)
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}


def _status(row: ScheduleRow, running: Mapping[str, list[int]]) -> ScheduleStatus:
    fields = _fields_of(row)
    run = fields.get("run")
    inputs = run.get("inputs") if isinstance(run, Mapping) else None
    result = None
    if row.last_run_at is not None:
        result = "FAILED" if row.consecutive_failures else "SUCCESS"
    return ScheduleStatus(
        key_of(row),
        row.schedule_id,
        cron=str(fields.get("cron", "")) or None,
        timezone=str(fields.get("timezone", "UTC")),
        enabled=fields.get("enabled", True) is True,
        paused=row.paused,
        inputs=dict(inputs) if isinstance(inputs, Mapping) else {},
        user=row.user_id,
        next_run=None if row.next_run_at is None else rfc3339(row.next_run_at),
        last_run=None if row.last_run_at is None else rfc3339_ms(row.last_run_at),
        last_result=result,
        running=running.get(row.schedule_id, []),
    )
