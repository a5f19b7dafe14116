"""A web server and a mail server on loopback that receive messages and fail on demand."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy

from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from onbeat.core.notify.channels import read_channels
from onbeat.core.notify.notifications import Notification, OutgoingMessage, compose_message
from tests.waiting import forever

NOON = 1_767_268_800


def a_channel(name="ops", **fields):
    """Return a channel, as read from a settings file."""
    (channel,) = read_channels({name: fields})
    return channel


def a_message(*, attempt=1, schedule_id="backup", error="disk full", **fields):
    about = {"run_id": 17, "run_at": NOON, "reason": "error", "failures": 3, "error": error}
    notice = Notification("failure", schedule_id, NOON * 1000 + 250, **about | fields)
    return OutgoingMessage(1, "ops", "k" * 64, compose_message([notice]), NOON * 1000, attempt)


@dataclass
class Hook:
    """The requests to a web server, and its answers: a status each, the last one repeated."""

    url: str = ""
    answers: list = field(default_factory=lambda: [200])
    got: list = field(default_factory=list)  # headers and body, of each request

    async def handle(self, request):
        self.got.append((request.headers, await request.json()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)
        return web.Response(status=answer)

    @property
    def notified(self):
        """The schedules of the notices in each request."""
        return [[notice["schedule_id"] for notice in body["notices"]] for _, body in self.got]


@asynccontextmanager
async def a_hook(*answers):
    hook = Hook(answers=list(answers) or [200])
    app = web.Application()
    app.router.add_post("/{path:.*}", hook.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        hook.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"
        yield hook
    finally:
        await runner.cleanup()


async def hang(_):
    """Never answer."""
    await forever()


async def hang_up(request):
    """Close the connection without an answer."""
    request.transport.abort()
    await forever()


class Post:
    """The mails to a mail server, the recipients it refuses, and its answers."""

    def __init__(self):
        self.got, self.refused, self.answers = [], {}, []
        self.passwords = []

    async def handle_RCPT(self, server, session: Session, envelope: Envelope, address, options):  # noqa: N802
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope: Envelope):  # noqa: N802
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if callable(answer):
            self.got.append(message_from_bytes(envelope.content, policy=policy.default))
            return await answer(server)
        if answer.startswith("250"):
            mail = message_from_bytes(envelope.content, policy=policy.default)
            mail.sent_to = envelope.rcpt_tos
            self.got.append(mail)
        return answer

    def log_in(self, server, session, envelope, mechanism, found):
        self.passwords.append((found.login, found.password))
        return AuthResult(success=found.password == b"s3cret", handled=False)


class a_post:  # noqa: N801 - used like a function
    """A mail server in a thread."""

    def __init__(self, *, logs_in=False, ssl_context=None, **options):
        self.post, self._tls = Post(), ssl_context
        if logs_in:
            options |= {"authenticator": self.post.log_in, "auth_require_tls": False}
        self._options = {"hostname": "localhost"} | options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self._server = self._do(
            self._loop.create_server(
                lambda: SMTP(self.post, loop=self._loop, **self._options),
                "127.0.0.1",
                0,
                ssl=self._tls,
            )
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5)

    async def _close(self):
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
