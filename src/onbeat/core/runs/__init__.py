"""Runs and the decisions about them, as values."""
