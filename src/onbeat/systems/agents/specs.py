"""Timers of agents: `ScheduleSpec`, and the `TimerTick` of each fire.

All times are UTC and whole seconds. A spec is immutable and checked when it is created; how often a
single date fires is decided by its trigger.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, time, timedelta

from pydantic import BaseModel, ConfigDict, Field

from onbeat.core.time.instants import next_whole_second, rfc3339
from onbeat.core.triggers import build
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.kinds import MOST_TIMES
from onbeat.errors import InvalidSchedule

MOST_REPEATS = 2**31
LONGEST = timedelta(days=98 * 365)
YEARS = range(2, 9999)  # a zone offset must not leave the range of datetime


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """When a timer fires: exactly one of `interval`, `at` and `cron`.

    `after` is the minimum delay after the agent was first defined, `max_repeats` the maximum number
    of fires. A time is daily, a datetime is a single date; without a zone it is UTC.
    """

    interval: timedelta | None = None
    at: time | datetime | None = None
    cron: str | None = None
    after: timedelta | None = None
    max_repeats: int | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.interval, self.at, self.cron)) != 1:
            raise ValueError("Exactly one of 'interval', 'at', or 'cron' must be specified")
        self._check_lengths()
        repeats = self.max_repeats
        if repeats is not None:
            if type(repeats) is not int:
                raise ValueError(f"max_repeats must be a whole number, not {repeats!r}")
            if repeats <= 0:
                raise ValueError("max_repeats must be > 0")
            if repeats > (MOST_TIMES if isinstance(self.at, datetime) else MOST_REPEATS):
                raise ValueError(f"max_repeats must be smaller: {repeats} is too large")
        if self.cron is not None:
            _check_cron(self.cron)
        try:
            self.trigger(anchor=0)
        except InvalidSchedule as refused:
            raise ValueError(str(refused)) from None

    def _check_lengths(self) -> None:
        for name in ("interval", "after"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, timedelta):
                raise ValueError(f"{name} must be a timedelta, not {value!r}")
        if self.after is not None and self.after < timedelta(0):
            raise ValueError("after must be >= 0 seconds")
        if self.after is not None and self.after > LONGEST:
            raise ValueError(f"after must be {LONGEST.days} days at most, not {self.after}")
        if self.interval is not None and self.interval <= timedelta(0):
            raise ValueError("interval must be > 0 seconds")
        for name in ("interval", "after"):
            value = getattr(self, name)
            if value is not None and value % timedelta(seconds=1):
                raise ValueError(f"{name} must be whole seconds, not {value}")
        if self.at is not None and not isinstance(self.at, time | datetime):
            raise ValueError(f"at must be a time or a datetime, not {self.at!r}")
        if isinstance(self.at, datetime) and self.at.year not in YEARS:
            years = f"the years {YEARS[0]} to {YEARS[-1]}"
            raise ValueError(f"at must be in {years}, not {self.at}")
        if isinstance(self.at, time):
            if self.at.tzinfo is not None and self.at.utcoffset() != timedelta(0):
                raise ValueError(f"at must be a time in UTC, not in {self.at.tzinfo}")
            if self.at.microsecond:
                raise ValueError(f"at must be a whole second of the day, not {self.at}")

    @property
    def instant(self) -> int | None:
        """The second of a single date, rounded up; None otherwise."""
        if not isinstance(self.at, datetime):
            return None
        return next_whole_second(self.at if self.at.tzinfo else self.at.replace(tzinfo=UTC))

    def trigger(self, *, anchor: int) -> Trigger:
        """Return the trigger for an agent that was first defined just before `anchor`.

        An interval starts there, plus `after`. A single date fires once, or `max_repeats` times in
        consecutive seconds.
        """
        limits = build.BoundFields()
        if self.max_repeats is not None:
            limits["max_runs"] = self.max_repeats
        first = anchor + (self.after or timedelta(0)) // timedelta(seconds=1)
        if self.interval is not None:
            limits["start_at"] = rfc3339(first)
            return build.every(self.interval, **limits)
        if self.instant is not None:
            start = max(self.instant, first) if self.after else self.instant
            return build.at(*(rfc3339(start + n) for n in range(self.max_repeats or 1)))
        if self.after:
            limits["delay"] = self.after
        if self.cron is not None:
            return build.cron(self.cron, **limits)
        assert isinstance(self.at, time), "__post_init__ checked it"
        return build.daily(self.at.replace(tzinfo=None), **limits)

    def as_fields(self) -> dict[str, object]:
        """Return the given fields as strings and numbers, for a tick."""
        return dict(self._fields())

    def _fields(self) -> Iterator[tuple[str, object]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield field.name, value if isinstance(value, int) else str(value)


class TimerTick(BaseModel):
    """One fire of a timer. Engines read it only through `AgentContext`."""

    model_config = ConfigDict(frozen=True)

    timer_name: str
    fire_time: datetime
    iteration: int = 0
    schedule_spec: dict[str, object] = Field(default_factory=dict)


def _check_cron(text: object) -> None:
    """Refuse anything but a string with five fields; the core checks their contents."""
    if not isinstance(text, str):
        raise ValueError(f"cron must be a string, not {text!r}")  # noqa: TRY004 - as the others
    found = len(text.split())
    if found != 5:
        hint = "minute hour day_of_month month day_of_week, in UTC"
        raise ValueError(f"cron must have 5 fields, not {found}: {text!r} ({hint})")
