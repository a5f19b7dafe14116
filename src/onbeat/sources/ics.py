"""Read the events of an iCalendar file (RFC 5545) as items of `exclude`."""

import re
from datetime import date, timedelta
from pathlib import Path

from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import canonical_time, resolve, rfc3339
from onbeat.core.time.zones import DAY, zone
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.sources.text_files import read_text

Event = dict[str, tuple[str, str]]  # property name -> its parameters and its value

_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?", re.ASCII)


def ics_items(path: Path) -> tuple[str, ...]:
    """Return the items of a file, or refuse it."""
    with in_field("ics"):
        return parse_ics(read_text(path))


def parse_ics(text: str) -> tuple[str, ...]:
    """Return the days and spans of the events in an iCalendar text."""
    items: list[str] = []
    event: Event | None = None
    depth = 0  # of components nested in the event, such as alarms, whose lines are ignored
    for line in re.sub(r"\r?\n[ \t]", "", text).splitlines():  # unfold continued lines
        head, _, value = line.partition(":")
        name, _, parameters = head.partition(";")
        name, value = name.upper(), value.strip()
        if event is None:
            event = {} if (name, value.upper()) == ("BEGIN", "VEVENT") else None
        elif name == "BEGIN":
            depth += 1
        elif name == "END" and depth:
            depth -= 1
        elif name == "END":
            if event.get("STATUS", ("", ""))[1].upper() != "CANCELLED":
                items.append(_item(event))
            event = None
        elif not depth:
            event[name] = (parameters, value)
    if not items:
        raise InvalidSchedule("", "the file has no event", hint="BEGIN:VEVENT ... END:VEVENT")
    return tuple(items)


def _item(event: Event) -> str:
    parameters, start = event.get("DTSTART", ("", ""))
    first = _TIME.fullmatch(start)
    if first is None:
        problem = f"{quote_value(start)} is not a valid DTSTART"
        raise InvalidSchedule("", problem, hint="20261225 or 20261225T090000Z")
    if "RDATE" in event:
        raise InvalidSchedule("", "RDATE is not supported", hint="an event for each date")
    if "RRULE" in event:
        return _yearly(event["RRULE"][1], start)
    length = parse_duration(event["DURATION"][1]).elapsed if "DURATION" in event else None
    if first[4] is None:
        return _days(start, event.get("DTEND", ("", ""))[1], length)
    begins = _date_time(parameters, start)
    if "DTEND" in event:
        return f"{begins}..{_date_time(*event['DTEND'])}"
    if length is None or not begins.endswith("Z"):
        problem = f"the event at {quote_value(start)} has no DTEND"
        raise InvalidSchedule("", problem, hint="a DTEND; a DURATION needs a DTSTART in UTC")
    return f"{begins}..{rfc3339(resolve(begins, zone('UTC')) + length)}"


def _yearly(rule: str, start: str) -> str:
    if rule.upper() != "FREQ=YEARLY" or len(start) != 8:
        hint = "whole days with RRULE:FREQ=YEARLY, or one event for each date"
        raise InvalidSchedule("", f"the rule {quote_value(rule)} is not supported", hint=hint)
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
        problem = f"{quote_value(text)} is not a date"
        raise InvalidSchedule("", problem, hint="such as 20261225") from None


def _date_time(parameters: str, text: str) -> str:
    """Return a DTSTART or DTEND as a canonical time: UTC, or local if it has no zone."""
    match = _TIME.fullmatch(text)
    if match is None or match[4] is None:
        problem = f"{quote_value(text)} is not a date and time"
        raise InvalidSchedule("ics", problem, hint="such as 20261225T090000Z")
    year, month, day, hour, minute, second, utc = match.groups()
    moment = canonical_time(f"{year}-{month}-{day}T{hour}:{minute}:{second}{utc}")
    named = re.search(r'TZID="?([^";:]+)', parameters, re.IGNORECASE)
    return rfc3339(resolve(moment, zone(named[1]))) if named else moment
