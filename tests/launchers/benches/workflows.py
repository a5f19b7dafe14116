"""The benches of DAGs whose executor is a function of the program, async or plain."""

import json
from types import SimpleNamespace
from typing import ClassVar

from onbeat.app.stores import SystemClock
from onbeat.core.runs.run import Accepted, Failed
from onbeat.core.target import Target
from onbeat.core.time.instants import parse_instant
from onbeat.launchers.python.threads import CallThreads
from onbeat.systems.workflows.executors import CallableExecutor
from onbeat.systems.workflows.launcher import WorkflowLauncher
from onbeat.systems.workflows.run_launcher import RunLauncher
from onbeat.systems.workflows.store import DirectoryStore
from tests.launchers.bench import Bench
from tests.launchers.benches.functions import (
    LONGEST_WORK,
    at_work,
    at_work_in,
    misbehave,
    note_start,
    starts_in,
)
from tests.waiting import await_condition, until

NO_OUTPUT = "an executor gives a result and no output"
NO_ATTEMPT = "an executor gets the key, which is the same for every attempt"
NO_CANCEL = "a DAG that an executor has accepted is not canceled"


def dag_launcher(folder, executor):
    """Return a launcher of the DAGs in a folder."""
    dags = DirectoryStore(folder / "dags")
    return WorkflowLauncher(RunLauncher(dags, executor, clock=SystemClock()))


def dag_target(folder, do, **fields):
    """Return a target whose DAG names what its executor does."""
    path = folder / "dags" / f"{do}_v1.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"do": do, **fields}))
    return {"workflow": do, "version": 1, "user_id": "ada"}


def invalid_workflows():
    return [
        Target("workflow", {"workflow": "", "version": 1, "user_id": "ada"}),
        Target("workflow", {"workflow": "work", "version": -1, "user_id": "ada"}),
        Target("workflow", {"workflow": "succeed", "user_id": "ada"}),
        Target("workflow", {"workflow": "succeed", "version": "1", "user_id": "ada"}),
        Target("workflow", {"workflow": "succeed", "version": 1, "user_id": "ada", "cdw": 1}),
    ]


class AsyncExecutorBench(Bench):
    """An async function, which is cancelled with its launch."""

    kind = "workflow"
    lacks: ClassVar = {
        "attempt": NO_ATTEMPT,
        "output": NO_OUTPUT,
        "cancel": NO_CANCEL,
        "close": "the launches of a node are cancelled before its launchers are closed",
        "once": "the executor is called by every launch; the key identifies a repetition",
    }
    after_crash = "ends"
    result: ClassVar = {"count": 3}
    error = "ValueError: no luck"
    external_id = "job-7"

    async def make(self):
        executor = CallableExecutor(self._execute, in_thread=CallThreads(4).call)
        return dag_launcher(self.folder, executor)

    async def _execute(self, dag, meta):
        self._note(meta)
        if dag["do"] != "work":
            return self._act(dag, meta)
        with at_work(self.folder) as is_released:
            await until(is_released, longest=LONGEST_WORK)
        return self.result

    def _note(self, meta):
        run_at = parse_instant(meta["scheduled_for"])
        start = SimpleNamespace(key=meta["idempotency_key"], attempt=None, run_at=run_at)
        note_start(self.folder, start)

    def _act(self, dag, meta):
        match dag["do"]:
            case "succeed":
                return self.result
            case "fail":
                raise ValueError("no luck")
            case "refuse":
                return False
            case "accept":
                (self.folder / "callbacks").write_text(meta["idempotency_key"])
                return Accepted(self.external_id)
            case how:
                return misbehave(how)

    def _dag(self, do):
        return dag_target(self.folder, do)

    def succeeds(self):
        return self._dag("succeed")

    def fails(self):
        return self._dag("fail")

    def fails_for_good(self):
        return self._dag("refuse")

    def works(self):
        return self._dag("work")

    def accepts(self):
        return self._dag("accept")

    def prints(self, text):
        return self._dag("succeed")

    def release(self):
        (self.folder / "release").touch()

    def callbacks(self):
        return [(self.folder / "callbacks").read_text()]

    def invalid(self):
        return invalid_workflows()

    async def make_cut_off(self):
        return await self.make(), Failed

    def unreachable(self):
        return {"workflow": "absent", "version": 1, "user_id": "ada"}

    def odd(self):
        names = ("large", "set", "surrogate", "error", "exit")
        return {name: self._dag(name) for name in names}

    def starts(self):
        return starts_in(self.folder)

    def working(self):
        return at_work_in(self.folder)


class PlainExecutorBench(AsyncExecutorBench):
    """A plain function, which runs in a thread."""

    lacks: ClassVar = AsyncExecutorBench.lacks | {
        "end": "a plain function runs in a thread, which cannot be ended from outside"
    }

    async def make(self):
        executor = CallableExecutor(self._execute_plainly, in_thread=CallThreads(4).call)
        return dag_launcher(self.folder, executor)

    def _execute_plainly(self, dag, meta):
        self._note(meta)
        if dag["do"] != "work":
            return self._act(dag, meta)
        with at_work(self.folder) as is_released:
            await_condition(is_released, longest=LONGEST_WORK)
        return self.result

    async def close(self):
        await until(lambda: self.working() == 0)
