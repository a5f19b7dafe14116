"""A server in a thread, so that the loop of a case has the tasks of the launcher only."""

import asyncio
import threading
from typing import NamedTuple

from aiohttp import web

from tests.launchers.benches.functions import LONGEST_WORK
from tests.waiting import until


class Request(NamedTuple):
    """A request as the server got it."""

    path: str
    headers: dict[str, str]
    body: object


class LoopThread:
    """An event loop in a thread."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def do(self, work):
        """Run a coroutine there; return its result."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def stop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)
        self._loop.close()


class BehavingServer:
    """A server whose answers are named by the requests: succeed, fail, refuse, work, print and so on.

    `name_of` returns the name for a request, `wrap` the body for a result. A request that works is
    not answered until `release`, even if its client leaves.
    """

    def __init__(self, name_of, wrap=lambda value: value):
        self._name_of, self._wrap = name_of, wrap
        self.seen, self.working, self.text = [], 0, ""
        self.url, self._thread, self._released = "", LoopThread(), threading.Event()

    async def start(self):
        self.url = await self._thread.do(self._start())

    async def stop(self):
        self.release()
        await self._thread.do(self._stop())
        await self._thread.stop()

    def release(self):
        self._released.set()

    async def _start(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return "http://{}:{}".format(*self._runner.addresses[0])

    async def _stop(self):
        await self._runner.cleanup()

    async def _handle(self, http):
        body = await http.json() if http.can_read_body else None
        request = Request(http.path, dict(http.headers), body)
        self.seen.append(request)
        name = self._name_of(request)
        return await getattr(self, f"_{name}")()

    async def _succeed(self):
        return web.json_response(self._wrap({"count": 3}))

    async def _fail(self):
        return web.json_response({"detail": "no luck"}, status=500)

    async def _refuse(self):
        return web.json_response({"detail": "never"}, status=422)

    async def _work(self):
        self.working += 1
        try:
            await until(self._released.is_set, longest=LONGEST_WORK)
        finally:
            self.working -= 1
        return await self._succeed()

    async def _print(self):
        return web.Response(text=self.text)

    async def _accept(self):
        return web.json_response({"run_id": "job-7"}, status=202)

    async def _large(self):
        return web.json_response(self._wrap({"text": "x" * 300_000}))

    async def _broken(self):
        return web.Response(body=b'{"text": "\xff\xed\xa0\x80', content_type="application/json")

    async def _surrogate(self):
        return web.Response(
            body=b'{"text": "\\ud800", "n": 1e400}', content_type="application/json"
        )

    async def _verbose(self):
        return web.Response(text="x" * 300_000, status=500)
