"""Stored rows as values: a class for each kind of row that a store returns.

Instants are declared as Seconds or Millis: `service/serialize.py` renders them by these types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from onbeat.core.explain.attempts import WHILE_WAITING
from onbeat.core.runs.phase import ENQUEUED, Phase, Status
from onbeat.core.runs.run import run_key
from onbeat.events import AnyEvent, Event

Seconds = Annotated[int, "seconds"]  # an instant, in UTC
Millis = Annotated[int, "milliseconds"]  # an instant, in UTC


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as stored."""

    node_id: str
    name: str
    roles: frozenset[str]
    offers: frozenset[str]
    started_at: Millis
    alive_until: Millis
    version: str
    tz: str
    running: int  # runs in flight that it has started
    is_stopping: bool = False
    address: str = ""  # of its API, if it serves one


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as stored, with its position and the outcomes of its latest runs."""

    schedule_id: str
    definition: str
    revision: int
    source: str
    user_id: str
    paused: bool
    pause_note: str
    paused_until: Millis | None
    created_at: Millis
    updated_at: Millis
    next_run_at: Seconds | None  # the due row's
    next_due_at: Millis | None
    runs_used: int
    iteration: int
    last_run_at: Millis | None
    last_success_at: Millis | None
    last_failure_at: Millis | None
    last_exit: int | None
    last_missed_at: Millis | None
    last_miss_reason: str | None
    consecutive_failures: int
    base: str | None = None  # the definition that its source gave last, if that is a file

    @property
    def is_edited(self) -> bool:
        """Whether it was edited since its source defined it."""
        return self.base is not None and self.base != self.definition


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored."""

    run_id: int
    schedule_id: str
    run_at: Seconds
    request_id: str
    due_at: Millis
    phase: Phase
    reason: str | None
    triggered_by: str
    attempt: int
    iteration: int
    revision: int
    tick_count: int
    first_run_at: Seconds | None
    blocked_by: int | None
    leased_by: str | None
    fence: int
    started_at: Millis | None
    finished_at: Millis | None
    exit_code: int | None
    error: str | None
    result: object
    inputs: Mapping[str, object] | None
    log_tail: str | None
    created_at: Millis
    updated_at: Millis
    priority: int
    grp: str | None
    deadline_at: Millis | None
    end_asked_at: Millis | None
    deferrals: int
    external_id: str | None
    rendered: Mapping[str, object] | None
    stuck_at: Millis | None = None  # when it was found to take too long
    user: str = ""  # the user of the schedule, as whom it runs

    @property
    def status(self) -> Status:
        """The status, derived from the phase."""
        return self.phase.facts.status

    @property
    def key(self) -> str:
        """The idempotency key."""
        return run_key(self.schedule_id, self.run_at, self.request_id)

    @property
    def was_tried(self) -> bool:
        """Whether an attempt was launched or announced; False if all were handed back."""
        waits = self.phase in ENQUEUED and self.attempt == self.deferrals and not self.reason
        return self.attempt > 0 and not waits

    @property
    def ended_waiting(self) -> bool:
        """Whether it ended while it waited for another attempt, and so did not run then."""
        return self.finished_at is not None and self.reason in WHILE_WAITING


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """The result of one step of a backfill, and where the next one continues."""

    enqueued: int
    refused: int
    following: int | None  # the `first` of the next step; None: done
    waiting: int  # unfinished backfill runs of the schedule, of which there are at most 100


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as stored, and how many of its places are used."""

    name: str
    places: int
    used: int
    waiting: int


@dataclass(frozen=True, slots=True)
class AwaitedRow:
    """A run that its target has accepted, and must report by its deadline."""

    run_id: int
    schedule_id: str
    started_at: Millis
    deadline_at: Millis
    external_id: str


@dataclass(frozen=True, slots=True)
class ZoneDataProgress:
    """How far due rows are recomputed with newer time zone data."""

    version: str
    done: int  # schedules
    total: int
    moved: int  # due rows that the newer data has moved
    since: Millis
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """The overview that `onbeat status` shows."""

    now: Millis
    gate_open: bool
    schedules: int
    paused: int
    due: int  # ticks that are due and undecided
    next_due_at: Millis | None
    runs: Mapping[str, int]  # unfinished ones, by status
    nodes: Sequence[NodeRow]
    awaited: Sequence[AwaitedRow] = ()  # accepted runs with the next deadlines
    following: ZoneDataProgress | None = None  # None: all due rows are from the current zone data
    stuck: int = 0  # runs in flight that take too long


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Further figures of a store, for metrics."""

    failing: int  # schedules whose last run failed
    waiting_since: Millis | None  # the due time of the oldest run that waits to be claimed
    to_notify: int  # marked event rows, for which messages are to be written
    outbox: Mapping[str, int]  # messages by state
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    """A filter of schedules: all conditions that are set must hold."""

    source: str | None = None
    owner: str | None = None
    paused: bool | None = None
    failing: bool | None = None  # whether the last run failed
    search: str = ""  # a part of the id, or of the definition
    ids: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """A filter of runs: all conditions that are set must hold."""

    schedule_id: str | None = None
    status: str | None = None
    reason: str | None = None
    triggered_by: str | None = None
    since: Seconds | None = None  # planned then or later
    until: Seconds | None = None  # planned before then
    before: int | None = None  # with a smaller `run_id`
    source: str | None = None  # of the schedule
    is_stuck: bool = False  # in flight, and marked as taking too long


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as stored: `event_id` is the id of its row, `n` its index in the row.

    A transaction writes one row, or several if it has more than a thousand events.
    """

    event_id: int
    n: int
    at: Millis
    event: AnyEvent


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A document that a system stores beside schedules."""

    kind: str
    name: str
    body: object  # JSON
    user_id: str
    updated_at: Millis


BROKEN = "broken-definition"  # documents about files that a system cannot use: `why`, `where`

TokenKind = Literal["token", "link", "session"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A credential as stored, without its secret: an API token, a login link or a session.

    A `link` opens one `session` in a browser, and is used up by that.
    """

    token_id: str
    kind: TokenKind
    name: str
    scope: str
    owner: str = ""
    created_at: Millis = 0
    created_by: str = ""
    expires_at: Millis | None = None  # not valid from then on
    used_at: Millis | None = None  # of a link


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event, and when it was written."""

    at: Millis
    event: Event


@dataclass(frozen=True, slots=True)
class OutboxWork:
    """The pending work of the outbox, for the channels of a node."""

    has_marks: bool  # event rows are to be processed
    has_silent: bool  # messages have been `sending` for too long
    channels: frozenset[str]  # with due messages


@dataclass(frozen=True, slots=True)
class OutboxStep:
    """The result of processing marked event rows once."""

    rows: int
    messages: int = 0
    dropped: int = 0  # rows that are too old for a message
    is_full: bool = False  # there may be more


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A channel, and the states of its messages that are stored."""

    channel: str
    states: Mapping[str, int]  # messages that are waiting, sending, sent, failed or in_doubt
    sent_at: Millis | None  # when the last one was sent
    error: str | None  # the last error
