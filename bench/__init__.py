"""Benchmarks: each compares with peers in the same run, and passes or fails by ratios."""
