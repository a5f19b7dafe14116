"""Texts from files a person names."""

from pathlib import Path

from onbeat.errors import InvalidSchedule, shown
from onbeat.files.regular import LARGEST, read_regular

LARGEST_FILE = LARGEST


def read_text(path: Path) -> str:
    """Return what is in a regular file, or refuse it."""
    if "\0" in str(path):
        raise InvalidSchedule("", f"{shown(path.name)} is not a file name", hint="a path")
    try:
        text = read_regular(path, most=LARGEST_FILE).decode("utf-8")
    except OSError as failed:
        problem = f"{path.name} cannot be read: {failed.strerror}"
        raise InvalidSchedule("", problem, hint="a file that this user may read") from None
    except UnicodeDecodeError:
        raise InvalidSchedule("", f"{path.name} is not in UTF-8", hint="save it in UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
