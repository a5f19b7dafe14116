"""The bench of flows, beside the panel of the example."""

import math
from typing import ClassVar

from onbeat.core.runs.run import Busy
from onbeat.core.target import Target
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.systems.flows.launcher import FlowLauncher
from onbeat.systems.flows.panel import Panel
from tests.launchers.bench import Bench, Start
from tests.launchers.benches.documents import Stores
from tests.launchers.benches.requests import NOWHERE, OWNED, REPEATED
from tests.launchers.benches.server import LoopThread
from tests.systems.flows.panel import FakePanel, Flow

URL = "/-/127.0.0.1/8125/-/"


class RecordingPanel(FakePanel):
    """The panel, with the keys of the launches that it made."""

    def __init__(self, flows, **given):
        super().__init__(flows, **given)
        self.made = []

    async def _launch(self, request):
        count = len(self.launched)
        answered = await super()._launch(request)
        self.made += [request.headers["Idempotency-Key"]] * (len(self.launched) - count)
        return answered


class FlowBench(Bench):
    kind = "flow"
    lacks: ClassVar = {
        "attempt": "a panel gets the inputs of the flow, and the key",
        "run_at": "a panel gets the inputs of the flow, and the key",
        "output": "a panel keeps the output of its flows; the tail has its statuses",
        "once": REPEATED,
        "close": OWNED,
        "report": "a panel is asked until the flow has ended",
    }
    result: ClassVar = {"Markdown": {"body": "succeed: {}"}}
    error = "no luck"

    def __init__(self, folder, address=""):
        super().__init__(folder, address)
        self._http, self._stores, self.panel = [], Stores(self.folder), None

    async def open(self):
        flows = {
            f"{URL}succeed": Flow("succeed", []),
            f"{URL}fail": Flow("fail", [], fails="no luck"),
            f"{URL}refuse": Flow("refuse", ["query"], needs=["query"]),
            f"{URL}work": Flow("work", [], takes=math.inf),
            f"{URL}print": Flow("print", []),
            f"{URL}large": Flow("x" * 300_000, []),
            f"{URL}verbose": Flow("verbose", [], fails="x" * 300_000),
        }
        self.panel, self._thread = RecordingPanel(flows, password="sesame"), LoopThread()
        self.address = await self._thread.do(self.panel.start())
        (self.folder / "secrets").mkdir()
        (self.folder / "secrets" / "panel").write_text("sesame\n")

    async def close(self):
        for each in (*self._http, self._stores):
            await each.close()
        await self._thread.do(self.panel.stop())
        await self._thread.stop()

    async def make(self):
        return await self._launcher(self.address)

    async def _launcher(self, url):
        http = HttpLauncher(version="1", environment={}, secrets=str(self.folder / "secrets"))
        store = await self._stores.new()
        self._http.append(http)
        return FlowLauncher(Panel(http.ask, url, user="timer", password="secret://panel"), store)

    def _flow(self, name):
        return {"flow": {"url": f"{URL}{name}"}}

    def succeeds(self):
        return self._flow("succeed")

    def fails(self):
        return self._flow("fail")

    def fails_for_good(self):
        return self._flow("refuse")

    def works(self):
        return self._flow("work")

    def release(self):
        self.panel.flows[f"{URL}work"].takes = 0

    def prints(self, text):
        self.panel.flows[f"{URL}print"].summary = text[:1000]
        return self._flow("print")

    def invalid(self):
        return [
            Target("flow", {"flow": {"url": f"{URL}succeed", "name": "x"}}),
            Target("flow", {"flow": "succeed"}),
            Target("flow", {"flow": {"url": "http://elsewhere/-/"}}),
            Target("flow", {"flow": {"url": "/-/../-/"}}),
        ]

    async def make_cut_off(self):
        return await self._launcher(NOWHERE), Busy

    def odd(self):
        return {name: self._flow(name) for name in ("large", "verbose")}

    def starts(self):
        return [Start(key) for key in self.panel.made]

    def working(self):
        return sum(
            self.panel.state(fid)[0] in {"starting", "running"}
            for fid in list(self.panel.executions)
        )

    async def is_recorded(self, attempt):
        found = await self._stores.document("flow-launch", str(attempt.run_id))
        return bool(found and found["fid"])
