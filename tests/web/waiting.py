"""Waiting for what a node does in its own time."""

import time


def eventually(look, seconds=10.0):
    """Return what `look` finds as soon as it finds something."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.02)
    return found
