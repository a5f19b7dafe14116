"""The zone that a machine is in, as its owner has set it up."""

import logging
from functools import cache
from pathlib import Path

from onbeat.core.time.zones import zone
from onbeat.errors import InvalidSchedule, shown

log = logging.getLogger("onbeat.sources")


def local_zone(variable: str | None, folder: Path) -> str:
    """Return the name of the zone of a machine, by `TZ` and the files of `/etc`; else UTC.

    As everywhere on such machines: TZ comes first, also if it is empty, which is UTC. One with
    rules of its own (`CET-1CEST`) names no zone: that is told once, and is UTC.
    """
    if variable is not None:
        found = _known(variable.removeprefix(":"))
        if variable and not found:
            _tell(variable)
        return found or "UTC"
    told, linked = _first_line(folder / "timezone"), _linked(folder / "localtime")
    return _known(told) or _known(linked) or "UTC"


@cache
def _tell(variable: str) -> None:
    """Tell of a variable that names no zone, once in a process."""
    told = "TZ: %s names no zone: it is UTC here (a name such as Europe/Berlin, or `timezone`)"
    log.warning(told, shown(variable))


def _known(name: str) -> str:
    """Return the name of a zone, also if it is the path of one; nothing if it is none."""
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


def _linked(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
