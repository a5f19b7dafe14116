"""The outbox: notable events in, messages for channels out.

Notable event rows are marked; a transaction that writes their messages removes the marks. So each
row is processed once, by any node, whatever crashes. A message is committed as `sending` before it
is sent; a message that stays so is in doubt, and is not sent again.
"""

from collections.abc import Collection
from hashlib import sha256

import msgspec

from onbeat.core.notify.notifications import DeliveryResult, MessageContent, OutgoingMessage
from onbeat.events import NoticeFailed, NoticeInDoubt, NoticeSent, decode_events
from onbeat.ports.rows import ChannelRow, OutboxStep, OutboxWork, StoredEvent
from onbeat.ports.store import Compose
from onbeat.stores.sql.transaction import Transaction, as_json

OLDEST = 3_600_000  # milliseconds: older events are dropped without a message
LONGEST_SENDING = 120_000  # milliseconds until a message that is being sent is in doubt
LONGEST_ERROR = 1_000  # characters

HAS_MARKS = "SELECT 1 FROM events WHERE to_notify IS NOT NULL LIMIT 1"

DUE = """
SELECT DISTINCT state, channel FROM outbox INDEXED BY outbox_due
 WHERE state IN ('waiting', 'sending') AND due_at <= ?1
"""

TAKE_MARKS = """
SELECT event_id, at, body FROM events WHERE to_notify IS NOT NULL
 ORDER BY event_id LIMIT ?1 FOR UPDATE SKIP LOCKED
"""

NEWEST = """
SELECT message_id, state, attempts, body, coalesce(sent_at, created_at) FROM outbox
 WHERE channel = ?1 ORDER BY message_id DESC LIMIT 1 FOR UPDATE SKIP LOCKED
"""

ADD = "INSERT INTO outbox (channel, body, created_at, due_at) VALUES (?1, ?2, ?3, ?4)"

TAKE = """
SELECT message_id, body, created_at, attempts FROM outbox INDEXED BY outbox_due
 WHERE state = 'waiting' AND state IN ('waiting', 'sending') AND due_at <= ?1 AND channel = ?2
 ORDER BY due_at, message_id LIMIT 1 FOR UPDATE SKIP LOCKED
"""

BEGIN = """
UPDATE outbox SET state = 'sending', attempts = attempts + 1, due_at = ?2, error = NULL
 WHERE message_id = ?1 AND state = 'waiting'
"""

# The outcome of a message in doubt may arrive late. No other node has sent it since: `attempts`
# would differ.
SETTLE = """
UPDATE outbox SET state = ?3, due_at = ?4, sent_at = ?5, error = ?6
 WHERE message_id = ?1 AND attempts = ?2 AND state IN ('sending', 'in_doubt')
"""

TAKE_SILENT = """
SELECT message_id, channel, attempts FROM outbox INDEXED BY outbox_due
 WHERE state = 'sending' AND state IN ('waiting', 'sending') AND due_at <= ?1
 ORDER BY due_at LIMIT 100 FOR UPDATE SKIP LOCKED
"""

DOUBT = "UPDATE outbox SET state = 'in_doubt', error = ?2 WHERE message_id = ?1"

CHANNELS = """
SELECT channel, state, count(*), max(sent_at) FROM outbox GROUP BY channel, state
"""

LAST_ERROR = """
SELECT error FROM outbox
 WHERE channel = ?1 AND error IS NOT NULL ORDER BY message_id DESC LIMIT 1
"""

FORGET = "DELETE FROM outbox WHERE state <> 'sending' AND coalesce(sent_at, due_at) < ?1"


def to_send(tx: Transaction, channels: Collection[str]) -> OutboxWork:
    """Return the pending work. The contract is `Store.to_send`."""
    rows = tx.all(DUE, (tx.now,))
    return OutboxWork(
        has_marks=tx.one(HAS_MARKS) is not None,
        has_silent=any(state == "sending" for state, _ in rows),
        channels=frozenset(name for state, name in rows if state == "waiting").intersection(
            channels
        ),
    )


def collect(tx: Transaction, compose: Compose, *, limit: int) -> OutboxStep:
    """Write messages for marked events. The contract is `Store.collect_notices`."""
    rows = tx.all(TAKE_MARKS, (limit,))
    if not rows:
        return OutboxStep(0)
    recent = [(at, body) for _, at, body in rows if at >= tx.now - OLDEST]
    happened = [StoredEvent(at, event) for at, body in recent for event in decode_events(body)]
    composed = compose(happened)
    for channel, content, every in composed:
        _add(tx, channel, content, every)
    ids = [event_id for event_id, _, _ in rows]
    tx.run("UPDATE events SET to_notify = NULL WHERE event_id IN (?1[])", (ids,))
    return OutboxStep(len(rows), len(composed), len(rows) - len(recent), is_full=len(rows) == limit)


def _add(tx: Transaction, channel: str, content: MessageContent, every: int) -> None:
    """Write a message, or append it to the newest one if that was never attempted."""
    newest, due_at = tx.one(NEWEST, (channel,)), tx.now
    if newest is not None:
        message_id, state, attempts, body, sent_at = newest
        if state == "waiting" and not attempts:
            both = _BUNDLE.decode(body).joined(content)
            tx.run("UPDATE outbox SET body = ?2 WHERE message_id = ?1", (message_id, as_json(both)))
            return
        # At most `every` from now, in case the clock was moved backward since.
        due_at = min(max(tx.now, sent_at + every), tx.now + every)
    tx.run(ADD, (channel, as_json(content), tx.now, due_at))


def take(tx: Transaction, channel: str) -> OutgoingMessage | None:
    """Take a message to send. The contract is `Store.take_message`."""
    row = tx.one(TAKE, (tx.now, channel))
    if row is None:
        return None
    message_id, body, created_at, attempts = row
    if not tx.run(BEGIN, (message_id, tx.now + LONGEST_SENDING)):
        return None
    # A restored database reuses message ids, but not with the same creation time.
    store_id = tx.value("SELECT value FROM meta WHERE name = 'store_id'")
    key = sha256(f"{store_id}:{message_id}:{created_at}".encode()).hexdigest()
    return OutgoingMessage(message_id, channel, key, _BUNDLE.decode(body), created_at, attempts + 1)


def settle(tx: Transaction, letter: OutgoingMessage, settled: DeliveryResult) -> bool:
    """Record the result of a delivery. The contract is `Store.record_delivery`."""
    state, error = settled.state, settled.error[:LONGEST_ERROR]
    sent_at = tx.now if state == "sent" else None
    values = (state, tx.now + settled.wait, sent_at, error or None)
    if not tx.run(SETTLE, (letter.message_id, letter.attempt, *values)):
        return False
    about, count = (letter.channel, letter.message_id, letter.attempt), letter.bundle.count
    match state:
        case "sent":
            tx.emit(NoticeSent(*about, count, error))
        case "failed":
            tx.emit(NoticeFailed(*about, error))
        case "in_doubt":
            tx.emit(NoticeInDoubt(*about, error))
        case "waiting":
            pass
    return True


def doubt_silent(tx: Transaction) -> int:
    """Mark messages in doubt that are `sending` for too long. Contract: `Store.mark_in_doubt`."""
    error = "its node fell silent while it was being sent"
    rows = tx.all(TAKE_SILENT, (tx.now,))
    for message_id, channel, attempts in rows:
        tx.run(DOUBT, (message_id, error))
        tx.emit(NoticeInDoubt(channel, message_id, attempts, error))
    return len(rows)


def channels(tx: Transaction) -> list[ChannelRow]:
    """Return the channels and the states of their messages, by name."""
    counts: dict[str, dict[str, int]] = {}
    sent: dict[str, int] = {}
    for channel, state, count, sent_at in tx.all(CHANNELS):
        counts.setdefault(channel, {})[state] = count
        if sent_at is not None:
            sent[channel] = sent_at
    found = []
    for name in sorted(counts):
        last_error = tx.value(LAST_ERROR, (name,))
        found.append(ChannelRow(name, counts[name], sent.get(name), last_error))
    return found


def forget(tx: Transaction, before: int) -> None:
    """Delete messages that were finished before then, or were due then for a removed channel."""
    tx.run(FORGET, (before,))


_BUNDLE = msgspec.json.Decoder(MessageContent)
