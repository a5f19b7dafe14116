"""Types of the ASGI interface, and functions to read requests."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def values_of(scope: Scope, name: bytes) -> list[str]:
    """Return all values of a header."""
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def is_unsafe(scope: Scope) -> bool:
    """Return whether a request may change something: every method that is not known to be safe."""
    return scope["method"] not in ("GET", "HEAD", "OPTIONS")
