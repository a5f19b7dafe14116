"""Find the time zone that a machine is configured for."""

import logging
import os
from functools import cache
from pathlib import Path

from onbeat.core.time.zones import zone
from onbeat.errors import InvalidSchedule, quote_value

log = logging.getLogger("onbeat.host")


def zone_of_machine() -> str:
    """Return the name of this machine's time zone."""
    return local_zone(os.environ.get("TZ"), Path("/etc"))


def local_zone(variable: str | None, folder: Path) -> str:
    """Return the name of the zone set by `TZ`, or else by the files in `folder` (`/etc`).

    UTC where neither names a zone. As in POSIX, an empty `TZ` is UTC. A `TZ` with rules
    (`CET-1CEST`) is not the name of a zone: it is UTC, with one warning.
    """
    if variable is not None:
        name = _zone_name(variable.removeprefix(":"))
        if variable and not name:
            _warn(variable)
        return name or "UTC"
    from_file, from_link = _first_line(folder / "timezone"), _link_target(folder / "localtime")
    return _zone_name(from_file) or _zone_name(from_link) or "UTC"


@cache  # once in a process
def _warn(variable: str) -> None:
    text = "TZ: %s is not the name of a zone, using UTC (set a name such as Europe/Berlin)"
    log.warning(text, quote_value(variable))


def _zone_name(name: str) -> str:
    """Return the canonical name of a zone, also from the path of its file; empty if unknown."""
    name = name.rpartition("zoneinfo/")[2]
    try:
        return zone(name).name
    except InvalidSchedule:
        return ""


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.readline(200).strip()
    except (OSError, ValueError):
        return ""


def _link_target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
