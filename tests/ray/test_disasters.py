"""A hundred runs on three nodes of Ray, while the scheduler, a worker and a node are killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from onbeat import Onbeat
from onbeat.core.schedule import read_schedule
from onbeat.core.time.instants import rfc3339
from tests.ray.conftest import OBJECTS, RayHarness, on_ray, start_cluster
from tests.ray.test_launcher import play

RUNS = 100
PATIENCE = 100  # seconds


@pytest.fixture
def three_nodes(ray_folder):
    cluster = start_cluster(ray_folder, num_cpus=2)
    cluster.add_node(num_cpus=2, object_store_memory=OBJECTS)
    cluster.doomed = cluster.add_node(
        num_cpus=2, resources={"doomed": 1}, object_store_memory=OBJECTS
    )
    yield cluster
    cluster.shutdown()


class Scheduler:
    """A real `onbeat up`, which can be killed and started again."""

    def __init__(self, world):
        self.world, self.process = world, None

    def start(self):
        command = [sys.executable, "-m", "onbeat", "up", "--roles", "plan,run", "--lease", "2s"]
        command += ["--database", f"sqlite:///{self.world.folder}/onbeat.db"]
        command += ["--ray-address", self.world.address]
        with (self.world.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=self.world.folder, stdout=log, stderr=log)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def until(holds, what):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


async def define(world):
    """Define a hundred schedules that are due soon; a third of them on the node that dies."""
    path, due = str(world.witness_file), rfc3339(int(time.time()) + 3)
    schedules = []
    for n in range(RUNS):
        where = {"doomed": 0.1} if n % 3 == 0 else {}
        fields = on_ray(
            "work", inputs={"path": path, "seconds": 1.5}, resources={"cpus": 0.25, **where}
        )
        schedules.append(read_schedule(f"run-{n:03}", fields | {"at": due}))
    beat = Onbeat(settings=world.settings())
    await beat.open()
    await beat.define(*schedules)
    await beat.close()


async def rows(world):
    beat = Onbeat(settings=world.settings(), clock=None)
    await beat.open()
    found = await beat.runs(limit=1000)
    await beat.close()
    return found


def test_killed_processes_leave_every_run_decided_and_none_started_twice(tmp_path, three_nodes):
    world = RayHarness(tmp_path, three_nodes.address)
    asyncio.run(define(world))
    scheduler = Scheduler(world)
    scheduler.start()
    until(lambda: len(world.witnesses()) >= 12, "runs begin")
    scheduler.kill()
    in_the_middle = {line[0] for line in world.witnesses()}
    scheduler.start()
    seen = len(world.witnesses())
    until(lambda: len(world.witnesses()) >= seen + 5, "more runs begin")
    os.kill(int(world.witnesses()[-1][3]), signal.SIGKILL)  # a worker
    of_the_doomed = {f"run-{n:03}" for n in range(0, RUNS, 3)}
    seen = len([line for line in world.witnesses() if line[1] in of_the_doomed])
    until(
        lambda: len([line for line in world.witnesses() if line[1] in of_the_doomed]) > seen,
        "there",
    )
    three_nodes.remove_node(three_nodes.doomed, allow_graceful=False)
    three_nodes.add_node(num_cpus=2, resources={"doomed": 1}, object_store_memory=OBJECTS)
    until(lambda: all(row.finished_at for row in asyncio.run(rows(world))), "every run ends")
    found = asyncio.run(rows(world))
    scheduler.process.send_signal(signal.SIGTERM)
    scheduler.process.wait(timeout=30)

    told = Counter((row.status, row.reason) for row in found)
    print(f"\n{len(found)} runs: {dict(told)}; {len(world.witnesses())} beginnings")
    assert len(found) == RUNS
    assert told.keys() == {("SUCCESS", None), ("FAILED", "lost")}
    begun = Counter(key for key, *_ in world.witnesses())
    assert set(begun.values()) == {1}
    assert {row.key for row in found if row.status == "SUCCESS"} <= begun.keys()
    # Runs in progress when the scheduler was killed were reattached: only killed workers lose runs.
    lost = [row for row in found if row.status == "FAILED"]
    assert 1 <= len(lost) <= 15
    assert in_the_middle & {row.key for row in found if row.status == "SUCCESS"}
    assert any(row.attempt > 1 and row.status == "SUCCESS" for row in found)


def test_run_of_a_dead_cluster_is_decided_when_its_lease_expires(tmp_path, ray_folder):
    cluster = start_cluster(ray_folder, num_cpus=2)
    world = RayHarness(tmp_path, cluster.address)

    async def story(beat):
        fields = on_ray("work", inputs={"path": str(world.witness_file), "seconds": 600})
        await beat.define(read_schedule("it", fields))
        started = await beat.start("it")
        await world.until(world.witnesses)
        cluster.head_node.kill_gcs_server()
        cluster.head_node.kill_raylet()
        return await world.ended(beat, started.run_id)

    try:
        run = play(world, story, ray_lease=6_000)
    finally:  # a normal stop would look for dead processes
        cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    assert (run.status, run.reason) == ("FAILED", "lost")
    assert "it was started zero or one times" in run.error
    assert len(world.witnesses()) == 1
