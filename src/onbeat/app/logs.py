"""Events as log lines: one line each, for people or for machines."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import TextIO

import msgspec

from onbeat.core.time.instants import rfc3339, rfc3339_ms
from onbeat.events import Event

log = logging.getLogger("onbeat")
log.addHandler(logging.NullHandler())  # a program that sets up no logging is not written to

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
UNTOLD = {"name", "definition"}  # too long for a line


def write_log(events: Sequence[Event]) -> None:
    """Log what happened, each event at its own level."""
    told_of = {name for name, level in LEVELS.items() if log.isEnabledFor(level)}
    for event in events:
        if event.level in told_of:
            told = _fields(event)
            extra = {"event": event.name, "told": told}
            log.log(LEVELS[event.level], "%s", _line(event.name, told), extra=extra)


def set_up(*, level: str, as_json: bool, stream: TextIO | None = None) -> None:
    """Have the log written to a stream, as text or as JSON."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    log.handlers = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def _fields(event: Event) -> dict[str, object]:
    """Return what an event says, with its instants as people read them."""
    found = {
        name: value for name, value in msgspec.to_builtins(event).items() if name not in UNTOLD
    }
    for name, as_text in INSTANTS.items():
        if isinstance(found.get(name), int):
            found[name] = as_text(found[name])
    return found


class _Text(logging.Formatter):
    """`12:00:00.123 run.started   report run_at=… attempt=1`."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{clock}.{int(record.msecs):03} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "at": rfc3339_ms(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
            **getattr(record, "told", {}),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _line(name: str, told: dict[str, object]) -> str:
    """Return an event as one line: its name, the schedule, and the rest by name."""
    rest = dict(told)
    whom = f" {rest.pop('schedule_id')}" if "schedule_id" in rest else ""
    return f"{name:<18}{whom}{''.join(f' {key}={_shown(value)}' for key, value in rest.items())}"


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and text and " " not in text else json.dumps(text)
