"""Services and their timers: read from fields, as schedules.

    timers_enabled: true
    services:
      backup: {argv: [./backup.sh, --all], cwd: /srv, env: {LEVEL: full}, timeout: 30m}
    timers:
      - {id: nightly, target: backup, on_calendar: {hour: 3, minute: 0}}

An invalid timer is reported with its reason and does not affect the others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil, isfinite

import msgspec

from onbeat.core.policy import read_policy
from onbeat.core.schedule import Schedule, check_schedule, from_definition
from onbeat.core.target import Target, read_target
from onbeat.core.time.cron import MONTH_NAMES, WEEKDAY_NAMES
from onbeat.core.time.zones import zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.codec import decode
from onbeat.errors import InvalidSchedule, in_field, quote_value
from onbeat.ports.rows import ScheduleRow
from onbeat.systems.field_names import renamed_errors
from onbeat.systems.services.field_aliases import AliasedFields, check_known, read_aliases

RETRY = ("30s", "2m", "10m")
RETRY_ON = ("exit",)  # an exit code above 0; neither a signal nor a timeout
CATCHUP_WINDOW = "24h"
NO_VALUES = "must be integer, non-empty list of integers, or *"
GRACE = "10s"  # how late a timer without catch-up may start
STATE_FILE = "timer-state.json"
LONGEST = 10 * 366 * 86_400  # seconds
WAIT_FOR_PLACE = 5000  # milliseconds to wait for a run of the service by another timer
LONGEST_GROUP = 100  # characters

Fields = Mapping[str, object]
NOTHING_SWITCHED: Mapping[str, bool] = {}


@dataclass(frozen=True, slots=True)
class ServiceTimer:
    """A valid timer."""

    schedule: Schedule
    target: str  # the service it starts
    is_enabled: bool
    is_enabled_there: bool  # in its file
    is_persistent: bool
    may_start: bool  # neither it nor its service is disabled
    follows_success: bool  # has `on_unit_active_sec`


@dataclass(frozen=True, slots=True)
class Timers:
    """The timers of a file."""

    valid: Mapping[str, ServiceTimer]  # valid timers by id, in file order
    invalid: Mapping[str, str]  # the first reason, by id, or by position without one


def timers_from_rows(rows: Iterable[ScheduleRow]) -> Timers:
    """Return timers from their schedules alone, without the file."""
    valid: dict[str, ServiceTimer] = {}
    for row in sorted(rows, key=lambda row: row.schedule_id):
        schedule = from_definition(row.schedule_id, row.definition)
        policy, target = schedule.policy, schedule.target
        valid[row.schedule_id] = ServiceTimer(
            schedule,
            schedule.description,
            is_enabled=policy.enabled,
            is_enabled_there=policy.enabled,
            is_persistent=policy.catchup != "none",
            may_start=policy.enabled and target.is_enabled,
            follows_success=False,
        )
    return Timers(valid, {})


class Services:
    """The fields of a file of services; single invalid timers are not refused here."""

    def __init__(self, document: object, *, timezone: str = "UTC") -> None:
        """`timezone` is the default zone."""
        if not isinstance(document, Mapping):
            hint = "fields by name: services, timers, timers_enabled"
            raise InvalidSchedule("", f"{quote_value(document)} is not a mapping", hint=hint)
        self._fields = read_aliases(document, is_top_level=True)
        check_known(self._fields, TOP_LEVEL_FIELDS)
        self._timezone = timezone
        # The gate must be opened explicitly; its parent is on by default.
        is_parent_on = self._flag("enabled", default=True)
        self.are_timers_on = self._flag("timers_enabled", default=False) and is_parent_on
        self.state_file = self._state_file()  # the path of the history; None: not kept

    def timers(self, switched: Mapping[str, bool] = NOTHING_SWITCHED) -> Timers:
        """Return the timers with their switches applied; refuse errors that concern all timers."""
        listed = self._fields.fields.get("timers", [])
        if listed is None:
            listed = []
        if not isinstance(listed, (list, tuple)):
            hint = "[{id: nightly, target: backup, on_calendar: {hour: 3, minute: 0}}]"
            problem = f"{quote_value(listed)} is not a list"
            raise InvalidSchedule(self._fields.name("timers"), problem, hint=hint)
        reader = _ServicesReader(
            self._services(), self._fields.name("services"), *self._common_policy(), switched
        )
        valid: dict[str, ServiceTimer] = {}
        invalid: dict[str, str] = {}
        seen: set[str] = set()
        for place, entry in enumerate(listed):
            name = _name_of(entry) or f"timers[{place}]"
            if name in seen:
                invalid.setdefault(name, "duplicate timer ID")
                continue
            seen.add(name)
            try:
                valid[name] = reader.read(entry)
            except InvalidSchedule as refused:
                invalid[name] = str(refused)
        return Timers(_with_groups(valid), dict(sorted(invalid.items())))

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._fields.fields.get(name, default)
        if not isinstance(value, bool):
            problem = f"{quote_value(value)} is neither true nor false"
            raise InvalidSchedule(self._fields.name(name), problem, hint="true or false")
        return value

    def _state_file(self) -> str | None:
        found = self._fields.fields.get("state_file", STATE_FILE)
        if found is not None and (not isinstance(found, str) or not found or "\0" in found):
            problem = f"{quote_value(found)} is not a file name"
            raise InvalidSchedule(self._fields.name("state_file"), problem, hint=STATE_FILE)
        return found

    def _services(self) -> Mapping[str, object]:
        """Return services by name; in a list, the name is the `id`."""
        found, name = self._fields.fields.get("services") or {}, self._fields.name("services")
        if isinstance(found, (list, tuple)):
            by_name: dict[str, object] = {}
            for place, each in enumerate(found):
                own = _name_of(each)
                if own is None or own in by_name:
                    problem = f"{quote_value(own)} appears twice" if own else "it has no id"
                    raise InvalidSchedule(f"{name}[{place}]", problem, hint="a unique id")
                with in_field(f"{name}[{place}]"):
                    read_aliases(each)
                by_name[own] = {key: each[key] for key in each if key not in IDS}
            return by_name
        if not isinstance(found, Mapping):
            hint = "{backup: {argv: [./backup.sh]}}"
            raise InvalidSchedule(
                name, f"{quote_value(found)} is not a mapping of names to services", hint=hint
            )
        return found

    def _common_policy(self) -> tuple[dict[str, object], str]:
        """Return the policy and the zone of all timers."""
        entry = self._fields
        retry, window = entry.fields.get("retry", RETRY), entry.fields.get("catchup_window")
        if not isinstance(retry, (list, tuple)):
            problem = f"{quote_value(retry)} is not a list of delays"
            raise InvalidSchedule(entry.name("retry"), problem, hint="[30s, 2m, 10m]")
        found: dict[str, object] = {
            "retry": {"delays": [_length(each) for each in retry], "on": list(RETRY_ON)},
            "catchup_window": CATCHUP_WINDOW if window is None else _length(window),
        }
        names = {"retry.delays": "retry", "catchup_window": "catchup_window"}
        with renamed_errors({ours: entry.name(name) for ours, name in names.items()}):
            read_policy(found)
        with renamed_errors({"timezone": entry.name("timezone")}):
            return found, zone(entry.fields.get("timezone", self._timezone)).name


@dataclass(frozen=True, slots=True)
class _ServicesReader:
    """Reads the timers of a file."""

    services: Mapping[str, object]
    place: str  # the name of the field that contains the services
    common_policy: Fields
    timezone: str
    switched: Mapping[str, bool]

    def read(self, raw: object) -> ServiceTimer:
        """Return a timer, or refuse it with the reason."""
        if not isinstance(raw, Mapping):
            raise _wrong(f"{quote_value(raw)} is not a mapping")
        entry = _without_null_triggers(read_aliases(raw))
        unknown = entry.unknown(TIMER_FIELDS)
        if unknown is not None:
            raise _wrong(f"unknown keyword {unknown} ({entry.meant(unknown, TIMER_FIELDS)})")
        timer_id, target = (_text(entry, name) for name in ("id", "target"))
        is_enabled, is_persistent = (_flag(entry, name) for name in ("enabled", "persistent"))
        trigger = self._trigger(entry)
        if target not in self.services:
            raise _wrong(f"{entry.name('target')} {quote_value(target)} not found in {self.place}")
        runs, timeout = self._service(entry, target)
        is_on = self.switched.get(timer_id, is_enabled)
        late = {"catchup": "once"} if is_persistent else {"catchup": "none", "grace": GRACE}
        policy = read_policy({**self.common_policy, **timeout, **late, "enabled": is_on})
        with renamed_errors(
            {"schedule_id": entry.name("id"), "calendar": entry.name("on_calendar")}
        ):
            schedule = check_schedule(Schedule(timer_id, trigger, runs, policy, target))
        may_start, follows = is_on and runs.is_enabled, "on_unit_active_sec" in entry.fields
        return ServiceTimer(schedule, target, is_on, is_enabled, is_persistent, may_start, follows)

    def _service(self, timer: AliasedFields, name: str) -> tuple[Target, Fields]:
        """Return the target of a service, and its timeout."""
        raw = self.services[name]
        with in_field(f"{self.place}.{name}"):
            if not isinstance(raw, Mapping):
                hint = "{argv: [./backup.sh]}"
                raise InvalidSchedule("", f"{quote_value(raw)} is not a service", hint=hint)
            entry = read_aliases(raw)
            check_known(entry, SERVICE_FIELDS)
        kind = entry.fields.get("type", "oneshot")
        if kind != "oneshot":
            problem = f"{timer.name('target')} {quote_value(name)} is not a oneshot service"
            raise _wrong(f"{problem} (its {entry.name('type')} is {quote_value(kind)})")
        with in_field(f"{self.place}.{name}"), renamed_errors({"command": entry.name("argv")}):
            fields = entry.fields
            own = {each: fields[each] for each in ("cwd", "env") if each in fields}
            own["enabled"] = _flag(entry, "enabled")
            target = read_target({"command": fields.get("argv"), **own})
            timeout = {"timeout": _length(fields["timeout"])} if "timeout" in fields else {}
            read_policy(timeout)
        return target, timeout

    def _trigger(self, entry: AliasedFields) -> Trigger:
        parts: list[dict[str, object]] = []
        fields = entry.fields
        if "on_calendar" in fields:
            several = fields["on_calendar"]
            each = several if isinstance(several, (list, tuple)) and several else [several]
            parts += [{"calendar": _calendar(entry, one)} for one in each]
        if "on_startup_sec" in fields:
            parts.append({"startup": _seconds(entry, "on_startup_sec")})
        if "on_unit_active_sec" in fields:
            parts.append({"after": {"success": _seconds(entry, "on_unit_active_sec")}})
        if not parts:
            names = ", ".join(entry.name(name) for name in TRIGGERS)
            raise _wrong(f"at least one trigger required ({names})")
        with renamed_errors({"calendar": entry.name("on_calendar")}):
            return decode(parts[0] if len(parts) == 1 else {"any": parts}, timezone=self.timezone)


def _calendar(timer: AliasedFields, raw: object) -> dict[str, object]:
    """Return the fields of a calendar; an omitted field matches any value, even the minute."""
    name = timer.name("on_calendar")
    if not isinstance(raw, Mapping):
        reason = f"{name} must be a mapping, or a list of mappings"
        text = quote_value(raw)
        no_cron = f"{text} is a string; cron expressions are not supported ({{hour: 3, minute: 0}})"
        raise _wrong(f"{reason}: {no_cron}" if isinstance(raw, str) else reason)
    entry = read_aliases(raw)
    unknown = entry.unknown(CALENDAR)
    if unknown is not None:
        raise _wrong(f"{name} has unknown field {unknown} ({entry.meant(unknown, CALENDAR)})")
    found: dict[str, object] = {"minute": "*"}
    for field, value in entry.fields.items():
        several = value if isinstance(value, (list, tuple)) else [value]
        problem = None if value == "*" else _problem_of(field, several)
        if problem is not None:
            raise _wrong(f"{name} {entry.name(field)} {problem}")
        found[field] = list(several)
    return found


def _problem_of(field: str, values: Sequence[object]) -> str | None:
    """Return what is wrong with the values of a calendar field, or None."""
    low, high, names = CALENDAR[field]
    for each in values:
        if type(each) is not int and not (isinstance(each, str) and each.upper() in names):
            hint = f" (names such as {names[1].upper()} are valid)" if names else ""
            return f"{NO_VALUES}: {quote_value(each)} is invalid{hint}"
    if not values:
        return NO_VALUES
    if all(low <= each <= high for each in values if isinstance(each, int)):
        return None
    problem = f"value out of range ({low}-{high})"
    return f"{problem}: 0 is Sunday" if field == "day_of_week" else problem


def _without_null_triggers(entry: AliasedFields) -> AliasedFields:
    """Return fields without empty triggers: null, or a calendar without fields."""
    fields = {
        name: value
        for name, value in entry.fields.items()
        if name not in TRIGGERS or not (value is None or value == {})
    }
    return AliasedFields(fields, entry.names)


def _with_groups(timers: Mapping[str, ServiceTimer]) -> dict[str, ServiceTimer]:
    """Put timers that share a service into a group of one place, so that it never runs twice."""
    several = Counter(timer.target for timer in timers.values())
    found = dict(timers)
    for timer_id, timer in timers.items():
        if several[timer.target] > 1:
            group = group_of(timer.target)
            policy = replace(timer.schedule.policy, group=group, start_deadline=WAIT_FOR_PLACE)
            schedule = msgspec.structs.replace(timer.schedule, policy=policy)
            found[timer_id] = replace(timer, schedule=schedule)
    return found


def group_of(target: str) -> str:
    """Return the unique group of a service.

    Characters that a group name cannot have are quoted: `back up` is `back/20/up`.
    """
    quoted = "".join(each if _is_plain(each) else f"/{ord(each):x}/" for each in target)
    found = f"services/{quoted}"
    if len(found) <= LONGEST_GROUP:
        return found
    # No quoted name begins with two slashes.
    return f"services//{sha256(target.encode(errors='surrogatepass')).hexdigest()}"


def _is_plain(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "._-")


def _name_of(entry: object) -> str | None:
    """Return the id of a timer, or of a service in a list, or None."""
    if not isinstance(entry, Mapping):
        return None
    for name in IDS:
        found = entry.get(name)
        if isinstance(found, str) and found:
            return found
    return None


def _text(entry: AliasedFields, name: str) -> str:
    value = entry.fields.get(name)
    if not isinstance(value, str) or not value:
        raise _wrong(f"{entry.name(name)} must be a non-empty string")
    return value


def _flag(entry: AliasedFields, name: str) -> bool:
    value = entry.fields.get(name, True)
    if not isinstance(value, bool):
        raise _wrong(
            f"{entry.name(name)} must be a boolean: {quote_value(value)} is not (true or false)"
        )
    return value


def _seconds(entry: AliasedFields, name: str) -> str:
    """Return a duration in seconds, rounded up."""
    value = entry.fields[name]
    if isinstance(value, (int, float)) and type(value) is not bool and 0 < value <= LONGEST:
        return f"{ceil(value)}s"
    problem = f"{entry.name(name)} must be a positive number"
    if isinstance(value, (int, float)) and value > LONGEST:
        raise _wrong(f"{problem}: {quote_value(value)} is too long (at most {LONGEST})")
    raise _wrong(f"{problem}: {quote_value(value)} is not (seconds, without a unit, such as 300)")


def _length(value: object) -> object:
    """Return a duration as the core reads it; a bare number is in seconds."""
    if isinstance(value, (int, float)) and type(value) is not bool and isfinite(value):
        return f"{int(value)}s" if value == int(value) else f"{round(value * 1000)}ms"
    return value


def _wrong(reason: str) -> InvalidSchedule:
    return InvalidSchedule("", reason)


TOP_LEVEL_FIELDS = (
    "enabled", "timers_enabled", "state_file", "retry", "catchup_window", "timezone", "services",
    "timers",
)  # fmt: skip
IDS = ("id", ":id")
SERVICE_FIELDS = ("argv", "cwd", "env", "timeout", "enabled", "type")
TRIGGERS = ("on_calendar", "on_startup_sec", "on_unit_active_sec")
TIMER_FIELDS = ("id", "target", "enabled", "persistent", *TRIGGERS)
CALENDAR: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day_of_month": (1, 31, ()),
    "month": (1, 12, MONTH_NAMES),
    "day_of_week": (0, 6, WEEKDAY_NAMES),
}  # from, to, and names for these
