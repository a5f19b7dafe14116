"""The migrations of the tables on PostgreSQL."""

from onbeat.stores.sql.migrations import read_migrations

MIGRATIONS = read_migrations(__name__)
