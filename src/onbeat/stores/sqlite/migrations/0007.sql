-- For the repeated query of documents of a kind that changed since an instant.
CREATE INDEX documents_by_time ON documents (kind, updated_at);
