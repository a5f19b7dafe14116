"""A Ray cluster for these tests, in a network namespace that has only `lo`."""

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onbeat import Onbeat
from tests.given_settings import given_settings

ROOT = Path(__file__).parent.parent.parent
OBJECTS = 80 * 2**20  # bytes of an object store

try:
    from ray.cluster_utils import Cluster
except ModuleNotFoundError:
    Cluster = None


def pytest_collection_modifyitems(items):
    """Skip a test that cannot run here; in CI that is a failure."""
    why = None
    if Cluster is None:
        why = "ray is not installed (make .venv/ray.stamp)"
    elif [name for _, name in socket.if_nameindex()] != ["lo"]:
        why = "Ray listens at every address: make ray runs this in a network of its own"
    for item in items:
        if why is not None and Path(__file__).parent in item.path.parents:
            if os.environ.get("CI"):
                item.add_marker(pytest.mark.usefixtures("refuses_to_be_skipped"))
            else:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def refuses_to_be_skipped():
    pytest.fail("in CI, Ray is there and has a network of its own")


def start_cluster(folder, **head):
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "PYTHONPATH": str(ROOT),  # the cluster has the code of the tests
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "4",
    }
    args = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": OBJECTS, **head}
    return Cluster(initialize_head=True, head_node_args=args)


@pytest.fixture(scope="session")
def ray_folder():
    """A short path, since the names of Unix sockets in it are long."""
    folder = Path(f"/tmp/ob{os.getpid()}")
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def cluster(ray_folder):
    started = start_cluster(ray_folder)
    yield started
    started.shutdown()


class RayHarness:
    """A scheduler with a cluster, and helpers for both."""

    def __init__(self, folder, address):
        self.folder, self.address = folder, address
        self.witness_file = folder / "witness"

    def settings(self, **more):
        return given_settings(
            database=f"sqlite:///{self.folder}/onbeat.db",
            roles=("plan", "run"),
            **{"ray_address": self.address, **more},
        )

    @asynccontextmanager
    async def up(self, **more):
        async with Onbeat(settings=self.settings(**more)) as beat:
            yield beat

    async def ended(self, beat, run_id, patience=60):
        async with asyncio.timeout(patience):
            while True:
                run = await beat.service.run(run_id)
                if run.finished_at is not None:
                    return run
                await asyncio.sleep(0.05)

    async def until(self, holds, patience=60):
        async with asyncio.timeout(patience):
            while not holds():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)

    def witnesses(self):
        if not self.witness_file.exists():
            return []
        return [line.split() for line in self.witness_file.read_text().splitlines()]


@pytest.fixture
def world(tmp_path, cluster):
    return RayHarness(tmp_path, cluster.address)


def on_ray(function, **more):
    """Return the fields of a schedule that never ticks by itself in a test."""
    policy = {
        name: more.pop(name)
        for name in ("retry", "timeout", "on_lost", "cancel_grace", "overlap")
        if name in more
    }
    run = {"python": f"tests.ray.work:{function}", "on": "ray", **more}
    return {"at": "2099-01-01T00:00:00Z", "run": run, **policy}
