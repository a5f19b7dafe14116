"""Documents that systems store beside schedules: JSON by kind and name, each with its owner."""

from collections.abc import Collection, Sequence

import msgspec

from onbeat.core.target import is_json_value
from onbeat.errors import InvalidSchedule, NotAllowed
from onbeat.events import DocumentDeleted, DocumentStored
from onbeat.ports.rows import DocumentRow
from onbeat.stores.sql.schedule_rows import is_foreign
from onbeat.stores.sql.transaction import Row, Transaction, Value

LONGEST = 1024 * 1024  # bytes of a body as JSON
COLUMNS = ", ".join(DocumentRow.__dataclass_fields__)

KEEP = """
INSERT INTO documents (kind, name, body, user_id, updated_at) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (kind, name) DO UPDATE SET body = ?3, updated_at = ?5
       WHERE ?6 = 0 OR documents.user_id = ?4
"""


def keep(tx: Transaction, kind: str, name: str, body: object, *, user_id: str = "") -> None:
    """Store a document. The contract is `Store.keep`."""
    if not is_json_value(body):
        hint = "strings, finite numbers, lists, and objects with string keys"
        raise InvalidSchedule(name, "not serializable as JSON", hint=hint)
    text = (encoded := msgspec.json.encode(body)).decode()
    if len(encoded) > LONGEST:
        raise InvalidSchedule(
            name, f"{len(encoded)} bytes of JSON are too long", hint="1 MiB at most"
        )
    sql = "SELECT user_id FROM documents WHERE kind = ?1 AND name = ?2 AND body = ?3"
    stored_for = tx.value(sql, (kind, name, text))
    if stored_for is not None and not is_foreign(tx, stored_for):
        return
    # The first writer owns it, even if another writes at the same moment.
    owner, must_own = (user_id, 0) if tx.only_owner is None else (tx.only_owner, 1)
    if not tx.run(KEEP, (kind, name, text, owner, tx.now, must_own)):
        raise NotAllowed(
            f"the stored document {name} belongs to another owner", hint="use another name"
        )
    tx.emit(DocumentStored(kind, name))


def kept(tx: Transaction, kind: str, name: str) -> DocumentRow | None:
    """Return a document that the caller may see, or None."""
    sql = f"SELECT {COLUMNS} FROM documents WHERE kind = ?1 AND name = ?2"
    row = tx.one(sql, (kind, name))
    found = None if row is None else _document(row)
    return None if found is None or is_foreign(tx, found.user_id) else found


def list_documents(
    tx: Transaction,
    kind: str,
    *,
    after: str = "",
    limit: int | None = None,
    since: int | None = None,
    but: Collection[str] = (),
) -> list[DocumentRow]:
    """Return documents of a kind by name. The contract is `Store.list_documents`."""
    values: list[Value | Sequence[Value]] = [kind, after]
    # Without the hint SQLite would read all documents of a kind, as they are in name order.
    index = "" if since is None else "INDEXED BY documents_by_time "
    sql = f"SELECT {COLUMNS} FROM documents {index}WHERE kind = ?1 AND name > ?2"
    for column, value in (("updated_at >=", since), ("user_id =", tx.only_owner)):
        if value is not None:
            values.append(value)
            sql += f" AND {column} ?{len(values)}"
    if but:
        values.append(list(but))
        sql += f" AND NOT name IN (?{len(values)}[])"
    values.append(2**62 if limit is None else limit)
    sql += f" ORDER BY name LIMIT ?{len(values)}"
    return [_document(row) for row in tx.all(sql, values)]


def forget(tx: Transaction, kind: str, name: str) -> bool:
    """Delete a document. The contract is `Store.forget`."""
    if kept(tx, kind, name) is None:
        return False
    tx.run("DELETE FROM documents WHERE kind = ?1 AND name = ?2", (kind, name))
    tx.emit(DocumentDeleted(kind, name))
    return True


def _document(row: Row) -> DocumentRow:
    kind, name, body, user_id, updated_at = row
    return DocumentRow(kind, name, msgspec.json.decode(body), user_id, updated_at)
