"""JSON Schemas (draft 2020-12) of a file of definitions and of one schedule, as plain values.

They are made from the tables that read definitions, so that a new kind, policy or target is in them
or a test fails. What they refuse is refused when it is read; the other way round they cannot know
everything: whether a cron ever matches, whether a day exists.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import get_args, get_type_hints

from onbeat.core.policy import GROUP, LONGEST_RETRY, POLICIES, Policy, RetryOn, read_flag
from onbeat.core.schedule import ID
from onbeat.core.target import TARGETS
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
            "timezone": _told({"$ref": f"{WITHIN}timezone"}, "the zone of schedules without one"),
            "calendars": _told(_or_null(_by_name(_CALENDAR)), "days to leave out, by name"),
            "schedules": _told(
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
    """Return the schema of one schedule, complete in itself."""
    return {"$schema": DIALECT, **_schedule(WITHIN), "$defs": parts_of_schedule(WITHIN)}


def schedule_and_parts(refs: str) -> tuple[Schema, dict[str, Schema]]:
    """Return the schema of a schedule and, apart, those that it refers to by `refs` and a name.

    So an OpenAPI document has them under `#/components/schemas/`.
    """
    return _schedule(refs), parts_of_schedule(refs)


def parts_of_schedule(refs: str) -> dict[str, Schema]:
    """Return the schemas that the schema of a schedule refers to."""
    return {
        "trigger": _told(_object(_timing(refs), _one_of(KINDS)), "when, as a part of another"),
        "target": {"oneOf": [_TARGETS[kind] for kind in TARGETS]},
        "timezone": {"type": "string", "enum": sorted(names())},
    }


def _schedule(refs: str) -> Schema:
    target: Schema = {"$ref": f"{refs}target"}
    probe: Schema = {"oneOf": [target, {"type": "null"}]}
    fields = {
        "description": _text("for people", maxLength=2000),
        **_timing(refs),
        "run": _told(target, "what is started"),
        "when": _told(probe, "what is asked first: a run starts if it says yes"),
        **{name: _policy(name) for name in POLICIES},
        "calendars": _told(_or_null(_by_name(_ITEMS)), "days to leave out, by name"),
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
    return _told(found, _PARTS[kind], [{"every": "1h"}, {"daily": "17:00"}])


def _policy(name: str) -> Schema:
    """Return the schema of a policy, by how it is read and what it is by default."""
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


def _told(schema: Mapping[str, object], description: str, *examples: object) -> Schema:
    found = {**schema, "description": description}
    return found | {"examples": list(examples)} if examples else found


def _text(description: str, *examples: str, **bounds: object) -> Schema:
    return _told({"type": "string", **bounds}, description, *examples)


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
    return _told(_one_or_several(item, most=MOST_VALUES), f"{name}, or several", low, [low, high])


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
        _told(_ITEMS, "dates, spans of dates, dates of every year", ["2026-12-25", "12-31"]),
        _object({"ics": _text("an iCalendar file, beside this one")}) | {"required": ["ics"]},
        _object({"holidays": _text("a country or region", "DE", "DE-BY")})
        | {"required": ["holidays"]},
    ]
}
_CRON = r"^[ \t\r\n]*(?:@[A-Za-z]+|[!-~]+(?:[ \t]+[!-~]+){4,6})[ \t\r\n]*$"
_CLOCK = r"^[0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2})?$"
_AFTER_ANY = {"schedule": {"type": ["string", "null"], "description": "whose runs: its own"}}

_KINDS: dict[str, Schema] = {
    "cron": _text("minute hour day month weekday; six fields begin with the second; or a macro",
                  "0 9 * * MON-FRI", "*/15 * * * *", *MACROS, pattern=_CRON),
    "calendar": _told(
        _object({field.name: _value_of(field.label, field.low, field.high) for field in FIELDS})
        | {"minProperties": 1},
        "every field that is given must match", {"hour": [9, 17], "day_of_week": "MON"},
    ),
    "every": _told(_DURATION, "a grid through start_at, or through the start of 1970", "90m", "1d"),
    "at": _told(_one_or_several(_TIME, most=MOST_TIMES), "once, or several times",
                "2026-12-01T09:00", ["2026-12-01T09:00", "2026-12-02T09:00:00Z"]),
    "daily": _text("once a day", "17:00", pattern=_CLOCK),
    "startup": _told(_DURATION, "once per start of the scheduler, so long after it", "30s"),
    "after": _told(
        {"oneOf": [
            _object({outcome: _DURATION, **_AFTER_ANY}) | {"required": [outcome]}
            for outcome in OUTCOMES
        ] + [
            _object({"outcome": {"enum": list(OUTCOMES)}, "delay": _DURATION, **_AFTER_ANY})
            | {"required": ["outcome"]}
        ]},
        "so long after a run ended", {"success": "30m"}, {"schedule": "load", "outcome": "success"},
    ),
    "manual": _told({"const": True}, "never by itself: only when it is started by hand"),
}  # fmt: skip

_PARTS = {
    "any": "the earliest of several; equal instants are one tick",
    "all": "where all have a tick",
    "minus": "where the first has a tick and the others have none",
}

_HOURS: Schema = _one_or_several({"type": "string"}, most=MOST_HOURS)
_AROUND: dict[str, Schema] = {
    "dst": {"enum": list(get_args(Dst)), "default": "shift",
            "description": "what becomes of a fixed time that the clocks jump over"},
    "start_at": _told(_TIME, "the first instant allowed", "2026-12-01T09:00"),
    "end_at": _told(_TIME, "the last instant allowed", "2026-12-31T23:59"),
    "delay": _told(_DURATION, "how long after it was defined it may have its first tick", "10m"),
    "max_runs": {"type": "integer", "minimum": 1, "description": "how many starts there may be"},
    "exclude": _told(_one_or_several({"type": "string"}, least=0, most=MOST_ITEMS),
                     "days or spans without ticks, or names of calendars", "2026-12-25", ["12-31"]),
    "within": _told(
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
    "description": "only after these; else after whatever another attempt could help",
}  # fmt: skip
_POLICIES: dict[str, Schema] = {
    "retry": {
        "anyOf": [
            {"type": "array", "items": _LENGTH, "maxItems": LONGEST_RETRY},
            _object({
                "attempts": {"type": "integer", "minimum": 1, "maximum": LONGEST_RETRY + 1},
                "backoff": _LENGTH, "max": _LENGTH, "jitter": _LENGTH, "on": _RETRY_ON,
            }) | {"required": ["attempts", "backoff"]},
            _object({
                "delays": {"type": "array", "items": _LENGTH, "maxItems": LONGEST_RETRY},
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
    "enabled": "else each tick is skipped, and says so",
    "grace": "a tick decided within it is on time; later it is missed",
    "catchup": "which missed ticks run: the latest for the rest, none, each, or each in turn",
    "catchup_window": "missed ticks older than this are not caught up",
    "overlap": "what becomes of a tick while a run is in flight",
    "queue_limit": "how many may wait under overlap: queue",
    "queue_keep": "which of those that wait stay when one more comes",
    "max_active": "how many may be in flight under overlap: allow",
    "jitter": "a delay of up to this, the same for the same tick",
    "jitter_around": "the jitter is before or after the tick, instead of after it",
    "retry": "how long after each failure it is tried again",
    "timeout": "a run that lasts longer is ended",
    "warn_after": "a run that lasts longer is reported as stuck, and is not ended",
    "start_deadline": "a run that waits longer than this is skipped",
    "cancel_grace": "how long one that is to end may take, before it is killed",
    "on_lost": "whether a run whose node fell silent is launched again",
    "group": "it shares the places of this group with other schedules",
    "priority": "of runs that wait, those with the highest start first",
    "rate": "no more runs than this; further ticks are skipped",
    "pause_after": "so many failed runs in a row pause the schedule",
}

_SHARED: dict[str, Schema] = {
    "inputs": {"type": ["object", "null"], "description": "what is passed to it, by name"},
    "enabled": {"type": "boolean", "default": True},
}
_TARGETS: dict[str, Schema] = {
    "command": _object({
        "command": _told(
            {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            "a program and its arguments; no shell reads it", ["./backup.sh", "--all"],
        ),
        "cwd": {"type": ["string", "null"], "minLength": 1, "description": "the folder it is in"},
        "env": _told(_by_name({"type": "string"}) | {"propertyNames": {"pattern": "^[^=]+$"}},
                     "its environment, besides PATH, HOME and the like", {"LEVEL": "full"}),
        **_SHARED,
    }) | {"required": ["command"]},
    "python": _object({
        "python": _text("module:function, or the name of a registered one", "reports:build",
                        minLength=1),
        "on": {"const": "ray", "description": "on the Ray cluster instead of in the node"},
        "resources": _or_null(_told(
            _by_name({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}),
            "what a worker has to have", {"cpus": 2, "gpus": 0.5, "memory": "2GiB"},
        )),
        "runtime_env": _or_null({"type": "object", "description": "as Ray has it"}),
        **_SHARED,
    }) | {
        "required": ["python"],
        "dependentRequired": {"resources": ["on"], "runtime_env": ["on"]},
    },
    "http": _object({
        "http": _text("a URL", "https://example.com/hook", pattern="^[Hh][Tt][Tt][Pp][Ss]?://.+"),
        "method": {"enum": ["POST", "PUT", "PATCH", "GET", "HEAD", "DELETE"], "default": "POST"},
        "headers": _or_null(_by_name({"type": "string"})),
        "feedback": _or_null({
            "type": "boolean",
            "description": "whether it reports the outcome after any answer 2xx; without it only "
                           "after 202. false: it never does, and an answer 2xx is a success"}),
        "public_only": {"type": "boolean", "default": False,
                        "description": "whether it may speak to public addresses only"},
        **_SHARED,
    }) | {"required": ["http"]},
    "session": _object({
        "session": _object({
            "prompt": _text("what is sent to the session", "Standup for {{ date }}", minLength=1),
            "url": _text("the chat server; else the one of the settings", "http://127.0.0.1:53000",
                         pattern="^[Hh][Tt][Tt][Pp][Ss]?://.+"),
            "model": _text("of a new session", "claude-sonnet", minLength=1),
            "cwd": _text("the folder that a new session works in", "/srv", minLength=1),
            "persist": {"type": "boolean", "default": True,
                        "description": "whether all runs share one session"},
            "feedback": {"type": "boolean", "default": False,
                         "description": "whether the server reports the end of a run"},
        }) | {"required": ["prompt"]},
        "public_only": {"type": "boolean", "default": False,
                        "description": "whether it may speak to public addresses only"},
        "enabled": _SHARED["enabled"],
    }) | {"required": ["session"]},
    "flock": _object({
        "flock": _object({
            "url": _text("a Flock server", "http://127.0.0.1:8344",
                         pattern="^[Hh][Tt][Tt][Pp][Ss]?://.+"),
            "agent": _text("the agent that it is to run", "daily", minLength=1, maxLength=200),
        }) | {"required": ["url", "agent"]},
        "public_only": {"type": "boolean", "default": False,
                        "description": "whether it may speak to public addresses only"},
        "enabled": _SHARED["enabled"],
    }) | {"required": ["flock"]},
    "workflow": _object({
        "workflow": _text("the id of a workflow", "report", minLength=1),
        "version": {"type": "integer", "minimum": 0, "description": "of the workflow"},
        "user_id": _text("for whom it runs", "ada", minLength=1),
        **_SHARED,
    }) | {"required": ["workflow", "version", "user_id"]},
    "flow": _object({
        "flow": _object({
            "url": _text("the path of a flow on the panel", "/-/127.0.0.1/8125/-/", pattern="^/"),
            "key": _text("what the panel is told it is of; else the id of the schedule",
                         "reports/-/127.0.0.1/8125/-", minLength=1, maxLength=500),
        }) | {"required": ["url"]},
        **_SHARED,
    }) | {"required": ["flow"]},
}  # fmt: skip
