"""The adapters that keep everything durable: one a database."""
