"""Texts from files a person names."""

from pathlib import Path

from onbeat.errors import InvalidSchedule, shown

LARGEST_FILE = 16 * 2**20


def read_text(path: Path) -> str:
    """Return what is in a file, or refuse it."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            hint = f"{LARGEST_FILE // 2**20} MiB at most"
            raise InvalidSchedule("", f"{path.name} is too large", hint=hint)
        return path.read_text(encoding="utf-8")
    except OSError as failed:
        problem = f"{path.name} cannot be read: {failed.strerror}"
        raise InvalidSchedule("", problem, hint="a file that this user may read") from None
    except UnicodeDecodeError:
        raise InvalidSchedule("", f"{path.name} is not in UTF-8", hint="save it in UTF-8") from None
    except ValueError:  # a NUL in the name
        raise InvalidSchedule("", f"{shown(path.name)} is no file name", hint="a path") from None
