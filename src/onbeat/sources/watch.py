"""Watch a file by polling it every second."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

ONE_SECOND = partial(asyncio.sleep, 1.0)  # between two polls

Signature = tuple[int, int, int, int] | None  # None: the file does not exist


def signature(path: Path) -> Signature:
    """Return values that differ after a file was changed or replaced, without reading it."""
    try:
        stat = path.stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size


class WatchedFile:
    """A file, and its signature when it was last applied; at first, that of now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._applied = self._latest = signature(path)

    def look(self) -> bool:
        """Return whether the file changed since it was applied; if so, it counts as applied.

        A file that changed since the last look may still be written: wait for the next look.
        """
        before, self._latest = self._latest, signature(self.path)
        has_changed = self._latest == before and self._latest != self._applied
        if has_changed:
            self._applied = self._latest
        return has_changed

    def put_back(self) -> None:
        """Count the file as changed: it could not be applied."""
        self._applied = (0, 0, 0, 0)


async def watch(
    watched: WatchedFile,
    apply: Callable[[], Awaitable[bool]],
    *,
    pause: Callable[[], Awaitable[None]] = ONE_SECOND,
) -> None:
    """Call `apply` whenever a file has changed, and again while it returns False."""
    while True:
        await pause()
        # In a thread: a network file system may block.
        if await asyncio.to_thread(watched.look) and not await apply():
            watched.put_back()
