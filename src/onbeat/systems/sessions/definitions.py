"""Scheduled prompts: their definition files, and the schedules made of them.

    {"prompt": "...", "enabled": true, "schedule": {"type": "cron", "expression": "0 9 * * 1-5"},
     "sessionConfig": {"model": "claude-sonnet", "persistSession": true}}

A cron expression is in UTC, unless its schedule has a `timezone`. A schedule may also be
`{"type": "after", "slug": "other", "outcome": "success", "delayMinutes": 5}`; a definition may have
`"rateLimit": {"maxRuns": 3, "per": "day"}` and `"timeoutMinutes": 30`.
Unknown fields are preserved. Errors use the field names of the definition.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from onbeat.core.explain.preview import shortest_gap
from onbeat.core.schedule import Schedule, read_schedule
from onbeat.core.target import is_json_value
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.core.triggers.codec import decode, encode
from onbeat.errors import InvalidSchedule, OnbeatError

SOURCE = "sessions"  # the `source` of these schedules in the store
GROUP = "sessions"  # a concurrency limit of 1: prompts run one after the other
SLUG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
SLUGS = "letters, digits, '.', '_' and '-', at most 100, and no '.' first"
LONGEST_INTERVAL = 525_600  # minutes: a year
LONGEST, DEEPEST = 256 * 1024, 24  # size of a definition in bytes, and nesting levels
TIMEOUT, LONGEST_TIMEOUT = 30, 7 * 24 * 60  # minutes
MOST_RUNS = 1000  # in a rateLimit
RETRIES = 48  # after an error: one day, half an hour apart
CRON = re.compile(
    r"[ \t]*@[A-Za-z]+[ \t]*|[ \t]*\S+([ \t]+\S+){4}[ \t]*"
)  # five fields, or a macro
NO_SCHEDULE = "schedule with type and expression/intervalMinutes is required"
NO_CRON = "Invalid cron expression"
NO_RATE = "rateLimit must have maxRuns and per"

Fields = dict[str, object]


class PromptRefused(OnbeatError):  # noqa: N818 - it names what happened
    """An error with the HTTP status and the wording of the origin's API."""

    def __init__(self, status: Literal[400, 404, 409], error: str, *, hint: str = "") -> None:
        self.status, self.error, self.hint = status, error, hint
        super().__init__(status, error, hint)

    def __str__(self) -> str:
        return f"{self.error} ({self.hint})" if self.hint else self.error


@dataclass(frozen=True, slots=True)
class PromptDefaults:
    """Settings for all scheduled prompts, in milliseconds."""

    check: int = 30 * 60_000  # delay before a failed prompt is retried
    minimum: int = 60 * 60_000  # shortest interval between two runs


def check_slug(value: object) -> str:
    """Return a valid slug, or refuse anything that is not a plain folder name."""
    if not isinstance(value, str) or SLUG.fullmatch(value) is None:
        raise PromptRefused(400, "Invalid slug", hint=SLUGS)
    return value


def is_enabled(definition: Fields) -> bool:
    """Return whether a definition is scheduled."""
    found = definition.get("enabled", True)
    if not isinstance(found, bool):
        raise PromptRefused(400, "enabled must be true or false")
    return found


def is_persistent(definition: Fields) -> bool:
    """Return whether all runs of a definition share one session."""
    return _flag(_config(definition), "persistSession", default=True)


def read_definition(
    slug: str, definition: Fields, defaults: PromptDefaults, *, begins_at: int, now: int
) -> Schedule:
    """Return the schedule of a definition, or refuse it.

    `begins_at` is the second from which the ticks of an interval are counted.
    """
    check_slug(slug)
    if not is_json_value(definition, DEEPEST):
        hint = f"numbers of 64 bits, and {DEEPEST} levels at most"
        problem = "the definition contains a number that is too large, or is nested too deeply"
        raise PromptRefused(400, problem, hint=hint)
    if len(msgspec.json.encode(definition)) > LONGEST:
        raise PromptRefused(400, "the definition is too long", hint="256 KiB at most")
    prompt = definition.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise PromptRefused(400, "prompt is required")
    is_enabled(definition)
    config = _config(definition)
    session: Fields = {"prompt": prompt}
    if (model := config.get("model")) is not None:
        if not isinstance(model, str) or not model.strip():
            raise PromptRefused(400, "sessionConfig.model must be a string")
        session["model"] = model
    if not is_persistent(definition):
        session["persist"] = False
    if _flag(config, "feedback", default=False):
        session["feedback"] = True
    timing = _timing(definition.get("schedule"), begins_at)
    if _followed(timing) == slug:
        hint = "the slug of another schedule, or type: interval to repeat"
        raise PromptRefused(400, "schedule.slug: a schedule cannot follow itself", hint=hint)
    try:
        policy = _policy(defaults) | _limits(definition)
        found = read_schedule(slug, timing | policy | {"run": {"session": session}})
    except InvalidSchedule as refused:
        if refused.field.startswith("cron"):
            raise PromptRefused(400, NO_CRON, hint=str(refused)) from None
        if refused.field == "timezone":
            raise PromptRefused(400, f"schedule.{refused}") from None
        raise PromptRefused(400, str(refused).removeprefix("run.session.")) from None
    check_minimum(found, defaults, now)
    return found


def check_minimum(schedule: Schedule, defaults: PromptDefaults, now: int) -> None:
    """Refuse a schedule that runs more often than the operator's minimum interval allows."""
    gap = shortest_gap(schedule.trigger, after=now // 1000)
    if gap is None or gap * 1000 >= defaults.minimum:
        return
    least = f"Minimum interval is {_minutes(defaults.minimum // 60_000)}"
    if encode(schedule.trigger).get("cron") is None:
        raise PromptRefused(400, least)
    raise PromptRefused(400, f"Cron expression runs every {gap // 60} minutes. {least}")


def definition_from_store(stored: str, last: Fields) -> Fields:
    """Return the definition of a stored schedule, keeping the unchanged parts of the `last` one."""
    definition = msgspec.json.decode(stored, type=dict[str, object])
    run = definition.get("run")
    session = run.get("session") if isinstance(run, dict) else None
    found = dict(last)
    if not isinstance(session, dict):
        return found  # edited into another kind of target, which a definition cannot express
    if session.get("prompt") != last.get("prompt"):
        found["prompt"] = session.get("prompt")
    config = _config(last)
    for name, ours, default in CONFIG:
        value, before = session.get(ours, default), config.get(name)
        if value != (default if before is None else before):
            found["sessionConfig"] = config = config | {name: value}
    limits = timeout_of(definition), rate_of(definition)
    both = zip(LIMITS, limits, _limits_of(last), strict=True)
    found |= {name: limit for name, limit, before in both if limit != before}
    timing = _schedule_of(definition)
    if timing is not None and timing != _normalized(last.get("schedule")):
        found["schedule"] = timing
    return found


def begins_at(definition: str) -> int | None:
    """Return the second from which the interval of a schedule is counted, or None."""
    fields = msgspec.json.decode(definition, type=dict[str, object])
    return parse_instant(fields["start_at"]) if "every" in fields and "start_at" in fields else None


def is_same_interval(one: object, other: object) -> bool:
    """Return whether two definitions have intervals of the same length."""
    normalized = _normalized(one)
    return normalized == _normalized(other) and normalized.get("type") == "interval"


def _policy(defaults: PromptDefaults) -> Fields:
    length = f"{defaults.check // 1000}s"
    return {
        "group": GROUP,
        "overlap": "skip",
        "catchup": "once",
        "catchup_window": "366d",  # one run after a downtime, however long it was
        "retry": {"attempts": RETRIES + 1, "backoff": length, "max": length},
    }


def is_dependent(definition: Fields) -> bool:
    """Return whether a definition runs after another schedule instead of at set times."""
    found = definition.get("schedule")
    return isinstance(found, dict) and found.get("type") == "after"


def in_order(slugs: Sequence[str], followed: Mapping[str, str]) -> list[str]:
    """Return slugs in an order in which each comes after the slug that it follows."""

    def depth(slug: str) -> int:
        steps = 0
        while (slug := followed.get(slug, "")) and steps < len(followed):
            steps += 1
        return steps

    return sorted(slugs, key=lambda slug: (depth(slug), slug))


def _limits(definition: Fields) -> Fields:
    """Return the timeout and the rate of a definition."""
    minutes = definition.get("timeoutMinutes")
    minutes = TIMEOUT if minutes is None else minutes
    if not _is_whole(minutes, 1, LONGEST_TIMEOUT):
        hint = f"a whole number, 1 to {LONGEST_TIMEOUT}"
        raise PromptRefused(400, "timeoutMinutes is not a number of minutes", hint=hint)
    timeout: Fields = {"timeout": f"{_whole(minutes)}m"}
    match definition.get("rateLimit"):
        case None:
            return timeout
        case {"maxRuns": most, "per": "hour" | "day" as per, **other} if not other:
            if not _is_whole(most, 1, MOST_RUNS):
                hint = f"a whole number, 1 to {MOST_RUNS}"
                raise PromptRefused(400, "rateLimit.maxRuns is not a number of runs", hint=hint)
            return timeout | {"rate": f"{_whole(most)}/{per}"}
        case _:
            raise PromptRefused(400, NO_RATE, hint='{"maxRuns": 3, "per": "day"}, or per hour')


def minutes_of(timeout: object) -> int | None:
    """Return a valid `timeoutMinutes`, else None."""
    return _whole(timeout) if _is_whole(timeout, 1, LONGEST_TIMEOUT) else None


def timeout_of(fields: Fields) -> object:
    """Return the `timeoutMinutes` of a schedule; None: no timeout, or not in whole minutes."""
    text = fields.get("timeout")
    seconds = parse_duration(text).elapsed if isinstance(text, str) else 0
    return seconds // 60 if seconds and not seconds % 60 else None


def rate_of(fields: Fields) -> object:
    """Return the `rateLimit` of a schedule, or None."""
    most, _, per = str(fields.get("rate", "")).partition("/")
    return {"maxRuns": int(most), "per": per} if per else None


def _limits_of(definition: Fields) -> tuple[object, object]:
    minutes = definition.get("timeoutMinutes")
    return TIMEOUT if minutes is None else minutes, definition.get("rateLimit")


def _whole(value: object) -> int:
    assert isinstance(value, int | float), "_is_whole accepted it"
    return int(value)


def _is_whole(value: object, least: int, most: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return float(value).is_integer() and least <= value <= most


def _timing(schedule: object, begins_at: int) -> Fields:
    """Return the trigger for a `schedule` field, by its type."""
    match schedule:
        case {"type": "cron", "expression": str(text)} if text.strip():
            if CRON.fullmatch(text.strip()) is None:
                raise PromptRefused(400, NO_CRON, hint="minute hour day month day-of-week")
            return {"cron": text.strip(), "timezone": _zone_of(schedule)}
        case {"type": "interval", "intervalMinutes": int(minutes) | float(minutes)}:
            if not _is_whole(minutes, 1, LONGEST_INTERVAL):
                hint = f"a whole number, 1 to {LONGEST_INTERVAL}"
                raise PromptRefused(400, "intervalMinutes is not a number of minutes", hint=hint)
            return {"every": f"{int(minutes)}m", "start_at": rfc3339(begins_at)}
        case {"type": "after", "slug": str(other), **own} if other.strip():
            return {"after": _after(own, other.strip())}
        case {"type": "after"}:
            raise PromptRefused(400, NO_SCHEDULE, hint="slug: the schedule that it follows")
        case {"type": "cron"}:
            raise PromptRefused(400, NO_SCHEDULE, hint="expression: a string such as 0 9 * * 1-5")
        case {"type": "interval"}:
            raise PromptRefused(400, NO_SCHEDULE, hint="intervalMinutes: a whole number")
        case _:
            raise PromptRefused(400, NO_SCHEDULE, hint="type: cron, interval or after")


def _after(fields: Mapping[object, object], slug: str) -> Fields:
    outcome, delay = fields.get("outcome"), fields.get("delayMinutes")
    outcome, delay = outcome or OUTCOMES[0], 0 if delay is None else delay
    if outcome not in OUTCOMES:
        raise PromptRefused(400, "schedule.outcome is not an outcome", hint=", ".join(OUTCOMES))
    if not _is_whole(delay, 0, LONGEST_INTERVAL):
        hint = f"a whole number, 0 to {LONGEST_INTERVAL}"
        raise PromptRefused(400, "schedule.delayMinutes is not a number of minutes", hint=hint)
    return {"schedule": slug, "outcome": outcome, "delay": f"{_whole(delay)}m"}


def _followed(timing: Fields) -> object:
    """Return the slug that a trigger follows, or None."""
    found = timing.get("after")
    return found.get("schedule") if isinstance(found, dict) else None


def _zone_of(schedule: object) -> object:
    """Return the zone of a cron expression: UTC by default."""
    found = schedule.get("timezone") if isinstance(schedule, dict) else None
    return "UTC" if found is None else found


def _minutes(count: int) -> str:
    hours, rest = divmod(count, 60)
    text = f"{count} minute{'' if count == 1 else 's'}"
    return text if rest or not hours else f"{text} ({hours} hour{'' if hours == 1 else 's'})"


def _config(definition: Fields) -> Fields:
    found = definition.get("sessionConfig")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise PromptRefused(400, "sessionConfig must have model and persistSession")
    return found


def _flag(config: Fields, name: str, *, default: bool) -> bool:
    found = default if config.get(name) is None else config[name]
    if not isinstance(found, bool):
        raise PromptRefused(400, f"sessionConfig.{name} must be true or false")
    return found


def _schedule_of(fields: Fields) -> Fields | None:
    """Return the `schedule` field for a stored trigger; None: a definition cannot express it."""
    match fields:
        case {"cron": str(text)}:
            return {"type": "cron", "expression": text} | _zoned(fields)
        case {"after": {"schedule": str(slug), "outcome": str(outcome), **own}}:
            seconds = parse_duration(str(own.get("delay", "0s"))).elapsed
            after = {"type": "after", "slug": slug, "outcome": outcome}
            return None if seconds % 60 else after | {"delayMinutes": seconds // 60}
        case {"every": str(length)}:
            minutes, rest = divmod(parse_duration(length).elapsed, 60)
            return None if rest else {"type": "interval", "intervalMinutes": minutes}
        case _:
            return None


def _zoned(schedule: object) -> Fields:
    zone = _zone_of(schedule)
    return {} if zone == "UTC" else {"timezone": zone}


def _normalized(schedule: object) -> Fields:
    match schedule:
        case {"type": "cron", "expression": str(text)}:
            with suppress(InvalidSchedule):
                trigger = decode({"cron": text}, timezone="UTC", key="any")
                text = str(encode(trigger).get("cron"))
            return {"type": "cron", "expression": text} | _zoned(schedule)
        case {"type": "interval", "intervalMinutes": minutes}:
            return {"type": "interval", "intervalMinutes": minutes}
        case {"type": "after", "slug": str(slug), **own}:
            outcome, delay = own.get("outcome") or OUTCOMES[0], own.get("delayMinutes") or 0
            return {"type": "after", "slug": slug, "outcome": outcome, "delayMinutes": delay}
        case _:
            return {}


OUTCOMES = ("completion", "success", "failure")
LIMITS = ("timeoutMinutes", "rateLimit")
# Names in a definition and in a target, and the default.
CONFIG = (
    ("model", "model", None),
    ("persistSession", "persist", True),
    ("feedback", "feedback", False),
)
