"""The security middleware before an application that records its requests, without a server."""

import asyncio
import json
from dataclasses import dataclass, replace

import pytest

from onbeat.app.settings import Settings
from onbeat.service.tokens import Tokens
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock
from onbeat.web.security.middleware import SecurityMiddleware
from tests.waiting import forever

LARGE = "/api/v1/large"


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes
    all_headers: list

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json"
        return json.loads(self.body)

    @property
    def problem_text(self):
        found = self.problem
        assert found["status"] == self.status
        return found["problem"]


class AccessHarness:
    """The middleware, a clock, a store, and the requests that reached the application."""

    def __init__(self, runner, store, clock):
        self.run, self.store, self.clock = runner.run, store, clock
        self.settings, self.passed = Settings(), []
        self.answer_headers = [(b"content-type", b"application/json")]
        self.tokens = Tokens(store, clock)
        self.open()

    def open(self, **settings):
        """Create the middleware with other settings."""
        more = {name: settings.pop(name) for name in ("body_seconds",) if name in settings}
        self.settings = replace(self.settings, **settings)
        self.door = SecurityMiddleware(
            self._app,
            tokens=self.tokens,
            settings=self.settings,
            clock=self.clock,
            large_paths={LARGE},
            **more,
        )

    async def _app(self, scope, receive, send):
        body = (await receive())["body"] if scope["method"] not in ("GET", "HEAD") else b""
        self.passed.append((scope, body))
        await send({"type": "http.response.start", "status": 200, "headers": self.answer_headers})
        await send({"type": "http.response.body", "body": b"{}"})

    def a_token(self, name="ci", scope="operate", **fields):
        return self.run(self.tokens.create(name, scope, **fields))[1]

    def a_session(self):
        return self.run(self.tokens.session(self.run(self.tokens.link()))).secret

    def ask(self, method="GET", path="/api/v1/schedules", *, token=None, **given):
        return self.run(self.asking(method, path, token=token, **given))

    async def asking(
        self, method="GET", path="/api/v1/schedules", *, token=None, body=None, headers=(), query="",
        client="127.0.0.1", scheme="http", port=8585, chunks=None, raw_path=None,
    ):  # fmt: skip
        """Send one request, and return the response; None if there was none."""
        sent = {"host": "localhost:8585"}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        if body is not None:
            sent |= {"content-length": str(len(body)), "content-type": "application/json"}
        pairs = [*sent.items()] if isinstance(headers, list) else [*(sent | dict(headers)).items()]
        pairs += headers if isinstance(headers, list) else []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode() if raw_path is None else raw_path,
            "query_string": query.encode() if isinstance(query, str) else query,
            "headers": [(n.encode(), v.encode("latin-1")) for n, v in pairs if v is not None],
            "client": None if client is None else (client, 50_000),
            "server": ("127.0.0.1", port),
            "scheme": scheme,
        }
        parts = [body or b""] if chunks is None else list(chunks)
        sent = []

        async def receive():
            if not parts:
                await forever()
            part = parts.pop(0)
            if isinstance(part, dict):
                return part
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message):
            sent.append(message)

        await self.door(scope, receive, send)
        if not sent:
            return None
        pairs = [(n.decode(), v.decode()) for n, v in sent[0]["headers"]]
        return Answer(sent[0]["status"], dict(pairs), sent[1]["body"], pairs)


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def world(runner):
    clock = ManualClock()
    store = runner.run(SqliteStore.open(None, clock=clock, inline=True))
    yield AccessHarness(runner, store, clock)
    runner.run(store.close())
