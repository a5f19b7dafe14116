"""Which instants are ticks of a definition, found on the wall clock: slow and simple.

Of triggers that follow events (`after`, `startup`) and of `manual` nothing is known: None.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
LONGEST_GAP = 3 * 3600


def length(text):
    """Return how many milliseconds `1h30m` or `1500ms` is."""
    if text.endswith("ms"):
        return int(text[:-2])
    return 1000 * sum(int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)([smhd])", text))


def is_tick(definition, t):
    """Return whether an instant is a tick, or None if that depends on events."""
    zone = ZoneInfo(definition.get("timezone", "UTC"))
    if "cron" in definition:
        return _cron(definition["cron"], zone, t)
    if "calendar" in definition:
        fields = definition["calendar"]
        texts = [str(fields.get("minute", "0" if "hour" in fields else "*"))]
        texts += [str(fields.get("hour", "*")), "*", "*", "*"]
        return _cron(" ".join(texts), zone, t)
    if "every" in definition:
        step, start = length(definition["every"]) // 1000, definition.get("start_at")
        anchor = 0 if start is None else instant(start)
        return t >= anchor and (t - anchor) % step == 0
    if "at" in definition:
        given = definition["at"]
        return t in {instant(text) for text in ([given] if isinstance(given, str) else given)}
    return None


def instant(text):
    """Return the seconds of an instant with an offset."""
    return int(datetime.fromisoformat(text).timestamp())


def milliseconds(text):
    """Return the milliseconds of an instant such as `2026-01-01T12:00:00.007Z`."""
    found = datetime.fromisoformat(text)
    return round((found - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))


def _cron(text, zone, t):
    if t % 60:
        return False
    wall = datetime.fromtimestamp(t, zone)
    if re.match(r"\*", text) or re.match(r"\S+ \*", text):  # wild: every real minute that matches
        return _matches(text, wall)
    if _matches(text, wall) and not wall.fold:
        return True
    before = datetime.fromtimestamp(t - 60, zone)
    jumped = (wall.utcoffset() - before.utcoffset()).total_seconds()
    if not 0 < jumped <= LONGEST_GAP:
        return False
    skipped = wall.replace(tzinfo=None, fold=0)
    minutes = range(1, int(jumped) // 60 + 1)
    return any(_matches(text, skipped - timedelta(minutes=n)) for n in minutes)


def _matches(text, wall):
    minutes, hours, days, months, weekdays = _parsed(text)
    day = wall.isoweekday() % 7
    return (
        wall.minute in minutes and wall.hour in hours and wall.day in days
        and wall.month in months and day in weekdays
    )  # fmt: skip


@lru_cache
def _parsed(text):
    found = []
    for part, (low, high) in zip(text.split(), LIMITS, strict=True):
        numbers = set()
        for each in part.split(","):
            span, _, step = each.partition("/")
            first, _, last = span.partition("-")
            bounds = (low, high) if span == "*" else (int(first), int(last or first))
            numbers |= set(range(bounds[0], bounds[1] + 1, int(step or 1)))
        found.append(frozenset(numbers))
    found[4] = frozenset(n % 7 for n in found[4])
    return tuple(found)
