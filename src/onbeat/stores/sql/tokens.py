"""API tokens, login links and sessions. Of their secrets only digests are stored."""

from dataclasses import replace

from onbeat.events import SessionOpened, TokenCreated, TokenRevoked
from onbeat.ports.rows import TokenRow
from onbeat.stores.sql.transaction import Row, Transaction

COLUMNS = ", ".join(TokenRow.__dataclass_fields__)

ADD = f"""
INSERT INTO tokens ({COLUMNS}, digest) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
    ON CONFLICT DO NOTHING
"""

# A link is used once: a concurrent transaction waits, and then finds it used.
USE_UP = f"""
UPDATE tokens SET used_at = ?2
 WHERE digest = ?1 AND kind = 'link' AND used_at IS NULL AND expires_at > ?2
RETURNING {COLUMNS}
"""

OF_DIGEST = f"""
SELECT {COLUMNS} FROM tokens
 WHERE digest = ?1 AND used_at IS NULL AND (expires_at IS NULL OR expires_at > ?2)
"""

LISTED = f"""
SELECT {COLUMNS} FROM tokens
 WHERE kind = 'token' OR (kind = 'session' AND expires_at > ?1) ORDER BY token_id
"""

# Expired links and sessions are deleted; an expired token is listed until it is revoked.
FORGET = "DELETE FROM tokens WHERE kind <> 'token' AND expires_at <= ?1"

REVOKE = f"DELETE FROM tokens WHERE token_id = ?1 AND kind <> 'link' RETURNING {COLUMNS}"

REVOKE_DERIVED = f"""
DELETE FROM tokens WHERE kind <> 'token' AND created_by = ?1 RETURNING {COLUMNS}
"""


def add(tx: Transaction, token: TokenRow, digest: str) -> bool:
    """Add a token. The contract is `Store.add_token`."""
    tx.run(FORGET, (tx.now,))
    if not _insert(tx, token, digest):
        return False
    tx.emit(TokenCreated(token.token_id, token.kind, token.scope, token.owner, token.expires_at))
    return True


def _insert(tx: Transaction, token: TokenRow, digest: str) -> bool:
    return bool(
        tx.run(
            ADD,
            (token.token_id, token.kind, token.name, token.scope, token.owner, token.created_at,
             token.created_by, token.expires_at, token.used_at, digest),
        )
    )  # fmt: skip


def listed(tx: Transaction) -> list[TokenRow]:
    """Return tokens and open sessions, by id."""
    return [TokenRow(*row) for row in tx.all(LISTED, (tx.now,))]


def of_digest(tx: Transaction, digest: str) -> TokenRow | None:
    """Return the token of a secret. The contract is `Store.token_of`."""
    return _token(tx.one(OF_DIGEST, (digest, tx.now)))


def open_session(
    tx: Transaction, link: str, session: str, session_id: str, *, expires_in: int
) -> TokenRow | None:
    """Exchange a link for a session. The contract is `Store.open_session`."""
    used = _token(tx.one(USE_UP, (link, tx.now)))
    if used is None:
        return None
    opened = replace(
        used,
        token_id=session_id,
        kind="session",
        created_at=tx.now,
        expires_at=tx.now + expires_in,
        used_at=None,
    )
    is_new = _insert(tx, opened, session)
    assert is_new, "a random id is unique"
    tx.by = tx.by or f"session:{opened.name}"
    tx.emit(SessionOpened(session_id, used.token_id, opened.scope, opened.owner, opened.expires_at))
    return opened


def revoke(tx: Transaction, token_id: str) -> TokenRow | None:
    """Revoke a token or session. The contract is `Store.revoke_token`."""
    revoked = _token(tx.one(REVOKE, (token_id,)))
    if revoked is None:
        return None
    derived: list[Row] = []
    if revoked.kind == "token":
        derived = tx.all(REVOKE_DERIVED, (f"{revoked.kind}:{revoked.name}",))
    for each in (revoked, *(TokenRow(*row) for row in derived)):
        tx.emit(TokenRevoked(each.token_id, each.kind, each.scope, each.owner))
    return revoked


def signing_key(tx: Transaction, fresh: str) -> str:
    """Return the key to sign with. The contract is `Store.signing_key`."""
    tx.run(
        "INSERT INTO meta (name, value) VALUES ('signing_key', ?1) ON CONFLICT DO NOTHING", (fresh,)
    )
    return str(tx.value("SELECT value FROM meta WHERE name = 'signing_key'"))


def _token(row: Row | None) -> TokenRow | None:
    return None if row is None else TokenRow(*row)
