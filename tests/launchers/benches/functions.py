"""The benches of Python functions, async and plain."""

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from onbeat.core.runs.run import Failed
from onbeat.core.target import Target
from onbeat.launchers.python.launcher import FunctionLauncher
from tests.launchers.bench import Bench, Start, is_running
from tests.waiting import await_condition, until

HERE = __name__
NO_OUTPUT = "a function shares the process and its streams"
LARGE = 300_000  # characters
LONGEST_WORK = 100.0  # seconds; a case that waits for them fails


def note_start(folder, run):
    """Add a line to the witnesses."""
    with Path(folder, "starts").open("a") as starts:
        starts.write(f"{json.dumps([run.key, run.attempt, run.run_at])}\n")


def starts_in(folder):
    """Return the starts that `note_start` has written."""
    path = Path(folder, "starts")
    lines = path.read_text().splitlines() if path.exists() else []
    return [Start(*json.loads(line)) for line in lines]


@contextmanager
def at_work(folder):
    """Leave a file with the process id while a function works; return whether it is released."""
    file = Path(folder, f"at-work.{os.getpid()}.{uuid4().hex}")
    file.touch()
    try:
        yield Path(folder, "release").exists
    finally:
        file.unlink()


def at_work_in(folder):
    """Return how many functions are at work in processes that run."""
    return sum(is_running(int(each.suffixes[0][1:])) for each in folder.glob("at-work.*"))


def succeed(run, folder):
    note_start(folder, run)
    return {"count": 3}


def fail(run, folder):
    note_start(folder, run)
    raise ValueError("no luck")


def shout(run, folder, text):
    note_start(folder, run)
    print(text, end="")


def misbehave(how):
    match how:
        case "large":
            return "x" * LARGE
        case "set":
            return {1, 2}
        case "surrogate":
            return "\ud800"
        case "error":
            raise ValueError("x" * LARGE)
        case "exit":
            raise SystemExit(3)
        case "mute":
            raise Mute


class Mute(Exception):  # noqa: N818 - it is one of a kind
    def __str__(self):
        raise RuntimeError("it has no text")


async def work(run, folder):
    note_start(folder, run)
    with at_work(folder) as is_released:
        await until(is_released, longest=LONGEST_WORK)


def work_in_thread(run, folder):
    note_start(folder, run)
    with at_work(folder) as is_released:
        await_condition(is_released, longest=LONGEST_WORK)


class FunctionBench(Bench):
    """Functions that the node imports, of which the one that works is async."""

    kind = "python"
    lacks: ClassVar = {
        "output": NO_OUTPUT,
        "close": "the launches of a node are cancelled before its launchers are closed",
        "once": "a function is called by every launch, with the attempt",
    }
    after_crash = "ends"
    result: ClassVar = {"count": 3}
    error = "ValueError: no luck"

    async def make(self):
        return FunctionLauncher(concurrency=4)

    def _function(self, name, **inputs):
        return {"python": f"{HERE}:{name}", "inputs": {"folder": str(self.folder), **inputs}}

    def succeeds(self):
        return self._function("succeed")

    def fails(self):
        return self._function("fail")

    def fails_for_good(self):
        return {"python": f"{HERE}:missing"}

    def works(self):
        return self._function("work")

    def release(self):
        (self.folder / "release").touch()

    def prints(self, text):
        return self._function("shout", text=text)

    def invalid(self):
        return [
            Target("python", {"python": f"{HERE}:succeed", "cdw": "/"}),
            Target("python", {"python": f"{HERE}:not a name"}),
            Target("python", {"python": "not a name"}),
            Target("python", {"python": 7}),
        ]

    async def make_cut_off(self):
        return await self.make(), Failed

    def unreachable(self):
        return {"python": f"{HERE}_that_is_not_installed:succeed"}

    def odd(self):
        names = ("large", "set", "surrogate", "error", "exit", "mute")
        return {name: {"python": f"{HERE}:misbehave", "inputs": {"how": name}} for name in names}

    def starts(self):
        return starts_in(self.folder)

    def working(self):
        return at_work_in(self.folder)


class ThreadFunctionBench(FunctionBench):
    """Registered functions, of which the one that works is plain, and runs in a thread."""

    lacks: ClassVar = FunctionBench.lacks | {
        "cancel": "a plain function runs in a thread, which cannot be ended from outside",
        "end": "a plain function runs in a thread, which cannot be ended from outside",
    }

    async def make(self):
        launcher = await super().make()
        for function in (succeed, fail, work_in_thread, shout, misbehave):
            launcher.register(function.__name__, function)
        return launcher

    def _function(self, name, **inputs):
        return super()._function(name, **inputs) | {"python": name}

    def works(self):
        return self._function("work_in_thread")

    async def close(self):
        await until(lambda: self.working() == 0)
