"""The log: events and messages, one line each, for people and for programs."""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

import msgspec

from onbeat.core.explain.reasons import span
from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.events import (
    Event,
    GateChanged,
    NodeLost,
    NodeStarted,
    RunAccepted,
    RunCanceled,
    RunEnqueued,
    RunFailed,
    RunRetrying,
    RunSkipped,
    RunStarted,
    RunSucceeded,
    ScheduleChanged,
    ScheduleCreated,
    SessionOpened,
    TokenCreated,
    TokenRevoked,
)

log = logging.getLogger("onbeat")
log.addHandler(logging.NullHandler())  # nothing is logged in a program without logging

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
INSTANTS = {
    "run_at": rfc3339,
    "first_run_at": rfc3339,
    "due_at": rfc3339_ms,
    "history_from": rfc3339_ms,
    "expires_at": rfc3339_ms,
}
OMITTED = {"name", "definition"}  # too long for a line


def write_log(events: Sequence[Event]) -> None:
    """Log events, each at its own level."""
    enabled = {name for name, level in LEVELS.items() if log.isEnabledFor(level)}
    for event in events:
        if event.level in enabled:
            fields = _fields(event)
            extra = {"event": event.name, "fields": fields, "source": event}
            log.log(LEVELS[event.level], "%s", _line(event.name, fields), extra=extra)


def set_up(
    *, level: str, as_json: bool, stream: TextIO | None = None, has_colours: bool = False
) -> None:
    """Write the log to a stream: as JSON, as text, or, to a terminal, as short lines."""
    to = stream if stream is not None else sys.stderr
    handler = logging.StreamHandler(to)
    if as_json:
        handler.setFormatter(_Json())
    elif to.isatty():
        handler.setFormatter(_Console(to, has_colours=has_colours))
    else:
        handler.setFormatter(_Text())
    log.handlers = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def _fields(event: Event) -> dict[str, object]:
    """Return the fields of an event, with its instants as text."""
    found = {
        name: value for name, value in msgspec.to_builtins(event).items() if name not in OMITTED
    }
    for name, as_text in INSTANTS.items():
        if isinstance(found.get(name), int):
            found[name] = as_text(found[name])
    return found


class _Text(logging.Formatter):
    """`12:00:00.123 run.started   report run_at=… attempt=1`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_clock(record.created)}.{int(record.msecs):03} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": rfc3339_ms(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _line(name: str, fields: Mapping[str, object]) -> str:
    """Return an event as one line: its name, the schedule, and the other fields by name."""
    rest = dict(fields)
    schedule = f" {rest.pop('schedule_id')}" if "schedule_id" in rest else ""
    return (
        f"{name:<18}{schedule}{''.join(f' {key}={_quoted(value)}' for key, value in rest.items())}"
    )


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text else json.dumps(text)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _when(t: int, now: int) -> str:
    """Return an instant in local time, with its date unless that is today's."""
    day, today = (time.strftime("%Y-%m-%d ", time.localtime(each / 1000)) for each in (t, now))
    return f"{'' if day == today else day}{_clock(t / 1000)}"


class _Console(logging.Formatter):
    """`12:00:00  started    report                run 7, +12 ms`, cut to the terminal's width."""

    def __init__(self, stream: TextIO, *, has_colours: bool) -> None:
        super().__init__()
        self._stream, self._has_colours = stream, has_colours
        self._due, self._started = _Recent(), _Recent()  # of runs in flight, in milliseconds

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "source", None)
        clock = self._painted(_clock(record.created), "dim")
        if not isinstance(event, Event):
            level = record.levelname.lower()
            word = self._painted(f"{level:<{WORD}}", COLOUR_OF_LEVEL.get(level, ""))
            line = f"{clock}  {word}  {_printable(record.getMessage())}"
            return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
        word, colour = WORDS.get(event.name, (event.name, ""))
        details = ", ".join(filter(None, self._details(event, round(record.created * 1000))))
        rest = _printable(f"{_subject(event):<{SUBJECT}}  {details}").rstrip()
        room = self._width() - len(f"00:00:00  {word:<{WORD}}  ")
        rest = rest if len(rest) <= room else f"{rest[: max(room - 1, 0)]}…"
        return f"{clock}  {self._painted(f'{word:<{WORD}}', colour)}  {rest}".rstrip()

    def _details(self, event: Event, at: int) -> list[str]:
        match event:
            case RunEnqueued():
                self._due.put(event.run_id, event.due_at)
                due = f"due {_when(event.due_at, at)}" if event.due_at > at else ""
                behind = f"behind run {event.blocked_by}" if event.blocked_by else ""
                return [_run(event), _cause(event.triggered_by), behind or due]
            case RunStarted():
                due_at = self._due.pop(event.run_id) if event.due_at is None else event.due_at
                self._started.put(event.run_id, at)
                late = "" if due_at is None else f"+{_length(max(at - due_at, 0))}"
                cause = _cause(event.triggered_by) if event.attempt == 1 else ""
                return [_run(event), _attempt(event.attempt), cause, late]
            case RunSucceeded() | RunFailed() | RunCanceled() | RunRetrying() | RunAccepted():
                began = self._started.pop(event.run_id)
                took = "" if began is None else f"after {_length(max(at - began, 0))}"
                if isinstance(event, RunRetrying):
                    self._due.put(event.run_id, event.due_at)
                return [_run(event), took, *_outcome(event, at)]
            case _:
                return _description(event, at)

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if colour and self._has_colours else text

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or LINE
        except (OSError, ValueError):
            return LINE


class _Recent:
    """A time for each of the latest runs."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def put(self, run_id: int, at: int) -> None:
        self._times[run_id] = at
        if len(self._times) > MOST_RUNS:
            del self._times[next(iter(self._times))]

    def pop(self, run_id: int) -> int | None:
        return self._times.pop(run_id, None)


def _subject(event: Event) -> str:
    """Return what an event is about: a schedule, a node, a group, a channel, a token."""
    for name in ("schedule_id", "node", "node_id", "group", "channel", "token_id", "document"):
        if text := str(getattr(event, name, "")):
            return text[:SHORT_ID] if name in ("node_id", "token_id") else text
    return ""


def _outcome(
    event: RunSucceeded | RunFailed | RunCanceled | RunRetrying | RunAccepted, at: int
) -> list[str]:
    match event:
        case RunSucceeded():
            return [_attempt(event.attempt)]
        case RunFailed():
            in_a_row = f"{event.failures} in a row" if event.failures > 1 else ""
            return [_attempt(event.attempt), in_a_row, _reason(event.reason, event.error)]
        case RunRetrying():
            retry = f"attempt {event.attempt + 1} at {_when(event.due_at, at)}"
            return [retry, _reason(event.reason, event.error)]
        case RunAccepted():
            return [f"outcome expected by {_when(event.deadline_at, at)}"]
        case RunCanceled():
            return [_reason(event.reason, event.error)]


def _description(event: Event, at: int) -> list[str]:
    """Return the other fields of an event, in its own words if there are any."""
    match event:
        case ScheduleCreated() | ScheduleChanged():
            first = "" if event.run_at is None else f"next {_when(event.run_at * 1000, at)}"
            return [f"revision {event.revision}", first]
        case RunSkipped():
            ticks = f"{event.tick_count} ticks" if event.tick_count > 1 else ""
            behind = f"run {event.blocked_by} is in flight" if event.blocked_by else ""
            return [_run(event), event.reason, ticks, behind]
        case NodeStarted() | NodeLost():
            lost = f"{event.lost} runs lost" if event.lost else ""
            back = f"{event.handed_back} runs handed back" if event.handed_back else ""
            return [lost, back]
        case TokenCreated() | TokenRevoked() | SessionOpened():
            return [f"scope {event.scope}", event.owner and f"owner {event.owner}"]
        case GateChanged():
            return ["open" if event.open else "closed: nothing is decided and nothing starts"]
        case _:
            left_out = {"schedule_id", "node", "node_id", "group", "channel", "token_id", "fence"}
            fields = {k: v for k, v in _fields(event).items() if k not in left_out}
            run = f"run {fields.pop('run_id')}" if "run_id" in fields else ""
            return [run, " ".join(f"{key}={_quoted(value)}" for key, value in fields.items())]


def _run(event: object) -> str:
    return f"run {getattr(event, 'run_id', '')}"


def _attempt(attempt: int) -> str:
    return f"attempt {attempt}" if attempt > 1 else ""


def _cause(triggered_by: str) -> str:
    return "" if triggered_by == "timer" else triggered_by


def _reason(reason: str, error: str) -> str:
    """Return the reason of an outcome, with its error unless that begins with it."""
    return error if not reason or error.startswith(reason) else f"{reason}: {error}".rstrip(": ")


def _length(ms: int) -> str:
    """Return a length of time with its unit: `12 ms`, `1.2 s`, `3 min`."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else span(ms)


def _printable(text: str) -> str:
    """Return a text as one line, without characters that control a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


WORD, SUBJECT, SHORT_ID = 9, 20, 12  # characters
LINE = 100  # characters, if the width of the terminal is not known
MOST_RUNS = 10_000  # whose times are remembered
CODES = {"dim": 90, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}
COLOUR_OF_LEVEL = {"warning": "yellow", "error": "red", "critical": "red", "debug": "dim"}
WORDS = {
    "schedule.created": ("created", "green"),
    "schedule.changed": ("changed", "green"),
    "schedule.paused": ("paused", "yellow"),
    "schedule.resumed": ("resumed", "green"),
    "schedule.armed": ("armed", ""),
    "schedule.deleted": ("deleted", "yellow"),
    "schedule.parked": ("parked", "red"),
    "run.enqueued": ("enqueued", "blue"),
    "run.skipped": ("skipped", "dim"),
    "run.released": ("released", "blue"),
    "run.claimed": ("claimed", "dim"),
    "run.started": ("started", "cyan"),
    "run.handed_back": ("returned", "dim"),
    "run.succeeded": ("succeeded", "green"),
    "run.retrying": ("retrying", "yellow"),
    "run.failed": ("failed", "red"),
    "run.accepted": ("accepted", "cyan"),
    "run.stuck": ("stuck", "yellow"),
    "run.end_asked": ("canceling", "yellow"),
    "run.canceled": ("canceled", "yellow"),
    "node.started": ("node up", "green"),
    "node.stopped": ("node down", "yellow"),
    "node.lost": ("node lost", "red"),
    "gate.changed": ("gate", "yellow"),
    "group.changed": ("group", ""),
    "notice.sent": ("notified", ""),
    "notice.failed": ("unsent", "red"),
    "notice.in_doubt": ("in doubt", "red"),
    "store.restored": ("restored", "yellow"),
    "history.pruned": ("pruned", "dim"),
    "token.created": ("token", ""),
    "token.revoked": ("revoked", ""),
    "session.opened": ("session", ""),
}  # of events on a terminal; others have their own name
