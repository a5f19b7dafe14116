"""Stable pseudo-random offsets, hashed from a string."""

from hashlib import sha256


def stable_share(text: str, room: int) -> int:
    """Return a whole number in `0 <= n < room`, always the same for the same text."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") % room
