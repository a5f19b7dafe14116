"""The ticks of the triggers in the scripts, found by walking the clock: slow, but obviously correct.

A wild cron ticks at every real minute whose wall time matches; a fixed time once for each day: in a
fold the first time, in a gap at the first instant after it.
"""

import re
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import product
from zoneinfo import ZoneInfo

from tests.week.script import DAYS, MINUTE, seconds

WEEKDAYS = [day.upper() for day in DAYS]


def ticks_between(fields, first, last):
    """Return the ticks later than `first`, up to `last`."""
    zone = ZoneInfo(fields["timezone"])
    if "every" in fields:
        step = seconds(fields["every"])
        found = range((first // step + 1) * step, last + 1, step)
    elif "at" in fields:
        found = {first_pass(datetime.fromisoformat(text), zone) for text in fields["at"]}
    elif "daily" in fields:
        hour, minute = fields["daily"].split(":")
        found = fixed_times(f"{minute} {hour} * * *", zone, first, last)
    elif is_wild(fields["cron"]):
        found = wild_times(fields["cron"], zone, first, last)
    else:
        skips = fields.get("dst") == "skip"
        found = fixed_times(fields["cron"], zone, first, last, skips=skips)
    return sorted({t for t in found if first < t <= last and is_allowed(fields, t, zone)})


def is_wild(cron):
    minute, hour, *_ = cron.split()
    return minute.startswith("*") or hour.startswith("*")


def wild_times(cron, zone, first, last):
    for t in range(first - first % MINUTE, last + 1, MINUTE):
        if matches(cron, datetime.fromtimestamp(t, zone)):
            yield t


def fixed_times(cron, zone, first, last, *, skips=False):
    minutes, hours, *_ = parsed(cron)
    day = datetime.fromtimestamp(first, zone).replace(tzinfo=None, fold=0, hour=0, minute=0)
    day = day.replace(second=0) - timedelta(days=1)
    while first_pass(day, zone) <= last:
        for hour, minute in product(hours, minutes):
            wall = day.replace(hour=hour, minute=minute)
            if matches(cron, wall) and not (skips and is_in_gap(wall, zone)):
                yield first_pass(wall, zone)
        day += timedelta(days=1)


def first_pass(wall, zone):
    """Return the first instant with this local time, or the first instant after the gap that skips it."""
    t = int(wall.replace(tzinfo=zone, fold=0).timestamp())
    if is_in_gap(wall, zone):  # the local time is already later: return to the transition
        while shown(t - MINUTE, zone) > wall:
            t -= MINUTE
    return t


def is_in_gap(wall, zone):
    return shown(wall.replace(tzinfo=zone, fold=0).timestamp(), zone) != wall


def shown(t, zone):
    """Return the local time."""
    return datetime.fromtimestamp(t, zone).replace(tzinfo=None, fold=0)


def matches(cron, wall):
    """Return whether all fields match: no script restricts both the day of month and of week."""
    minutes, hours, days, months, weekdays = parsed(cron)
    is_time = wall.minute in minutes and wall.hour in hours
    return is_time and wall.day in days and wall.month in months and wall.weekday() in weekdays


@lru_cache
def parsed(cron):
    *times, weekdays = cron.split()
    found = [numbers(text, last) for text, last in zip(times, (59, 23, 31, 12), strict=True)]
    if weekdays == "*":
        return *found, range(7)
    low, high = (WEEKDAYS.index(name) for name in weekdays.split("-"))
    return *found, range(low, high + 1)


def numbers(text, last):
    """Return the values of `*/20`, `1-3`, `8-18/2`, `20,50` or `5`, up to `last`."""
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        bounds = (0, last) if span == "*" else (int(low), int(high or low))
        found |= set(range(bounds[0], bounds[1] + 1, int(step or 1)))
    return frozenset(found)


def is_allowed(fields, t, zone):
    wall = datetime.fromtimestamp(t, zone)
    if wall.date().isoformat() in fields.get("exclude", ()):
        return False
    if "within" not in fields:
        return True
    opens, closes = re.fullmatch(r"(\d\d:\d\d)-(\d\d:\d\d)", fields["within"]).groups()
    return opens <= wall.strftime("%H:%M") < closes
