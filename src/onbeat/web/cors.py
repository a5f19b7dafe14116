"""CORS: pages of the origins that the operator configured may use the API with a token.

A preflight is answered here, before authentication: a browser sends no token with it. A request of
such a page is then treated like that of any other program. Its cookies are dropped, so that a page
never acts for the user who is logged in to the dashboard in the same browser: only `Authorization`
counts. Requests of all other origins are refused by the security middleware.
"""

from collections.abc import Collection

from onbeat.web.security.asgi import App, Message, Receive, Scope, Send, values_of
from onbeat.web.security.bodies import announces_body
from onbeat.web.security.responses import SecureSend

# Headers by which the security middleware recognizes requests of browsers.
BROWSER_HEADERS = frozenset({
    b"cookie", b"origin", b"referer", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site",
    b"sec-fetch-storage-access", b"sec-fetch-user",
})  # fmt: skip
METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
HEADERS = (
    b"Authorization, Content-Type, Accept, If-Match, If-None-Match, Idempotency-Key, Last-Event-ID"
)
EXPOSED = b"ETag, Location, Retry-After, Link"
MAX_AGE = b"600"  # seconds that a browser remembers a preflight
VARY = (b"vary", b"Origin")


class Cors:
    """Passes requests of pages of these origins to `app`; without origins, it changes nothing.

    Pages may use the API, and paths that begin with one of `root_names`: not the dashboard.
    """

    def __init__(self, app: App, origins: Collection[str], root_names: Collection[str]) -> None:
        self._app, self._origins = app, frozenset(origins)
        self._names = {"api", *root_names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a preflight, or pass the request to the application."""
        if not self._origins or scope["type"] != "http" or not self._is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        found = values_of(scope, b"origin")
        origin = found[0] if len(found) == 1 and found[0] in self._origins else ""
        if not origin:
            await self._app(scope, receive, _WithHeaders(send, (VARY,)))
        elif scope["method"] == "OPTIONS" and values_of(scope, b"access-control-request-method"):
            await _preflight(scope, send, origin)
        else:
            headers = [each for each in scope["headers"] if each[0] not in BROWSER_HEADERS]
            added = (
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", EXPOSED),
                VARY,
            )
            await self._app({**scope, "headers": headers}, receive, _WithHeaders(send, added))

    def _is_open(self, path: str) -> bool:
        return path.lstrip("/").partition("/")[0] in self._names


async def _preflight(scope: Scope, send: Send, origin: str) -> None:
    """Answer which methods and headers a page of this origin may send."""
    headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", HEADERS),
        (b"access-control-max-age", MAX_AGE),
        (b"cache-control", b"no-store"),
        VARY,
    ]
    if values_of(scope, b"access-control-request-private-network") == ["true"]:
        headers.append((b"access-control-allow-private-network", b"true"))
    guarded = SecureSend(send, has_unread=announces_body(scope))
    guarded.is_tls = scope["scheme"] == "https"
    await guarded({"type": "http.response.start", "status": 204, "headers": headers})
    await guarded({"type": "http.response.body", "body": b""})


class _WithHeaders:
    """A `send` that adds headers to a response."""

    def __init__(self, send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._send, self._headers = send, headers

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        await self._send(message)
