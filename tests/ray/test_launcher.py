"""Functions on a real Ray cluster: their results, and how they end."""

import asyncio
import os
import time

import pytest

from onbeat import Onbeat
from onbeat.core.schedule import read_schedule
from onbeat.host.output_files import output_path
from tests.inside import launcher_of
from tests.ray.conftest import on_ray


def play(world, story, **settings):
    async def whole():
        async with world.up(**settings) as beat:
            return await story(beat)

    return asyncio.run(asyncio.wait_for(whole(), 110))


async def run_once(world, beat, fields, **more):
    await beat.define(read_schedule("it", fields))
    started = await beat.start("it")
    return await world.ended(beat, started.run_id, **more)


def test_function_on_the_cluster_returns_its_result_and_output(world):
    async def story(beat):
        return await run_once(world, beat, on_ray("add", inputs={"a": 2, "b": 3}))

    run = play(world, story)
    assert (run.status, run.result) == ("SUCCESS", {"sum": 5})
    assert run.log_tail == "adding 2 and 3\nand a child\nand an error\n"


def test_exception_is_the_error_of_the_run_and_its_traceback_the_output(world):
    async def story(beat):
        return await run_once(world, beat, on_ray("fail"))

    run = play(world, story)
    assert (run.status, run.reason, run.error) == ("FAILED", "error", "ValueError: no luck")
    assert run.log_tail.startswith("about to fail\nTraceback")
    assert 'raise ValueError("no luck")' in run.log_tail


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("odd", "it returned {1, 2}, which is not JSON"),
        ("leave", "SystemExit: 3"),
        ("nowhere", "tests.ray.work:nowhere cannot be imported on the cluster"),
        ("add", "missing a required argument: 'a'"),
        ("half_a_character", "which is not JSON"),
        ("large", "it returned 100002 bytes; a result has 65536 at most"),
        ("raise_half_a_character", "ValueError: ?"),
        ("raise_mute", "Mute"),
    ],
)
def test_other_failures_are_reported(world, function, told):
    async def story(beat):
        return await run_once(world, beat, on_ray(function))

    run = play(world, story)
    assert run.status == "FAILED"
    assert told in run.error


def test_run_that_replaces_its_output_ends_and_so_does_the_next(world):
    async def story(beat):
        return [
            (await run_once(world, beat, on_ray(function))).status
            for function in ("raise_half_a_character", "break_output", "tell")
        ]

    assert play(world, story) == ["FAILED", "SUCCESS", "SUCCESS"]


def test_output_file_is_complete_when_the_run_has_ended(world):
    async def story(beat):
        run = await run_once(world, beat, on_ray("chatter", inputs={"path": ""}))
        return run, output_path(world.settings().output_folder, run.run_id, 1).read_text()

    run, printed = play(world, story)
    assert printed == run.log_tail
    assert printed.startswith("first\nsecond \N{SNOWMAN}\nTraceback")
    assert printed.endswith("ValueError: and last\n")


def test_run_canceled_while_down_is_canceled_by_the_next_scheduler(world):
    async def first(beat):
        inputs = {"path": str(world.witness_file)}
        await beat.define(read_schedule("it", on_ray("wait", inputs=inputs)))
        run = await beat.start("it")
        await world.until(world.witnesses)
        return run.run_id

    run_id = play(world, first)

    async def meanwhile():
        beat = Onbeat(settings=world.settings())
        await beat.open()
        await beat.cancel(run_id)
        await beat.close()

    asyncio.run(meanwhile())
    assert is_running(int(world.witnesses()[0][3]), patience=0.2)

    async def second(beat):
        return await world.ended(beat, run_id)

    run = play(world, second)
    assert (run.status, run.reason) == ("CANCELED", "canceled")
    assert (world.folder / "witness.asked").exists()
    assert not is_running(int(world.witnesses()[0][3]))


def test_function_gets_its_run(world):
    async def story(beat):
        return await run_once(world, beat, on_ray("tell"))

    run = play(world, story)
    assert run.result == {"key": run.key, "attempt": 1, "iteration": 1, "triggered_by": "manual"}


def test_each_attempt_has_a_separate_runner(world):
    async def story(beat):
        fields = on_ray("flaky", inputs={"path": str(world.witness_file)}, retry=["0s"])
        return await run_once(world, beat, fields)

    run = play(world, story)
    assert (run.status, run.result, run.attempt) == ("SUCCESS", 2, 2)
    assert [line[2] for line in world.witnesses()] == ["1", "2"]


def test_timeout_stops_the_function(world):
    async def story(beat):
        inputs = {"path": str(world.witness_file), "seconds": 600}
        fields = on_ray("work", inputs=inputs, timeout="6s", cancel_grace="0s")
        run = await run_once(world, beat, fields)
        (line,) = world.witnesses()
        return run, is_running(int(line[3]))

    run, still_there = play(world, story)
    assert (run.status, run.reason) == ("FAILED", "timeout")
    assert "working" in run.log_tail
    assert not still_there


def test_canceled_run_may_end_within_its_grace_and_its_runner_is_removed(world):
    async def story(beat):
        await beat.define(
            read_schedule("it", on_ray("wait", inputs={"path": str(world.witness_file)}))
        )
        started = await beat.start("it")
        await world.until(world.witnesses)
        await beat.cancel(started.run_id)
        run = await world.ended(beat, started.run_id)
        return run, is_running(int(world.witnesses()[0][3]))

    run, still_there = play(world, story)
    assert run.status == "CANCELED"
    assert (world.folder / "witness.asked").exists()
    assert not still_there


def test_run_of_a_dead_worker_is_lost_and_not_started_again(world):
    async def story(beat):
        return await run_once(
            world, beat, on_ray("die", inputs={"path": str(world.witness_file)}, retry=["0s"])
        )

    run = play(world, story)
    assert (run.status, run.reason) == ("FAILED", "lost")
    assert "died" in run.error
    assert len(world.witnesses()) == 1


def test_run_of_a_dead_worker_is_started_again_with_on_lost_retry(world):
    async def story(beat):
        return await run_once(
            world, beat, on_ray("die", inputs={"path": str(world.witness_file)}, on_lost="retry")
        )

    run = play(world, story)
    assert (run.status, run.reason) == ("FAILED", "lost")  # it may be what kills its nodes
    assert len(world.witnesses()) == run.attempt > 1


def test_run_that_needs_more_than_the_cluster_has_waits_with_a_message(world):
    async def story(beat):
        await beat.define(read_schedule("it", on_ray("tell", resources={"unobtainium": 1})))
        started = await beat.start("it")
        path = output_path(world.settings().output_folder, started.run_id, 1)
        await world.until(path.exists)
        told = path.read_text()
        await beat.cancel(started.run_id)
        return told, await world.ended(beat, started.run_id)

    told, run = play(world, story)
    assert told == "[onbeat: waits for a place on the cluster]\n"
    assert run.status == "CANCELED"


def test_ended_runs_leave_nothing_on_the_cluster(world):
    async def story(beat):
        await run_once(world, beat, on_ray("tell"))
        return await settled_runners(world, beat)

    assert play(world, story) == []


def test_missing_cluster_makes_a_run_wait_without_loss(tmp_path, world):
    async def story(beat):
        await beat.define(read_schedule("it", on_ray("tell")))
        started = await beat.start("it")
        for _ in range(300):
            run = await beat.service.run(started.run_id)
            if run.reason is not None:
                break
            await asyncio.sleep(0.1)
        return run

    run = play(world, story, ray_address="127.0.0.1:1")
    assert (run.status, run.reason) == ("ENQUEUED", "busy")
    assert "no Ray cluster at 127.0.0.1:1" in run.error


def test_run_of_a_stopped_node_continues_and_is_reattached(world):
    path = str(world.witness_file)

    async def first(beat):
        fields = on_ray("work", inputs={"path": path, "seconds": 4})
        await beat.define(read_schedule("it", fields))
        started = await beat.start("it")
        await world.until(world.witnesses)
        return started.run_id

    run_id = play(world, first)

    async def second(beat):
        return await world.ended(beat, run_id)

    run = play(world, second)
    assert (run.status, run.result, run.attempt) == ("SUCCESS", 4, 2)
    assert len(world.witnesses()) == 1


def test_state_of_a_runner_names_its_run(world):
    async def story(beat):
        inputs = {"path": str(world.witness_file), "seconds": 3}
        await beat.service.define(
            [read_schedule("reports/daily", on_ray("work", inputs=inputs))], user_id="timer"
        )
        started = await beat.start("reports/daily")
        await world.until(world.witnesses)
        (found,) = await runners(beat)
        await beat.cancel(started.run_id)
        return started, found

    started, found = play(world, story)
    assert found["name"] == found["key"] == started.key
    assert (found["user"], found["triggered_by"]) == ("timer", "manual")
    assert found["schedule_key"] == "reports/daily"


def test_crash_of_the_gateway_does_not_affect_runs(world):
    async def story(beat):
        fields = on_ray("work", inputs={"path": str(world.witness_file), "seconds": 4})
        await beat.define(read_schedule("it", fields))
        started = await beat.start("it")
        await world.until(world.witnesses)
        launcher_of(beat, "ray")._link._gateway._process.kill()
        return await world.ended(beat, started.run_id)

    run = play(world, story)
    assert (run.status, run.result, run.attempt) == ("SUCCESS", 4, 1)
    assert len(world.witnesses()) == 1


def is_running(pid, patience=3):
    """Return whether a process exists: a cluster takes a moment to reap an ended one."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


async def runners(beat):
    launcher = launcher_of(beat, "ray")
    return (await launcher._link.ask("list", {}))["runners"]


async def settled_runners(world, beat):
    for _ in range(100):
        found = await runners(beat)
        if not found:
            break
        await asyncio.sleep(0.1)
    return found
