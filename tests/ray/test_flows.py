"""Flows that run on a real Ray cluster instead of on a panel, and what the cluster shows of the timer."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
import yaml

from onbeat import Onbeat
from onbeat.testing import ManualClock

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


@pytest.mark.req("K1", "K20", "K25", "K40", "K63")
def test_a_flow_with_an_entry_point_has_a_runner_of_its_own_that_says_who_started_it(world):
    async def story(beat, clock):
        clock.advance("1h")
        beat.wake()
        await world.until(world.witnesses)
        (found,) = (await beat._opened._launchers["ray"]._link.ask("list", {}))["runners"]
        clock.advance("1h")  # while it runs
        await beat.settle()
        return found, [(run.status, run.reason, run.user) for run in reversed(await beat.runs())]

    found, runs = play(world, story, function="work", path=str(world.witness_file), seconds=3)
    assert (found["user"], found["triggered_by"], found["schedule_key"]) == ("timer", "timer", KEY)
    assert runs == [("SUCCESS", None, "timer"), ("SKIPPED", "overlap", "timer")]
    assert len(world.witnesses()) == 1


@pytest.mark.req("K23", "K24", "K31")
def test_the_lock_on_the_cluster_has_the_pid_the_schedules_and_what_is_running(world, cluster):
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
