"""The benches of kinds that send one request for a run: http, flock, and DAGs for an executor."""

from typing import ClassVar

from onbeat.core.runs.run import Failed
from onbeat.core.target import Target
from onbeat.core.time.instants import parse_instant
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.systems.agents.flock import FlockLauncher
from onbeat.systems.workflows.executors import HttpExecutor
from tests.launchers.bench import Bench, Start
from tests.launchers.benches.server import BehavingServer
from tests.launchers.benches.workflows import (
    NO_ATTEMPT,
    NO_OUTPUT,
    dag_launcher,
    dag_target,
    invalid_workflows,
)

NOWHERE = "http://127.0.0.1:1"
NOT_UNDONE = "a server that has a request is not asked to stop"
REPEATED = "every launch sends its request; the key lets the server recognize a repetition"
OWNED = "the launches of a node are cancelled before its launchers are closed"


async def callback(key):
    return {"Onbeat-Callback": f"https://here/{key}", "Onbeat-Callback-Token": "t"}


class RequestBench(Bench):
    """A bench whose targets are answers of a server in this process."""

    lacks: ClassVar = {"cancel": NOT_UNDONE, "end": NOT_UNDONE, "once": REPEATED, "close": OWNED}
    result: ClassVar = {"count": 3}
    error = "HTTP 500"
    external_id = "job-7"

    def __init__(self, folder, address=""):
        super().__init__(folder, address)
        self._http, self.server = [], None

    async def open(self):
        self.server = BehavingServer(self.name_of, self.wrap)
        await self.server.start()
        self.address = self.server.url

    async def close(self):
        for http in self._http:
            await http.close()
        await self.server.stop()

    def http(self):
        """Return what sends requests, as a node has it."""
        self._http.append(HttpLauncher(version="1", environment={}, callback=callback))
        return self._http[-1]

    def name_of(self, request):
        """Return which answer a request is for."""
        raise NotImplementedError

    def wrap(self, value):
        """Return the body of an answer with a result."""
        return value

    def target(self, name):
        """Return the fields of a target that gets this answer."""
        raise NotImplementedError

    def start_of(self, request):
        """Return the start that a request is."""
        raise NotImplementedError

    def succeeds(self):
        return self.target("succeed")

    def fails(self):
        return self.target("fail")

    def fails_for_good(self):
        return self.target("refuse")

    def works(self):
        return self.target("work")

    def accepts(self):
        return self.target("accept")

    def release(self):
        self.server.release()

    def prints(self, text):
        self.server.text = text
        return self.target("print" if self.promises("output") else "succeed")

    def odd(self):
        names = ("large", "broken", "surrogate", "verbose")
        return {name: self.target(name) for name in names}

    def starts(self):
        return list(map(self.start_of, self.server.seen))

    def working(self):
        return self.server.working

    def callbacks(self):
        found = [each.headers.get("Onbeat-Callback") for each in self.server.seen]
        return [each.rpartition("/")[2] for each in found if each is not None]


class HttpBench(RequestBench):
    kind = "http"
    lacks: ClassVar = {
        "cancel": NOT_UNDONE,
        "end": NOT_UNDONE,
        "once": REPEATED,
    }

    async def make(self):
        return self.http()

    def name_of(self, request):
        return request.path[1:]

    def target(self, name):
        return {"http": f"{self.address}/{name}"}

    def start_of(self, request):
        own = request.headers
        attempt, run_at = int(own["Onbeat-Attempt"]), parse_instant(own["Onbeat-Run-At"])
        return Start(own["Idempotency-Key"], attempt, run_at)

    def invalid(self):
        return [
            Target("http", {"http": f"{self.address}/succeed", "cdw": "/"}),
            Target("http", {"http": "file:///etc/passwd"}),
            Target("http", {"http": 7}),
            Target("http", {"http": f"{self.address}/succeed", "method": "BREW"}),
        ]

    async def make_cut_off(self):
        return self.http(), Failed

    def unreachable(self):
        return {"http": NOWHERE}


class FlockBench(RequestBench):
    kind = "flock"
    lacks: ClassVar = RequestBench.lacks | {
        "attempt": "an agent gets a tick as its timer would send it",
        "output": "a server answers with artifacts, which are the result",
    }
    result: ClassVar = {"artifacts": [{"count": 3}]}

    async def make(self):
        http = self.http()
        return FlockLauncher(check_url=http.check, ask=http.ask)

    def name_of(self, request):
        return request.path.split("/")[4]

    def wrap(self, value):
        return {"artifacts": [value]}

    def target(self, name):
        return {"flock": {"url": self.address, "agent": name}}

    def start_of(self, request):
        (given,) = request.body["inputs"]
        run_at = parse_instant(given["payload"]["fire_time"])
        return Start(request.headers["Idempotency-Key"], None, run_at)

    def invalid(self):
        return [
            Target("flock", {"flock": {"url": self.address, "agent": "succeed", "name": 1}}),
            Target("flock", {"flock": "succeed"}),
            Target("flock", {"flock": {"agent": "succeed"}}),
            Target("flock", {"flock": {"url": self.address, "agent": ".."}}),
        ]

    async def make_cut_off(self):
        return await self.make(), Failed

    def unreachable(self):
        return {"flock": {"url": NOWHERE, "agent": "succeed"}}


class HttpExecutorBench(RequestBench):
    """DAGs in a folder, sent to an executor."""

    kind = "workflow"
    lacks: ClassVar = RequestBench.lacks | {"output": NO_OUTPUT, "attempt": NO_ATTEMPT}

    async def make(self):
        executor = HttpExecutor(self.address, self.http().ask, callback=callback)
        return dag_launcher(self.folder, executor)

    def name_of(self, request):
        return request.body["dag"]["do"]

    def target(self, name):
        return dag_target(self.folder, name)

    def start_of(self, request):
        run_at = parse_instant(request.body["meta"]["scheduled_for"])
        return Start(request.headers["Idempotency-Key"], None, run_at)

    def invalid(self):
        return invalid_workflows()

    async def make_cut_off(self):
        return dag_launcher(self.folder, HttpExecutor(NOWHERE, self.http().ask)), Failed
