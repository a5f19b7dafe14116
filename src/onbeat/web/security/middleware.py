"""The door: everything that a request meets before the application does.

From what costs nothing to what costs something, each may refuse it:

1. where it went and where it comes from: `Host`, a trusted proxy, encryption (421, 403, 400)
2. the line, the headers, the declared size and type of the body (414, 431, 413, 415)
3. whether a page of another site asked for a change (403)
4. who comes: token, JSON Web Token, session with its CSRF token (401, 403, 429)
5. how often they come (429)
6. the body itself: its size, how long it takes, and that it is JSON that can be read in one way
   (413, 408, 400); no body of an unknown caller is read, and none that is sent to an open path:
   these are answered at once, and the connection is closed

Behind it `scope["state"]` has the `caller`, the `csrf` token of a session, and `still_welcome`,
which answers that take long await from time to time: whether the caller would still come in.
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
    given_again,
    read_body,
)
from onbeat.web.security.cookies import forget_cookie, set_cookie
from onbeat.web.security.credentials import Authenticated, Credentials, check_jwt, retry_after
from onbeat.web.security.first_token import ensure_first_token, link_of
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
    "link_of",
    "ssl_context",
]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/api/v1/healthz", "/api/v1/readyz"})
LOGIN, LOGOUT = "/login", "/logout"
LARGEST, LARGEST_FILE = 1024 * 1024, 16 * 1024 * 1024  # bytes of a body; where files are sent
BODY_SECONDS = 30.0


class SecurityMiddleware:
    """Lets requests in to `app`, each with its caller, or refuses them with a reason.

    `open_paths` need no caller. `large_paths` take bodies of up to 16 MiB.
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
        """Let one request in, or refuse it."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        guarded = SecureSend(send, has_unread=announces_body(scope))
        try:
            asked = self._hosts.read(scope)
            guarded.is_tls = asked.is_tls
            come_in = await self._check(without_forwarded(scope, asked), receive, guarded, asked)
        except RequestRefused as refused:
            await self._refuse(scope, guarded, refused)
        except OnbeatError as failed:  # the database does not answer
            await refuse(guarded, scope, as_refusal(failed))
        except Disconnected:
            pass
        else:
            if come_in is not None:
                await self._app(*come_in, guarded)

    async def _check(
        self, scope: Scope, receive: Receive, send: SecureSend, asked: RequestOrigin
    ) -> tuple[Scope, Receive] | None:
        """Return a request as the application is to see it; None if it has been answered."""
        check_line_and_headers(scope)
        cap = LARGEST_FILE if scope["path"] in self._large else LARGEST
        has_body = check_declared(scope, cap=cap)
        self._hosts.check_origin(scope, asked)
        if scope["path"] == LOGIN:
            await self._login(scope, send, asked)
            return None
        state = {**scope.get("state", {}), "caller": None, "csrf": ""}
        if scope["path"] in self._open:
            return {**scope, "state": state}, given_again(b"", receive)
        come = await self._credentials.who(scope, asked)
        if wait := self._rate.take(come.caller.name):
            told = f"{come.caller.name} asks too often"
            raise RequestRefused(429, told, hint="slow down", headers=retry_after(wait))
        if scope["path"] == LOGOUT:
            await self._logout(scope, send, asked, come)
            return None
        still_welcome = partial(self._credentials.is_still_welcome, scope, come)
        state |= {"caller": come.caller, "csrf": come.csrf, "still_welcome": still_welcome}
        if has_body or is_unsafe(scope):
            body = await read_body(receive, cap=cap, seconds=self._body_seconds)
            send.has_unread = False
            await check_body(body)
            receive = given_again(body, receive)
        return {**scope, "state": state}, receive

    async def _login(self, scope: Scope, send: Send, asked: RequestOrigin) -> None:
        """Open a session with the code of a link, which is used up by that."""
        if scope["method"] != "GET":
            raise RequestRefused(
                405, "a link is opened in a browser", headers=((b"allow", b"GET"),)
            )
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[-1]
        session = None
        if code:
            session = await self._credentials.looked_up(asked, partial(self._tokens.session, code))
        if session is None:
            if code:
                self._credentials.refuse_guess(asked)
            await page(send, 403, NO_LINK)
            return
        # A redirect of somebody who comes from elsewhere would not have the cookie; from a page of
        # ours they have.
        cookie = set_cookie(session.secret, is_tls=asked.is_tls)
        await page(send, 200, "You are in.", headers=(cookie,), then="/")

    async def _logout(
        self, scope: Scope, send: Send, asked: RequestOrigin, come: Authenticated
    ) -> None:
        if scope["method"] != "POST":
            raise RequestRefused(405, "a session is ended by POST", headers=((b"allow", b"POST"),))
        if come.session:
            await self._tokens.end_session(come.session)
        cookie = forget_cookie(is_tls=asked.is_tls)
        await answer(send, 303, headers=(cookie, (b"location", LOGIN.encode())))

    async def _refuse(self, scope: Scope, send: Send, refused: RequestRefused) -> None:
        """Tell why: a person in a browser who is not known is told where to get a link."""
        wants_page = any("text/html" in each for each in values_of(scope, b"accept"))
        if refused.problem.status == 401 and wants_page and not scope["path"].startswith("/api/"):
            await page(send, 401, NO_SESSION, headers=refused.headers)
        else:
            await refuse(send, scope, refused)


HOW = "On the machine that runs Onbeat, `onbeat token link` prints one, good once for ten minutes."
NO_LINK = f"This link was used, has expired or never was one. {HOW}"
NO_SESSION = f"You need a link to come in. {HOW}"
