"""Durations: `90m`, `1h30m`, `2w`, `1mo`, or ISO 8601 (`PT90M`, `P1M`).

Seconds, minutes and hours are elapsed time. Days, weeks, months and years are calendar time: their
length in seconds depends on the dates. A `Duration` keeps months, days and seconds apart.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

from onbeat.errors import InvalidSchedule, quote_value

LONGEST = 100 * 366 * 86_400

_PLAIN = re.compile(
    r"(?:(\d+)y)? ?(?:(\d+)mo)? ?(?:(\d+)w)? ?(?:(\d+)d)? ?(?:(\d+)h)? ?(?:(\d+)m)? ?(?:(\d+)s)?",
    re.ASCII,
)
_ISO = re.compile(
    r"P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Duration:
    """A number of calendar months, of days and of seconds."""

    months: int = 0
    days: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        """Return the canonical text: the largest units that fit evenly, so `5400s` is `90m`."""
        parts = []
        if self.months:
            parts.append(f"{self.months // 12}y" if self.months % 12 == 0 else f"{self.months}mo")
        if self.days:
            parts.append(f"{self.days // 7}w" if self.days % 7 == 0 else f"{self.days}d")
        if self.seconds or not parts:
            size, unit = next(
                (n, u) for n, u in ((3600, "h"), (60, "m"), (1, "s")) if self.seconds % n == 0
            )
            parts.append(f"{self.seconds // size}{unit}" if self.seconds else "0s")
        return "".join(parts)

    @property
    def elapsed(self) -> int:
        """The length in seconds, with days of 24 hours. Months have no fixed length."""
        if self.months:
            hint = "days, hours, minutes or seconds"
            raise InvalidSchedule("", f"{quote_value(str(self))} has no fixed length", hint=hint)
        return self.days * 86_400 + self.seconds


def parse_duration(value: object) -> Duration:
    """Return the duration of a text or a timedelta; anything else is refused."""
    if isinstance(value, Duration):
        return value
    if isinstance(value, timedelta):
        found = Duration(seconds=value // timedelta(seconds=1)) if value >= timedelta(0) else None
        if found is None or value.microseconds:
            problem = f"{quote_value(str(value))} is not a length in whole seconds"
            raise InvalidSchedule("", problem, hint="such as 90m")
        return _bounded(found, value)
    if type(value) is int:
        number = quote_value(value)
        hint = f"{number}s, {number}m, {number}h or {number}d"
        raise InvalidSchedule("", f"the number {number} has no unit", hint=hint)
    text = value.strip() if isinstance(value, str) and len(value) <= 100 else ""
    match = _PLAIN.fullmatch(text) or _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        hint = "such as 45s, 90m, 1h30m, 1d or PT90M, the largest unit first"
        raise InvalidSchedule("", f"{quote_value(value)} is not a duration", hint=hint)
    years, months, weeks, days, hours, minutes, seconds = (
        int(part or 0) for part in match.groups()
    )
    seconds += hours * 3600 + minutes * 60
    return _bounded(Duration(years * 12 + months, weeks * 7 + days, seconds), value)


def _bounded(found: Duration, value: object) -> Duration:
    if found.months * 31 * 86_400 + found.days * 86_400 + found.seconds > LONGEST:
        raise InvalidSchedule("", f"{quote_value(value)} is too long", hint="at most 98 years")
    return found
