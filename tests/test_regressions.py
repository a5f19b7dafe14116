"""Regressions of the origins that must not come back, each with its sentence."""

import asyncio
from datetime import UTC, datetime, time, timedelta

import pytest
from pydantic import BaseModel

from onbeat import InvalidSchedule, Onbeat, cron, daily
from onbeat.agents import Orchestrator
from onbeat.app.settings import Settings
from onbeat.core.decide.plan import plan
from onbeat.core.runs.decisions import Skip, Supersede, Tick
from onbeat.core.runs.phase import Phase
from onbeat.core.runs.run import Failed, Run, Succeeded
from onbeat.core.time.instants import rfc3339
from onbeat.core.triggers.past import NO_PAST
from onbeat.ports.store import Node
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, RecordingLauncher, a_schedule
from tests.inside import in_transaction, store_of
from tests.systems.flows.conftest import URL
from tests.systems.flows.conftest import FlowsHarness as Flows
from tests.systems.flows.panel import Flow


def on(trigger, day, until):
    first, last = (
        datetime.fromisoformat(f"{d}T00:00:00-05:00").astimezone(UTC) for d in (day, until)
    )
    return [rfc3339(tick) for tick in trigger.between(first, last)]


def test_a_daily_time_fires_once_a_day_not_for_a_whole_second_71_times():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    trigger = daily("12:00")
    during_the_second = [noon.replace(microsecond=us) for us in range(0, 1_000_000, 14_000)]
    asked = {trigger.next_after(t) for t in during_the_second}
    assert asked == {int(noon.timestamp()) + 86_400}
    assert len(trigger.between(noon, noon.replace(year=2027))) == 365


@pytest.mark.parametrize(
    "text", ["0 0 31 2 *", "garbage", "* * * *", "every day", "0 0 31 4,6,9,11 *"]
)
def test_a_cron_that_can_never_match_and_garbage_are_refused_when_defined_never_run_every_minute(
    text,
):
    with pytest.raises(InvalidSchedule):
        cron(text)


def test_six_fields_mean_seconds_first():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ticks = cron("0 */5 * * * *").upcoming(start, 3)
    assert [tick - int(start.timestamp()) for tick in ticks] == [300, 600, 900]


def test_new_york_0130_runs_once_on_2026_11_01_and_at_0630z_on_2026_11_02():
    trigger = cron("30 1 * * *", tz="America/New_York")
    assert on(trigger, "2026-11-01", "2026-11-03") == [
        "2026-11-01T05:30:00Z",
        "2026-11-02T06:30:00Z",
    ]


def test_new_york_0230_runs_once_on_2026_03_08():
    trigger = cron("30 2 * * *", tz="America/New_York")
    assert on(trigger, "2026-03-08", "2026-03-09") == ["2026-03-08T07:00:00Z"]


# -- the engine


class Beat:
    """A scheduler in memory, on a manual clock, with recorded targets."""

    def __init__(self, outcome=Succeeded(), path=None):  # noqa: B008 - it is frozen
        self.clock = ManualClock("2026-01-01T12:00:00Z")
        self.launcher = RecordingLauncher(outcome)
        self.url = f"sqlite:///{path}" if path else "sqlite://"

    def play(self, story):
        async def whole():
            settings = Settings(database=self.url)
            own = {"command": self.launcher}
            async with Onbeat(settings=settings, clock=self.clock, launchers=own) as beat:
                return await story(beat)

        return asyncio.run(whole())

    async def pass_by(self, beat, length, times=1):
        for _ in range(times):
            self.clock.advance(length)
            await beat.settle()

    @property
    def started(self):
        return [rfc3339(attempt.run_at)[11:19] for attempt in self.launcher.attempts]


async def rows(beat):
    return [(rfc3339(r.run_at)[11:19], r.status, r.reason) for r in await beat.runs(limit=1000)][
        ::-1
    ]


def test_an_every_minute_schedule_with_5_second_runs_and_overlap_skip_starts_every_minute_59_of_59():
    world = Beat()

    async def story(beat):
        await beat.define(a_schedule(cron="* * * * *", overlap="skip"))
        for _ in range(59):
            world.clock.advance("55s")
            await beat.settle()
            world.clock.advance("5s")
            await beat.settle()
        return await rows(beat)

    found = world.play(story)
    assert len(world.started) == 59
    assert {status for _, status, _ in found} == {"SUCCESS"}


def test_overlap_skip_without_any_feedback_does_not_stall_for_ever_the_lease_ends(tmp_path):
    # The node dies while a run is going: nobody will ever say how it ended.
    path = tmp_path / "onbeat.db"

    async def before():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await SqliteStore.open(path, clock=clock)
        node = Node("dead", "here", frozenset({"command"}))
        await store.register(node)
        await store.upsert([a_schedule(every="1m", overlap="skip")])
        clock.advance("1m")
        await store.plan_due(
            lambda s, r, u, p, n: plan(s, r, u, p, now=n), limit=9, node=node, slots=9
        )
        await store.close()

    asyncio.run(before())
    world = Beat(path=path)
    world.clock.advance("1m")

    async def story(beat):
        await world.pass_by(beat, "1m", 2)
        return await rows(beat)

    assert world.play(story) == [
        ("12:01:00", "FAILED", "lost"),
        ("12:02:00", "SUCCESS", None),
        ("12:03:00", "SUCCESS", None),
    ]


def test_overlap_queue_loses_no_tick_and_leaves_a_row_for_each():
    async def story(beat):
        await beat.define(a_schedule(every="10s", overlap="queue"))
        world.clock.advance("50s")
        await beat.settle()
        return await rows(beat)

    world = Beat()
    assert world.play(story) == [(f"12:00:{s}", "SUCCESS", None) for s in (10, 20, 30, 40, 50)]
    assert world.started == [f"12:00:{s}" for s in (10, 20, 30, 40, 50)]


def test_kill_9_between_claim_and_announcement_neither_loses_nor_doubles_a_run_after_it_is_lost(
    tmp_path,
):
    path = tmp_path / "onbeat.db"

    async def before():
        clock = ManualClock("2026-01-01T12:00:00Z")
        store = await SqliteStore.open(path, clock=clock)
        node = Node("dead", "here", frozenset({"command"}))
        await store.register(node)
        await store.upsert([a_schedule("claimed"), a_schedule("announced")])
        clock.advance("1h")
        await store.plan_due(lambda s, r, u, p, n: plan(s, r, u, p, now=n), limit=9)
        attempts = await store.claim(node, limit=9)
        await store.announce(node, [a for a in attempts if a.schedule_id == "announced"])
        await store.close()

    asyncio.run(before())
    world = Beat(path=path)
    world.clock.advance("1h")

    async def story(beat):
        await beat.settle()
        return {r.schedule_id: (r.status, r.reason, r.attempt) for r in await beat.runs()}

    assert world.play(story) == {
        "announced": ("FAILED", "lost", 1),
        "claimed": ("SUCCESS", None, 1),
    }
    assert [attempt.schedule_id for attempt in world.launcher.attempts] == ["claimed"]


def test_a_catch_up_run_and_the_first_regular_tick_are_two_different_ticks_neither_doubled(
    tmp_path,
):
    path = tmp_path / "onbeat.db"
    world = Beat(path=path)
    world.play(lambda beat: beat.define(a_schedule(every="1h")))
    world.clock.advance("5h30m")  # down meanwhile

    async def story(beat):
        await beat.settle()
        await world.pass_by(beat, "30m")
        return [(r.run_at, r.triggered_by, r.tick_count) for r in await beat.runs()][::-1]

    found = world.play(story)
    assert [(rfc3339(t)[11:16], by, n) for t, by, n in found] == [
        ("17:00", "catchup", 5),
        ("18:00", "timer", 1),
    ]


def test_a_skip_for_overlap_clears_a_pending_retry():
    waits = Run(1, 0, Phase.RETRYING, 0, attempt=1)
    going = Run(2, 60, Phase.RUNNING, 60_000, attempt=1)
    found = plan(a_schedule(every="1m"), 120, [waits, going], NO_PAST, now=120_000)
    assert found.decisions == (Supersede(waits, newer=120), Skip(Tick(120, 120_000), "overlap", 60))


def test_a_process_killed_by_a_signal_is_not_retried():
    async def story(beat):
        await beat.define(a_schedule(every="1h", retry=["1s"]))
        await world.pass_by(beat, "1h")
        await world.pass_by(beat, "1m")
        return await rows(beat)

    world = Beat(Failed("ended by SIGKILL", "signal", retryable=False, exit_code=-9))
    assert world.play(story) == [("13:00:00", "FAILED", "signal")]
    assert len(world.started) == 1


@pytest.mark.parametrize(
    ("when", "found"),
    [
        ("2026-01-01T11:59:30Z", ("11:59:30", "SUCCESS", None)),
        ("2026-01-01T11:30:00Z", ("11:30:00", "SKIPPED", "missed")),
    ],
)
def test_a_one_time_datetime_in_the_past_runs_once_within_the_grace_otherwise_it_is_missed(
    when, found
):
    async def story(beat):
        await beat.define(a_schedule(at=when))
        await beat.settle()
        await world.pass_by(beat, "1h")
        return await rows(beat)

    world = Beat()
    assert world.play(story) == [found]


@pytest.mark.parametrize("slug", ["../x", "a/../b", "/x", "x/", "."])
def test_a_slug_such_as_dot_dot_slash_x_is_refused(slug):
    with pytest.raises(InvalidSchedule, match="is not a valid id"):
        a_schedule(slug)


def test_upserting_a_schedule_never_fires_the_past_and_never_changes_paused_unless_asked():
    async def story(beat):
        await beat.define(a_schedule(every="1h"))
        await beat.pause("a-schedule")
        world.clock.advance("90m")
        await beat.define(a_schedule(every="30m"))
        await beat.settle()
        (row,) = await beat.schedules()
        return row.paused, await rows(beat)

    world = Beat()
    assert world.play(story) == (True, [("13:00:00", "SKIPPED", "paused")])
    assert world.started == []


def test_listing_or_reading_schedules_changes_nothing(tmp_path):
    path = tmp_path / "onbeat.db"

    async def story(beat):
        await beat.define(a_schedule())
        await world.pass_by(beat, "1h")
        store = store_of(beat)
        before = await in_transaction(store, lambda tx: tx.connection.total_changes())
        await beat.schedules()
        await beat.runs()
        await beat.service.schedule("a-schedule")
        await beat.service.overview()
        return before == await in_transaction(store, lambda tx: tx.connection.total_changes())

    world = Beat(path=path)
    assert world.play(story)


def test_a_launch_answered_200_with_errors_and_no_result_by_a_flow_server_is_a_failed_launch(
    tmp_path,
):
    flows = Flows(tmp_path)
    flows.hourly(inputs={"limit": 5})
    flows.panel.flows[URL] = Flow("a report", ["query", "limit"], needs=["query"])

    async def story(its):
        await its.let_pass("1h")
        (run,) = await its.beat.runs()
        return run.status, run.reason, run.error

    told = "the flow refused its inputs: query: Please give me a query."
    assert flows.play(story) == ("FAILED", "launch_failed", told)
    assert flows.panel.executions == {}


class Note(BaseModel):
    level: str = "ERROR"


def fires_of(describe, *lengths, publish=()):
    """Return when an agent fired, as the clock of a test that begins at noon passes."""
    clock, fired = ManualClock("2026-01-01T12:00:00Z"), []

    async def engine(ctx):
        fired.append(ctx.fire_time)

    async def story():
        its = Orchestrator("sqlite://", clock=clock)
        describe(its.agent("a").publishes(Note).with_engines(engine))
        async with its:
            for each in publish:
                await its.publish(each)
            for length in lengths:
                clock.advance(length)
                await its.beat.settle()

    asyncio.run(asyncio.wait_for(story(), 20))
    return fired


def test_what_a_scheduled_agent_consumes_filters_and_never_triggers():
    fired = fires_of(
        lambda agent: agent.schedule(at=time(17)).consumes(Note, where=lambda note: note.level == "ERROR"),
        "1h",
        publish=[Note(), Note()],
    )  # fmt: skip
    assert fired == []


def test_a_single_date_in_the_past_fires_once_within_the_grace_and_is_otherwise_missed():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for ago, expected in ((timedelta(seconds=59), 1), (timedelta(seconds=61), 0)):
        fired = fires_of(lambda agent: agent.schedule(at=noon - ago), "1s", "24h")  # noqa: B023 - it is called here
        assert fired == [noon - ago] * expected


def test_a_daily_agent_fires_once_a_day_however_often_its_second_is_looked_at():
    fired = fires_of(
        lambda agent: agent.schedule(at=time(12, 1)), "1m", *[14] * 71, "24h", *[14] * 71
    )
    assert [f"{at:%d %H:%M:%S}" for at in fired] == ["01 12:01:00", "02 12:01:00"]
