"""Rows that decisions start from: due ticks, unfinished runs, and runs that may be claimed."""

from collections.abc import Sequence
from typing import Any, Self

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


class StoredRun(msgspec.Struct, frozen=True, gc=False):
    """A run as stored, as far as decisions about it depend on its columns."""

    schedule_id: str
    run_id: int
    run_at: int
    phase: str
    due_at: int
    created_at: int
    request_id: str
    attempt: int
    blocked_by: int | None
    deferrals: int
    deadline_at: int | None
    reason: Reason | None  # of the previous attempt, or of the requested cancellation
    triggered_by: TriggeredBy
    reattachable: int
    revision: int
    started_at: int | None
    fence: int

    @property
    def run(self) -> Run:
        """The run that decisions are about."""
        phase = Phase(self.phase)
        ending = (self.reason or "canceled") if phase.facts.is_to_end else None
        return Run(
            self.run_id, self.run_at, phase, self.due_at, self.created_at, self.request_id,
            self.attempt, self.blocked_by, self.deferrals, self.deadline_at,
            ending, is_backfill=self.triggered_by == "backfill",
            reattachable=bool(self.reattachable), revision=self.revision,
            was_busy=self.reason == "busy",
        )  # fmt: skip

    @property
    def ids(self) -> tuple[str, int, int]:
        """The schedule, the run and its tick, as events have them."""
        return self.schedule_id, self.run_id, self.run_at


RUN_COLUMNS = ", ".join(StoredRun.__struct_fields__)


class WaitingRow(msgspec.Struct, frozen=True, gc=False):
    """A run that may be claimed, with what its launch and the definition of its revision need."""

    stored: StoredRun
    iteration: int
    tick_count: int
    first_run_at: int | None
    inputs: str | None
    grp: str | None
    rendered: str | None
    needs: str
    definition: str | None  # of the run's revision; None: no longer stored
    current: str | None  # the current definition, if it differs
    user_id: str

    @classmethod
    def of_columns(cls, row: Sequence[Any]) -> Self:
        """Return the row of these columns, of which those of its run are the first."""
        of_run = len(StoredRun.__struct_fields__)
        return cls(StoredRun(*row[:of_run]), *row[of_run:])

    @property
    def ignores_pause(self) -> bool:
        """Whether it starts while its schedule is paused: the same as IGNORES_PAUSE in rows.py."""
        run = self.stored
        is_requested = bool(run.request_id) or run.triggered_by == "backfill"
        return is_requested or run.phase in DETACHED


# Of `schedule_runs r`: the columns of a WaitingRow before its definitions and its user.
WAITING_COLUMNS = ", ".join(
    f"r.{name}"
    for name in (*StoredRun.__struct_fields__, *WaitingRow.__struct_fields__)
    if name not in {"stored", "definition", "current", "user_id"}
)
