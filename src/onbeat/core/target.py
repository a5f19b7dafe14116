"""Targets: what a schedule starts, as a value and as the fields of `run:`.

A target has a kind, which names its launcher, and the fields that this launcher reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

import msgspec

from onbeat.core.fields import read_flag
from onbeat.core.target_kinds import KINDS, TargetKind, unknown_kind
from onbeat.core.templates import check_templates, has_templates
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value


@dataclass(frozen=True, slots=True)
class Target:
    """What is started: the kind of launcher, and the fields that it reads."""

    kind: str
    fields: Mapping[str, object]
    is_enabled: bool = True
    facts: TargetKind = field(init=False, repr=False, compare=False)  # what its kind declares
    # What a node must offer to launch it: usually the kind.
    needs: str = field(init=False, repr=False, compare=False)
    # What is passed to it, as JSON: stored with a run from the moment it is decided.
    inputs_text: str | None = field(init=False, repr=False, compare=False)
    has_templates: bool = field(init=False, repr=False, compare=False)
    starts_directly: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inputs = self.fields.get("inputs")
        text = msgspec.json.encode(inputs).decode() if inputs else None
        facts = KINDS.find(self.kind) or unknown_kind(*self.kind.split("/", 1))
        needs = self.kind if facts.needs is None else facts.needs(self.fields)
        object.__setattr__(self, "facts", facts)
        object.__setattr__(self, "needs", needs)
        object.__setattr__(self, "inputs_text", text)
        templates = has_templates(self.fields)
        object.__setattr__(self, "has_templates", templates)
        # A target that may report its outcome by the run's key must receive the key beforehand, and
        # the row of a run that can be reattached says so.
        waits = templates or self.may_report or self.reattachable or not facts.is_known
        object.__setattr__(self, "starts_directly", not waits)

    @property
    def may_report(self) -> bool:
        """Whether it may accept a run and report its outcome later, by the run's key."""
        return self.facts.reports

    @property
    def reattachable(self) -> bool:
        """Whether it continues without its node and can be reattached by the run's key."""
        return self.facts.reattaches

    @property
    def inputs(self) -> dict[str, object]:
        """What is passed to it: a new copy each time, which the caller may change."""
        return read_inputs(self.inputs_text)


def read_inputs(text: str | None) -> dict[str, object]:
    """Return the inputs stored as `text`."""
    return msgspec.json.decode(text) if text is not None else {}


def read_target(fields: object) -> Target:
    """Return the target of `run: {command: [...]}`, or refuse it."""
    _checked_kind(fields)
    if not is_json_value(fields):
        hint = "strings, finite numbers, lists, and names that are strings"
        raise InvalidSchedule("", "it contains values that JSON cannot represent", hint=hint)
    check_templates(fields)
    return decode_target(msgspec.json.decode(msgspec.json.encode(fields)))


def decode_target(fields: object) -> Target:
    """Return the target of plain JSON fields that were checked when they were defined.

    Their kind may be unknown here: see `core/target_kinds.py`.
    """
    kind = _unknown_kind(fields) or _checked_kind(fields)
    assert isinstance(fields, Mapping), "it was checked"
    own = dict(fields)
    with in_field("enabled"):
        is_enabled = read_flag(own.pop("enabled", True))
    return Target(kind.name, own, is_enabled)


def is_json_value(value: object, depth: int = 32) -> bool:
    """Return whether a value survives a round trip through JSON unchanged."""
    if depth == 0:
        return False
    match value:
        case None | bool():
            return True
        case str():
            return is_encodable(value)
        case int():
            return -(2**63) <= value < 2**64
        case float():
            return isfinite(value)
        case list() | tuple():
            return all(is_json_value(item, depth - 1) for item in value)
        case Mapping():
            names = all(isinstance(name, str) and is_encodable(name) for name in value)
            return names and all(is_json_value(item, depth - 1) for item in value.values())
        case _:
            return False


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: files and databases refuse lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def stored_fields(target: Target) -> dict[str, object]:
    """Return the fields of a target as they are stored."""
    fields = dict(target.fields) | ({} if target.is_enabled else {"enabled": False})
    kind = target.facts
    if kind.is_stored_sorted:
        return fields
    names = sorted(fields, key=lambda name: (name != kind.key[0], name))
    return {name: fields[name] for name in names}


def _unknown_kind(fields: object) -> TargetKind | None:
    """Return the kind of stored fields if no plug of this process declares it."""
    if not isinstance(fields, Mapping) or not fields:
        return None
    place = fields.get("on", "")
    if not isinstance(place, str):
        return None
    named = next((name for name in KINDS.fields() if name in fields), None)
    if named is None:
        return unknown_kind(next(iter(fields)), place)
    return None if place in KINDS.places(named) else unknown_kind(named, place)


def _checked_kind(fields: object) -> TargetKind:
    """Return the kind of a target, by the field that names it, or refuse the fields."""
    if not isinstance(fields, Mapping):
        problem = (
            "it is missing: what to run"
            if fields is None
            else f"{quote_value(fields)} is not a target"
        )
        raise InvalidSchedule("", problem, hint="such as run: {command: [./backup.sh, --all]}")
    known = KINDS.fields()
    named = [name for name in known if name in fields]
    if len(named) != 1:
        if not named and fields:
            name = next(iter(fields))
            raise InvalidSchedule(
                quote_value(name).strip("'"),
                "no launcher has this name",
                hint=did_you_mean(name, known),
            )
        problem = f"{len(named)} targets" if named else "no target"
        raise InvalidSchedule("", problem, hint=f"one of {', '.join(known)}")
    inputs = fields.get("inputs")
    if inputs is not None and not (
        isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs)
    ):
        problem = f"{quote_value(inputs)} is not a mapping of names to values"
        raise InvalidSchedule("inputs", problem, hint="{limit: 100}")
    return _kind_in_place(named[0], fields)


def _kind_in_place(name: str, fields: Mapping[str, object]) -> TargetKind:
    """Return the kind that a field names, in the place that `on` names."""
    places = KINDS.places(name)
    elsewhere = [place for place in places if place]
    if not elsewhere or "on" not in fields:
        return places[""]
    if fields["on"] not in elsewhere:
        hint = f"{', '.join(elsewhere)}, or omit it: then it runs in the node"
        raise InvalidSchedule("on", f"it cannot run on {quote_value(fields['on'])}", hint=hint)
    return places[str(fields["on"])]
