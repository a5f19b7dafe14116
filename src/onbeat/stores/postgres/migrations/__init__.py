"""The tables on PostgreSQL, step by step."""

from onbeat.stores.sql.migrations import read_migrations

MIGRATIONS = read_migrations(__name__)
