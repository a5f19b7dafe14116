"""Events: the log line, the audit row and the live page all render the same value.

An event is written in the transaction of the change that it records.
"""

from typing import ClassVar

import msgspec

LATE = 1_000  # milliseconds after its due time from which the start of a run is reported as late
MOST_OVERLAPS = 5  # ticks in a row that may be skipped by overlap; further ones count as missed
# Reasons for which a tick did not run although it should have: no setting asked for the skip.
MISSED_REASONS = frozenset({"missed", "edited", "deadline", "group_full", "queue_full", "busy"})


class Event(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="name", gc=False, kw_only=True
):
    """Something that happened. `level` is its log level."""

    level: ClassVar[str] = "info"
    by: str = ""  # the caller who requested it; empty: the engine

    @property
    def is_notable(self) -> bool:
        """Whether a notification rule may match it."""
        return False

    @property
    def name(self) -> str:
        """The event's name, such as `run.started`."""
        return str(self.__struct_config__.tag)


class ScheduleCreated(Event, frozen=True, tag="schedule.created"):
    """A schedule was defined that did not exist, or that had been deleted."""

    schedule_id: str
    revision: int
    definition: str
    run_at: int | None = None  # its first tick
    user_id: str = ""
    since: int | None = None  # seconds: another system had it until then; it continues from there


class ScheduleChanged(Event, frozen=True, tag="schedule.changed"):
    """The definition of a schedule was changed."""

    schedule_id: str
    revision: int
    definition: str
    run_at: int | None = None  # its next tick
    user_id: str = ""


class SchedulePaused(Event, frozen=True, tag="schedule.paused"):
    """A schedule was paused: its ticks start no runs."""

    schedule_id: str
    note: str = ""
    until: int | None = None  # then it resumes automatically


class ScheduleResumed(Event, frozen=True, tag="schedule.resumed"):
    """A schedule was resumed: its ticks start runs again."""

    schedule_id: str
    run_at: int | None = None


class ScheduleArmed(Event, frozen=True, tag="schedule.armed"):
    """A schedule without further ticks has a tick again, which follows its last success."""

    schedule_id: str
    run_at: int


class ScheduleDeleted(Event, frozen=True, tag="schedule.deleted"):
    """A schedule was deleted. Its started runs finish."""

    schedule_id: str


class ScheduleParked(Event, frozen=True, tag="schedule.parked"):
    """A definition could not be read or planned. It is tried again later."""

    level: ClassVar[str] = "error"
    schedule_id: str
    error: str

    @property
    def is_notable(self) -> bool:
        return True


class RunEnqueued(Event, frozen=True, tag="run.enqueued"):
    """A run was created, for a tick or by a manual start."""

    schedule_id: str
    run_id: int
    run_at: int
    due_at: int
    triggered_by: str = "timer"
    first_run_at: int | None = None
    tick_count: int = 1
    blocked_by: int | None = None  # it is queued behind this run
    start_by: int | None = None  # milliseconds: the limit set by an edit while no node was up


class RunSkipped(Event, frozen=True, tag="run.skipped"):
    """A tick was skipped, or a waiting run will not start."""

    schedule_id: str
    run_id: int
    run_at: int
    reason: str
    first_run_at: int | None = None
    tick_count: int = 1
    blocked_by: int | None = None
    overlaps: int = 0  # ticks skipped for the same run in flight, including this one; capped

    @property
    def is_notable(self) -> bool:
        return self.reason in MISSED_REASONS or self.overlaps > MOST_OVERLAPS


class RunReleased(Event, frozen=True, tag="run.released"):
    """A queued run may start: the runs before it have ended."""

    schedule_id: str
    run_id: int
    run_at: int


class RunClaimed(Event, frozen=True, tag="run.claimed"):
    """A node claimed a run, and has not announced it yet."""

    level: ClassVar[str] = "debug"
    schedule_id: str
    run_id: int
    run_at: int
    node_id: str
    fence: int


class RunStarted(Event, frozen=True, tag="run.started"):
    """An attempt was announced. It is then launched immediately, or handed back.

    No other event of this kind has the same run and attempt.

    A run that starts as soon as it is decided has no `run.enqueued` before this event. The fields
    from `due_at` on contain what that event would contain.
    """

    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    node_id: str
    fence: int
    due_at: int | None = None
    triggered_by: str = "timer"
    first_run_at: int | None = None
    tick_count: int = 1
    late: int = 0  # milliseconds after its due time, if that is at least a second

    @property
    def is_notable(self) -> bool:
        return self.late > 0

    @property
    def is_first_event(self) -> bool:
        """Whether this is the first event of the run."""
        return self.due_at is not None


class RunHandedBack(Event, frozen=True, tag="run.handed_back"):
    """A claimed run was not launched, and can be claimed again.

    If an attempt had been announced, `attempt` names it: that attempt is void, and the next one has
    another number.
    """

    schedule_id: str
    run_id: int
    run_at: int
    fence: int
    attempt: int = 0


class RunSucceeded(Event, frozen=True, tag="run.succeeded"):
    """A run succeeded."""

    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    failures: int = 0  # failed runs in a row before this one

    @property
    def is_notable(self) -> bool:
        return self.failures > 0


class RunRetrying(Event, frozen=True, tag="run.retrying"):
    """An attempt failed, and another will follow."""

    level: ClassVar[str] = "warning"
    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    due_at: int
    reason: str
    error: str = ""


class RunFailed(Event, frozen=True, tag="run.failed"):
    """A run failed, and no further attempt will follow."""

    level: ClassVar[str] = "error"
    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    reason: str
    error: str = ""
    failures: int = 1  # failed runs in a row, including this one

    @property
    def is_notable(self) -> bool:
        return True


class RunAccepted(Event, frozen=True, tag="run.accepted"):
    """A target accepted a run and will report its outcome, or the run fails at `deadline_at`."""

    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    deadline_at: int
    external_id: str = ""


class RunStuck(Event, frozen=True, tag="run.stuck"):
    """A run takes longer than its `warn_after`, or than three times its usual p99."""

    level: ClassVar[str] = "warning"
    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    lasts: int  # milliseconds, so far
    limit: int  # milliseconds
    rule: str  # warn_after, or p99

    @property
    def is_notable(self) -> bool:
        return True


class RunNamed(Event, frozen=True, tag="run.named"):
    """A target reported its own name for a run that it started."""

    schedule_id: str
    run_id: int
    run_at: int
    external_id: str


class RunReportedLate(Event, frozen=True, tag="run.reported_late"):
    """A target reported an outcome after the run's deadline. The run is unchanged."""

    schedule_id: str
    run_id: int
    run_at: int
    status: str  # what it reported
    error: str = ""


class RunCancelRequested(Event, frozen=True, tag="run.end_asked"):
    """Cancellation of a started run was requested. Its node carries it out."""

    schedule_id: str
    run_id: int
    run_at: int
    reason: str
    note: str = ""


class RunMoved(Event, frozen=True, tag="run.moved"):
    """A waiting run was moved to another revision of its schedule, by which it will start."""

    schedule_id: str
    run_id: int
    run_at: int
    revision: int
    before: int  # the revision that it had


class RunBackfilled(Event, frozen=True, tag="run.backfilled"):
    """A skipped tick was backfilled: its row is enqueued again."""

    schedule_id: str
    run_id: int
    run_at: int
    due_at: int


class RangeShortened(Event, frozen=True, tag="range.shortened"):
    """Some ticks of a range now have separate rows. The range covers the others."""

    schedule_id: str
    run_id: int
    run_at: int
    first_run_at: int | None
    tick_count: int
    reason: str = ""  # of a new row for a part of the range


class RunCanceled(Event, frozen=True, tag="run.canceled"):
    """A run was canceled."""

    level: ClassVar[str] = "warning"
    schedule_id: str
    run_id: int
    run_at: int
    error: str = ""
    reason: str = "canceled"


class NodeStarted(Event, frozen=True, tag="node.started"):
    """A node started. `lost` and `handed_back` count the runs left by its predecessor."""

    node_id: str
    node: str
    lost: int = 0
    handed_back: int = 0


class NodeStopped(Event, frozen=True, tag="node.stopped"):
    """A node shut down gracefully."""

    node_id: str


class NodeLost(Event, frozen=True, tag="node.lost"):
    """A node was silent past its lease, and another node decided its runs."""

    level: ClassVar[str] = "warning"
    node_id: str
    node: str
    lost: int = 0
    handed_back: int = 0


class GateChanged(Event, frozen=True, tag="gate.changed"):
    """The gate was opened or closed: while it is closed, nothing starts."""

    level: ClassVar[str] = "warning"
    open: bool


class GroupChanged(Event, frozen=True, tag="group.changed"):
    """The concurrency limit of a group was changed."""

    group: str
    places: int


class NoticeSent(Event, frozen=True, tag="notice.sent"):
    """A channel's target accepted a message. `error` names the recipients that refused it."""

    channel: str
    message_id: int
    attempt: int
    notices: int = 1
    error: str = ""


class NoticeFailed(Event, frozen=True, tag="notice.failed"):
    """A message was refused, and is not sent again."""

    level: ClassVar[str] = "error"
    channel: str
    message_id: int
    attempt: int
    error: str = ""


class NoticeInDoubt(Event, frozen=True, tag="notice.in_doubt"):
    """Whether a message arrived is unknown. It is not sent again, so it never arrives twice."""

    level: ClassVar[str] = "error"
    channel: str
    message_id: int
    attempt: int
    error: str = ""


class StoreRestored(Event, frozen=True, tag="store.restored"):
    """A backup was restored: ticks planned since then are missed, and some run ids are skipped."""

    level: ClassVar[str] = "warning"
    ids_left_out: int


class HistoryPruned(Event, frozen=True, tag="history.pruned"):
    """Finished runs and events older than `history_from` were deleted."""

    history_from: int
    runs: int


class TokenCreated(Event, frozen=True, tag="token.created"):
    """A token, or a link that opens one session, was created. No event contains a secret."""

    token_id: str
    kind: str
    scope: str
    owner: str = ""
    expires_at: int | None = None


class TokenRevoked(Event, frozen=True, tag="token.revoked"):
    """A token or a session was revoked, including the sessions opened with it."""

    token_id: str
    kind: str
    scope: str
    owner: str = ""


class SessionOpened(Event, frozen=True, tag="session.opened"):
    """A link was used to open a browser session."""

    token_id: str
    link_id: str
    scope: str
    owner: str = ""
    expires_at: int | None = None


class DocumentStored(Event, frozen=True, tag="document.kept"):
    """A system stored or changed a document."""

    level: ClassVar[str] = "debug"
    kind: str
    document: str


class DocumentDeleted(Event, frozen=True, tag="document.forgotten"):
    """A system deleted a document."""

    level: ClassVar[str] = "debug"
    kind: str
    document: str


AnyEvent = (
    ScheduleCreated | ScheduleChanged | SchedulePaused | ScheduleResumed | ScheduleDeleted
    | ScheduleParked | RunEnqueued | RunSkipped | RunReleased | RunClaimed | RunStarted
    | RunHandedBack | RunSucceeded | RunRetrying | RunFailed | RunCanceled | NodeStarted
    | NodeStopped | NodeLost | GateChanged | HistoryPruned | RunAccepted | RunCancelRequested
    | RunBackfilled | RangeShortened | GroupChanged | TokenCreated | TokenRevoked | SessionOpened
    | RunNamed | NoticeSent | NoticeFailed | NoticeInDoubt | StoreRestored | DocumentStored
    | DocumentDeleted | ScheduleArmed | RunMoved | RunReportedLate | RunStuck
)  # fmt: skip


def encode_events(events: list[Event]) -> str:
    """Return the events of one transaction as the JSON that is stored."""
    return _ENCODER.encode(events).decode()


def decode_events(text: str) -> list[AnyEvent]:
    """Return the events of one transaction."""
    return _DECODER.decode(text)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[AnyEvent])
