"""JSON fields of rows and results: the same on the command line and over HTTP.

A class declares which fields are shown, and in which order. Their values are those of the row,
rendered by the types that the row declares: instants are RFC 3339 texts.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from onbeat.core.explain.attempts import AttemptSpan, attempt_spans
from onbeat.core.explain.describe import describe
from onbeat.core.explain.preview import Preview, describe_wait
from onbeat.core.explain.why import Why
from onbeat.core.schedule import from_definition
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.core.triggers.past import Past
from onbeat.errors import InvalidSchedule
from onbeat.ports.rows import (
    AwaitedRow,
    EventRow,
    GroupRow,
    Millis,
    NodeRow,
    Overview,
    RunRow,
    ScheduleRow,
    Seconds,
    TokenRow,
    ZoneDataProgress,
)

FieldsT = TypeVar("FieldsT", bound=msgspec.Struct)
RowT = TypeVar("RowT")


class ScheduleFields(msgspec.Struct, frozen=True):
    """A schedule with its position and the outcome of its last runs."""

    schedule_id: str
    words: str
    definition: dict[str, object]
    revision: int
    source: str
    user_id: str
    paused: bool
    pause_note: str
    paused_until: str | None
    next_run_at: str | None
    next_due_at: str | None
    iteration: int
    runs_used: int
    last_run_at: str | None
    last_success_at: str | None
    last_failure_at: str | None
    last_exit: int | None
    last_missed_at: str | None
    last_miss_reason: str | None
    consecutive_failures: int
    edited: bool
    created_at: str
    updated_at: str


class RunFields(msgspec.Struct, frozen=True):
    """A run: a tick that was decided, or a manual start."""

    run_id: int
    schedule_id: str
    run_at: str
    due_at: str
    status: str
    reason: str | None
    triggered_by: str
    user: str
    attempt: int
    iteration: int
    revision: int
    tick_count: int
    first_run_at: str | None
    blocked_by: int | None
    priority: int
    group: str | None
    deadline_at: str | None
    end_asked_at: str | None
    deferrals: int
    external_id: str | None
    idempotency_key: str
    request_id: str
    node_id: str | None
    started_at: str | None
    stuck_at: str | None
    finished_at: str | None
    exit_code: int | None
    error: str | None
    result: object
    inputs: dict[str, object] | None
    rendered: dict[str, object] | None
    created_at: str
    updated_at: str


class NodeFields(msgspec.Struct, frozen=True):
    """A node: its roles, the targets that it offers, and whether it is alive."""

    node_id: str
    name: str
    roles: list[str]
    offers: list[str]
    running: int
    alive: bool
    stopping: bool
    started_at: str
    alive_until: str
    version: str
    tz: str
    address: str


class AwaitedFields(msgspec.Struct, frozen=True):
    """A run accepted by its target, in flight until its outcome is reported or its deadline."""

    run_id: int
    schedule_id: str
    started_at: str
    deadline_at: str
    external_id: str


class FollowingFields(msgspec.Struct, frozen=True):
    """Progress of recomputing due ticks after an update of the time zone data."""

    tz: str
    done: int
    schedules: int
    moved: int
    since: str


class OverviewFields(msgspec.Struct, frozen=True):
    """The current state of the installation."""

    now: str
    gate: str
    schedules: int
    paused: int
    due: int
    next_due_at: str | None
    runs: dict[str, int]
    stuck: int
    nodes: list[NodeFields]
    awaited: list[AwaitedFields]  # up to five, those with the next deadlines
    following: FollowingFields | None


class GroupFields(msgspec.Struct, frozen=True):
    """A group with its limit and usage."""

    name: str
    places: int
    used: int
    waiting: int


class TokenFields(msgspec.Struct, frozen=True):
    """A token, without its secret."""

    token_id: str
    kind: str
    name: str
    scope: str
    owner: str
    created_at: str
    created_by: str
    expires_at: str | None


class EventFields(msgspec.Struct, frozen=True):
    """An event. `fields` depend on its name: the run, the reason, and so on."""

    event_id: str
    at: str
    name: str
    by: str
    fields: dict[str, object]


class AttemptFields(msgspec.Struct, frozen=True):
    """An attempt of a run: when it was announced, and when its outcome was recorded."""

    attempt: int
    started_at: str | None
    ended_at: str | None
    reason: str | None
    exit_code: int | None
    error: str


class WhyFields(msgspec.Struct, frozen=True):
    """Why a schedule ran or did not run at an instant."""

    schedule_id: str
    at: str
    kind: str
    reason: str | None
    headline: str
    sentences: list[str]
    instead: str | None
    run_id: int | None
    status: str | None
    previous: str | None
    next: str | None
    triggered_by: str | None = None
    attempts: list[AttemptFields] = []
    note: str = ""  # which instant is meant by a local time that is skipped or occurs twice
    also: list[str] = []  # the other instant of a local time that occurs twice


class TickFields(msgspec.Struct, frozen=True):
    """A future tick: the planned instant, the start, and the local time."""

    run_at: str
    due_at: str
    local: str


class PreviewFields(msgspec.Struct, frozen=True):
    """The next ticks of a schedule, its trigger in words, and the effect of clock changes."""

    words: str
    timezone: str
    ticks: list[TickFields]
    notes: list[str]


def schedule_fields(row: ScheduleRow) -> ScheduleFields:
    """Return the JSON fields of a schedule."""
    return SCHEDULE.fields(
        row,
        words=schedule_words(row),
        definition=_definition(row.definition),
        edited=row.is_edited,
    )


def schedule_words(row: ScheduleRow) -> str:
    """Return the trigger of a schedule in words."""
    try:
        return _words(from_definition(row.schedule_id, row.definition).trigger)
    except InvalidSchedule as refused:
        return f"cannot be read: {refused}"


def idle_reason(row: ScheduleRow, now: int) -> str | None:
    """Return why no future tick of a schedule starts a run, or None if one may."""
    try:
        schedule = from_definition(row.schedule_id, row.definition)
    except InvalidSchedule:
        return None
    if not schedule.policy.enabled:
        return "disabled (enabled: false)"
    if not schedule.target.is_enabled:
        return "disabled (run.enabled: false)"
    if row.next_due_at is not None:
        return None
    past = Past(created_at=row.created_at // 1000, runs_used=row.runs_used)
    return describe_wait(schedule.trigger, now // 1000, past)


def target_kind(row: ScheduleRow) -> str:
    """Return the kind of the target of a schedule, such as `command`."""
    try:
        return from_definition(row.schedule_id, row.definition).target.kind
    except InvalidSchedule:
        return "-"


_words = lru_cache(maxsize=16_384)(describe)  # the most expensive field of a schedule


def run_fields(row: RunRow) -> RunFields:
    """Return the JSON fields of a run."""
    return RUN.fields(
        row, status=row.status, group=row.grp, node_id=row.leased_by, idempotency_key=row.key
    )


def overview_fields(found: Overview) -> OverviewFields:
    """Return the JSON fields of an overview."""
    progress = found.following
    return OVERVIEW.fields(
        found,
        gate="open" if found.gate_open else "closed",
        nodes=[node_fields(node, found.now) for node in found.nodes],
        awaited=[AWAITED.fields(row) for row in found.awaited],
        following=None
        if progress is None
        else FOLLOWING.fields(progress, tz=progress.version, schedules=progress.total),
    )


def node_fields(row: NodeRow, now: int) -> NodeFields:
    """Return the JSON fields of a node."""
    return NODE.fields(row, alive=row.alive_until > now, stopping=row.is_stopping)


def group_fields(row: GroupRow) -> GroupFields:
    """Return the JSON fields of a group."""
    return GROUP.fields(row)


def token_fields(row: TokenRow) -> TokenFields:
    """Return the JSON fields of a token."""
    return TOKEN.fields(row)


def event_fields(row: EventRow) -> EventFields:
    """Return the JSON fields of an event."""
    fields: dict[str, object] = msgspec.to_builtins(row.event)
    name, by = str(fields.pop("name")), str(fields.pop("by", ""))
    for field, as_text in INSTANTS.items():
        value = fields.get(field)
        if isinstance(value, int):
            fields[field] = as_text(value)
    if isinstance(fields.get("definition"), str):
        fields["definition"] = _definition(str(fields["definition"]))
    return EventFields(f"{row.event_id}.{row.n}", rfc3339_ms(row.at), name, by, fields)


def why_fields(found: Why) -> WhyFields:
    """Return the JSON fields of an explanation."""
    run = found.run
    return WhyFields(
        schedule_id=found.schedule_id,
        at=rfc3339(found.at),
        kind=found.kind,
        reason=found.reason,
        headline=found.headline,
        sentences=list(found.sentences),
        instead=found.instead,
        run_id=None if run is None else run.run_id,
        status=None if run is None else run.status.value,
        previous=_second(found.previous),
        next=_second(found.following),
        triggered_by=None if run is None else run.triggered_by,
        attempts=[] if run is None else [_attempt(each) for each in attempt_spans(run)],
        note=found.note,
        also=[rfc3339(each) for each in found.also],
    )


def _attempt(one: AttemptSpan) -> AttemptFields:
    began, ended = _millisecond(one.started_at), _millisecond(one.ended_at)
    return AttemptFields(one.attempt, began, ended, one.reason, one.exit_code, one.error)


def preview_fields(found: Preview) -> PreviewFields:
    """Return the JSON fields of a preview."""
    ticks = [
        TickFields(rfc3339(run_at), rfc3339(due_at), rfc3339(due_at, found.zone))
        for run_at, due_at in found.ticks
    ]
    return PreviewFields(found.words, found.zone.name, ticks, found.notes)


INSTANTS = {
    "run_at": rfc3339,
    "first_run_at": rfc3339,
    "due_at": rfc3339_ms,
    "deadline_at": rfc3339_ms,
    "expires_at": rfc3339_ms,
    "until": rfc3339_ms,
    "history_from": rfc3339_ms,
}  # the fields of events that are instants


def _second(t: int | None) -> str | None:
    return None if t is None else rfc3339(t)


def _millisecond(t: int | None) -> str | None:
    return None if t is None else rfc3339_ms(t)


def _definition(text: str) -> dict[str, object]:
    """Return a stored definition, also if it is not valid any more."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        found = text
    return found if isinstance(found, dict) else {"unreadable": found}


class ShownRow(Generic[RowT, FieldsT]):
    """A kind of row, and the JSON fields that are shown of it."""

    def __init__(self, row: type[RowT], shape: type[FieldsT]) -> None:
        self.shape = shape
        types = get_type_hints(row, include_extras=True)
        self.own = {name: types[name] for name in shape.__struct_fields__ if name in types}
        self._render = [(name, _renderer(each)) for name, each in self.own.items()]

    def fields(self, row: RowT, **others: object) -> FieldsT:
        """Return the fields: its own ones, rendered by their types, and those of other names."""
        for name, render in self._render:
            if name not in others:
                value = getattr(row, name)
                others[name] = value if render is None else render(value)
        return self.shape(**others)


def _renderer(declared: object) -> Callable[[Any], object] | None:
    """Return how values of a type are rendered, or None: as they are."""
    parts = (declared, *get_args(declared))
    return next((RENDERED[each] for each in parts if each in RENDERED), None)


RENDERED: dict[object, Callable[[Any], object]] = {
    Seconds: _second,
    Millis: _millisecond,
    frozenset[str]: sorted,
}

SCHEDULE = ShownRow(ScheduleRow, ScheduleFields)
RUN = ShownRow(RunRow, RunFields)
OVERVIEW = ShownRow(Overview, OverviewFields)
AWAITED = ShownRow(AwaitedRow, AwaitedFields)
FOLLOWING = ShownRow(ZoneDataProgress, FollowingFields)
NODE = ShownRow(NodeRow, NodeFields)
GROUP = ShownRow(GroupRow, GroupFields)
TOKEN = ShownRow(TokenRow, TokenFields)
SHOWN = (SCHEDULE, RUN, OVERVIEW, AWAITED, FOLLOWING, NODE, GROUP, TOKEN)
