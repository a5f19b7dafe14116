"""What a process has of bells."""

from collections.abc import Mapping
from pathlib import Path

from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Part
from onbeat.service.process import CheckUrl, Process
from onbeat_toys.bell.launcher import BellLauncher
from onbeat_toys.bell.settings import BellSettings


def make(process: Process) -> Part:
    """Return the launcher of the bell that the settings name."""
    tower = process.settings.of(BellSettings).tower
    return Part(launchers={"bell": BellLauncher(Path(tower) if tower else None)})


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"bell": BellLauncher(None)}
