"""Policies: how ticks are decided and runs are handled, as values and as fields.

`write_policy(read_policy(fields))` is canonical: defaults are left out.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Literal, NamedTuple, get_args

from onbeat.core.time.durations import Duration, parse_duration
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

Overlap = Literal["skip", "queue", "allow", "replace"]
Catchup = Literal["once", "none", "all", "spread"]
OnLost = Literal["fail", "retry"]
QueueKeep = Literal["first", "latest"]
Per = Literal["minute", "hour", "day"]
RetryOn = Literal[
    "exit", "timeout", "error", "launch_failed"
]  # failures that another attempt may fix

MILLISECONDS = re.compile(r" *([0-9]{1,12})ms *")
RATE = re.compile(r" *([0-9]{1,9}) */ *(minute|hour|day|min|m|h|d) *")
GROUP = re.compile(r"[A-Za-z0-9._/-]{1,100}")
MAX_RETRY_DELAYS = 100  # in one list
PERIODS: dict[str, int] = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}


@dataclass(frozen=True, slots=True)
class Retries:
    """The delay of the next attempt after the n-th failure, and the jitter of that delay."""

    delays: tuple[int, ...] = ()
    jitter: int = 0
    on: tuple[RetryOn, ...] | None = None  # only after these failures; None: after all in RetryOn

    def allows_retry(self, reason: str, *, failures: int) -> bool:
        """Return whether another attempt follows so many failures, the last one for `reason`."""
        return failures <= len(self.delays) and (self.on is None or reason in self.on)


@dataclass(frozen=True, slots=True)
class Rate:
    """A maximum number of runs in any period of this length: a sliding window, not a fixed one."""

    most: int
    per: Per

    @property
    def length(self) -> int:
        return PERIODS[self.per]

    def __str__(self) -> str:
        return f"{self.most}/{self.per}"


@dataclass(frozen=True, slots=True)
class Policy:
    """How ticks are decided and runs are handled. Durations are in milliseconds."""

    enabled: bool = True  # otherwise each tick is skipped, with a reason
    grace: int = 60_000  # a tick decided within it is on time; later it is missed
    catchup: Catchup = "once"  # which missed ticks run: the latest for all, none, or each
    catchup_window: int = 24 * 3_600_000  # missed ticks older than this are not caught up
    overlap: Overlap = "skip"  # what happens to a tick while a run is in flight
    queue_limit: int = 100  # how many may wait under `overlap: queue`
    queue_keep: QueueKeep = "first"  # which of them stay when the queue is full
    max_active: int | None = None  # how many may be in flight under `overlap: allow`
    jitter: int = 0  # a delay of up to this; the same tick always has the same
    jitter_around: bool = False  # the jitter is up to this before or after the tick
    retry: Retries = Retries()
    timeout: int | None = None  # a run that takes longer is canceled
    warn_after: int | None = None  # a run that takes longer is reported as stuck, and continues
    start_deadline: int | None = None  # a run that waits longer than this to start is skipped
    cancel_grace: int = 10_000  # how long a canceled run may take to end before it is killed
    on_lost: OnLost = (
        "fail"  # a run of a lost node is launched at most once (fail) or again (retry)
    )
    group: str | None = None  # its runs share the places of this group with other schedules
    priority: int = 0  # waiting runs with the highest priority start first
    rate: Rate | None = None  # the maximum rate of runs; further ticks are skipped
    pause_after: int | None = None  # the schedule is paused after so many failed runs in a row
    # Whether a run can be announced as soon as it is decided, whatever other runs exist.
    starts_directly: bool = field(init=False, repr=False, compare=False)
    # Whether the time alone decides a tick of a schedule without unfinished runs.
    is_plain: bool = field(init=False, repr=False, compare=False)

    @property
    def lateness(self) -> int:
        """How long after its due time a tick is still on time. The grace counts from `run_at`."""
        return self.grace + (self.jitter if self.jitter_around else 0)

    def __post_init__(self) -> None:
        waits = self.group or self.priority or self.start_deadline
        object.__setattr__(self, "starts_directly", not waits)
        varies = self.jitter or self.catchup == "spread" or self.rate is not None
        object.__setattr__(self, "is_plain", self.enabled and not varies)


def read_policy(fields: Mapping[str, object]) -> Policy:
    """Return the policy that these fields define. Fields left out have their defaults."""
    check_names(fields, POLICIES.keys())
    values = {}
    for name, value in fields.items():
        with in_field(name):
            values[name] = POLICIES[name].read(value)
    policy = Policy(**values)  # type: ignore[arg-type]
    _check_together(policy)
    return policy


def write_policy(policy: Policy) -> dict[str, object]:
    """Return the fields of a policy that are not at their default."""
    written: dict[str, object] = {}
    if policy == PLAIN:
        return written
    for name, default in DEFAULTS:
        value = getattr(policy, name)
        if value != default:
            written[name] = POLICIES[name].write(value)
    return written


def length_text(ms: int) -> str:
    """Return a duration as text: `90s`, or `1500ms`."""
    return f"{ms}ms" if ms % 1000 else str(Duration(seconds=ms // 1000))


def _check_together(policy: Policy) -> None:
    """Refuse fields that have no effect with the others."""
    written = write_policy(policy)
    for name, needs in (("max_active", "allow"), ("queue_limit", "queue"), ("queue_keep", "queue")):
        if name in written and policy.overlap != needs:
            problem = f"it has no effect with overlap: {policy.overlap}"
            raise InvalidSchedule(name, problem, hint=f"overlap: {needs}")
    if policy.jitter_around and not policy.jitter:
        raise InvalidSchedule(
            "jitter_around", "it has no effect without jitter", hint="jitter: 30s"
        )


class _Field(NamedTuple):
    """How a field is read, and how its value is written."""

    read: Callable[[object], object]
    write: Callable[..., object] = lambda value: value


def _duration(*, least: int = 0) -> _Field:
    return _Field(partial(_read_duration, least=least), length_text)


def _read_duration(value: object, *, least: int = 0) -> int:
    short = MILLISECONDS.fullmatch(value) if isinstance(value, str) else None
    ms = int(short[1]) if short else parse_duration(value).elapsed * 1000
    if ms < least:
        raise InvalidSchedule(
            "", f"{quote_value(value)} is too short", hint=f"{length_text(least)} or more"
        )
    return ms


def _number(first: int, last: int) -> _Field:
    return _Field(partial(_read_number, first=first, last=last))


def _read_number(value: object, *, first: int, last: int) -> int:
    if type(value) is not int or not first <= value <= last:
        hint = f"a whole number, {first} to {last}"
        raise InvalidSchedule("", f"{quote_value(value)} is not a valid number", hint=hint)
    return value


def _choice(kind: object) -> _Field:
    choices = get_args(kind)

    def read(value: object) -> str:
        if value not in choices:
            listed = f"known: {', '.join(choices)}"
            hint = did_you_mean(value, choices) if isinstance(value, str) else listed
            raise InvalidSchedule("", f"{quote_value(value)} is not a valid value", hint=hint)
        return str(value)

    return _Field(read)


def read_flag(value: object) -> bool:
    """Return a Boolean, or refuse any other value."""
    if not isinstance(value, bool):
        raise InvalidSchedule(
            "", f"{quote_value(value)} is neither true nor false", hint="true or false"
        )
    return value


def _read_group(value: object) -> str:
    if not isinstance(value, str) or not GROUP.fullmatch(value):
        hint = "letters, digits and . _ / -, at most 100"
        raise InvalidSchedule("", f"{quote_value(value)} is not a valid group name", hint=hint)
    return value


def _read_rate(value: object) -> Rate:
    match = RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= 1000:
        problem = f"{quote_value(value)} is not a rate"
        raise InvalidSchedule("", problem, hint="such as 10/hour or 3/day, 1000 at most")
    (per,) = (name for name in get_args(Per) if name.startswith(match[2]))
    return Rate(int(match[1]), per)


def _read_retries(value: object) -> Retries:
    """Read `[30s, 2m, 10m]`, or `{attempts: 5, backoff: 30s, max: 10m, jitter: 5s, on: [exit]}`."""
    if isinstance(value, (list, tuple)):
        return Retries(_delays(value))
    hint = "[30s, 2m, 10m] or {attempts: 5, backoff: 30s, max: 10m}"
    if not isinstance(value, Mapping):
        raise InvalidSchedule("", f"{quote_value(value)} is not a list of delays", hint=hint)
    is_listed = "delays" in value
    names = {"delays"} if is_listed else {"attempts", "backoff", "max"}
    check_names(value, names | {"jitter", "on"})
    with in_field("jitter"):
        jitter = _read_duration(value.get("jitter", "0s"))
    with in_field("on"):
        on = None if "on" not in value else _read_reasons(value["on"])
    if is_listed:
        with in_field("delays"):
            return Retries(_delays(value["delays"]), jitter, on)
    for name in ("attempts", "backoff"):
        if name not in value:
            raise InvalidSchedule(name, "it is missing", hint=hint)
    with in_field("attempts"):
        attempts = _read_number(value["attempts"], first=1, last=MAX_RETRY_DELAYS + 1)
    with in_field("backoff"):
        delay = _read_duration(value["backoff"], least=1)
    with in_field("max"):
        longest = _read_duration(value.get("max", "24h"), least=1)
    return Retries(tuple(min(delay << n, longest) for n in range(attempts - 1)), jitter, on)


def _read_reasons(value: object) -> tuple[RetryOn, ...]:
    reasons: tuple[RetryOn, ...] = get_args(RetryOn)
    if not isinstance(value, (list, tuple)) or not value:
        raise InvalidSchedule("", f"{quote_value(value)} is not a list of reasons", hint="[exit]")
    for i, reason in enumerate(value):
        if reason not in reasons:
            listed = f"known: {', '.join(reasons)}"
            hint = did_you_mean(reason, reasons) if isinstance(reason, str) else listed
            raise InvalidSchedule(
                f"[{i}]", f"{quote_value(reason)} is not a valid reason", hint=hint
            )
    return tuple(reason for reason in reasons if reason in value)


def _write_retries(retries: Retries) -> object:
    delays = [length_text(ms) for ms in retries.delays]
    jitter = {"jitter": length_text(retries.jitter)} if retries.jitter else {}
    on = {"on": list(retries.on)} if retries.on is not None else {}
    return {"delays": delays, **jitter, **on} if jitter or on else delays


def _delays(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidSchedule(
            "", f"{quote_value(value)} is not a list of delays", hint="[30s, 2m, 10m]"
        )
    if len(value) > MAX_RETRY_DELAYS:
        raise InvalidSchedule("", f"{len(value)} delays", hint=f"{MAX_RETRY_DELAYS} at most")
    delays = []
    for i, delay in enumerate(value):
        with in_field(f"[{i}]"):
            delays.append(_read_duration(delay))
    return tuple(delays)


POLICIES: dict[str, _Field] = {
    "enabled": _Field(read_flag),
    "grace": _duration(least=1000),
    "catchup": _choice(Catchup),
    "catchup_window": _duration(),
    "overlap": _choice(Overlap),
    "queue_limit": _number(1, 10_000),
    "queue_keep": _choice(QueueKeep),
    "max_active": _number(1, 10_000),
    "jitter": _duration(),
    "jitter_around": _Field(read_flag),
    "retry": _Field(_read_retries, _write_retries),
    "timeout": _duration(least=1000),
    "warn_after": _duration(least=1000),
    "start_deadline": _duration(least=1000),
    "cancel_grace": _duration(),
    "on_lost": _choice(OnLost),
    "group": _Field(_read_group),
    "priority": _number(-100, 100),
    "rate": _Field(_read_rate, str),
    "pause_after": _number(1, 1000),
}
PLAIN = Policy()
# The name and the default of each field.
DEFAULTS = tuple((each.name, each.default) for each in fields(Policy) if each.init)
