"""Schedules as fields: round trips, and errors with their field and reason."""

import json
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat import InvalidSchedule, after, cron, every, startup
from onbeat.core.schedule import (
    LONGEST_DEFINITION,
    Schedule,
    check_id,
    check_schedule,
    definition,
    follows,
    from_definition,
    read_schedule,
)
from onbeat.core.target import Target
from onbeat.testing import a_schedule
from tests.profiles import examples

RUN = {"command": ["./backup.sh", "--all"]}
HOURLY = {"every": "1h", "run": RUN}
OFFICE = {"hours": "09:00-17:00", "days": "MON-FRI"}


class TestTarget:
    def test_kind_of_a_target_is_its_launcher_field(self):
        target = a_schedule(run=RUN | {"cwd": "/srv"}).target
        assert target == Target("command", RUN | {"cwd": "/srv"})

    def test_target_needs_a_node_that_offers_its_kind(self):
        assert a_schedule(run=RUN).target.needs == "command"
        assert a_schedule(run={"python": "reports:build"}).target.needs == "python"

    def test_target_of_a_registered_function_needs_that_name(self):
        assert a_schedule(run={"python": "standup"}).target.needs == "python:standup"

    def test_target_has_its_inputs(self):
        assert a_schedule(run=RUN | {"inputs": {"limit": 100}}).target.inputs == {"limit": 100}
        assert a_schedule(run=RUN).target.inputs == {}

    def test_target_copies_its_inputs(self):
        inputs = {"days": [1, 2], "until": "2026-12-25"}
        target = a_schedule(run=RUN | {"inputs": inputs}).target
        inputs["days"].append(3)
        assert target.inputs == {"days": [1, 2], "until": "2026-12-25"}

    def test_disabled_target_is_kept_in_the_definition(self):
        off = a_schedule(run=RUN | {"enabled": False})
        assert (off.target.is_enabled, off.target.fields) == (False, RUN)
        assert json.loads(definition(off))["run"] == RUN | {"enabled": False}
        assert from_definition(off.schedule_id, definition(off)) == off

    def test_enabled_true_is_left_out_of_the_definition(self):
        on = a_schedule(run=RUN | {"enabled": True})
        assert on == a_schedule(run=RUN)
        assert json.loads(definition(on))["run"] == RUN

    def test_enabled_and_disabled_target_differ(self):
        assert a_schedule(run=RUN | {"enabled": False}) != a_schedule(run=RUN)

    @pytest.mark.parametrize("kind", ["command", "python", "http"])
    def test_command_python_and_http_are_kinds_of_targets(self, kind):
        assert a_schedule(run={kind: "x:y"}).target.kind == kind


class TestCondition:
    """`when`: what is asked before a run starts."""

    def test_schedule_has_no_condition_by_default(self):
        assert a_schedule().when is None

    def test_condition_is_a_target_and_part_of_the_definition(self):
        asked = a_schedule(when={"command": ["./is-open"]})
        assert asked.when == Target("command", {"command": ["./is-open"]})
        assert from_definition(asked.schedule_id, definition(asked)) == asked
        assert definition(asked) != definition(a_schedule())

    @pytest.mark.parametrize(
        ("when", "told"),
        [
            ("./is-open", r"^when: './is-open' is not a target"),
            (
                {"commands": ["x"]},
                r"^when.commands: no launcher has this name \(did you mean 'command'",
            ),
            ({"python": "is_open"}, r"^when.python: a condition .* \(module:function\)$"),
            (
                {"command": ["x", "{{ date }}"]},
                r"^when: a condition cannot contain templates \(use them in",
            ),
            ({"command": ["x"], "enabled": 1}, r"^when.enabled: 1 is neither true nor false"),
        ],
    )
    def test_condition_that_cannot_be_evaluated_is_refused(self, when, told):
        with pytest.raises(InvalidSchedule, match=told):
            a_schedule(when=when)


class TestFollowing:
    """Schedules with ticks that follow an event."""

    def test_schedule_with_clock_triggers_follows_nothing(self):
        assert follows(a_schedule(any=[{"every": "1h"}, {"daily": "09:00"}])) == set()

    def test_schedule_may_follow_itself_another_and_a_start(self):
        parts = [
            {"after": {"success": "30m"}},
            {"after": {"schedule": "backup", "outcome": "completion"}},
            {"startup": "30s"},
            {"daily": "09:00"},
        ]
        assert follows(a_schedule("report", any=parts)) == {"report", "backup", "@startup"}

    def test_bounds_do_not_change_what_a_schedule_follows(self):
        limits = {"max_runs": 3, "exclude": ["12-25"]}
        limited = a_schedule("report", after={"failure": "1m"}, **limits)
        assert follows(limited) == {"report"}

    @pytest.mark.parametrize(
        "trigger", [startup("30s"), after("success", "1h"), startup() | every("1h")]
    )
    def test_following_schedule_survives_its_definition(self, trigger):
        made = Schedule("a", trigger, Target("command", RUN))
        assert check_schedule(made) is made
        assert from_definition("a", definition(made)) == made

    def test_schedule_may_name_itself_as_followed(self):
        itself = {"schedule": "report", "outcome": "success"}
        assert follows(a_schedule("report", after=itself)) == {"report"}


class TestSameTiming:
    @pytest.mark.parametrize(
        "same", [{"every": "60m"}, {"overlap": "queue"}, {"rate": "1/d"}, {"enabled": False}]
    )
    def test_edit_that_changes_no_tick_keeps_the_timing(self, same):
        assert a_schedule().is_timed_like(a_schedule(**same))

    @pytest.mark.parametrize(
        "other",
        [
            {"every": "2h"},
            {"jitter": "5s"},
            {"max_runs": 3},
            {"jitter": "5s", "jitter_around": True},
        ],
    )
    def test_trigger_limit_and_jitter_change_the_timing(self, other):
        assert not a_schedule().is_timed_like(a_schedule(**other))

    def test_side_of_the_jitter_changes_the_timing(self):
        around = a_schedule(jitter="5s", jitter_around=True)
        assert not a_schedule(jitter="5s").is_timed_like(around)


class TestStartingDirectly:
    """A run that nothing has to be looked at for is announced as it is decided."""

    def test_ordinary_schedule_starts_directly(self):
        assert a_schedule(overlap="queue", retry=["30s"], rate="1/d", jitter="5s").starts_directly

    @pytest.mark.parametrize(
        "given",
        [
            {"group": "gpu"}, {"priority": 1}, {"start_deadline": "1h"},
            {"when": RUN}, {"run": {"command": ["x", "{{ date }}"]}}, {"run": {"http": "https://x"}},
        ],
    )  # fmt: skip
    def test_schedule_with_a_group_or_condition_does_not_start_directly(self, given):
        assert not a_schedule(**given).starts_directly


class TestDefinition:
    def test_definition_leaves_out_defaults(self):
        assert (
            definition(a_schedule(run=RUN))
            == '{"every":"1h","run":{"command":["./backup.sh","--all"]}}'
        )

    @pytest.mark.parametrize(
        "same",
        [
            {"every": "60m"},
            {"every": "PT1H"},
            {"every": timedelta(hours=1)},
            {"timezone": "UTC"},
            {"grace": "1m", "catchup": "once", "catchup_window": "1d", "overlap": "skip"},
            {"jitter": "0s", "retry": [], "on_lost": "fail", "description": ""},
            {"enabled": True, "queue_limit": 100, "priority": 0, "cancel_grace": "10s"},
            {"retry": {"attempts": 1, "backoff": "30s"}, "when": None},
            {"max_runs": None, "exclude": [], "within": None, "start_at": None},
            {"calendars": {"unused": ["12-25"]}},
        ],
    )  # fmt: skip
    def test_equal_schedules_have_equal_definitions(self, same):
        assert a_schedule(**same) == a_schedule()
        assert definition(a_schedule(**same)) == definition(a_schedule())

    def test_order_of_fields_does_not_change_the_definition(self):
        inputs = {"b": {"y": 1, "x": 2}, "a": 1}
        turned = {"a": 1, "b": {"x": 2, "y": 1}}
        one = read_schedule("a", {"run": RUN | {"inputs": inputs}, "every": "1h", "grace": "5m"})
        other = read_schedule("a", {"grace": "5m", "every": "1h", "run": {"inputs": turned} | RUN})
        assert definition(one) == definition(other)

    def test_order_of_a_list_in_inputs_changes_the_definition(self):
        one, other = (a_schedule(run=RUN | {"inputs": {"a": x}}) for x in ([1, 2], [2, 1]))
        assert definition(one) != definition(other)

    def test_default_zone_is_written_into_the_definition(self):
        given = {"cron": "0 9 * * *", "run": RUN}
        meant = read_schedule("a", given, timezone="Europe/Berlin")
        assert meant == read_schedule("a", given | {"timezone": "Europe/Berlin"})
        assert json.loads(definition(meant))["timezone"] == "Europe/Berlin"
        assert from_definition("a", definition(meant)) == meant

    def test_used_calendars_are_part_of_the_definition(self):
        calendars = {"company": ("12-24..12-31", "2026-05-01"), "school": ("07-01..08-31",)}
        schedule = read_schedule(
            "a", HOURLY | {"exclude": ["company", "2026-03-01"]}, calendars=calendars
        )
        assert json.loads(definition(schedule))["calendars"] == {
            "company": ["12-24..12-31", "2026-05-01"]
        }
        assert from_definition("a", definition(schedule)) == schedule
        assert schedule.trigger.next_after(datetime(2026, 12, 23, 23, tzinfo=UTC)) == int(
            datetime(2027, 1, 1, tzinfo=UTC).timestamp()
        )

    def test_calendars_of_parts_are_part_of_the_definition(self):
        calendars = {"company": ("12-25",), "school": ("07-01..08-31",)}
        parts = [
            {"daily": "09:00", "exclude": "company"},
            {"daily": "10:00", "exclude": ["school"]},
        ]
        schedule = read_schedule("a", {"any": parts, "run": RUN}, calendars=calendars)
        assert schedule.calendars == calendars
        assert from_definition("a", definition(schedule)) == schedule

    def test_changed_calendar_changes_the_schedule(self):
        before, now = (
            read_schedule("a", HOURLY | {"exclude": "company"}, calendars={"company": (day,)})
            for day in ("12-25", "12-26")
        )
        assert definition(before) != definition(now)
        assert before.trigger != now.trigger

    def test_calendar_of_the_schedule_overrides_one_of_the_file(self):
        given = HOURLY | {"exclude": "company", "calendars": {"company": ["12-25"]}}
        schedule = read_schedule("a", given, calendars={"company": ("12-26",)})
        assert schedule.calendars == {"company": ("12-25",)}

    def test_hash_in_a_cron_depends_on_the_schedule_id(self):
        text = definition(a_schedule("report", cron="H H * * *"))
        assert from_definition("report", text) == a_schedule("report", cron="H H * * *")
        assert from_definition("backup", text).trigger != from_definition("report", text).trigger

    def test_one_definition_may_be_used_by_several_schedules(self):
        text = definition(a_schedule(cron="0 9 * * *"))
        one, other = (from_definition(name, text) for name in ("one", "other"))
        assert (one.schedule_id, other.schedule_id) == ("one", "other")
        assert one.trigger == other.trigger == cron("0 9 * * *")

    @pytest.mark.parametrize("text", ["", "garbage", "{", "[" * 10_000, '"\ud800"'])
    def test_definition_that_is_not_json_is_refused(self, text):
        with pytest.raises(InvalidSchedule, match="this is not JSON"):
            from_definition("a", text)

    @pytest.mark.parametrize("text", ["[]", "null", "5", '"every: 1h"'])
    def test_definition_without_fields_is_refused(self, text):
        with pytest.raises(InvalidSchedule, match="is not a schedule"):
            from_definition("a", text)

    def test_stored_definition_is_validated(self):
        with pytest.raises(InvalidSchedule, match=r"^evry: no field has this name"):
            from_definition("a", '{"evry": "1h", "run": {"command": ["ls"]}}')


TIMINGS = [
    {"every": "90m"},
    {"every": "1mo", "start_at": "2026-01-31T09:00", "timezone": "Asia/Tokyo"},
    {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin", "dst": "skip"},
    {"cron": "H H * * *"},
    {"calendar": {"hour": [9, 17], "minute": 0, "day_of_week": "MON"}},
    {"at": ["2026-12-01T09:00", "2026-12-02T09:00Z"], "timezone": "America/New_York"},
    {"daily": "17:00", "delay": "10m", "end_at": "2027-01-01T00:00Z"},
    {"any": [{"daily": "09:00", "exclude": "company"}, {"every": "1h", "within": OFFICE}]},
    {"all": [{"every": "2h"}, {"cron": "0 * * * SUN"}], "timezone": "Europe/Berlin"},
    {"minus": [{"every": "1m"}, {"every": "5m"}, {"daily": "12:01"}]},
    {"cron": "0 * * * *", "within": OFFICE | {"outside": "move"}, "exclude": ["company", "01-01"]},
    {"startup": "30s"},
    {
        "any": [
            {"after": {"success": "30m"}},
            {"after": {"schedule": "other", "failure": "0s"}},
            {"daily": "09:00"},
        ]
    },
]
CALENDARS = {"company": ("12-24..12-31", "2026-05-01")}
LENGTHS = st.one_of(
    st.integers(1, 10**7).map(lambda seconds: f"{seconds}s"),
    st.integers(1000, 10**8).map(lambda ms: f"{ms}ms"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=5,
)
RUNS = st.fixed_dictionaries(
    {"command": st.lists(st.text("abc -$", min_size=1), min_size=1, max_size=3)},
    optional={
        "inputs": st.dictionaries(st.text("xyz"), VALUES, max_size=3),
        "cwd": st.just("/srv"),
        "enabled": st.booleans(),
    },
)
SOME_FIELDS = st.fixed_dictionaries(
    {"run": RUNS},
    optional={
        "grace": LENGTHS,
        "catchup": st.sampled_from(["once", "none", "all", "spread"]),
        "catchup_window": LENGTHS,
        "overlap": st.sampled_from(["skip", "queue", "allow", "replace"]),
        "jitter": LENGTHS,
        "retry": st.lists(LENGTHS, max_size=4),
        "timeout": LENGTHS,
        "on_lost": st.sampled_from(["fail", "retry"]),
        "enabled": st.booleans(),
        "rate": st.sampled_from(["3/d", "10/hour"]),
        "when": st.just({"command": ["./is-open"]}),
        "description": st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
        "max_runs": st.integers(1, 10**6),
    },
)


@given(st.sampled_from(TIMINGS), SOME_FIELDS, st.sampled_from(["report", "x/y.z", "H"]))
@examples(200)
def test_definition_survives_writing_and_reading(timing, some, name):
    schedule = read_schedule(name, timing | some, calendars=CALENDARS)
    text = definition(schedule)
    assert from_definition(name, text) == schedule
    assert read_schedule(name, json.loads(text)) == schedule
    assert definition(from_definition(name, text)) == text


class TestIds:
    @pytest.mark.parametrize("name", ["a", "A.b_c-9", "team/report", "...", "x" * 200])
    def test_valid_schedule_id_is_accepted(self, name):
        assert check_id(name) == name
        assert a_schedule(name).schedule_id == name

    @pytest.mark.parametrize(
        "name",
        [
            "", "../x", "a/../b", "..", ".", "a/./b", "a//b", "/a", "a/", "/", "a b", "a:b", "a\n",
            "\u00e4", "a\x00", "x" * 201, None, 5, b"a", ["a"],
        ],
    )  # fmt: skip
    def test_invalid_schedule_id_is_refused(self, name):
        for refuse in (check_id, lambda name: read_schedule(name, HOURLY)):
            with pytest.raises(InvalidSchedule) as refused:
                refuse(name)
            assert refused.value.field == "schedule_id"
            assert refused.value.problem.endswith("is not a valid id")
            assert refused.value.hint == "letters, digits and . _ / -, at most 200; no .. in a path"

    def test_invalid_id_of_a_schedule_made_in_python_is_refused(self):
        with pytest.raises(InvalidSchedule, match="schedule_id: 'a//b' is not a valid id"):
            check_schedule(Schedule("a//b", every("1h"), Target("command", RUN)))


REFUSED = [  # fields, then the field that is named, the problem and the hint
    # names
    ({"evry": "1h"}, "evry", "no field has this name", "did you mean 'every'?"),
    ({"overlp": "skip"}, "overlp", "no field has this name", "did you mean 'overlap'?"),
    ({"retries": ["1s"]}, "retries", "no field has this name", "did you mean 'retry'?"),
    ({"tz": "UTC"}, "tz", "no field has this name", "did you mean 'timezone'?"),
    ({"zone": "UTC"}, "zone", "no field has this name", "did you mean 'timezone'?"),
    ({"time_zone": "UTC"}, "time_zone", "no field has this name", "did you mean 'timezone'?"),
    ({5: 5}, "5", "no field has this name", "known: after, all, any, at,"),
    ({"x" * 500: 1}, "x" * 56, "no field has this name", "known: after"),
    # when
    ({"timezone": "Mars/Base"}, "timezone", "no zone is called 'Mars/Base'", ""),
    ({"timezone": None}, "timezone", "no zone is called None", "an IANA name"),
    ({"daily": "17:00"}, "", "2 triggers: every, daily", "one; `any` holds several"),
    ({"run": RUN}, "", "no trigger", "one of cron, calendar, every, at, daily,"),
    ({"max_runs": 0}, "max_runs", "0 is not a number of runs", "1 or more"),
    ({"exclude": ["company"]}, "exclude", "no calendar is called 'company'", "define it under"),
    ({"calendars": ["12-25"]}, "calendars", "['12-25'] is not a mapping of names to lists", "{name: [...]}"),
    ({"calendars": {"a": "12-25"}}, "calendars", "{'a': '12-25'} is not a mapping of names to lists", "{name:"),
    ({"any": [{"every": "1h"}, {"evry": "2h"}], "run": RUN}, "any[1].evry", "no field has", "'every'"),
    # what to run
    ({"run": None, "every": "1h"}, "run", "it is missing: what to run", "such as run: {command:"),
    ({"run": "./x", "every": "1h"}, "run", "'./x' is not a target", "such as run: {command:"),
    ({"run": ["./x"], "every": "1h"}, "run", "['./x'] is not a target", "such as run: {command:"),
    ({"run": {}, "every": "1h"}, "run", "no target", "one of command, python, http"),
    ({"run": {"shell": "x"}, "every": "1h"}, "run.shell", "no launcher has this name", "known: command, flock, flow, http, python"),
    ({"run": {"commands": ["x"]}, "every": "1h"}, "run.commands", "no launcher has this name", "did you mean 'command'?"),
    ({"run": RUN | {"python": "a:b"}, "every": "1h"}, "run", "2 targets", "one of command, python, http"),
    ({"run": RUN | {"inputs": [1]}, "every": "1h"}, "run.inputs", "[1] is not a mapping of names to values", "{limit: 100}"),
    ({"run": RUN | {"inputs": {1: 2}}, "every": "1h"}, "run.inputs", "{1: 2} is not a mapping of names to values", "{limit:"),
    # policies, of which `test_policies` has more
    ({"grace": "0s"}, "grace", "'0s' is too short", "1s or more"),
    ({"retry": ["30s", 5]}, "retry[1]", "the number 5 has no unit", "5s, 5m"),
    ({"retry": {"attempts": 0, "backoff": "30s"}}, "retry.attempts", "0 is out of bounds", "1 to 101"),
    ({"max_active": 3}, "max_active", "it has no effect with overlap: skip", "overlap: allow"),
    # the rest
    ({"description": 5}, "description", "5 is not a short string", "2000 characters at most"),
    ({"description": "x" * 2001}, "description", "is not a short string", "2000 characters at most"),
    ({"run": {"command": ["x" * LONGEST_DEFINITION]}, "every": "1h"}, "", "the definition is too long", "256 KiB at most"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "field", "problem", "hint"), REFUSED)
def test_invalid_schedule_names_field_problem_and_hint(given, field, problem, hint):
    with pytest.raises(InvalidSchedule) as refused:
        read_schedule("report", given if "run" in given else HOURLY | given)
    assert refused.value.field.startswith(field)
    assert bool(refused.value.field) == bool(field)
    assert problem in refused.value.problem
    assert hint in refused.value.hint
    assert refused.value.hint
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500  # where all names are listed


@pytest.mark.parametrize("given", [None, 5, "every: 1h", ["every"], {1, 2}])
def test_schedule_without_fields_is_refused(given):
    with pytest.raises(InvalidSchedule, match=r"is not a schedule \(fields, such as every: 90m"):
        read_schedule("report", given)


def nested(depth):
    found = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    "value",
    [object(), {(1, 2): 3}, "\ud800", lambda: 0, nested(10_000)],
    ids=lambda v: str(type(v)),
)
def test_inputs_that_json_cannot_represent_are_refused(value):
    with pytest.raises(InvalidSchedule) as refused:
        a_schedule(run=RUN | {"inputs": {"x": value}})
    assert (refused.value.field, refused.value.problem) == (
        "run",
        "it contains values that JSON cannot represent",
    )


MOVED = {"daily": "03:00", "within": OFFICE | {"outside": "move"}}


@pytest.mark.parametrize(
    "given",
    [
        {"any": [{"every": "1h"}, MOVED]},
        {"all": [MOVED, {"every": "1h"}]},
        {"minus": [MOVED, {"daily": "04:00"}]},
        {"any": [{"every": "1h"}, MOVED | {"max_runs": 3}]},
        {"any": [{"every": "1h"}, MOVED | {"start_at": "2026-01-01T00:00Z"}]},
        {"any": [{"every": "1h"}, {"minus": [{"any": [MOVED, {"daily": "05:00"}]}, {"daily": "04:00"}]}]},
        {"any": [MOVED, {"every": "1h"}], "max_runs": 3, "exclude": ["12-25"]},
    ],
)  # fmt: skip
def test_part_of_a_trigger_cannot_move_ticks(given):
    with pytest.raises(InvalidSchedule, match=r"^within.outside: a part of a trigger") as refused:
        a_schedule(**given)
    assert refused.value.hint == "set `within` on the whole schedule, or use outside: skip"


def test_whole_trigger_may_move_ticks_and_a_part_may_skip_them():
    parts = [{"every": "1h"}, {"daily": "03:30"}]
    assert a_schedule(any=parts, within=MOVED["within"]).trigger
    assert a_schedule(any=[{"every": "1h", "within": OFFICE}, {"daily": "03:30"}]).trigger


def test_schedule_made_in_python_is_validated():
    moved = cron("0 3 * * *", within=MOVED["within"])
    with pytest.raises(InvalidSchedule, match=r"^within.outside: a part of a trigger"):
        check_schedule(Schedule("a", moved | every("1h"), Target("command", RUN)))
    probe = Target("python", {"python": "is_open"})
    with pytest.raises(InvalidSchedule, match=r"^when.python: a condition cannot be a registered"):
        check_schedule(Schedule("a", every("1h"), Target("command", RUN), when=probe))
    with pytest.raises(InvalidSchedule, match="the definition is too long"):
        check_schedule(Schedule("a", every("1h"), Target("command", {"command": ["x" * 300_000]})))
    right = Schedule("a", every("1h"), Target("command", RUN))
    assert check_schedule(right) is right


def test_schedule_with_a_single_time_ticks_once():
    assert a_schedule(at="2026-12-01T09:00Z").ticks_once
    assert a_schedule(at="2026-12-01T09:00Z", max_runs=1).ticks_once
    assert not a_schedule().ticks_once


def test_max_runs_is_part_of_the_definition():
    assert a_schedule(max_runs=1).trigger.counts_runs
    assert a_schedule(max_runs=1, exclude=["12-25"]).trigger.counts_runs
    assert not a_schedule(end_at="2099-01-01T00:00Z").trigger.counts_runs


def test_fields_may_be_any_mapping():
    assert read_schedule("a", MappingProxyType(HOURLY)) == read_schedule("a", HOURLY)


def test_description_that_json_cannot_represent_is_refused():
    with pytest.raises(InvalidSchedule, match=r"^description"):
        a_schedule(description="\ud800")


@pytest.mark.parametrize("item", [5, None, ["12-25"], {"day": 5}])
def test_calendar_item_that_is_not_a_string_is_refused(item):
    with pytest.raises(InvalidSchedule, match=r"calendars|exclude"):
        a_schedule(calendars={"company": [item]}, exclude="company")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_in_inputs_are_refused(value):
    with pytest.raises(InvalidSchedule, match="values that JSON cannot represent"):
        a_schedule(run=RUN | {"inputs": {"x": value}})


def test_input_names_that_collide_in_json_are_refused():
    with pytest.raises(InvalidSchedule, match="values that JSON cannot represent"):
        a_schedule(run=RUN | {"inputs": {"x": {1: "a", "1": "b"}}})
