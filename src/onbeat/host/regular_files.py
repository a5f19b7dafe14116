"""Safe reading of files named by a definition or a setting: regular files up to a maximum size.

Reading a device never ends, and opening a pipe without a writer blocks. So a file is opened
without blocking, and its type is checked before it is read.
"""

import os
import stat
from errno import EFBIG, EINVAL, EISDIR
from pathlib import Path

LARGEST = 16 * 2**20  # bytes, by default


def read_regular(path: str | Path, *, most: int = LARGEST, flags: int = 0) -> bytes:
    """Return the content of a regular file of up to `most` bytes, or raise OSError.

    Symbolic links are followed, unless `flags` has O_NOFOLLOW.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | flags)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(EISDIR, os.strerror(EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(EINVAL, "this is not a regular file")
        with os.fdopen(file, "rb", closefd=False) as opened:
            found = opened.read(most + 1)
    finally:
        os.close(file)
    if len(found) > most:
        raise OSError(EFBIG, f"it is too large: {size_text(most)} at most")
    return found


def size_text(size: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
