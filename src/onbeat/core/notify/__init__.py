"""Notifications as values: channels, rules, messages."""
