-- Documents of the systems: DAGs of workflows, sessions, switches. body is JSON.
CREATE TABLE documents (
    kind text NOT NULL,
    name text NOT NULL,
    body text NOT NULL,
    user_id text NOT NULL DEFAULT '',
    updated_at bigint NOT NULL,
    PRIMARY KEY (kind, name)
);
