"""Functions that build triggers: `cron("0 9 * * MON-FRI", tz="Europe/Berlin")`.

Each function takes the limits that can be set on any trigger (`start_at`, `end_at`, `delay`,
`max_runs`, `exclude`, `within`) as keywords, and triggers combine: `a | b`, `a & b`, `a - b`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import TypedDict, Unpack

from onbeat.core.time.cron import FIELDS, as_typed
from onbeat.core.time.durations import Duration, parse_duration
from onbeat.core.time.instants import canonical_time
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import NO_CALENDARS, Calendars, Exclude, Within, time_of_day
from onbeat.core.triggers.kinds import (
    MOST_TIMES,
    After,
    At,
    Calendar,
    Cron,
    Daily,
    Dst,
    Every,
    Startup,
)
from onbeat.core.triggers.past import Ending
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

Length = str | timedelta | Duration
Time = str | datetime
MOST_VALUES = 100  # in one field of a calendar
FieldValue = int | str | Sequence[int | str]


class BoundFields(TypedDict, total=False):
    """The limits that can be set on any trigger."""

    start_at: Time | None
    end_at: Time | None
    delay: Length | None
    max_runs: int | None
    exclude: str | date | Sequence[str | date]
    within: str | Sequence[str] | Mapping[str, object] | None


def cron(
    expr: str, tz: str = "UTC", *, dst: Dst = "shift", key: str = "", **limits: Unpack[BoundFields]
) -> Trigger:
    """Return the trigger of a cron expression. `H` in it hashes `key`, the schedule's id."""
    return limited(Cron(expr, tz, dst, key), tz, limits)


def calendar(tz: str = "UTC", *, dst: Dst = "shift", **fields: FieldValue) -> Trigger:
    """Return a trigger that ticks where all fields match: `calendar(hour=9, day_of_week="MON")`."""
    limits = {name: fields.pop(name) for name in list(fields) if name in LIMITS}
    return limited(calendar_of(fields, tz, dst), tz, limits)  # type: ignore[arg-type]


def every(
    length: Length, tz: str = "UTC", *, dst: Dst = "shift", **limits: Unpack[BoundFields]
) -> Trigger:
    """Return a trigger on a grid through `start_at`, or through the start of 1970."""
    start_at = limits.pop("start_at", None)
    return limited(
        Every(_length("every", length), tz, _time("start_at", start_at), dst), tz, limits
    )


def at(*times: Time, tz: str = "UTC", **limits: Unpack[BoundFields]) -> Trigger:
    """Return a trigger that ticks once at each of the times. Local times are in `tz`."""
    if len(times) > MOST_TIMES:
        raise InvalidSchedule("at", f"{len(times)} times", hint=f"at most {MOST_TIMES}")
    with in_field("at"):
        texts = tuple(map(canonical_time, times))
    return limited(At(texts, tz), tz, limits)


def daily(
    when: str | time, tz: str = "UTC", *, dst: Dst = "shift", **limits: Unpack[BoundFields]
) -> Trigger:
    """Return a trigger that ticks once a day: `daily("17:00")`."""
    text = (
        time_of_day(when.hour * 3600 + when.minute * 60 + when.second)
        if isinstance(when, time)
        else when
    )
    return limited(Daily(text, tz, dst), tz, limits)


def startup(length: Length = "0s", tz: str = "UTC", **limits: Unpack[BoundFields]) -> Trigger:
    """Return a trigger that ticks once per start of the scheduler, `length` after it."""
    return limited(Startup(_length("startup", length)), tz, limits)


def after(
    outcome: Ending,
    length: Length = "0s",
    *,
    schedule: str | None = None,
    tz: str = "UTC",
    **limits: Unpack[BoundFields],
) -> Trigger:
    """Return a trigger that ticks `length` after a run, of this or another schedule, ended."""
    return limited(After(outcome, _length("after", length), schedule), tz, limits)


def calendar_of(fields: Mapping[str, object], tz: str, dst: Dst) -> Calendar:
    """Return the calendar of these fields. Each is a number, a cron field, or a list of these."""
    names = [field.name for field in FIELDS]
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if name not in names:
            field = f"calendar.{quote_value(name).strip(chr(39))}"
            raise InvalidSchedule(field, "no field has this name", hint=did_you_mean(name, names))
        items = list(value) if isinstance(value, (list, tuple, range)) else [value]
        is_plain = all(type(item) is int or (isinstance(item, str) and item) for item in items)
        if not is_plain or not 1 <= len(items) <= MOST_VALUES:
            hint = f"9, MON-FRI, or a list of {MOST_VALUES} at most"
            raise InvalidSchedule(
                f"calendar.{name}", f"{quote_value(value)} is not a valid value", hint=hint
            )
        text = ",".join(str(item).strip().upper() for item in items)
        texts[name] = re.sub(r"(?<!\d)0+(?=\d)", "", text, flags=re.ASCII)  # 09 is 9
    try:
        return Calendar(**texts, timezone=tz, dst=dst)
    except InvalidSchedule as refused:
        typed = fields.get(refused.field.rpartition(".")[2], "")
        parts = typed if isinstance(typed, (list, tuple)) else (typed,)
        raise as_typed(refused, ",".join(map(str, parts))) from None


def limited(
    trigger: Trigger, tz: str, limits: BoundFields, calendars: Calendars = NO_CALENDARS
) -> Trigger:
    """Return `trigger` with these limits applied, or unchanged if there are none.

    Closed times are applied after the bounds, so that a tick outside the bounds moves no other. The
    number of runs is applied last.
    """
    if not limits:
        return trigger
    for name in limits.keys() - LIMITS:
        hint = (
            "did you mean 'tz'?" if "zone" in name else did_you_mean(name, {"tz", "dst", *LIMITS})
        )
        raise TypeError(f"no keyword is called {name!r}: {hint}")
    exclude = _exclude(limits.get("exclude"), tz, calendars)
    within = _within(limits.get("within"), tz)
    start_at = _time("start_at", limits.get("start_at"))
    end_at = _time("end_at", limits.get("end_at"))
    delay, max_runs = limits.get("delay"), limits.get("max_runs")
    if exclude is not None or within is not None:
        if start_at is not None or end_at is not None:
            trigger = Bounded(trigger, tz, start_at, end_at)
        trigger, start_at, end_at = OpenHours(trigger, exclude, within), None, None
    length = None if delay is None else _length("delay", delay)
    outer = Bounded(trigger, tz, start_at, end_at, length, max_runs)
    return trigger if outer == Bounded(trigger, tz) else outer


def _exclude(value: object, tz: str, calendars: Calendars) -> Exclude | None:
    if value is None:
        return None
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    texts = [item.isoformat() if isinstance(item, date) else item for item in items]
    return Exclude(tuple(texts), tz, calendars) if texts else None  # type: ignore[arg-type]


def _within(value: object, tz: str) -> Within | None:
    """Read `09:00-17:00`, a list of these, or `{hours, days, outside}`."""
    if value is None:
        return None
    fields = dict(value) if isinstance(value, Mapping) else {"hours": value}
    unknown = fields.keys() - {"hours", "days", "outside"}
    if unknown:
        field = f"within.{min(map(str, unknown))}"
        raise InvalidSchedule(field, "no field has this name", hint="known: hours, days, outside")
    hours, days = fields.get("hours", "00:00-24:00"), fields.get("days", "*")
    if isinstance(days, (list, tuple)):
        days = ",".join(map(str, days))
    texts = tuple(hours) if isinstance(hours, (list, tuple)) else (hours,)
    return Within(texts, str(days), fields.get("outside", "skip"), tz)  # type: ignore[arg-type]


def _time(name: str, value: Time | None) -> str | None:
    with in_field(name):
        return None if value is None else canonical_time(value)


def _length(name: str, value: Length) -> Duration:
    with in_field(name):
        return parse_duration(value)


LIMITS = frozenset(BoundFields.__annotations__)
