"""What a process has of agents: the launcher of a Flock server, and offers of artifacts."""

from collections.abc import Mapping

from onbeat.ports.launcher import Launcher
from onbeat.ports.system import Part
from onbeat.service.process import CheckUrl, Process
from onbeat.systems.agents.flock import FlockLauncher
from onbeat.systems.agents.offers import Offers


def make(process: Process) -> Part:
    """Return the launcher, and the offers of artifacts to programs on this database."""
    launcher = FlockLauncher(
        check_url=process.requests.check,
        ask=process.requests.ask,
        public_only=process.settings.public_only,
    )
    return Part(launchers={"flock": launcher}, surface=Offers(process.service))


def checkers(check_url: CheckUrl) -> Mapping[str, Launcher]:
    """Return a launcher that only checks targets."""
    return {"flock": FlockLauncher(check_url=check_url)}
