"""What `why` is given: a schedule, an instant, the run that stands for it, and what is around it.

Instants are milliseconds, but for those of ticks (`run_at`, `at`), which are seconds.
"""

from collections.abc import Sequence

import msgspec

from onbeat.core.runs.decisions import Due
from onbeat.core.runs.run import PastAttempt, Reason, ReasonDetail, Status
from onbeat.core.schedule import Schedule
from onbeat.core.triggers.past import NO_PAST, Past


class RunFacts(msgspec.Struct, frozen=True):
    """A run: the columns of its row that `why` speaks of."""

    run_id: int
    run_at: int
    status: Status
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
    revision: int = 0  # of the schedule: the one that it starts by
    stuck_at: int | None = None
    deferrals: int = 0  # attempts that do not count: the target was busy, or it was handed back
    needs: str = ""
    detail: ReasonDetail = ReasonDetail()
    tried: Sequence[PastAttempt] = ()  # the attempts that were followed by another, or were to be


class NodeFacts(msgspec.Struct, frozen=True):
    """A node that is alive."""

    name: str
    offers: frozenset[str]
    node_id: str = ""


class UpFacts(msgspec.Struct, frozen=True):
    """A stretch of time in which a node was up; of one that fell silent, until its lease ended."""

    name: str
    started_at: int
    ended_at: int | None = None  # None: it still is
    plans: bool = True  # it has the role `plan`


class GroupFacts(msgspec.Struct, frozen=True):
    """A group, and the runs that have its places."""

    name: str
    places: int
    used_by: Sequence[RunFacts] = ()


class DefinitionSpan(msgspec.Struct, frozen=True):
    """What a schedule said for some time: it has the ticks of `after < t <= until`, in seconds."""

    schedule: Schedule | None  # None: it was not there, or cannot be read
    after: int
    until: int | None = None  # None: it still says so
    is_unreadable: bool = False  # there was a definition, which cannot be read any more


class Facts(msgspec.Struct, frozen=True):
    """What is known of a schedule and an instant."""

    schedule_id: str
    at: int  # seconds
    now: int
    schedule: Schedule | None  # as it was then; None: it was not there, or cannot be read
    created_at: int = 0
    decided_until: int = 0  # seconds
    due: Due | None = None
    is_paused: bool = False
    pause_note: str = ""
    paused_until: int | None = None
    gate_closed_at: int | None = None
    history_from: int = 0
    past: Past = NO_PAST
    run: RunFacts | None = None  # that stands for this instant
    blocker: RunFacts | None = None
    is_first_behind: bool = True  # of those that the blocker kept from starting
    group: GroupFacts | None = None
    nodes: Sequence[NodeFacts] = ()
    spells: Sequence[DefinitionSpan] = ()  # all that it ever said, as far as that is kept, in order
    up: Sequence[UpFacts] = ()  # around a tick that was missed, by when each started
    paused_at: int | None = None
    paused_by: str = ""
    revision: int = 0  # of the schedule now
    row_before: int | None = None  # the ticks with a row around it, of one that follows events
    row_after: int | None = None
    was_moved: bool = False  # the run has a later revision than it was decided under
