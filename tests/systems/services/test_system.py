"""Running timers with their gate open: starts, skips, retries and switches."""

import json

import msgspec
import pytest

from onbeat import Onbeat
from onbeat.core.runs.run import Accepted, Failed, Succeeded
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.errors import InvalidSchedule, NoSuchSchedule
from onbeat.systems.services import timer_list
from onbeat.systems.services.part import timers_of
from onbeat.testing import a_schedule
from tests.given_settings import given_settings
from tests.systems.services.conftest import HOURLY, Timed, run

MINUTE = 60_000
TIMEOUT = Failed("it took too long", "timeout", exit_code=-9)


def at(attempt):
    return rfc3339(attempt.run_at)[11:19]


@pytest.mark.req("S27", "S56")
def test_timer_starts_its_service_at_its_times(world):
    world.write(backup={"cwd": "/", "env": {"LEVEL": "full"}, "timeout": "30m"})
    world.play(lambda world: world.let_pass("1h", "1h"))
    first, second = world.commands.attempts
    assert first.target.kind == "command"
    assert first.target.fields == {
        "command": ["./backup.sh", "--all"], "cwd": "/", "env": {"LEVEL": "full"},
    }  # fmt: skip
    assert first.timeout == 30 * MINUTE
    assert second.run_at == first.run_at + 3600 == parse_instant("2026-01-01T14:00:00Z")


@pytest.mark.req("S56", "S61", "S62")
def test_services_run_as_commands_with_output_and_timeout(tmp_path):
    services = {
        "greets": {"argv": ["sh", "-c", "echo hello from $WHO"], "env": {"WHO": "a service"}},
        "hangs": {"argv": ["sleep", "60"], "timeout": "1s"},
    }
    timers = [{"id": name, "target": name, "on_startup_sec": 3600} for name in services]
    path = tmp_path / "services.json"
    fields = {"timers_enabled": True, "services": services, "timers": timers, "retry": [0]}
    path.write_text(json.dumps(fields))
    settings = given_settings(database=f"sqlite:///{tmp_path}/onbeat.db", services_file=str(path))

    async def story():
        async with Onbeat(settings=settings) as beat:
            for name in services:
                await beat.start(name)
            await beat.settle()
            listed = {
                each.timer_id: each for each in (await beat.systems["services"].listed()).timers
            }
            return {row.schedule_id: row for row in await beat.runs()}, listed

    runs, listed = run(story())
    assert (runs["greets"].status, runs["greets"].log_tail) == ("SUCCESS", "hello from a service\n")
    hung = runs["hangs"]
    assert (hung.status, hung.reason, hung.attempt) == ("FAILED", "timeout", 1)
    assert listed["greets"].history.last_exit == 0
    assert listed["hangs"].history.last_failure_at == hung.finished_at


class TestTriggers:
    @pytest.mark.req("S30", "S31", "S32", "S71")
    def test_timer_may_combine_startup_success_and_calendar(self, world):
        world.write(HOURLY | {"on_startup_sec": 90, "on_unit_active_sec": 600.5})
        world.play(lambda world: world.let_pass("90s", "601s", "49m"))
        assert [at(each) for each in world.commands.attempts] == [
            "12:01:30",
            "12:11:31",
            "13:00:00",
        ]

    @pytest.mark.req("S30", "S71")
    def test_each_start_of_the_scheduler_has_its_startup_tick(self, world):
        world.write({"id": "once", "target": "backup", "on_startup_sec": 10})
        world.play(lambda world: world.let_pass("10s", "1h"))
        world.play(lambda world: world.let_pass("10s", "1h"))
        assert world.started == ["once", "once"]

    @pytest.mark.req("S71", "S89")
    def test_skipped_startup_tick_is_not_repeated(self, world):
        once = {"id": "once", "target": "backup", "on_startup_sec": 10, "enabled": False}

        async def story(world):
            await world.let_pass("10s")
            await world.edit(once | {"enabled": True})
            await world.let_pass("1h")
            return await world.statuses()

        world.write(once)
        assert world.play(story) == [("SKIPPED", "disabled")]

    @pytest.mark.req("S31")
    def test_timer_that_only_follows_a_success_does_not_start_by_itself(self, world):
        alone = {"id": "alone", "target": "backup", "on_unit_active_sec": 60}

        async def story(world):
            await world.let_pass("2h")
            before = list(world.started)
            await world.beat.start("alone")
            await world.beat.settle()
            await world.let_pass("60s")
            return before

        world.write(alone)
        assert world.play(story) == []
        assert world.started == ["alone", "alone"]

    @pytest.mark.req("S60")
    def test_timers_due_at_the_same_time_start_in_a_fixed_order(self, tmp_path):
        names = ["d", "a", "c", "b"]
        orders = []
        for n, listed in enumerate([names, names[::-1]]):
            (tmp_path / str(n)).mkdir()
            world = Timed(tmp_path / str(n))
            world.write(*({**HOURLY, "id": name} for name in listed))
            world.play(lambda world: world.let_pass("1h"))
            orders.append(world.started)
        assert orders == [["a", "b", "c", "d"]] * 2

    @pytest.mark.req("S55", "S67")
    def test_each_timer_has_its_next_time(self, world):
        world.write(HOURLY, {**HOURLY, "id": "nightly", "on_calendar": {"hour": 3, "minute": 30}})

        async def story(world):
            first = [(await world.standing(name))["next_run_at"] for name in ("hourly", "nightly")]
            await world.let_pass("1h")
            return first, (await world.standing())["next_run_at"]

        first, second = world.play(story)
        assert first == ["2026-01-01T13:00:00.000Z", "2026-01-02T03:30:00.000Z"]
        assert second == "2026-01-01T14:00:00.000Z"


class TestTwoTimersOfOneService:
    """A service never runs twice concurrently, whichever timer starts it."""

    FIRST = HOURLY | {"id": "first", "on_calendar": {"hour": 13, "minute": 0}}
    SECOND = HOURLY | {"id": "second", "on_calendar": {"hour": 13, "minute": 1}}

    @pytest.mark.req("S33", "S68")
    def test_second_timer_is_skipped_for_overlap_while_the_service_runs(self, world):
        async def story(world):
            world.commands.exit_code = None
            await world.let_pass("1h", "1m", "5s", "1s")
            (run,) = await world.beat.runs("second")
            return run.status, (await world.standing("second"))["miss_reason"]

        world.write(self.FIRST, self.SECOND, backup={"timeout": "30m"})
        assert world.play(story) == ("SKIPPED", "overlap")
        assert world.started == ["first"]
        assert world.state["timers"]["second"]["last_miss_reason"] == "overlap"

    @pytest.mark.req("S33", "S57")
    def test_retry_of_one_timer_does_not_start_while_the_service_runs(self, world):
        async def story(world):
            world.commands.outcomes = {"first": Failed("it failed", "exit", exit_code=3)}
            world.commands.exit_code = None
            await world.let_pass("1h", "1m", "1m", "5s", "1s")
            (run,) = await world.beat.runs("first")
            return run.status, (await world.standing("first"))["miss_reason"]

        world.write(self.FIRST, self.SECOND, retry=["2m"], backup={"timeout": "30m"})
        assert world.play(story) == ("FAILED", "overlap")
        assert world.started == ["first", "second"]

    @pytest.mark.req("S33")
    def test_timer_starts_when_the_service_has_ended(self, world):
        world.write(self.FIRST, self.SECOND)
        world.play(lambda world: world.let_pass("1h", "1m"))
        assert world.started == ["first", "second"]

    @pytest.mark.req("S33")
    def test_timers_of_different_services_run_in_parallel(self, world):
        async def story(world):
            world.commands.exit_code = None
            await world.let_pass("1h", "1m")

        services = {name: {"argv": ["./x.sh"], "timeout": "30m"} for name in ("backup", "report")}
        world.write(self.FIRST, self.SECOND | {"target": "report"}, services=services)
        world.play(story)
        assert world.started == ["first", "second"]


UNIT = {"id": "unit", "target": "backup", "on_startup_sec": 1, "on_unit_active_sec": 3600}


class TestAfterASuccess:
    """`on_unit_active_sec`: a timer continues after its last success, whatever happened to a tick."""

    async def first(self, world):
        await world.let_pass("1s", "1h")
        assert world.started == ["unit", "unit"]
        world.commands.attempts.clear()

    @pytest.mark.req("S31")
    def test_timer_starts_its_seconds_after_each_success(self, world):
        async def story(world):
            world.commands.exit_code = None
            await world.let_pass("1s", "10m")
            (run,) = await world.beat.runs()
            world.commands.exit_code = 0
            await world.beat.service.report(run.run_id, Succeeded())
            await world.let_pass("59m59s")
            before = len(world.started)
            await world.let_pass("1s")
            return before, (await world.standing("unit"))["last_run_at"]

        world.write(UNIT, backup={"timeout": "1h"})
        assert world.play(story) == (1, "2026-01-01T13:10:01.000Z"), "it ended at 12:10:01"
        assert world.started == ["unit", "unit"]

    @pytest.mark.parametrize(
        ("timer", "away"), [({"persistent": False}, "2h"), ({}, "48h"), ({"persistent": False}, "48h")]
    )  # fmt: skip
    @pytest.mark.req("S31")
    def test_timer_after_a_success_continues_after_a_missed_tick(self, world, timer, away):
        alone = {"id": "unit", "target": "backup", "on_unit_active_sec": 3600}

        async def first(world):
            await world.beat.start("unit")
            await world.beat.settle()
            await world.let_pass("1h")
            assert len(world.started) == 2

        async def second(world):
            await world.beat.settle()  # missed ticks are recorded
            await world.look()
            await world.let_pass("1s")
            caught_up = len(world.started)
            await world.let_pass("1h", "1h")
            return caught_up

        world.write(alone | timer)
        world.play(first)
        world.commands.attempts.clear()
        world.clock.advance(away)
        assert world.play(second) == 1
        assert len(world.started) == 3

    @pytest.mark.parametrize("off", ["the timer", "its service"])
    @pytest.mark.req("S31", "S34", "S35")
    def test_timer_after_a_success_continues_after_a_tick_skipped_as_disabled(self, world, off):
        async def story(world):
            await self.first(world)
            if off == "the timer":
                await world.switch("unit", on=False)
            else:
                await world.edit(UNIT, backup={"enabled": False})
            for length in ("2h", "1s", "1s", "1h"):  # with a step of the system after each
                await world.let_pass(length)
            skipped = [row.reason for row in await world.beat.runs() if row.status == "SKIPPED"]
            if off == "the timer":
                await world.switch("unit", on=True)
            else:
                await world.edit(UNIT)
            await world.let_pass("1s", "1h")
            return skipped

        world.write(UNIT)
        skipped = world.play(story)
        assert skipped == ["disabled" if off == "the timer" else "disabled_target"], "only once"
        assert len(world.started) == 2

    @pytest.mark.parametrize(("seconds", "then"), [(1800, "13:30:01"), (7200, "15:00:01")])
    @pytest.mark.req("S31")
    def test_timer_after_a_success_continues_with_an_edited_delay(self, world, seconds, then):
        async def story(world):
            await self.first(world)
            await world.edit(UNIT | {"on_unit_active_sec": seconds})
            next_run_at = (await world.standing("unit"))["next_run_at"]
            await world.let_pass(f"{seconds}s", f"{seconds}s")
            return next_run_at

        world.write(UNIT)
        assert world.play(story) == f"2026-01-01T{then}.000Z"
        assert len(world.started) == 2

    @pytest.mark.req("S31")
    def test_delay_edited_while_down_counts_from_the_start(self, world):
        world.write(UNIT)
        world.play(self.first)
        world.commands.attempts.clear()
        world.clock.advance("5h")  # ticks of the old delay are not started
        world.write(UNIT | {"on_startup_sec": 86_400, "on_unit_active_sec": 7200})

        async def story(world):
            await world.let_pass("1s", "1h")
            at_once = list(world.started)
            await world.let_pass("1h")
            return at_once, await world.statuses("unit")

        at_once, statuses = world.play(story)
        assert at_once == []
        assert world.started == ["unit"]
        assert ("SKIPPED", "edited") in statuses

    @pytest.mark.req("S31")
    def test_shortened_delay_that_has_passed_counts_from_the_edit(self, world):
        async def story(world):
            await self.first(world)
            world.commands.attempts.clear()
            await world.let_pass("50m")
            await world.edit(UNIT | {"on_unit_active_sec": 60})
            await world.let_pass("59s")
            at_once = list(world.started)
            await world.let_pass("1s")
            return at_once

        world.write(UNIT)
        assert world.play(story) == [], "an edit starts nothing of the past"
        assert world.started == ["unit"]

    @pytest.mark.req("S31", "S91")
    def test_failure_does_not_trigger_a_timer_after_a_success(self, world):
        async def story(world):
            world.commands.exit_code = -15
            await world.let_pass("1s", "10m", "2h")

        world.write(UNIT)
        world.play(story)
        assert world.started == ["unit"]

    @pytest.mark.parametrize("edit", [{}, {"on_unit_active_sec": 60}])
    @pytest.mark.req("S31", "S91")
    def test_after_a_failure_the_timer_waits_for_the_next_success(self, world, edit):
        async def story(world):
            await self.first(world)
            world.commands.exit_code = 1
            await world.let_pass("1h", "30s")
            world.commands.exit_code = 0
            failed = len(world.started)
            await world.edit(UNIT | edit)
            await world.let_pass("1h", "24h")
            assert len(world.started) == failed == 2
            await world.beat.start("unit")
            await world.beat.settle()
            await world.let_pass("1h")

        world.write(UNIT, retry=["30s"])
        world.play(story)
        assert len(world.started) == 4

    @pytest.mark.req("S31")
    def test_canceled_run_does_not_start_again_immediately(self, world):
        async def story(world):
            await self.first(world)
            world.commands.exit_code = None
            await world.let_pass("1h")
            (run, *_) = await world.beat.runs()
            await world.beat.service.cancel(run.run_id)
            await world.beat.settle()
            await world.look()
            world.commands.exit_code = 0
            await world.let_pass("1s", "24h")
            return [row.status for row in await world.beat.runs()][:1]

        world.write(UNIT, backup={"timeout": "30h"})
        assert world.play(story) == ["CANCELED"]
        assert world.started == ["unit"]

    @pytest.mark.req("S31", "S33")
    def test_running_timer_is_not_rearmed(self, world):
        async def story(world):
            await self.first(world)
            world.commands.exit_code = None
            await world.let_pass("1h")
            before = await world.rows()
            await world.let_pass("1h", "1h")
            assert await world.rows() == before

        world.write(UNIT, backup={"timeout": "30h"})
        world.play(story)
        assert world.started == ["unit"]

    def test_paused_timer_stays_paused(self, world):
        async def story(world):
            await self.first(world)
            await world.beat.service.pause("unit")
            await world.let_pass("2h")
            return (await world.rows())["unit"].paused

        world.write(UNIT)
        assert world.play(story)
        assert world.started == []


class TestSkips:
    @pytest.mark.parametrize(
        ("timer", "service", "reason"),
        [
            ({"enabled": False}, {}, "disabled"),
            ({}, {"enabled": False}, "disabled_target"),
            ({"enabled": False}, {"enabled": False}, "disabled"),
        ],
    )
    @pytest.mark.req("S34", "S35", "S68", "S89")
    def test_disabled_timer_or_service_skips_ticks_with_that_reason(
        self, world, timer, service, reason
    ):
        async def story(world):
            await world.let_pass("1h")
            return await world.beat.runs(), await world.standing()

        world.write(HOURLY | timer, backup=service)
        runs, standing = world.play(story)
        assert [(row.status, row.reason) for row in runs] == [("SKIPPED", reason)]
        assert (standing["miss_reason"], standing["last_miss_at"]) == (
            reason, "2026-01-01T13:00:00.000Z",
        )  # fmt: skip
        assert world.started == []

    @pytest.mark.req("S33", "S68", "S89")
    def test_tick_is_skipped_for_overlap_while_its_service_runs(self, world):
        async def story(world):
            world.commands.exit_code = None
            await world.let_pass("1m", "1m")
            return await world.statuses(), (await world.standing())["miss_reason"]

        world.write(HOURLY | {"on_calendar": {"minute": "*"}}, backup={"timeout": "1h"})
        assert world.play(story) == ([("STARTED", None), ("SKIPPED", "overlap")], "overlap")

    @pytest.mark.req("S40")
    def test_failing_service_does_not_affect_other_timers(self, world):
        async def story(world):
            world.commands.outcomes = {"hourly": Failed("it failed", "exit", exit_code=1)}
            await world.let_pass("1h")
            return {row.schedule_id: row.status for row in await world.beat.runs()}

        world.write(HOURLY, {**HOURLY, "id": "other"})
        assert world.play(story) == {"hourly": "ENQUEUED", "other": "SUCCESS"}


class TestRetry:
    @pytest.mark.req("S36", "S38", "S57", "S89")
    def test_a_service_that_fails_is_started_again_after_30_s_2_m_and_10_m(self, world):
        async def story(world):
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

        world.write()
        started, statuses = world.play(story)
        assert started == [1, 1, 1]
        assert [attempt.attempt for attempt in world.commands.attempts] == [1, 2, 3, 4]
        assert statuses == [("FAILED", "exit")]

    @pytest.mark.parametrize(
        ("outcome", "ended"),
        [
            (Failed("ended", "signal", retryable=False, exit_code=-9), ("FAILED", "signal")),
            (TIMEOUT, ("FAILED", "timeout")),
            (Failed("no such program", "launch_failed"), ("FAILED", "launch_failed")),
        ],
    )
    @pytest.mark.req("S39", "S76")
    def test_only_a_positive_exit_code_is_retried(self, world, outcome, ended):
        async def story(world):
            world.commands.outcomes = {"hourly": outcome}
            await world.let_pass("1h", "30m")
            return await world.statuses()

        world.write()
        assert world.play(story) == [ended]
        assert world.started == ["hourly"]

    @pytest.mark.req("S70")
    def test_listing_shows_the_retry_and_the_failure(self, world):
        async def story(world):
            world.commands.exit_code = 7
            await world.let_pass("1h")
            waiting = await world.standing()
            world.commands.exit_code = 0
            await world.let_pass("30s")
            return waiting, await world.standing()

        world.write()
        waiting, over = world.play(story)
        assert waiting["retry_at"] == "2026-01-01T13:00:30.000Z"
        assert (waiting["last_exit"], waiting["last_failure_at"]) == (7, "2026-01-01T13:00:00.000Z")
        assert (over["retry_at"], over["last_exit"]) == (None, 0)
        assert over["last_failure_at"] == waiting["last_failure_at"]

    @pytest.mark.req("S69", "S70")
    def test_listing_shows_the_failure_while_a_retry_runs(self, world):
        async def story(world):
            world.commands.exit_code = 7
            await world.let_pass("1h")
            world.commands.exit_code = None
            await world.let_pass("30s")
            return await world.standing(), world.state["timers"]["hourly"]

        world.write(backup={"timeout": "1h"})
        for told in world.play(story):
            assert told["last_exit"] == 7
            assert told["last_failure_at"] == "2026-01-01T13:00:00.000Z"
            assert told["last_run_at"] == "2026-01-01T13:00:30.000Z"

    @pytest.mark.req("S37")
    def test_new_tick_has_all_its_retries(self, world):
        async def story(world):
            world.commands.exit_code = 1
            await world.let_pass("20m", "30s", "2m", "17m30s", "30s", "2m", "10m")
            return [(attempt.run_at, attempt.attempt) for attempt in world.commands.attempts]

        world.write(HOURLY | {"on_calendar": {"minute": [20, 40]}})
        first, second = (parse_instant(f"2026-01-01T12:{n}:00Z") for n in (20, 40))
        assert world.play(story) == [
            (first, 1), (first, 2), (first, 3), (second, 1), (second, 2), (second, 3), (second, 4),
        ]  # fmt: skip

    @pytest.mark.req("S33", "S89")
    def test_a_skip_for_overlap_clears_a_pending_retry_of_that_service_timer(self, world):
        # A backfilled tick runs, while a later one waits for its retry.
        eleven = parse_instant("2026-01-01T11:00:00Z")

        async def story(world):
            world.commands.exit_code = 1
            await world.let_pass("5m")
            world.commands.exit_code = None
            await world.beat.service.backfill("hourly", first=eleven, last=eleven + 600)
            await world.beat.settle()
            before = await world.statuses()
            await world.let_pass("55m")
            return before, await world.statuses(), (await world.standing())["retry_at"]

        timer = HOURLY | {"on_calendar": {"minute": [0, 5]}}
        world.write(timer, retry=["2h"], backup={"timeout": "3h"})
        before, after, retry_at = world.play(story)
        assert before[:2] == [("ENQUEUED", "exit"), ("STARTED", None)]
        assert (after[0], after[-1], retry_at) == (
            ("FAILED", "superseded"), ("SKIPPED", "overlap"), None,
        )  # fmt: skip

    @pytest.mark.req("S34", "S89")
    def test_a_skip_as_disabled_clears_a_pending_retry_of_that_service_timer(self, world):
        timer = HOURLY | {"on_calendar": {"minute": [0, 5, 10]}}

        async def story(world):
            world.commands.exit_code = 1
            await world.let_pass("5m")
            await world.switch("hourly", on=False)
            await world.let_pass("5m")
            await world.switch("hourly", on=True)
            await world.let_pass("49m")
            return await world.statuses()

        world.write(timer, retry=["20m"])
        assert world.play(story) == [("FAILED", "disabled"), ("SKIPPED", "disabled")]
        assert world.started == ["hourly"]

    @pytest.mark.req("S66")
    @pytest.mark.parametrize("before", [None, 0], ids=["first run", "after a success"])
    @pytest.mark.parametrize("drop", ["disabled", "canceled"])
    def test_dropped_retry_leaves_the_exit_code_of_its_last_attempt(self, world, drop, before):
        async def story(world):
            if before is not None:
                await world.let_pass("1h")
                assert (await world.standing())["last_exit"] == before
            world.commands.exit_code = 7
            await world.let_pass("1h")
            waiting = await world.standing()
            if drop == "disabled":
                await world.edit(HOURLY | {"enabled": False}, retry=["2h"])
                await world.let_pass("1h")
            else:
                (run, *_) = await world.beat.runs()
                await world.beat.cancel(run.run_id)
                await world.look()
            return waiting, await world.standing(), world.state["timers"]["hourly"]

        world.write(retry=["2h"])
        waiting, dropped, kept = world.play(story)
        assert (waiting["last_exit"], waiting["retry_attempt"]) == (7, 1)
        assert (dropped["last_exit"], dropped["retry_at"]) == (7, None)
        assert dropped["last_run_at"] == waiting["last_run_at"]
        assert (kept["last_exit"], kept["last_run_at"]) == (7, dropped["last_run_at"])

    @pytest.mark.req("S66")
    def test_dropped_retry_keeps_its_exit_code_where_there_are_many_timers(self, world):
        many = [HOURLY | {"id": f"t{n:02}"} for n in range(25)]

        async def story(world):
            await world.let_pass("1h")
            world.commands.exit_code = 7
            await world.let_pass("1h")
            await world.edit(*(each | {"enabled": False} for each in many), retry=["2h"])
            await world.let_pass("1h")
            return [await world.standing(each["id"]) for each in many]

        world.write(*many, retry=["2h"])
        found = world.play(story)
        told = {(each["last_exit"], each["last_run_at"]) for each in found}
        assert told == {(7, "2026-01-01T14:00:00.000Z")}

    @pytest.mark.req("S70", "S81")
    def test_a_retry_of_a_timer_survives_a_restart(self, world):
        world.write()
        world.commands.exit_code = 1
        world.play(lambda world: world.let_pass("1h"))
        world.commands.exit_code = 0
        world.play(lambda world: world.let_pass("30s"))
        assert [attempt.attempt for attempt in world.commands.attempts] == [1, 2]


class TestCatchUp:
    @pytest.mark.parametrize(("late", "ran"), [("9s", ["hourly"]), ("11s", []), ("50s", [])])
    @pytest.mark.req("S41", "S58")
    def test_non_persistent_timer_starts_only_within_ten_seconds(self, world, late, ran):
        world.write(HOURLY | {"persistent": False})
        world.play(lambda world: world.let_pass("59m"))
        world.clock.advance("1m")
        world.clock.advance(late)
        world.play(lambda world: world.beat.settle())
        assert world.started == ran

    @pytest.mark.parametrize(("persistent", "ran"), [(True, ["catchup"]), (False, [])])
    @pytest.mark.req("S41", "S47", "S58")
    def test_persistent_timer_catches_up_once_after_downtime(self, world, persistent, ran):
        world.write(HOURLY | {"persistent": persistent})
        world.play(lambda world: world.let_pass("1m"))
        world.clock.advance("5h30m")

        async def story(world):
            await world.beat.settle()
            return [row.triggered_by for row in await world.beat.runs() if row.status == "SUCCESS"]

        assert world.play(story) == ran

    @pytest.mark.req("S42")
    def test_ticks_older_than_the_window_are_not_caught_up(self, world):
        nightly = HOURLY | {"on_calendar": {"hour": 3, "minute": 0}}
        world.write(nightly, catchup_window="2h")
        world.play(lambda world: world.let_pass("1m"))
        world.clock.advance("23h")
        world.play(lambda world: world.let_pass("1s"))
        assert world.started == []

    @pytest.mark.req("S58")
    def test_catch_up_run_and_next_tick_are_separate_runs(self, world):
        world.write()
        world.play(lambda world: world.let_pass("1m"))
        world.clock.advance("2h30m")
        world.play(lambda world: world.let_pass("1s", "30m"))
        assert [at(each) for each in world.commands.attempts] == ["14:00:00", "15:00:00"]


@pytest.mark.req("S59", "S62")
def test_runs_of_a_timer_are_events(world):
    async def story(world):
        world.commands.exit_code = 3
        await world.let_pass("1h")
        world.commands.exit_code = 0
        await world.let_pass("1m")
        found = await world.beat.service.events(after=0)
        return [row.event for row in found if getattr(row.event, "schedule_id", "") == "hourly"]

    world.write(retry=["1m"])
    events = world.play(story)
    assert [event.name for event in events] == [
        "schedule.created", "run.started", "run.retrying", "run.claimed", "run.started",
        "run.succeeded",
    ]  # fmt: skip
    assert (events[2].reason, events[2].attempt) == ("exit", 1)
    told = [msgspec.to_builtins(events[n]).get("triggered_by") for n in (1, 4)]
    assert told == [None, "retry"]


class TestCells:
    """Cells of the table: ENABLED, NEXT-RUN and EXIT."""

    async def cells(self, world):
        found = await world.system.listed()
        (timer,) = found.timers
        _, _, enabled, _, next_run, exit_code, _ = timer.cells(found.now)
        return enabled, next_run, exit_code

    @pytest.mark.req("S84")
    def test_paused_timer_is_shown_as_paused(self, world):
        async def story(world):
            before = await self.cells(world)
            await world.beat.service.pause("hourly")
            return before[0], (await self.cells(world))[0]

        world.write()
        assert world.play(story) == ("yes", "paused")

    @pytest.mark.req("S70", "S84")
    def test_waiting_retry_is_shown_as_the_next_run(self, world):
        async def story(world):
            world.commands.exit_code = 3
            await world.let_pass("1h", "30s")
            standing = await world.standing()
            return await self.cells(world), standing["retry_attempt"], standing["next_run_at"]

        world.write()
        told, attempts, next_run_at = world.play(story)
        assert (told, attempts) == (("yes", "in 2m", "3"), 2)
        assert next_run_at == "2026-01-01T14:00:00.000Z"

    @pytest.mark.parametrize("few", [0, 20])
    @pytest.mark.parametrize("reason", ["timeout", "launch_failed"])
    @pytest.mark.req("S84")
    def test_failure_without_an_exit_code_shows_its_reason(self, world, monkeypatch, reason, few):
        async def story(world):
            world.commands.outcomes = {"hourly": Failed("it failed", reason, retryable=False)}
            await world.let_pass("1h", "1m")
            failed = await self.cells(world)
            world.commands.outcomes = {}
            await world.let_pass("1h")
            return failed[2], (await self.cells(world))[2]

        monkeypatch.setattr(timer_list, "FEW", few)
        world.write()
        assert world.play(story) == (reason, "0")


class TestManyTimers:
    """Many timers are read together, with the same result."""

    async def all_kinds(self, world):
        """Create timers that succeeded, failed, run, wait for a retry, were canceled, and are idle."""
        await world.let_pass("1h")
        names = ("fails", "goes_on", "waits", "canceled")
        outcomes = [Failed("ended", "signal", retryable=False, exit_code=-9), Accepted("it goes on"),
                    Failed("it failed", "exit", exit_code=3), Accepted("it goes on")]  # fmt: skip
        world.commands.outcomes = dict(zip(names, outcomes, strict=True))
        await world.let_pass("1h")
        (run,) = await world.beat.runs("canceled", limit=1)
        await world.beat.service.cancel(run.run_id)
        await world.beat.settle()
        await world.system.step()

    def story(self, world, monkeypatch, few):
        names = ("fails", "goes_on", "waits", "canceled", "succeeds", "never")
        timers = [
            {**HOURLY, "id": name, "target": name, "on_unit_active_sec": 86_400} for name in names
        ]
        timers[-1]["on_calendar"] = {"month": 6}
        world.write(*timers, services={name: {"argv": ["x"], "timeout": "3h"} for name in names})
        monkeypatch.setattr(timer_list, "FEW", few)

        async def story(world):
            await self.all_kinds(world)
            elsewhere = timers_of(world.services_settings, world.beat.service)
            both = [await world.system.listed(), await elsewhere.listed()]
            return *both, world.state["timers"]

        return world.play(story)

    @pytest.mark.req("S65", "S69", "S70")
    def test_listing_many_timers_equals_reading_each(self, tmp_path, monkeypatch):
        found = []
        for few in (0, 100):
            folder = tmp_path / str(few)
            folder.mkdir()
            found += self.story(Timed(folder), monkeypatch, few)
        here, elsewhere, kept, *others = found
        assert here == elsewhere
        assert others == [here, elsewhere, kept]
        exits = {each.timer_id: each.history.last_exit for each in here.timers}
        assert exits == {
            "fails": -9, "goes_on": 0, "waits": 3, "canceled": 0, "succeeds": 0, "never": None,
        }  # fmt: skip
        two = parse_instant("2026-01-01T14:00:00Z") * 1000
        started = [each.timer_id for each in here.timers if each.history.last_run_at == two]
        assert started == ["fails", "goes_on", "waits", "canceled", "succeeds"]

    def test_listing_many_timers_makes_a_bounded_number_of_reads(self, world):
        asked = []

        async def story(world):
            await world.let_pass("1h")
            service = world.beat.service

            class Counted:
                def __getattr__(self, name):
                    asked.append(name)
                    return getattr(service, name)

            found = await world.system.listed(Counted())
            return len(found.timers)

        world.write(*({**HOURLY, "id": f"timer-{n}"} for n in range(60)))
        assert world.play(story) == 60
        assert len(asked) < 10, asked


class TestDefinitionsOfTheFile:
    @pytest.mark.parametrize("change", [{"target": "gone"}, {"id": "other"}])
    @pytest.mark.req("S73")
    def test_removed_or_invalid_timer_stops_running(self, world, change):
        async def story(world):
            await world.let_pass("1h")
            await world.edit(HOURLY | change)
            await world.let_pass("1h")
            return list(await world.rows())

        world.write()
        assert world.play(story) == (["other"] if "id" in change else [])
        assert world.started == (["hourly", "other"] if "id" in change else ["hourly"])

    def test_schedules_of_other_sources_are_untouched(self, world):
        async def story(world):
            await world.beat.define(a_schedule("hourly", every="7h"), a_schedule("own"))
            await world.edit()
            found = await world.system.listed()
            return dict(found.invalid), await world.rows()

        world.write({**HOURLY, "id": "first"})
        invalid, rows = world.play(story)
        assert invalid == {"hourly": "'hourly' is the id of another schedule"}
        assert rows.keys() == {"hourly", "own"}

    @pytest.mark.req("S73")
    def test_deleted_timer_is_restored(self, world):
        async def story(world):
            await world.beat.service.delete("hourly")
            await world.system.step()
            await world.let_pass("1h")
            return list(await world.rows())

        world.write()
        assert world.play(story) == ["hourly"]
        assert world.started == ["hourly"]

    def test_timer_with_a_conflicting_id_runs_once_the_id_is_free(self, world):
        async def story(world):
            await world.beat.define(a_schedule("other", every="7h"))
            await world.edit(HOURLY | {"id": "other"})
            assert (await world.rows())["other"].source == ""
            await world.beat.service.delete("other")
            await world.look()
            await world.let_pass("1h")
            return (await world.rows())["other"].source

        world.write()
        assert world.play(story) == "services"
        assert world.started == ["other"]

    def test_edit_of_other_timers_leaves_a_timer_unchanged(self, world):
        async def story(world):
            before = await world.rows()
            await world.edit(HOURLY, {**HOURLY, "id": "new", "target": "other"}, services=services)
            return before["hourly"], (await world.rows())["hourly"]

        services = {name: {"argv": ["./x.sh"]} for name in ("backup", "other")}
        world.write(services=services)
        before, after = world.play(story)
        assert before == after


class TestSwitching:
    @pytest.mark.req("S34", "S92")
    def test_disabled_timer_skips_ticks_and_runs_again_when_enabled(self, world):
        async def story(world):
            assert await world.switch("hourly", on=False)
            assert not await world.switch("hourly", on=False)
            await world.let_pass("1h")
            off = (await world.standing())["enabled"]
            assert await world.switch("hourly", on=True)
            await world.let_pass("1h")
            return off, (await world.standing())["enabled"], await world.statuses()

        world.write()
        assert world.play(story) == (False, True, [("SKIPPED", "disabled"), ("SUCCESS", None)])

    @pytest.mark.req("S92")
    def test_switch_outlives_restarts_and_edits_of_the_file(self, world):
        async def first(world):
            await world.switch("hourly", on=False)
            await world.edit(HOURLY | {"on_calendar": {"minute": 30}})
            await world.let_pass("30m")

        async def second(world):
            await world.let_pass("1h")
            return (await world.standing())["enabled"], {
                reason for _, reason in await world.statuses()
            }

        world.write()
        world.play(first)
        assert world.play(second) == (False, {"disabled"})
        assert world.started == []

    @pytest.mark.req("S92")
    def test_timer_disabled_in_the_file_can_be_enabled(self, world):
        async def story(world):
            await world.switch("hourly", on=True)
            await world.let_pass("1h")

        world.write(HOURLY | {"enabled": False})
        world.play(story)
        assert world.started == ["hourly"]

    @pytest.mark.req("S92")
    def test_switch_that_equals_the_file_is_removed(self, world):
        async def story(world):
            await world.switch("hourly", on=False)
            await world.switch("hourly", on=True)
            kept = await world.beat.service.list_documents("services.enabled")
            await world.edit(HOURLY | {"enabled": False})
            return kept, (await world.standing())["enabled"]

        world.write()
        assert world.play(story) == ([], False)

    @pytest.mark.req("S92")
    def test_node_applies_a_switch_although_it_has_just_read_the_file(self, world):
        async def story(world):
            # Another process stores the switch after this node has defined the timer.
            await world.beat.service.keep("services.enabled", "hourly", body=False)
            await world.system.step()
            await world.let_pass("1h")
            return await world.statuses()

        world.write()
        assert world.play(story) == [("SKIPPED", "disabled")]

    def test_switch_of_a_removed_timer_is_forgotten(self, world):
        async def story(world):
            await world.switch("hourly", on=False)
            await world.edit(HOURLY | {"target": "nope"})
            kept = await world.beat.service.list_documents("services.enabled")
            assert [each.name for each in kept] == ["hourly"], "it is there, and wrong just now"
            await world.edit({**HOURLY, "id": "other"})
            assert await world.beat.service.list_documents("services.enabled") == []
            await world.edit(HOURLY)
            return (await world.standing())["enabled"]

        world.write()
        assert world.play(story)

    def test_switching_an_invalid_timer_is_refused_with_its_reason(self, world):
        world.write(HOURLY | {"target": "nope"})
        with pytest.raises(InvalidSchedule, match="hourly: target 'nope' not found in services"):
            world.play(lambda world: world.system.switch("hourly", on=True))

    def test_unknown_timer_is_reported(self, world):
        world.write()
        with pytest.raises(NoSuchSchedule, match="did you mean 'hourly'"):
            world.play(lambda world: world.system.switch("hourl", on=False))
