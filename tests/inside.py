"""What tests reach of the inside of Onbeat: each private attribute is named here and nowhere else.

Prefer what is public: `Onbeat.activity` states what the engine is doing, `Onbeat.service` has the
reads. These are for tests that break something, or that look where no user can.
"""


def engine_of(beat):
    return beat._running.engine


def store_of(beat):
    return beat._running.store


def launcher_of(beat, kind):
    return beat._running.parts.launchers[kind]


async def in_transaction(store, call):
    """Return what a function of a transaction returns, on the connection that writes."""
    return await (store._worker if hasattr(store, "_worker") else store._threads).write(call)


def listeners_of(front):
    """Return how many streams an API serves."""
    return front._live._open
