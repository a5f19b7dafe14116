"""Triggers as plain fields, for JSON and YAML, and back.

`decode(encode(trigger)) == trigger`, and `encode(decode(fields))` is the canonical form: one
spelling for each meaning, defaults left out. A part of `any`, `all` or `minus` has the zone of the
whole unless it names its own.
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
from onbeat.errors import InvalidSchedule, meant, naming, shown

Fields = dict[str, Any]
DEEPEST = 8


@dataclass(frozen=True, slots=True)
class _Around:
    """What a definition says about its parts: their default zone, and the names they may use."""

    timezone: str
    key: str
    calendars: Calendars
    dst: str = "shift"
    depth: int = 0


def decode(
    given: Mapping[str, Any],
    *,
    timezone: str = "UTC",
    key: str = "",
    calendars: Calendars = NO_CALENDARS,
) -> Trigger:
    """Return the trigger that these fields define.

    `timezone` holds where the fields name none, `key` is what `H` hashes (the schedule's id), and
    `calendars` are the names that `exclude` may use.
    """
    return _decode(given, _Around(timezone, key, calendars))


def encode(trigger: Trigger, *, timezone: str = "UTC") -> Fields:
    """Return the canonical fields of `trigger`, as read by `decode` with the same `timezone`."""
    match trigger:
        case Cron() | Daily() | Every() | At():  # mostly
            own = dict(_given(trigger, without=("key", "timezone")))
            return _zoned(own, trigger.timezone, timezone)
        case Bounded():
            own = dict(_given(trigger, without=("trigger", "timezone")))
            return _around(trigger.trigger, own, trigger.timezone, timezone)
        case OpenHours():
            closing = trigger.exclude or trigger.within
            assert closing is not None, "without closed times there is nothing to be open from"
            own = {}
            if trigger.exclude is not None:
                own["exclude"] = list(trigger.exclude.items)
            if trigger.within is not None:
                own["within"] = dict(_given(trigger.within, without=("timezone",)))
            return _around(trigger.trigger, own, closing.timezone, timezone)
        case AnyOf():
            return {"any": [encode(part, timezone=timezone) for part in trigger.triggers]}
        case AllOf():
            return {"all": [encode(part, timezone=timezone) for part in trigger.triggers]}
        case Minus():
            others = trigger.without
            without = others.triggers if isinstance(others, AnyOf) else (others,)
            return {"minus": [encode(p, timezone=timezone) for p in (trigger.trigger, *without)]}
        case After():
            return {"after": dict(_given(trigger))}
        case Calendar():
            known = tuple(field.name for field in FIELDS)
            values = {
                name: int(text) if text.isdigit() else text
                for name, text in _given(trigger)
                if name in known
            }
            own = dict(_given(trigger, without=("timezone", *known)))
            return _zoned({"calendar": values} | own, trigger.timezone, timezone)
        case Startup():
            return {"startup": str(trigger.startup)}
        case Manual():
            return {"manual": True}
        case _:
            raise TypeError(f"{trigger!r} is of a kind that has no fields")


def to_json(trigger: Trigger) -> bytes:
    """Return the canonical form as JSON: equal triggers give equal bytes."""
    return msgspec.json.encode(encode(trigger), order="sorted")


def from_json(text: bytes | str, *, key: str = "", calendars: Calendars = NO_CALENDARS) -> Trigger:
    """Return the trigger of a JSON text."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as broken:
        raise InvalidSchedule(
            "", f"this is not JSON: {broken}", hint='such as {"every": "90m"}'
        ) from None
    return decode(given, key=key, calendars=calendars)


def _decode(given: Mapping[str, Any], around: _Around) -> Trigger:
    if not isinstance(given, Mapping):
        raise InvalidSchedule(
            "", f"{shown(given)} is no trigger", hint="fields, such as every: 90m"
        )
    if around.depth > DEEPEST:
        raise InvalidSchedule("", "the parts are nested too deep", hint=f"{DEEPEST} levels at most")
    check_names(given, KINDS.keys() | AROUND)
    kinds = [name for name in given if name in KINDS]
    if len(kinds) != 1:
        told = f"{len(kinds)} triggers: {', '.join(kinds)}" if kinds else "no trigger"
        hint = "one; `any` holds several" if kinds else f"one of {', '.join(KINDS)}"
        raise InvalidSchedule("", told, hint=hint)
    (kind,) = kinds
    around = replace(
        around, timezone=given.get("timezone", around.timezone), dst=given.get("dst", around.dst)
    )
    zone(around.timezone)
    check_dst(around.dst)
    limits = {name: given[name] for name in build.LIMITS if given.get(name) is not None}
    trigger = KINDS[kind](given[kind], limits, around)
    return build.limited(trigger, around.timezone, limits, around.calendars)  # type: ignore[arg-type]


def check_names(given: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Refuse names that are not known, with the one that was perhaps meant."""
    for name in given:
        if name not in known:
            raise InvalidSchedule(
                shown(name).strip("'"), "no field has this name", hint=meant(name, known)
            )


def _cron(given: Any, limits: Fields, around: _Around) -> Trigger:
    return Cron(given, around.timezone, around.dst, around.key)  # type: ignore[arg-type]


def _calendar(given: Any, limits: Fields, around: _Around) -> Trigger:
    if not isinstance(given, Mapping):
        raise InvalidSchedule(
            "calendar", f"{shown(given)} is no set of fields", hint="{hour: 9, day_of_week: MON}"
        )
    return build.calendar_of(given, around.timezone, around.dst)  # type: ignore[arg-type]


def _daily(given: Any, limits: Fields, around: _Around) -> Trigger:
    return Daily(given, around.timezone, around.dst)  # type: ignore[arg-type]


def _every(given: Any, limits: Fields, around: _Around) -> Trigger:
    # the anchor of the grid, before which there are no ticks
    start_at = limits.pop("start_at", None)
    return build.every(given, around.timezone, dst=around.dst, start_at=start_at)  # type: ignore[arg-type]


def _at(given: Any, limits: Fields, around: _Around) -> Trigger:
    return build.at(*(given if isinstance(given, (list, tuple)) else [given]), tz=around.timezone)


def _startup(given: Any, limits: Fields, around: _Around) -> Trigger:
    if isinstance(given, bool):
        hint = "startup: 0s is right at the start, 30s so long after it"
        raise InvalidSchedule("startup", f"{shown(given)} is not a duration", hint=hint)
    return build.startup(given)


def _manual(given: Any, limits: Fields, around: _Around) -> Trigger:
    return Manual(given)


def _after(given: Any, limits: Fields, around: _Around) -> Trigger:
    """Read `{success: 30m}`, or `{schedule: other, outcome: success, delay: 5m}`."""
    hint = "{success: 30m} or {schedule: other, outcome: success}"
    if not isinstance(given, Mapping):
        raise InvalidSchedule("after", f"{shown(given)} is no outcome", hint=hint)
    with naming("after"):
        check_names(given, {*OUTCOMES, "schedule", "outcome", "delay"})
    short = [outcome for outcome in OUTCOMES if outcome in given]
    schedule = given.get("schedule")
    if len(short) + ("outcome" in given) != 1 or (short and "delay" in given):
        raise InvalidSchedule("after", f"{shown(dict(given))} is not one outcome", hint=hint)
    outcome = short[0] if short else given["outcome"]
    return build.after(
        outcome, given[outcome] if short else given.get("delay", "0s"), schedule=schedule
    )


def _parts(kind: str, given: Any, around: _Around) -> tuple[Trigger, ...]:
    if not isinstance(given, (list, tuple)):
        raise InvalidSchedule(kind, f"{shown(given)} is no list of triggers", hint="[{...}, {...}]")
    if len(given) > MOST_PARTS:
        raise InvalidSchedule(kind, f"{len(given)} parts", hint=f"{MOST_PARTS} at most")
    found = []
    for i, part in enumerate(given):
        with naming(f"{kind}[{i}]"):
            found.append(_decode(part, replace(around, depth=around.depth + 1)))
    return tuple(found)


def _any(given: Any, limits: Fields, around: _Around) -> Trigger:
    return AnyOf(_parts("any", given, around))


def _all(given: Any, limits: Fields, around: _Around) -> Trigger:
    return AllOf(_parts("all", given, around))


def _minus(given: Any, limits: Fields, around: _Around) -> Trigger:
    parts = _parts("minus", given, around)
    if len(parts) < 2:
        raise InvalidSchedule(
            "minus", f"{len(parts)} part{'s' * (len(parts) != 1)}", hint="[what, without what]"
        )
    return Minus(parts[0], parts[1] if len(parts) == 2 else AnyOf(parts[1:]))


def _around(inner: Trigger, own: Fields, where: str, outer: str) -> Fields:
    """Return the fields of a trigger with limits around it, or refuse what has none."""
    found = encode(inner, timezone=where)
    twice = found.keys() & (own.keys() | {"timezone"})
    if twice:
        problem = "it is there twice, one around the other, which no fields can say"
        raise InvalidSchedule(min(twice), problem, hint="one limit of a kind, in one zone")
    return _zoned(found | own, where, outer)


def _given(value: Any, *, without: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Return the fields of a frozen value that are not at their default, as plain values."""
    found, kind = [], cast("Hashable", type(value))
    for name, default in _fields_of(kind, without):
        own = getattr(value, name)
        if own != default:
            found.append((name, _plain(own)))
    return found


@cache  # bounded by the kinds
def _fields_of(kind: Hashable, without: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (f.name, f.default)
        for f in fields(kind)  # type: ignore[arg-type]  # it is a class
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
