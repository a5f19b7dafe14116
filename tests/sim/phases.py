"""The phases of runs, observed in every statement that writes a run: each change is an edge.

A trigger on the connection of a store reports each row that is inserted or updated. The columns of
the row must be those of its phase.
"""

from collections import Counter

from onbeat.core.runs.phase import FIRST, PHASES, Phase, edges

COLUMNS = ("run_id", "phase", "leased_by", "blocked_by", "finished_at", "end_asked_at")
NEW = ", ".join(f"NEW.{name}" for name in COLUMNS)
TRIGGERS = [
    f"CREATE TEMP TRIGGER new_phases AFTER INSERT ON main.schedule_runs "
    f"BEGIN SELECT observe_phase(NULL, {NEW}); END",
    f"CREATE TEMP TRIGGER changed_phases AFTER UPDATE ON main.schedule_runs "
    f"BEGIN SELECT observe_phase(OLD.phase, {NEW}); END",
]
EDGES = frozenset(edges())


class Phases:
    """What was observed of the phases of all runs."""

    def __init__(self):
        self.seen, self.wrong = Counter(), []

    def watch(self, connection):
        """Observe what is written through a connection."""
        connection.create_scalar_function("observe_phase", self._observe)
        for trigger in TRIGGERS:
            connection.execute(trigger)

    def _observe(self, before, run_id, phase, *columns):
        told = f"run {run_id}: {before} to {phase} {columns}"
        if before != phase:
            self.seen[f"phase {phase}"] += 1
            self.seen[f"edge {before} to {phase}"] += before is not None
            allowed = phase in FIRST if before is None else (before, phase) in EDGES
            if not allowed:
                self.wrong.append(("every change of phase is an edge", told))
        if not _fits(PHASES[Phase(phase)], *columns):
            self.wrong.append(("each row has the columns of its phase", told))


def _fits(facts, leased_by, blocked_by, finished_at, end_asked_at):
    """Whether a row has the columns of its phase. A run that is over may keep what it had."""
    if facts.is_over:
        return leased_by is None and finished_at is not None
    columns = (leased_by, blocked_by, finished_at, end_asked_at)
    wanted = (facts.is_leased, facts.is_queued, False, facts.is_to_end)
    return tuple(column is not None for column in columns) == wanted
