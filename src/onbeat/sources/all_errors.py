"""Find all errors of one schedule, by reading each field separately.

A reader stops at the first invalid field. Here each field is read together with valid ones, so that
an error neither hides another nor causes follow-up errors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from onbeat.core.policy import POLICIES
from onbeat.core.schedule import check_id
from onbeat.core.target_kinds import KINDS as TARGET_KINDS
from onbeat.core.triggers.build import LIMITS
from onbeat.core.triggers.codec import KINDS
from onbeat.errors import InvalidSchedule, did_you_mean, in_field, quote_value

Fields = Mapping[str, object]
Read = Callable[[str, Fields], object]

MOST_ERRORS = 100  # reported for one schedule
UNKNOWN = "no field has this name"  # the text of `check_names`
VALID: dict[str, object] = {"every": "1h", "run": {"command": ["true"]}}
ZONE_FIELDS = ("timezone", "dst")
FIELD_NAMES = {
    *KINDS, *ZONE_FIELDS, *LIMITS, *POLICIES, "run", "when", "description", "calendars",
}  # fmt: skip


def find_errors(name: str, values: object, read: Read) -> list[InvalidSchedule]:
    """Return why `read` refuses these fields; empty if it accepts them."""
    try:
        check_id(name)
    except InvalidSchedule as refused:
        return [InvalidSchedule("", refused.problem, hint=refused.hint)]
    try:
        fields = require_fields(values)
    except InvalidSchedule as refused:
        return [refused]
    errors = list(islice(_errors_by_field(name, fields, read), MOST_ERRORS))
    return errors or list(_errors(read, name, fields))


def require_fields(values: object) -> Fields:
    """Return the fields of a schedule, or refuse what is not a mapping."""
    if not isinstance(values, Mapping):
        hint = "fields, such as every: 90m and run: {...}"
        raise InvalidSchedule("", f"{quote_value(values)} is not a schedule", hint=hint)
    return values


def _errors_by_field(name: str, fields: Fields, read: Read) -> Iterator[InvalidSchedule]:
    for field in fields:
        if field not in FIELD_NAMES:
            is_zone = "zone" in field or field == "tz"
            hint = "did you mean 'timezone'?" if is_zone else did_you_mean(field, FIELD_NAMES)
            yield InvalidSchedule(quote_value(field).strip("'"), UNKNOWN, hint=hint)
    context: dict[str, object] = {}
    for field in ZONE_FIELDS:
        errors = list(_errors(read, name, VALID | _pick(fields, [field])))
        yield from errors
        context |= {} if errors else _pick(fields, [field])
    context |= _pick(fields, ["calendars"])
    yield from _errors(read, name, {"run": VALID["run"]} | _pick(fields, KINDS) | context)
    for field in _pick(fields, sorted(LIMITS)):
        yield from _errors(read, name, VALID | context | _pick(fields, [field]))
    for field in _pick(fields, POLICIES):
        try:
            with in_field(field):
                POLICIES[field].read(fields[field])
        except InvalidSchedule as refused:
            yield refused
    yield from _target_errors(read, name, "run", fields.get("run"))
    yield from _target_errors(read, name, "when", fields.get("when"))
    yield from _errors(read, name, VALID | _pick(fields, ["description"]))


def _pick(fields: Fields, names: Iterable[str]) -> dict[str, object]:
    return {name: fields[name] for name in names if name in fields}


def _errors(read: Read, name: str, fields: Fields) -> Iterator[InvalidSchedule]:
    try:
        read(name, fields)
    except InvalidSchedule as refused:
        yield refused


def _target_errors(read: Read, name: str, field: str, target: object) -> Iterator[InvalidSchedule]:
    """Yield the errors of a target: every unknown field, then the first other error."""
    while errors := list(_errors(read, name, VALID | {field: target})):
        yield from errors
        unknown = errors[0].field.removeprefix(f"{field}.")
        if errors[0].problem != UNKNOWN or not isinstance(target, Mapping):
            return
        if unknown not in target or unknown in TARGET_KINDS.fields():
            return
        target = {key: value for key, value in target.items() if key != unknown}
