"""Events of an iCalendar file (RFC 5545) as items of `exclude`: days, spans, yearly days."""

import re
from datetime import date, timedelta
from pathlib import Path

from onbeat.core.durations import parse_duration
from onbeat.core.instants import canonical_time, resolve, rfc3339
from onbeat.core.zones import zone
from onbeat.errors import InvalidSchedule, naming, shown
from onbeat.sources.files import read_text

_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?", re.ASCII)


def ics_items(path: Path) -> tuple[str, ...]:
    """Read a file, or refuse it."""
    with naming("ics"):
        return parse_ics(read_text(path))


def parse_ics(text: str) -> tuple[str, ...]:
    """Return what the events of an iCalendar text cover."""
    found: list[str] = []
    event: dict[str, tuple[str, str]] | None = None
    for line in re.sub(
        r"\r?\n[ \t]", "", text
    ).splitlines():  # a line that begins with a blank goes on
        name, _, value = line.partition(":")
        name = name.upper().partition(";")[0]
        if (name, value.upper()) == ("BEGIN", "VEVENT"):
            event = {}
        elif (name, value.upper()) == ("END", "VEVENT") and event is not None:
            found.append(_item(event))
            event = None
        elif event is not None:
            original = line.partition(":")[0].partition(";")[2]
            event[name] = (original, value.strip())
    if not found:
        raise InvalidSchedule("", "there is no event in it", hint="BEGIN:VEVENT ... END:VEVENT")
    return tuple(found)


def _item(event: dict[str, tuple[str, str]]) -> str:
    parameters, start = event.get("DTSTART", ("", ""))
    first = _TIME.fullmatch(start)
    if first is None:
        raise InvalidSchedule(
            "ics", f"{shown(start)} is no DTSTART", hint="20261225 or 20261225T090000Z"
        )
    if "RRULE" in event:
        return _yearly(event["RRULE"][1], start)
    if first[4] is None:
        return _days(start, event.get("DTEND", ("", ""))[1])
    begins = _moment(parameters, start)
    if "DTEND" in event:
        return f"{begins}..{_moment(*event['DTEND'])}"
    length = parse_duration(event["DURATION"][1]).elapsed if "DURATION" in event else 0
    if not begins.endswith("Z"):
        raise InvalidSchedule("", f"{shown(start)} has a length but no zone", hint="a DTEND")
    return f"{begins}..{rfc3339(resolve(begins, zone('UTC')) + length)}"


def _yearly(rule: str, start: str) -> str:
    if rule.upper() != "FREQ=YEARLY" or len(start) != 8:
        hint = "whole days with RRULE:FREQ=YEARLY, or events written out"
        raise InvalidSchedule("", f"the rule {shown(rule)} is not supported", hint=hint)
    return f"{start[4:6]}-{start[6:8]}"


def _days(start: str, end: str) -> str:
    first = _date(start)
    last = _date(end) - timedelta(days=1) if end else first  # DTEND is the day after
    return first.isoformat() if last <= first else f"{first}..{last}"


def _date(text: str) -> date:
    try:
        return date(int(text[:4]), int(text[4:6]), int(text[6:8]))
    except ValueError:
        raise InvalidSchedule("", f"{shown(text)} is no date", hint="such as 20261225") from None


def _moment(parameters: str, text: str) -> str:
    """Return a DTSTART or DTEND in one spelling: UTC, or local if it has no zone."""
    match = _TIME.fullmatch(text)
    if match is None or match[4] is None:
        raise InvalidSchedule(
            "ics", f"{shown(text)} is no date and time", hint="such as 20261225T090000Z"
        )
    year, month, day, hour, minute, second, utc = match.groups()
    moment = canonical_time(f"{year}-{month}-{day}T{hour}:{minute}:{second}{utc}")
    named = re.search(r'TZID="?([^";:]+)', parameters)
    return rfc3339(resolve(moment, zone(named[1]))) if named else moment
