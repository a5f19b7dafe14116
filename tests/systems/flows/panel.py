"""The panel of the example, which can be unavailable, slow, forgetful or broken."""

import asyncio
import importlib.util
from pathlib import Path

from aiohttp import web

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "flows"


def load_panel():
    """Return the module of the example's panel."""
    spec = importlib.util.spec_from_file_location("flow_panel", EXAMPLE / "panel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLE_PANEL = load_panel()
Flow = EXAMPLE_PANEL.Flow


class FakePanel(EXAMPLE_PANEL.FlowPanel):
    """A panel that tests can break.

    `fails` has the status that requests to a path's beginning are answered with; `status` is what
    executions report instead of their real status while it is set; `unknown` is how many
    looks at a status find nothing, as right after a launch.
    """

    def __init__(self, flows, **given):
        super().__init__(flows, **given)
        self.fails, self.status, self.unknown = {}, None, 0
        self.hangs = asyncio.Event()  # while it is set, launches are made and not answered
        self.text = None  # while it is set, every status is answered with this text
        self.looks = []  # the queries of status requests
        self.launched = []  # all executions in order, also deleted ones

    def forget_keys(self):
        """Invalidate all logins."""
        self.keys.clear()

    def state(self, fid):
        return super().state(fid) if self.status is None else (self.status, None)

    async def _login(self, request):
        return self._failure(request) or await super()._login(request)

    async def _list(self, request):
        return self._failure(request) or await super()._list(request)

    async def _form(self, request):
        return self._failure(request) or await super()._form(request)

    async def _launch(self, request):
        failure = self._failure(request)
        if failure is not None:
            return failure
        before = set(self.executions)
        answered = await super()._launch(request)
        self.launched += [self.executions[fid] for fid in self.executions.keys() - before]
        if self.hangs.is_set():
            request.transport.close()
        return answered

    async def _delete(self, request):
        return self._failure(request) or await self.end(request)

    async def end(self, request):
        """Cancel an execution."""
        return await super()._delete(request)

    async def _status(self, request):
        self.looks.append(request.query_string)
        if self.unknown:
            self.unknown -= 1
            detail = f"Execution {request.match_info['fid']} not found after 1s."
            return EXAMPLE_PANEL.refusal(404, "NotFoundException", detail)
        failure = self._failure(request)
        if failure is None and self.text is not None:
            return web.Response(text=self.text)
        return failure or await super()._status(request)

    def _failure(self, request):
        for begin, status in self.fails.items():
            method, _, path = begin.rpartition(" ")
            if request.path.startswith(path) and method in ("", request.method):
                return web.json_response({"detail": "broken"}, status=status)
        return None

    @property
    def asked_of_runs(self):
        """All requests except logins and checks."""
        return [each for each in self.asked if each[1] not in ("/api/login", "/flow")]

    def count(self, method, path=None):
        """Return the number of requests."""
        return sum(m == method and path in (None, p) for m, p, *_ in self.asked)
