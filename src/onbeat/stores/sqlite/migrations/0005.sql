-- asked_by: the caller of the transaction, if a person or a program requested it. to_notify: the row
-- may contain events for notification channels.
ALTER TABLE events ADD COLUMN asked_by TEXT;
ALTER TABLE events ADD COLUMN to_notify INTEGER;
CREATE INDEX events_asked_for ON events (event_id) WHERE asked_by IS NOT NULL;
CREATE INDEX events_to_notify ON events (event_id) WHERE to_notify IS NOT NULL;

-- The definition by the schedule's source: it may have been edited by other means since.
ALTER TABLE schedules ADD COLUMN base TEXT;
CREATE INDEX schedules_of_user ON schedules (user_id) WHERE user_id <> '';
CREATE INDEX failing_schedules ON schedule_state (schedule_id) WHERE consecutive_failures > 0;

-- For queries of failed runs, which are mostly few.
CREATE INDEX failed_runs ON schedule_runs (run_id) WHERE status = 'FAILED';

-- The address of a node's API, if it serves one.
ALTER TABLE nodes ADD COLUMN address TEXT NOT NULL DEFAULT '';

-- Credentials. kind: token, link (used once) or session. Only the digest of a secret is stored.
CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL DEFAULT '',
    expires_at INTEGER,
    used_at INTEGER
) STRICT, WITHOUT ROWID;

-- The outbox. state: waiting, sending, sent, failed or in_doubt.
CREATE TABLE outbox (
    message_id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    attempts INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    sent_at INTEGER,
    error TEXT
) STRICT;
CREATE INDEX outbox_due ON outbox (due_at) WHERE state IN ('waiting', 'sending');
