"""Notification rules and messages.

A notice is an event that a channel may be notified of. The rule of a channel selects notices. The
notices selected in one pass form one message, a `MessageContent`, rendered as text or as fields.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from onbeat.core.explain.reasons import SENTENCES
from onbeat.core.time.instants import rfc3339, rfc3339_ms

Kind = Literal["failure", "recovery", "success", "missed", "late", "parked", "stuck", "test"]
State = Literal["waiting", "sent", "failed", "in_doubt"]

MOST_NOTICES = 50  # notices in one message; further ones are only counted
LONGEST_LINE = 300  # characters of an error that are included
BACKOFF = (5_000, 30_000, 120_000, 600_000, 3_600_000)  # milliseconds before each further attempt
LONGEST_WAIT = 3_600_000  # milliseconds that a target may request

# Shorter forms of those sentences of `why` that contain values of a policy.
SHORTER = {
    "missed": "it was not decided within its grace",
    "edited": "its schedule was edited, and an edit does not start past ticks",
    "deadline": "it had not started by its start_deadline",
    "group_full": "no place in its group was free by its start_deadline",
    "queue_full": "the queue was full",
    "superseded": "it was replaced by a newer tick",
    "condition": "its condition (when) did not hold",
    "gate_off": "the gate was closed",
    "paused": "the schedule was paused",
    "exit": "the program failed",
    "overlap": "a run was in flight, as at the previous five ticks or more",
}


STUCK = {"warn_after": "its warn_after", "p99": "three times the p99 of its last runs"}


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened to a schedule."""

    kind: Kind
    schedule_id: str
    at: int  # milliseconds
    run_id: int | None = None
    run_at: int | None = None  # seconds
    reason: str = ""
    error: str = ""  # its first line
    failures: int = 0  # failed runs in a row: including this one, or before a recovery
    late: int = 0  # milliseconds
    first_run_at: int | None = None  # of a range of ticks
    tick_count: int = 1
    lasts: int = 0  # milliseconds: how long a stuck run has been running
    limit: int = 0  # milliseconds after which a run is stuck


class Rule(msgspec.Struct, frozen=True):
    """Which notices a channel is notified of."""

    kinds: frozenset[str]
    failures: frozenset[int] = frozenset()  # also these numbers of failures in a row
    schedules: tuple[str, ...] = ("*",)  # ids, in which * and ? are wildcards
    late: int = 60_000  # milliseconds from which on a start is late

    @property
    def wants_successes(self) -> bool:
        return "success" in self.kinds

    def hears(self, notice: Notification) -> bool:
        """Return whether a notice matches."""
        return self._matches_kind(notice) and any(
            _matches(glob, notice.schedule_id) for glob in self.schedules
        )

    def _matches_kind(self, notice: Notification) -> bool:
        match notice.kind:
            case "failure":
                return "failure" in self.kinds or notice.failures in self.failures
            case "recovery":
                # A recovery is reported only if a failure before it was.
                notified = "failure" in self.kinds or notice.failures >= min(
                    self.failures, default=0
                )
                return ("recovery" in self.kinds and notified) or self.wants_successes
            case "late":
                return "late" in self.kinds and notice.late >= self.late
            case _:
                return notice.kind in self.kinds


class MessageContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a message: notices, and the number of further notices."""

    notices: tuple[Notification, ...]
    more: int = 0

    def joined(self, other: "MessageContent") -> "MessageContent":
        """Return both contents as one, with at most MOST_NOTICES notices."""
        both = compose_message(self.notices + other.notices)
        return MessageContent(both.notices, both.more + self.more + other.more)

    @property
    def count(self) -> int:
        """The number of notices, including those not listed."""
        return len(self.notices) + self.more


def compose_message(notices: Iterable[Notification]) -> MessageContent:
    """Return the content of one message, with at most MOST_NOTICES notices."""
    found = tuple(notices)
    return MessageContent(found[:MOST_NOTICES], max(len(found) - MOST_NOTICES, 0))


class OutgoingMessage(msgspec.Struct, frozen=True):
    """A message that is being sent. Its key is the same for every attempt."""

    message_id: int
    channel: str
    key: str
    bundle: MessageContent
    created_at: int
    attempt: int  # counted from 1

    @property
    def is_last_try(self) -> bool:
        return self.attempt > len(BACKOFF)


class Delivered(msgspec.Struct, frozen=True):
    """The message was accepted. `note` names the recipients that refused it."""

    note: str = ""


class DeliveryRefused(msgspec.Struct, frozen=True):
    """The message was not accepted. It is sent `again` later if the refusal may be temporary."""

    error: str
    again: bool = True
    wait: int = 0  # milliseconds that the target requested


class DeliveryUnknown(msgspec.Struct, frozen=True):
    """The message was sent, and whether it was accepted is unknown."""

    error: str


Delivery = Delivered | DeliveryRefused | DeliveryUnknown


class DeliveryResult(msgspec.Struct, frozen=True):
    """The outcome of a delivery, as stored."""

    state: State
    error: str = ""
    wait: int = 0  # milliseconds until the next attempt


def delivery_result(letter: OutgoingMessage, delivery: Delivery) -> DeliveryResult:
    """Decide what follows: a message is sent again only if it certainly was not accepted."""
    match delivery:
        case Delivered(note):
            return DeliveryResult("sent", note)
        case DeliveryUnknown(error):
            return DeliveryResult("in_doubt", error)
        case DeliveryRefused(error, again, wait):
            if not again or letter.is_last_try:
                return DeliveryResult("failed", error)
            requested = min(wait, LONGEST_WAIT)
            return DeliveryResult("waiting", error, max(BACKOFF[letter.attempt - 1], requested))


def first_line(text: str) -> str:
    """Return the first line of a text that is not blank, cleaned and shortened for a message."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    clean = "".join(c if c.isprintable() else " " for c in line[: 4 * LONGEST_LINE])
    short = " ".join(clean.split())
    return short if len(short) <= LONGEST_LINE else f"{short[: LONGEST_LINE - 3]}..."


# -- rendering


def subject(content: MessageContent) -> str:
    """Return the subject line of a message."""
    if not content.notices:
        return f"[onbeat] {content.more} notices"
    others = content.count - 1
    more = f", and {others} more" if others else ""
    return f"[onbeat] {headline(content.notices[0])}{more}"


def text(content: MessageContent) -> str:
    """Return the text of a message."""
    parts = ["\n".join(_lines(notice)) for notice in content.notices]
    if content.more:
        parts.append(f"and {content.more} more, not listed here (onbeat runs)")
    return "\n\n".join(parts) + "\n"


def headline(notice: Notification) -> str:
    """Return a short headline of a notice."""
    name, n = notice.schedule_id, notice.failures
    match notice.kind:
        case "failure":
            return f"{name} failed" + (f" ({n} in a row)" if n > 1 else "")
        case "recovery":
            return f"{name} works again (after {n} failure{'s' * (n != 1)})"
        case "success":
            return f"{name} succeeded"
        case "missed":
            ticks = "a tick" if notice.tick_count == 1 else f"{notice.tick_count} ticks"
            return f"{name} missed {ticks}"
        case "late":
            return f"{name} started {_length(notice.late)} late"
        case "parked":
            return f"{name} cannot be planned"
        case "stuck":
            return f"{name} has been running for {_length(notice.lasts)}"
        case "test":
            return "a test: this channel works"


def why(notice: Notification) -> str:
    """Return why it happened, or an empty text if that is not known."""
    if notice.kind == "stuck":
        return f"{STUCK.get(notice.reason, 'its limit')} is {_length(notice.limit)}"
    sentence = SHORTER.get(notice.reason) or SENTENCES.get(notice.reason, "")  # type: ignore[call-overload]
    sentence = str(sentence)
    if "{error}" in sentence:
        return sentence.replace("{error}", notice.error or "details are not known")
    if "{" in sentence:
        sentence = ""
    if notice.error:
        return f"{sentence}: {notice.error}" if sentence else notice.error
    return sentence


def fields(content: MessageContent) -> dict[str, object]:
    """Return the fields of a message as JSON."""
    return {
        "subject": subject(content),
        "text": text(content),
        "notices": [_fields(notice) for notice in content.notices],
        "more": content.more,
    }


def _fields(notice: Notification) -> dict[str, object]:
    first = notice.first_run_at
    return {
        "kind": notice.kind,
        "schedule_id": notice.schedule_id,
        "at": rfc3339_ms(notice.at),
        "headline": headline(notice),
        "why": why(notice),
        "run_id": notice.run_id,
        "run_at": None if notice.run_at is None else rfc3339(notice.run_at),
        "first_run_at": None if first is None else rfc3339(first),
        "tick_count": notice.tick_count,
        "reason": notice.reason or None,
        "error": notice.error or None,
        "failures": notice.failures,
        "late_ms": notice.late,
        "lasts_ms": notice.lasts,
        "limit_ms": notice.limit,
    }


def _lines(notice: Notification) -> Sequence[str]:
    rows = [("at", rfc3339_ms(notice.at))]
    if notice.run_at is not None:
        last = rfc3339(notice.run_at)
        first = notice.first_run_at
        ranged = first is not None and first != notice.run_at
        rows = [("planned", f"{rfc3339(first)} to {last}" if ranged and first else last)]
    if reason := why(notice):
        rows.append(("why", reason))
    if notice.run_id is not None:
        rows.append(("run", str(notice.run_id)))
    if notice.kind != "test":
        at = "" if notice.run_at is None else f" {rfc3339(notice.run_at)}"
        rows.append(("look", f"onbeat why {notice.schedule_id}{at}"))
    return [headline(notice), *(f"  {name:<8} {value}" for name, value in rows)]


def _length(ms: int) -> str:
    seconds = ms // 1000
    parts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{n}{unit}" for n, unit in parts if n) or f"{ms}ms"


def _matches(glob: str, schedule_id: str) -> bool:
    return _pattern(glob).fullmatch(schedule_id) is not None


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    parts = ["".join("." if c == "?" else re.escape(c) for c in part) for part in glob.split("*")]
    if len(parts) == 1:
        return re.compile(parts[0])
    first, *others, last = parts
    # Each part matches where it first fits, without backtracking, which could take too long.
    return re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in others)}.*{last}")
