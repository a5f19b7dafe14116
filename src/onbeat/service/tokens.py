"""The use cases around who may come in: tokens, links that open one session, and sessions.

A secret is shown once, to whoever asked for it. Its digest is what is kept and looked up, so that
neither the database nor the time an answer takes tells anything of it.
"""

import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import NamedTuple

from onbeat.errors import InvalidSettings, NoSuchToken, NotAllowed, meant, shown
from onbeat.ports.clock import Clock
from onbeat.ports.rows import TokenKind, TokenRow
from onbeat.ports.store import Store
from onbeat.service.access import LOCAL, SCOPES, Caller, Scope
from onbeat.service.signed_tokens import Signer

LINK_LASTS = 10 * 60_000  # milliseconds
SESSION_LASTS = 12 * 3_600_000
LONGEST = 36_500 * 86_400_000
REMEMBERED = 2.0  # seconds for which a revocation elsewhere may go unnoticed
MOST_REMEMBERED = 1000


class Session(NamedTuple):
    """An open session, as its browser holds it."""

    row: TokenRow
    secret: str


class Tokens:
    """What a caller may do about tokens, and who comes with a secret.

    `new_secret` returns at least 256 random bits, as letters and digits. What was looked up is
    remembered for moments, here and in whatever `of` returns.
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
        self._remembered = _Remembered(self._clock)

    def of(self, caller: Caller) -> "Tokens":
        """Return the same use cases as this caller may have them."""
        same = Tokens(self._all, self._clock, self._new_secret, caller=caller)
        same._remembered = self._remembered
        return same

    async def create(
        self, name: str, scope: Scope, owner: str = "", expires_in: int | None = None
    ) -> tuple[TokenRow, str]:
        """Make a token, which lasts so many milliseconds or for ever; return it and its secret."""
        self._needs_admin()
        if not NAME.fullmatch(name):
            hint = "letters, digits and . _ @ -, at most 100"
            raise InvalidSettings("name", f"{shown(name)} is no name of a token", hint=hint)
        check_owner(owner)
        row = self._row("token", name, name, scope, owner=owner, lasts=expires_in)
        secret = f"{PREFIXES['token']}{self._new_secret()}"
        if not await self._store.add_token(row, digest_of(secret)):
            problem = f"there is a token {name!r}"
            raise InvalidSettings("name", problem, hint="revoke it first, or another name")
        return row, secret

    async def all(self) -> list[TokenRow]:
        """Return tokens and open sessions, by id."""
        self._needs_admin()
        return await self._store.tokens()

    async def revoke(self, which: str) -> TokenRow:
        """Let nobody in by a token or a session any more, nor by what a token was used to open."""
        self._needs_admin()
        gone = await self._store.revoke_token(which)
        self._remembered.clear()
        if gone is None:
            raise NoSuchToken(which, [row.token_id for row in await self._store.tokens()])
        return gone

    async def authenticate(self, secret: str, kind: TokenKind = "token") -> Caller | None:
        """Return who comes with a secret of this kind, or None if it lets nobody in."""
        row = await self._look_up(secret, kind)
        return None if row is None else caller_of(row)

    async def link(self, scope: Scope | None = None) -> str:
        """Return a code that opens one session, within ten minutes, for whoever comes with it.

        It has the rights of whoever asks for it, or those of a lower scope.
        """
        caller = self.caller
        wanted = caller.scope if scope is None else scope
        secret = f"{PREFIXES['link']}{self._new_secret()}"
        link_id, whose = self._new_id("link"), caller.owner
        row = self._row("link", link_id, caller.name, wanted, owner=whose, lasts=LINK_LASTS)
        if not caller.may(wanted):
            problem = f"{caller.name} may {caller.scope}, not {wanted}"
            raise NotAllowed(problem, hint="a link has no more rights than whoever asks for it")
        is_new = await self._store.add_token(row, digest_of(secret))
        assert is_new, "a random id is nobody else's"
        return secret

    async def session(self, code: str) -> Session | None:
        """Use a link up and open a session; None if the code is used, expired or was none."""
        if not SECRETS["link"].fullmatch(code):
            return None
        if await self._all.token_of(digest_of(code)) is None:
            return None  # a guess costs one look-up, and no transaction that writes
        secret = f"{PREFIXES['session']}{self._new_secret()}"
        row = await self._all.open_session(  # as nobody: who comes is known only then
            digest_of(code), digest_of(secret), self._new_id("session"), expires_in=SESSION_LASTS
        )
        return None if row is None else Session(row, secret)

    async def end_session(self, secret: str) -> bool:
        """Let nobody in by a session any more; return whether it was open."""
        row = await self._look_up(secret, "session")
        self._remembered.clear()
        by = self._all.as_caller("" if row is None else caller_of(row).name)
        return row is not None and await by.revoke_token(row.token_id) is not None

    async def signer(self) -> Signer:
        """Return who signs what runs and nodes come with; the key is made on first use."""
        if self._remembered.signer is None:
            key = await self._all.signing_key(secrets.token_hex(32))
            self._remembered.signer = Signer(bytes.fromhex(key))
        return self._remembered.signer

    def callback(self, public_url: str) -> Callable[[str], Awaitable[Mapping[str, str]]]:
        """Return who says, by headers, how to tell of the end of the run that has a key."""

        async def headers(key: str) -> Mapping[str, str]:
            token = {"Onbeat-Callback-Token": (await self.signer()).run_token(key)}
            there = {"Onbeat-Callback": f"{public_url}/api/v1/runs/{key}/status"}
            return token | there if public_url else token

        return headers

    async def _look_up(self, secret: str, kind: TokenKind) -> TokenRow | None:
        if not SECRETS[kind].fullmatch(secret):
            return None
        digest = digest_of(secret)
        row = self._remembered.find(digest)
        if row is None:
            row = await self._store.token_of(digest)
            if row is not None:
                self._remembered.add(digest, row)
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
            raise InvalidSettings("scope", f"{shown(scope)} is no scope", hint=meant(scope, SCOPES))
        if lasts is not None and not 1 <= lasts <= LONGEST:
            raise InvalidSettings("expires", "it is out of bounds", hint="1s to 36500d")
        now = self._clock.now()
        until = None if lasts is None else now + lasts
        return TokenRow(token_id, kind, name, scope, owner, now, self.caller.name, until)

    def _new_id(self, kind: TokenKind) -> str:
        # A part of its digest says nothing of what it is made from, and this is no secret.
        return f"{kind}:{digest_of(self._new_secret())[:20]}"

    def _needs_admin(self) -> None:
        if not self.caller.may("admin"):
            problem = f"{self.caller.name or 'this caller'} may {self.caller.scope}, not admin"
            raise NotAllowed(problem, hint="a token with scope admin")


def caller_of(row: TokenRow) -> Caller:
    """Return who comes with a token or a session."""
    scope = next(each for each in SCOPES if each == row.scope)
    return Caller(f"{row.kind}:{row.name}", scope, row.owner)


def check_owner(owner: str) -> str:
    """Return the name of an owner, or refuse it; empty is everybody."""
    if owner and not OWNER.fullmatch(owner):
        hint = "letters, digits and . _ @ : / + -, at most 200"
        raise InvalidSettings("owner", f"{shown(owner)} is no name of an owner", hint=hint)
    return owner


def digest_of(secret: str) -> str:
    """Return what is kept of a secret. It has 256 random bits, so that nothing slower is needed."""
    return sha256(secret.encode()).hexdigest()


class _Remembered:
    """What was looked up in the last moments, of not too many."""

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
        self._rows[digest] = self._clock.monotonic() + REMEMBERED, row
        while len(self._rows) > MOST_REMEMBERED:
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
