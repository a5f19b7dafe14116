"""The bench of agents of this program: each is an async function that its launcher calls."""

from datetime import time
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel

from onbeat.agents import Orchestrator
from tests.inside import launcher_of
from tests.launchers.bench import Start
from tests.launchers.benches.functions import LONGEST_WORK, FunctionBench, at_work
from tests.waiting import until


class Note(BaseModel):
    text: str = ""


class AgentBench(FunctionBench):
    lacks: ClassVar = FunctionBench.lacks | {
        "key": "an agent receives a correlation id",
        "final failure": "whatever an engine raises, another attempt may succeed",
        "output": "an engine shares the process and its streams",
    }
    result: ClassVar = {"artifacts": []}

    def __init__(self, folder, address=""):
        super().__init__(folder, address)
        self._programs = []

    async def make(self):
        program = Orchestrator("sqlite://")
        for name in ("succeed", "fail", "work", "shout", "verbose", "no_model"):
            agent = program.agent(name).schedule(at=time(9)).publishes(Note)
            agent.with_engines(engine_in(self.folder, ENGINES[name]))
        await program.start()
        self._programs.append(program)
        return launcher_of(program.beat, "python")

    async def close(self):
        for program in self._programs:
            await program.close()

    def _function(self, name, **inputs):
        return {"python": f"agents/{name}"}

    def fails_for_good(self):
        return self.fails()

    def odd(self):
        return {name: self._function(name) for name in ("verbose", "no_model")}

    def prints(self, text):
        return self._function("shout")

    def starts(self):
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Start(None, *map(int, line.split())) for line in lines]


def engine_in(folder, function):
    """Return an engine that gets the folder of the bench too."""

    async def engine(ctx):
        return await function(folder, ctx)

    return engine


def note(folder, ctx):
    with Path(folder, "starts").open("a") as starts:
        starts.write(f"{ctx.attempt} {int(ctx.fire_time.timestamp())}\n")


async def succeed(folder, ctx):
    note(folder, ctx)


async def fail(folder, ctx):
    note(folder, ctx)
    raise ValueError("no luck")


async def work(folder, ctx):
    note(folder, ctx)
    with at_work(folder) as is_released:
        await until(is_released, longest=LONGEST_WORK)


async def shout(folder, ctx):
    print("loud")


async def verbose(folder, ctx):
    raise ValueError("x" * 300_000)


async def no_model(folder, ctx):
    return {1, 2}


ENGINES = {each.__name__: each for each in (succeed, fail, work, shout, verbose, no_model)}
