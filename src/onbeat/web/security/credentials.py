"""Who comes: by a token, a JSON Web Token, the cookie of a session, or a word of our own nodes."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.ports.clock import Clock
from onbeat.service.access import Caller
from onbeat.service.signed_tokens import NODE, RUN
from onbeat.service.tokens import PREFIXES, Tokens, digest_of
from onbeat.web.security.asgi import Scope, is_unsafe, values_of
from onbeat.web.security.cookies import check_csrf, csrf_of, session_of
from onbeat.web.security.hosts import RequestOrigin
from onbeat.web.security.rate_limits import TokenBuckets, network_of
from onbeat.web.security.responses import RequestRefused

if TYPE_CHECKING:
    from onbeat.web.security.jwt import Jwt

MOST_FAILURES, IN_SECONDS = 20, 60  # of one address
MOST_KNOWN = 1000
T = TypeVar("T")
NODES = Caller("node", "read")  # no token, session or JSON Web Token has a name such as this


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Who comes, and what their pages send back with changes."""

    caller: Caller
    csrf: str = ""
    session: str = ""  # its secret


class Credentials:
    """Knows callers by their credentials, and throttles guesses.

    Credentials are checked first: right ones are always admitted, whatever else came from the same
    address. Wrong ones are counted by address; beyond the limit they are answered with 429. Guesses
    from such addresses are looked up one after another, so that they use one connection to the
    database at most, however many there are.
    """

    def __init__(self, tokens: Tokens, settings: Settings, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock
        self._jwt = _jwt(settings, clock) if settings.jwt_key else None
        self._failures = TokenBuckets(clock, rate=MOST_FAILURES / IN_SECONDS, burst=MOST_FAILURES)
        self._known: OrderedDict[str, None] = OrderedDict()  # digests of what was right
        self._guesses = asyncio.Lock()

    async def who(self, scope: Scope, asked: RequestOrigin) -> Authenticated:
        """Return who comes, or refuse them."""
        given = values_of(scope, b"authorization")
        if len(given) > 1:
            raise RequestRefused(400, "there are several", field="Authorization")
        secret = None if given else session_of(scope, is_tls=asked.is_tls)
        if not given and secret is None:
            raise RequestRefused(401, "who asks is not known", hint=HINT, headers=CHALLENGE)
        digest = digest_of(given[0] if given else f"cookie {secret}")
        if secret is None:
            check = partial(self._bearer, given[0], scope)
        else:
            check = partial(self._browser, secret, scope)
        come = await (check() if digest in self._known else self.looked_up(asked, check))
        if isinstance(come, RequestRefused):
            self.refuse_guess(asked)
            raise come
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return come

    async def is_still_welcome(self, scope: Scope, come: Authenticated) -> bool:
        """Return whether who came in with this request would come in with it again.

        What is no more right is not counted against them: they did not try. The word of a node
        is good for as long as its request goes on, at the end of which somebody listens to it.
        """
        if come.session:
            found = await self._tokens.authenticate(come.session, "session")
        elif come.caller == NODES:
            return True
        else:
            found, _ = await self._found(values_of(scope, b"authorization")[0], scope)
        return found == come.caller

    async def looked_up(self, asked: RequestOrigin, look_up: Callable[[], Awaitable[T]]) -> T:
        """Return what a look-up finds; those of addresses that guess wait for each other."""
        if not self._failures.wait(network_of(asked.client)):
            return await look_up()
        async with self._guesses:
            return await look_up()

    def refuse_guess(self, asked: RequestOrigin) -> None:
        """Count wrong credentials against an address; refuse them with 429 beyond the limit."""
        if wait := self._failures.take(network_of(asked.client)):
            told = "too many wrong credentials came from this address"
            hint = "right ones are still admitted; try others later"
            raise RequestRefused(429, told, hint=hint, headers=retry_after(wait))

    async def _bearer(self, given: str, scope: Scope) -> Authenticated | RequestRefused:
        found, told = await self._found(given, scope)
        if found is None:
            return RequestRefused(401, told, field="Authorization", hint=HINT, headers=WRONG)
        return Authenticated(found)

    async def _found(self, given: str, scope: Scope) -> tuple[Caller | None, str]:
        """Return who comes with a header; None, and what they are told, if nobody does."""
        match = re.fullmatch(r"(?i:bearer) +([!-~]{1,8192})", given)
        token, told = "" if match is None else match[1], "this lets nobody in"
        if token.startswith(PREFIXES["token"]):
            return await self._tokens.authenticate(token), told
        if token.startswith((f"{RUN}.", f"{NODE}.")):
            return await self._own(token, scope), told
        return self._signed(token)

    async def _own(self, token: str, scope: Scope) -> Caller | None:
        """Return who comes with a word of our own: a run's is for telling of its end alone."""
        signer = await self._tokens.signer()
        key, method = signer.check_run_token(token), scope["method"]
        if key is not None:
            here = (f"/api/v1/runs/{key}/status", f"/runs/{key}/status")
            if method != "POST" or scope["path"] not in here:
                told = "this is for telling of the end of one run"
                raise RequestRefused(403, told, hint=f"POST /api/v1/runs/{key}/status")
            return Caller(f"run:{key}", "operate")
        if not signer.check_node_token(token, now=self._clock.now()):
            return None
        if is_unsafe(scope):
            raise RequestRefused(403, "nodes only read from each other")
        return NODES

    def _signed(self, token: str) -> tuple[Caller | None, str]:
        if self._jwt is None:
            return None, "this lets nobody in"
        from onbeat.web.security.jwt import NotAccepted  # noqa: PLC0415 - an extra

        try:
            return self._jwt.caller(token), ""
        except NotAccepted as refused:
            return None, str(refused)

    async def _browser(self, secret: str, scope: Scope) -> Authenticated | RequestRefused:
        found = await self._tokens.authenticate(secret, "session")
        if found is None:
            told = "this session is over"
            return RequestRefused(401, told, field="Cookie", hint=HINT, headers=CHALLENGE)
        if is_unsafe(scope):
            check_csrf(scope, secret)
        return Authenticated(found, csrf_of(secret), secret)


def retry_after(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header that says when to come again."""
    return ((b"retry-after", b"%d" % (int(seconds) + 1)),)


def check_jwt(settings: Settings) -> None:
    """Refuse settings for JSON Web Tokens that could let nobody in, or anybody."""
    if settings.jwt_key:
        _jwt(settings, NoClock())


class NoClock:
    """A clock for whoever only looks at settings."""

    def now(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


def _jwt(settings: Settings, clock: Clock) -> "Jwt":
    try:
        from onbeat.web.security.jwt import Jwt  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        problem = "JSON Web Tokens need a package that is not installed"
        raise InvalidSettings("jwt_key", problem, hint="pip install 'onbeat[server]'") from None
    return Jwt(settings, clock)


HINT = "Authorization: Bearer TOKEN; `onbeat token create` makes one, `onbeat token link` a link"
CHALLENGE = ((b"www-authenticate", b'Bearer realm="onbeat"'),)
WRONG = ((b"www-authenticate", b'Bearer realm="onbeat", error="invalid_token"'),)
