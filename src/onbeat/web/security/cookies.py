"""The cookie of a session, and the token that a page has to send back with every change."""

import re
from hmac import compare_digest, new

from onbeat.service.tokens import SESSION_LASTS
from onbeat.web.security.asgi import Scope, values_of
from onbeat.web.security.responses import RequestRefused


def name_of(*, is_tls: bool) -> str:
    """Return the cookie's name: with a prefix that no other host can set it under, on TLS."""
    return "__Host-onbeat" if is_tls else "onbeat"


def session_of(scope: Scope, *, is_tls: bool) -> str | None:
    """Return the secret of the session that a request comes with."""
    name = name_of(is_tls=is_tls)
    texts = ";".join(values_of(scope, b"cookie")).split(";")
    pairs = [text.strip().partition("=") for text in texts]
    found = [value for key, _, value in pairs if key == name]
    if len(found) > 1:  # one of them was put there by somebody else
        raise RequestRefused(400, f"there are {len(found)} cookies {name}", field="Cookie")
    return found[0] if found else None


def set_cookie(secret: str, *, is_tls: bool) -> tuple[bytes, bytes]:
    """Return the header that gives a browser its session."""
    return _cookie(secret, SESSION_LASTS // 1000, is_tls=is_tls)


def forget_cookie(*, is_tls: bool) -> tuple[bytes, bytes]:
    """Return the header that takes it away."""
    return _cookie("", 0, is_tls=is_tls)


def _cookie(value: str, seconds: int, *, is_tls: bool) -> tuple[bytes, bytes]:
    text = f"{name_of(is_tls=is_tls)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}"
    return b"set-cookie", f"{text}; Secure".encode() if is_tls else text.encode()


def csrf_of(secret: str) -> str:
    """Return what a page sends back in `X-CSRF-Token`: it says nothing of the secret."""
    return new(secret.encode(), b"csrf", "sha256").hexdigest()


def check_csrf(scope: Scope, secret: str) -> None:
    """Refuse a change that comes with a cookie and without the token of its session."""
    given = values_of(scope, b"x-csrf-token")
    if len(given) != 1 or not re.fullmatch(r"[0-9a-f]{64}", given[0]):
        told = "a change that comes with a cookie needs the token of its page"
        raise RequestRefused(403, told, field="X-CSRF-Token", hint="GET /api/v1/session tells it")
    if not compare_digest(given[0], csrf_of(secret)):
        raise RequestRefused(403, "this is the token of another session", field="X-CSRF-Token")
