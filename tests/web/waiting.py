"""Waiting for asynchronous effects of a node."""

import time


def eventually(look, seconds=10.0):
    """Return the result of `look` as soon as it is true."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.02)
    return found
