"""Notifications to systemd: the node is ready, alive, or stopping."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def supervised() -> AsyncIterator[None]:
    """Notify systemd that this is ready, then alive while the event loop runs, then stopping.

    Without systemd, or if the unit has no notifications, this does nothing.
    """
    _notify("READY=1")
    heartbeat = asyncio.create_task(_beat())
    try:
        yield
    finally:
        heartbeat.cancel()
        _notify("STOPPING=1")


async def _beat() -> None:
    limit = os.environ.get("WATCHDOG_USEC", "")
    while limit.isdigit() and int(limit):
        _notify("WATCHDOG=1")
        await asyncio.sleep(int(limit) / 2_000_000)


def _notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
        channel.sendto(state.encode(), address.replace("@", "\0", 1))
