"""The JSON Schemas accept exactly the definitions that the readers accept."""

import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onbeat import InvalidSchedule
from onbeat.app.parts import check_target
from onbeat.cli.schedules import FIRST_FILE
from onbeat.core.policy import POLICIES, Policy
from onbeat.core.schedule import definition, read_schedule
from onbeat.core.schema import schedule_and_parts, schema_of_file, schema_of_schedule
from onbeat.core.target_kinds import KINDS as TARGETS
from onbeat.core.triggers.codec import AROUND, KINDS
from onbeat.launchers.http.target import METHODS
from onbeat.sources.yaml_positions import read_yaml
from tests.cli.test_verbs import TWO, WORK
from tests.profiles import examples

ROOT = Path(__file__).parent.parent.parent
SCHEDULE = jsonschema_rs.Draft202012Validator(schema_of_schedule())
FILE = jsonschema_rs.Draft202012Validator(schema_of_file())


def accepted(fields):
    """Return the schedule of these fields, or None."""
    try:
        schedule = read_schedule("a", fields)
        check_target(schedule)
    except InvalidSchedule:
        return None
    return schedule


def test_schema_has_every_kind_limit_policy_and_target():
    schema = schema_of_schedule()
    others = {"run", "when", "description", "calendars"}
    assert schema["properties"].keys() == KINDS.keys() | AROUND | POLICIES.keys() | others
    assert schema["$defs"]["trigger"]["properties"].keys() == KINDS.keys() | AROUND
    targets = schema["$defs"]["target"]["oneOf"]
    assert [each["required"][0] for each in targets] == [
        kind.field or kind.name for kind in TARGETS.all()
    ]
    http = next(each for each in targets if each["required"][0] == "http")
    assert set(http["properties"]["method"]["enum"]) == METHODS


def test_schema_has_the_defaults_of_policies():
    for name in POLICIES:
        told = schema_of_schedule()["properties"][name].get("default")
        default = getattr(Policy(), name)
        assert told is None if default is None else POLICIES[name].read(told) == default, name


def test_every_schema_field_has_a_description_and_valid_examples():
    for name, field in schema_of_schedule()["properties"].items():
        assert "$ref" in field or field["description"], name
        for example in field.get("examples", ()):
            beside = {} if name in KINDS else {"every": "1h"}
            assert SCHEDULE.is_valid({name: example, "run": {"command": ["ls"]}, **beside}), name


def test_schemas_are_valid_json_schemas():
    assert jsonschema_rs.meta.is_valid(schema_of_file())
    assert jsonschema_rs.meta.is_valid(schema_of_schedule())


def test_parts_of_a_schema_can_be_kept_elsewhere():
    schedule, parts = schedule_and_parts("#/components/schemas/")
    document = {"components": {"schemas": parts}, **schedule}
    found = jsonschema_rs.Draft202012Validator(document)
    assert found.is_valid(
        {"any": [{"every": "1h"}, {"daily": "17:00"}], "run": {"command": ["ls"]}}
    )
    assert not found.is_valid(
        {"any": [{"evry": "1h"}, {"daily": "17:00"}], "run": {"command": ["ls"]}}
    )
    assert "$defs" not in json.dumps(document)


def files():
    yield "the first file", FIRST_FILE
    yield "the example", (ROOT / "examples" / "onbeat.yaml").read_text()
    yield from (("two", TWO), ("work", WORK))
    shown = r"```yaml\n((?:(?!```).)*)```(?!\n\n```console\n[^`]*mistakes in)"  # not what is wrong
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for i, block in enumerate(re.findall(shown, page.read_text(), re.DOTALL)):
            yield f"{page.name} {i}", block


@pytest.mark.parametrize(("name", "text"), list(files()), ids=lambda value: value[:20])
def test_every_definition_in_the_docs_matches_the_schema(name, text):
    found = read_yaml(text)
    assert found.mistakes == []
    if "schedules" in found.value:
        FILE.validate(found.value)


@pytest.mark.parametrize("text", [
    "schedules:", "calendars:", "{}", "timezone: Asia/Tokyo", "calendars: {a: [12-25], b: {ics: x.ics}, c: {holidays: DE}}",
])  # fmt: skip
def test_nearly_empty_files_match_the_schema(text):
    FILE.validate(read_yaml(text).value)


@pytest.mark.parametrize("text", [
    "[]", "shedules: {}", "timezone: Berlin", "schedules: [a]", "schedules: {a: 5}", "schedules: {a b: {every: 1h, run: {command: [ls]}}}",
    "calendars: {a: 5}", "calendars: {a: {ics: 5}}", "calendars: {a: {isc: x}}", "schedules: {a: }",
])  # fmt: skip
def test_invalid_files_do_not_match_the_schema(text):
    assert not FILE.is_valid(read_yaml(text).value)


RIGHT = {"every": "1h", "run": {"command": ["ls"]}}
WRONG = [
    {"every": "1h"}, {"run": {"command": ["ls"]}}, RIGHT | {"cron": "* * * * *"}, RIGHT | {"evry": "1h"}, RIGHT | {"tz": "UTC"},
    RIGHT | {"every": "1x"}, RIGHT | {"every": 5}, RIGHT | {"every": ""}, RIGHT | {"every": "P"}, RIGHT | {"every": None},
    RIGHT | {"timezone": "Berlin"}, RIGHT | {"timezone": None}, RIGHT | {"dst": "no"}, RIGHT | {"max_runs": 0},
    RIGHT | {"start_at": "tomorrow"}, RIGHT | {"exclude": [5]}, RIGHT | {"within": {"outside": "drop"}}, RIGHT | {"within": []},
    RIGHT | {"overlap": "que"}, RIGHT | {"priority": 101}, RIGHT | {"priority": True}, RIGHT | {"enabled": "yes"}, RIGHT | {"grace": 60},
    RIGHT | {"retry": "30s"}, RIGHT | {"retry": {"attempts": 3}}, RIGHT | {"retry": {"attempts": 0, "backoff": "1s"}},
    RIGHT | {"rate": "10 per hour"}, RIGHT | {"group": ""}, RIGHT | {"description": 5}, RIGHT | {"calendars": {"a": 5}},
    RIGHT | {"run": None}, RIGHT | {"run": {}}, RIGHT | {"run": {"command": "ls"}}, RIGHT | {"run": {"command": []}},
    RIGHT | {"run": {"command": ["ls"], "python": "a:b"}}, RIGHT | {"run": {"command": ["ls"], "shell": True}},
    RIGHT | {"run": {"command": [5]}}, RIGHT | {"run": {"command": ["ls"], "env": {"A": 5}}}, RIGHT | {"run": {"http": "ftp://x"}},
    RIGHT | {"run": {"http": "http://x", "method": "post"}}, RIGHT | {"when": {"kommand": ["ls"]}}, RIGHT | {"run": {"python": ""}},
    {"run": RIGHT["run"], "cron": "* * *"}, {"run": RIGHT["run"], "cron": 5}, {"run": RIGHT["run"], "calendar": {}},
    {"run": RIGHT["run"], "calendar": {"hour": 24}}, {"run": RIGHT["run"], "at": []}, {"run": RIGHT["run"], "daily": "17"},
    {"run": RIGHT["run"], "any": [{"every": "1h"}]}, {"run": RIGHT["run"], "any": [{"every": "1h"}, {}]},
    {"run": RIGHT["run"], "any": [{"every": "1h"}, {"every": "2h", "run": {}}]}, {"run": RIGHT["run"], "after": {}},
    {"run": RIGHT["run"], "after": {"success": "1m", "failure": "1m"}}, {"run": RIGHT["run"], "after": {"outcome": "done"}},
    5, None, [],
]  # fmt: skip


@pytest.mark.parametrize("fields", WRONG, ids=json.dumps)
def test_invalid_schedule_does_not_match_and_is_refused_by_the_reader(fields):
    assert not SCHEDULE.is_valid(fields)
    assert accepted(fields) is None


LENGTHS = st.sampled_from(
    ["45s", "90m", "1h30m", "36h", "1d", "2w", "PT90M", "P1DT2H", "0s", " 5m "]
)
SHORT = LENGTHS | st.sampled_from(["1500ms", "1ms"])
TIMES = st.sampled_from(
    ["2026-12-01T09:00", "2027-01-31 23:59:59", "2026-12-01T09:00:00Z", "2026-12-01t09:00+01:00"]
)
TRIGGERS = st.one_of(
    st.builds(lambda text: {"cron": text}, st.sampled_from(["0 9 * * MON-FRI", "*/5 * * * * *", "@daily", "H H * * *", "0 0 L * ? 2030 ".strip(), "0 0 0 1 1 ? 2030"])),
    st.builds(lambda value, day: {"calendar": {"hour": value, "day_of_week": day}}, st.sampled_from([9, [9, 17], "*/2", "0-5"]), st.sampled_from(["MON", "MON-FRI", 7, ["MON", 3]])),
    st.builds(lambda length: {"every": length}, LENGTHS | st.sampled_from(["1mo", "1y"])),
    st.builds(lambda times: {"at": times}, TIMES | st.lists(TIMES, min_size=1, max_size=3)),
    st.builds(lambda text: {"daily": text}, st.sampled_from(["17:00", "7:5", "23:59:59"])),
    st.builds(lambda length: {"startup": length}, LENGTHS),
    st.just({"manual": True}),
    st.builds(lambda outcome, length: {"after": {outcome: length}}, st.sampled_from(["success", "failure", "completion"]), LENGTHS),
    st.builds(lambda length: {"after": {"schedule": "other", "outcome": "success", "delay": length}}, LENGTHS),
)  # fmt: skip
AROUNDS = st.fixed_dictionaries({}, optional={
    "timezone": st.sampled_from(["Europe/Berlin", "UTC", "Asia/Tokyo"]), "dst": st.sampled_from(["shift", "skip"]),
    "end_at": st.none() | st.just("2040-01-01T00:00"), "delay": st.none() | LENGTHS, "max_runs": st.none() | st.integers(1, 9),
    "exclude": st.sampled_from([None, [], "12-25", ["2026-12-24..2027-01-01", "05-01"]]),
    "within": st.sampled_from([None, "09:00-17:00", ["08:00-12:00", "13:00-24:00"], {"days": "MON-FRI", "outside": "move"}]),
})  # fmt: skip
NUMBERS = st.integers(1, 50)
POLICY = st.fixed_dictionaries({}, optional={
    "enabled": st.booleans(), "grace": SHORT, "catchup": st.sampled_from(["once", "none", "all", "spread"]), "catchup_window": SHORT,
    "overlap": st.sampled_from(["skip", "queue", "allow"]), "jitter": SHORT, "timeout": SHORT, "start_deadline": SHORT, "cancel_grace": SHORT,
    "retry": st.lists(SHORT, max_size=3) | st.builds(lambda n, d: {"attempts": n, "backoff": d, "jitter": d}, NUMBERS, SHORT),
    "on_lost": st.sampled_from(["fail", "retry"]), "group": st.sampled_from(["a", "team/b.c"]), "priority": st.integers(-100, 100),
    "rate": st.sampled_from(["10/hour", "3 / d", "1/min"]), "pause_after": NUMBERS, "description": st.text(max_size=20),
})  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(-9, 9) | st.sampled_from(["", "a", "1h", "MON", "12:30", "{{ date }}"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.sampled_from(["a", "hour", "every", "command"]), values, max_size=3),
    max_leaves=5,
)  # fmt: skip
RUNS = st.one_of(
    st.fixed_dictionaries({"command": st.just(["ls", "-l"])}, optional={"cwd": st.sampled_from([None, "/srv"]), "env": st.just({"A": ""}), "enabled": st.booleans(), "inputs": st.dictionaries(st.text(max_size=3), JSON, max_size=2)}),
    st.fixed_dictionaries({"python": st.sampled_from(["a.b:c", "name"])}, optional={"inputs": st.sampled_from([None, {}, {"limit": 5}])}),
    st.fixed_dictionaries({"python": st.just("a.b:c"), "on": st.just("ray")}, optional={"resources": st.sampled_from([None, {}, {"cpus": 2, "memory": "2GiB", "fast": 0.5}]), "runtime_env": st.sampled_from([None, {"env_vars": {"A": "b"}}]), "enabled": st.booleans()}),
    st.fixed_dictionaries({"http": st.sampled_from(["https://example.com/x?y", "HTTP://127.0.0.1:80"])}, optional={"method": st.sampled_from(["GET", "PUT"]), "headers": st.sampled_from([None, {"X-Team": "a"}]), "feedback": st.booleans()}),
)  # fmt: skip
FIELDS = st.builds(
    lambda trigger, others, around, policy, run: {**(trigger if others is None else {others[0]: [trigger, others[1]]}), **around, **policy, "run": run},
    TRIGGERS, st.none() | st.tuples(st.sampled_from(["any", "all", "minus"]), TRIGGERS), AROUNDS, POLICY, RUNS,
)  # fmt: skip


@given(FIELDS)
def test_accepted_schedule_matches_as_given_and_as_stored(fields):
    schedule = accepted(fields)
    assume(schedule is not None)
    SCHEDULE.validate(json.loads(json.dumps(fields)))
    SCHEDULE.validate(json.loads(definition(schedule)))


@examples(600)
@given(FIELDS, st.data())
def test_fields_that_do_not_match_are_refused_by_the_reader(fields, data):
    """Put something odd somewhere: whenever a reader takes it, the schema does, too."""
    place = fields
    for _ in range(data.draw(st.integers(0, 2))):
        inner = [name for name in place if isinstance(place[name], dict)]
        if inner:
            name = data.draw(st.sampled_from(inner))
            place[name] = place = dict(place[name])
    name = data.draw(st.sampled_from([*place, *KINDS, *AROUND, *POLICIES, "when", "calendars"]))
    place[name] = data.draw(JSON)
    if accepted(fields) is not None:
        SCHEDULE.validate(json.loads(json.dumps(fields)))
