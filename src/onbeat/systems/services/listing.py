"""What there is to say of timers: for tables, for JSON, and for the file that keeps it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onbeat.core.instants import rfc3339_ms
from onbeat.core.runs import Status
from onbeat.records import RunRow, ScheduleRow, WhichRuns
from onbeat.service import Service
from onbeat.systems.services.state import Kept
from onbeat.systems.services.timers import Timer, Timers

HEADING = ("ID", "TARGET", "ENABLED", "LAST-RUN", "NEXT-RUN", "EXIT", "MISS")
DISABLED = "Timer subsystem is disabled (experimental feature)"
NOTHING_KEPT = Kept()


@dataclass(frozen=True, slots=True)
class Standing:
    """How a timer stands. Instants are milliseconds."""

    timer_id: str
    target: str
    is_enabled: bool
    is_persistent: bool
    kept: Kept
    next_run_at: int | None = None
    retry_at: int | None = None

    def fields(self) -> dict[str, object]:
        """Return the same for JSON."""
        kept = self.kept
        return {
            "id": self.timer_id,
            "target": self.target,
            "enabled": self.is_enabled,
            "persistent": self.is_persistent,
            "last_run_at": _told(kept.last_run_at),
            "last_success_at": _told(kept.last_success_at),
            "last_failure_at": _told(kept.last_failure_at),
            "last_exit": kept.last_exit,
            "next_run_at": _told(self.next_run_at),
            "last_miss_at": _told(kept.last_missed_at),
            "miss_reason": kept.last_miss_reason,
            "retry_at": _told(self.retry_at),
        }

    def cells(self, now: int) -> tuple[str, ...]:
        """Return the same for a table, under `HEADING`."""
        kept = self.kept
        return (
            self.timer_id,
            self.target,
            "yes" if self.is_enabled else "no",
            relative(kept.last_run_at, now),
            relative(self.next_run_at, now),
            "-" if kept.last_exit is None else str(kept.last_exit),
            kept.last_miss_reason or "-",
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """All timers, and what is wrong with those that are."""

    now: int
    timers: tuple[Standing, ...]
    invalid: Mapping[str, str]

    def fields(self) -> dict[str, object]:
        """Return the same for JSON."""
        invalid = [{"id": name, "reason": reason} for name, reason in self.invalid.items()]
        return {"timers": [each.fields() for each in self.timers], "invalid": invalid}


async def list_timers(
    service: Service, timers: Timers, rows: Iterable[ScheduleRow], kept: Mapping[str, Kept]
) -> Listing:
    """Return how timers stand by their rows, or by what is `kept` of those that have none yet."""
    known = {row.schedule_id: row for row in rows}
    found = [
        await stands(service, timer_id, timer, known.get(timer_id), kept.get(timer_id))
        for timer_id, timer in timers.right.items()
    ]
    return Listing(service.clock.now(), tuple(found), timers.invalid)


async def stands(
    service: Service, timer_id: str, timer: Timer, row: ScheduleRow | None, kept: Kept | None
) -> Standing:
    """Return how one timer stands."""
    found = kept or NOTHING_KEPT
    next_run_at, retry_at = None, None
    if row is not None:
        found, retry_at = await kept_of(service, row)
        next_run_at = None if row.next_run_at is None else row.next_run_at * 1000
    return Standing(
        timer_id, timer.target, timer.is_enabled, timer.is_persistent, found, next_run_at, retry_at
    )


async def kept_of(service: Service, row: ScheduleRow) -> tuple[Kept, int | None]:
    """Return what is kept of a timer, and when it is tried again if it is to be.

    A schedule tells of runs that have ended; a timer also of one that goes on, or is to go on.
    """
    latest = [
        run
        for status in STARTED_ONCE
        for run in await service.runs(WhichRuns(row.schedule_id, status), limit=1)
        if run.started_at is not None
    ]
    last = max(latest, key=lambda run: run.started_at or 0, default=None)
    started_at = row.last_run_at if last is None else last.started_at
    exit_code, failed_at, retry_at = row.last_exit, row.last_failure_at, None
    if last is not None and _waits_again(last):
        exit_code, failed_at, retry_at = last.exit_code, last.updated_at, last.due_at
    kept = Kept(
        last_run_at=started_at,
        last_success_at=row.last_success_at,
        last_failure_at=failed_at,
        last_exit=exit_code,
        last_missed_at=row.last_missed_at,
        last_miss_reason=row.last_miss_reason,
    )
    return kept, retry_at


def relative(at: int | None, now: int) -> str:
    """Return how far off an instant is: `5m ago`, `in 2h`, or `-` if there is none."""
    if at is None:
        return "-"
    seconds = abs(at - now) / 1000
    size, unit = next((size, unit) for below, size, unit in UNITS if seconds < below)
    length = f"{round(seconds / size)}{unit}"
    return f"in {length}" if at > now else f"{length} ago"


def _waits_again(run: RunRow) -> bool:
    return run.status == Status.ENQUEUED and run.attempt > 0


def _told(at: int | None) -> str | None:
    return None if at is None else rfc3339_ms(at)


STARTED_ONCE = (Status.STARTED, Status.ENQUEUED, Status.SUCCESS, Status.FAILED, Status.CANCELED)
UNITS = ((60, 1, "s"), (3600, 60, "m"), (86_400, 3600, "h"), (float("inf"), 86_400, "d"))
