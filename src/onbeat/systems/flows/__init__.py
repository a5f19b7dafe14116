"""Flows of a Kodosumi panel, scheduled by a `schedule:` block in their metadata."""
