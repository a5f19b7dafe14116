-- asked_by: the caller of the transaction, if a person or a program requested it. to_notify: the row
-- may contain events for notification channels.
ALTER TABLE events ADD COLUMN asked_by text;
ALTER TABLE events ADD COLUMN to_notify bigint;
CREATE INDEX events_asked_for ON events (event_id) WHERE asked_by IS NOT NULL;
CREATE INDEX events_to_notify ON events (event_id) WHERE to_notify IS NOT NULL;

-- The definition by the schedule's source: it may have been edited by other means since.
ALTER TABLE schedules ADD COLUMN base text;
CREATE INDEX schedules_of_user ON schedules (user_id) WHERE user_id <> '';
CREATE INDEX failing_schedules ON schedule_state (schedule_id) WHERE consecutive_failures > 0;

-- For queries of failed runs, which are mostly few.
CREATE INDEX failed_runs ON schedule_runs (run_id) WHERE status = 'FAILED';

-- The address of a node's API, if it serves one.
ALTER TABLE nodes ADD COLUMN address text NOT NULL DEFAULT '';

-- Credentials. kind: token, link (used once) or session. Only the digest of a secret is stored.
CREATE TABLE tokens (
    token_id text COLLATE "C" PRIMARY KEY,
    kind text NOT NULL,
    name text NOT NULL,
    digest text NOT NULL UNIQUE,
    scope text NOT NULL,
    owner text NOT NULL DEFAULT '',
    created_at bigint NOT NULL,
    created_by text NOT NULL DEFAULT '',
    expires_at bigint,
    used_at bigint
);

-- The outbox. state: waiting, sending, sent, failed or in_doubt.
CREATE TABLE outbox (
    message_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel text NOT NULL,
    body text NOT NULL,
    state text NOT NULL DEFAULT 'waiting',
    attempts bigint NOT NULL DEFAULT 0,
    created_at bigint NOT NULL,
    due_at bigint NOT NULL,
    sent_at bigint,
    error text
);
CREATE INDEX outbox_due ON outbox (due_at) WHERE state IN ('waiting', 'sending');
