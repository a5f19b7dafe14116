"""Events of an iCalendar file become items of `exclude`."""

import pytest

from onbeat import InvalidSchedule
from onbeat.sources.ics import parse_ics


def event(*lines):
    return "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR"])


@pytest.mark.parametrize(
    ("lines", "item"),
    [
        (["DTSTART;VALUE=DATE:20261225"], "2026-12-25"),
        (["DTSTART;VALUE=DATE:20261225", "DTEND;VALUE=DATE:20261226"], "2026-12-25"),
        (["DTSTART;VALUE=DATE:20261224", "DTEND;VALUE=DATE:20261227"], "2026-12-24..2026-12-26"),
        (["DTSTART;VALUE=DATE:20200501", "RRULE:FREQ=YEARLY"], "05-01"),
        (["DTSTART:20261225T090000Z", "DTEND:20261225T120000Z"], "2026-12-25T09:00:00Z..2026-12-25T12:00:00Z"),
        (["DTSTART:20261225T090000Z", "DURATION:PT90M"], "2026-12-25T09:00:00Z..2026-12-25T10:30:00Z"),
        (["DTSTART;TZID=Europe/Berlin:20261225T090000", "DTEND;TZID=Europe/Berlin:20261225T120000"], "2026-12-25T08:00:00Z..2026-12-25T11:00:00Z"),
        (["DTSTART:20261225T090000", "DTEND:20261225T120000"], "2026-12-25T09:00:00..2026-12-25T12:00:00"),
        (["DTSTART;VALUE=DATE:20261224", "DURATION:P3D"], "2026-12-24..2026-12-26"),
        (["DTSTART:20261225T090000Z", "DURATION:PT4H", "BEGIN:VALARM", "DURATION:PT15M", "END:VALARM"], "2026-12-25T09:00:00Z..2026-12-25T13:00:00Z"),
        (["DTSTART;tzid=Europe/Berlin:20261225T090000", "DTEND:20261225T120000Z"], "2026-12-25T08:00:00Z..2026-12-25T12:00:00Z"),
        (["SUMMARY:Christmas", " goes on", "DTSTART;VALUE=DATE:2026", " 1225"], "2026-12-25"),
    ],
)  # fmt: skip
def test_event_becomes_an_item_of_exclude(lines, item):
    assert parse_ics(event(*lines)) == (item,)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["SUMMARY:x"], "'' is not a valid DTSTART"),
        (["DTSTART:christmas"], "'christmas' is not a valid DTSTART"),
        (["DTSTART;VALUE=DATE:20261325"], "'20261325' is not a date"),
        (["DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=WEEKLY;BYDAY=MO"], "'FREQ=WEEKLY;BYDAY=MO' is not supported"),
        (["DTSTART:20261225T090000Z", "DTEND:20261225"], "is not a date and time"),
        (["DTSTART;TZID=Nowhere:20261225T090000", "DTEND:20261225T120000Z"], "no zone is called 'Nowhere'"),
        (["DTSTART:20261225T090000", "DURATION:PT90M"], "has no DTEND"),
        (["DTSTART:20261225T090000Z"], "has no DTEND"),
        (["DTSTART;VALUE=DATE:20261225", "RDATE:20270101"], "RDATE is not supported"),
    ],
)  # fmt: skip
def test_invalid_event_is_refused(lines, problem):
    with pytest.raises(InvalidSchedule, match=problem):
        parse_ics(event(*lines))


def test_a_file_without_events_is_refused():
    with pytest.raises(InvalidSchedule, match="the file has no event"):
        parse_ics("BEGIN:VCALENDAR\nEND:VCALENDAR")


def test_cancelled_event_is_ignored():
    text = (
        event("DTSTART;VALUE=DATE:20261225")
        + "\r\n"
        + event("DTSTART;VALUE=DATE:20261226", "STATUS:CANCELLED")
    )
    assert parse_ics(text) == ("2026-12-25",)
