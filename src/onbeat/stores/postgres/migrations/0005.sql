-- What was kept since a moment is asked for again and again, by whoever follows a kind.
CREATE INDEX documents_by_time ON documents (kind, updated_at);
