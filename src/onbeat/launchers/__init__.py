"""The adapters that start targets: one file a kind."""
