-- asked_by: who had a transaction made, if a person or a program did. to_notify: somebody may want to
-- hear of what is told here.
ALTER TABLE events ADD COLUMN asked_by text;
ALTER TABLE events ADD COLUMN to_notify bigint;
CREATE INDEX events_asked_for ON events (event_id) WHERE asked_by IS NOT NULL;
CREATE INDEX events_to_notify ON events (event_id) WHERE to_notify IS NOT NULL;

-- What the source of a schedule said when it last defined it: others may have edited it since.
ALTER TABLE schedules ADD COLUMN base text;
CREATE INDEX schedules_of_user ON schedules (user_id) WHERE user_id <> '';
CREATE INDEX failing_schedules ON schedule_state (schedule_id) WHERE consecutive_failures > 0;

-- What failed is asked for, and mostly little of what there is.
CREATE INDEX failed_runs ON schedule_runs (run_id) WHERE status = 'FAILED';

-- Where the API of a node is, if it has one.
ALTER TABLE nodes ADD COLUMN address text NOT NULL DEFAULT '';

-- Who may come in. kind: token, link (to be used once) or session. Of a secret only its digest is kept.
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

-- Messages on their way out. state: waiting, sending, sent, failed or in_doubt.
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
