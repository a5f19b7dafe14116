"""Instants as people write them: RFC 3339, with as many digits of a second as there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat.core.schedule import read_schedule
from onbeat.core.time.instants import canonical_time, parse_instant, parse_instant_ms
from onbeat.errors import InvalidSchedule

AT = "2026-12-01T09:00:00"
SECOND = 1_796_115_600


@given(st.text("0123456789", min_size=1, max_size=60))
def test_a_fraction_may_have_any_number_of_digits_and_is_rounded_down(digits):
    for zone in ("Z", "z", "+00:00"):
        text = f"{AT}.{digits}{zone}"
        assert parse_instant(text) == SECOND
        assert parse_instant_ms(text) == SECOND * 1000 + int(digits[:3].ljust(3, "0"))
    assert canonical_time(f"{AT}.{digits}") == AT
    assert canonical_time(f"{AT}.{digits}Z") == f"{AT}Z"


@pytest.mark.parametrize("text", [f"{AT}.Z", f"{AT},5Z", "2026-12-01T09:00.5Z", f"{AT}.5.5Z"])
def test_invalid_fraction_of_a_second_is_refused(text):
    for parse in (parse_instant, parse_instant_ms):
        with pytest.raises(InvalidSchedule, match="is not a date and time"):
            parse(text)


@pytest.mark.parametrize("field", ["at", "start_at", "end_at"])
def test_every_time_of_a_definition_may_have_a_fraction(field):
    fields = {field: f"{AT}.123456789Z"} | ({} if field == "at" else {"every": "1h"})
    schedule = read_schedule("a", {**fields, "run": {"command": ["true"]}})
    assert f'{AT}Z"' in str(schedule) or AT in str(schedule)
