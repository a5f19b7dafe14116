"""The security middleware: all checks of a request before it reaches the application.

The cheapest checks come first; each may refuse the request:

1. host, trusted proxy and encryption: `Host` and the headers of proxies (421, 403, 400)
2. the request line, the headers, the declared size and type of the body (414, 431, 413, 415)
3. whether a page of another site requested a change (403)
4. authentication: token, JWT, session with its CSRF token (401, 403, 429)
5. the rate limit of the caller (429)
6. the body itself: its size, its duration, and that it is unambiguous JSON (413, 408, 400); the
   body of an unauthenticated request, or of one to an open path, is not read: the response is sent
   immediately, and the connection is closed

It sets in `scope["state"]` the `caller`, the `csrf` token of a session, and `is_still_authorized`,
which long responses await from time to time.
"""

from collections.abc import Collection
from functools import partial
from urllib.parse import parse_qs

from onbeat.app.settings import Settings
from onbeat.errors import OnbeatError
from onbeat.ports.clock import Clock
from onbeat.service.tokens import Tokens
from onbeat.web.security.asgi import App, Receive, Scope, Send, is_unsafe, values_of
from onbeat.web.security.bodies import (
    Disconnected,
    announces_body,
    check_body,
    check_declared,
    check_json,
    check_line_and_headers,
    read_body,
    replay_body,
)
from onbeat.web.security.cookies import forget_cookie, set_cookie
from onbeat.web.security.credentials import Authenticated, Credentials, check_jwt, retry_after
from onbeat.web.security.first_token import ensure_first_token
from onbeat.web.security.hosts import Hosts, RequestOrigin, without_forwarded
from onbeat.web.security.rate_limits import TokenBuckets
from onbeat.web.security.responses import (
    RequestRefused,
    SecureSend,
    answer,
    as_refusal,
    page,
    refuse,
)
from onbeat.web.security.tls import check_exposure, ssl_context

__all__ = [
    "OPEN_PATHS",
    "SecurityMiddleware",
    "check_exposure",
    "check_json",
    "check_jwt",
    "ensure_first_token",
    "ssl_context",
]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/api/v1/healthz", "/api/v1/readyz"})
LOGIN, LOGOUT = "/login", "/logout"
LARGEST, LARGEST_FILE = 1024 * 1024, 16 * 1024 * 1024  # bytes of a body; where files are sent
BODY_SECONDS = 30.0


class SecurityMiddleware:
    """Passes requests with their caller to `app`, or refuses them with a problem.

    `open_paths` require no authentication. `large_paths` accept bodies of up to 16 MiB.
    """

    def __init__(
        self,
        app: App,
        *,
        tokens: Tokens,
        settings: Settings,
        clock: Clock,
        open_paths: Collection[str] = OPEN_PATHS,
        large_paths: Collection[str] = (),
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._app, self._tokens = app, tokens
        self._open, self._large = frozenset(open_paths), frozenset(large_paths)
        self._hosts, self._body_seconds = Hosts(settings), body_seconds
        self._credentials = Credentials(tokens, settings, clock)
        self._rate = TokenBuckets(clock, rate=settings.rate_limit, burst=settings.rate_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on or refuse it."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        guarded = SecureSend(send, has_unread=announces_body(scope))
        try:
            origin = self._hosts.read(scope)
            guarded.is_tls = origin.is_tls
            passed = await self._check(without_forwarded(scope, origin), receive, guarded, origin)
        except RequestRefused as refused:
            await self._refuse(scope, guarded, refused)
        except OnbeatError as failed:  # the database does not answer
            await refuse(guarded, scope, as_refusal(failed))
        except Disconnected:
            pass
        else:
            if passed is not None:
                await self._app(*passed, guarded)

    async def _check(
        self, scope: Scope, receive: Receive, send: SecureSend, origin: RequestOrigin
    ) -> tuple[Scope, Receive] | None:
        """Return the request to pass to the application; None if it has been answered."""
        check_line_and_headers(scope)
        cap = LARGEST_FILE if scope["path"] in self._large else LARGEST
        has_body = check_declared(scope, cap=cap)
        self._hosts.check_origin(scope, origin)
        if scope["path"] == LOGIN:
            await self._login(scope, send, origin)
            return None
        state = {**scope.get("state", {}), "caller": None, "csrf": ""}
        if scope["path"] in self._open:
            return {**scope, "state": state}, replay_body(b"", receive)
        found = await self._credentials.authenticate(scope, origin)
        caller = found.caller
        if wait := self._rate.take(caller.name):
            problem = f"{caller.name} sends too many requests"
            raise RequestRefused(429, problem, hint="slow down", headers=retry_after(wait))
        if scope["path"] == LOGOUT:
            await self._logout(scope, send, origin, found)
            return None
        is_still_authorized = partial(self._credentials.is_still_valid, scope, found)
        state |= {"caller": caller, "csrf": found.csrf, "is_still_authorized": is_still_authorized}
        if has_body or is_unsafe(scope):
            body = await read_body(receive, cap=cap, seconds=self._body_seconds)
            send.has_unread = False
            await check_body(body)
            receive = replay_body(body, receive)
        return {**scope, "state": state}, receive

    async def _login(self, scope: Scope, send: Send, origin: RequestOrigin) -> None:
        """Open a session with the one-time code of a link."""
        if scope["method"] != "GET":
            raise RequestRefused(405, "open the link in a browser", headers=((b"allow", b"GET"),))
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[-1]
        session = None
        if code:
            session = await self._credentials.look_up(origin, partial(self._tokens.session, code))
        if session is None:
            if code:
                self._credentials.count_failure(origin)
            await page(send, 403, NO_LINK)
            return
        # After a redirect that began on another site, the browser would not send the cookie, as
        # it is SameSite=Strict. From a page of this host it does.
        cookie = set_cookie(session.secret, is_tls=origin.is_tls)
        await page(send, 200, "You are logged in.", headers=(cookie,), then="/")

    async def _logout(
        self, scope: Scope, send: Send, origin: RequestOrigin, found: Authenticated
    ) -> None:
        if scope["method"] != "POST":
            raise RequestRefused(405, "logout requires POST", headers=((b"allow", b"POST"),))
        if found.session:
            await self._tokens.end_session(found.session)
        cookie = forget_cookie(is_tls=origin.is_tls)
        await answer(send, 303, headers=(cookie, (b"location", LOGIN.encode())))

    async def _refuse(self, scope: Scope, send: Send, refused: RequestRefused) -> None:
        """Send the problem; an unauthenticated browser gets a page that explains the login."""
        wants_page = any("text/html" in each for each in values_of(scope, b"accept"))
        if refused.problem.status == 401 and wants_page and not scope["path"].startswith("/api/"):
            await page(send, 401, NO_SESSION, headers=refused.headers)
        else:
            await refuse(send, scope, refused)


HOW = "Run `onbeat token link` on the machine of the node: its link works once, for ten minutes."
NO_LINK = f"This login link has been used, has expired or is not valid. {HOW}"
NO_SESSION = f"You are not logged in. {HOW}"
