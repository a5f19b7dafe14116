"""What a process has of Python functions."""

from collections.abc import Mapping

from onbeat.launchers.python.launcher import FunctionLauncher
from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Part
from onbeat.service.process import CheckUrl, Process


def make(process: Process) -> Part:
    """Return the launcher of the functions that the program has registered."""
    return Part(launchers={"python": process.functions})


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"python": FunctionLauncher()}
