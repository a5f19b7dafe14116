"""Parts of a length that differ from one text to another and are always the same for the same."""

from hashlib import sha256


def stable_share(text: str, room: int) -> int:
    """Return a whole number of at least 0 and less than `room`."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") % room
