"""The benches of functions and of DAGs on a Ray cluster."""

import os
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

from onbeat.core.runs.run import Busy
from onbeat.core.target import Target
from onbeat.core.time.instants import parse_instant
from onbeat.events import RunRetrying
from onbeat.host.output_files import output_path
from onbeat.systems.ray.launcher import RayLauncher
from onbeat.systems.ray.link import Link
from onbeat.systems.workflows.executors import RayExecutor
from tests.launchers.bench import LONGEST_TAIL
from tests.launchers.benches import functions
from tests.launchers.benches.documents import Stores
from tests.launchers.benches.functions import FunctionBench
from tests.launchers.benches.workflows import (
    NO_ATTEMPT,
    NO_CANCEL,
    NO_OUTPUT,
    dag_launcher,
    dag_target,
    invalid_workflows,
)

FUNCTIONS = "tests.launchers.benches.functions"
HERE = __name__
NOWHERE = "127.0.0.1:1"
ON_CLUSTER = "a runner belongs to the cluster, and continues without its node"


class RayBench(FunctionBench):
    """Functions on a cluster. `address` is the cluster's, which the tests start."""

    kind = "ray"
    lacks: ClassVar = {
        "close": ON_CLUSTER,
        "unbegun": "a cluster that has no trace of a run may have been restarted",
    }
    after_crash = "continues"
    longest_file = 10 * 1024 * 1024 + LONGEST_TAIL
    longest_result_is_cut = False
    timeout = 8_000  # a worker takes seconds to start
    patience = 60.0

    def __init__(self, folder, address=""):
        super().__init__(folder, address)
        self._stores, self._rays = Stores(self.folder), []

    async def make(self):
        return await self._launcher(self.address)

    async def _launcher(self, address):
        return await self._ray_launcher(address)

    async def _ray_launcher(self, address):
        link = Link(address, f"contract-{self.folder.name}", environment=os.environ)
        store = await self._stores.new()
        path_of = partial(output_path, self.folder / "output")
        self._rays.append(RayLauncher(link, records=store, path_of=path_of))
        return self._rays[-1]

    async def __aexit__(self, *why):
        """End the runners: each has a place on the cluster until its outcome is recorded."""
        self.release()
        linked = [each for each in self._rays if each._link._gateway is not None]
        if linked or self.starts():
            running = [each for each in linked if not each._link._gateway.has_ended]
            ray = running[0] if running else await self._ray_launcher(self.address)
            for each in (await ray._link.ask("list", {}))["runners"]:
                await ray._end(each["name"])
            await ray.close()
        await super().__aexit__(*why)

    async def close(self):
        await self._stores.close()

    def _function(self, name, **inputs):
        return super()._function(name, **inputs) | {"on": "ray"}

    def fails_for_good(self):
        return {"python": f"{FUNCTIONS}:missing", "on": "ray"}

    def invalid(self):
        fields = {"python": f"{FUNCTIONS}:succeed", "on": "ray"}
        return [
            Target("ray", fields | {"cdw": "/"}),
            Target("ray", fields | {"python": "succeed"}),
            Target("ray", fields | {"python": 7}),
            Target("ray", fields | {"resources": {"cpus": "many"}}),
        ]

    async def make_cut_off(self):
        return await self._launcher(NOWHERE), Busy

    def unreachable(self):
        return self.succeeds()

    def odd(self):
        names = ("large", "error", "mute")
        target = {"python": f"{FUNCTIONS}:misbehave", "on": "ray"}
        return {name: target | {"inputs": {"how": name}} for name in names}

    def output_file(self, attempt):
        return output_path(self.folder / "output", attempt.run_id, attempt.attempt)

    def record(self, launcher, attempt, outcome):
        event = RunRetrying(attempt.schedule_id, attempt.run_id, attempt.run_at, 1, 0, "error")
        launcher.on_events(0, [event])


class DagOnRayBench(RayBench):
    """DAGs of one node."""

    kind = "workflow"
    lacks: ClassVar = {
        "attempt": NO_ATTEMPT,
        "output": NO_OUTPUT,
        "cancel": NO_CANCEL,
        "close": ON_CLUSTER,
        "report": "the launcher waits for the outcome of the DAG itself",
    }
    timeout = 20_000  # its node is another worker
    result: ClassVar = {"node": {"count": 3}}
    external_id = ""

    async def _launcher(self, address):
        ray = await self._ray_launcher(address)
        return _WithCluster(dag_launcher(self.folder, RayExecutor(ray.run_dag)), ray)

    def _function(self, name, **inputs):
        return self._dag(name, f"{HERE}:{name}_node", folder=str(self.folder))

    def _dag(self, name, python, **inputs):
        nodes = [{"id": "node", "python": python, "inputs": inputs, "cpus": 0}]
        return dag_target(self.folder, name, nodes=nodes)

    def fails_for_good(self):
        return dag_target(self.folder, "refuse", nodes=[])

    def invalid(self):
        return invalid_workflows()

    def odd(self):
        names = ("large", "error")
        return {name: self._dag(name, f"{FUNCTIONS}:misbehave", how=name) for name in names}

    def output_file(self, attempt):
        return None

    def record(self, launcher, attempt, outcome):
        """Do nothing: the launcher ends the runner of a DAG itself."""


class _WithCluster:
    """The launcher of DAGs, and that of the cluster, which a process closes as well."""

    def __init__(self, launcher, cluster):
        self._launcher, self._cluster = launcher, cluster

    def __getattr__(self, name):
        return getattr(self._launcher, name)

    async def close(self):
        await self._launcher.close()
        await self._cluster.close()


def as_run(meta):
    """Return what a node of a DAG gets, as a function gets its run."""
    run_at = parse_instant(meta["scheduled_for"])
    return SimpleNamespace(key=meta["idempotency_key"], attempt=None, run_at=run_at)


def succeed_node(meta, folder):
    return functions.succeed(as_run(meta), folder)


def fail_node(meta, folder):
    return functions.fail(as_run(meta), folder)


def shout_node(meta, folder):
    return functions.shout(as_run(meta), folder, "loud")


def work_node(meta, folder):
    return functions.work_in_thread(as_run(meta), folder)
