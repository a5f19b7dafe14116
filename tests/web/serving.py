"""A real API for tests: a node with its HTTP server, on loopback, in a thread."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from onbeat.app.onbeat import Onbeat
from onbeat.web.api_server import ApiServer
from tests.given_settings import given_settings


@dataclass
class Api:
    """A running API, and methods to call it."""

    beat: Onbeat
    front: ApiServer
    loop: asyncio.AbstractEventLoop
    admin: str  # the secret of a token with scope admin
    client: httpx.Client
    tokens: dict = field(default_factory=dict)

    @property
    def url(self):
        return self.front.settings.api_url

    def do(self, coroutine):
        """Run a coroutine in the event loop of the node, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def token(self, scope, owner=""):
        """Return the secret of a new token with these rights."""
        if (scope, owner) not in self.tokens:
            made = self.beat.service.tokens.create(f"{scope}-{owner or 'all'}", scope, owner)
            self.tokens[scope, owner] = self.do(made)[1]
        return self.tokens[scope, owner]

    def ask(self, method, path, body=None, *, token=None, headers=None, **options):
        """Send a request under /api/v1, by default with the token of an admin."""
        told = {"Authorization": f"Bearer {token or self.admin}", **(headers or {})}
        if body is not None:
            options["json"] = body
        where = path if path.startswith("//") else f"/api/v1{path}"
        return self.client.request(method, where.replace("//", "/", 1), headers=told, **options)

    def get(self, path, **options):
        return self.ask("GET", path, **options)

    def put(self, path, body, **options):
        return self.ask("PUT", path, body, **options)

    def post(self, path, body=None, **options):
        return self.ask("POST", path, body, **options)

    def patch(self, path, body, **options):
        return self.ask("PATCH", path, body, **options)

    def delete(self, path, **options):
        return self.ask("DELETE", path, **options)


@contextmanager
def serving(folder, *, node=True, **settings):
    """Run a node with an API on a database in a folder."""
    given = given_settings(
        **{
            "database": f"sqlite:///{folder}/onbeat.db",
            "listen": "127.0.0.1:0",
            "output": f"{folder}/output",
            "rate_limit": 100_000,
            "stop_grace": 0,
            "sessions_url": "http://127.0.0.1:9",  # where no server listens
            "sessions_folder": f"{folder}/schedule",
            "flows_exposes": f"{folder}/exposes",
            "flows_log_file": "",
            **settings,
        }
    )
    started, stop = threading.Event(), asyncio.Event()
    held = {}

    async def live():
        front = ApiServer(given)
        beat = Onbeat(settings=front.settings, address=front.settings.api_url)
        await beat.open()
        try:
            if node:
                await beat.begin(client=False)
            # With a token, no first token is created and written to the working directory.
            name = f"test-admin-{front.settings.listen_at[1]}"
            _, secret = await beat.service.tokens.create(name, "admin")
            await front.start(beat)
            held.update(beat=beat, front=front, loop=asyncio.get_running_loop(), admin=secret)
            started.set()
            await stop.wait()
        finally:
            await front.stop()
            await beat.close()

    def run():
        try:
            asyncio.run(live())
        except BaseException as failed:  # noqa: BLE001 - re-raised by the waiting test
            held["failed"] = failed
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(20), "it is up"
    if "failed" in held:
        raise held["failed"]
    with httpx.Client(base_url=held["front"].settings.api_url, timeout=20) as client:
        api = Api(client=client, **held)
        try:
            yield api
        finally:
            api.loop.call_soon_threadsafe(stop.set)
            thread.join(20)
            assert not thread.is_alive(), "it stops"
            if "failed" in held:
                raise held["failed"]
