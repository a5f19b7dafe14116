"""A real Flock server: its agent sees the ticks that Onbeat sends as those of its timer.

`FLOCK_PYTHON=/path/to/python pytest tests/peers/test_flock.py`, with a Python that has flock-core.
"""

import asyncio
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from onbeat import Onbeat
from onbeat.testing import ManualClock, a_schedule
from tests.docs.examples import free_port

PYTHON = os.environ.get("FLOCK_PYTHON")
PATIENCE = 60  # seconds: it imports a lot

pytestmark = pytest.mark.skipif(not PYTHON, reason="FLOCK_PYTHON names no Python with flock-core")


@pytest.fixture
def flock(tmp_path):
    """Start a server; return its URL and what its agent recorded."""
    port, told, said = free_port(), tmp_path / "told", tmp_path / "said"
    script = Path(__file__).parent / "flock_server.py"
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "OTEL_SDK_DISABLED": "true", "FLOCK_AUTO_TRACE": "false"}  # fmt: skip
    with said.open("wb") as output:
        running = subprocess.Popen(
            [PYTHON, script, str(port), told], cwd=tmp_path, env=environment, stdout=output,
            stderr=output,
        )  # fmt: skip
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and running.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.05)
    else:
        running.kill()
        raise AssertionError(said.read_text())
    yield f"http://127.0.0.1:{port}", lambda: list(map(json.loads, told.read_text().splitlines()))
    running.terminate()
    running.wait(30)


def test_agent_of_a_flock_server_sees_each_tick_as_a_timer_tick(flock, tmp_path):
    url, told = flock
    clock = ManualClock("2026-01-01T12:00:00Z")

    async def story():
        async with Onbeat(f"sqlite:///{tmp_path}/onbeat.db", clock=clock) as beat:
            for agent in ("daily", "nobody"):
                run = {"flock": {"url": url, "agent": agent}}
                await beat.define(a_schedule(agent, every="1h", run=run))
            for _ in range(3):
                clock.advance("1h")
                await beat.settle()
            return await beat.runs("daily"), await beat.runs("nobody")

    done, (unknown, *_) = asyncio.run(story())
    print("\nthe agent saw:", *told(), sep="\n  ")
    print("the last run has:", done[0].result)
    assert [run.status for run in done] == ["SUCCESS"] * 3, done[0].error
    assert told() == [
        {
            "agent": "daily",
            "trigger_type": "timer",
            "timer_iteration": n,
            "fire_time": f"2026-01-01T{13 + n}:00:00+00:00",
        }
        for n in range(3)
    ]
    (artifact,) = done[0].result["artifacts"]
    assert artifact["payload"] == {"iteration": 2, "fire_time": "2026-01-01T15:00:00+00:00"}
    assert unknown.status == "FAILED"
    assert unknown.error == "the server has no agent called 'nobody' (agent not found)"
