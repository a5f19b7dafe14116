"""Readers of definition files and of calendars."""
