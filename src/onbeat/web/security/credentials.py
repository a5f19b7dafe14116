"""Authentication: by a token, a JWT, a session cookie, or a token signed by a node."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings
from onbeat.host.extras import install_command
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
MOST_CACHED = 1000
T = TypeVar("T")
NODES = Caller("node", "read")  # the names of other callers contain a colon


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The caller of a request; for a session, its CSRF token and its secret."""

    caller: Caller
    csrf: str = ""
    session: str = ""


class Credentials:
    """Authenticates callers, and limits the rate of wrong credentials.

    Credentials are checked first: valid ones are always admitted, whatever else the same address
    sends. Wrong ones are counted by address; beyond the limit they are answered with 429. Requests
    from such addresses are looked up one after another, so that they use at most one connection to
    the database.
    """

    def __init__(self, tokens: Tokens, settings: Settings, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock
        self._jwt = _jwt(settings, clock) if settings.jwt_key else None
        self._failures = TokenBuckets(clock, rate=MOST_FAILURES / IN_SECONDS, burst=MOST_FAILURES)
        self._valid: OrderedDict[str, None] = OrderedDict()  # digests of valid credentials
        self._guesses = asyncio.Lock()

    async def authenticate(self, scope: Scope, origin: RequestOrigin) -> Authenticated:
        """Return the authenticated caller of a request, or refuse the request."""
        headers = values_of(scope, b"authorization")
        if len(headers) > 1:
            raise RequestRefused(400, "the header is repeated", field="Authorization")
        secret = None if headers else session_of(scope, is_tls=origin.is_tls)
        if not headers and secret is None:
            problem = "authentication is required"
            raise RequestRefused(401, problem, hint=HINT, headers=CHALLENGE)
        digest = digest_of(headers[0] if headers else f"cookie {secret}")
        if secret is None:
            check = partial(self._check_bearer, headers[0], scope)
        else:
            check = partial(self._check_session, secret, scope)
        found = await (check() if digest in self._valid else self.look_up(origin, check))
        if isinstance(found, RequestRefused):
            self.count_failure(origin)
            raise found
        self._valid[digest] = None
        self._valid.move_to_end(digest)
        if len(self._valid) > MOST_CACHED:
            self._valid.popitem(last=False)
        return found

    async def is_still_valid(self, scope: Scope, authenticated: Authenticated) -> bool:
        """Return whether the credentials of a request are still valid.

        If not, that is not counted as a failure. Those of a node are valid while its request lasts:
        the node checks the client that it requests the stream for.
        """
        if authenticated.session:
            found = await self._tokens.authenticate(authenticated.session, "session")
        elif authenticated.caller == NODES:
            return True
        else:
            found, _ = await self._caller_of(values_of(scope, b"authorization")[0], scope)
        return found == authenticated.caller

    async def look_up(self, origin: RequestOrigin, check: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a check; checks for addresses beyond the limit run one by one."""
        if not self._failures.wait(network_of(origin.client)):
            return await check()
        async with self._guesses:
            return await check()

    def count_failure(self, origin: RequestOrigin) -> None:
        """Count wrong credentials of an address; refuse them with 429 beyond the limit."""
        if wait := self._failures.take(network_of(origin.client)):
            problem = "too many wrong credentials from this address"
            hint = "valid ones are still admitted; try others later"
            raise RequestRefused(429, problem, hint=hint, headers=retry_after(wait))

    async def _check_bearer(self, header: str, scope: Scope) -> Authenticated | RequestRefused:
        found, problem = await self._caller_of(header, scope)
        if found is None:
            return RequestRefused(401, problem, field="Authorization", hint=HINT, headers=WRONG)
        return Authenticated(found)

    async def _caller_of(self, header: str, scope: Scope) -> tuple[Caller | None, str]:
        """Return the caller of an Authorization header, or None and the problem."""
        match = re.fullmatch(r"(?i:bearer) +([!-~]{1,8192})", header)
        token = "" if match is None else match[1]
        if token.startswith(PREFIXES["token"]):
            return await self._tokens.authenticate(token), INVALID
        if token.startswith((f"{RUN}.", f"{NODE}.")):
            return await self._check_signed(token, scope), INVALID
        return self._check_jwt(token)

    async def _check_signed(self, token: str, scope: Scope) -> Caller | None:
        """Return the caller of a signed token; that of a run may only report its outcome."""
        signer = await self._tokens.signer()
        key, method = signer.check_run_token(token), scope["method"]
        if key is not None:
            paths = (f"/api/v1/runs/{key}/status", f"/runs/{key}/status")
            if method != "POST" or scope["path"] not in paths:
                problem = "this token may only report the outcome of one run"
                raise RequestRefused(403, problem, hint=f"POST /api/v1/runs/{key}/status")
            return Caller(f"run:{key}", "operate")
        if not signer.check_node_token(token, now=self._clock.now()):
            return None
        if is_unsafe(scope):
            raise RequestRefused(403, "the token of a node may only read")
        return NODES

    def _check_jwt(self, token: str) -> tuple[Caller | None, str]:
        if self._jwt is None:
            return None, INVALID
        from onbeat.web.security.jwt import NotAccepted  # noqa: PLC0415 - an extra

        try:
            return self._jwt.caller(token), ""
        except NotAccepted as refused:
            return None, str(refused)

    async def _check_session(self, secret: str, scope: Scope) -> Authenticated | RequestRefused:
        found = await self._tokens.authenticate(secret, "session")
        if found is None:
            problem = "the session has ended"
            return RequestRefused(401, problem, field="Cookie", hint=HINT, headers=CHALLENGE)
        if is_unsafe(scope):
            check_csrf(scope, secret)
        return Authenticated(found, csrf_of(secret), secret)


def retry_after(seconds: float) -> tuple[tuple[bytes, bytes], ...]:
    """Return the Retry-After header."""
    return ((b"retry-after", b"%d" % (int(seconds) + 1)),)


def check_jwt(settings: Settings) -> None:
    """Refuse invalid settings for JWTs."""
    if settings.jwt_key:
        _jwt(settings, NoClock())


class NoClock:
    """A clock for checking settings, which needs no time."""

    def now(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


def _jwt(settings: Settings, clock: Clock) -> "Jwt":
    try:
        from onbeat.web.security.jwt import Jwt  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        problem = "JWTs require a package that is not installed"
        raise InvalidSettings("jwt_key", problem, hint=install_command("server")) from None
    return Jwt(settings, clock)


INVALID = "the token is not valid"
HINT = "Authorization: Bearer TOKEN, see `onbeat token create`; a browser: `onbeat token link`"
CHALLENGE = ((b"www-authenticate", b'Bearer realm="onbeat"'),)
WRONG = ((b"www-authenticate", b'Bearer realm="onbeat", error="invalid_token"'),)
