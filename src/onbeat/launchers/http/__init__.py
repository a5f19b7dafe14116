"""The launcher of HTTP requests."""
