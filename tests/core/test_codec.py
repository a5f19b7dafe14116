"""Triggers as fields: round trips and errors."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat import InvalidSchedule, after, at, calendar, cron, daily, every, startup
from onbeat.core.triggers.base import AnyOf
from onbeat.core.triggers.bounds import Bounded
from onbeat.core.triggers.codec import decode, encode, from_json, to_json
from onbeat.core.triggers.kinds import Manual
from tests.core.test_trigger_laws import triggers

SAMPLES = [
    cron("0 9 * * MON-FRI"),
    cron("30 2 * * *", tz="Europe/Berlin", dst="skip"),
    calendar(minute=0, hour=[9, 17], day_of_week="MON", tz="Europe/Berlin"),
    calendar(day_of_month="L", second=5),
    every("90m"),
    every("1mo", tz="Asia/Tokyo", start_at="2026-01-31T09:00"),
    at("2026-12-01T09:00", tz="Europe/Berlin"),
    at("2026-12-01T09:00Z", "2026-12-02T09:00Z"),
    daily("17:00", tz="America/New_York"),
    startup(),
    startup("30s"),
    Manual(),
    after("success", "30m"),
    after("completion"),
    after("failure", "1h", schedule="load"),
    cron("0 9 * * *") | after("success", "24h"),
    cron("0 9 * * *", tz="Europe/Berlin") & cron("0 7,8 * * *"),
    cron("0 9 * * *") - (cron("0 9 1 * *") | cron("0 9 2 * *")),
    cron(
        "0 9 * * *",
        tz="Europe/Berlin",
        exclude=["12-25", "2026-07-01..2026-07-14"],
        max_runs=5,
        delay="10m",
    ),
    cron(
        "0 * * * *",
        tz="Europe/Berlin",
        within={"hours": ["08:00-12:00", "13:00-17:00"], "days": "MON-FRI", "outside": "move"},
    ),
    every("5m", start_at="2026-01-01T00:00Z", end_at="2026-02-01T00:00", tz="Asia/Tokyo"),
    decode(
        {
            "timezone": "Asia/Tokyo",
            "max_runs": 2,
            "any": [{"daily": "09:00", "timezone": "UTC"}, {"daily": "10:00"}],
        }
    ),
    (cron("0 9 * * *", tz="Asia/Tokyo") | daily("10:00", max_runs=3)) - at("2026-12-24T09:00Z"),
]


@pytest.mark.parametrize("trigger", SAMPLES, ids=lambda trigger: to_json(trigger).decode())
def test_a_trigger_survives_its_fields_and_json(trigger):
    assert decode(encode(trigger)) == trigger
    assert from_json(to_json(trigger)) == trigger
    assert encode(decode(encode(trigger))) == encode(trigger)


@given(triggers())
def test_any_trigger_survives_its_fields(case):
    trigger, t = case
    again = from_json(to_json(trigger))
    assert again == trigger
    assert to_json(again) == to_json(trigger)
    assert again.next_after(t) == trigger.next_after(t)


def test_canonical_form_has_one_spelling_and_no_defaults():
    assert encode(decode({"cron": " 0 9  * * mon-fri", "timezone": "UTC", "dst": "shift"})) == {
        "cron": "0 9 * * MON-FRI"
    }
    assert encode(decode({"every": "5400s"})) == {"every": "90m"}
    assert encode(decode({"at": ["2026-12-01 10:00+01:00"]})) == {"at": "2026-12-01T09:00:00Z"}
    assert encode(decode({"calendar": {"hour": ["09"], "minute": "00"}})) == {
        "calendar": {"hour": 9, "minute": 0}
    }
    assert encode(decode({"after": {"success": "30m"}})) == {
        "after": {"outcome": "success", "delay": "30m"}
    }


def test_equal_triggers_are_encoded_to_equal_bytes():
    one = decode({"cron": "0 9 * * *", "timezone": "Asia/Tokyo", "max_runs": 2})
    two = decode({"max_runs": 2, "timezone": "Asia/Tokyo", "cron": "0 9 * * *"})
    assert to_json(one) == to_json(two)


def test_parts_have_the_zone_of_the_whole_unless_they_name_their_own():
    made = decode(
        {
            "timezone": "Asia/Tokyo",
            "any": [{"daily": "09:00"}, {"daily": "09:00", "timezone": "UTC"}],
        }
    )
    assert made == AnyOf((daily("09:00", tz="Asia/Tokyo"), daily("09:00")))


def test_hash_in_a_cron_uses_the_key():
    fields = {"cron": "H H * * *"}
    assert decode(fields, key="a") == cron("H H * * *", key="a")
    assert encode(decode(fields, key="a")) == fields
    with pytest.raises(InvalidSchedule, match="requires a schedule id"):
        decode(fields)


def test_named_calendars_are_resolved_and_their_names_kept():
    fields = {"cron": "0 9 * * *", "exclude": ["company"]}
    made = decode(fields, calendars={"company": ("2026-01-02", "01-03")})
    assert encode(made) == fields
    assert made.next_after(1_767_258_000) == 1_767_258_000 + 3 * 86_400
    assert made != decode(fields, calendars={"company": ("2026-01-02",)})
    with pytest.raises(InvalidSchedule, match=r"no calendar is called 'company' \(known: work\)"):
        decode(fields, calendars={"work": ()})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "no trigger (one of cron, calendar, every, at, daily, startup, after, manual, any, all, minus)"),
        ({"cron": "* * * * *", "every": "5m"}, "2 triggers: cron, every (one; `any` holds several)"),
        ({"corn": "* * * * *"}, "corn: no field has this name (did you mean 'cron'?)"),
        ({"cron": "* * * * *", "timezon": "UTC"}, "timezon: no field has this name (did you mean 'timezone'?)"),
        ({"cron": 5}, 'cron: 5 is not a string (such as "0 9 * * MON-FRI")'),
        ({"calendar": "daily"}, "calendar: 'daily' is not a mapping ({hour: 9, day_of_week: MON})"),
        ({"every": 90}, "every: the number 90 has no unit (90s, 90m, 90h or 90d)"),
        ({"daily": 1020}, 'daily: 1020 is not a time of day (such as "17:00", in quotes)'),
        ({"after": "success"}, "after: 'success' is not an outcome ({success: 30m} or {schedule: other, outcome: success})"),
        ({"after": {"succes": "1m"}}, "after.succes: no field has this name (did you mean 'success'?)"),
        ({"after": {"success": "1m", "failure": "1m"}}, None),
        ({"after": {"schedule": "x"}}, None),
        ({"after": {"outcome": "success", "schedule": 5}}, "after.schedule: 5 is not the id of a schedule (a string)"),
        ({"any": {"cron": "* * * * *"}}, None),
        ({"any": [{"cron": "0 9 * * *"}]}, "any: 1 part (2 to 100)"),
        ({"any": [{"cron": "0 9 * * *"}, {"cron": "60 * * * *"}]}, "any[1].cron.minute: '60' is not a minute (0 to 59)"),
        ({"minus": [{"cron": "0 9 * * *"}]}, "minus: 1 part ([what, without what])"),
        ({"cron": "0 9 * * *", "exclude": {"a": 1}}, "exclude: {'a': 1} is not a date (2026-12-25, 12-25, 2026-12-24..2026-12-31, or the name of a calendar)"),
        ({"startup": True}, "startup: True is not a duration (startup: 0s is immediately at the start, 30s is 30 seconds after it)"),
        ("daily", "'daily' is not a trigger (fields, such as every: 90m)"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_trigger_fields_are_refused(fields, said):
    with pytest.raises(InvalidSchedule) as refused:
        decode(fields)
    assert said is None or str(refused.value) == said


@pytest.mark.parametrize(
    "trigger",
    [
        Bounded(
            cron("0 9 * * *", tz="Europe/Berlin"), "America/New_York", start_at="2026-01-01T00:00"
        ),
        Bounded(Bounded(cron("0 9 * * *"), max_runs=3), max_runs=5),
    ],
)
def test_trigger_that_fields_cannot_represent_is_refused(trigger):
    with pytest.raises(InvalidSchedule, match="it is set twice"):
        encode(trigger)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"manual": False}, "manual: False is not true"),
        ({"manual": 1}, "manual: 1 is not true"),
        ({"startup": "0s", "timezone": "Mars"}, "timezone: no zone is called 'Mars'"),
        ({"any": [{"startup": "0s"}, {"startup": "1s"}], "timezone": ["x"]}, "timezone: no zone"),
        ({"at": "2026-12-01T09:00", "dst": "bogus"}, "dst: 'bogus' is not a valid value"),
        ({"calendar": {1: 2}}, "calendar.1: no field has this name"),
        ({"every": 10**5000}, "the number <int> has no unit"),
        ({"every": "0" * 98 + "1mo"}, "is not a duration"),
        ({10**5000: 1}, "no field has this name"),
        ({"a\nb": 1}, r"a\\nb: no field has this name"),
        ({"cron": "H * * * *\ud800"}, "is not allowed"),
        ({"at": "9999-12-31T23:00", "timezone": "America/New_York"}, "at: .* is outside the calendar"),
        ({"daily": "09:00", "exclude": 5}, "exclude: 5 is not a date"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else "",
)  # fmt: skip
def test_values_of_a_wrong_type_are_refused(fields, said):
    with pytest.raises(InvalidSchedule, match=said):
        decode(fields)


def test_invalid_schedule_can_be_pickled():
    error = InvalidSchedule("cron.minute", "'60' is not a minute", hint="0 to 59")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.hint) == (str(error), error.hint)


def test_hash_key_may_be_any_text():
    assert decode({"cron": "H * * * *"}, key="\ud800").next_after(0) is not None


def test_nesting_of_triggers_is_limited():
    fields = {"cron": "0 9 * * *"}
    for _ in range(100):
        fields = {"any": [fields, {"cron": "0 9 * * *"}]}
    with pytest.raises(InvalidSchedule, match="nested too deep"):
        decode(fields)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", b"\xff", '{"every": 1e999}', '{"cron": NaN}', "\ud800"]
)
def test_invalid_json_is_refused(text):
    with pytest.raises(InvalidSchedule):
        from_json(text)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["cron", "calendar", "every", "at", "daily", "startup", "after", "manual", "any", "all", "minus", "timezone", "dst",
     "start_at", "end_at", "delay", "max_runs", "exclude", "within"]
)  # fmt: skip


@given(st.dictionaries(NAMES, PLAIN, max_size=4), st.dictionaries(NAMES, PLAIN, max_size=2))
def test_any_fields_give_a_trigger_or_an_invalid_schedule(fields, more):
    for given_fields in (fields, {"cron": "0 9 * * *"} | more, {"any": [fields, more]}):
        try:
            encode(decode(given_fields))
        except InvalidSchedule as refused:
            assert refused.problem
