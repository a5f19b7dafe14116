"""Diagnostics of an installation."""
