"""Cases confirmed by several independent implementations, 29 of them by the real Debian cron daemon."""

import json
from datetime import datetime

import pytest

from onbeat import InvalidSchedule, cron
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.zones import zone
from tests.conftest import DATA
from tests.timing import LIMIT, cpu_seconds

CASES = json.loads((DATA / "calendar.json").read_text())


@pytest.mark.parametrize("case", CASES["vectors"], ids=lambda case: case["id"])
def test_ticks_are_those_confirmed_by_other_implementations(case):
    trigger = cron(case["expr"], tz=case["tz"])
    ticks = trigger.upcoming(datetime.fromisoformat(case["after_utc"]), len(case["expected_utc"]))
    assert [rfc3339(tick) for tick in ticks] == case["expected_utc"]
    where = zone(case["tz"])
    assert [rfc3339(tick, where) for tick in ticks] == case["expected_local"]


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: repr(case["expr"]))
def test_invalid_expressions_of_other_implementations_are_refused_quickly(case):
    with pytest.raises(InvalidSchedule) as refused:
        cron(case["expr"])
    assert cpu_seconds(lambda: cron(case["expr"])) < LIMIT
    assert refused.value.field.startswith("cron")
    assert refused.value.problem
    assert refused.value.hint


def test_number_of_calendar_cases_is_complete():
    assert (len(CASES["vectors"]), len(CASES["refused"])) == (94, 33)
