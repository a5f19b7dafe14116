"""What is kept, as values: one class for each kind of row that a store returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from onbeat.core.explain.attempts import WHILE_WAITING
from onbeat.core.runs.run import run_key
from onbeat.events import AnyEvent, Event


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as it is kept."""

    node_id: str
    name: str
    roles: frozenset[str]
    offers: frozenset[str]
    started_at: int
    alive_until: int
    version: str
    tz: str
    running: int  # how many runs it has started
    is_stopping: bool = False
    address: str = ""  # where its API is, if it has one


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as it is kept, with its position and what became of its runs."""

    schedule_id: str
    definition: str
    revision: int
    source: str
    user_id: str
    paused: bool
    pause_note: str
    paused_until: int | None
    created_at: int
    updated_at: int
    next_run_at: int | None  # the due row's
    next_due_at: int | None
    runs_used: int
    iteration: int
    last_run_at: int | None
    last_success_at: int | None
    last_failure_at: int | None
    last_exit: int | None
    last_missed_at: int | None
    last_miss_reason: str | None
    consecutive_failures: int
    base: str | None = None  # the definition as its source last gave it, if that is a file

    @property
    def is_edited(self) -> bool:
        """Whether others have edited it since its source defined it."""
        return self.base is not None and self.base != self.definition


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as it is kept."""

    run_id: int
    schedule_id: str
    run_at: int
    request_id: str
    due_at: int
    status: str
    reason: str | None
    triggered_by: str
    attempt: int
    iteration: int
    revision: int
    tick_count: int
    first_run_at: int | None
    blocked_by: int | None
    leased_by: str | None
    fence: int
    started_at: int | None
    finished_at: int | None
    exit_code: int | None
    error: str | None
    result: object
    inputs: Mapping[str, object] | None
    log_tail: str | None
    created_at: int
    updated_at: int
    priority: int
    grp: str | None
    deadline_at: int | None
    end_asked_at: int | None
    deferrals: int
    external_id: str | None
    rendered: Mapping[str, object] | None
    stuck_at: int | None = None  # when it was found to take too long
    user: str = ""  # of the schedule: as whom it runs

    @property
    def key(self) -> str:
        """The idempotency key."""
        return run_key(self.schedule_id, self.run_at, self.request_id)

    @property
    def was_tried(self) -> bool:
        """Whether an attempt was launched, or was to be: not if all were handed back."""
        waits = self.status == "ENQUEUED" and self.attempt == self.deferrals and not self.reason
        return self.attempt > 0 and not waits

    @property
    def ended_waiting(self) -> bool:
        """Whether it ended while it waited for another attempt: it did not run until then."""
        return self.finished_at is not None and self.reason in WHILE_WAITING


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """What one step of a backfill did, and from where to go on."""

    enqueued: int
    refused: int
    following: int | None  # None: that was all
    waiting: int  # runs that were asked for so and have not ended: there is room for 100


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as it is kept, and how full it is."""

    name: str
    places: int
    used: int
    waiting: int


@dataclass(frozen=True, slots=True)
class AwaitedRow:
    """A run that its target has accepted, and is to report by its deadline."""

    run_id: int
    schedule_id: str
    started_at: int
    deadline_at: int
    external_id: str


@dataclass(frozen=True, slots=True)
class ZoneDataProgress:
    """How far due rows are computed anew with newer time zone data."""

    version: str
    done: int  # schedules
    total: int
    moved: int  # due rows that the newer data has elsewhere
    since: int  # milliseconds
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """What `status` tells of a store."""

    now: int
    gate_open: bool
    schedules: int
    paused: int
    due: int  # ticks that are due and undecided
    next_due_at: int | None
    runs: Mapping[str, int]  # unfinished ones, by status
    nodes: Sequence[NodeRow]
    awaited: Sequence[AwaitedRow] = ()  # those with the next deadlines
    following: ZoneDataProgress | None = None  # None: every due row is of the zone data in use
    stuck: int = 0  # runs in flight that take too long


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What is counted of a store besides, for whoever watches it."""

    failing: int  # schedules whose last run failed
    waiting_since: int | None  # since when the oldest run that is due waits to be claimed
    to_notify: int  # event rows that somebody may want to hear of
    outbox: Mapping[str, int]  # messages on their way out, by state
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    """Which schedules are meant: those for which everything holds that is said here."""

    source: str | None = None
    owner: str | None = None
    paused: bool | None = None
    failing: bool | None = None  # whether the last run failed
    search: str = ""  # a part of the id, or of the definition
    ids: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are meant: those for which everything holds that is said here."""

    schedule_id: str | None = None
    status: str | None = None
    reason: str | None = None
    triggered_by: str | None = None
    since: int | None = None  # seconds: planned at, or after
    until: int | None = None  # seconds: planned before
    before: int | None = None  # with a smaller `run_id`
    source: str | None = None  # of schedules of this source
    is_stuck: bool = False  # in flight, and marked as taking too long


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened, as it is kept: `event_id` is of its row, `n` within that.

    A transaction has one row, or several if it has more than a thousand events.
    """

    event_id: int
    n: int
    at: int
    event: AnyEvent


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """Something that a system keeps beside schedules."""

    kind: str
    name: str
    body: object  # what JSON can say
    user_id: str
    updated_at: int


BROKEN = "broken-definition"  # documents: `why` and `where`, of files that a system cannot use

TokenKind = Literal["token", "link", "session"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Something that lets its bearer in, as it is kept: never the secret itself.

    A `link` is a code that opens one `session` in a browser, and is used up by that.
    """

    token_id: str
    kind: TokenKind
    name: str
    scope: str
    owner: str = ""
    created_at: int = 0
    created_by: str = ""
    expires_at: int | None = None  # from then on it lets nobody in
    used_at: int | None = None  # of a link


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event, and when it was written."""

    at: int
    event: Event


@dataclass(frozen=True, slots=True)
class OutboxWork:
    """What there is to be done for the channels that somebody asks about."""

    has_marks: bool  # there are events that nobody has looked at
    has_silent: bool  # messages have been on their way for too long
    channels: frozenset[str]  # those for which messages are due


@dataclass(frozen=True, slots=True)
class OutboxStep:
    """What one look at marked event rows came to."""

    rows: int
    messages: int = 0
    dropped: int = 0  # rows too old to be told
    is_full: bool = False  # there may be more


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """What became of the messages of a channel, as long as that is kept."""

    channel: str
    states: Mapping[str, int]  # how many: waiting, sending, sent, failed, in_doubt
    sent_at: int | None  # the last time
    error: str | None  # the last one
