"""Timers of oneshot services: what they come to, and what is wrong with those that come to nothing."""

import asyncio

import pytest

from onbeat import InvalidSchedule, Onbeat
from onbeat.core.instants import parse_instant
from onbeat.core.policies import Policy, Retries
from onbeat.systems.services import define_timers, read_timers
from onbeat.testing import a_schedule

MINUTE, HOUR = 60_000, 3_600_000
HOURLY = {"id": "hourly", "target": "backup", "on_calendar": {"minute": 0}}


def a_file(*timers, backup=None, **around):
    """Return timers of a service called `backup`: one that is started hourly, unless told."""
    service = {"argv": ["./backup.sh", "--all"]} | (backup or {})
    return {"services": {"backup": service}, "timers": timers or [HOURLY]} | around


def only(found):
    assert found.invalid == {}
    (schedule,) = found.schedules
    return schedule


def test_a_timer_starts_its_service_at_its_times(world):
    async def story(world):
        await define_timers(
            world.beat.service, a_file(backup={"cwd": "/", "env": {"LEVEL": "full"}})
        )
        await world.let_pass("1h", "1h")

    world.play(story)
    first, second = world.commands.attempts
    assert first.target.fields == {
        "command": ["./backup.sh", "--all"], "cwd": "/", "env": {"LEVEL": "full"},
    }  # fmt: skip
    assert second.run_at == first.run_at + 3600 == parse_instant("2026-01-01T14:00:00Z")


class TestRetry:
    @pytest.mark.req("S36")
    def test_a_service_that_fails_is_started_again_after_30_s_2_m_and_10_m(self, world):
        async def story(world):
            await define_timers(world.beat.service, a_file())
            world.commands.exit_code = 1
            await world.let_pass("1h")
            started = []
            for delay in (MINUTE // 2, 2 * MINUTE, 10 * MINUTE):
                await world.let_pass(delay - 1)
                before = len(world.commands.attempts)
                await world.let_pass(1)
                started.append(len(world.commands.attempts) - before)
            await world.let_pass("30m")
            return started, await world.statuses()

        started, statuses = world.play(story)
        assert started == [1, 1, 1]
        assert [attempt.attempt for attempt in world.commands.attempts] == [1, 2, 3, 4]
        assert statuses == [("FAILED", "exit")]

    @pytest.mark.req("S36")
    def test_other_delays_can_be_asked_for_and_none(self):
        assert only(read_timers(a_file(retry=["5s", "1h"]))).policy.retry.delays == (5000, HOUR)
        assert only(read_timers(a_file(retry=[]))).policy.retry.delays == ()

    def test_a_death_by_a_signal_is_the_end(self, world):
        async def story(world):
            await define_timers(world.beat.service, a_file())
            world.commands.exit_code = -9
            await world.let_pass("1h", "30m")
            return await world.statuses()

        assert world.play(story) == [("FAILED", "signal")]
        assert len(world.commands.attempts) == 1


def test_what_is_left_out_is_as_this_system_has_it():
    policy = only(read_timers(a_file())).policy
    assert policy == Policy(
        catchup="once", catchup_window=24 * HOUR, overlap="skip", jitter=0,
        retry=Retries((30_000, 2 * MINUTE, 10 * MINUTE)),
    )  # fmt: skip


def test_one_that_is_not_persistent_catches_nothing_up():
    found = only(read_timers(a_file(HOURLY | {"persistent": False})))
    assert found.policy.catchup == "none"


def test_how_far_back_it_catches_up_can_be_asked_for():
    found = only(read_timers(a_file(catchup_window="2h")))
    assert found.policy.catchup_window == 2 * HOUR


def test_a_service_may_have_a_time_to_end_in_and_all_timers_a_zone():
    found = only(read_timers(a_file(backup={"timeout": "30m"}, timezone="Europe/Berlin")))
    assert found.policy.timeout == 30 * MINUTE
    assert found.trigger.timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("timer", "service", "reason"),
    [
        ({"enabled": False}, {}, "disabled"),
        ({}, {"enabled": False}, "disabled_target"),
        ({"enabled": False}, {"enabled": False}, "disabled"),
    ],
)
@pytest.mark.req("S34", "S35", "S68")
def test_one_that_is_disabled_or_whose_service_is_skips_its_ticks_and_says_so(
    world, timer, service, reason
):
    async def story(world):
        found = await define_timers(world.beat.service, a_file(HOURLY | timer, backup=service))
        await world.let_pass("1h")
        return found, await world.beat.runs(), (await world.beat.schedules())[0]

    found, runs, row = world.play(story)
    assert (found.disabled, found.invalid) == ({"hourly": reason}, {})
    assert [(run.status, run.reason) for run in runs] == [("SKIPPED", reason)]
    assert (row.last_miss_reason, row.last_missed_at) == (reason, runs[0].finished_at)
    assert world.commands.attempts == []


@pytest.mark.req("S30", "S31", "S32", "S71")
def test_one_may_start_after_a_start_and_after_a_success_and_at_a_time(world, tmp_path):
    timer = HOURLY | {"on_startup_sec": 90, "on_unit_active_sec": 600.5}
    database, launchers = f"sqlite:///{tmp_path}/timers.db", {"command": world.commands}

    async def from_a_start(*lengths):
        world.beat = Onbeat(database, clock=world.clock, launchers=launchers)
        async with world.beat:
            await define_timers(world.beat.service, a_file(timer))
            await world.let_pass(*lengths)

    asyncio.run(from_a_start("50m", "10m"))  # defined after the start, and nothing had succeeded
    asyncio.run(from_a_start("90s", "511s"))
    first, started, followed = [attempt.run_at for attempt in world.commands.attempts]
    assert started == first + 90
    assert followed == first + 601


@pytest.mark.req("S59")
def test_what_happens_to_a_timer_is_told_as_events(world):
    async def story(world):
        await define_timers(world.beat.service, a_file(retry=["1m"]))
        world.commands.exit_code = 3
        await world.let_pass("1h")
        world.commands.exit_code = 0
        await world.let_pass("1m")
        found = await world.beat._opened._store.events()
        return [row.event for row in found if getattr(row.event, "schedule_id", "") == "hourly"]

    events = world.play(story)
    assert [event.name for event in events] == [
        "schedule.created", "run.started", "run.retrying", "run.claimed", "run.started",
        "run.succeeded",
    ]  # fmt: skip
    assert (events[2].reason, events[2].attempt) == ("exit", 1)


WRONG = [
    ({"on_calender": {}}, "on_calender: no field has this name (did you mean 'on_calendar'?)"),
    ({"target": "bakup"}, "target: no service is called 'bakup' (did you mean 'backup'?)"),
    ({"target": ""}, "target: no service is called '' (known: backup)"),
    ({"target": None}, "target: no service is called None (known: backup)"),
    ({"on_calendar": {"hour": 25}}, "on_calendar.hour: '25' is no hour (0 to 23)"),
    ({"on_calendar": {"second": 30}}, "on_calendar.second: no field has this name"),
    ({"on_calendar": "03:00"}, "on_calendar: '03:00' is no set of fields"),
    ({"on_startup_sec": 0}, "on_startup_sec: 0 is no number of seconds (a positive number"),
    ({"on_unit_active_sec": "5m"}, "on_unit_active_sec: '5m' is no number of seconds"),
    ({"on_unit_active_sec": True}, "on_unit_active_sec: True is no number of seconds"),
    ({"enabled": "no"}, "enabled: 'no' is neither true nor false (true)"),
    ({"persistent": 1}, "persistent: 1 is neither true nor false (true)"),
    ({"id": "no id"}, "id: 'no id' is no id (letters, digits"),
]


@pytest.mark.parametrize(("timer", "problem"), WRONG, ids=str)
def test_one_that_is_wrong_is_told_of_and_the_others_run(timer, problem):
    wrong = {"id": "wrong", "target": "backup", "on_calendar": {"hour": 3}} | timer
    found = read_timers(a_file(wrong, HOURLY))
    assert [schedule.schedule_id for schedule in found.schedules] == ["hourly"]
    ((_, refused),) = found.invalid.items()
    assert problem in str(refused)


def test_one_without_a_time_is_wrong():
    found = read_timers(a_file({"id": "wrong", "target": "backup"}))
    hint = "(on_calendar, on_startup_sec or on_unit_active_sec)"
    assert str(found.invalid["wrong"]) == f"nothing says when it is to start {hint}"


@pytest.mark.parametrize("timer", [7, None, {}, {"id": ""}, {"id": 5}], ids=str)
def test_one_without_an_id_is_told_of_by_its_place(timer):
    found = read_timers(a_file(HOURLY, timer))
    assert list(found.invalid) == ["[1]"]


def test_of_two_with_one_id_the_first_runs():
    later = HOURLY | {"on_calendar": {"minute": 30}}
    found = read_timers(a_file(HOURLY, later))
    (schedule,) = found.schedules
    assert schedule.trigger.minute == "0"
    assert str(found.invalid["[1]"]) == "id: an earlier timer is called 'hourly' (another id)"


@pytest.mark.parametrize("nothing", [None, [], "timers"])
def test_what_is_no_set_of_timers_is_refused(nothing):
    with pytest.raises(InvalidSchedule, match="is no set of fields"):
        read_timers(nothing)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({7: []}, "7: no field has this name"),
        ({"timer": []}, "timer: no field has this name (did you mean 'timers'?)"),
        ({"services": []}, "services: [] is no set of services"),
        ({"timers": {"hourly": {}}}, "timers: {'hourly': {}} is no list"),
        ({"retry": "30s"}, "retry: '30s' is no list of delays ([30s, 2m, 10m] or"),
        ({"timezone": "Europe/Berln"}, "timezone: no zone is called 'Europe/Berln'"),
        ({"timezone": None}, "timezone: "),
        ({"catchup_window": 5}, "catchup_window: the number 5 has no unit"),
    ],
)
def test_what_is_wrong_with_the_whole_is_refused(given, problem):
    with pytest.raises(InvalidSchedule) as refused:
        read_timers(a_file() | given)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("service", "problem"),
    [
        ({"argv": "./backup.sh --all"}, "services.broken.argv: './backup.sh --all' is no list"),
        ({"argv": []}, "services.broken.argv: "),
        ({"env": 5}, "services.broken.env: "),
        ({"timeout": "soon"}, "services.broken.timeout: 'soon' is not a duration"),
        ({"enabled": 1}, "services.broken.enabled: 1 is neither true nor false"),
        ({"argv": None}, "services.broken.argv: "),
    ],
)
def test_a_service_that_could_never_start_is_told_of_when_its_timers_are_defined(
    world, service, problem
):
    async def story(world):
        file = a_file(HOURLY | {"target": "broken"}, HOURLY | {"id": "right"})
        file["services"]["broken"] = {"argv": ["true"]} | service
        found = await define_timers(world.beat.service, file)
        await world.let_pass("1h")
        return found

    found = world.play(story)
    assert problem in str(found.invalid["hourly"])
    assert [attempt.schedule_id for attempt in world.commands.attempts] == ["right"]


@pytest.mark.parametrize("change", [{"target": "gone"}, {"id": "other"}])
def test_one_that_is_no_longer_there_runs_no_more(world, change):
    async def story(world):
        await define_timers(world.beat.service, a_file())
        await world.let_pass("1h")
        await define_timers(world.beat.service, a_file(HOURLY | change))
        await world.let_pass("1h")
        return [row.schedule_id for row in await world.beat.schedules()]

    there = world.play(story)
    assert there == (["other"] if "id" in change else [])
    ran = ["hourly", "other"] if "id" in change else ["hourly"]
    assert [attempt.schedule_id for attempt in world.commands.attempts] == ran


def test_schedules_that_are_no_timers_are_let_be(world):
    async def story(world):
        await world.beat.define(a_schedule("hourly", every="7h"), a_schedule("own"))
        found = await define_timers(world.beat.service, a_file())
        return found, [row.schedule_id for row in await world.beat.schedules()]

    found, there = world.play(story)
    assert str(found.invalid["hourly"]) == "id: 'hourly' is there, and no timer (another id)"
    assert there == ["hourly", "own"]
