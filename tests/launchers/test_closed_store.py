"""Launches on a store that is closed: they have an outcome soon, and start nothing."""

import asyncio

import pytest

from onbeat.core.runs.run import Busy, Failed, Lost
from onbeat.systems.flows.tracked_launch import STORE_PATIENCE
from tests.launchers.benches.flows import FlowBench
from tests.launchers.benches.sessions import SessionBench


@pytest.mark.parametrize("bench_type", [SessionBench, FlowBench])
@pytest.mark.parametrize("may_run", [False, True])
def test_launch_on_a_closed_store_is_an_outcome_without_a_start(tmp_path, bench_type, may_run):
    async def story():
        async with bench_type(tmp_path) as bench:
            launcher = await bench.new()
            await bench._stores.close()
            async with asyncio.timeout(STORE_PATIENCE / 3):  # it is not tried again
                attempt = bench.attempt(bench.succeeds(), may_run=may_run)
                outcome, _ = await launcher.launch(attempt)
            assert isinstance(outcome, Lost if may_run else Failed | Busy)
            assert may_run or outcome.error == "the store is closed"
            assert bench.starts() == []

    asyncio.run(story())
