"""Flows that run on a real Ray cluster instead of on a panel, and what the cluster shows of the timer."""

import asyncio
import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from onbeat import Onbeat
from onbeat.cli.command import main
from onbeat.testing import ManualClock
from tests.inside import launcher_of

ASK = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)
lock = ray.get_actor("Timer", namespace="kodosumi")
meta, pid = ray.get(lock.get_meta.remote()), ray.get(lock.get_pid.remote())
print(json.dumps({"meta": meta, "get_pid": pid}))
"""
KEY = "reports/-/127.0.0.1/8125/-"


def play(world, story, *, function="tell", **inputs):
    schedule = {"cron": "0 * * * *", "inputs": inputs, "entry_point": f"tests.ray.work:{function}"}
    data = yaml.safe_dump({"summary": "a report", "schedule": schedule})
    meta = [{"url": "/-/127.0.0.1/8125/-/", "data": data}]
    exposes = world.folder / "exposes"
    exposes.mkdir()
    (exposes / "reports.yaml").write_text(yaml.safe_dump({"name": "reports", "meta": meta}))
    clock = ManualClock("2026-01-01T12:00:00Z")
    log = str(world.folder / "timer.log")
    settings = world.settings(flows_exposes=str(exposes), flows_log_file=log)

    async def whole():
        async with Onbeat(settings=settings, clock=clock) as beat:
            return await story(beat, clock)

    return asyncio.run(asyncio.wait_for(whole(), 100))


def shown_by(cluster):
    command = [sys.executable, "-c", ASK, cluster]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(told.stdout.splitlines()[-1])


@pytest.mark.req("K1", "K40")
def test_flow_with_an_entry_point_has_a_runner_that_names_its_cause(world):
    async def story(beat, clock):
        clock.advance("1h")
        beat.wake()
        await world.until(world.witnesses)
        (found,) = (await launcher_of(beat, "ray")._link.ask("list", {}))["runners"]
        clock.advance("1h")  # while it runs
        await beat.settle()
        return found, [(run.status, run.reason, run.user) for run in reversed(await beat.runs())]

    found, runs = play(world, story, function="work", path=str(world.witness_file), seconds=3)
    assert (found["user"], found["triggered_by"], found["schedule_key"]) == ("timer", "timer", KEY)
    assert runs == [("SUCCESS", None, "timer"), ("SKIPPED", "overlap", "timer")]
    assert len(world.witnesses()) == 1


@pytest.mark.req("K23", "K31")
def test_lock_on_the_cluster_has_pid_schedules_and_running_flows(world, cluster):
    async def story(beat, clock):
        before = await asyncio.to_thread(shown_by, cluster.address)
        clock.advance("1h")
        beat.wake()
        await world.until(world.witnesses)
        running = {}
        for _ in range(50):
            during = await asyncio.to_thread(shown_by, cluster.address)
            running = during["meta"]["running"]
            if running:
                break
        await beat.settle()
        return before, running

    before, running = play(world, story, function="work", path=str(world.witness_file), seconds=12)
    assert before["get_pid"] == before["meta"]["pid"] == os.getpid()
    assert before["meta"]["schedules"][KEY]["cron"] == "0 * * * *"
    assert before["meta"]["schedules"][KEY]["next_run"] == "2026-01-01T13:00:00Z"
    assert before["meta"]["running"] == {}
    assert running == {KEY: [1]}


async def played_once(beat, clock):
    clock.advance("1h")
    await beat.settle()
    (run,) = await beat.runs()
    return run


def logs(world, run):
    """Return what `onbeat logs` shows of a run."""
    done = CliRunner().invoke(
        main, ["logs", str(run.run_id), "--database", world.settings().database]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def test_kodosumi_entry_point_gets_its_inputs_and_a_tracer(world):
    run = play(world, played_once, function="report", query="cats", limit=3)
    assert (run.status, run.error) == ("SUCCESS", None)
    assert run.result == {"Markdown": {"body": "3 lines about cats"}}
    assert logs(world, run) == (
        "debug: begins\nwith a query\n"
        'action: {"tool": "search", "query": "cats"}\n'
        "markdown: # A title\n\nabout cats\n"
        "printed as well\n"
    )


def test_tracer_may_be_passed_to_ray_tasks(world):
    run = play(world, played_once, function="plain_report", query="cats")
    assert (run.status, run.error) == ("SUCCESS", None)
    lines = [line for line in logs(world, run).splitlines() if "ray.get" not in line]  # Ray's own
    assert lines == ["text: begins", "result: a task looked for cats", "warning: ends"]


def test_flow_that_waits_for_a_person_fails_on_ray_with_a_hint(world):
    run = play(world, played_once, function="asks_a_person")
    assert (run.status, run.attempt) == ("FAILED", 1)
    assert "tracer.lock('approve') waits for an answer on the panel" in run.error
    assert "remove entry_point" in run.error


def test_launched_is_logged_when_the_cluster_has_started_the_run(world):
    async def story(beat, clock):
        await played_once(beat, clock)
        return (world.folder / "timer.log").read_text()

    told = play(world, story)
    assert re.findall(r"run 1 is launched as timer, triggered by timer: ([0-9a-f]+)\n", told)
    assert told.count("is launched") == 1


def test_each_execution_has_a_separate_runner_with_its_function_and_a_tracer(world):
    async def story(beat, clock):
        for _ in range(3):
            clock.advance("1h")
            await beat.settle()
        return list(reversed(await beat.runs())), (world.folder / "timer.log").read_text()

    runs, told = play(world, story, function="report", query="cats", limit=3)
    actors = re.findall(r"run \d is launched as timer, triggered by timer: ([0-9a-f]+)\n", told)
    assert len(set(actors)) == 3  # none is used twice
    assert [run.result["Markdown"]["body"] for run in runs] == ["3 lines about cats"] * 3
    assert all("markdown: # A title" in logs(world, run) for run in runs)


def test_launched_is_not_logged_without_a_cluster(world):
    async def story(beat, clock):
        clock.advance("1h")
        beat.wake()
        async with asyncio.timeout(60):
            while True:
                runs = await beat.runs()
                if runs and runs[0].reason == "busy":
                    return runs[0], (world.folder / "timer.log").read_text()
                await asyncio.sleep(0.05)

    world.address = "127.0.0.1:1"
    run, told = play(world, story)
    assert "no Ray cluster at 127.0.0.1:1: Connection refused" in run.error
    assert "is being launched" in told
    assert "is launched" not in told
