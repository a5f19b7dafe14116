"""The bench of prompts, beside the chat server of the example."""

from typing import ClassVar

from onbeat.core.runs.run import Failed
from onbeat.core.target import Target
from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.systems.sessions.launcher import SessionLauncher
from tests.launchers.bench import Bench, Start
from tests.launchers.benches.documents import Stores
from tests.launchers.benches.requests import NOWHERE, OWNED, REPEATED, callback
from tests.launchers.benches.server import LoopThread
from tests.systems.sessions.conftest import Server
from tests.waiting import until


class RecordingServer(Server):
    """The server, with the keys of the messages that it accepted."""

    def __init__(self, folder):
        super().__init__(folder)
        self.keys, self.callbacks = [], []
        self.answers = True  # whether it answers the messages that it has

    async def _message(self, request):
        answered = await super()._message(request)
        if answered.status == 200:
            self.keys.append(request.headers["Idempotency-Key"])
            await until(lambda: self.answers)
            if "Onbeat-Callback" in request.headers:
                self.callbacks.append(request.headers["Onbeat-Callback"].rpartition("/")[2])
        return answered

    async def _report(self, headers, session_id):
        """Report nothing: the callback address of the bench is not served."""


class SessionBench(Bench):
    kind = "session"
    lacks: ClassVar = {
        "attempt": "a chat server gets a prompt, as from a person, and the key",
        "run_at": "a chat server gets a prompt, as from a person, and the key",
        "final failure": "a chat server that refuses a prompt may take it later",
        "output": "a session answers in its own messages",
        "cancel": "whether a session stops is up to its server, which may not be able to",
        "once": REPEATED,
        "close": OWNED,
    }
    error = "HTTP 500"

    def __init__(self, folder, address=""):
        super().__init__(folder, address)
        self._http, self._stores, self.server = [], Stores(self.folder), None

    async def open(self):
        self.server, self._thread = RecordingServer(self.folder / "sessions"), LoopThread()
        self.address = await self._thread.do(self.server.start())

    async def close(self):
        for each in (*self._http, self._stores):
            await each.close()
        await self._thread.do(self.server.stop())
        await self._thread.stop()

    async def make(self):
        return await self._launcher(self.address)

    async def _launcher(self, url):
        http = HttpLauncher(version="1", environment={})
        store = await self._stores.new()
        self._http.append(http)
        return SessionLauncher(
            check_url=http.check, ask=http.ask, url=url, store=store, cwd="/srv", callback=callback
        )

    def _prompt(self, text="Hello", **fields):
        return {"session": {"prompt": text, **fields}}

    def succeeds(self):
        self.server.works = False
        return self._prompt()

    @property
    def result(self):
        return {"sessionId": self.server.sessions[0]}

    def fails(self):
        self.server.fails = True
        return self._prompt()

    def retried(self):
        return self.succeeds()  # the prompt of a failed attempt was not accepted

    def fails_for_good(self):
        return self.fails()

    def works(self):
        self.server.works = True
        return self._prompt(persist=False)

    def release(self):
        self.server.works = False
        self.server.busy.clear()

    def accepts(self):
        return self._prompt(feedback=True)

    @property
    def external_id(self):
        return self.server.sessions[0]

    def callbacks(self):
        return self.server.callbacks

    def prints(self, text):
        return self._prompt(text[:1000])

    def invalid(self):
        return [
            Target("session", {"session": {"prompt": "x", "mode": "y"}}),
            Target("session", {"session": "Hello"}),
            Target("session", {"session": {}}),
        ]

    async def make_cut_off(self):
        return await self._launcher(NOWHERE), Failed

    def odd(self):
        return {"long": self._prompt("x" * 200_000)}

    def starts(self):
        return [Start(key) for key in self.server.keys]

    def working(self):
        return len(self.server.busy)

    async def is_recorded(self, attempt):
        found = await self._stores.document("session-sent", str(attempt.run_id))
        if found is None or not found["is_taken"]:
            return False
        own = [each for each in self._made if isinstance(each, SessionLauncher)]
        return not own or any(attempt.run_id in each._followed for each in own)
