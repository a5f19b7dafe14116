"""What to do with ticks, outcomes, edits and backfills: pure functions."""
