"""Timers of oneshot services as fields: valid ones as schedules, and errors of invalid ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat import InvalidSchedule
from onbeat.core.policy import Policy, read_policy
from onbeat.core.policy_values import Retries
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.systems.services.timers import Services, group_of
from tests.systems.services.conftest import HOURLY, a_file

MINUTE, HOUR = 60_000, 3_600_000
NEW_YEAR = parse_instant("2026-01-01T00:00:00Z")


def read(*timers, **around):
    return Services(a_file(*timers, **around)).timers()


def only(*timers, **around):
    found = read(*timers, **around)
    assert found.invalid == {}
    (timer,) = found.valid.values()
    return timer


def ticks(count, **timer):
    """Return the first times of a timer in 2026."""
    schedule = only(HOURLY | timer).schedule
    return [rfc3339(t)[5:16] for t in schedule.trigger.upcoming(NEW_YEAR - 1, count)]


class TestDefaults:
    @pytest.mark.req("S36", "S42", "S76")
    def test_defaults_of_services_are_those_of_the_origin(self):
        assert only().schedule.policy == Policy(
            catchup="once", catchup_window=24 * HOUR, overlap="skip", jitter=0,
            retry=Retries((30_000, 2 * MINUTE, 10 * MINUTE), on=("exit",)),
        )  # fmt: skip

    @pytest.mark.req("S46", "S47")
    def test_timer_is_enabled_and_persistent_by_default(self):
        assert (only().is_enabled, only().is_persistent) == (True, True)
        off = only(HOURLY | {"enabled": False, "persistent": False})
        assert (off.is_enabled, off.is_persistent) == (False, False)
        assert (off.schedule.policy.enabled, off.schedule.policy.catchup) == (False, "none")

    @pytest.mark.req("S7")
    def test_gate_is_closed_and_its_parent_on_by_default(self):
        assert not Services({}).are_timers_on
        assert Services({"timers_enabled": True}).are_timers_on
        assert not Services({"timers_enabled": True, "enabled": False}).are_timers_on


class TestTopLevelFields:
    @pytest.mark.req("S36")
    def test_retry_delays_can_be_set_or_disabled(self):
        def delays(given):
            return only(retry=given).schedule.policy.retry.delays

        assert delays(["5s", "1h"]) == (5000, HOUR)
        assert delays([30, 120, 0.5]) == (30_000, 120_000, 500)
        assert delays([]) == ()

    @pytest.mark.req("S42")
    def test_catch_up_window_can_be_set(self):
        for asked, window in (("2h", 2 * HOUR), (7200, 2 * HOUR), ("0s", 0), (0, 0)):
            assert only(catchup_window=asked).schedule.policy.catchup_window == window

    def test_service_may_have_a_timeout_and_all_timers_a_zone(self):
        schedule = only(backup={"timeout": "30m"}, timezone="Europe/Berlin").schedule
        assert schedule.policy.timeout == 30 * MINUTE
        assert schedule.trigger.timezone == "Europe/Berlin"

    def test_default_zone_is_that_of_the_machine(self):
        found = Services(a_file(), timezone="Asia/Tokyo").timers()
        assert found.valid["hourly"].schedule.trigger.timezone == "Asia/Tokyo"

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({7: []}, "7 is not a field name (a string)"),
            ({"timer": []}, "timer: no field has this name (did you mean 'timers'?)"),
            ({"services": 5}, "services: 5 is not a mapping of names to services"),
            ({"services": [{"argv": ["true"]}]}, "services[0]: it has no id"),
            ({"timers": {"hourly": {}}}, "timers: {'hourly': {}} is not a list"),
            ({"retry": "30s"}, "retry: '30s' is not a list of delays ([30s, 2m, 10m])"),
            ({"retry": ["30s", "soon"]}, "retry[1]: 'soon' is not a duration"),
            ({"timezone": "Europe/Berln"}, "timezone: no zone is called 'Europe/Berln'"),
            ({"timezone": None}, "timezone: "),
            ({"catchup_window": "long"}, "catchup_window: 'long' is not a duration"),
            ({"catchup_window": -5}, "catchup_window: '-5s' is not a duration"),
            ({"timers_enabled": "yes"}, "timers_enabled: 'yes' is neither true nor false"),
            ({"enabled": 1}, "enabled: 1 is neither true nor false"),
            ({"timers-enabled": True}, "'timers_enabled' and 'timers-enabled' are the same field"),
        ],
    )
    def test_invalid_top_level_fields_are_refused(self, given, problem):
        with pytest.raises(InvalidSchedule) as refused:
            Services(a_file() | given).timers()
        assert problem in str(refused.value)

    @pytest.mark.parametrize("nothing", [None, [], "timers"])
    def test_file_that_is_not_a_mapping_is_refused(self, nothing):
        with pytest.raises(InvalidSchedule, match="is not a mapping"):
            Services(nothing)

    @pytest.mark.parametrize("name", [5, "", True, "a\0b"])
    def test_state_file_setting_is_a_name_or_null(self, name):
        assert Services({}).state_file == "timer-state.json"
        assert Services({"state_file": None}).state_file is None
        with pytest.raises(InvalidSchedule, match=r"state_file: .* is not a file name"):
            _ = Services({"state_file": name}).state_file


ORIGIN = {
    "supervisor-mode": True,
    "supervisor-timer-subsystem-mode": True,
    "supervisor-timer-state-file": "state.json",
    "supervisor-programs": {"backup": {":type": "oneshot", ":argv": ["./backup.sh"]}},
    "supervisor-timers": [
        {
            ":id": "nightly", ":target": "backup", ":enabled": True, ":persistent": False,
            ":on-calendar": {":minute": [0, 30], ":hour": 3, ":day-of-month": "*",
                             ":month": "*", ":day-of-week": [1, 2]},
            ":on-startup-sec": 60, ":on-unit-active-sec": 3600,
        },
    ],
}  # fmt: skip


class TestSpelling:
    @pytest.mark.req("S43", "S45", "S48", "S5", "S6")
    def test_field_names_of_the_origin_are_accepted(self):
        found = Services(ORIGIN)
        assert (found.are_timers_on, found.state_file) == (True, "state.json")
        (timer,) = found.timers().valid.values()
        ours = only({
            "id": "nightly", "target": "backup", "persistent": False,
            "on_calendar": {"minute": [0, 30], "hour": 3, "day_of_week": [1, 2],
                            "day_of_month": "*", "month": "*"},
            "on_startup_sec": 60, "on_unit_active_sec": 3600,
        }, backup={"argv": ["./backup.sh"]})  # fmt: skip
        assert timer == ours

    @pytest.mark.req("S5", "S6", "S8")
    @pytest.mark.parametrize("switch", ["supervisor-mode", "supervisor-timer-subsystem-mode"])
    def test_gate_names_of_the_origin_are_accepted(self, switch):
        assert not Services(ORIGIN | {switch: False}).are_timers_on

    def test_services_may_be_a_list_as_well(self):
        listed = [{":id": "backup", ":argv": ["./backup.sh"]}]
        found = Services(ORIGIN | {"supervisor-programs": listed}).timers()
        assert list(found.valid) == ["nightly"]

    def test_error_in_a_list_uses_the_spelling_of_the_file(self):
        listed = [
            {":id": "backup", ":argv": ["./backup.sh"], ":re-start": True},
            {":id": "shell", ":argv": ["sh"], ":type": "simple"},
        ]
        timers = [
            {":id": name, ":target": name, ":on-startup-sec": 5} for name in ("backup", "shell")
        ]
        given = ORIGIN | {"supervisor-programs": listed, "supervisor-timers": timers}
        found = Services(given).timers().invalid
        assert found["backup"].startswith("supervisor-programs.backup.:re-start: no field has")
        assert found["shell"] == ":target 'shell' is not a oneshot service (its :type is 'simple')"

    def test_error_uses_the_spelling_of_the_file(self):
        wrong = [
            {":id": "a", ":target": "backup", ":on-calendar": {":minute": 60}},
            {":id": "b", ":target": "backup", ":on-start": 5},
            {":id": "c", ":on-startup-sec": 5},
            {":id": "d", ":target": "backup"},
            {"id": "e", "target": "backup", ":id": "e"},
            {":id": "f", ":target": "nope", ":on-startup-sec": 5},
        ]
        found = Services(ORIGIN | {"supervisor-timers": wrong}).timers()
        assert found.invalid == {
            "a": ":on-calendar :minute value out of range (0-59)",
            "b": "unknown keyword :on-start (did you mean ':on-startup-sec'?)",
            "c": ":target must be a non-empty string",
            "d": "at least one trigger required (:on-calendar, :on-startup-sec, :on-unit-active-sec)",
            "e": "'id' and ':id' are the same field (one of them)",
            "f": ":target 'nope' not found in supervisor-programs",
        }


class TestCalendar:
    @pytest.mark.req("S29", "S48", "S74")
    def test_every_given_calendar_field_must_match(self):
        both = {"minute": 0, "hour": 9, "day_of_month": 13, "day_of_week": 5}
        found = ticks(3, on_calendar=both)
        assert found == ["02-13T09:00", "03-13T09:00", "11-13T09:00"]

    @pytest.mark.req("S29", "S48")
    def test_omitted_calendar_field_matches_any_value_even_the_minute(self):
        assert ticks(2, on_calendar={"hour": 3}) == ["01-01T03:00", "01-01T03:01"]
        every_minute = ["01-01T00:00", "01-01T00:01"]
        assert ticks(2, on_calendar={"hour": "*"}) == every_minute
        assert ticks(2, on_calendar={"minute": "*", "hour": "*"}) == every_minute

    @pytest.mark.req("S29", "S48")
    def test_a_field_may_have_several_values_and_names(self):
        some = {"minute": [0, 30], "hour": 9, "day_of_week": ["MON", "tue"], "month": "FEB"}
        assert ticks(3, on_calendar=some) == ["02-02T09:00", "02-02T09:30", "02-03T09:00"]

    @pytest.mark.req("S32")
    def test_earliest_of_several_calendars_is_the_next_time(self):
        several = [{"minute": 0, "hour": 9}, {"minute": 30, "hour": 8}]
        assert ticks(3, on_calendar=several) == ["01-01T08:30", "01-01T09:00", "01-02T08:30"]

    def test_next_time_is_later_than_now_and_a_leap_day_is_found(self):
        schedule = only(HOURLY | {"on_calendar": {"minute": 0, "hour": 0}}).schedule
        assert schedule.trigger.next_after(NEW_YEAR) == NEW_YEAR + 86_400
        leap = {"minute": 0, "hour": 0, "month": 2, "day_of_month": 29, "day_of_week": 2}
        schedule = only(HOURLY | {"on_calendar": leap}).schedule
        assert rfc3339(schedule.trigger.next_after(NEW_YEAR)) == "2028-02-29T00:00:00Z"


NO_CALENDAR = "must be integer, non-empty list of integers, or *"
NO_TRIGGER = "at least one trigger required (on_calendar, on_startup_sec, on_unit_active_sec)"
WRONG = [
    pytest.param({"on_calender": {}}, "unknown keyword on_calender", marks=pytest.mark.req("S50")),
    pytest.param({"cron": "0 3 * * *"}, "unknown keyword cron", marks=pytest.mark.req("S3", "S50")),
    pytest.param({"jitter": "5m"}, "unknown keyword jitter", marks=pytest.mark.req("S4", "S50")),
    pytest.param({"randomized_delay_sec": 5}, "unknown keyword randomized_delay_sec",
                 marks=pytest.mark.req("S4", "S50")),
    pytest.param({"OnCalendar": "daily"}, "unknown keyword OnCalendar",
                 marks=pytest.mark.req("S2", "S50")),
    pytest.param({"on_calendar": "Mon *-*-* 03:00:00"}, "on_calendar must be a mapping, or a list of mappings",
                 marks=pytest.mark.req("S2", "S3", "S72")),
    pytest.param({"id": 5}, "id must be a non-empty string", marks=pytest.mark.req("S44", "S51")),
    pytest.param({"id": ""}, "id must be a non-empty string", marks=pytest.mark.req("S44", "S51")),
    pytest.param({"id": None}, "id must be a non-empty string", marks=pytest.mark.req("S44", "S51")),
    pytest.param({"target": ""}, "target must be a non-empty string", marks=pytest.mark.req("S45", "S51")),
    pytest.param({"target": None}, "target must be a non-empty string", marks=pytest.mark.req("S45", "S51")),
    pytest.param({"target": "bakup"}, "target 'bakup' not found in services", marks=pytest.mark.req("S45", "S52")),
    pytest.param({"target": "shell"}, "target 'shell' is not a oneshot service (its type is 'simple')",
                 marks=pytest.mark.req("S1", "S52")),
    pytest.param({"on_calendar": {"hour": 24}}, "on_calendar hour value out of range (0-23)", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"minute": [5, 60]}}, "on_calendar minute value out of range (0-59)", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"day_of_month": 0}}, "on_calendar day_of_month value out of range (1-31)", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"day_of_week": 7}}, "on_calendar day_of_week value out of range (0-6)", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"second": 30}}, "on_calendar has unknown field second", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"minute": "*/5"}}, f"on_calendar minute {NO_CALENDAR}", marks=pytest.mark.req("S3", "S72")),
    pytest.param({"on_calendar": {"minute": []}}, f"on_calendar minute {NO_CALENDAR}", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"minute": ["*"]}}, f"on_calendar minute {NO_CALENDAR}", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"hour": True}}, f"on_calendar hour {NO_CALENDAR}", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": {"hour": "MON"}}, f"on_calendar hour {NO_CALENDAR}", marks=pytest.mark.req("S72")),
    pytest.param({"on_calendar": []}, "on_calendar must be a mapping, or a list of mappings", marks=pytest.mark.req("S72")),
    pytest.param({"on_startup_sec": 0}, "on_startup_sec must be a positive number", marks=pytest.mark.req("S49")),
    pytest.param({"on_startup_sec": -5}, "on_startup_sec must be a positive number", marks=pytest.mark.req("S49")),
    pytest.param({"on_unit_active_sec": "5m"}, "on_unit_active_sec must be a positive number", marks=pytest.mark.req("S49")),
    pytest.param({"on_unit_active_sec": True}, "on_unit_active_sec must be a positive number", marks=pytest.mark.req("S49")),
    pytest.param({"on_unit_active_sec": float("nan")}, "on_unit_active_sec must be a positive number", marks=pytest.mark.req("S49")),
    pytest.param({"enabled": "no"}, "enabled must be a boolean", marks=pytest.mark.req("S46")),
    pytest.param({"persistent": 1}, "persistent must be a boolean", marks=pytest.mark.req("S47")),
    pytest.param({"id": "no id"}, "id: 'no id' is not a valid id (letters, digits", marks=pytest.mark.req("S44")),
]  # fmt: skip


@pytest.mark.parametrize(("timer", "reason"), WRONG)
@pytest.mark.req("S73", "S88")
def test_invalid_timer_is_reported_with_its_reason_and_the_others_run(timer, reason):
    wrong = {"id": "wrong", "target": "backup", "on_calendar": {"hour": 3}} | timer
    file = a_file(wrong, HOURLY)
    file["services"]["shell"] = {"argv": ["sh"], "type": "simple"}
    found = Services(file).timers()
    assert list(found.valid) == ["hourly"]
    ((_, told),) = found.invalid.items()
    assert told.startswith(reason)


@pytest.mark.parametrize(
    ("timer", "told"),
    [
        ({"on_calendar": "0 3 * * *"},
         ("on_calendar must be a mapping, or a list of mappings: '0 3 * * *' is a string; "
         "cron expressions are not supported ({hour: 3, minute: 0})")),
        ({"on_calendar": {"day_of_week": ["MON", "Mo"]}},
         f"on_calendar day_of_week {NO_CALENDAR}: 'Mo' is invalid (names such as MON are valid)"),
        ({"on_calendar": {"month": 1.5}},
         f"on_calendar month {NO_CALENDAR}: 1.5 is invalid (names such as FEB are valid)"),
        ({"on_calendar": {"hour": "3am"}}, f"on_calendar hour {NO_CALENDAR}: '3am' is invalid"),
        ({"on_calendar": {"day_of_week": 7}},
         "on_calendar day_of_week value out of range (0-6): 0 is Sunday"),
        ({"on_calendar": {"hours": 3}},
         "on_calendar has unknown field hours (did you mean 'hour'?)"),
        ({"on_calender": {"hour": 3}}, "unknown keyword on_calender (did you mean 'on_calendar'?)"),
        ({"cron": "0 3 * * *"},
         ("unknown keyword cron (known: enabled, id, on_calendar, on_startup_sec, "
         "on_unit_active_sec, persistent, target)")),
        ({"on_startup_sec": "5m"},
         "on_startup_sec must be a positive number: '5m' is not (seconds, without a unit, such as 300)"),
        ({"on_startup_sec": 10**12},
         "on_startup_sec must be a positive number: 1000000000000 is too long (at most 316224000)"),
        ({"enabled": "yes"}, "enabled must be a boolean: 'yes' is not (true or false)"),
    ],
)  # fmt: skip
@pytest.mark.req("S73")
def test_error_quotes_the_value_and_suggests_a_valid_one(timer, told):
    assert read(HOURLY | timer).invalid == {"hourly": told}


def test_suggestion_uses_the_spelling_of_the_file():
    timer = {":id": "a", ":target": "backup", ":on-calender": {":hour": 3}}
    told = "unknown keyword :on-calender (did you mean ':on-calendar'?)"
    assert read(timer).invalid == {"a": told}


@pytest.mark.req("S53")
def test_timer_without_a_trigger_is_invalid():
    assert read({"id": "wrong", "target": "backup"}).invalid == {"wrong": NO_TRIGGER}


@pytest.mark.parametrize("nothing", [None, {}])
@pytest.mark.req("S53")
def test_null_or_empty_trigger_is_ignored(nothing):
    timer = {"id": "a", "target": "backup", "on_calendar": nothing, "on_unit_active_sec": None}
    assert read(timer).invalid == {"a": NO_TRIGGER}
    found = only(timer | {"on_startup_sec": 5})
    assert (str(found.schedule.trigger.startup), found.follows_success) == ("5s", False)


@pytest.mark.parametrize("name", [5, "", "a\0b", ["a"]])
@pytest.mark.req("S79")
def test_a_state_file_without_a_name_is_refused(name):
    with pytest.raises(InvalidSchedule, match=r"state_file: .* is not a file name"):
        Services(a_file(state_file=name))


@pytest.mark.req("S49")
def test_fractional_seconds_are_rounded_up():
    schedule = only({"id": "a", "target": "backup", "on_startup_sec": 0.5}).schedule
    assert str(schedule.trigger.startup) == "1s"


def test_calendar_that_never_matches_is_invalid():
    never = {"month": 2, "day_of_month": 30, "hour": 0, "minute": 0}
    (reason,) = read(HOURLY | {"on_calendar": never}).invalid.values()
    assert reason.startswith("on_calendar")


@pytest.mark.parametrize("timer", [7, None, {}, {"id": ""}, {"id": 5}], ids=str)
def test_timer_without_an_id_is_reported_by_its_position(timer):
    assert list(read(HOURLY, timer).invalid) == ["timers[1]"]


class TestDuplicates:
    @pytest.mark.req("S54")
    def test_first_of_two_timers_with_one_id_runs(self):
        found = read(HOURLY, HOURLY | {"on_calendar": {"minute": 30}})
        assert found.valid["hourly"].schedule.trigger.minute == "0"
        assert found.invalid == {"hourly": "duplicate timer ID"}

    @pytest.mark.req("S54")
    def test_duplicate_of_an_invalid_timer_does_not_run_and_the_first_reason_stays(self):
        found = read(HOURLY | {"target": "nope"}, HOURLY)
        assert found.valid == {}
        assert found.invalid == {"hourly": "target 'nope' not found in services"}

    def test_invalid_timers_are_sorted_by_id(self):
        wrong = [HOURLY | {"id": name, "target": "nope"} for name in ("c", "a", "b")]
        assert list(read(*wrong).invalid) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        ({"argv": []}, "services.backup"),
        ({"argv": None}, "services.backup"),
        ({"env": 5}, "services.backup"),
        ({"timeout": "soon"}, "services.backup.timeout: 'soon' is not a duration"),
        ({"enabled": 1}, "services.backup: enabled must be a boolean"),
        ({"restart": True}, "services.backup.restart: no field has this name"),
    ],
)
def test_timer_of_an_invalid_service_is_invalid(world, service, problem):
    world.write(backup=service)

    async def story(world):
        found = await world.system.listed()
        return dict(found.invalid), await world.rows()

    invalid, rows = world.play(story)
    assert invalid["hourly"].startswith(problem)
    assert rows == {}


class TestGroups:
    """Timers of one service share a group of one place, with a unique name."""

    def test_timer_with_an_unshared_service_has_no_group(self):
        found = Services(a_file()).timers().valid["hourly"].schedule.policy
        assert (found.group, found.start_deadline) == (None, None)

    @pytest.mark.req("S33")
    def test_timers_that_share_a_service_have_its_group(self):
        found = Services(a_file(HOURLY, HOURLY | {"id": "other"})).timers().valid
        policies = [timer.schedule.policy for timer in found.values()]
        assert [(each.group, each.start_deadline) for each in policies] == [
            ("services/backup", 5000)
        ] * 2

    def test_characters_not_allowed_in_a_group_are_quoted(self):
        assert group_of("back up") == "services/back/20/up"
        assert group_of("back/20/up") == "services/back/2f/20/2f/up"
        assert group_of("a" * 92).startswith("services//")

    @given(st.text(min_size=1, max_size=150), st.text(min_size=1, max_size=150))
    def test_two_services_never_share_a_group(self, one, other):
        for name in (one, other):
            assert read_policy({"group": group_of(name)})
        assert (group_of(one) == group_of(other)) == (one == other)
