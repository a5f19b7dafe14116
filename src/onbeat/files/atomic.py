"""Files that are replaced whole: after whatever crash, one has the old content or the new."""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

OF_ITS_OWNER = 0o600


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int | None = None,
    may_replace: Callable[[], bool] = lambda: True,
) -> bool:
    """Replace a file, or make it; a crash at any moment leaves the old content or the new.

    One that is there keeps its mode, else it has `mode`, or is for its owner only. A link stays
    one: what it leads to is replaced. What fails leaves nothing behind; a crash may leave a file
    beside it whose name begins with a dot. `may_replace` is asked last, when the new content is on
    the disk; return whether it agreed.
    """
    path = Path(os.path.realpath(path))
    mode = _mode_of(path) or mode or OF_ITS_OWNER
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:50]}.", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else the new name could be of a file without content
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
    """Make the names in a folder durable: a loss of power could take a change of them back."""
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
