"""Schedules as values, and as the fields that JSON, YAML and the store keep of them.

`definition(schedule)` is canonical: one spelling for each meaning and defaults left out, so an edit
that changes nothing is recognised by its bytes.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from types import MappingProxyType

import msgspec

from onbeat.core.policy import POLICIES, Policy, read_flag, read_policy, write_policy
from onbeat.core.templates import check_templates, has_templates
from onbeat.core.triggers.base import Combined, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import NO_CALENDARS, Calendars
from onbeat.core.triggers.codec import AROUND, KINDS, check_names, decode, encode
from onbeat.core.triggers.kinds import At
from onbeat.errors import InvalidSchedule, meant, naming, shown

ID = re.compile(r"[A-Za-z0-9._/-]{1,200}")
LONGEST_DEFINITION = 256 * 1024
LONGEST_REMEMBERED = 4 * 1024  # of a definition that is kept as read


@dataclass(frozen=True, slots=True)
class Target:
    """What is started: the kind of launcher, and the fields that it reads."""

    kind: str
    fields: Mapping[str, object]
    is_enabled: bool = True
    # What a node has to offer for it: the kind; more of a registered function, which has a name,
    # and of a prompt to a server of its own, which every node can send.
    needs: str = field(init=False, repr=False, compare=False)
    # What is passed to it, as JSON: kept with a run from the moment it is decided.
    inputs_text: str | None = field(init=False, repr=False, compare=False)
    has_templates: bool = field(init=False, repr=False, compare=False)
    starts_directly: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inputs = self.fields.get("inputs")
        text = msgspec.json.encode(inputs).decode() if inputs else None
        object.__setattr__(self, "needs", _needs(self.kind, self.fields.get(self.kind)))
        object.__setattr__(self, "inputs_text", text)
        templates = has_templates(self.fields)
        object.__setattr__(self, "has_templates", templates)
        # Whoever may tell of its end by its key has to have that, before it can.
        object.__setattr__(self, "starts_directly", not (templates or self.may_report))

    @property
    def may_report(self) -> bool:
        """Whether it may be accepted, and its end told later by the run's key."""
        return self.kind in REPORTING

    @property
    def reattachable(self) -> bool:
        """Whether it goes on when its node is gone, and is found again by the run's key."""
        return self.kind in FOUND_AGAIN

    @property
    def inputs(self) -> dict[str, object]:
        """What is passed to it: another copy each time, which whoever gets it may change."""
        return read_inputs(self.inputs_text)


def _needs(kind: str, own: object) -> str:
    if kind == "python" and ":" not in str(own):
        return f"python:{own}"
    return (
        "session:url" if kind == "session" and isinstance(own, Mapping) and own.get("url") else kind
    )


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
    when: Target | None = None  # what is asked first: a run starts if it says yes

    @property
    def starts_directly(self) -> bool:
        """Whether a run can be announced as it is decided: nothing is to be looked at before."""
        return self.policy.starts_directly and self.target.starts_directly and self.when is None

    @property
    def timezone(self) -> str:
        """The zone that its trigger, or the first part of it that has one, is in."""
        return next((zone for zone in _zones_of(self.trigger) if zone), "UTC")

    @property
    def ticks_once(self) -> bool:
        """Whether it has single times only, so that one just past is still meant."""
        return isinstance(
            self.trigger.trigger if isinstance(self.trigger, Bounded) else self.trigger, At
        )

    def is_timed_like(self, other: "Schedule") -> bool:
        """Return whether it has the same ticks, due at the same times."""
        own, others = self.policy, other.policy
        jitter = (own.jitter, own.jitter_around) == (others.jitter, others.jitter_around)
        return jitter and self.trigger == other.trigger


def check_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule that the engine can run, or refuse it."""
    check_id(schedule.schedule_id)
    _check_trigger(schedule.trigger)
    if schedule.when is not None:
        _check_probe(schedule.when)
    if len(definition(schedule)) > LONGEST_DEFINITION:
        raise InvalidSchedule("", "the definition is too long", hint="256 KiB at most")
    return schedule


def _check_trigger(trigger: Trigger) -> None:
    for part in _parts_of(trigger):
        if (
            isinstance(part, OpenHours)
            and part.within is not None
            and part.within.outside == "move"
        ):
            problem = "ticks of a part cannot be moved past those of another"
            hint = "put `within` around the whole schedule, or use outside: skip"
            raise InvalidSchedule("within.outside", problem, hint=hint)


def _check_probe(probe: Target) -> None:
    if probe.kind == "python" and probe.needs != probe.kind:
        problem = "a condition cannot be a registered function: any node may have to ask it"
        raise InvalidSchedule("when.python", problem, hint="module:function")
    if probe.reattachable and probe.kind != "session":
        problem = "a condition is asked where the node is"
        raise InvalidSchedule("when.on", problem, hint="leave it out")
    if probe.has_templates:
        raise InvalidSchedule("when", "a condition has no templates", hint="put them in `run`")


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
    when = given.pop("when", None)
    trigger, policy, used = _read_timing(schedule_id, given, timezone, calendars)
    with naming("run"):
        target = read_target(run)
    with naming("when"):
        probe = None if when is None else read_target(when)
    text = _text("description", description)
    return check_schedule(Schedule(schedule_id, trigger, target, policy, text, used, probe))


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
    found = encode(schedule.trigger) | {"run": _written(schedule.target)}
    found |= write_policy(schedule.policy)
    if schedule.when is not None:
        found["when"] = _written(schedule.when)
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


def read_once(schedule_id: str, text: str) -> Schedule:
    """Return the same for a text that is not read again soon: it takes no place of another."""
    read = _decoded.__wrapped__
    parts = read(text, schedule_id)
    assert parts is not None, "with a key, a hash has its value"
    return Schedule(schedule_id, *parts)


def _written(target: Target) -> dict[str, object]:
    return dict(target.fields) | ({} if target.is_enabled else {"enabled": False})


Parts = tuple[Trigger, Target, Policy, str, Calendars, Target | None]


@lru_cache(maxsize=16_384)
def _decoded(text: str, key: str) -> Parts | None:
    """Return what a text says, or None if that depends on a key: on the schedule it is of."""
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as broken:
        raise InvalidSchedule("", f"this is not JSON: {broken}", hint="{...}") from None
    fields = _fields(given)
    run, description = fields.pop("run", None), fields.pop("description", "")
    when = fields.pop("when", None)
    timing = msgspec.json.encode(fields)
    if b"H" not in timing:  # only a hash in a cron tells equal ones apart
        key = ""
    elif not key:
        return None
    with naming("run"):
        target = _target(run)
    with naming("when"):
        probe = None if when is None else _target(when)
    read = _decoded_timing if len(timing) <= LONGEST_REMEMBERED else _decoded_timing.__wrapped__
    trigger, policy, calendars = read(timing, key)
    return trigger, target, policy, _text("description", description), calendars, probe


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
    check_names(given, timing | POLICIES.keys() | {"run", "when", "description"})
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
    _kind_of(given)
    if not json_can_say(given):
        hint = "texts, finite numbers, lists, and names that are texts"
        raise InvalidSchedule("", "it holds more than JSON can say", hint=hint)
    check_templates(given)
    return _target(msgspec.json.decode(msgspec.json.encode(given)))


def _target(given: object) -> Target:
    kind, own = _kind_of(given), _fields(given)
    with naming("enabled"):
        is_enabled = read_flag(own.pop("enabled", True))
    if kind == "python" and "on" in own:
        if own["on"] != ON_RAY:
            problem = f"nothing runs functions on {shown(own['on'])}"
            raise InvalidSchedule("on", problem, hint="ray, or leave it out: in the node itself")
        kind = ON_RAY
    return Target(kind, own, is_enabled)


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


def follows(schedule: Schedule) -> set[str]:
    """Return the schedules whose ends cause ticks of this one; a start is called `@startup`."""
    if not schedule.trigger.needs_past:
        return set()
    named = {cause.partition(":")[0] for cause in schedule.trigger.causes()}
    return {name or schedule.schedule_id for name in named}


def _zones_of(trigger: Trigger) -> Iterator[str | None]:
    yield getattr(trigger, "timezone", None)
    match trigger:
        case Bounded() | OpenHours():
            yield from _zones_of(trigger.trigger)
        case Combined():
            for part in trigger.parts:
                yield from _zones_of(part)
        case _:
            return


def _parts_of(trigger: Trigger) -> Iterator[Trigger]:
    """Yield every trigger below a combination, but not what only has limits around it."""
    match trigger:
        case Bounded() | OpenHours():
            yield from _parts_of(trigger.trigger)
        case Combined():
            for part in trigger.parts:
                yield part
                if isinstance(part, Bounded):
                    yield part.trigger
                yield from _parts_of(part)
        case _:
            return


# The kinds of launcher.
TARGETS = ("command", "python", "http", "session", "flock", "workflow", "flow")
# Those that others may report the end of, or a name.
REPORTING = frozenset({"http", "session", "workflow", "flow"})
ON_RAY = "ray"  # a function on a cluster: `python` with `on: ray`
# What runs without its node, by what it needs of one: it is reattached by the run's key.
FOUND_AGAIN = frozenset({ON_RAY, "flow", "session", "session:url"})
