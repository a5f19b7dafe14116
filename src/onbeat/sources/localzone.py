"""The zone that a machine is in, as its owner has set it up."""

from pathlib import Path

from onbeat.core.zones import zone
from onbeat.errors import InvalidSchedule


def local_zone(variable: str | None, folder: Path) -> str:
    """Return the name of the zone of a machine, by `TZ` and the files of `/etc`; else UTC.

    As everywhere on such machines: TZ comes first, also if it is empty, which is UTC.
    """
    if variable is not None:
        return _known(variable.removeprefix(":")) or "UTC"
    told, linked = _first_line(folder / "timezone"), _linked(folder / "localtime")
    return _known(told) or _known(linked) or "UTC"


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
