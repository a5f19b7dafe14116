"""Read text files that a user names."""

from pathlib import Path

from onbeat.errors import InvalidSchedule, quote_value
from onbeat.host.regular_files import LARGEST, read_regular

LARGEST_FILE = LARGEST


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8, or refuse it."""
    if "\0" in str(path):
        raise InvalidSchedule("", f"{quote_value(path.name)} is not a file name", hint="a path")
    try:
        text = read_regular(path, most=LARGEST_FILE).decode("utf-8")
    except OSError as error:
        problem = f"{path.name} cannot be read: {error.strerror}"
        raise InvalidSchedule("", problem, hint="a file that this user may read") from None
    except UnicodeDecodeError:
        raise InvalidSchedule("", f"{path.name} is not in UTF-8", hint="save it in UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
