"""Schedules as values, and as the fields that JSON, YAML and the store keep of them.

`definition(schedule)` is canonical: one spelling for each meaning and defaults left out, so an edit
that changes nothing is recognised by its bytes.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from onbeat.core.calendars import NO_CALENDARS, Calendars
from onbeat.core.codec import AROUND, KINDS, check_names, decode, encode
from onbeat.core.durations import Duration, parse_duration
from onbeat.core.limits import Limited, Open
from onbeat.core.ticks import Combined, Trigger
from onbeat.core.triggers import At
from onbeat.errors import InvalidSchedule, meant, naming, shown

Overlap = Literal["skip", "queue", "allow"]
Catchup = Literal["once", "none", "all", "spread"]
OnLost = Literal["fail", "retry"]

ID = re.compile(r"[A-Za-z0-9._/-]{1,200}")
MILLISECONDS = re.compile(r" *([0-9]{1,9})ms *")
LONGEST_RETRY = 100  # delays in one list
LONGEST_DEFINITION = 256 * 1024
LONGEST_REMEMBERED = 4 * 1024  # of a definition that is kept as read


@dataclass(frozen=True, slots=True)
class Policy:
    """How ticks are decided and runs are treated. Lengths are milliseconds."""

    grace: int = 60_000  # a tick decided within it is on time; later it is missed
    catchup: Catchup = "once"  # which missed ticks run: the latest for the rest, none, or each
    catchup_window: int = 24 * 3_600_000  # missed ticks older than this are not caught up
    overlap: Overlap = "skip"  # what becomes of a tick while a run is in flight
    jitter: int = 0  # a delay of up to this, the same for the same tick
    retry: tuple[int, ...] = ()  # how long after the n-th failure the next attempt is due
    timeout: int | None = None  # a run that lasts longer is ended
    on_lost: OnLost = "fail"  # a run whose node fell silent is launched at most, or at least, once


@dataclass(frozen=True, slots=True)
class Target:
    """What is started: the kind of launcher, and the fields that it reads."""

    kind: str
    fields: Mapping[str, object]
    # What a node has to offer for it: the kind, and the name of a registered function.
    needs: str = field(init=False, repr=False, compare=False)
    # What is passed to it, as JSON: kept with a run from the moment it is decided.
    inputs_text: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name, inputs = str(self.fields.get(self.kind)), self.fields.get("inputs")
        registered = self.kind == "python" and ":" not in name
        text = msgspec.json.encode(inputs).decode() if inputs else None
        object.__setattr__(self, "needs", f"python:{name}" if registered else self.kind)
        object.__setattr__(self, "inputs_text", text)

    @property
    def inputs(self) -> dict[str, object]:
        """What is passed to it: another copy each time, which whoever gets it may change."""
        return read_inputs(self.inputs_text)


def read_inputs(text: str | None) -> dict[str, object]:
    """Return the inputs that are kept as `text`."""
    return msgspec.json.decode(text) if text is not None else {}


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """What to start, when, under which policy."""

    schedule_id: str
    trigger: Trigger
    target: Target
    policy: Policy = Policy()
    description: str = ""
    calendars: Calendars = NO_CALENDARS  # those that it uses

    @property
    def ticks_once(self) -> bool:
        """Whether it has single times only, so that one just past is still meant."""
        return isinstance(
            self.trigger.trigger if isinstance(self.trigger, Limited) else self.trigger, At
        )

    def is_timed_like(self, other: "Schedule") -> bool:
        """Return whether it has the same ticks, due at the same times."""
        return self.trigger == other.trigger and self.policy.jitter == other.policy.jitter


def check_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule that the engine can run, or refuse it."""
    check_id(schedule.schedule_id)
    _check_trigger(schedule.trigger)
    if len(definition(schedule)) > LONGEST_DEFINITION:
        raise InvalidSchedule("", "the definition is too long", hint="256 KiB at most")
    return schedule


def _check_trigger(trigger: Trigger) -> None:
    for part in _parts_of(trigger):
        if isinstance(part, Open) and part.within is not None and part.within.outside == "move":
            problem = "ticks of a part cannot be moved past those of another"
            hint = "put `within` around the whole schedule, or use outside: skip"
            raise InvalidSchedule("within.outside", problem, hint=hint)
    if trigger.needs_past:
        problem = "the scheduler does not run ticks that follow a start or another run yet"
        raise InvalidSchedule("trigger", problem, hint="a time: cron, calendar, every, at, daily")


def check_id(schedule_id: object) -> str:
    """Return a schedule's id, or refuse what cannot be one."""
    known = isinstance(schedule_id, str) and ID.fullmatch(schedule_id) is not None
    if not known or {".", "..", ""} & set(str(schedule_id).split("/")):
        hint = "letters, digits and . _ / -, at most 200; no .. in a path"
        raise InvalidSchedule("schedule_id", f"{shown(schedule_id)} is no id", hint=hint)
    return str(schedule_id)


def read_schedule(
    schedule_id: str,
    given: object,
    *,
    timezone: str = "UTC",
    calendars: Calendars = NO_CALENDARS,
) -> Schedule:
    """Return the schedule that these fields define, or refuse them.

    `timezone` holds where the fields name none; `calendars` are the names that `exclude` may use.
    """
    check_id(schedule_id)
    given = _fields(given)
    run, description = given.pop("run", None), given.pop("description", "")
    trigger, policy, used = _read_timing(schedule_id, given, timezone, calendars)
    with naming("run"):
        target = read_target(run)
    return check_schedule(
        Schedule(schedule_id, trigger, target, policy, _text("description", description), used)
    )


def _fields(given: object) -> dict[str, object]:
    if not isinstance(given, Mapping):
        hint = "fields, such as every: 90m and run: {...}"
        raise InvalidSchedule("", f"{shown(given)} is no schedule", hint=hint)
    return dict(given)


def _read_timing(
    key: str, given: dict[str, object], timezone: str, calendars: Calendars
) -> tuple[Trigger, Policy, Calendars]:
    """Return what fields say of when, and under which policy; and the calendars that they use."""
    own = given.pop("calendars", None)
    if own is not None:
        calendars = _own_calendars(own)
    timing, rest = split_timing(given)
    trigger = decode(timing, timezone=timezone, key=key, calendars=calendars)
    used = {name: calendars[name] for name in _names_used(timing) if name in calendars}
    return trigger, read_policy(rest), MappingProxyType(used)


def definition(schedule: Schedule) -> str:
    """Return the canonical fields of a schedule as JSON: equal schedules give equal texts."""
    found = encode(schedule.trigger) | {"run": dict(schedule.target.fields)}
    found |= write_policy(schedule.policy)
    if schedule.description:
        found["description"] = schedule.description
    if schedule.calendars:
        found["calendars"] = {name: list(items) for name, items in schedule.calendars.items()}
    return msgspec.json.encode(found, order="deterministic").decode()


def from_definition(schedule_id: str, text: str) -> Schedule:
    """Return the schedule that the store keeps as `text`, which was checked when it was defined.

    It is read for every tick, so texts are remembered; and of others, what they say of when, which
    takes the longest to read and is the same for many.
    """
    read = _decoded if len(text) <= LONGEST_REMEMBERED else _decoded.__wrapped__
    parts = read(text, "")
    if parts is None:
        parts = read(text, schedule_id)
        assert parts is not None, "with a key, a hash has its value"
    return Schedule(schedule_id, *parts)


@lru_cache(maxsize=16_384)
def _decoded(text: str, key: str) -> tuple[Trigger, Target, Policy, str, Calendars] | None:
    """Return what a text says, or None if that depends on a key: on the schedule it is of."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as broken:
        raise InvalidSchedule("", f"this is not JSON: {broken}", hint="{...}") from None
    fields = _fields(given)
    run, description = fields.pop("run", None), fields.pop("description", "")
    timing = msgspec.json.encode(fields)
    if b"H" not in timing:  # only a hash in a cron tells equal ones apart
        key = ""
    elif not key:
        return None
    with naming("run"):
        target = Target(_kind_of(run), _fields(run))
    read = _decoded_timing if len(timing) <= LONGEST_REMEMBERED else _decoded_timing.__wrapped__
    trigger, policy, calendars = read(timing, key)
    return trigger, target, policy, _text("description", description), calendars


@lru_cache(maxsize=4096)
def _decoded_timing(timing: bytes, key: str) -> tuple[Trigger, Policy, Calendars]:
    found = _read_timing(key or "any", msgspec.json.decode(timing), "UTC", NO_CALENDARS)
    _check_trigger(found[0])
    return found


def split_timing(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the fields that say when, and the others; refuse names that no schedule has."""
    for other in ("tz", "zone", "time_zone"):
        if other in given:
            raise InvalidSchedule(other, "no field has this name", hint="did you mean 'timezone'?")
    timing = KINDS.keys() | AROUND
    check_names(given, timing | POLICIES.keys() | {"run", "description"})
    when = {name: value for name, value in given.items() if name in timing}
    return when, {name: value for name, value in given.items() if name not in timing}


def _kind_of(given: object) -> str:
    """Return the kind of a target: the one of its fields that names a launcher."""
    if not isinstance(given, Mapping):
        problem = (
            "nothing is said about what to run" if given is None else f"{shown(given)} is no target"
        )
        raise InvalidSchedule("", problem, hint="such as run: {command: [./backup.sh, --all]}")
    kinds = [name for name in given if name in TARGETS]
    if len(kinds) != 1:
        names = ", ".join(TARGETS)
        if not kinds and given:
            name = next(iter(given))
            raise InvalidSchedule(
                shown(name).strip("'"), "no launcher has this name", hint=meant(name, TARGETS)
            )
        problem = f"{len(kinds)} targets" if kinds else "no target"
        raise InvalidSchedule("", problem, hint=f"one of {names}")
    inputs = given.get("inputs")
    if inputs is not None and not (
        isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs)
    ):
        raise InvalidSchedule("inputs", f"{shown(inputs)} is no set of names", hint="{limit: 100}")
    return str(kinds[0])


def read_target(given: object) -> Target:
    """Return the target of `run: {command: [...]}`, or refuse it."""
    kind, given = _kind_of(given), _fields(given)
    if not json_can_say(given):
        hint = "texts, finite numbers, lists, and names that are texts"
        raise InvalidSchedule("", "it holds more than JSON can say", hint=hint)
    return Target(kind, msgspec.json.decode(msgspec.json.encode(given)))


def json_can_say(value: object, depth: int = 32) -> bool:
    """Return whether a value comes back from JSON as it went in."""
    if depth == 0:
        return False
    match value:
        case None | bool():
            return True
        case str():
            return _is_plain(value)
        case int():
            return -(2**63) <= value < 2**64
        case float():
            return isfinite(value)
        case list() | tuple():
            return all(json_can_say(item, depth - 1) for item in value)
        case Mapping():
            names = all(isinstance(name, str) and _is_plain(name) for name in value)
            return names and all(json_can_say(item, depth - 1) for item in value.values())
        case _:
            return False


def read_policy(given: Mapping[str, object]) -> Policy:
    """Return the policy that these fields ask for; what they leave out is at its default."""
    check_names(given, POLICIES.keys())
    found = {}
    for name, value in given.items():
        with naming(name):
            found[name] = POLICIES[name](value)
    return Policy(**found)  # type: ignore[arg-type]


def write_policy(policy: Policy) -> dict[str, object]:
    """Return the fields of a policy that are not at their default."""
    found: dict[str, object] = {}
    for known in fields(policy):
        value = getattr(policy, known.name)
        if value == known.default:
            continue
        if isinstance(value, tuple):
            found[known.name] = [_length_text(ms) for ms in value]
        else:
            found[known.name] = _length_text(value) if isinstance(value, int) else value
    return found


def _length_text(ms: int) -> str:
    return f"{ms}ms" if ms % 1000 else str(Duration(seconds=ms // 1000))


def _length(*, least: int = 0) -> Callable[[object], int]:
    def read(value: object) -> int:
        short = MILLISECONDS.fullmatch(value) if isinstance(value, str) else None
        ms = int(short[1]) if short else parse_duration(value).elapsed * 1000
        if ms < least:
            raise InvalidSchedule(
                "", f"{shown(value)} is too short", hint=f"{least // 1000}s or more"
            )
        return ms

    return read


def _choice(kind: object) -> Callable[[object], str]:
    known = get_args(kind)

    def read(value: object) -> str:
        if value not in known:
            hint = meant(value, known) if isinstance(value, str) else f"known: {', '.join(known)}"
            raise InvalidSchedule("", f"no way is called {shown(value)}", hint=hint)
        return str(value)

    return read


def _retry(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidSchedule("", f"{shown(value)} is no list of delays", hint="[30s, 2m, 10m]")
    if len(value) > LONGEST_RETRY:
        raise InvalidSchedule("", f"{len(value)} delays", hint=f"{LONGEST_RETRY} at most")
    found = []
    for i, delay in enumerate(value):
        with naming(f"[{i}]"):
            found.append(_length()(delay))
    return tuple(found)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 2000 or not _is_plain(value):
        raise InvalidSchedule(
            name, f"{shown(value)} is no short text", hint="2000 characters at most"
        )
    return value


def _is_plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character: no file and no database takes it
        return False
    return True


def _own_calendars(given: object) -> Calendars:
    if not isinstance(given, Mapping) or not all(
        isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items)
        for items in given.values()
    ):
        raise InvalidSchedule(
            "calendars", f"{shown(given)} is no set of names", hint="{name: [...]}"
        )
    return {str(name): tuple(items) for name, items in given.items()}


def _names_used(given: object) -> Iterator[str]:
    """Yield the items of every `exclude` in these fields, names of calendars among them."""
    if isinstance(given, Mapping):
        exclude = given.get("exclude")
        listed = exclude if isinstance(exclude, (list, tuple)) else [exclude]
        yield from sorted(item for item in listed if isinstance(item, str))
        given = list(given.values())
    if isinstance(given, (list, tuple)):
        for value in given:
            yield from _names_used(value)


def _parts_of(trigger: Trigger) -> Iterator[Trigger]:
    """Yield every trigger below a combination, but not what only has limits around it."""
    match trigger:
        case Limited() | Open():
            yield from _parts_of(trigger.trigger)
        case Combined():
            for part in trigger.parts:
                yield part
                if isinstance(part, Limited):
                    yield part.trigger
                yield from _parts_of(part)
        case _:
            return


POLICIES: dict[str, Callable[[object], object]] = {
    "grace": _length(least=1000),
    "catchup": _choice(Catchup),
    "catchup_window": _length(),
    "overlap": _choice(Overlap),
    "jitter": _length(),
    "retry": _retry,
    "timeout": _length(least=1000),
    "on_lost": _choice(OnLost),
}
TARGETS = ("command", "python")  # the kinds of launcher
