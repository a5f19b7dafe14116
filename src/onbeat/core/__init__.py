"""The pure core: decisions as values. No clock, no I/O, no logging, no async, no randomness."""
