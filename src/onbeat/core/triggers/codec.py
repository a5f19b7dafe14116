"""Triggers as plain fields, for JSON and YAML, and back.

`decode(encode(trigger)) == trigger`, and `encode(decode(fields))` is the canonical form: one
spelling for each meaning, defaults left out. A part of `any`, `all` or `minus` inherits the zone
unless it names another.
"""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, cast

import msgspec

from onbeat.core.time.cron import FIELDS
from onbeat.core.time.durations import Duration
from onbeat.core.time.zones import zone
from onbeat.core.triggers import build
from onbeat.core.triggers.base import MOST_PARTS, AllOf, AnyOf, Minus, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import NO_CALENDARS, Calendars
from onbeat.core.triggers.kinds import (
    After,
    At,
    Calendar,
    Cron,
    Daily,
    Every,
    Manual,
    Startup,
    check_dst,
)
from onbeat.core.triggers.past import OUTCOMES
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

Fields = dict[str, Any]
DEEPEST = 8


@dataclass(frozen=True, slots=True)
class _Context:
    """What the parts of a definition inherit: the default zone, and the available calendars."""

    timezone: str
    key: str
    calendars: Calendars
    dst: str = "shift"
    depth: int = 0


def decode(
    fields: Mapping[str, Any],
    *,
    timezone: str = "UTC",
    key: str = "",
    calendars: Calendars = NO_CALENDARS,
) -> Trigger:
    """Return the trigger that these fields define.

    `timezone` applies where the fields name no zone. `H` hashes `key`, the schedule's id. `exclude`
    may name the `calendars`.
    """
    return _decode(fields, _Context(timezone, key, calendars))


def encode(trigger: Trigger, *, timezone: str = "UTC") -> Fields:
    """Return the canonical fields of `trigger`, as read by `decode` with the same `timezone`."""
    match trigger:
        case Cron() | Daily() | Every() | At():  # the most common kinds
            own = dict(_non_default_fields(trigger, without=("key", "timezone")))
            return _zoned(own, trigger.timezone, timezone)
        case Bounded():
            own = dict(_non_default_fields(trigger, without=("trigger", "timezone")))
            return _with_limits(trigger.trigger, own, trigger.timezone, timezone)
        case OpenHours():
            closing = trigger.exclude or trigger.within
            assert closing is not None, "open hours need closed times"
            own = {}
            if trigger.exclude is not None:
                own["exclude"] = list(trigger.exclude.items)
            if trigger.within is not None:
                own["within"] = dict(_non_default_fields(trigger.within, without=("timezone",)))
            return _with_limits(trigger.trigger, own, closing.timezone, timezone)
        case AnyOf():
            return {"any": [encode(part, timezone=timezone) for part in trigger.triggers]}
        case AllOf():
            return {"all": [encode(part, timezone=timezone) for part in trigger.triggers]}
        case Minus():
            others = trigger.without
            without = others.triggers if isinstance(others, AnyOf) else (others,)
            return {"minus": [encode(p, timezone=timezone) for p in (trigger.trigger, *without)]}
        case After():
            return {"after": dict(_non_default_fields(trigger))}
        case Calendar():
            names = tuple(field.name for field in FIELDS)
            values = {
                name: int(text) if text.isdigit() else text
                for name, text in _non_default_fields(trigger)
                if name in names
            }
            own = dict(_non_default_fields(trigger, without=("timezone", *names)))
            return _zoned({"calendar": values} | own, trigger.timezone, timezone)
        case Startup():
            return {"startup": str(trigger.startup)}
        case Manual():
            return {"manual": True}
        case _:
            raise TypeError(f"{trigger!r} is of an unknown kind")


def to_json(trigger: Trigger) -> bytes:
    """Return the canonical form as JSON: equal triggers give equal bytes."""
    return msgspec.json.encode(encode(trigger), order="sorted")


def from_json(text: bytes | str, *, key: str = "", calendars: Calendars = NO_CALENDARS) -> Trigger:
    """Return the trigger of a JSON text."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as broken:
        raise InvalidSchedule(
            "", f"this is not JSON: {broken}", hint='such as {"every": "90m"}'
        ) from None
    return decode(fields, key=key, calendars=calendars)


def _decode(value: Mapping[str, Any], context: _Context) -> Trigger:
    if not isinstance(value, Mapping):
        raise InvalidSchedule(
            "", f"{quote_value(value)} is not a trigger", hint="fields, such as every: 90m"
        )
    if context.depth > DEEPEST:
        raise InvalidSchedule(
            "", "the parts are nested too deeply", hint=f"{DEEPEST} levels at most"
        )
    check_names(value, KINDS.keys() | AROUND)
    kinds = [name for name in value if name in KINDS]
    if len(kinds) != 1:
        problem = f"{len(kinds)} triggers: {', '.join(kinds)}" if kinds else "no trigger"
        hint = "one; `any` holds several" if kinds else f"one of {', '.join(KINDS)}"
        raise InvalidSchedule("", problem, hint=hint)
    (kind,) = kinds
    context = replace(
        context, timezone=value.get("timezone", context.timezone), dst=value.get("dst", context.dst)
    )
    zone(context.timezone)
    check_dst(context.dst)
    limits = {name: value[name] for name in build.LIMITS if value.get(name) is not None}
    trigger = KINDS[kind](value[kind], limits, context)
    return build.limited(trigger, context.timezone, limits, context.calendars)  # type: ignore[arg-type]


def check_names(value: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Refuse unknown names, with a similar known name as the hint."""
    for name in value:
        if name not in known:
            raise InvalidSchedule(
                quote_value(name).strip("'"),
                "no field has this name",
                hint=did_you_mean(name, known),
            )


def _cron(value: Any, limits: Fields, context: _Context) -> Trigger:
    return Cron(value, context.timezone, context.dst, context.key)  # type: ignore[arg-type]


def _calendar(value: Any, limits: Fields, context: _Context) -> Trigger:
    if not isinstance(value, Mapping):
        raise InvalidSchedule(
            "calendar",
            f"{quote_value(value)} is not a mapping",
            hint="{hour: 9, day_of_week: MON}",
        )
    return build.calendar_of(value, context.timezone, context.dst)  # type: ignore[arg-type]


def _daily(value: Any, limits: Fields, context: _Context) -> Trigger:
    return Daily(value, context.timezone, context.dst)  # type: ignore[arg-type]


def _every(value: Any, limits: Fields, context: _Context) -> Trigger:
    # the anchor of the grid; there are no ticks before it
    start_at = limits.pop("start_at", None)
    return build.every(value, context.timezone, dst=context.dst, start_at=start_at)  # type: ignore[arg-type]


def _at(value: Any, limits: Fields, context: _Context) -> Trigger:
    return build.at(*(value if isinstance(value, (list, tuple)) else [value]), tz=context.timezone)


def _startup(value: Any, limits: Fields, context: _Context) -> Trigger:
    if isinstance(value, bool):
        hint = "startup: 0s is immediately at the start, 30s is 30 seconds after it"
        raise InvalidSchedule("startup", f"{quote_value(value)} is not a duration", hint=hint)
    return build.startup(value)


def _manual(value: Any, limits: Fields, context: _Context) -> Trigger:
    return Manual(value)


def _after(value: Any, limits: Fields, context: _Context) -> Trigger:
    """Read `{success: 30m}`, or `{schedule: other, outcome: success, delay: 5m}`."""
    hint = "{success: 30m} or {schedule: other, outcome: success}"
    if not isinstance(value, Mapping):
        raise InvalidSchedule("after", f"{quote_value(value)} is not an outcome", hint=hint)
    with in_field("after"):
        check_names(value, {*OUTCOMES, "schedule", "outcome", "delay"})
    short = [outcome for outcome in OUTCOMES if outcome in value]
    schedule = value.get("schedule")
    if len(short) + ("outcome" in value) != 1 or (short and "delay" in value):
        raise InvalidSchedule("after", f"{quote_value(dict(value))} is not one outcome", hint=hint)
    outcome = short[0] if short else value["outcome"]
    return build.after(
        outcome, value[outcome] if short else value.get("delay", "0s"), schedule=schedule
    )


def _parts(kind: str, value: Any, context: _Context) -> tuple[Trigger, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidSchedule(
            kind, f"{quote_value(value)} is not a list of triggers", hint="[{...}, {...}]"
        )
    if len(value) > MOST_PARTS:
        raise InvalidSchedule(kind, f"{len(value)} parts", hint=f"{MOST_PARTS} at most")
    found = []
    for i, part in enumerate(value):
        with in_field(f"{kind}[{i}]"):
            found.append(_decode(part, replace(context, depth=context.depth + 1)))
    return tuple(found)


def _any(value: Any, limits: Fields, context: _Context) -> Trigger:
    return AnyOf(_parts("any", value, context))


def _all(value: Any, limits: Fields, context: _Context) -> Trigger:
    return AllOf(_parts("all", value, context))


def _minus(value: Any, limits: Fields, context: _Context) -> Trigger:
    parts = _parts("minus", value, context)
    if len(parts) < 2:
        raise InvalidSchedule(
            "minus", f"{len(parts)} part{'s' * (len(parts) != 1)}", hint="[what, without what]"
        )
    return Minus(parts[0], parts[1] if len(parts) == 2 else AnyOf(parts[1:]))


def _with_limits(inner: Trigger, own: Fields, where: str, outer: str) -> Fields:
    """Return the fields of a trigger with limits, or refuse one that fields cannot represent."""
    found = encode(inner, timezone=where)
    twice = found.keys() & (own.keys() | {"timezone"})
    if twice:
        problem = "it is set twice, which fields cannot represent"
        raise InvalidSchedule(min(twice), problem, hint="one limit of each kind, in one zone")
    return _zoned(found | own, where, outer)


def _non_default_fields(value: Any, *, without: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Return the fields of a frozen value that are not at their default, as plain values."""
    found, kind = [], cast("Hashable", type(value))
    for name, default in _fields_of(kind, without):
        own = getattr(value, name)
        if own != default:
            found.append((name, _plain(own)))
    return found


@cache  # bounded by the number of kinds
def _fields_of(kind: Hashable, without: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (f.name, f.default)
        for f in fields(kind)  # type: ignore[arg-type]  # a class
        if not f.name.startswith("_") and f.name not in without
    )


def _plain(value: Any) -> Any:
    match value:
        case Duration():
            return str(value)
        case tuple() if len(value) == 1:
            return value[0]
        case tuple():
            return list(value)
        case _:
            return value


def _zoned(found: Fields, own: str, outer: str) -> Fields:
    return {"timezone": own} | found if own != outer else found


KINDS = {
    "cron": _cron,
    "calendar": _calendar,
    "every": _every,
    "at": _at,
    "daily": _daily,
    "startup": _startup,
    "after": _after,
    "manual": _manual,
    "any": _any,
    "all": _all,
    "minus": _minus,
}
AROUND = frozenset({"timezone", "dst"}) | build.LIMITS
