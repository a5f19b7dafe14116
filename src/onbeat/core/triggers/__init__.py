"""Triggers: the kinds, the bounds around them, and how they are written and read."""
