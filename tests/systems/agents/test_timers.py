"""Timers of agents: fires, contexts of runs, and restarts."""

import ast
import asyncio
from datetime import time, timedelta
from pathlib import Path
from time import monotonic

import pytest

from onbeat.agents import Orchestrator, ScheduleSpec
from tests.systems.agents.conftest import LogEntry, Report, instant

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@pytest.mark.req("F1", "F3", "F4", "F5", "F38", "F51")
def test_interval_fires_immediately_and_then_on_its_grid(world):
    world.agent().schedule(every=MINUTE)

    async def story(its):
        await its.passes("1s", "60s", "30s", "29s", "1s", "10m")

    world.play(story)
    assert world.fired()[:3] == ["12:00:01", "12:01:01", "12:02:01"]
    assert [ctx.timer_iteration for ctx in world.seen] == list(range(len(world.seen)))
    assert {ctx.trigger_type for ctx in world.seen} == {"timer"}
    assert world.seen[0].fire_time == instant("12:00:01")


@pytest.mark.req("F2", "F10", "F38", "F43")
def test_timer_gives_no_input_but_a_note_in_the_state(world):
    world.agent().schedule(every=MINUTE)

    async def story(its):
        await its.passes("1s")

    world.play(story)
    (ctx,) = world.seen
    assert ctx.artifacts == []
    assert ctx.state == {"__timer__": {"name": "daily", "iter": 0, "fire": instant("12:00:01")}}
    assert ctx.agent_name == "daily"


def test_slow_run_does_not_shift_the_grid(world):
    async def slow(ctx):
        world.seen.append(ctx)
        world.clock.advance("7s")  # the duration of the run

    world.agent(engine=slow).schedule(every=MINUTE)

    async def story(its):
        await its.passes("1s", "53s", "53s")

    world.play(story)
    assert world.fired() == ["12:00:01", "12:01:01", "12:02:01"]


@pytest.mark.req("F19")
def test_after_delays_the_first_fire(world):
    world.agent("later").schedule(every=MINUTE, after=timedelta(seconds=30))
    world.agent("at-once").schedule(every=MINUTE, after=timedelta(0), max_repeats=1)

    async def story(its):
        await its.passes("30s")
        assert world.fired() == ["12:00:01"]
        await its.passes("1s", "60s", "60s")

    world.play(story)
    later = [ctx for ctx in world.seen if ctx.agent_name == "later"]
    assert [f"{ctx.fire_time:%H:%M:%S}" for ctx in later] == ["12:00:31", "12:01:31", "12:02:31"]
    assert [ctx.timer_iteration for ctx in later] == [0, 1, 2]


def test_max_repeats_ends_a_timer(world):
    world.agent().schedule(every=MINUTE, max_repeats=3)

    async def story(its):
        await its.passes("1s", "60s", "60s", "60s", "60s")
        return await its.its.beat.service.schedule("agents/daily")

    row = world.play(story)
    assert world.fired() == ["12:00:01", "12:01:01", "12:02:01"]
    assert row.next_run_at is None


@pytest.mark.req("F27")
def test_timers_are_in_utc_in_any_zone_of_the_process(world, new_york):
    naive = instant("13:30:00").replace(tzinfo=None)
    world.agent("time").schedule(at=time(13))
    world.agent("cron").schedule(cron="15 13 * * *")
    world.agent("date").schedule(at=naive)

    async def story(its):
        await its.passes("2h")

    world.play(story)
    assert naive.astimezone().utcoffset() == timedelta(
        hours=-5
    )  # otherwise the test proves nothing
    assert {ctx.agent_name: ctx.fire_time for ctx in world.seen} == {
        "time": instant("13:00:00"),
        "cron": instant("13:15:00"),
        "date": instant("13:30:00"),
    }


@pytest.mark.req("F51")
def test_time_of_day_fires_once_a_day(world):
    world.agent().schedule(at=time(17, 0))

    async def story(its):
        await its.passes("5h", 14, 700, 285, 1, "24h", "24h")

    world.play(story)
    assert [ctx.fire_time for ctx in world.seen] == [
        instant("17:00:00") + timedelta(days=n) for n in range(3)
    ]


@pytest.mark.req("F41", "F48")
def test_cron_fires_at_its_times_in_utc_and_not_at_the_start(world):
    world.agent("often").schedule(cron="*/5 * * * *")
    world.agent("workdays").schedule(cron="0 9-17/2 * * 1-5")

    async def story(its):
        await its.passes("1s", "299s", "5m", "50m", "4h", "64h")

    world.play(story)
    told = {name: [ctx.fire_time for ctx in world.seen if ctx.agent_name == name] for name in ("often", "workdays")}  # fmt: skip
    assert told["often"][:2] == [instant("12:05:00"), instant("12:10:00")]
    assert told["workdays"][0] == instant("13:00:00")
    assert {(at.hour, at.weekday()) for at in told["workdays"]} <= {
        (hour, day) for hour in range(9, 18, 2) for day in range(5)
    }


@pytest.mark.req("F12", "F39")
def test_date_fires_once(world):
    world.agent("utc").schedule(at=instant("12:30:00"))
    world.agent("naive").schedule(at=instant("12:30:00").replace(tzinfo=None))

    async def story(its):
        await its.passes("30m", "30m", "24h")
        assert await its.its.run_until_idle(timeout=10)

    world.play(story)
    assert world.fired() == ["12:30:00", "12:30:00"]
    assert sorted(ctx.agent_name for ctx in world.seen) == ["naive", "utc"]


@pytest.mark.req("F13")
def test_date_with_repeats_fires_a_second_apart(world):
    world.agent().schedule(at=instant("12:30:00"), max_repeats=3)

    async def story(its):
        await its.passes("30m", "1s", "1s", "1s", "1h")

    world.play(story)
    assert world.fired() == ["12:30:00", "12:30:01", "12:30:02"]


@pytest.mark.req("F14")
def test_spec_of_a_date_stays_unchanged(world):
    agent = world.agent().schedule(at=instant("12:30:00"))

    async def story(its):
        await its.passes("30m")

    world.play(story)
    assert len(world.seen) == 1
    assert agent.spec == ScheduleSpec(at=instant("12:30:00"))
    assert agent.spec.max_repeats is None


def test_date_just_past_fires_once_and_an_older_one_is_missed(world):
    world.agent("just-past").schedule(at=instant("11:59:30"))
    world.agent("long-past").schedule(at=instant("11:00:00"))

    async def story(its):
        await its.passes("1s", "1h")
        assert [(run.status, run.reason) for run in await its.runs("long-past")] == [
            ("SKIPPED", "missed")
        ]
        assert (await its.its.why("long-past")).reason == "missed"

    world.play(story)
    assert [ctx.agent_name for ctx in world.seen] == ["just-past"]
    assert world.fired() == ["11:59:30"]


def test_date_with_after_fires_at_the_later_of_both(world):
    world.agent("date").schedule(at=instant("12:30:00"), after=MINUTE)
    world.agent("after").schedule(at=instant("12:30:00"), after=2 * HOUR)

    async def story(its):
        await its.passes("3h")

    world.play(story)
    assert {ctx.agent_name: f"{ctx.fire_time:%H:%M:%S}" for ctx in world.seen} == {
        "date": "12:30:00",
        "after": "14:00:01",
    }


def test_date_with_a_fraction_of_a_second_is_rounded_up(world):
    world.agent().schedule(at=instant("12:30:00.250"))

    async def story(its):
        await its.passes("30m")
        assert world.seen == []
        await its.passes("1s")

    world.play(story)
    assert world.fired() == ["12:30:01"]


# -- refusals


@pytest.mark.req("F15", "F16")
@pytest.mark.parametrize("way", ["enter", "publish", "run_until_idle", "run"])
def test_scheduled_agent_without_publishes_is_refused_before_the_start(way, tmp_path):
    its = Orchestrator(f"sqlite:///{tmp_path}/agents.db")

    async def engine(ctx):
        raise AssertionError("it must not run")

    its.agent("ok").schedule(every=timedelta(seconds=1)).publishes(Report).with_engines(engine)
    its.agent("np").schedule(every=timedelta(seconds=1)).with_engines(engine)

    async def begin():
        if way == "publish":
            await its.publish(LogEntry())
        elif way == "run_until_idle":
            await its.run_until_idle()
        else:
            async with its:
                pass

    with pytest.raises(ValueError, match=r"^Scheduled agent 'np' must declare \.publishes\(\)$"):
        its.run() if way == "run" else asyncio.run(begin())
    assert not (tmp_path / "agents.db").exists()


@pytest.mark.req("F16")
def test_schedule_may_be_called_before_publishes(world):
    async def report(ctx):
        return Report(iteration=ctx.timer_iteration)

    world.its.agent("daily").schedule(every=MINUTE).publishes(Report).with_engines(report)

    async def story(its):
        await its.passes("1s", "1m")
        return await its.its.get_artifacts(Report)

    assert [report.iteration for report in world.play(story)] == [0, 1]


# -- tests with a fake clock


@pytest.mark.req("F35")
@pytest.mark.parametrize(
    ("schedule", "length", "fires"),
    [
        ({"cron": "*/5 * * * *"}, "5m", ["12:05:00", "12:10:00", "12:15:00"]),
        ({"cron": "0 17 * * *"}, "24h", ["17:00:00"] * 3),
        ({"every": timedelta(hours=2)}, "2h", ["12:00:01", "14:00:01", "16:00:01", "18:00:01"]),
    ],
)
def test_manual_clock_plays_days_of_a_timer_quickly(world, schedule, length, fires):
    """Exact to the second, without waiting."""
    world.agent().schedule(**schedule)
    begun = monotonic()

    async def story(its):
        await its.passes("1s", *[length] * 3)

    world.play(story)
    assert world.fired() == fires
    assert monotonic() - begun < 10  # for up to three days


@pytest.mark.req("F35")
def test_no_test_of_agents_sleeps_until_a_timer_fires():
    folder = Path(__file__).parent
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                seconds = node.args[0] if node.func.attr == "sleep" else None
                if isinstance(seconds, ast.Constant):
                    assert seconds.value < 1, f"{path.name}:{node.lineno}"


# -- overlaps


def test_slow_runs_queue_up_and_none_is_skipped(world):
    going, most, may_end = 0, 0, asyncio.Event()

    async def slow(ctx):
        nonlocal going, most
        going += 1
        most = max(most, going)
        world.seen.append(ctx)
        await may_end.wait()
        going -= 1

    world.agent(engine=slow).schedule(every=timedelta(seconds=10), max_repeats=5)
    world.agent("alone", engine=slow).schedule(every=timedelta(seconds=10), max_repeats=3).max_concurrency(1)  # fmt: skip

    async def story(its):
        for _ in range(6):
            its.clock.advance("10s")
            its.its.beat.wake()
            await asyncio.sleep(0.05)
        assert most == 3  # two, which is the default, and one
        may_end.set()
        await its.its.beat.settle()
        assert [run.status for run in await its.runs()] == ["SUCCESS"] * 5
        assert [run.status for run in await its.runs("alone")] == ["SUCCESS"] * 3

    world.play(story)
    first = [ctx.timer_iteration for ctx in world.seen if ctx.agent_name == "daily"]
    assert sorted(first) == [0, 1, 2, 3, 4]


# -- restarts


def test_iterations_and_the_grid_survive_a_restart(lasting):
    def describe():
        lasting.agent().schedule(every=MINUTE)

    async def two(its):
        await its.passes("1s", "60s")

    describe()
    lasting.play(two)
    assert lasting.fired() == ["12:00:01", "12:01:01"]
    lasting.reborn()
    describe()
    lasting.clock.advance("20s")

    async def one(its):
        await its.passes("1s")
        assert lasting.seen == []  # a start is not a fire
        await its.passes("39s")

    lasting.play(one)
    assert [(ctx.timer_iteration, f"{ctx.fire_time:%H:%M:%S}") for ctx in lasting.seen] == [(2, "12:02:01")]  # fmt: skip


def test_ticks_missed_while_down_fire_once(lasting):
    for down in ("1s", "3h"):
        lasting.reborn()
        lasting.agent().schedule(every=HOUR)
        lasting.clock.advance(down) if down != "1s" else None

        async def story(its):
            await its.passes("1s")

        lasting.play(story)
    assert [(ctx.timer_iteration, f"{ctx.fire_time:%H:%M:%S}") for ctx in lasting.seen] == [(1, "15:00:01")]  # fmt: skip


def test_timer_edited_while_down_fires_no_past_ticks(lasting):
    async def story(its):
        await its.passes("1s")
        return [(run.status, run.reason, run.tick_count) for run in await its.runs()]

    lasting.agent().schedule(at=time(12, 30))
    lasting.play(story)
    lasting.clock.advance("3h")
    lasting.reborn()
    lasting.agent().schedule(at=time(3))
    assert lasting.play(story) == [("SKIPPED", "edited", 1)]
    assert lasting.seen == []


def test_max_repeats_counts_over_restarts(lasting):
    fired = []
    for _ in range(3):
        lasting.reborn()
        lasting.agent().schedule(every=MINUTE, max_repeats=3)

        async def story(its):
            await its.passes("1m", "1m")

        lasting.play(story)
        fired += [ctx.timer_iteration for ctx in lasting.seen]
    assert fired == [0, 1, 2]


def test_changed_interval_starts_a_new_grid(lasting):
    async def story(its):
        await its.passes("30s")

    for every in (MINUTE, HOUR):
        lasting.reborn()
        lasting.agent().schedule(every=every)
        lasting.play(story)
    assert [(ctx.timer_iteration, f"{ctx.fire_time:%H:%M:%S}") for ctx in lasting.seen] == [(1, "12:00:31")]  # fmt: skip


def test_fired_date_does_not_fire_again_after_a_restart(lasting):
    async def story(its):
        await its.passes("30s", "30s")

    fired = []
    for _ in range(2):
        lasting.reborn()
        lasting.agent().schedule(at=instant("12:00:10"))
        lasting.play(story)
        fired += lasting.fired()
    assert fired == ["12:00:10"]


def test_paused_agent_does_not_fire_until_resumed(world):
    world.agent().schedule(every=MINUTE)

    async def story(its):
        await its.its.pause("daily", note="quiet")
        await its.passes("5m")
        assert await its.its.run_until_idle(timeout=5)  # a paused timer does not count
        assert world.seen == []
        await its.its.resume("daily")
        await its.passes("1m")

    world.play(story)
    assert world.fired() == ["12:05:01"]


def test_manual_start_of_an_agent_has_the_next_iteration(world):
    world.agent().schedule(every=HOUR)

    async def story(its):
        await its.passes("1s", "10s")
        await its.its.beat.start("agents/daily")
        await its.its.beat.settle()

    world.play(story)
    assert [(ctx.trigger_type, ctx.timer_iteration) for ctx in world.seen] == [("timer", 0), ("timer", 1)]  # fmt: skip
