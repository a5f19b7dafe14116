"""JSON Web Tokens of another issuer, with one algorithm that the operator configured.

A token does not choose how it is verified: its form is checked strictly before its signature, and
its claims are read only after. PyJWT verifies the signature, the issuer and the audience; times are
checked here, against the clock of the store and without conversion of texts and booleans.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from math import isfinite
from typing import TYPE_CHECKING, Any

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from onbeat.app.settings import Settings
from onbeat.errors import InvalidSettings, quote_value
from onbeat.host.regular_files import read_regular
from onbeat.ports.clock import Clock
from onbeat.service.access import SCOPES, Caller, Scope
from onbeat.service.tokens import OWNER
from onbeat.web.security.bodies import check_json
from onbeat.web.security.responses import RequestRefused

if TYPE_CHECKING:
    from jwt.types import Options

LONGEST = 8 * 1024  # characters
LONGEST_LIFE, LEEWAY = 24 * 3600, 10  # seconds
LARGEST_KEY = 64 * 1024  # bytes of its file
SHORTEST_SECRET, SMALLEST_RSA = 32, 2048  # bytes, bits


class NotAccepted(Exception):  # noqa: N818 - it names what is wrong
    """A token is not accepted; the text says why."""


class _StrictJwt(jwt.PyJWT):
    """PyJWT, with claims that have to be unambiguous JSON."""

    def _decode_payload(self, decoded: dict[str, Any]) -> dict[str, Any]:
        return _decode_object(decoded["payload"])


class Jwt:
    """Authenticates callers by tokens that a trusted issuer has signed."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        for name in ("jwt_issuer", "jwt_audience"):
            if not getattr(settings, name):
                raise InvalidSettings(name, "it is empty", hint="jwt_key requires it")
        self._algorithm: str = settings.jwt_algorithm
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        self._clock, self._key = clock, _read_key(settings)
        self._jwt = _StrictJwt()

    def caller(self, token: str) -> Caller:
        """Return the caller of a token, or raise NotAccepted."""
        self._check_form(token)
        try:
            claims = self._jwt.decode(
                token,
                self._key,  # type: ignore[arg-type]  # as prepared by its algorithm
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=[self._issuer],  # PyJWT 2.10.0 accepts a part of an issuer that is a text
                options=OPTIONS,
            )
        except jwt.MissingRequiredClaimError as missing:
            raise NotAccepted(f"it has no {missing.claim}") from None
        except jwt.InvalidIssuerError:
            raise NotAccepted("it is from another issuer") from None
        except jwt.InvalidAudienceError:
            raise NotAccepted("it is for another audience") from None
        except (jwt.PyJWTError, ValueError, TypeError):
            raise NotAccepted("its signature is not valid") from None
        self._check_times(claims)
        sub = claims["sub"]
        if not isinstance(sub, str) or not OWNER.fullmatch(sub):
            raise NotAccepted("its sub is not the name of an owner")
        return Caller(f"jwt:{sub}", _scope(claims), sub)

    def _check_form(self, token: str) -> None:
        parts = token.split(".") if len(token) <= LONGEST else []
        if len(parts) != 3 or not all(map(_is_canonical, parts)):
            raise NotAccepted("it is not a token of a known kind")
        header = _decode_object(urlsafe_b64decode(f"{parts[0]}{'=' * (-len(parts[0]) % 4)}"))
        kind, kid = header.get("typ", "JWT"), header.get("kid", "")
        is_plain = header.get("alg") == self._algorithm and header.keys() <= {"alg", "typ", "kid"}
        is_jwt = isinstance(kind, str) and kind.lower() in KINDS and isinstance(kid, str)
        if not (is_plain and is_jwt):
            raise NotAccepted("its header is not supported")

    def _check_times(self, claims: dict[str, Any]) -> None:
        now = self._clock.now() / 1000
        until, since = _time(claims, "exp"), _time(claims, "iat", now)
        if now >= until + LEEWAY:
            raise NotAccepted("it has expired")
        if now < max(_time(claims, "nbf", now), since) - LEEWAY:
            raise NotAccepted("it is not valid yet")
        if until - since > LONGEST_LIFE + LEEWAY:
            raise NotAccepted("it is valid for too long: 24 hours at most")


def _decode_object(text: bytes) -> dict[str, Any]:
    try:
        check_json(text)
        return msgspec.json.decode(text, type=dict[str, Any])
    except (RequestRefused, msgspec.MsgspecError):
        raise NotAccepted("it does not contain a valid JSON object") from None


def _is_canonical(part: str) -> bool:
    """Return whether this is the canonical base64url encoding of its bytes."""
    try:
        decoded = urlsafe_b64decode(f"{part}{'=' * (-len(part) % 4)}")
    except (NotBase64, ValueError):
        return False
    return bool(part) and urlsafe_b64encode(decoded).rstrip(b"=") == part.encode()


def _time(claims: dict[str, Any], name: str, default: float | None = None) -> float:
    value: Any = claims.get(name, default)
    if type(value) not in (int, float) or not isfinite(value):
        raise NotAccepted(f"its {name} is not a time")
    return float(value)


def _scope(claims: dict[str, Any]) -> Scope:
    value = claims.get("scope")
    words = value.split(" ") if isinstance(value, str) else []
    scopes = [scope for scope in SCOPES if scope in words]
    if not scopes:
        raise NotAccepted(f"its scope has none of {', '.join(SCOPES)}")
    return scopes[-1]


def _read_key(settings: Settings) -> object:
    name, algorithm = settings.jwt_key, settings.jwt_algorithm
    try:
        found = read_regular(name, most=LARGEST_KEY)
    except OSError as broken:
        problem = f"{quote_value(name)} cannot be read: {broken.strerror}"
        raise InvalidSettings("jwt_key", problem, hint="a file") from None
    is_pem = b"-----BEGIN" in found
    if algorithm == "HS256":
        if is_pem or len(found.strip()) < SHORTEST_SECRET:
            problem = "the secret is too short, or is a public key"
            hint = f"a file with at least {SHORTEST_SECRET} random bytes"
            raise InvalidSettings("jwt_key", problem, hint=hint)
        return found.strip()
    hint = f"the public key for {algorithm}, as PEM"
    if not is_pem or b"PRIVATE KEY" in found:
        problem = "this is a private key" if is_pem else "this is not a PEM file"
        raise InvalidSettings("jwt_key", problem, hint=hint)
    try:
        key = get_default_algorithms()[algorithm].prepare_key(found)
    except (jwt.PyJWTError, ValueError, TypeError):
        raise InvalidSettings("jwt_key", "this key is of another type", hint=hint) from None
    if algorithm == "RS256" and getattr(key, "key_size", 0) < SMALLEST_RSA:
        raise InvalidSettings("jwt_key", f"this key has fewer than {SMALLEST_RSA} bits", hint=hint)
    if algorithm == "ES256" and getattr(getattr(key, "curve", None), "name", "") != "secp256r1":
        raise InvalidSettings("jwt_key", "this key is on another curve", hint=hint)
    return key


KINDS = frozenset({"jwt", "at+jwt"})
# PyJWT accepts texts and booleans as times, and compares them with the time of the machine.
OPTIONS: "Options" = {
    "require": ["aud", "exp", "iss", "sub"],
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
    "verify_sub": False,
    "verify_jti": False,
}
