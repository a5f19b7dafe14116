"""Read the `schedule:` block of a flow into typed values, or refuse it, naming the field.

The block is in the YAML of `meta[].data` of a flow. Its only trigger is `cron`.
"""

import re
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from onbeat.core.fields import read_flag, read_number
from onbeat.core.policy_values import MAX_RETRY_DELAYS
from onbeat.core.schedule import ID, Schedule, read_schedule
from onbeat.core.time.durations import parse_duration
from onbeat.core.triggers.codec import KINDS, check_names
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.systems.field_names import renamed_errors

TIMER_NAME = "Timer"
TIMER_NAMESPACE = "kodosumi"  # the Ray namespace of the mirror actor
TIMER_USER = "timer"
SOURCE = "flows"  # the `source` of these schedules in the store
FIELDS = 5  # minute hour day month weekday
DIGEST = 12  # length of the digest of a key that is not a valid id
# Missed ticks run once, however long the timer was down; running flows are reattached.
POLICY: Mapping[str, object] = {"catchup_window": "8784h"}
FIELD_NAMES = {"run.inputs": "inputs", "run.python": "entry_point", "run.flow.url": "url"}
NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._/-]")
ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


class ScheduleConfig(msgspec.Struct, frozen=True):
    """The block `schedule:` of a flow. Delays are in seconds."""

    cron: str
    inputs: dict[str, object] = msgspec.field(default_factory=dict)
    enabled: bool = True
    timezone: str = "UTC"
    retry_count: int = 0
    retry_delay: int = 60
    entry_point: str = ""  # module:function, run on a Ray cluster instead of on the panel


class ScheduleStatus(msgspec.Struct, frozen=True):
    """The status of a scheduled flow. Instants are RFC 3339; an invalid one has only a reason."""

    key: str
    schedule_id: str
    cron: str | None = None
    timezone: str | None = None
    enabled: bool = False
    paused: bool = False
    inputs: dict[str, object] = msgspec.field(default_factory=dict)
    user: str = ""
    next_run: str | None = None
    last_run: str | None = None
    last_result: str | None = None
    running: list[int] = msgspec.field(default_factory=list)
    invalid: str | None = None


class TimerStatus(msgspec.Struct, frozen=True):
    """The status of the timer."""

    name: str
    pid: int | None
    running: bool
    interval: float  # seconds
    user: str
    exposes: str
    active: int  # running flows
    total: int  # scheduled flows
    invalid: dict[str, str]  # reasons, by key
    panel: str = ""  # its URL
    problems: list[str] = msgspec.field(default_factory=list)  # what keeps flows from running


def read_config(block: object) -> ScheduleConfig:
    """Return the config of a block, or refuse it, naming the invalid field."""
    with in_field("schedule"):
        if not isinstance(block, Mapping):
            hint = 'cron: "0 9 * * MON-FRI"'
            raise InvalidSchedule("", f"{quote_value(block)} is not a mapping", hint=hint)
        for kind in sorted(KINDS.keys() - {"cron"}):
            if kind in block:
                hint = 'cron: "*/15 * * * *" is every 15 minutes'
                raise InvalidSchedule(kind, "flows are scheduled by cron only", hint=hint)
        check_names(block, set(ScheduleConfig.__struct_fields__))
        if "cron" not in block:
            raise InvalidSchedule("cron", "it is missing", hint='cron: "0 9 * * MON-FRI"')
        fields = {name: value for name, value in block.items() if value is not None}
        try:
            return msgspec.convert(
                {name: _read(str(name), value) for name, value in fields.items()}, ScheduleConfig
            )
        except msgspec.ValidationError as refused:
            raise InvalidSchedule("", str(refused), hint="see the template") from None


def _read(name: str, value: object) -> object:
    """Return the value of a field, or refuse it."""
    match name:
        case "cron" if not isinstance(value, str):
            raise InvalidSchedule(
                name, f"{quote_value(value)} is not a string", hint='"0 9 * * MON-FRI"'
            )
        case "cron" if len(str(value).split()) != FIELDS and not str(value).startswith("@"):
            hint = "five: minute hour day month weekday"
            n = len(str(value).split())
            problem = f"{n} field{'s' * (n != 1)} in {quote_value(value)}"
            raise InvalidSchedule(name, problem, hint=hint)
        case "inputs" if not isinstance(value, Mapping):
            raise InvalidSchedule(
                name,
                f"{quote_value(value)} is not a mapping of names to values",
                hint="{limit: 100}",
            )
        case "enabled":
            with in_field(name):
                return read_flag(value)
        case "timezone" if not isinstance(value, str):
            raise InvalidSchedule(
                name, f"{quote_value(value)} is not a time zone", hint="such as Europe/Berlin"
            )
        case "retry_count":
            with in_field(name):
                return read_number(value, first=0, last=MAX_RETRY_DELAYS)
        case "retry_delay":
            return _delay(value)
        case "entry_point" if not isinstance(value, str) or not ENTRY_POINT.fullmatch(value):
            problem = f"{quote_value(value)} is not of the form module:function"
            raise InvalidSchedule(name, problem, hint="such as reports:main")
        case _:
            return value


def _delay(value: object) -> int:
    if type(value) is int and 0 <= value <= 86_400 * 7:
        return value
    if isinstance(value, str):
        with in_field("retry_delay"):
            return parse_duration(value).elapsed
    problem = f"{quote_value(value)} is not a duration"
    raise InvalidSchedule("retry_delay", problem, hint="seconds, or a string such as 5m")


def schedule_key(expose: str, url: str) -> str:
    """Return `expose_name/url` with single slashes and none at the end."""
    path = "/".join(part for part in url.split("/") if part)
    return f"{expose}/{path}" if path else expose


def schedule_id_of(key: str) -> str:
    """Return the schedule id of a key: the key if it is a valid id, else adapted, with a digest."""
    parts = key.split("/")
    plain = NOT_IN_AN_ID.sub("_", key)
    if plain == key and ID.fullmatch(key) and not {".", "..", ""} & set(parts):
        return key
    name = "/".join(part if part.strip(".") else f"_{part}" for part in plain.split("/"))
    digest = sha256(key.encode()).hexdigest()[:DIGEST]
    return f"{name[: 200 - DIGEST - 1].rstrip('/')}-{digest}"


def target_of(config: ScheduleConfig, *, url: str, key: str) -> dict[str, object]:
    """Return the target of a block: the flow on its panel, or its function on a Ray cluster."""
    inputs = {"inputs": config.inputs} if config.inputs else {}
    if config.entry_point:
        return {"python": config.entry_point, "on": "ray", **inputs}
    return {"flow": {"url": url, "key": key}, **inputs}


def schedule_of(config: ScheduleConfig, *, url: str, key: str) -> Schedule:
    """Return the schedule of a block; errors name the fields of the block."""
    retry = {"retry": [f"{config.retry_delay}s"] * config.retry_count} if config.retry_count else {}
    fields: dict[str, object] = {
        "cron": config.cron,
        "timezone": config.timezone,
        "enabled": config.enabled,
        "run": target_of(config, url=url, key=key),
        **POLICY,
        **retry,
    }
    with in_field("schedule"), renamed_errors(FIELD_NAMES):
        return read_schedule(schedule_id_of(key), fields)
