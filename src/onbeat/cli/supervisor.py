"""What systemd is told of a node that it started: that it is up, alive, or on its way out."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def supervised() -> AsyncIterator[None]:
    """Say that this is up, and alive for as long as the event loop goes round; then that it stops.

    Without systemd, or where it does not want to know, nothing is said to anybody.
    """
    _tell("READY=1")
    beating = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beating.cancel()
        _tell("STOPPING=1")


async def _beat() -> None:
    limit = os.environ.get("WATCHDOG_USEC", "")
    while limit.isdigit() and int(limit):
        _tell("WATCHDOG=1")
        await asyncio.sleep(int(limit) / 2_000_000)


def _tell(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking, suppress(OSError):
        speaking.sendto(state.encode(), address.replace("@", "\0", 1))
