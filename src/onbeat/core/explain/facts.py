"""The facts behind `why`: a schedule, an instant, its run, and the circumstances.

Instants are in milliseconds, except those of ticks (`run_at`, `at`), which are in seconds.
"""

from collections.abc import Sequence

import msgspec

from onbeat.core.runs.decisions import Due
from onbeat.core.runs.phase import Phase, Status
from onbeat.core.runs.run import PastAttempt, Reason, ReasonDetail
from onbeat.core.schedule import Schedule
from onbeat.core.triggers.past import NO_PAST, Past


class RunFacts(msgspec.Struct, frozen=True):
    """A run: the columns of its row that `why` needs."""

    run_id: int
    run_at: int
    phase: Phase
    due_at: int
    attempt: int = 0
    reason: Reason | None = None
    triggered_by: str = "timer"
    request_id: str = ""
    first_run_at: int | None = None
    tick_count: int = 1
    blocked_by: int | None = None
    leased_by: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    exit_code: int | None = None
    error: str | None = None
    deadline_at: int | None = None
    end_asked_at: int | None = None
    external_id: str | None = None
    schedule_id: str = ""
    created_at: int = 0
    revision: int = 0  # the revision of the schedule by which it starts
    stuck_at: int | None = None
    deferrals: int = 0  # attempts that do not count: the target was busy, or it was handed back
    needs: str = ""
    detail: ReasonDetail = ReasonDetail()
    tried: Sequence[PastAttempt] = ()  # earlier attempts, each followed by another or due to be

    @property
    def status(self) -> Status:
        """The status, derived from the phase."""
        return self.phase.facts.status


class NodeFacts(msgspec.Struct, frozen=True):
    """A node that is alive."""

    name: str
    offers: frozenset[str]
    node_id: str = ""


class UpFacts(msgspec.Struct, frozen=True):
    """A period in which a node was up; of a lost node, until its lease expired."""

    name: str
    started_at: int
    ended_at: int | None = None  # None: it still is up
    plans: bool = True  # it has the role `plan`


class GroupFacts(msgspec.Struct, frozen=True):
    """A group, and the runs that use its places."""

    name: str
    places: int
    used_by: Sequence[RunFacts] = ()


class DefinitionSpan(msgspec.Struct, frozen=True):
    """A definition of a schedule, valid for the ticks of `after < t <= until`, in seconds."""

    schedule: Schedule | None  # None: it did not exist, or cannot be read
    after: int
    until: int | None = None  # None: it is the current definition
    is_unreadable: bool = False  # the stored definition cannot be read


class Facts(msgspec.Struct, frozen=True):
    """The facts about a schedule and an instant."""

    schedule_id: str
    at: int  # seconds
    now: int
    schedule: (
        Schedule | None
    )  # the definition at the time; None: it did not exist, or cannot be read
    created_at: int = 0
    decided_until: int = 0  # seconds
    due: Due | None = None
    is_paused: bool = False
    pause_note: str = ""
    paused_until: int | None = None
    gate_closed_at: int | None = None
    history_from: int = 0
    past: Past = NO_PAST
    run: RunFacts | None = None  # the run of this instant, or of a range that contains it
    blocker: RunFacts | None = None
    is_first_blocked: bool = (
        True  # whether it is the first tick that the blocker kept from starting
    )
    group: GroupFacts | None = None
    nodes: Sequence[NodeFacts] = ()
    definition_spans: Sequence[
        DefinitionSpan
    ] = ()  # all definitions that are still stored, in order
    up: Sequence[UpFacts] = ()  # around a missed tick, ordered by start
    paused_at: int | None = None
    paused_by: str = ""
    revision: int = 0  # the current revision of the schedule
    row_before: int | None = None  # the nearest ticks with a row, for triggers that follow events
    row_after: int | None = None
    was_moved: bool = False  # the run was moved to a later revision
