"""Benchmarks: each compares with peers in the same run, and decides by ratios."""
