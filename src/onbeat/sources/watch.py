"""A file that is looked at every second: what it says is taken up when it has changed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

A_MOMENT = partial(asyncio.sleep, 1.0)  # from look to look

Appearance = tuple[int, int, int, int] | None  # None: it is not there


def appearance(path: Path) -> Appearance:
    """Return what tells a file from how it was before, without reading it."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


class Watched:
    """A file, and how it looked when it was last taken up: to begin with, now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._taken_up = self._seen = appearance(path)

    def look(self) -> bool:
        """Return whether it has changed, and has come to rest: who is still writing is waited for.

        If so it counts as taken up.
        """
        before, self._seen = self._seen, appearance(self.path)
        is_new = self._seen == before and self._seen != self._taken_up
        if is_new:
            self._taken_up = self._seen
        return is_new

    def put_back(self) -> None:
        """Have it count as changed: it could not be taken up."""
        self._taken_up = (0, 0, 0, 0)


async def watch(
    watched: Watched,
    take_up: Callable[[], Awaitable[bool]],
    *,
    pause: Callable[[], Awaitable[None]] = A_MOMENT,
) -> None:
    """Call `take_up` whenever a file has changed, and once more if it returns that it could not."""
    while True:
        await pause()
        # In a thread, as a file on another machine may let one wait.
        if await asyncio.to_thread(watched.look) and not await take_up():
            watched.put_back()
