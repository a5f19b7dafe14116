"""The phases of runs, observed in every statement that writes a run: each change is an edge.

A trigger on the connection of a store reports each row that is inserted or updated. The columns of
the row must be those of its phase.
"""

from collections import Counter

from onbeat.core.runs.phase import FIRST, PHASES, Phase, edges

COLUMNS = ("run_id", "phase", "leased_by", "blocked_by", "finished_at", "end_asked_at")
NEW = ", ".join(f"NEW.{name}" for name in COLUMNS)
TRIGGER = "CREATE TEMP TRIGGER on_{event} AFTER {event} ON main.schedule_runs"
OBSERVE = {
    "INSERT": f"BEGIN SELECT observe_phase(NULL, {NEW}); END",
    "UPDATE": f"BEGIN SELECT observe_phase(OLD.phase, {NEW}); END",
}
EDGES = frozenset(edges())
# Edges that few lives take, or none.
SELDOM = frozenset(
    {
        # A definition that cannot be read ends a run when it is claimed: few runs are due then.
        (Phase.WAITING, Phase.FAILED), (Phase.SCHEDULED, Phase.FAILED),
        (Phase.BACKFILL, Phase.FAILED), (Phase.DETACHED, Phase.FAILED),
        (Phase.RECALLED, Phase.FAILED),
        # A run that is due later is claimed then, and has to be handed back at once, or to wait for
        # a run before it.
        (Phase.CLAIMED, Phase.SCHEDULED), (Phase.RUNNING, Phase.SCHEDULED),
        (Phase.QUEUED, Phase.SCHEDULED), (Phase.SCHEDULED, Phase.QUEUED),
        (Phase.RUNNING, Phase.BACKFILL), (Phase.RECALLING, Phase.RECALLED),
        (Phase.QUEUED, Phase.FAILED),
        # A target reports a run that it accepted between the request to end it and its end.
        (Phase.REVOKED, Phase.SUCCESS), (Phase.REVOKED, Phase.FAILED),
        # No call takes these: a run that was due when it was decided is not judged again, and a run
        # that a node has claimed to reattach it is freed before it can end.
        (Phase.WAITING, Phase.QUEUED), (Phase.REATTACHING, Phase.FAILED),
        (Phase.RECALLING, Phase.FAILED),
    }
)  # fmt: skip


class Phases:
    """What was observed of the phases of all runs."""

    def __init__(self):
        self.seen, self.wrong = Counter(), []

    def watch(self, connection):
        """Observe what is written through a connection."""
        connection.create_scalar_function("observe_phase", self._observe)
        for event, work in OBSERVE.items():
            connection.execute(f"{TRIGGER.format(event=event)} {work}")

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
