"""Decisions about ticks, outcomes, edits and backfills: pure functions."""
