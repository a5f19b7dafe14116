"""Who hears of what, and in which words.

A notice is something that happened and that somebody may want to hear of. A rule says of which
notices a channel hears; those of one look become one message, a `MessageContent`, told in words or fields.
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

MOST_TOLD = 50  # notices in one message; of further ones only their number is told
LONGEST_LINE = 300  # characters of an error that are told
BACKOFF = (5_000, 30_000, 120_000, 600_000, 3_600_000)  # milliseconds before each further try
LONGEST_WAIT = 3_600_000  # milliseconds that a target may ask for

# Sentences of `why` that speak of a policy, as they are without it.
SHORTER = {
    "missed": "nothing decided it within its grace",
    "edited": "its schedule was edited, which starts nothing of the past",
    "deadline": "it could not start before its start_deadline was over",
    "group_full": "its group had no place until its start_deadline ended",
    "queue_full": "too many runs were waiting already",
    "superseded": "a newer tick took its place",
    "condition": "its condition (when) did not hold",
    "gate_off": "the gate was closed",
    "paused": "the schedule was paused",
    "exit": "the program failed",
    "overlap": "a run was in flight, as at five ticks or more before it",
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
    error: str = ""  # the first line of it
    failures: int = 0  # in a row: with this one, or before it if it is a recovery
    late: int = 0  # milliseconds
    first_run_at: int | None = None  # of a range of ticks
    tick_count: int = 1
    lasts: int = 0  # milliseconds, of a run that is stuck
    limit: int = 0  # milliseconds after which it counts as that


class Rule(msgspec.Struct, frozen=True):
    """Of which notices a channel hears."""

    kinds: frozenset[str]
    failures: frozenset[int] = frozenset()  # how many in a row it hears of, besides
    schedules: tuple[str, ...] = ("*",)  # ids, in which * and ? stand for others
    late: int = 60_000  # milliseconds from which on a start is late

    @property
    def wants_successes(self) -> bool:
        return "success" in self.kinds

    def hears(self, notice: Notification) -> bool:
        """Return whether a notice is one of those."""
        return self._is_about(notice) and any(
            _matches(glob, notice.schedule_id) for glob in self.schedules
        )

    def _is_about(self, notice: Notification) -> bool:
        match notice.kind:
            case "failure":
                return "failure" in self.kinds or notice.failures in self.failures
            case "recovery":
                # Whoever hears only of the third failure has not heard of the first.
                told = "failure" in self.kinds or notice.failures >= min(self.failures, default=0)
                return ("recovery" in self.kinds and told) or self.wants_successes
            case "late":
                return "late" in self.kinds and notice.late >= self.late
            case _:
                return notice.kind in self.kinds


class MessageContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one message tells: notices, and how many there are more."""

    notices: tuple[Notification, ...]
    more: int = 0

    def joined(self, other: "MessageContent") -> "MessageContent":
        """Return both as one, no longer than one may be."""
        both = compose_message(self.notices + other.notices)
        return MessageContent(both.notices, both.more + self.more + other.more)

    @property
    def count(self) -> int:
        """How many notices it is about."""
        return len(self.notices) + self.more


def compose_message(notices: Iterable[Notification]) -> MessageContent:
    """Return notices as one message, no longer than one may be."""
    found = tuple(notices)
    return MessageContent(found[:MOST_TOLD], max(len(found) - MOST_TOLD, 0))


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
    """It was taken; `note` tells by whom not."""

    note: str = ""


class DeliveryRefused(msgspec.Struct, frozen=True):
    """It surely was not taken. Where that is not for good, it may be `again`, later."""

    error: str
    again: bool = True
    wait: int = 0  # milliseconds that were asked for


class DeliveryUnknown(msgspec.Struct, frozen=True):
    """It was sent, and nobody said whether it was taken."""

    error: str


Delivery = Delivered | DeliveryRefused | DeliveryUnknown


class DeliveryResult(msgspec.Struct, frozen=True):
    """What is to be kept of a delivery."""

    state: State
    error: str = ""
    wait: int = 0  # milliseconds until it is tried again


def delivery_result(letter: OutgoingMessage, delivery: Delivery) -> DeliveryResult:
    """Decide what follows: it is never sent again unless it surely was not taken."""
    match delivery:
        case Delivered(note):
            return DeliveryResult("sent", note)
        case DeliveryUnknown(error):
            return DeliveryResult("in_doubt", error)
        case DeliveryRefused(error, again, wait):
            if not again or letter.is_last_try:
                return DeliveryResult("failed", error)
            asked = min(wait, LONGEST_WAIT)
            return DeliveryResult("waiting", error, max(BACKOFF[letter.attempt - 1], asked))


def first_line(text: str) -> str:
    """Return the first line of a text that says anything, as it may stand in a message."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    clean = "".join(c if c.isprintable() else " " for c in line[: 4 * LONGEST_LINE])
    short = " ".join(clean.split())
    return short if len(short) <= LONGEST_LINE else f"{short[: LONGEST_LINE - 3]}..."


# -- in words


def subject(told: MessageContent) -> str:
    """Return what a message is about, on one line."""
    if not told.notices:
        return f"[onbeat] {told.more} notices"
    others = told.count - 1
    more = f", and {others} more" if others else ""
    return f"[onbeat] {headline(told.notices[0])}{more}"


def text(told: MessageContent) -> str:
    """Return a message in words."""
    parts = ["\n".join(_lines(notice)) for notice in told.notices]
    if told.more:
        parts.append(f"and {told.more} more, which are not listed here (onbeat runs)")
    return "\n\n".join(parts) + "\n"


def headline(notice: Notification) -> str:
    """Return what happened, in a few words."""
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
    """Return why that happened, as far as it is known; else nothing."""
    if notice.kind == "stuck":
        return f"{STUCK.get(notice.reason, 'its limit')} is {_length(notice.limit)}"
    sentence = SHORTER.get(notice.reason) or SENTENCES.get(notice.reason, "")  # type: ignore[call-overload]
    sentence = str(sentence)
    if "{error}" in sentence:
        return sentence.replace("{error}", notice.error or "no more is known")
    if "{" in sentence:
        sentence = ""
    if notice.error:
        return f"{sentence}: {notice.error}" if sentence else notice.error
    return sentence


def fields(told: MessageContent) -> dict[str, object]:
    """Return a message as JSON tells it."""
    return {
        "subject": subject(told),
        "text": text(told),
        "notices": [_fields(notice) for notice in told.notices],
        "more": told.more,
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
    told = [("at", rfc3339_ms(notice.at))]
    if notice.run_at is not None:
        last = rfc3339(notice.run_at)
        first = notice.first_run_at
        ranged = first is not None and first != notice.run_at
        told = [("planned", f"{rfc3339(first)} to {last}" if ranged and first else last)]
    if reason := why(notice):
        told.append(("why", reason))
    if notice.run_id is not None:
        told.append(("run", str(notice.run_id)))
    if notice.kind != "test":
        at = "" if notice.run_at is None else f" {rfc3339(notice.run_at)}"
        told.append(("look", f"onbeat why {notice.schedule_id}{at}"))
    return [headline(notice), *(f"  {name:<8} {value}" for name, value in told)]


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
    # Each part is taken where it first fits and never again: else it could take for ever.
    return re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in others)}.*{last}")
