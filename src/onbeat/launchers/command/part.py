"""What a process has of commands."""

from collections.abc import Mapping
from pathlib import Path

from onbeat.launchers.command.launcher import PASSED, ProcessLauncher
from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Part
from onbeat.service.process import CheckUrl, Process


def make(process: Process) -> Part:
    """Return the launcher of commands."""
    settings = process.settings
    launcher = ProcessLauncher(
        process.output,
        store_id=process.file_id,
        environment=process.environment,
        passed=(*PASSED, *settings.pass_env),
        secrets=settings.secrets,
    )
    return Part(launchers={"command": launcher})


def checkers(_check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"command": ProcessLauncher(Path(), environment={})}
