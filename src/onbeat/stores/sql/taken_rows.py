"""The rows that a transaction locks and returns together: runs that may be claimed."""

from typing import NamedTuple

from onbeat.core.runs.phase import DETACHED, Phase
from onbeat.core.runs.run import Reason, Run, TriggeredBy


class WaitingRow(NamedTuple):
    """A run that may be claimed, with the definition that it was decided by."""

    run_id: int
    schedule_id: str
    run_at: int
    phase: str
    due_at: int
    attempt: int
    fence: int
    request_id: str
    triggered_by: TriggeredBy
    iteration: int
    tick_count: int
    first_run_at: int | None
    inputs: str | None
    created_at: int
    deferrals: int
    deadline_at: int | None
    grp: str | None
    rendered: str | None
    reason: Reason | None  # why the previous attempt ended, or why it is canceled
    definition: str | None  # of the run's revision; None: no longer stored
    revision: int  # of the run
    current: str | None  # the current definition, if it differs
    user_id: str

    @property
    def run(self) -> Run:
        """The run as far as its start depends on it."""
        return Run(
            self.run_id, self.run_at, Phase(self.phase), self.due_at, self.created_at,
            self.request_id, self.attempt, deferrals=self.deferrals, deadline_at=self.deadline_at,
            is_backfill=self.triggered_by == "backfill", revision=self.revision,
            was_busy=self.reason == "busy",
        )  # fmt: skip

    @property
    def ignores_pause(self) -> bool:
        """Whether it starts while its schedule is paused: the same as IGNORES_PAUSE in rows.py."""
        is_requested = bool(self.request_id) or self.triggered_by == "backfill"
        return is_requested or self.phase in DETACHED
