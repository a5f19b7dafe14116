"""Manage API tokens, login links and sessions, and authenticate callers by their secrets.

A secret is returned once, when it is created. Only its digest is stored and looked up, so that
neither the database nor the duration of a look-up reveals anything about it.
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import NamedTuple

from onbeat.errors import InvalidSettings, NoSuchToken, NotAllowed, did_you_mean, quote_value
from onbeat.ports.clock import Clock
from onbeat.ports.rows import TokenKind, TokenRow
from onbeat.ports.store import Store
from onbeat.service.access import LOCAL, SCOPES, Caller, Scope
from onbeat.service.signed_tokens import Signer

LINK_LASTS = 10 * 60_000  # milliseconds
SESSION_LASTS = 12 * 3_600_000
LONGEST = 36_500 * 86_400_000
CACHED_FOR = 2.0  # seconds for which a revocation by another node may go unnoticed
MOST_CACHED = 1000


class Session(NamedTuple):
    """An open session, with the secret for its cookie."""

    row: TokenRow
    secret: str


class Tokens:
    """Tokens, links and sessions, with the rights of a caller.

    `new_secret` returns at least 256 random bits, as letters and digits. Look-ups are cached for
    two seconds; instances that `of` returns share the cache.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        *,
        caller: Caller = LOCAL,
    ) -> None:
        self._all, self._clock, self._new_secret = store, clock or store.clock, new_secret
        self._store, self.caller = store.as_caller(caller.name), caller
        self._cache = _TokenCache(self._clock)

    def of(self, caller: Caller) -> "Tokens":
        """Return the same use cases with the rights of this caller."""
        tokens = Tokens(self._all, self._clock, self._new_secret, caller=caller)
        tokens._cache = self._cache
        return tokens

    async def create(
        self, name: str, scope: Scope, owner: str = "", expires_in: int | None = None
    ) -> tuple[TokenRow, str]:
        """Create a token, valid for `expires_in` milliseconds or for ever, and its secret."""
        self._needs_admin()
        if not NAME.fullmatch(name):
            hint = "letters, digits and . _ @ -, at most 100"
            raise InvalidSettings(
                "name", f"{quote_value(name)} is not a valid token name", hint=hint
            )
        check_owner(owner)
        row = self._row("token", name, name, scope, owner=owner, lasts=expires_in)
        secret = f"{PREFIXES['token']}{self._new_secret()}"
        if not await self._store.add_token(row, digest_of(secret)):
            problem = f"a token named {name!r} exists"
            raise InvalidSettings("name", problem, hint="revoke it first, or use another name")
        return row, secret

    async def all(self) -> list[TokenRow]:
        """Return tokens and open sessions, by id."""
        self._needs_admin()
        return await self._store.tokens()

    async def revoke(self, which: str) -> TokenRow:
        """Revoke a token or a session, including sessions opened with it."""
        self._needs_admin()
        revoked = await self._store.revoke_token(which)
        self._cache.clear()
        if revoked is None:
            raise NoSuchToken(which, [row.token_id for row in await self._store.tokens()])
        return revoked

    async def authenticate(self, secret: str, kind: TokenKind = "token") -> Caller | None:
        """Return the caller with a secret of this kind, or None if it is not valid."""
        row = await self._look_up(secret, kind)
        return None if row is None else caller_of(row)

    async def link(self, scope: Scope | None = None) -> str:
        """Return a code that opens one session within ten minutes.

        The session has the rights of the caller, or those of a lower scope.
        """
        caller = self.caller
        wanted = caller.scope if scope is None else scope
        secret = f"{PREFIXES['link']}{self._new_secret()}"
        link_id, owner = self._new_id("link"), caller.owner
        row = self._row("link", link_id, caller.name, wanted, owner=owner, lasts=LINK_LASTS)
        if not caller.may(wanted):
            problem = f"{caller.name} may {caller.scope}, not {wanted}"
            raise NotAllowed(problem, hint="a link cannot have more rights than its creator")
        is_new = await self._store.add_token(row, digest_of(secret))
        assert is_new, "random ids do not collide"
        return secret

    async def session(self, code: str) -> Session | None:
        """Open a session with the code of a link; None if it was used, expired or never valid."""
        if not SECRETS["link"].fullmatch(code):
            return None
        if await self._all.token_of(digest_of(code)) is None:
            return None  # a guess costs one look-up, but not a write transaction
        secret = f"{PREFIXES['session']}{self._new_secret()}"
        row = await self._all.open_session(  # without a caller, who is known only afterwards
            digest_of(code), digest_of(secret), self._new_id("session"), expires_in=SESSION_LASTS
        )
        return None if row is None else Session(row, secret)

    async def end_session(self, secret: str) -> bool:
        """End a session; return whether it was open."""
        row = await self._look_up(secret, "session")
        self._cache.clear()
        by = self._all.as_caller("" if row is None else caller_of(row).name)
        return row is not None and await by.revoke_token(row.token_id) is not None

    async def signer(self) -> Signer:
        """Return the signer of the tokens of runs and nodes; its key is created on first use."""
        if self._cache.signer is None:
            key = await self._all.signing_key(secrets.token_hex(32))
            self._cache.signer = Signer(bytes.fromhex(key))
        return self._cache.signer

    def callback(self, public_url: str) -> Callable[[str], Awaitable[Mapping[str, str]]]:
        """Return a function that returns the callback headers of the run with a given key."""

        async def headers(key: str) -> Mapping[str, str]:
            token = {"Onbeat-Callback-Token": (await self.signer()).run_token(key)}
            url = {"Onbeat-Callback": f"{public_url}/api/v1/runs/{key}/status"}
            return token | url if public_url else token

        return headers

    async def _look_up(self, secret: str, kind: TokenKind) -> TokenRow | None:
        if not SECRETS[kind].fullmatch(secret):
            return None
        digest = digest_of(secret)
        row = self._cache.find(digest)
        if row is None:
            row = await self._store.token_of(digest)
            if row is not None:
                self._cache.add(digest, row)
        return row if row is not None and row.kind == kind else None

    def _row(
        self,
        kind: TokenKind,
        token_id: str,
        name: str,
        scope: Scope,
        *,
        owner: str,
        lasts: int | None,
    ) -> TokenRow:
        if scope not in SCOPES:
            problem = f"{quote_value(scope)} is not a scope"
            raise InvalidSettings("scope", problem, hint=did_you_mean(scope, SCOPES))
        if lasts is not None and not 1 <= lasts <= LONGEST:
            raise InvalidSettings("expires", "it is out of bounds", hint="1s to 36500d")
        now = self._clock.now()
        until = None if lasts is None else now + lasts
        return TokenRow(token_id, kind, name, scope, owner, now, self.caller.name, until)

    def _new_id(self, kind: TokenKind) -> str:
        # An id is not a secret; a part of a digest is used only as a source of random characters.
        return f"{kind}:{digest_of(self._new_secret())[:20]}"

    def _needs_admin(self) -> None:
        if not self.caller.may("admin"):
            problem = f"{self.caller.name or 'this caller'} may {self.caller.scope}, not admin"
            raise NotAllowed(problem, hint="a token with scope admin")


def caller_of(row: TokenRow) -> Caller:
    """Return the caller of a token or a session."""
    scope = next(each for each in SCOPES if each == row.scope)
    return Caller(f"{row.kind}:{row.name}", scope, row.owner)


def check_owner(owner: str) -> str:
    """Return the name of an owner, or refuse it; empty means all owners."""
    if owner and not OWNER.fullmatch(owner):
        hint = "letters, digits and . _ @ : / + -, at most 200"
        raise InvalidSettings("owner", f"{quote_value(owner)} is not a valid owner name", hint=hint)
    return owner


def digest_of(secret: str) -> str:
    """Return the digest of a secret. A fast hash is sufficient for 256 random bits."""
    return sha256(secret.encode()).hexdigest()


class _TokenCache:
    """Recently looked up tokens, up to a maximum number, and the signer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows: OrderedDict[str, tuple[float, TokenRow]] = OrderedDict()
        self.signer: Signer | None = None

    def find(self, digest: str) -> TokenRow | None:
        until, row = self._rows.get(digest, (0.0, None))
        if row is None or self._clock.monotonic() >= until:
            self._rows.pop(digest, None)
            return None
        return None if row.expires_at is not None and row.expires_at <= self._clock.now() else row

    def add(self, digest: str, row: TokenRow) -> None:
        self._rows[digest] = self._clock.monotonic() + CACHED_FOR, row
        while len(self._rows) > MOST_CACHED:
            self._rows.popitem(last=False)

    def clear(self) -> None:
        self._rows.clear()


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
OWNER = re.compile(r"[A-Za-z0-9._@:/+-]{1,200}")
PREFIXES: dict[TokenKind, str] = {
    "token": "onbeat_",
    "link": "onbeat_link_",
    "session": "onbeat_session_",
}
SECRETS: dict[TokenKind, re.Pattern[str]] = {
    kind: re.compile(rf"{prefix}[A-Za-z0-9_-]{{43,64}}") for kind, prefix in PREFIXES.items()
}
