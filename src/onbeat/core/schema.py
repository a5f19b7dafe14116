"""JSON Schemas (draft 2020-12) of a file of definitions and of one schedule, as plain values.

They are made from the tables that read definitions. A test fails if a new kind, policy or target is
missing. What they refuse is also refused when a definition is read. The reverse does not hold: a
schema cannot check whether a cron expression ever matches, or whether a day exists.
"""

from collections.abc import Iterable
from typing import get_args

from onbeat.core.json_schema import (
    DURATION,
    Schema,
    by_name,
    described,
    or_null,
    record,
    text,
)
from onbeat.core.policy import POLICIES, Policy
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
            "timezone": described(
                {"$ref": f"{WITHIN}timezone"}, "the zone of schedules without a zone"
            ),
            "calendars": described(or_null(by_name(_CALENDAR)), "days to exclude, by name"),
            "schedules": described(
                or_null(
                    by_name({"$ref": f"{WITHIN}schedule"})
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
        "trigger": described(
            record(_timing(refs)) | _one_of(KINDS), "a trigger as a part of another"
        ),
        "target": {"oneOf": [dict(kind.schema) for kind in TARGET_KINDS.all()]},
        "timezone": {"type": "string", "enum": sorted(names())},
    }


def _schedule(refs: str) -> Schema:
    target: Schema = {"$ref": f"{refs}target"}
    probe: Schema = {"oneOf": [target, {"type": "null"}]}
    fields = {
        "description": text("a text for people", maxLength=2000),
        **_timing(refs),
        "run": described(target, "what is started"),
        "when": described(probe, "a condition: a run starts only if it holds"),
        **{name: _policy(name) for name in POLICIES},
        "calendars": described(or_null(by_name(_ITEMS)), "days to exclude, by name"),
    }
    return {"title": "A schedule", **record(fields, required=("run",)), **_one_of(KINDS)}


def _timing(refs: str) -> dict[str, Schema]:
    kinds = {kind: _KINDS[kind] if kind in _KINDS else _parts(kind, refs) for kind in KINDS}
    known: dict[str, Schema] = {"timezone": {"$ref": f"{refs}timezone"}, **_AROUND}
    return kinds | {
        name: or_null(known[name]) if name in LIMITS else known[name] for name in sorted(AROUND)
    }


def _parts(kind: str, refs: str) -> Schema:
    items = {"$ref": f"{refs}trigger"}
    found = {"type": "array", "items": items, "minItems": 2, "maxItems": MOST_PARTS}
    return described(found, _PARTS[kind], [{"every": "1h"}, {"daily": "17:00"}])


def _policy(name: str) -> Schema:
    """Return the schema of a policy, from its declaration and its default."""
    field, default = POLICIES[name], getattr(Policy(), name)
    found = dict(field.schema)
    if default is not None:
        found["default"] = field.write(default)
    return found | {"description": field.words}


def _one_of(fields: Iterable[str]) -> Schema:
    return {"oneOf": [{"required": [name]} for name in fields]}


def _one_or_several(item: Schema, *, least: int = 1, most: int) -> Schema:
    several = {"type": "array", "items": item, "minItems": least, "maxItems": most}
    return {"anyOf": [item, several]}


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _value_of(name: str, low: int, high: int) -> Schema:
    number = {"type": "integer", "minimum": low, "maximum": high}
    item: Schema = {"anyOf": [number, {"type": "string", "minLength": 1}]}
    return described(
        _one_or_several(item, most=MOST_VALUES), f"{name}, or several", low, [low, high]
    )


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
        described(_ITEMS, "dates, spans of dates, dates of every year", ["2026-12-25", "12-31"]),
        record({"ics": text("an iCalendar file, beside this one")}, required=("ics",)),
        record({"holidays": text("a country or region", "DE", "DE-BY")}, required=("holidays",)),
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
    "cron": text(
        "minute hour day month weekday; with six fields, second first; or a macro",
        "0 9 * * MON-FRI",
        "*/15 * * * *",
        *MACROS,
        pattern=_CRON,
    ),
    "calendar": described(
        record({field.name: _value_of(field.label, field.low, field.high) for field in FIELDS})
        | {"minProperties": 1},
        "all listed fields must match",
        {"hour": [9, 17], "day_of_week": "MON"},
    ),
    "every": described(
        DURATION, "a grid through start_at, or through the start of 1970", "90m", "1d"
    ),
    "at": described(
        _one_or_several(_TIME, most=MOST_TIMES),
        "once, or several times",
        "2026-12-01T09:00",
        ["2026-12-01T09:00", "2026-12-02T09:00:00Z"],
    ),
    "daily": text("once a day", "17:00", pattern=_CLOCK),
    "startup": described(DURATION, "once per start of the scheduler, with this delay", "30s"),
    "after": described(
        {
            "oneOf": [
                record({outcome: DURATION, **_AFTER_ANY}, required=(outcome,))
                for outcome in OUTCOMES
            ]
            + [
                record(
                    {"outcome": {"enum": list(OUTCOMES)}, "delay": DURATION, **_AFTER_ANY},
                    required=("outcome",),
                )
            ]
        },
        "after a run ended, with this delay",
        {"success": "30m"},
        {"schedule": "load", "outcome": "success"},
    ),
    "manual": described({"const": True}, "no ticks: it runs only when started manually"),
}

_PARTS = {
    "any": "the earliest of several; equal instants are one tick",
    "all": "where all have a tick",
    "minus": "where the first has a tick and the others do not",
}

_HOURS: Schema = _one_or_several({"type": "string"}, most=MOST_HOURS)
_AROUND: dict[str, Schema] = {
    "dst": {
        "enum": list(get_args(Dst)),
        "default": "shift",
        "description": "whether a fixed time that the clocks jump over is shifted or skipped",
    },
    "start_at": described(_TIME, "the first instant allowed", "2026-12-01T09:00"),
    "end_at": described(_TIME, "the last instant allowed", "2026-12-31T23:59"),
    "delay": described(DURATION, "how long after its definition the first tick is allowed", "10m"),
    "max_runs": {"type": "integer", "minimum": 1, "description": "the maximum number of starts"},
    "exclude": described(
        _one_or_several({"type": "string"}, least=0, most=MOST_ITEMS),
        "days or spans without ticks, or names of calendars",
        "2026-12-25",
        ["12-31"],
    ),
    "within": described(
        {
            "anyOf": [
                _HOURS,
                record(
                    {
                        "hours": _HOURS,
                        "days": {
                            "anyOf": [
                                {"type": ["string", "integer"]},
                                {"type": "array", "minItems": 1},
                            ]
                        },
                        "outside": {"enum": ["skip", "move"], "default": "skip"},
                    }
                ),
            ]
        },
        "hours with ticks",
        "09:00-17:00",
        {"hours": "09:00-17:00", "days": "MON-FRI"},
    ),
}
