"""The session cookie, and the CSRF token that a page sends with every change."""

import re
from hmac import compare_digest, new

from onbeat.service.tokens import SESSION_LASTS
from onbeat.web.security.asgi import Scope, values_of
from onbeat.web.security.responses import RequestRefused


def cookie_name(*, is_tls: bool) -> str:
    """Return the name of the cookie; over TLS with a prefix that other hosts cannot set."""
    return "__Host-onbeat" if is_tls else "onbeat"


def session_of(scope: Scope, *, is_tls: bool) -> str | None:
    """Return the session secret in the cookie of a request."""
    name = cookie_name(is_tls=is_tls)
    texts = ";".join(values_of(scope, b"cookie")).split(";")
    pairs = [text.strip().partition("=") for text in texts]
    found = [value for key, _, value in pairs if key == name]
    if len(found) > 1:  # another site may have set one of them
        raise RequestRefused(400, f"it has {len(found)} cookies named {name}", field="Cookie")
    return found[0] if found else None


def set_cookie(secret: str, *, is_tls: bool) -> tuple[bytes, bytes]:
    """Return the header that sets the session cookie."""
    return _cookie(secret, SESSION_LASTS // 1000, is_tls=is_tls)


def forget_cookie(*, is_tls: bool) -> tuple[bytes, bytes]:
    """Return the header that deletes the session cookie."""
    return _cookie("", 0, is_tls=is_tls)


def _cookie(value: str, seconds: int, *, is_tls: bool) -> tuple[bytes, bytes]:
    name = cookie_name(is_tls=is_tls)
    text = f"{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}"
    return b"set-cookie", f"{text}; Secure".encode() if is_tls else text.encode()


def csrf_of(secret: str) -> str:
    """Return the CSRF token of a session, for `X-CSRF-Token`. It does not reveal the secret."""
    return new(secret.encode(), b"csrf", "sha256").hexdigest()


def check_csrf(scope: Scope, secret: str) -> None:
    """Refuse a change with a session cookie but without the CSRF token of the session."""
    tokens = values_of(scope, b"x-csrf-token")
    if len(tokens) != 1 or not re.fullmatch(r"[0-9a-f]{64}", tokens[0]):
        problem = "a change with a session cookie requires its CSRF token"
        hint = "GET /api/v1/session returns it"
        raise RequestRefused(403, problem, field="X-CSRF-Token", hint=hint)
    if not compare_digest(tokens[0], csrf_of(secret)):
        raise RequestRefused(403, "this is the token of another session", field="X-CSRF-Token")
