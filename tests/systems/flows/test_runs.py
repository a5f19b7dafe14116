"""A scheduled flow is launched on its panel, followed until it ends, and reported."""

import pytest

from onbeat.systems.flows.config import TIMER_NAME, TIMER_USER
from tests.systems.flows.conftest import KEY, URL
from tests.systems.flows.panel import Flow


@pytest.mark.req("K1", "K8", "K11", "K13", "K14", "K40", "K58", "K59", "K60")
def test_flow_with_a_schedule_in_its_meta_is_launched_at_its_cron_times(world):
    world.expose()

    async def story(its):
        await its.let_pass("59m")
        before = len(its.panel.launched)
        await its.let_pass("1m", "1h")
        return before, await its.beat.runs()

    before, runs = world.play(story)
    assert before == 0
    first, second = world.panel.launched
    assert first["inputs"] == {"query": "daily report", "limit": 100}
    assert first["extra"] == {"triggered_by": "timer", "schedule_key": KEY}
    assert first["username"] == "timer"
    assert first["fid"] != second["fid"]  # one execution for each
    assert [run.external_id for run in runs] == [second["fid"], first["fid"]]
    assert {(run.status, run.user, run.triggered_by) for run in runs} == {
        ("SUCCESS", "timer", "timer")
    }
    assert runs[0].result == {
        "Markdown": {"body": 'a report: {"query": "daily report", "limit": 100}'}
    }


@pytest.mark.req("K9", "K38")
def test_names_of_the_timer_and_its_user_are_constants():
    assert (TIMER_NAME, TIMER_USER) == ("Timer", "timer")


@pytest.mark.req("K19", "K29", "K53")
@pytest.mark.parametrize("status", ["running", "awaiting", "payment", "starting"])
def test_tick_is_skipped_while_the_last_flow_runs_on_the_panel(world, logged, status):
    world.expose()
    world.panel.status = status

    async def story(its):
        await its.tick("1h")
        await its.until(lambda: its.panel.launched)
        blocking = await its.until_run(status="STARTED")
        await its.tick("1h")
        skipped = await its.until_run(status="SKIPPED")
        its.panel.status = None
        await its.beat.settle()
        await its.let_pass("1h")
        return blocking, skipped, await its.statuses()

    blocking, skipped, statuses = world.play(story)
    assert (skipped.reason, skipped.blocked_by) == ("overlap", blocking.run_id)
    assert statuses == [("SUCCESS", None), ("SKIPPED", "overlap"), ("SUCCESS", None)]
    assert len(world.panel.launched) == 2
    assert ("DEBUG", f"flow {KEY}: already running (run {blocking.run_id}), skipped") in logged()


@pytest.mark.req("K10", "K21")
def test_manual_start_is_always_allowed_and_blocks_no_tick(world, logged):
    world.expose()
    world.panel.status = "running"

    async def story(its):
        await its.tick("1h")
        await its.until(lambda: len(its.panel.launched) == 1)
        await its.timer.run(its.service, KEY)
        await its.until(lambda: len(its.panel.launched) == 2)
        its.panel.status = None
        await its.beat.settle()
        its.panel.status = "running"
        await its.timer.run(its.service, KEY)
        await its.until(lambda: len(its.panel.launched) == 3)
        await its.tick("1h")
        await its.until(lambda: len(its.panel.launched) == 4)
        its.panel.status = None
        await its.beat.settle()
        return [run.triggered_by for run in reversed(await its.beat.runs())]

    assert world.play(story) == ["timer", "manual", "manual", "timer"]
    by = [each["extra"]["triggered_by"] for each in world.panel.launched]
    assert by == ["timer", "manual", "manual", "timer"]
    lines = [line for _, line in logged()]
    fids = [each["fid"] for each in world.panel.launched]
    said = [line.partition(" is launched as timer, triggered by ")[2] for line in lines]
    assert list(filter(None, said)) == [f"{by}: {fid}" for by, fid in zip(by, fids, strict=True)]


@pytest.mark.parametrize("broken", ["/api/login", f"GET {URL}", f"POST {URL}"])
@pytest.mark.parametrize("status", [404, 503])
def test_launched_is_logged_only_for_launches_that_happened(world, logged, broken, status):
    world.hourly()

    async def story(its):
        its.panel.fails = {broken: status}
        await its.let_pass("1h")
        before = [line for _, line in logged() if " is launched " in line]
        its.panel.fails = {}
        await its.let_pass("1h")
        return before

    before = world.play(story)
    after = [line for _, line in logged() if " is launched " in line]
    assert (before, len(after)) == ([], len(world.panel.launched))
    assert len(after) > 0
    assert after[0].endswith(
        f"is launched as timer, triggered by timer: {world.panel.launched[0]['fid']}"
    )


@pytest.mark.req("K17", "K18")
def test_missed_ticks_run_once_and_the_next_counts_from_now(world):
    world.expose()

    async def before(its):
        assert (await its.listed())[KEY].next_run == "2026-01-01T13:00:00Z"
        await its.beat.close()
        its.clock.advance("3d")
        its.clock.advance("30m")

    async def story(its):
        await its.beat.settle()
        return (await its.listed())[KEY].next_run, await its.beat.runs()

    following, (run,) = world.play(before, story)
    assert following == "2026-01-04T13:00:00Z"
    assert (run.tick_count, run.triggered_by, run.status) == (72, "catchup", "SUCCESS")
    assert [each["extra"]["triggered_by"] for each in world.panel.launched] == ["timer"]


@pytest.mark.req("K65")
def test_restart_continues_from_the_store(world):
    world.hourly()

    async def first(its):
        await its.let_pass("90m")

    async def second(its):
        listed = (await its.listed())[KEY]
        await its.let_pass("30m")
        return listed, await its.statuses()

    listed, statuses = world.play(first, second)
    assert (listed.last_run, listed.next_run) == (
        "2026-01-01T13:30:00.000Z",
        "2026-01-01T14:00:00Z",
    )
    assert statuses == [("SUCCESS", None)] * 2


@pytest.mark.req("K64")
def test_failed_flow_is_not_retried_by_default(world, logged):
    world.hourly()
    world.panel.flows[URL] = Flow("a report", [], fails="no more quota")

    async def story(its):
        await its.let_pass("1h", "30m")
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert (run.status, run.reason, run.error) == ("FAILED", "error", "no more quota")
    assert len(world.panel.launched) == 1
    assert ("ERROR", f"flow {KEY}: run {run.run_id} failed: no more quota") in logged()


@pytest.mark.req("K67")
def test_retry_count_and_retry_delay_set_the_retries(world):
    world.hourly(retry_count=2, retry_delay=120)
    world.panel.flows[URL] = Flow("a report", [], fails="no more quota")

    async def story(its):
        await its.let_pass("1h")
        counts = [len(its.panel.launched)]
        for length in ("119s", "1s", "2m", "10m"):
            await its.let_pass(length)
            counts.append(len(its.panel.launched))
        (run,) = await its.beat.runs()
        return counts, run

    counts, run = world.play(story)
    assert counts == [1, 1, 2, 3, 3]
    assert (run.status, run.attempt) == ("FAILED", 3)
    assert {each["extra"]["triggered_by"] for each in world.panel.launched} == {"timer"}


def test_second_launch_of_a_retried_flow_is_followed(world):
    world.hourly(retry_count=1, retry_delay="30s")
    world.panel.flows[URL] = Flow("a report", [], fails="not now")

    async def story(its):
        await its.let_pass("1h")
        its.panel.flows[URL] = Flow("a report", [])
        await its.let_pass("30s")
        (run,) = await its.beat.runs()
        return run

    run = world.play(story)
    assert run.status == "SUCCESS"
    assert run.external_id == world.panel.launched[1]["fid"]
