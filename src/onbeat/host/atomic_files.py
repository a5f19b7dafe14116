"""Atomic replacement of files: after a crash, a file has the old content or the new."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o600


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    may_replace: Callable[[], bool] = lambda: True,
) -> bool:
    """Replace or create a file; a crash at any moment leaves the old content or the new.

    An existing file keeps its mode; a new one has `mode`, by default 0600. A symbolic link is
    kept, and its target replaced. An error leaves nothing behind; a crash may leave a file next to
    it whose name begins with a dot. `may_replace` is called last, when the new content is on disk;
    if it returns False, nothing is replaced. Return whether the file was replaced.
    """
    path = Path(os.path.realpath(path))
    mode = _mode_of(path) or mode or OWNER_ONLY
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:50]}.", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # otherwise a crash could leave an empty file
        if not may_replace():
            new.unlink()
            return False
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    sync_folder(path.parent)
    return True


def sync_folder(path: Path) -> None:
    """Sync a folder, so that renames in it survive a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return None
