"""Definitions from elsewhere: files a person edits, calendars others publish."""
