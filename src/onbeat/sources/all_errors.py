"""All that is wrong with one schedule, found by reading its fields apart from each other.

A reader stops at the first field it refuses. Here each field is read beside others that are right,
so that one mistake hides no other and none is told of that only follows from another.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from onbeat.core.policy import POLICIES
from onbeat.core.schedule import check_id
from onbeat.core.target import TARGETS
from onbeat.core.triggers.build import LIMITS
from onbeat.core.triggers.codec import KINDS
from onbeat.errors import InvalidSchedule, meant, naming, shown

Fields = Mapping[str, object]
Read = Callable[[str, Fields], object]

MOST = 100  # of one schedule that are told
UNKNOWN = "no field has this name"
RIGHT: dict[str, object] = {"every": "1h", "run": {"command": ["true"]}}
WHERE = ("timezone", "dst")
KNOWN = {*KINDS, *WHERE, *LIMITS, *POLICIES, "run", "when", "description", "calendars"}


def refusals_of(name: str, given: object, read: Read) -> list[InvalidSchedule]:
    """Return why `read` refuses these fields: none only if it takes them as they are."""
    try:
        check_id(name)
    except InvalidSchedule as refused:
        return [InvalidSchedule("", refused.problem, hint=refused.hint)]
    try:
        fields = fields_of(given)
    except InvalidSchedule as refused:
        return [refused]
    found = list(islice(_apart(name, fields, read), MOST))
    return found or list(_tried(read, name, fields))


def fields_of(given: object) -> Fields:
    """Return the fields of a schedule, or refuse what are none."""
    if not isinstance(given, Mapping):
        hint = "fields, such as every: 90m and run: {...}"
        raise InvalidSchedule("", f"{shown(given)} is no schedule", hint=hint)
    return given


def _apart(name: str, given: Fields, read: Read) -> Iterator[InvalidSchedule]:
    for field in given:
        if field not in KNOWN:
            hint = "did you mean 'timezone'?" if "zone" in field or field == "tz" else ""
            refused = hint or meant(field, KNOWN)
            yield InvalidSchedule(shown(field).strip("'"), UNKNOWN, hint=refused)
    where: dict[str, object] = {}
    for field in WHERE:
        refusals = list(_tried(read, name, RIGHT | _only(given, [field])))
        yield from refusals
        where |= {} if refusals else _only(given, [field])
    named = where | _only(given, ["calendars"])
    kinds = _only(given, KINDS)
    yield from _tried(read, name, {"run": RIGHT["run"]} | kinds | named)
    for field in _only(given, sorted(LIMITS)):
        yield from _tried(read, name, RIGHT | named | _only(given, [field]))
    for field in _only(given, POLICIES):
        try:
            with naming(field):
                POLICIES[field].read(given[field])
        except InvalidSchedule as refused:
            yield refused
    yield from _of_target(read, name, "run", given.get("run"))
    yield from _of_target(read, name, "when", given.get("when"))
    yield from _tried(read, name, RIGHT | _only(given, ["description"]))


def _only(given: Fields, names: Iterable[str]) -> dict[str, object]:
    return {name: given[name] for name in names if name in given}


def _tried(read: Read, name: str, fields: Fields) -> Iterator[InvalidSchedule]:
    try:
        read(name, fields)
    except InvalidSchedule as refused:
        yield refused


def _of_target(read: Read, name: str, field: str, target: object) -> Iterator[InvalidSchedule]:
    """Yield what is wrong with a target: every name that is not known, then the first other."""
    while refusals := list(_tried(read, name, RIGHT | {field: target})):
        yield from refusals
        unknown = refusals[0].field.removeprefix(f"{field}.")
        if refusals[0].problem != UNKNOWN or not isinstance(target, Mapping):
            return
        if unknown not in target or unknown in TARGETS:
            return
        target = {key: value for key, value in target.items() if key != unknown}
