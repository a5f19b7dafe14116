"""The rows that a transaction locks and returns together: due ticks, runs that may be claimed."""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from onbeat.core.decide.follow import decode_happened
from onbeat.core.runs.phase import DETACHED, Phase
from onbeat.core.runs.run import Reason, Run, TriggeredBy
from onbeat.core.triggers.past import Past


class State(msgspec.Struct, frozen=True, gc=False):
    """A schedule's position, and the part of its past that decisions depend on."""

    decided_until: int
    decided_run_at: int
    iteration: int
    runs_used: int
    created_at: int  # milliseconds
    revision: int
    user_id: str = ""
    spread_until: int = 0  # milliseconds
    rated: str | None = None  # JSON: when runs were decided that count against a rate
    happened: str | None = None  # JSON: the events that caused ticks follow

    @property
    def past(self) -> Past:
        found = Past(
            self.created_at // 1000, runs_used=self.runs_used, spread_until=self.spread_until
        )
        if self.rated is not None:
            found = replace(found, rated=tuple(msgspec.json.decode(self.rated, type=list[int])))
        if self.happened is not None:
            found = replace(found, happened=decode_happened(self.happened))
        return found


class DueRow(msgspec.Struct, frozen=True, gc=False):
    """A tick that is due, with the definition and the position of its schedule."""

    schedule_id: str
    run_at: int
    definition: str
    state: State
    paused: int


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
