"""Errors quote the value as typed, and hint at the right form."""

import pytest

from onbeat.core.schedule import read_schedule
from onbeat.errors import InvalidSchedule
from onbeat.launchers.command.launcher import _read
from onbeat.launchers.http.target import read_target
from onbeat.systems.sessions.target import read_prompt

RUN = {"run": {"command": ["true"]}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"cron": "nope * * * *"}, "'nope' is not a minute"),
        ({"cron": "* * *  Nope *"}, "'Nope' is not a month"),
        ({"cron": "0 9 * * mon-nope"}, "'nope' in 'mon-nope'"),
        ({"cron": "* * * * mon#nope"}, "'mon#nope' is not a weekday"),
        ({"calendar": {"day_of_week": "nope"}}, "'nope' is not a day of week"),
        ({"calendar": {"month": ["jan", "nope"]}}, "'nope' is not a month"),
        ({"every": "1h", "within": {"days": "mon-nope"}}, "'nope' in 'mon-nope'"),
    ],
)
def test_error_quotes_the_value_as_typed(fields, told):
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule("a", {**fields, **RUN})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("read", "run", "told"),
    [
        (read_target, {"http": {"url": "https://x.y"}}, 'http: "https://example.com/hook"'),
        (read_target, {"http": "https://x.y", "headers": {"A": ["b"]}}, 'headers: {Accept: "'),
        (_read, {"command": ["a", ["b"]]}, 'command: ["./backup.sh", "--all"]'),
        (_read, {"command": ["a"], "cwd": {"a": 1}}, 'cwd: "/srv/app"'),
        (_read, {"command": ["a"], "env": {"A": ["b"]}}, 'env: {NAME: "value"}'),
        (read_prompt, {"session": {"prompt": ["a"]}}, 'prompt: "Standup for {{ date }}"'),
        (read_prompt, {"session": {"prompt": "a", "url": []}}, 'url: "http://127.0.0.1:3000"'),
    ],
)
def test_value_that_is_not_a_string_gets_a_hint(read, run, told):
    target = read_schedule("a", {"every": "1h", "run": run}).target
    with pytest.raises(InvalidSchedule, match="is not a string") as refused:
        read(target)
    assert told in refused.value.hint


def test_calendar_inside_exclude_gets_the_right_place_as_hint():
    with pytest.raises(InvalidSchedule, match=r"calendars: \{closed: \{ics: dates\.ics\}\}"):
        read_schedule("a", {"every": "1h", "exclude": {"ics": "x.ics"}, **RUN})
