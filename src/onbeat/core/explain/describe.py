"""Descriptions of triggers: "at 09:00 on Monday to Friday, Europe/Berlin".

A description is made from the compiled values that the engine uses, not from the text of the user.
So it shows what the engine will do.
"""

from collections.abc import Sequence
from itertools import pairwise

from onbeat.core.time import cron
from onbeat.core.time.days import FromEnd, NthWeekday, Special, Workday, bits_of
from onbeat.core.time.durations import Duration
from onbeat.core.time.local_patterns import WallPattern
from onbeat.core.time.zones import date_of
from onbeat.core.triggers.base import AllOf, AnyOf, Minus, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import Exclude, Within, time_of_day
from onbeat.core.triggers.kinds import After, At, Every, LocalPatternTrigger, Manual, Startup

MOST_TIMES = 12  # listed one by one; more are described by their fields

MONTHS = (
    "",
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ORDINALS = ("last", "first", "second", "third", "fourth", "fifth")
_UNITS = (
    ("months", 12, "year"),
    ("months", 1, "month"),
    ("days", 7, "week"),
    ("days", 1, "day"),
    ("seconds", 3600, "hour"),
    ("seconds", 60, "minute"),
    ("seconds", 1, "second"),
)


def describe(trigger: Trigger) -> str:
    """Return the description of `trigger`."""
    match trigger:
        case LocalPatternTrigger():
            return f"{_pattern(trigger.pattern)}, {trigger.pattern.zone.name}"
        case Every():
            return _every(trigger)
        case At():
            times = [_time(time) for time in trigger.at]
            listed = (
                listing(times)
                if len(times) <= MOST_TIMES
                else f"{len(times)} times from {times[0]} to {times[-1]}"
            )
            return f"once at {listed}" + ("" if times[0].endswith("Z") else f", {trigger.timezone}")
        case Startup():
            return f"{_delay(trigger.startup)}each start of the scheduler"
        case After():
            run = f"a run of {trigger.schedule}" if trigger.schedule else "its last run"
            ended = {"success": "succeeded", "failure": "failed", "completion": "ended"}[
                trigger.outcome
            ]
            return f"{_delay(trigger.delay)}{run} {ended}"
        case Manual():
            return "only when started manually"
        case AnyOf():
            return "; or ".join(describe(part) for part in trigger.triggers)
        case AllOf():
            return "; and only when also ".join(describe(part) for part in trigger.triggers)
        case Minus():
            return f"{describe(trigger.trigger)}; but not {describe(trigger.without)}"
        case OpenHours():
            text = describe(trigger.trigger)
            closing = trigger.exclude or trigger.within
            text += _closing(trigger.exclude, trigger.within)
            return (
                text
                if closing is None or closing.timezone in text
                else f"{text}, {closing.timezone}"
            )
        case Bounded():
            return describe(trigger.trigger) + _limits(trigger)
        case _:
            raise TypeError(f"{trigger!r} is of an unknown kind")


def listing(items: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _pattern(pattern: WallPattern) -> str:
    times, days = _times(pattern), _days(pattern)
    if not days and times.startswith("at ") and "every" not in times:
        days = "every day"
    return f"{times} {days}".strip()


def _times(pattern: WallPattern) -> str:
    seconds, minutes = bits_of(pattern.seconds), bits_of(pattern.minutes)
    at_second = f" at second {seconds[0]}" if seconds[0] else ""
    step = _step(minutes, 1440)
    if len(seconds) == 1 and step and len(minutes) > 4:
        size, unit = (step, "minute") if step % 60 else (step // 60, "hour")
        late = f", from minute {minutes[0]}" if minutes[0] else ""
        if unit == "hour" and size == 1 and minutes[0]:
            late = f" at minute {minutes[0]}"
        return f"every {_counted(size, unit)}{late}{at_second}"
    if len(seconds) * len(minutes) <= MOST_TIMES:
        return f"at {listing([time_of_day(m * 60 + s) for m in minutes for s in seconds])}"
    in_hour = bits_of(cron.parse_field(cron.MINUTE, pattern.texts[1]).bits)
    hours = bits_of(cron.parse_field(cron.HOUR, pattern.texts[2]).bits)
    if len(seconds) == 1:
        text = _field(in_hour, "minute") + at_second
    else:
        text = _field(seconds, "second")
        if len(in_hour) < 60:
            text += f" in {_plural('minute', in_hour)}"
        elif not text.startswith("every"):
            text += " of every minute"
    is_often = text.startswith("every") or text.endswith("every minute")
    if len(hours) == 24:
        return text if is_often else f"{text} of every hour"
    return f"{text} {'during' if is_often else 'of'} {_plural('hour', hours)}"


def _field(values: list[int], unit: str) -> str:
    step = _step(values, 60)
    return (
        f"every {_counted(step, unit)}"
        if step and values[0] == 0
        else f"at {_plural(unit, values)}"
    )


def _plural(unit: str, values: list[int]) -> str:
    return f"{unit}{'s' * (len(values) > 1)} {_runs(values)}"


def _days(pattern: WallPattern) -> str:
    days = pattern.days
    dates, weekdays, months = bits_of(days.dates), bits_of(days.weekdays), bits_of(days.months)
    month = "the month" if len(months) == 12 else _runs(months, MONTHS)
    on_dates = days.special_dates or len(dates) < 31
    parts = []
    if on_dates:
        listed = [_plural("day", dates)] if dates else []
        listed += [_special(special) for special in days.special_dates]
        parts.append(f"on {listing(listed)} of {month}")
    if days.special_weekdays or len(weekdays) < 7:
        listed = [_runs(sorted((day - 1) % 7 for day in weekdays), WEEKDAYS)] if weekdays else []
        special = listing([_special(special) for special in days.special_weekdays])
        parts.append("on " + " and ".join(listed + [f"{special} of {month}"] * bool(special)))
    text = (
        " or ".join(parts)
        if days.either
        else " if it is ".join([parts[0], *(p[3:] for p in parts[1:])])
        if parts
        else ""
    )
    if len(months) < 12 and f"of {month}" not in text:
        text += f" in {month}"
    return (text + (f" in {_runs(sorted(days.years))}" if days.years is not None else "")).strip()


def _special(special: Special) -> str:
    match special:
        case FromEnd(0):
            return "the last day"
        case FromEnd(days):
            return (
                "the day before the last" if days == 1 else f"the day {days} days before the last"
            )
        case Workday(0):
            return "the last workday"
        case Workday(date):
            return f"the workday nearest to day {date}"
        case NthWeekday(weekday, nth):
            return f"the {_ORDINALS[nth]} {WEEKDAYS[(weekday - 1) % 7]}"


def _every(trigger: Every) -> str:
    size, unit = next(
        (getattr(trigger.every, part) // n, unit)
        for part, n, unit in _UNITS
        if getattr(trigger.every, part) and getattr(trigger.every, part) % n == 0
    )
    text = f"every {_counted(size, unit)}"
    if trigger.start_at is not None:
        text += f" from {_time(trigger.start_at)}"
    if trigger.every.seconds:
        local = trigger.start_at is not None and not trigger.start_at.endswith("Z")
        return f"{text}, {trigger.timezone}" if local else text
    if trigger.start_at is None:
        anchor = {"day": "", "week": " on Thursday", "month": " on day 1", "year": " on January 1"}[
            unit
        ]
        text += f"{anchor} at 00:00"
        if size > 1:
            text += f", counted from {date_of(0)}"
    return f"{text}, {trigger.timezone}"


def _closing(exclude: Exclude | None, within: Within | None) -> str:
    text = ""
    if exclude is not None:
        items = list(exclude.items)
        text += f", except {listing(items) if len(items) <= 5 else f'{len(items)} dates'}"
    if within is not None:
        days = bits_of(cron.parse_field(cron.DAY_OF_WEEK, within.days).bits)
        on = (
            ""
            if len(days) == 7
            else f" on {_runs(sorted((day - 1) % 7 for day in days), WEEKDAYS)}"
        )
        whole = within.hours == ("00:00-24:00",)
        text += ", only" + (
            "" if whole else f" {listing([h.replace('-', ' to ') for h in within.hours])}"
        )
        text += on
        text += ", otherwise at the next opening" if within.outside == "move" else ""
    return text


def _limits(trigger: Bounded) -> str:
    text = f", from {_time(trigger.start_at)}" if trigger.start_at else ""
    text += f", until {_time(trigger.end_at)}" if trigger.end_at else ""
    text += f", not in the first {trigger.delay}" if trigger.delay else ""
    return text + (f", {_counted(trigger.max_runs, 'run')} at most" if trigger.max_runs else "")


def _step(values: list[int], size: int) -> int | None:
    """Return the step if the values divide `size` evenly, as 0, 15, 30, 45 divide 60."""
    step = size // len(values)
    return (
        step
        if step * len(values) == size and values == list(range(values[0], size, step))
        else None
    )


def _counted(n: int, unit: str) -> str:
    return unit if n == 1 and unit != "run" else f"{n} {unit}{'s' * (n != 1)}"


def _delay(duration: Duration) -> str:
    return f"{duration} after " if duration != Duration() else "right after "


def _time(text: str) -> str:
    return text.replace("T", " ").removesuffix(":00").replace(":00Z", "Z")


def _runs(values: list[int], names: Sequence[str] | None = None) -> str:
    """Return the values: three or more in a row as `a to b`, long even series as `a, b, ... z`."""
    named = [str(value) if names is None else names[value] for value in values]
    steps = {b - a for a, b in pairwise(values)}
    if len(values) > 6 and len(steps) == 1 and steps != {1}:
        return f"{named[0]}, {named[1]}, ... {named[-1]}"
    text, start = [], 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[i - 1] + 1:
            text += [f"{named[start]} to {named[i - 1]}"] if i - start > 2 else named[start:i]
            start = i
    return listing(text)
