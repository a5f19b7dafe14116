"""A thousand agents and ten thousand artifacts in one process: `python -m bench.agents [SECONDS]`.

Each agent has a timer of 10 to 60 seconds; each run reads all artifacts through a
filter and publishes one. Lateness is from the planned instant to the first line of the engine. In a
second part all agents are due in the same second: how long the last one waits. Memory is the growth
of the process.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from onbeat.agents import AgentBuilder, AgentContext, Orchestrator

AGENTS, ARTIFACTS, IN_PARALLEL = 1_000, 10_000, 200


class LogEntry(BaseModel):
    """The artifact that each run reads."""

    level: str
    text: str
    at: datetime


class Report(BaseModel):
    """The artifact that each run publishes."""

    count: int


def memory() -> int:
    """Return the resident memory of this process in KiB."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def is_error(log: LogEntry) -> bool:
    return log.level == "ERROR"


class Bench:
    """An orchestrator with its agents, and the lateness of each run."""

    def __init__(self, folder: str, when: Callable[[AgentBuilder, int], AgentBuilder]):
        self.lateness: list[float] = []
        self.its = Orchestrator(f"sqlite:///{folder}/agents.db")
        for n in range(AGENTS):
            agent = self.its.agent(f"agent-{n}").consumes(LogEntry, where=is_error)
            when(agent.publishes(Report).with_engines(self.engine), n)

    async def engine(self, ctx: AgentContext) -> Report:
        self.lateness.append(time.time() - ctx.fire_time.timestamp())
        return Report(count=len(ctx.get_artifacts(LogEntry)))

    def show(self, title: str) -> None:
        late = sorted(self.lateness)
        p50, p99 = (1000 * late[int(len(late) * share)] for share in (0.5, 0.99))
        figures = f"p50 {p50:5.0f} ms, p99 {p99:5.0f} ms, max {1000 * late[-1]:5.0f} ms"
        print(f"{title:44} {len(late):6} runs, lateness {figures}")


async def fill(folder: str) -> None:
    its = Orchestrator(f"sqlite:///{folder}/agents.db")
    async with its:
        before, begun = memory(), time.monotonic()
        for begin in range(0, ARTIFACTS, IN_PARALLEL):
            batch = range(begin, min(begin + IN_PARALLEL, ARTIFACTS))
            entries = [
                LogEntry(
                    level="INFO" if n % 10 else "ERROR",
                    text=f"request {n} was answered",
                    at=datetime.now(UTC),
                )
                for n in batch
            ]
            await asyncio.gather(*map(its.publish, entries))
        rate = ARTIFACTS / (time.monotonic() - begun)
        grown = memory() - before
        print(f"{'publishing, durably':44} {rate:6.0f} artifacts a second")
        print(f"{'memory of an artifact':44} {1024 * grown / ARTIFACTS:6.0f} bytes")


async def spread(folder: str, seconds: float) -> None:
    before = memory()

    def when(agent: AgentBuilder, n: int) -> AgentBuilder:
        length = 10 + n * 7 % 51
        return agent.schedule(
            every=timedelta(seconds=length), after=timedelta(seconds=n * 13 % length)
        )

    bench = Bench(folder, when)
    begun = time.monotonic()
    async with bench.its as its:
        print(f"{'start with all agents and artifacts':44} {time.monotonic() - begun:6.2f} s")
        held = memory()
        await its.get_artifacts(LogEntry)
        print(f"{'memory of an agent':44} {1024 * (held - before) / AGENTS:6.0f} bytes")
        used, began = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        cpu = 100 * (time.process_time() - used) / (time.monotonic() - began)
        bench.show(f"{AGENTS} timers of 10 to 60 s")
        print(f"{'':44} {cpu:6.0f} % of one CPU, {memory() / 1024:.0f} MiB resident")


async def herd(folder: str) -> None:
    due = (datetime.now(UTC) + timedelta(seconds=6)).replace(microsecond=0)
    bench = Bench(folder, lambda agent, _: agent.schedule(at=due))
    async with bench.its as its:
        await its.run_until_idle(timeout=120)
    bench.show(f"{AGENTS} timers in the same second")


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(f"{AGENTS} agents, {ARTIFACTS} artifacts (each run reads a tenth), one process")
        await fill(folder)
        await spread(folder, seconds)
        await herd(folder)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
