"""Adapters that deliver messages, one module for each protocol."""
