"""Schedules as values, and as the fields that JSON, YAML and the store hold.

`definition(schedule)` is canonical: one spelling for each meaning, and defaults left out. An edit
that changes nothing is recognized by its bytes.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from types import MappingProxyType

import msgspec

from onbeat.core.policy import POLICIES, Policy, read_policy, write_policy
from onbeat.core.target import Target, decode_target, is_encodable, read_target, stored_fields
from onbeat.core.triggers.base import Combined, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.calendars import NO_CALENDARS, Calendars
from onbeat.core.triggers.codec import AROUND, KINDS, check_names, decode, encode
from onbeat.core.triggers.kinds import At
from onbeat.errors import InvalidSchedule, in_field, quote_value

ID = re.compile(r"[A-Za-z0-9._/-]{1,200}")
LONGEST_DEFINITION = 256 * 1024
LONGEST_CACHED = 4 * 1024  # characters of a definition that is cached in decoded form


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """What to start, when, under which policy."""

    schedule_id: str
    trigger: Trigger
    target: Target
    policy: Policy = Policy()
    description: str = ""
    calendars: Calendars = NO_CALENDARS  # the calendars that it uses
    when: Target | None = None  # the condition: a run starts only if it holds

    @property
    def starts_directly(self) -> bool:
        """Whether a run can be announced as soon as it is decided, without further checks."""
        return self.policy.starts_directly and self.target.starts_directly and self.when is None

    @property
    def needs(self) -> str:
        """What a node must offer to start a run of it: what its target needs.

        A condition of a kind that is not known here needs a node that knows the kind.
        """
        when = self.when
        return self.target.needs if when is None or when.facts.is_known else when.needs

    @property
    def timezone(self) -> str:
        """The zone of its trigger, or of the first part of the trigger that has one."""
        return next((zone for zone in _zones_of(self.trigger) if zone), "UTC")

    @property
    def ticks_once(self) -> bool:
        """Whether it has single times only: one that has just passed still counts."""
        return isinstance(
            self.trigger.trigger if isinstance(self.trigger, Bounded) else self.trigger, At
        )

    def is_timed_like(self, other: "Schedule") -> bool:
        """Return whether both have the same ticks, due at the same times."""
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
            problem = "a part of a trigger cannot move its ticks past those of another part"
            hint = "set `within` on the whole schedule, or use outside: skip"
            raise InvalidSchedule("within.outside", problem, hint=hint)


def _check_probe(probe: Target) -> None:
    if probe.facts.check_condition is not None:
        with in_field("when"):
            probe.facts.check_condition(probe)
    if probe.has_templates:
        raise InvalidSchedule(
            "when", "a condition cannot contain templates", hint="use them in `run`"
        )


def check_id(schedule_id: object) -> str:
    """Return a valid schedule id, or refuse it."""
    is_id = isinstance(schedule_id, str) and ID.fullmatch(schedule_id) is not None
    if not is_id or {".", "..", ""} & set(str(schedule_id).split("/")):
        hint = "letters, digits and . _ / -, at most 200; no .. in a path"
        raise InvalidSchedule(
            "schedule_id", f"{quote_value(schedule_id)} is not a valid id", hint=hint
        )
    return str(schedule_id)


def read_schedule(
    schedule_id: str,
    fields: object,
    *,
    timezone: str = "UTC",
    calendars: Calendars = NO_CALENDARS,
) -> Schedule:
    """Return the schedule that these fields define, or refuse them.

    `timezone` applies where the fields name no zone. `exclude` may name the `calendars`.
    """
    check_id(schedule_id)
    rest = _mapping(fields)
    run, description = rest.pop("run", None), rest.pop("description", "")
    when = rest.pop("when", None)
    trigger, policy, used = _read_timing(schedule_id, rest, timezone, calendars)
    with in_field("run"):
        target = read_target(run)
    with in_field("when"):
        probe = None if when is None else read_target(when)
    text = _text("description", description)
    return check_schedule(Schedule(schedule_id, trigger, target, policy, text, used, probe))


def _mapping(fields: object) -> dict[str, object]:
    if not isinstance(fields, Mapping):
        hint = "fields, such as every: 90m and run: {...}"
        raise InvalidSchedule("", f"{quote_value(fields)} is not a schedule", hint=hint)
    return dict(fields)


def _read_timing(
    key: str, fields: dict[str, object], timezone: str, calendars: Calendars
) -> tuple[Trigger, Policy, Calendars]:
    """Return the trigger and the policy of some fields, and the calendars that they use."""
    defined = fields.pop("calendars", None)
    if defined is not None:
        calendars = _read_calendars(defined)
    timing, rest = split_timing(fields)
    trigger = decode(timing, timezone=timezone, key=key, calendars=calendars)
    used = {name: calendars[name] for name in _names_used(timing) if name in calendars}
    return trigger, read_policy(rest), MappingProxyType(used)


def definition(schedule: Schedule) -> str:
    """Return the canonical fields of a schedule as JSON. Equal schedules have equal texts."""
    fields = encode(schedule.trigger) | {"run": _target_text(schedule.target)}
    fields |= write_policy(schedule.policy)
    if schedule.when is not None:
        fields["when"] = _target_text(schedule.when)
    if schedule.description:
        fields["description"] = schedule.description
    if schedule.calendars:
        fields["calendars"] = {name: list(items) for name, items in schedule.calendars.items()}
    return msgspec.json.encode(fields, order="deterministic").decode()


def from_definition(schedule_id: str, text: str) -> Schedule:
    """Return the schedule that the store holds as `text`, which was checked when it was defined.

    It is decoded for every tick, so decoded texts are cached. The timing is also cached by itself:
    it takes the longest to decode, and many schedules share it.
    """
    read = _decoded if len(text) <= LONGEST_CACHED else _decoded.__wrapped__
    parts = read(text, "")
    if parts is None:
        parts = read(text, schedule_id)
        assert parts is not None, "with a key, every `H` has its value"
    return Schedule(schedule_id, *parts)


def read_once(schedule_id: str, text: str) -> Schedule:
    """Return the same without using the cache, for a text that is not decoded again soon."""
    read = _decoded.__wrapped__
    parts = read(text, schedule_id)
    assert parts is not None, "with a key, every `H` has its value"
    return Schedule(schedule_id, *parts)


def _target_text(target: Target) -> object:
    """Return the fields of a target, encoded if they are not to be sorted."""
    fields = stored_fields(target)
    if target.facts.is_stored_sorted:
        return fields
    encode_part = partial(msgspec.json.encode, order="deterministic")
    parts = (encode_part(name) + b":" + encode_part(value) for name, value in fields.items())
    return msgspec.Raw(b"{" + b",".join(parts) + b"}")


Parts = tuple[Trigger, Target, Policy, str, Calendars, Target | None]


@lru_cache(maxsize=16_384)
def _decoded(text: str, key: str) -> Parts | None:
    """Return the decoded parts of a text, or None if they depend on the key, the schedule's id."""
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as broken:
        raise InvalidSchedule("", f"this is not JSON: {broken}", hint="{...}") from None
    fields = _mapping(decoded)
    run, description = fields.pop("run", None), fields.pop("description", "")
    when = fields.pop("when", None)
    timing = msgspec.json.encode(fields)
    if b"H" not in timing:  # only an `H` in a cron depends on the key
        key = ""
    elif not key:
        return None
    with in_field("run"):
        target = decode_target(run)
    with in_field("when"):
        probe = None if when is None else decode_target(when)
    read = _decoded_timing if len(timing) <= LONGEST_CACHED else _decoded_timing.__wrapped__
    trigger, policy, calendars = read(timing, key)
    return trigger, target, policy, _text("description", description), calendars, probe


@lru_cache(maxsize=4096)
def _decoded_timing(timing: bytes, key: str) -> tuple[Trigger, Policy, Calendars]:
    found = _read_timing(key or "any", msgspec.json.decode(timing), "UTC", NO_CALENDARS)
    _check_trigger(found[0])
    return found


def split_timing(fields: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return the fields of the trigger, and the others; refuse unknown names."""
    for other in ("tz", "zone", "time_zone"):
        if other in fields:
            raise InvalidSchedule(other, "no field has this name", hint="did you mean 'timezone'?")
    timing = KINDS.keys() | AROUND
    check_names(fields, timing | POLICIES.keys() | {"run", "when", "description"})
    when = {name: value for name, value in fields.items() if name in timing}
    return when, {name: value for name, value in fields.items() if name not in timing}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 2000 or not is_encodable(value):
        raise InvalidSchedule(
            name, f"{quote_value(value)} is not a short string", hint="2000 characters at most"
        )
    return value


def _read_calendars(value: object) -> Calendars:
    if not isinstance(value, Mapping) or not all(
        isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items)
        for items in value.values()
    ):
        problem = f"{quote_value(value)} is not a mapping of names to lists"
        raise InvalidSchedule("calendars", problem, hint="{name: [...]}")
    return {str(name): tuple(items) for name, items in value.items()}


def _names_used(fields: object) -> Iterator[str]:
    """Yield the items of every `exclude` in these fields, including the names of calendars."""
    if isinstance(fields, Mapping):
        exclude = fields.get("exclude")
        listed = exclude if isinstance(exclude, (list, tuple)) else [exclude]
        yield from sorted(item for item in listed if isinstance(item, str))
        fields = list(fields.values())
    if isinstance(fields, (list, tuple)):
        for value in fields:
            yield from _names_used(value)


def follows(schedule: Schedule) -> set[str]:
    """Return the schedules that this one follows; `@startup` is a start of the scheduler."""
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
    """Yield every trigger below a combination, but not one that only has limits around it."""
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
