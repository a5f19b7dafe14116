"""The status of timers: for tables, for JSON, and for the state file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onbeat.core.runs.phase import Status
from onbeat.core.time.instants import rfc3339_ms
from onbeat.ports.rows import RunFilter, RunRow, ScheduleRow
from onbeat.service.service import Service
from onbeat.systems.services.state import TimerHistory
from onbeat.systems.services.timers import ServiceTimer, Timers

HEADING = ("ID", "TARGET", "ENABLED", "LAST-RUN", "NEXT-RUN", "EXIT", "MISS")
DISABLED = "Timer subsystem is disabled (experimental feature)"
NO_HISTORY = TimerHistory()


@dataclass(frozen=True, slots=True)
class TimerState:
    """The status of a timer. Instants are milliseconds."""

    timer_id: str
    target: str
    is_enabled: bool
    is_persistent: bool
    history: TimerHistory
    next_run_at: int | None = None
    retry_at: int | None = None
    retry_attempt: int = 0  # failed attempts of a run that waits for a retry
    is_paused: bool = False
    failed_for: str | None = None  # the reason of the failure, without an exit code

    def fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        history = self.history
        return {
            "id": self.timer_id,
            "target": self.target,
            "enabled": self.is_enabled,
            "persistent": self.is_persistent,
            "last_run_at": _instant(history.last_run_at),
            "last_success_at": _instant(history.last_success_at),
            "last_failure_at": _instant(history.last_failure_at),
            "last_exit": history.last_exit,
            "next_run_at": _instant(self.next_run_at),
            "last_miss_at": _instant(history.last_missed_at),
            "miss_reason": history.last_miss_reason,
            "retry_at": _instant(self.retry_at),
            "retry_attempt": self.retry_attempt,
        }

    def cells(self, now: int) -> tuple[str, ...]:
        """Return the cells of a table row, under `HEADING`."""
        history = self.history
        is_enabled = "yes" if self.is_enabled else "no"
        coming = [at for at in (self.next_run_at, self.retry_at) if at is not None]
        return (
            self.timer_id,
            self.target,
            "paused" if self.is_paused else is_enabled,
            relative(history.last_run_at, now),
            relative(min(coming, default=None), now),
            self.failed_for or "-" if history.last_exit is None else str(history.last_exit),
            history.last_miss_reason or "-",
        )


@dataclass(frozen=True, slots=True)
class TimerList:
    """All timers, and why some are invalid."""

    now: int
    timers: tuple[TimerState, ...]
    invalid: Mapping[str, str]

    def fields(self) -> dict[str, object]:
        """Return the fields for JSON."""
        invalid = [{"id": name, "reason": reason} for name, reason in self.invalid.items()]
        return {"timers": [each.fields() for each in self.timers], "invalid": invalid}


async def list_timers(
    service: Service,
    timers: Timers,
    rows: Iterable[ScheduleRow],
    earlier: Mapping[str, TimerHistory],
) -> TimerList:
    """Return the status of timers by their rows, and by their `earlier` history."""
    found = await stored_timers(service, list(rows), earlier, timers)
    states = tuple(
        _state(timer_id, timer, found.get(timer_id), earlier.get(timer_id, NO_HISTORY))
        for timer_id, timer in timers.valid.items()
    )
    return TimerList(service.clock.now(), states, timers.invalid)


@dataclass(frozen=True, slots=True)
class StoredTimer:
    """The state of a timer in the store."""

    row: ScheduleRow
    history: TimerHistory
    retry_at: int | None  # when its run is retried, if it waits for that
    last: RunRow | None  # its last run, as far as it was read

    @property
    def retry_attempt(self) -> int:
        """Failed attempts of a run that waits for a retry."""
        return 0 if self.last is None or self.retry_at is None else self.last.attempt

    @property
    def failed_for(self) -> str | None:
        """Why the last run or its last attempt failed, if it has no exit code."""
        last = self.last
        if last is None or self.history.last_exit is not None:
            return None
        return last.reason if last.status == Status.FAILED or _waits_for_retry(last) else None


async def stored_timers(
    service: Service,
    rows: Sequence[ScheduleRow],
    earlier: Mapping[str, TimerHistory],
    timers: Timers,
) -> dict[str, StoredTimer]:
    """Return the state of timers in the store, by id.

    A schedule has the results of ended runs; unfinished runs are read in addition.
    """
    group_skip = await _group_skips(service, [row.schedule_id for row in rows], timers)
    unfinished = await _unfinished(service) if len(rows) > FEW else None
    now = service.clock.now()
    found: dict[str, StoredTimer] = {}
    for row in rows:
        before = earlier.get(row.schedule_id, NO_HISTORY)
        if unfinished is None:
            last = await _last_of(service, row.schedule_id, STARTED_ONCE)
        elif row.schedule_id in unfinished:
            last = unfinished[row.schedule_id]
        elif row.last_run_at is None or (_is_up_to_date(row, before) and _has_code(row)):
            last = None
        else:
            has_succeeded = row.last_run_at == row.last_success_at
            ended = Status.SUCCESS if has_succeeded else Status.FAILED
            last = await _last_of(service, row.schedule_id, (ended,))
        history, retry_at = _history(row, last, group_skip.get(row.schedule_id), before)
        found[row.schedule_id] = StoredTimer(row, history.since(before, now=now), retry_at, last)
    return found


async def _group_skips(service: Service, ids: Iterable[str], timers: Timers) -> dict[str, RunRow]:
    """Return the last run of each timer that was skipped because another timer used its service."""
    valid = timers.valid
    sharing = [each for each in ids if each in valid and valid[each].schedule.policy.group]
    if len(sharing) > FEW:
        runs = await service.runs(RunFilter(reason=GROUP_FULL), limit=MOST)
    else:
        which = [RunFilter(each, reason=GROUP_FULL) for each in sharing]
        runs = [run for each in which for run in await service.runs(each, limit=1)]
    return {run.schedule_id: run for run in sorted(runs, key=_finished)}


async def busy_timers(service: Service, ids: Sequence[str]) -> set[str]:
    """Return the timers that have unfinished runs."""
    runs = await _all_unfinished(service) if len(ids) > FEW else None
    if runs is not None:
        return {run.schedule_id for run in runs} & set(ids)
    return {
        timer_id
        for timer_id in ids
        for status in UNFINISHED
        if await service.runs(RunFilter(timer_id, status), limit=1)
    }


async def _unfinished(service: Service) -> dict[str, RunRow] | None:
    """Return the latest started run of each timer with unfinished ones; None: too many runs."""
    runs = await _all_unfinished(service)
    if runs is None:
        return None
    return {
        run.schedule_id: run for run in sorted(runs, key=_started) if run.started_at is not None
    }


async def _all_unfinished(service: Service) -> list[RunRow] | None:
    found: list[RunRow] = []
    for status in UNFINISHED:
        runs = await service.runs(RunFilter(status=status), limit=MOST)
        if len(runs) >= MOST:
            return None
        found += runs
    return found


async def _last_of(service: Service, timer_id: str, statuses: Iterable[Status]) -> RunRow | None:
    latest = [
        run
        for status in statuses
        for run in await service.runs(RunFilter(timer_id, status), limit=1)
        if run.started_at is not None
    ]
    return max(latest, key=_started, default=None)


def _is_up_to_date(row: ScheduleRow, earlier: TimerHistory) -> bool:
    """Return whether no run has ended since the recorded start of the last run."""
    if earlier.last_run_at is None or earlier.last_success_at != row.last_success_at:
        return False
    return (earlier.last_failure_at or 0) >= (row.last_failure_at or 0)


def _has_code(row: ScheduleRow) -> bool:
    """Return whether the last run succeeded or has an exit code."""
    return row.last_exit is not None or not row.consecutive_failures


def _history(
    row: ScheduleRow, last: RunRow | None, group_skip: RunRow | None, earlier: TimerHistory
) -> tuple[TimerHistory, int | None]:
    missed_at, miss_reason = _miss_of(row, group_skip)
    started_at = row.last_run_at if earlier.last_run_at is None else earlier.last_run_at
    exit_code, failed_at, retry_at = row.last_exit, row.last_failure_at, None
    if last is not None and _waits_for_retry(last):
        exit_code, failed_at, retry_at = last.exit_code, last.updated_at, last.due_at
        if earlier.last_failure_at is not None and earlier.last_failure_at >= _started(last):
            failed_at = earlier.last_failure_at  # recorded: `updated_at` may have changed since
    history = TimerHistory(
        last_run_at=started_at if last is None else last.started_at,
        last_success_at=row.last_success_at,
        last_failure_at=failed_at,
        last_exit=exit_code,
        last_missed_at=missed_at,
        last_miss_reason=miss_reason,
    )
    return history, retry_at


def _miss_of(row: ScheduleRow, group_skip: RunRow | None) -> tuple[int | None, str | None]:
    """Return when and why a tick was last missed, also because another timer used the service."""
    if group_skip is None or (group_skip.finished_at or 0) < (row.last_missed_at or 0):
        return row.last_missed_at, row.last_miss_reason
    return group_skip.finished_at, "overlap"


def _state(
    timer_id: str, timer: ServiceTimer, found: StoredTimer | None, earlier: TimerHistory
) -> TimerState:
    definition = (timer_id, timer.target, timer.is_enabled, timer.is_persistent)
    if found is None:
        return TimerState(*definition, earlier)
    next_run_at = None if found.row.next_run_at is None else found.row.next_run_at * 1000
    return TimerState(
        *definition,
        found.history,
        next_run_at,
        found.retry_at,
        found.retry_attempt,
        found.row.paused,
        found.failed_for,
    )


def relative(at: int | None, now: int) -> str:
    """Return the distance of an instant: `5m ago`, `in 2h`, or `-` for None."""
    if at is None:
        return "-"
    seconds = abs(at - now) / 1000
    size, unit = next((size, unit) for below, size, unit in UNITS if seconds < below)
    length = f"{round(seconds / size)}{unit}"
    return f"in {length}" if at > now else f"{length} ago"


def _started(run: RunRow) -> int:
    return run.started_at or 0


def _finished(run: RunRow) -> int:
    return run.finished_at or 0


def _waits_for_retry(run: RunRow) -> bool:
    return run.status == Status.ENQUEUED and run.was_tried


def _instant(at: int | None) -> str | None:
    return None if at is None else rfc3339_ms(at)


UNFINISHED = (Status.STARTED, Status.ENQUEUED)
STARTED_ONCE = (*UNFINISHED, Status.SUCCESS, Status.FAILED, Status.CANCELED)
GROUP_FULL = "group_full"  # timers of one service share a group of one place
FEW = 20  # up to this number of timers, runs are read one timer at a time
MOST = 10_000  # runs of all timers that are read together
UNITS = ((60, 1, "s"), (3600, 60, "m"), (86_400, 3600, "h"), (float("inf"), 86_400, "d"))
