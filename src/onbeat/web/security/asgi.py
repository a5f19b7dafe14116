"""What an ASGI server hands over, and short ways to read it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UNSAFE = frozenset({"POST", "PUT", "PATCH", "DELETE"})


def values_of(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header, each time that it was sent."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def is_unsafe(scope: Scope) -> bool:
    """Return whether a request may change something: whatever is not known to be harmless."""
    return scope["method"] not in ("GET", "HEAD", "OPTIONS")
