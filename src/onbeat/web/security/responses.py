"""The responses of the security middleware, and the security headers of all responses."""

from collections.abc import Iterable
from html import escape
from http.client import SERVICE_UNAVAILABLE

from onbeat.errors import OnbeatError
from onbeat.web.problems import PROBLEM_JSON, RETRY_AFTER, Problem, as_problem, problem
from onbeat.web.security.asgi import Message, Scope, Send

Headers = Iterable[tuple[bytes, bytes]]


class RequestRefused(Exception):  # noqa: N818 - it names what is wrong
    """A request is refused with a problem, before it reaches the application."""

    def __init__(
        self, status: int, text: str, *, field: str = "", hint: str = "", headers: Headers = ()
    ) -> None:
        self.problem: Problem = problem(status, text, field=field, hint=hint)
        self.headers = tuple(headers)
        super().__init__(text)


def as_refusal(failed: OnbeatError) -> RequestRefused:
    """Return the refusal for an error that Onbeat raises on purpose."""
    found = as_problem(failed)
    is_temporary = found.status == SERVICE_UNAVAILABLE
    return RequestRefused(
        found.status,
        found.problem,
        field=found.field,
        hint=found.hint,
        headers=[(b"retry-after", b"%d" % RETRY_AFTER)] if is_temporary else (),
    )


class SecureSend:
    """A `send` that adds the security headers; `is_tls` adds those for TLS only.

    `has_unread` closes the connection: a body was announced, and is not read.
    """

    def __init__(self, send: Send, *, has_unread: bool = False) -> None:
        self._send, self.is_tls, self.has_unread = send, False, has_unread

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": self._guard(message.get("headers", ()))}
        await self._send(message)

    def _guard(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        own = [(name.lower(), value) for name, value in headers if name.lower() != b"server"]
        named = dict(own)
        is_html = named.get(b"content-type", b"").startswith(b"text/html")
        wanted = {**ALWAYS, b"content-security-policy": FOR_HTML if is_html else FOR_OTHERS}
        if self.has_unread:
            wanted[b"connection"] = b"close"
        if self.is_tls:
            wanted[b"strict-transport-security"] = b"max-age=31536000"
        return [*own, *((name, value) for name, value in wanted.items() if name not in named)]


async def answer(
    send: Send, status: int, body: bytes = b"", *, kind: str = "", headers: Headers = ()
) -> None:
    """Send one complete response."""
    length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
    content_type = [(b"content-type", kind.encode())] if kind else []
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*content_type, *length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, scope: Scope, refused: RequestRefused) -> None:
    """Send the problem of a refused request."""
    body = b"" if scope["method"] == "HEAD" else refused.problem.as_json(scope["path"])
    await answer(send, refused.problem.status, body, kind=PROBLEM_JSON, headers=refused.headers)


async def page(
    send: Send, status: int, text: str, *, headers: Headers = (), then: str = ""
) -> None:
    """Send a page of one paragraph, which redirects to `then` if that is given."""
    refresh = f'<meta http-equiv=refresh content="0; url={escape(then)}">' if then else ""
    text = f'{escape(text)} <a href="{escape(then)}">Continue</a>' if then else escape(text)
    text = f"<!doctype html><html lang=en><title>Onbeat</title>{refresh}<p>{text}</p></html>"
    await answer(send, status, text.encode(), kind="text/html; charset=utf-8", headers=headers)


# A response may set its own instead.
ALWAYS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-embedder-policy": b"require-corp",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}
FOR_OTHERS = b"default-src 'none'; frame-ancestors 'none'"
FOR_HTML = (
    b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    b"object-src 'none'"
)
