"""Tokens signed with the key of the database, for targets of runs and for other nodes.

They are not stored: each is computed from the key, and contains what it is for.
"""

import re
from hmac import compare_digest, new


class Signer:
    """Signs with a key of 32 random bytes, which is stored in the database."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= 32, "a key has 32 bytes"
        self._key = key

    def run_token(self, key: str) -> str:
        """Return a token to report the outcome of the run with this idempotency key."""
        return self._signed(f"{RUN}.{key}")

    def check_run_token(self, token: str) -> str | None:
        """Return the key of the run that a token is for, or None if it is not valid."""
        match = RUN_TOKEN.fullmatch(token)
        return match[1] if match and self._is_own(token) else None

    def node_token(self, expires_at: int) -> str:
        """Return a token to read from another node until an instant, in milliseconds."""
        return self._signed(f"{NODE}.{expires_at}")

    def check_node_token(self, token: str, *, now: int) -> bool:
        """Return whether this is the token of a node, and has not expired."""
        match = NODE_TOKEN.fullmatch(token)
        return match is not None and self._is_own(token) and now < int(match[1]) <= now + LONGEST

    def proof(self, challenge: str, address: str) -> str:
        """Return a proof that a node of this database serves an address, `host:port`."""
        return self._signed(f"{PROOF}.{challenge}.{address}").rpartition(".")[2]

    def _signed(self, text: str) -> str:
        return f"{text}.{new(self._key, text.encode(), 'sha256').hexdigest()}"

    def _is_own(self, token: str) -> bool:
        return compare_digest(self._signed(token.rpartition(".")[0]), token)


RUN, NODE, PROOF = "onbeat-run", "onbeat-node", "onbeat-here"
LONGEST = 60_000  # milliseconds for which the token of a node may be valid
RUN_TOKEN = re.compile(rf"{RUN}\.([0-9a-f]{{64}})\.[0-9a-f]{{64}}")
NODE_TOKEN = re.compile(rf"{NODE}\.([0-9]{{1,15}})\.[0-9a-f]{{64}}")
