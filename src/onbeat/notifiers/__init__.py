"""Adapters that deliver messages, one module a way; none knows another."""
