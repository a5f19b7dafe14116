"""JSON Schemas (draft 2020-12) of a file of definitions and of one schedule, as plain values.

They are made from the tables that read definitions. A test fails if a new kind, policy or target is
missing. What they refuse is also refused when a definition is read. The reverse does not hold: a
schema cannot check whether a cron expression ever matches, or whether a day exists.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import get_args, get_type_hints

from onbeat.core.policy import GROUP, MAX_RETRY_DELAYS, POLICIES, Policy, RetryOn, read_flag
from onbeat.core.schedule import ID
from onbeat.core.target_kinds import KINDS as TARGET_KINDS
from onbeat.core.time.cron import FIELDS, MACROS
from onbeat.core.time.zones import names
from onbeat.core.triggers.base import MOST_PARTS
from onbeat.core.triggers.build import LIMITS, MOST_VALUES
from onbeat.core.triggers.calendars import MOST_HOURS, MOST_ITEMS
from onbeat.core.triggers.codec import AROUND, KINDS
from onbeat.core.triggers.kinds import MOST_TIMES, Dst
from onbeat.core.triggers.past import OUTCOMES

Schema = dict[str, object]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
WITHIN = "#/$defs/"


def schema_of_file() -> Schema:
    """Return the schema of an `onbeat.yaml`."""
    parts = parts_of_schedule(WITHIN)
    return {
        "$schema": DIALECT,
        "title": "Schedules of Onbeat",
        "type": "object",
        "properties": {
            "timezone": _doc({"$ref": f"{WITHIN}timezone"}, "the zone of schedules without a zone"),
            "calendars": _doc(_or_null(_by_name(_CALENDAR)), "days to exclude, by name"),
            "schedules": _doc(
                _or_null(
                    _by_name({"$ref": f"{WITHIN}schedule"})
                    | {"propertyNames": {"pattern": _whole(ID.pattern)}}
                ),
                "what to start, when, under which policy, by id",
            ),
        },
        "additionalProperties": False,
        "$defs": parts | {"schedule": _schedule(WITHIN)},
    }


def schema_of_schedule() -> Schema:
    """Return the self-contained schema of one schedule."""
    return {"$schema": DIALECT, **_schedule(WITHIN), "$defs": parts_of_schedule(WITHIN)}


def schedule_and_parts(refs: str) -> tuple[Schema, dict[str, Schema]]:
    """Return the schema of a schedule, and the schemas that it refers to with the prefix `refs`.

    In an OpenAPI document the prefix is `#/components/schemas/`.
    """
    return _schedule(refs), parts_of_schedule(refs)


def parts_of_schedule(refs: str) -> dict[str, Schema]:
    """Return the schemas that the schema of a schedule refers to."""
    return {
        "trigger": _doc(_object(_timing(refs), _one_of(KINDS)), "a trigger as a part of another"),
        "target": {"oneOf": [dict(kind.schema) for kind in TARGET_KINDS.all()]},
        "timezone": {"type": "string", "enum": sorted(names())},
    }


def _schedule(refs: str) -> Schema:
    target: Schema = {"$ref": f"{refs}target"}
    probe: Schema = {"oneOf": [target, {"type": "null"}]}
    fields = {
        "description": _text("a text for people", maxLength=2000),
        **_timing(refs),
        "run": _doc(target, "what is started"),
        "when": _doc(probe, "a condition: a run starts only if it holds"),
        **{name: _policy(name) for name in POLICIES},
        "calendars": _doc(_or_null(_by_name(_ITEMS)), "days to exclude, by name"),
    }
    return {"title": "A schedule", **_object(fields, _one_of(KINDS)), "required": ["run"]}


def _timing(refs: str) -> dict[str, Schema]:
    kinds = {kind: _KINDS[kind] if kind in _KINDS else _parts(kind, refs) for kind in KINDS}
    known: dict[str, Schema] = {"timezone": {"$ref": f"{refs}timezone"}, **_AROUND}
    return kinds | {
        name: _or_null(known[name]) if name in LIMITS else known[name] for name in sorted(AROUND)
    }


def _parts(kind: str, refs: str) -> Schema:
    items = {"$ref": f"{refs}trigger"}
    found = {"type": "array", "items": items, "minItems": 2, "maxItems": MOST_PARTS}
    return _doc(found, _PARTS[kind], [{"every": "1h"}, {"daily": "17:00"}])


def _policy(name: str) -> Schema:
    """Return the schema of a policy, from its reader and its default."""
    read, default = POLICIES[name].read, getattr(Policy(), name)
    choices = get_args(get_type_hints(Policy)[name])
    if name in _POLICIES:
        found = dict(_POLICIES[name])
    elif read is read_flag:
        found = {"type": "boolean"}
    elif isinstance(read, partial) and "first" in read.keywords:
        bounds = read.keywords
        found = {"type": "integer", "minimum": bounds["first"], "maximum": bounds["last"]}
    elif isinstance(read, partial):
        found = dict(_LENGTH)
    else:
        found = {"enum": list(choices)}
    if default is not None:
        found["default"] = POLICIES[name].write(default)
    return found | {"description": _POLICY_WORDS[name]}


def _doc(schema: Mapping[str, object], description: str, *examples: object) -> Schema:
    found = {**schema, "description": description}
    return found | {"examples": list(examples)} if examples else found


def _text(description: str, *examples: str, **bounds: object) -> Schema:
    return _doc({"type": "string", **bounds}, description, *examples)


def _object(fields: Mapping[str, object], *more: Mapping[str, object]) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": dict(fields),
        "additionalProperties": False,
    }
    for each in more:
        found |= each
    return found


def _one_of(fields: Iterable[str]) -> Schema:
    return {"oneOf": [{"required": [name]} for name in fields]}


def _by_name(schema: Mapping[str, object]) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _or_null(schema: Mapping[str, object]) -> Schema:
    words = {name: schema[name] for name in ("description", "examples") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in words}
    return {"anyOf": [rest, {"type": "null"}], **words}


def _one_or_several(item: Schema, *, least: int = 1, most: int) -> Schema:
    several = {"type": "array", "items": item, "minItems": least, "maxItems": most}
    return {"anyOf": [item, several]}


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _value_of(name: str, low: int, high: int) -> Schema:
    number = {"type": "integer", "minimum": low, "maximum": high}
    item: Schema = {"anyOf": [number, {"type": "string", "minLength": 1}]}
    return _doc(_one_or_several(item, most=MOST_VALUES), f"{name}, or several", low, [low, high])


_PLAIN = "".join(f"(?:[0-9]+{unit})? ?" for unit in ("y", "mo", "w", "d", "h", "m", "s"))
_ISO = "P(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+W)?(?:[0-9]+D)?(?:T(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+S)?)?"
_MS = "[0-9]{1,12}ms"
_DURATION: Schema = {"type": "string", "pattern": rf"^(?=.*[0-9])\s*(?:{_PLAIN}|{_ISO})\s*$"}
_LENGTH: Schema = {"type": "string", "pattern": rf"^(?=.*[0-9])\s*(?:{_MS}|{_PLAIN}|{_ISO})\s*$"}
_TIME: Schema = {
    "type": "string",
    "pattern": (
        r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
        r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})?\s*$"
    ),
}
_ITEMS: Schema = {"type": "array", "items": {"type": "string"}, "maxItems": MOST_ITEMS}
_CALENDAR: Schema = {
    "anyOf": [
        _doc(_ITEMS, "dates, spans of dates, dates of every year", ["2026-12-25", "12-31"]),
        _object({"ics": _text("an iCalendar file, beside this one")}) | {"required": ["ics"]},
        _object({"holidays": _text("a country or region", "DE", "DE-BY")})
        | {"required": ["holidays"]},
    ]
}
_CRON = r"^[ \t\r\n]*(?:@[A-Za-z]+|[!-~]+(?:[ \t]+[!-~]+){4,6})[ \t\r\n]*$"
_CLOCK = r"^[0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2})?$"
_AFTER_ANY = {
    "schedule": {
        "type": ["string", "null"],
        "description": "the id of the followed schedule; default: the same schedule",
    }
}

_KINDS: dict[str, Schema] = {
    "cron": _text("minute hour day month weekday; with six fields, second first; or a macro",
                  "0 9 * * MON-FRI", "*/15 * * * *", *MACROS, pattern=_CRON),
    "calendar": _doc(
        _object({field.name: _value_of(field.label, field.low, field.high) for field in FIELDS})
        | {"minProperties": 1},
        "all listed fields must match", {"hour": [9, 17], "day_of_week": "MON"},
    ),
    "every": _doc(_DURATION, "a grid through start_at, or through the start of 1970", "90m", "1d"),
    "at": _doc(_one_or_several(_TIME, most=MOST_TIMES), "once, or several times",
                "2026-12-01T09:00", ["2026-12-01T09:00", "2026-12-02T09:00:00Z"]),
    "daily": _text("once a day", "17:00", pattern=_CLOCK),
    "startup": _doc(_DURATION, "once per start of the scheduler, with this delay", "30s"),
    "after": _doc(
        {"oneOf": [
            _object({outcome: _DURATION, **_AFTER_ANY}) | {"required": [outcome]}
            for outcome in OUTCOMES
        ] + [
            _object({"outcome": {"enum": list(OUTCOMES)}, "delay": _DURATION, **_AFTER_ANY})
            | {"required": ["outcome"]}
        ]},
        "after a run ended, with this delay",
        {"success": "30m"}, {"schedule": "load", "outcome": "success"},
    ),
    "manual": _doc({"const": True}, "no ticks: it runs only when started manually"),
}  # fmt: skip

_PARTS = {
    "any": "the earliest of several; equal instants are one tick",
    "all": "where all have a tick",
    "minus": "where the first has a tick and the others do not",
}

_HOURS: Schema = _one_or_several({"type": "string"}, most=MOST_HOURS)
_AROUND: dict[str, Schema] = {
    "dst": {"enum": list(get_args(Dst)), "default": "shift",
            "description": "whether a fixed time that the clocks jump over is shifted or skipped"},
    "start_at": _doc(_TIME, "the first instant allowed", "2026-12-01T09:00"),
    "end_at": _doc(_TIME, "the last instant allowed", "2026-12-31T23:59"),
    "delay": _doc(_DURATION, "how long after its definition the first tick is allowed", "10m"),
    "max_runs": {"type": "integer", "minimum": 1, "description": "the maximum number of starts"},
    "exclude": _doc(_one_or_several({"type": "string"}, least=0, most=MOST_ITEMS),
                     "days or spans without ticks, or names of calendars", "2026-12-25", ["12-31"]),
    "within": _doc(
        {"anyOf": [_HOURS, _object({
            "hours": _HOURS,
            "days": {"anyOf": [{"type": ["string", "integer"]}, {"type": "array", "minItems": 1}]},
            "outside": {"enum": ["skip", "move"], "default": "skip"},
        })]},
        "hours with ticks", "09:00-17:00", {"hours": "09:00-17:00", "days": "MON-FRI"},
    ),
}  # fmt: skip

_RETRY_ON: Schema = {
    "type": "array", "items": {"enum": list(get_args(RetryOn))}, "minItems": 1,
    "description": "only after these failures; default: after all of them",
}  # fmt: skip
_POLICIES: dict[str, Schema] = {
    "retry": {
        "anyOf": [
            {"type": "array", "items": _LENGTH, "maxItems": MAX_RETRY_DELAYS},
            _object({
                "attempts": {"type": "integer", "minimum": 1, "maximum": MAX_RETRY_DELAYS + 1},
                "backoff": _LENGTH, "max": _LENGTH, "jitter": _LENGTH, "on": _RETRY_ON,
            }) | {"required": ["attempts", "backoff"]},
            _object({
                "delays": {"type": "array", "items": _LENGTH, "maxItems": MAX_RETRY_DELAYS},
                "jitter": _LENGTH, "on": _RETRY_ON,
            }) | {"required": ["delays"]},
        ],
        "examples": [["30s", "2m", "10m"], {"attempts": 5, "backoff": "30s", "max": "10m"}],
    },
    "group": {"type": "string", "pattern": _whole(GROUP.pattern)},
    "rate": {
        "type": "string", "examples": ["10/hour"],
        "pattern": "^ *[0-9]{1,9} */ *(?:minute|hour|day|min|m|h|d) *$",
    },
}  # fmt: skip

_POLICY_WORDS = {
    "enabled": "if false, each tick is skipped with a reason",
    "grace": "a tick decided within it is on time; later it is missed",
    "catchup": "which missed ticks run: the latest for all, none, each, or each spread over time",
    "catchup_window": "missed ticks older than this are not caught up",
    "overlap": "what happens to a tick while a run is in flight",
    "queue_limit": "how many may wait under overlap: queue",
    "queue_keep": "which waiting runs are kept when the queue is full",
    "max_active": "how many may be in flight under overlap: allow",
    "jitter": "a delay of up to this, the same for the same tick",
    "jitter_around": "the jitter is before or after the tick, not only after it",
    "retry": "the delay of another attempt after each failure",
    "timeout": "a run that takes longer is canceled",
    "warn_after": "a run that takes longer is reported as stuck, and continues",
    "start_deadline": "a run that waits longer than this is skipped",
    "cancel_grace": "how long a canceled run may take to end before it is killed",
    "on_lost": "whether a run whose node is lost is launched again",
    "group": "its runs share the places of this group with other schedules",
    "priority": "waiting runs with the highest priority start first",
    "rate": "the maximum rate of runs; further ticks are skipped",
    "pause_after": "the schedule is paused after so many failed runs in a row",
}
