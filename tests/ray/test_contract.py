"""Functions and DAGs on a real Ray cluster pass the contract of launchers."""

import pytest

from tests.launchers.contract import LauncherContract
from tests.ray.bench import DagOnRayBench, RayBench


class TestRay(LauncherContract):
    bench_type = RayBench

    @pytest.fixture
    def bench(self, tmp_path, cluster):
        return self.bench_type(tmp_path, cluster.address)


class TestDagOnRay(TestRay):
    bench_type = DagOnRayBench
