"""A Flock server with one agent and no model: it records the trigger in its context.

Run by a Python that has flock-core: `python flock_server.py PORT FILE`.
"""

import asyncio
import json
import sys
from pathlib import Path

from flock import Flock
from flock.components.agent import EngineComponent
from flock.registry import flock_type
from flock.utils.runtime import EvalResult
from pydantic import BaseModel

PORT, TOLD = int(sys.argv[1]), Path(sys.argv[2]).open("a")  # noqa: SIM115 - as long as it runs


@flock_type
class PeerReport(BaseModel):
    iteration: int
    fire_time: str


class Recorder(EngineComponent):
    async def evaluate(self, agent, ctx, inputs, output_group):
        seen = {
            "agent": agent.name,
            "trigger_type": ctx.trigger_type,
            "timer_iteration": ctx.timer_iteration,
            "fire_time": ctx.fire_time.isoformat() if ctx.fire_time else None,
        }
        print(json.dumps(seen), file=TOLD, flush=True)
        if ctx.timer_iteration is None:
            raise RuntimeError("no timer")
        report = PeerReport(iteration=ctx.timer_iteration, fire_time=seen["fire_time"])
        return EvalResult.from_object(report, agent=agent)


async def main():
    flock = Flock()
    flock.agent("daily").consumes(PeerReport).publishes(PeerReport).with_engines(Recorder())
    await flock.serve(host="127.0.0.1", port=PORT)


asyncio.run(main())
