"""What a process has of HTTP requests."""

from collections.abc import Mapping

from onbeat.launchers.http.launcher import HttpLauncher
from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Part
from onbeat.service.process import CheckUrl, Process


def make(process: Process) -> Part:
    """Return the launcher that sends all requests of the process."""
    return Part(launchers={"http": process.requests})


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"http": HttpLauncher(version="", environment={})}
