"""The use cases behind the command line, the HTTP API and the Python API.

Those translate requests and identify the caller. What a request means, and whether the caller may
make it, is decided here. The use cases are in one module per topic:

    queries     read schedules, runs, events; explain
    schedules   define, apply, pause, resume, delete
    runs        start, cancel, report, backfill
    control     groups, gate, nodes, documents of systems
    tokens      tokens, links, sessions
"""

from onbeat.service.access import Caller
from onbeat.service.control import ControlCommands
from onbeat.service.runs import RunCommands
from onbeat.service.schedules import ScheduleCommands


class Service(ScheduleCommands, RunCommands, ControlCommands):
    """All use cases on one store, for one caller."""

    def of(self, caller: Caller) -> "Service":
        """Return the same use cases with the rights of this caller."""
        return Service(
            self._all,
            self._launchers,
            new_id=self._new_id,
            wake=self._wake,
            caller=caller,
            tokens=self.tokens,
        )
