"""Words that only nodes of this database can have written, for targets and for other nodes.

They are no secrets that are kept: each is made anew from one key, and says itself what it is for.
"""

import re
from hmac import compare_digest, new


class Signer:
    """Signs with one key of 32 random bytes, which everybody who has the database has."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= 32, "a key has 32 bytes"
        self._key = key

    def run_token(self, key: str) -> str:
        """Return what lets its bearer tell of the end of the run that has this key."""
        return self._signed(f"{RUN}.{key}")

    def check_run_token(self, token: str) -> str | None:
        """Return the key of the run that a token is for, or None if it is none of ours."""
        match = RUN_TOKEN.fullmatch(token)
        return match[1] if match and self._is_own(token) else None

    def node_token(self, expires_at: int) -> str:
        """Return what lets a node read from another until an instant, in milliseconds."""
        return self._signed(f"{NODE}.{expires_at}")

    def check_node_token(self, token: str, *, now: int) -> bool:
        """Return whether a node comes with this token, which has not expired."""
        match = NODE_TOKEN.fullmatch(token)
        return match is not None and self._is_own(token) and now < int(match[1]) <= now + LONGEST

    def proof(self, challenge: str, address: str) -> str:
        """Return what proves that a node of this database serves an address, `host:port`."""
        return self._signed(f"{HERE}.{challenge}.{address}").rpartition(".")[2]

    def _signed(self, text: str) -> str:
        return f"{text}.{new(self._key, text.encode(), 'sha256').hexdigest()}"

    def _is_own(self, token: str) -> bool:
        return compare_digest(self._signed(token.rpartition(".")[0]), token)


RUN, NODE, HERE = "onbeat-run", "onbeat-node", "onbeat-here"
LONGEST = 60_000  # milliseconds that a node's may last: one that says more is none of ours
RUN_TOKEN = re.compile(rf"{RUN}\.([0-9a-f]{{64}})\.[0-9a-f]{{64}}")
NODE_TOKEN = re.compile(rf"{NODE}\.([0-9]{{1,15}})\.[0-9a-f]{{64}}")
