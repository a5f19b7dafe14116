"""What the terminal can show: its width, its colours, and the time zone of its user."""

import os
import shutil
import sys
from typing import TextIO

from onbeat.core.time.zones import Zone, zone
from onbeat.host.local_zone import zone_of_machine


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return whether a stream is a terminal; without one, stdout."""
    return (sys.stdout if stream is None else stream).isatty()


def has_colours(stream: TextIO | None = None) -> bool:
    """Return whether a stream shows colours: a terminal, unless NO_COLOR is set or it is dumb."""
    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not is_plain


def table_width() -> int | None:
    """Return the columns of the terminal that stdout is; None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if is_terminal() else None


def table_zone() -> Zone | None:
    """Return the local zone if stdout is a terminal; None, which is UTC, if it is not."""
    return zone(zone_of_machine()) if is_terminal() else None
