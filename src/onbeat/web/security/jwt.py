"""Tokens that somebody else signs: JSON Web Tokens, of one algorithm that the operator chose.

What a token says of how to check it is not listened to. Its form is read strictly before its
signature, and its claims only after.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from math import isfinite

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings, shown
from onbeat.files.regular import read_regular
from onbeat.ports.clock import Clock
from onbeat.service.access import SCOPES, Caller, Scope
from onbeat.service.tokens import OWNER
from onbeat.web.security.bodies import check_json
from onbeat.web.security.responses import RequestRefused

LONGEST = 8 * 1024  # characters
LONGEST_LIFE, LEEWAY = 24 * 3600, 10  # seconds
LARGEST_KEY = 64 * 1024  # bytes of its file
SHORTEST_SECRET, SMALLEST_RSA = 32, 2048  # bytes, bits


class NotAccepted(Exception):  # noqa: N818 - it names what is wrong
    """A token lets nobody in; what is said of one whose signature is wrong is only that."""


class Jwt:
    """Knows who comes with a token that is signed by whom the operator trusts."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        for name in ("jwt_issuer", "jwt_audience"):
            if not getattr(settings, name):
                raise InvalidSettings(name, "it is empty", hint="jwt_key needs it")
        self._algorithm: str = settings.jwt_algorithm
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        self._clock, self._key = clock, _read_key(settings)
        self._jws = jwt.PyJWS(algorithms=[self._algorithm])

    def caller(self, token: str) -> Caller:
        """Return who comes with a token, or raise NotAccepted."""
        self._check_form(token)
        try:
            payload = self._jws.decode(
                token,
                self._key,  # type: ignore[arg-type]  # it is the one that its algorithm has read
                algorithms=[self._algorithm],
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            raise NotAccepted("its signature is not the right one") from None
        return self._who(_object(payload))

    def _check_form(self, token: str) -> None:
        parts = token.split(".") if len(token) <= LONGEST else []
        if len(parts) != 3 or not all(map(_is_canonical, parts)):
            raise NotAccepted("it is no token that is known here")
        header = _object(urlsafe_b64decode(f"{parts[0]}{'=' * (-len(parts[0]) % 4)}"))
        kind, kid = header.get("typ", "JWT"), header.get("kid", "")
        if header.get("alg") != self._algorithm or not header.keys() <= {"alg", "typ", "kid"}:
            raise NotAccepted("its header asks for what is not done here")
        if not isinstance(kind, str) or kind.lower() not in KINDS or not isinstance(kid, str):
            raise NotAccepted("its header asks for what is not done here")

    def _who(self, claims: dict[str, object]) -> Caller:
        now = self._clock.now() / 1000
        until, since = _time(claims, "exp"), _time(claims, "iat", now)
        if now >= until + LEEWAY:
            raise NotAccepted("it has expired")
        if now < max(_time(claims, "nbf", now), since) - LEEWAY:
            raise NotAccepted("it is not valid yet")
        if until - since > LONGEST_LIFE + LEEWAY:
            raise NotAccepted("it lasts too long: 24 hours at most")
        if claims.get("iss") != self._issuer:
            raise NotAccepted("it is from another issuer")
        audience = claims.get("aud")
        every = audience if isinstance(audience, list) else [audience]
        if self._audience not in every or not all(isinstance(each, str) for each in every):
            raise NotAccepted("it is for somebody else")
        sub = claims.get("sub")
        if not isinstance(sub, str) or not OWNER.fullmatch(sub):
            raise NotAccepted("its sub is no name of an owner")
        return Caller(f"jwt:{sub}", _scope(claims), sub)


def _object(text: bytes) -> dict[str, object]:
    try:
        check_json(text)
        return msgspec.json.decode(text, type=dict[str, object])
    except (RequestRefused, msgspec.MsgspecError):
        raise NotAccepted("what it holds is no JSON object") from None


def _is_canonical(part: str) -> bool:
    """Return whether this is the one spelling of some bytes."""
    try:
        found = urlsafe_b64decode(f"{part}{'=' * (-len(part) % 4)}")
    except (NotBase64, ValueError):
        return False
    return bool(part) and urlsafe_b64encode(found).rstrip(b"=") == part.encode()


def _time(claims: dict[str, object], name: str, usual: float | None = None) -> float:
    found = claims.get(name, usual)
    if type(found) not in (int, float) or not isfinite(found):  # type: ignore[arg-type]
        raise NotAccepted(f"its {name} is no time")
    return float(found)  # type: ignore[arg-type]


def _scope(claims: dict[str, object]) -> Scope:
    found = claims.get("scope")
    words = found.split(" ") if isinstance(found, str) else []
    own = [scope for scope in SCOPES if scope in words]
    if not own:
        raise NotAccepted("its scope has no word that is known here")
    return own[-1]


def _read_key(settings: Settings) -> object:
    name, algorithm = settings.jwt_key, settings.jwt_algorithm
    try:
        found = read_regular(name, most=LARGEST_KEY)
    except OSError as broken:
        problem = f"{shown(name)} cannot be read: {broken.strerror}"
        raise InvalidSettings("jwt_key", problem, hint="a file") from None
    is_pem = b"-----BEGIN" in found
    if algorithm == "HS256":
        if is_pem or len(found.strip()) < SHORTEST_SECRET:
            problem = "this is no secret that others could not guess"
            hint = f"a file of {SHORTEST_SECRET} random bytes or more, and no key that is public"
            raise InvalidSettings("jwt_key", problem, hint=hint)
        return found.strip()
    hint = f"the public key for {algorithm}, as PEM"
    if not is_pem or b"PRIVATE KEY" in found:
        problem = "here only the public key is needed" if is_pem else "this is no PEM"
        raise InvalidSettings("jwt_key", problem, hint=hint)
    try:
        key = get_default_algorithms()[algorithm].prepare_key(found)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise InvalidSettings("jwt_key", "this is a key of another kind", hint=hint) from None
    if algorithm == "RS256" and getattr(key, "key_size", 0) < SMALLEST_RSA:
        raise InvalidSettings("jwt_key", f"a key of fewer than {SMALLEST_RSA} bits", hint=hint)
    if algorithm == "ES256" and getattr(getattr(key, "curve", None), "name", "") != "secp256r1":
        raise InvalidSettings("jwt_key", "this is a key on another curve", hint=hint)
    return key


KINDS = frozenset({"jwt", "at+jwt"})
