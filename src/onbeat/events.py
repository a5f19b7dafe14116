"""What happens, told once: the log line, the audit row and the live page render the same event.

An event is written in the transaction that makes it true.
"""

from typing import ClassVar

import msgspec

LATE = 1_000  # milliseconds behind its time from which on the start of a run is told as late
# Reasons for which a tick did not run though it should have: nobody decided so beforehand.
MOST_OVERLAPS = 5  # ticks in a row that may be skipped by overlap before that is a miss, too
MISSES = frozenset({"missed", "edited", "deadline", "group_full", "queue_full", "busy"})


class Event(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="name", gc=False, kw_only=True
):
    """Something that happened. `level` is how loudly a log tells of it."""

    level: ClassVar[str] = "info"
    by: str = ""  # who had it done; empty: the engine

    @property
    def is_notable(self) -> bool:
        """Whether somebody may have asked to be notified of such things."""
        return False

    @property
    def name(self) -> str:
        """The event's name, such as `run.started`."""
        return str(self.__struct_config__.tag)


class ScheduleCreated(Event, frozen=True, tag="schedule.created"):
    """A schedule was defined that was not there, or that had been deleted."""

    schedule_id: str
    revision: int
    definition: str
    run_at: int | None = None  # its first tick
    user_id: str = ""
    since: int | None = None  # seconds: it was kept elsewhere up to then, and goes on from there


class ScheduleChanged(Event, frozen=True, tag="schedule.changed"):
    """A schedule was given another definition."""

    schedule_id: str
    revision: int
    definition: str
    run_at: int | None = None  # its next tick
    user_id: str = ""


class SchedulePaused(Event, frozen=True, tag="schedule.paused"):
    """Nothing further of this schedule starts by itself."""

    schedule_id: str
    note: str = ""
    until: int | None = None  # then it goes on by itself


class ScheduleResumed(Event, frozen=True, tag="schedule.resumed"):
    """A schedule starts by itself again."""

    schedule_id: str
    run_at: int | None = None


class ScheduleArmed(Event, frozen=True, tag="schedule.armed"):
    """A schedule that had come to rest has a tick again, which follows its last success."""

    schedule_id: str
    run_at: int


class ScheduleDeleted(Event, frozen=True, tag="schedule.deleted"):
    """A schedule is gone; its started runs finish."""

    schedule_id: str


class ScheduleParked(Event, frozen=True, tag="schedule.parked"):
    """A definition could not be read or planned; it is tried again later."""

    level: ClassVar[str] = "error"
    schedule_id: str
    error: str

    @property
    def is_notable(self) -> bool:
        return True


class RunEnqueued(Event, frozen=True, tag="run.enqueued"):
    """A tick, or a person, was given a run."""

    schedule_id: str
    run_id: int
    run_at: int
    due_at: int
    triggered_by: str = "timer"
    first_run_at: int | None = None
    tick_count: int = 1
    blocked_by: int | None = None  # it is queued behind this run
    start_by: int | None = None  # milliseconds: an edit limits it, because no node is up


class RunSkipped(Event, frozen=True, tag="run.skipped"):
    """A tick was decided against, or a waiting run will not start."""

    schedule_id: str
    run_id: int
    run_at: int
    reason: str
    first_run_at: int | None = None
    tick_count: int = 1
    blocked_by: int | None = None
    overlaps: int = 0  # ticks skipped for the same run in flight, with this one; more are not told

    @property
    def is_notable(self) -> bool:
        return self.reason in MISSES or self.overlaps > MOST_OVERLAPS


class RunReleased(Event, frozen=True, tag="run.released"):
    """A queued run may start: those before it have ended."""

    schedule_id: str
    run_id: int
    run_at: int


class RunClaimed(Event, frozen=True, tag="run.claimed"):
    """A node took a run; it has not announced it yet."""

    level: ClassVar[str] = "debug"
    schedule_id: str
    run_id: int
    run_at: int
    node_id: str
    fence: int


class RunStarted(Event, frozen=True, tag="run.started"):
    """An attempt was announced; it is launched at once, or handed back.

    No other event of this kind has the same run and attempt.

    A run that starts as it is decided has no `run.enqueued` before this: what that would have told
    is told here, from `due_at` on.
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
    late: int = 0  # by how many milliseconds it starts after it was due, from a second on

    @property
    def is_notable(self) -> bool:
        return self.late > 0

    @property
    def was_just_decided(self) -> bool:
        """Whether this is the first that is told of the run."""
        return self.due_at is not None


class RunHandedBack(Event, frozen=True, tag="run.handed_back"):
    """A claimed run was not launched, and is free to be claimed again.

    If an attempt was announced before, `attempt` names it: that one is void, and the next has
    another number.
    """

    schedule_id: str
    run_id: int
    run_at: int
    fence: int
    attempt: int = 0


class RunSucceeded(Event, frozen=True, tag="run.succeeded"):
    """A run did its work."""

    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    failures: int = 0  # how many runs in a row had failed before this

    @property
    def is_notable(self) -> bool:
        return self.failures > 0


class RunRetrying(Event, frozen=True, tag="run.retrying"):
    """An attempt failed; there will be another."""

    level: ClassVar[str] = "warning"
    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    due_at: int
    reason: str
    error: str = ""


class RunFailed(Event, frozen=True, tag="run.failed"):
    """A run did not do its work, and there will be no further attempt."""

    level: ClassVar[str] = "error"
    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    reason: str
    error: str = ""
    failures: int = 1  # how many runs in a row have failed, with this one

    @property
    def is_notable(self) -> bool:
        return True


class RunAccepted(Event, frozen=True, tag="run.accepted"):
    """A target took a run on, and will tell of its end; else it is over at `deadline_at`."""

    schedule_id: str
    run_id: int
    run_at: int
    attempt: int
    deadline_at: int
    external_id: str = ""


class RunStuck(Event, frozen=True, tag="run.stuck"):
    """A run in flight takes longer than its `warn_after`, or than three times its usual p99."""

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
    """A target told what it calls a run that it has begun."""

    schedule_id: str
    run_id: int
    run_at: int
    external_id: str


class RunReportedLate(Event, frozen=True, tag="run.reported_late"):
    """A target reported an outcome after the run's deadline; the run stays as it is."""

    schedule_id: str
    run_id: int
    run_at: int
    status: str  # what it reported
    error: str = ""


class RunEndAsked(Event, frozen=True, tag="run.end_asked"):
    """A started run is to end: its node will see to it."""

    schedule_id: str
    run_id: int
    run_at: int
    reason: str
    note: str = ""


class RunMoved(Event, frozen=True, tag="run.moved"):
    """A waiting run was given another revision of its schedule: it starts as that one says."""

    schedule_id: str
    run_id: int
    run_at: int
    revision: int
    before: int  # the revision that it had


class RunBackfilled(Event, frozen=True, tag="run.backfilled"):
    """A tick that was skipped is to run after all: the row that it had is enqueued again."""

    schedule_id: str
    run_id: int
    run_at: int
    due_at: int


class RangeShortened(Event, frozen=True, tag="range.shortened"):
    """Some ticks of a range have rows of their own now: it stands for the others."""

    schedule_id: str
    run_id: int
    run_at: int
    first_run_at: int | None
    tick_count: int
    reason: str = ""  # of a row that was made for them


class RunCanceled(Event, frozen=True, tag="run.canceled"):
    """A run was ended from outside."""

    level: ClassVar[str] = "warning"
    schedule_id: str
    run_id: int
    run_at: int
    error: str = ""
    reason: str = "canceled"


class NodeStarted(Event, frozen=True, tag="node.started"):
    """A node plans and runs. `lost` and `handed_back` tell of the runs its predecessor left."""

    node_id: str
    node: str
    lost: int = 0
    handed_back: int = 0


class NodeStopped(Event, frozen=True, tag="node.stopped"):
    """A node ended in good order."""

    node_id: str


class NodeLost(Event, frozen=True, tag="node.lost"):
    """A node fell silent, and another decided its runs."""

    level: ClassVar[str] = "warning"
    node_id: str
    node: str
    lost: int = 0
    handed_back: int = 0


class GateChanged(Event, frozen=True, tag="gate.changed"):
    """The switch that stops everything was turned."""

    level: ClassVar[str] = "warning"
    open: bool


class GroupChanged(Event, frozen=True, tag="group.changed"):
    """A group was given another number of places."""

    group: str
    places: int


class NoticeSent(Event, frozen=True, tag="notice.sent"):
    """A message was taken by a channel's target; `error` tells who of many did not."""

    channel: str
    message_id: int
    attempt: int
    notices: int = 1
    error: str = ""


class NoticeFailed(Event, frozen=True, tag="notice.failed"):
    """A message was refused, and is not tried again."""

    level: ClassVar[str] = "error"
    channel: str
    message_id: int
    attempt: int
    error: str = ""


class NoticeInDoubt(Event, frozen=True, tag="notice.in_doubt"):
    """A message may have arrived or not: it is not sent again, so that it never arrives twice."""

    level: ClassVar[str] = "error"
    channel: str
    message_id: int
    attempt: int
    error: str = ""


class StoreRestored(Event, frozen=True, tag="store.restored"):
    """A backup was put back: what was planned since is missed, and so many ids are left out."""

    level: ClassVar[str] = "warning"
    ids_left_out: int


class HistoryPruned(Event, frozen=True, tag="history.pruned"):
    """Finished runs and events older than this are gone."""

    history_from: int
    runs: int


class TokenCreated(Event, frozen=True, tag="token.created"):
    """Somebody was given a token, or a link that opens one session. No event has a secret."""

    token_id: str
    kind: str
    scope: str
    owner: str = ""
    expires_at: int | None = None


class TokenRevoked(Event, frozen=True, tag="token.revoked"):
    """A token, or a session, lets nobody in any more; nor do those that it was used to open."""

    token_id: str
    kind: str
    scope: str
    owner: str = ""


class SessionOpened(Event, frozen=True, tag="session.opened"):
    """A link was used: a browser may come in."""

    token_id: str
    link_id: str
    scope: str
    owner: str = ""
    expires_at: int | None = None


class DocumentKept(Event, frozen=True, tag="document.kept"):
    """A system keeps something new beside schedules, or keeps it otherwise than before."""

    level: ClassVar[str] = "debug"
    kind: str
    document: str


class DocumentForgotten(Event, frozen=True, tag="document.forgotten"):
    """A system keeps something no longer."""

    level: ClassVar[str] = "debug"
    kind: str
    document: str


AnyEvent = (
    ScheduleCreated | ScheduleChanged | SchedulePaused | ScheduleResumed | ScheduleDeleted
    | ScheduleParked | RunEnqueued | RunSkipped | RunReleased | RunClaimed | RunStarted
    | RunHandedBack | RunSucceeded | RunRetrying | RunFailed | RunCanceled | NodeStarted
    | NodeStopped | NodeLost | GateChanged | HistoryPruned | RunAccepted | RunEndAsked
    | RunBackfilled | RangeShortened | GroupChanged | TokenCreated | TokenRevoked | SessionOpened
    | RunNamed | NoticeSent | NoticeFailed | NoticeInDoubt | StoreRestored | DocumentKept
    | DocumentForgotten | ScheduleArmed | RunMoved | RunReportedLate | RunStuck
)  # fmt: skip


def encode_events(events: list[Event]) -> str:
    """Return events of one transaction as the JSON that is kept of them."""
    return _ENCODER.encode(events).decode()


def decode_events(text: str) -> list[AnyEvent]:
    """Return the events of one transaction."""
    return _DECODER.decode(text)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[AnyEvent])
