"""Scheduled prompts as their system defines them, and as schedules.

    {"prompt": "...", "enabled": true, "schedule": {"type": "cron", "expression": "0 9 * * 1-5"},
     "sessionConfig": {"model": "claude-sonnet", "persistSession": true}}

A cron expression is of UTC, or of the `timezone` that its schedule names. A schedule may also be
`{"type": "after", "slug": "other", "outcome": "success", "delayMinutes": 5}`; a definition may have
`"rateLimit": {"maxRuns": 3, "per": "day"}` and `"timeoutMinutes": 30`.
What is not known here is kept as it is. Refusals are in the words of that system.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from onbeat.core.explain.preview import shortest_gap
from onbeat.core.schedule import Schedule, read_schedule
from onbeat.core.target import json_can_say
from onbeat.core.time.durations import parse_duration
from onbeat.core.time.instants import parse_instant, rfc3339
from onbeat.core.triggers.codec import decode, encode
from onbeat.errors import InvalidSchedule, OnbeatError

SOURCE = "sessions"  # whose schedules these are, in the store
GROUP = "sessions"  # one place: they run one after the other
SLUG = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
SLUGS = "letters, digits, '.', '_' and '-', at most 100, and no '.' first"
LONGEST_INTERVAL = 525_600  # minutes: a year
LONGEST, DEEPEST = 256 * 1024, 24  # of a definition: bytes, and levels
TIMEOUT, LONGEST_TIMEOUT = 30, 7 * 24 * 60  # minutes
MOST_RUNS = 1000  # of a rate
RETRIES = 48  # after an error: a day of them, half an hour apart
CRON = re.compile(
    r"[ \t]*@[A-Za-z]+[ \t]*|[ \t]*\S+([ \t]+\S+){4}[ \t]*"
)  # five fields, or a macro
NO_SCHEDULE = "schedule with type and expression/intervalMinutes is required"
NO_CRON = "Invalid cron expression"
NO_RATE = "rateLimit must have maxRuns and per"

Fields = dict[str, object]


class PromptRefused(OnbeatError):  # noqa: N818 - it names what happened
    """Something is refused, in the words of the system and with the status that it has there."""

    def __init__(self, status: Literal[400, 404, 409], error: str, *, hint: str = "") -> None:
        self.status, self.error, self.hint = status, error, hint
        super().__init__(status, error, hint)

    def __str__(self) -> str:
        return f"{self.error} ({self.hint})" if self.hint else self.error


@dataclass(frozen=True, slots=True)
class PromptDefaults:
    """What an operator can set for all scheduled prompts, in milliseconds."""

    check: int = 30 * 60_000  # after an error a prompt is sent again
    minimum: int = 60 * 60_000  # the shortest time between two runs


def check_slug(given: object) -> str:
    """Return a slug, or refuse what could be the name of anything else than a folder of ours."""
    if not isinstance(given, str) or SLUG.fullmatch(given) is None:
        raise PromptRefused(400, "Invalid slug", hint=SLUGS)
    return given


def is_enabled(given: Fields) -> bool:
    """Return whether a definition is to run by itself."""
    found = given.get("enabled", True)
    if not isinstance(found, bool):
        raise PromptRefused(400, "enabled must be true or false")
    return found


def is_persistent(given: Fields) -> bool:
    """Return whether all runs of a definition share one session."""
    return _flag(_config(given), "persistSession", default=True)


def read_definition(
    slug: str, given: Fields, defaults: PromptDefaults, *, begins_at: int, now: int
) -> Schedule:
    """Return the schedule that a definition comes to, or refuse it.

    `begins_at` is the second that the times of an interval are counted from.
    """
    check_slug(slug)
    if not json_can_say(given, DEEPEST):
        hint = f"numbers of 64 bits, and {DEEPEST} levels at most"
        raise PromptRefused(
            400, "the definition holds a number or a depth that is too large", hint=hint
        )
    if len(msgspec.json.encode(given)) > LONGEST:
        raise PromptRefused(400, "the definition is too long", hint="256 KiB at most")
    prompt = given.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise PromptRefused(400, "prompt is required")
    is_enabled(given)
    config = _config(given)
    session: Fields = {"prompt": prompt}
    if (model := config.get("model")) is not None:
        if not isinstance(model, str) or not model.strip():
            raise PromptRefused(400, "sessionConfig.model must be a text")
        session["model"] = model
    if not is_persistent(given):
        session["persist"] = False
    if _flag(config, "feedback", default=False):
        session["feedback"] = True
    timing = _timing(given.get("schedule"), begins_at)
    if _followed(timing) == slug:
        hint = "the slug of another schedule; type: interval runs again and again"
        raise PromptRefused(400, "schedule.slug: a schedule cannot follow itself", hint=hint)
    try:
        policy = _policy(defaults) | _limits(given)
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
    """Refuse what would run more often than an operator wants to pay for."""
    gap = shortest_gap(schedule.trigger, after=now // 1000)
    if gap is None or gap * 1000 >= defaults.minimum:
        return
    least = f"Minimum interval is {_minutes(defaults.minimum // 60_000)}"
    if encode(schedule.trigger).get("cron") is None:
        raise PromptRefused(400, least)
    raise PromptRefused(400, f"Cron expression runs every {gap // 60} minutes. {least}")


def told_of(definition: str, known: Fields) -> Fields:
    """Return the definition of a schedule, given the one that was known: what is the same stays."""
    now_said = msgspec.json.decode(definition, type=dict[str, object])
    run = now_said.get("run")
    session = run.get("session") if isinstance(run, dict) else None
    found = dict(known)
    if not isinstance(session, dict):
        return found  # others have made something else of it, which has no words here
    if session.get("prompt") != known.get("prompt"):
        found["prompt"] = session.get("prompt")
    config = _config(known)
    for name, ours, default in CONFIG:
        value, before = session.get(ours, default), config.get(name)
        if value != (default if before is None else before):
            found["sessionConfig"] = config = config | {name: value}
    limits = timeout_of(now_said), rate_of(now_said)
    both = zip(LIMITS, limits, _limits_known(known), strict=True)
    found |= {name: limit for name, limit, before in both if limit != before}
    timing = _schedule_of(now_said)
    if timing is not None and timing != _in_one_spelling(known.get("schedule")):
        found["schedule"] = timing
    return found


def begins_at(definition: str) -> int | None:
    """Return the second from which the interval of a schedule is counted, if it has one."""
    said = msgspec.json.decode(definition, type=dict[str, object])
    return parse_instant(said["start_at"]) if "every" in said and "start_at" in said else None


def is_same_interval(one: object, other: object) -> bool:
    """Return whether two definitions are of intervals of the same length."""
    spelled = _in_one_spelling(one)
    return spelled == _in_one_spelling(other) and spelled.get("type") == "interval"


def _policy(defaults: PromptDefaults) -> Fields:
    length = f"{defaults.check // 1000}s"
    return {
        "group": GROUP,
        "overlap": "skip",
        "catchup": "once",
        "catchup_window": "366d",  # however long nothing was up, there is one run
        "retry": {"attempts": RETRIES + 1, "backoff": length, "max": length},
    }


def is_dependent(given: Fields) -> bool:
    """Return whether a definition runs when another has ended, and not by the time."""
    found = given.get("schedule")
    return isinstance(found, dict) and found.get("type") == "after"


def in_order(slugs: Sequence[str], followed: Mapping[str, str]) -> list[str]:
    """Return slugs such that each comes after the one that it follows, where that is among them."""

    def depth(slug: str) -> int:
        steps = 0
        while (slug := followed.get(slug, "")) and steps < len(followed):
            steps += 1
        return steps

    return sorted(slugs, key=lambda slug: (depth(slug), slug))


def _limits(given: Fields) -> Fields:
    """Return how long a run may work, and how many there may be."""
    minutes = TIMEOUT if given.get("timeoutMinutes") is None else given["timeoutMinutes"]
    if not _is_whole(minutes, 1, LONGEST_TIMEOUT):
        hint = f"a whole number, 1 to {LONGEST_TIMEOUT}"
        raise PromptRefused(400, "timeoutMinutes is not a number of minutes", hint=hint)
    timeout: Fields = {"timeout": f"{_whole(minutes)}m"}
    match given.get("rateLimit"):
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
    """Return `timeoutMinutes` of a definition; None: it is not such a number."""
    return _whole(timeout) if _is_whole(timeout, 1, LONGEST_TIMEOUT) else None


def timeout_of(said: Fields) -> object:
    """Return the `timeoutMinutes` of a schedule; None: it has none, or not in whole minutes."""
    text = said.get("timeout")
    seconds = parse_duration(text).elapsed if isinstance(text, str) else 0
    return seconds // 60 if seconds and not seconds % 60 else None


def rate_of(said: Fields) -> object:
    """Return the `rateLimit` of a schedule; None: it has none."""
    most, _, per = str(said.get("rate", "")).partition("/")
    return {"maxRuns": int(most), "per": per} if per else None


def _limits_known(known: Fields) -> tuple[object, object]:
    minutes = known.get("timeoutMinutes")
    return TIMEOUT if minutes is None else minutes, known.get("rateLimit")


def _whole(value: object) -> int:
    assert isinstance(value, int | float), "it was checked"
    return int(value)


def _is_whole(value: object, least: int, most: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return float(value).is_integer() and least <= value <= most


def _timing(given: object, begins_at: int) -> Fields:
    """Return the trigger that a schedule's `type` asks for."""
    match given:
        case {"type": "cron", "expression": str(text)} if text.strip():
            if CRON.fullmatch(text.strip()) is None:
                raise PromptRefused(400, NO_CRON, hint="minute hour day month day-of-week")
            return {"cron": text.strip(), "timezone": _zone_of(given)}
        case {"type": "interval", "intervalMinutes": int(minutes) | float(minutes)}:
            if not _is_whole(minutes, 1, LONGEST_INTERVAL):
                hint = f"a whole number, 1 to {LONGEST_INTERVAL}"
                raise PromptRefused(400, "intervalMinutes is no number of minutes", hint=hint)
            return {"every": f"{int(minutes)}m", "start_at": rfc3339(begins_at)}
        case {"type": "after", "slug": str(other), **own} if other.strip():
            return {"after": _after(own, other.strip())}
        case {"type": "after"}:
            raise PromptRefused(400, NO_SCHEDULE, hint="slug: the schedule that it follows")
        case {"type": "cron"}:
            raise PromptRefused(400, NO_SCHEDULE, hint="expression: a text such as 0 9 * * 1-5")
        case {"type": "interval"}:
            raise PromptRefused(400, NO_SCHEDULE, hint="intervalMinutes: a whole number")
        case _:
            raise PromptRefused(400, NO_SCHEDULE, hint="type: cron, interval or after")


def _after(given: Mapping[object, object], slug: str) -> Fields:
    outcome, delay = given.get("outcome"), given.get("delayMinutes")
    outcome, delay = outcome or OUTCOMES[0], 0 if delay is None else delay
    if outcome not in OUTCOMES:
        raise PromptRefused(400, "schedule.outcome is not an outcome", hint=", ".join(OUTCOMES))
    if not _is_whole(delay, 0, LONGEST_INTERVAL):
        hint = f"a whole number, 0 to {LONGEST_INTERVAL}"
        raise PromptRefused(400, "schedule.delayMinutes is not a number of minutes", hint=hint)
    return {"schedule": slug, "outcome": outcome, "delay": f"{_whole(delay)}m"}


def _followed(timing: Fields) -> object:
    """Return the schedule that a trigger follows, if it does."""
    found = timing.get("after")
    return found.get("schedule") if isinstance(found, dict) else None


def _zone_of(given: object) -> object:
    """Return the zone of a cron expression: UTC, unless it names one."""
    found = given.get("timezone") if isinstance(given, dict) else None
    return "UTC" if found is None else found


def _minutes(count: int) -> str:
    hours, rest = divmod(count, 60)
    text = f"{count} minute{'' if count == 1 else 's'}"
    return text if rest or not hours else f"{text} ({hours} hour{'' if hours == 1 else 's'})"


def _config(given: Fields) -> Fields:
    found = given.get("sessionConfig")
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


def _schedule_of(said: Fields) -> Fields | None:
    """Return what a schedule says of when, in the words of the system; None: it has none for it."""
    match said:
        case {"cron": str(text)}:
            return {"type": "cron", "expression": text} | _zoned(said)
        case {"after": {"schedule": str(slug), "outcome": str(outcome), **own}}:
            seconds = parse_duration(str(own.get("delay", "0s"))).elapsed
            after = {"type": "after", "slug": slug, "outcome": outcome}
            return None if seconds % 60 else after | {"delayMinutes": seconds // 60}
        case {"every": str(length)}:
            minutes, rest = divmod(parse_duration(length).elapsed, 60)
            return None if rest else {"type": "interval", "intervalMinutes": minutes}
        case _:
            return None


def _zoned(given: object) -> Fields:
    zone = _zone_of(given)
    return {} if zone == "UTC" else {"timezone": zone}


def _in_one_spelling(given: object) -> Fields:
    match given:
        case {"type": "cron", "expression": str(text)}:
            with suppress(InvalidSchedule):
                trigger = decode({"cron": text}, timezone="UTC", key="any")
                text = str(encode(trigger).get("cron"))
            return {"type": "cron", "expression": text} | _zoned(given)
        case {"type": "interval", "intervalMinutes": minutes}:
            return {"type": "interval", "intervalMinutes": minutes}
        case {"type": "after", "slug": str(slug), **own}:
            outcome, delay = own.get("outcome") or OUTCOMES[0], own.get("delayMinutes") or 0
            return {"type": "after", "slug": slug, "outcome": outcome, "delayMinutes": delay}
        case _:
            return {}


OUTCOMES = ("completion", "success", "failure")
LIMITS = ("timeoutMinutes", "rateLimit")
# What a definition calls it, what a target does, and what it is if nothing is said.
CONFIG = (
    ("model", "model", None),
    ("persistSession", "persist", True),
    ("feedback", "feedback", False),
)
