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
def test_the_ticks_are_those_that_others_confirmed(case):
    trigger = cron(case["expr"], tz=case["tz"])
    ticks = trigger.upcoming(datetime.fromisoformat(case["after_utc"]), len(case["expected_utc"]))
    assert [rfc3339(tick) for tick in ticks] == case["expected_utc"]
    where = zone(case["tz"])
    assert [rfc3339(tick, where) for tick in ticks] == case["expected_local"]


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: repr(case["expr"]))
def test_what_others_refuse_or_should_is_refused_at_once(case):
    with pytest.raises(InvalidSchedule) as refused:
        cron(case["expr"])
    assert cpu_seconds(lambda: cron(case["expr"])) < LIMIT
    assert refused.value.field.startswith("cron")
    assert refused.value.problem
    assert refused.value.hint


def test_all_the_cases_are_there():
    assert (len(CASES["vectors"]), len(CASES["refused"])) == (94, 33)
