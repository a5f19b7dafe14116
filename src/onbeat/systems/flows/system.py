"""The timer at work: exposes of a panel, and schedules in the store that are as these say.

Every interval all exposes are read and the store is brought in step: what is new is defined, what
was edited is changed, what has vanished is taken away, and what cannot be read stays as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from onbeat.core.runs.run import Status
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.errors import InvalidSchedule, NoSuchRun, NoSuchSchedule, NotAllowed, naming
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
from onbeat.systems.field_names import renamed_errors
from onbeat.systems.flows.config import (
    SOURCE,
    TIMER_NAME,
    WORDS,
    ScheduleStatus,
    TimerStatus,
    schedule_id_of,
)
from onbeat.systems.flows.exposes import ExposeSource, FoundExposes, read_exposes
from onbeat.systems.flows.timer_log import TimerLog, timer_logger

log = timer_logger()

KEPT, NAME = "flows-timer", "timer"  # what is kept of the timer itself, for whoever asks elsewhere
LAUNCHES = "flow-launch"  # what the launcher of flows keeps of each
MOST_RUNNING = 1000  # runs that are told of
NOT_ASKED = "it was not asked yet"
NO_PANEL = "flows_panel names no panel: flows wait for a node that has one"


class TimerMirror(Protocol):
    """Somewhere else that shows the timer: an actor of a cluster, say. The store is the truth."""

    async def update(self, meta: Mapping[str, object]) -> None:
        """Show this from now on: `pid`, `schedules` and `running`. It may fail."""


class TimerRecord(msgspec.Struct, frozen=True):
    """What a timer says of itself."""

    pid: int
    interval: int  # milliseconds
    user: str
    exposes: str
    invalid: dict[str, str]
    panel: str = ""  # its URL; empty: this process has none
    panel_problem: str = ""
    unread: str = ""  # why the exposes cannot be read


LookAtPanel = Callable[[], Awaitable[str]]
"""Return why the panel does not let the timer in, or nothing if it does."""


class FlowTimer:
    """The timer of flows, beside a node: `interval` is in milliseconds."""

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
        """`panel` is its URL: without one, flows wait for a node that has one."""
        self._service, self._source, self._user = service, source, user
        self._interval, self._pid, self._log = interval, pid, timer_log
        self._panel, self._look_at_panel, self._mirrors = panel, look_at_panel, mirrors
        self._keeper = PeriodicTask("flows", self.reconcile, every=interval / 1000)
        self._showing = PeriodicTask("the mirror of the timer", self._show, every=interval / 1000)
        self._looking = PeriodicTask("the panel of flows", self._see_panel, every=interval / 1000)
        self._panel_problem = NOT_ASKED if look_at_panel is not None else ""
        self._triggers: dict[int, str] = {}  # by what runs were triggered that are being launched
        self._found = FoundExposes()
        self._keys: dict[str, str] = {}  # of schedules that are there, by id
        self._told: dict[str, str] = {}
        self._unread = ""
        self._alone = asyncio.Lock()

    # -- beside a node

    async def begin(self) -> None:
        """Have the store be as the exposes say, and keep it so."""
        try:
            self._log.open()
        except OSError as broken:
            log.warning("the log file of the timer cannot be written: %s", broken)
        if not self._panel:
            log.warning("%s", NO_PANEL)
        await self.reconcile()
        self._keeper.begin()
        self._showing.begin()
        if self._look_at_panel is not None:
            self._looking.begin()
            self._looking.wake()

    def heard(self, at: int, events: Sequence[Event]) -> None:  # noqa: ARG002 - the events say when
        """Tell of what became of flows, and have it shown elsewhere."""
        own = [each for each in events if getattr(each, "schedule_id", "") in self._keys]
        for event in own:
            self._tell_of(event)
        if own:
            self._showing.wake()

    async def end(self) -> None:
        """Stop. What was scheduled stays in the store, for the next start."""
        await self._keeper.end()
        await self._looking.abandon()
        await self._showing.abandon()
        await self._service.forget(KEPT, NAME)
        log.info("timer stopped with pid=%d", self._pid)
        self._log.close()

    async def reconcile(self) -> None:
        """Read all exposes, and bring the store in step; what cannot be read leaves it as it is."""
        async with self._alone:
            try:
                rows = await asyncio.to_thread(self._source.read)
                self._unread = ""
            except InvalidSchedule as refused:
                if str(refused) != self._unread:
                    log.warning("flows stay as they are: %s", refused)
                self._unread = str(refused)
                self._keys |= {each.schedule_id: key_of(each) for each in await self._there()}
            else:
                found = await asyncio.to_thread(read_exposes, rows, self._source.parse)
                await self._take_up(found)
            await self._keep()
            await self._tidy()
            await self._show()

    async def _take_up(self, found: FoundExposes) -> None:
        await self._check(found)
        there = {row.schedule_id: row for row in await self._there()}
        gone = [
            each
            for each in there.keys() - found.right.keys()
            if each.partition("/")[0] not in found.unread
        ]
        schedules = [each.schedule for each in found.right.values()]
        await self._service.define(schedules, source=SOURCE, user_id=self._user, remove=gone)
        for each in sorted(gone):
            log.info("%s is scheduled no longer", key_of(there[each]))
        for schedule_id, scheduled in found.right.items():
            if schedule_id not in there:
                log.info("%s is scheduled: %s", scheduled.key, scheduled.config.cron)
        for key, why in found.invalid.items():
            if self._told.get(key) != why:
                log.warning("%s is left out: %s", key, why)
        self._told, self._found = dict(found.invalid), found
        self._keys = {each: scheduled.key for each, scheduled in found.right.items()}
        self._keys |= {each: key_of(there[each]) for each in there.keys() - set(gone)}

    async def _check(self, found: FoundExposes) -> None:
        """Have those be invalid that nothing could launch, or whose ids are others'."""
        ids = list(found.right)
        known = await self._service.schedules(ScheduleFilter(ids=ids)) if ids else []
        for row in known:
            if row.source != SOURCE:
                scheduled = found.right.pop(row.schedule_id)
                problem = f"{row.schedule_id!r} is a schedule that is no flow's"
                found.refuse(scheduled.key, InvalidSchedule("url", problem, hint="another name"))
        for schedule_id, scheduled in list(found.right.items()):
            try:
                with naming("schedule"), renamed_errors(WORDS):
                    self._service.check(scheduled.schedule)
            except InvalidSchedule as refused:
                del found.right[schedule_id]
                found.refuse(scheduled.key, refused)

    async def _keep(self) -> None:
        invalid = dict(self._told)
        kept = TimerRecord(
            self._pid, self._interval, self._user, str(self._source.path), invalid,
            self._panel, self._panel_problem, self._unread,
        )  # fmt: skip
        body = msgspec.to_builtins(kept)
        row = await self._service.kept(KEPT, NAME)
        if row is None or row.body != body:
            await self._service.keep(KEPT, NAME, body)

    async def _see_panel(self) -> None:
        """Log in to the panel, and keep what came of that for `status`."""
        assert self._look_at_panel is not None, "it was begun"
        problem = await self._look_at_panel()
        if problem == self._panel_problem:
            return
        if problem:
            log.warning("the panel cannot be used: %s", problem)
        elif self._panel_problem != NOT_ASKED:
            log.info("the panel at %s can be used again", self._panel)
        self._panel_problem = problem
        async with self._alone:
            await self._keep()

    async def _tidy(self) -> None:
        """Forget launches whose runs are over, however they came to be."""
        for row in await self._service.kept_all(LAUNCHES):
            is_over = True
            with suppress(NoSuchRun):
                is_over = (await self._service.run(int(row.name))).finished_at is not None
            if is_over:
                await self._service.forget(LAUNCHES, row.name)

    async def _there(self) -> list[ScheduleRow]:
        return await self._service.schedules(ScheduleFilter(source=SOURCE))

    # -- elsewhere

    async def mirror(self) -> dict[str, object]:
        """Return what a mirror shows: all of it is read from the store."""
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

    async def _show(self) -> None:
        if not self._mirrors:
            return
        meta = await self.mirror()
        for each in self._mirrors:
            try:
                await each.update(meta)
            except Exception as broken:  # noqa: BLE001 - what only shows must not break what works
                log.warning("the timer cannot be shown elsewhere: %s", broken)

    def _tell_of(self, event: Event) -> None:
        key = self._keys[str(getattr(event, "schedule_id", ""))]
        if isinstance(event, (RunSucceeded, RunCanceled, RunRetrying, RunFailed)):
            self._triggers.pop(event.run_id, None)
        match event:
            case RunStarted():
                self._triggers[event.run_id] = event.triggered_by
                told = "%s: run %d is being launched, triggered by %s"
                log.debug(told, key, event.run_id, event.triggered_by)
            case RunNamed():  # by the panel, which has begun it
                self._tell_launched(event.schedule_id, event.run_id, event.external_id)
            case RunSucceeded():
                log.info("%s: run %d has finished", key, event.run_id)
            case RunCanceled():
                log.info("%s: run %d was canceled", key, event.run_id)
            case RunSkipped(reason="overlap"):
                told = "%s: already running (run %s), skipped"
                log.debug(told, key, event.blocked_by)
            case RunSkipped():
                log.debug("%s: skipped: %s", key, event.reason)
            case RunRetrying():
                log.warning("%s: run %d is tried again: %s", key, event.run_id, event.error)
            case RunFailed():
                log.error("%s: run %d failed: %s", key, event.run_id, event.error or event.reason)
            case _:
                return

    def begun(self, attempt: Attempt, actor: str) -> None:
        """Hear that a Ray cluster has begun a run, in an actor that it calls so."""
        if attempt.schedule_id in self._keys:
            self._tell_launched(attempt.schedule_id, attempt.run_id, actor)

    def _tell_launched(self, schedule_id: str, run_id: int, as_what: str) -> None:
        told, by = "%s: run %d is launched as %s, triggered by %s: %s", self._triggers.get(run_id)
        log.info(told, self._keys[schedule_id], run_id, self._user, by or "timer", as_what)

    # -- for those who ask

    async def status(self, service: Service) -> TimerStatus:
        """Return how the timer stands, for whoever asks."""
        sees_all = service.caller.only_of in (None, self._user)
        return await status_of(service, own=self._service, sees_all=sees_all)

    async def schedules(self, service: Service) -> list[ScheduleStatus]:
        """Return the scheduled flows that whoever asks may see, by key, and what is wrong."""
        sees_all = service.caller.only_of in (None, self._user)
        found = await schedules_of(service)
        invalid = self._told if sees_all else {}
        listed = [each for each in found if each.key not in invalid]
        wrong = [
            ScheduleStatus(key, schedule_id_of(key), invalid=why) for key, why in invalid.items()
        ]
        return sorted([*listed, *wrong], key=lambda each: each.key)

    async def run(self, service: Service, schedule_id: str) -> RunRow:
        """Start a flow now, whatever else of it runs."""
        _check_may_operate(service)
        await find(service, schedule_id)
        return await service.start(schedule_id)

    async def pause(self, service: Service, schedule_id: str, *, paused: bool) -> ScheduleStatus:
        """Let a flow rest, or go on from now; its exposes have no say in that."""
        _check_may_operate(service)
        await find(service, schedule_id)
        if paused:
            await service.pause(schedule_id)
        else:
            await service.resume(schedule_id)
        row = await find(service, schedule_id)
        return _status(row, await running_of(service))

    async def keys(self, service: Service) -> dict[str, str]:
        """Return the keys of scheduled flows, by the id of the schedule."""
        return {
            each.schedule_id: key_of(each)
            for each in await service.schedules(ScheduleFilter(SOURCE))
        }

    async def runs(self, service: Service, *, limit: int) -> list[RunRow]:
        """Return what ran of flows, the latest first."""
        return await service.runs(RunFilter(source=SOURCE), limit=limit)


async def status_of(
    service: Service, *, own: Service | None = None, sees_all: bool = True
) -> TimerStatus:
    """Return how the timer of a store stands, for whoever asks; `own` may read what it says."""
    row = await (own or service).kept(KEPT, NAME)
    kept = None if row is None else msgspec.convert(row.body, TimerRecord)
    total = len(await service.schedules(ScheduleFilter(source=SOURCE)))
    active = len(await service.runs(RunFilter(status=Status.STARTED, source=SOURCE), limit=10_000))
    return TimerStatus(
        TIMER_NAME,
        None if kept is None else kept.pid,
        kept is not None,
        0 if kept is None else kept.interval / 1000,
        "" if kept is None else kept.user,
        "" if kept is None or not sees_all else kept.exposes,
        active,
        total,
        {} if kept is None or not sees_all else kept.invalid,
        "" if kept is None or not sees_all else kept.panel,
        [] if kept is None else await _problems(own or service, kept, sees_all=sees_all),
    )


async def _problems(service: Service, kept: TimerRecord, *, sees_all: bool) -> list[str]:
    """Return what keeps flows from running, or from being read: an owner reads no path or URL."""
    found = []
    if kept.unread:
        found.append(f"exposes: {kept.unread if sees_all else 'they cannot be read'}")
    if kept.panel_problem:
        found.append(f"panel: {kept.panel_problem if sees_all else 'it cannot be used'}")
    elif not kept.panel and not await _needs_no_panel(service):
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
    """Return every scheduled flow of a store that whoever asks may see, by id."""
    running = await running_of(service)
    rows = await service.schedules(ScheduleFilter(source=SOURCE))
    return [_status(row, running) for row in rows]


async def find(service: Service, schedule_id: str) -> ScheduleRow:
    """Return the schedule of a flow, or refuse what is none."""
    row = await service.find(schedule_id)
    if row is None or row.source != SOURCE:
        known = await service.schedules(ScheduleFilter(source=SOURCE), limit=1000)
        raise NoSuchSchedule(schedule_id, [each.schedule_id for each in known])
    return row


async def running_of(service: Service) -> dict[str, list[int]]:
    """Return the runs of flows that are under way, by schedule."""
    which = RunFilter(status=Status.STARTED, source=SOURCE)
    found: dict[str, list[int]] = {}
    for run in await service.runs(which, limit=MOST_RUNNING):
        found.setdefault(run.schedule_id, []).append(run.run_id)
    return found


def _check_may_operate(service: Service) -> None:
    """Refuse whoever may not, before they learn what there is."""
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
    given = _fields_of(row)
    run = given.get("run")
    inputs = run.get("inputs") if isinstance(run, Mapping) else None
    result = None
    if row.last_run_at is not None:
        result = "FAILED" if row.consecutive_failures else "SUCCESS"
    return ScheduleStatus(
        key_of(row),
        row.schedule_id,
        cron=str(given.get("cron", "")) or None,
        timezone=str(given.get("timezone", "UTC")),
        enabled=given.get("enabled", True) is True,
        paused=row.paused,
        inputs=dict(inputs) if isinstance(inputs, Mapping) else {},
        user=row.user_id,
        next_run=None if row.next_run_at is None else rfc3339(row.next_run_at),
        last_run=None if row.last_run_at is None else rfc3339_ms(row.last_run_at),
        last_result=result,
        running=running.get(row.schedule_id, []),
    )
