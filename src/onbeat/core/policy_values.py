"""The values of policies that have a form of their own: groups, rates, and retries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from onbeat.core.fields import Field, length_text, read_length, read_number
from onbeat.core.json_schema import LENGTH, Schema, record
from onbeat.core.triggers.codec import check_names
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

Per = Literal["minute", "hour", "day"]
RetryOn = Literal[
    "exit", "timeout", "error", "launch_failed"
]  # failures that another attempt may fix

RATE_FORM = re.compile(r" *([0-9]{1,9}) */ *(minute|hour|day|min|m|h|d) *")
GROUP_FORM = re.compile(r"[A-Za-z0-9._/-]{1,100}")
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


def _read_group(value: object) -> str:
    if not isinstance(value, str) or not GROUP_FORM.fullmatch(value):
        hint = "letters, digits and . _ / -, at most 100"
        raise InvalidSchedule("", f"{quote_value(value)} is not a valid group name", hint=hint)
    return value


def _read_rate(value: object) -> Rate:
    match = RATE_FORM.fullmatch(value) if isinstance(value, str) else None
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
        jitter = read_length(value.get("jitter", "0s"))
    with in_field("on"):
        on = None if "on" not in value else _read_reasons(value["on"])
    if is_listed:
        with in_field("delays"):
            return Retries(_delays(value["delays"]), jitter, on)
    for name in ("attempts", "backoff"):
        if name not in value:
            raise InvalidSchedule(name, "it is missing", hint=hint)
    with in_field("attempts"):
        attempts = read_number(value["attempts"], first=1, last=MAX_RETRY_DELAYS + 1)
    with in_field("backoff"):
        delay = read_length(value["backoff"], least=1, bounds="1ms or more")
    with in_field("max"):
        longest = read_length(value.get("max", "24h"), least=1, bounds="1ms or more")
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
            delays.append(read_length(delay))
    return tuple(delays)


_ON: Schema = {
    "type": "array", "items": {"enum": list(get_args(RetryOn))}, "minItems": 1,
    "description": "only after these failures; default: after all of them",
}  # fmt: skip
_DELAYS: Schema = {"type": "array", "items": LENGTH, "maxItems": MAX_RETRY_DELAYS}
_ATTEMPTS: Schema = {"type": "integer", "minimum": 1, "maximum": MAX_RETRY_DELAYS + 1}

NO_RETRIES = Retries()
GROUP = Field(
    "its runs share the places of this group with other schedules",
    _read_group,
    {"type": "string", "pattern": f"^(?:{GROUP_FORM.pattern})$"},
)
RATE = Field(
    "the maximum rate of runs; further ticks are skipped",
    _read_rate,
    {
        "type": "string",
        "examples": ["10/hour"],
        "pattern": "^ *[0-9]{1,9} */ *(?:minute|hour|day|min|m|h|d) *$",
    },
    str,
)
RETRY = Field(
    "the delay of another attempt after each failure",
    _read_retries,
    {
        "anyOf": [
            _DELAYS,
            record(
                {
                    "attempts": _ATTEMPTS,
                    "backoff": LENGTH,
                    "max": LENGTH,
                    "jitter": LENGTH,
                    "on": _ON,
                },
                required=("attempts", "backoff"),
            ),
            record({"delays": _DELAYS, "jitter": LENGTH, "on": _ON}, required=("delays",)),
        ],
        "examples": [["30s", "2m", "10m"], {"attempts": 5, "backoff": "30s", "max": "10m"}],
    },
    _write_retries,
)
