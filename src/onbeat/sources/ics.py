"""Events of an iCalendar file (RFC 5545) as items of `exclude`: days, spans, yearly days."""

import re
from datetime import date, timedelta
from pathlib import Path

from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import canonical_time, resolve, rfc3339
from onbeat.core.time.zones import DAY, zone
from onbeat.errors import InvalidSchedule, naming, shown
from onbeat.sources.text_files import read_text

Event = dict[str, tuple[str, str]]  # the parameters and the value of each line, by its name

_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?", re.ASCII)


def ics_items(path: Path) -> tuple[str, ...]:
    """Read a file, or refuse it."""
    with naming("ics"):
        return parse_ics(read_text(path))


def parse_ics(text: str) -> tuple[str, ...]:
    """Return what the events of an iCalendar text cover."""
    found: list[str] = []
    event: Event | None = None
    inside = 0  # components within the event, such as its alarms, whose lines are their own
    for line in re.sub(r"\r?\n[ \t]", "", text).splitlines():  # a line with a blank first goes on
        head, _, value = line.partition(":")
        name, _, parameters = head.partition(";")
        name, value = name.upper(), value.strip()
        if event is None:
            event = {} if (name, value.upper()) == ("BEGIN", "VEVENT") else None
        elif name == "BEGIN":
            inside += 1
        elif name == "END" and inside:
            inside -= 1
        elif name == "END":
            if event.get("STATUS", ("", ""))[1].upper() != "CANCELLED":
                found.append(_item(event))
            event = None
        elif not inside:
            event[name] = (parameters, value)
    if not found:
        raise InvalidSchedule("", "there is no event in it", hint="BEGIN:VEVENT ... END:VEVENT")
    return tuple(found)


def _item(event: Event) -> str:
    parameters, start = event.get("DTSTART", ("", ""))
    first = _TIME.fullmatch(start)
    if first is None:
        raise InvalidSchedule(
            "", f"{shown(start)} is no DTSTART", hint="20261225 or 20261225T090000Z"
        )
    if "RDATE" in event:
        raise InvalidSchedule("", "RDATE is not supported", hint="an event for each date")
    if "RRULE" in event:
        return _yearly(event["RRULE"][1], start)
    length = parse_duration(event["DURATION"][1]).elapsed if "DURATION" in event else None
    if first[4] is None:
        return _days(start, event.get("DTEND", ("", ""))[1], length)
    begins = _moment(parameters, start)
    if "DTEND" in event:
        return f"{begins}..{_moment(*event['DTEND'])}"
    if length is None or not begins.endswith("Z"):
        raise InvalidSchedule("", f"the event of {shown(start)} has no end", hint="a DTEND")
    return f"{begins}..{rfc3339(resolve(begins, zone('UTC')) + length)}"


def _yearly(rule: str, start: str) -> str:
    if rule.upper() != "FREQ=YEARLY" or len(start) != 8:
        hint = "whole days with RRULE:FREQ=YEARLY, or events written out"
        raise InvalidSchedule("", f"the rule {shown(rule)} is not supported", hint=hint)
    return f"{start[4:6]}-{start[6:8]}"


def _days(start: str, end: str, length: int | None) -> str:
    first = _date(start)
    days = (_date(end) - first).days if end else (length or DAY) // DAY  # DTEND is the day after
    last = first + timedelta(days=max(days, 1) - 1)
    return first.isoformat() if last == first else f"{first}..{last}"


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
    named = re.search(r'TZID="?([^";:]+)', parameters, re.IGNORECASE)
    return rfc3339(resolve(moment, zone(named[1]))) if named else moment
