"""Services and their timers, as fields and as schedules.

    timers_enabled: true
    services:
      backup: {argv: [./backup.sh, --all], cwd: /srv, env: {LEVEL: full}, timeout: 30m}
    timers:
      - {id: nightly, target: backup, on_calendar: {hour: 3, minute: 0}}

A timer that is wrong is told of with the reason, and keeps no other from running.
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
from onbeat.errors import InvalidSchedule, naming, shown
from onbeat.ports.rows import ScheduleRow
from onbeat.systems.field_names import renamed_errors
from onbeat.systems.services.field_spelled import Spelled, check_known, spelled

RETRY = ("30s", "2m", "10m")
RETRY_ON = ("exit",)  # an exit code above 0; neither a signal nor a timeout
CATCHUP_WINDOW = "24h"
NO_VALUES = "must be integer, non-empty list of integers, or *"
GRACE = "10s"  # how late one that does not catch up may start
STATE_FILE = "timer-state.json"
LONGEST = 10 * 366 * 86_400  # seconds
WAIT_FOR_PLACE = 5000  # milliseconds, in which a service that another timer has started may end
LONGEST_GROUP = 100  # characters

Fields = Mapping[str, object]
NOTHING_SWITCHED: Mapping[str, bool] = {}


@dataclass(frozen=True, slots=True)
class ServiceTimer:
    """A timer that is right."""

    schedule: Schedule
    target: str  # the service it starts
    is_enabled: bool
    is_enabled_there: bool  # by what its file says
    is_persistent: bool
    may_start: bool  # neither it nor its service is disabled
    follows_success: bool  # its own, by `on_unit_active_sec`


@dataclass(frozen=True, slots=True)
class Timers:
    """What came of a list of timers."""

    right: Mapping[str, ServiceTimer]  # by id, in the order of the list
    invalid: Mapping[str, str]  # by id, or by place if one has none: the first reason of each


def timers_there(rows: Iterable[ScheduleRow]) -> Timers:
    """Return timers by their schedules alone, whatever their file says."""
    right: dict[str, ServiceTimer] = {}
    for row in sorted(rows, key=lambda row: row.schedule_id):
        schedule = from_definition(row.schedule_id, row.definition)
        policy, target = schedule.policy, schedule.target
        right[row.schedule_id] = ServiceTimer(
            schedule,
            schedule.description,
            is_enabled=policy.enabled,
            is_enabled_there=policy.enabled,
            is_persistent=policy.catchup != "none",
            may_start=policy.enabled and target.is_enabled,
            follows_success=False,
        )
    return Timers(right, {})


class Services:
    """What is said of services, and whether their timers are on; wrong timers are let be so far."""

    def __init__(self, given: object, *, timezone: str = "UTC") -> None:
        """`timezone` holds where the fields name none."""
        if not isinstance(given, Mapping):
            hint = "fields by name: services, timers, timers_enabled"
            raise InvalidSchedule("", f"{shown(given)} is no set of fields", hint=hint)
        self._given = spelled(given, of_all=True)
        check_known(self._given, OF_ALL)
        self._timezone = timezone
        # The gate is opened on purpose only; its parent is on unless told.
        is_parent_on = self._flag("enabled", default=True)
        self.are_timers_on = self._flag("timers_enabled", default=False) and is_parent_on
        self.state_file = self._state_file()  # what keeps what became of timers; None: nothing

    def timers(self, switched: Mapping[str, bool] = NOTHING_SWITCHED) -> Timers:
        """Return the timers, some of them switched on or off; refuse what is wrong with all."""
        listed = self._given.fields.get("timers", [])
        if listed is None:
            listed = []
        if not isinstance(listed, (list, tuple)):
            hint = "[{id: nightly, target: backup, on_calendar: {hour: 3, minute: 0}}]"
            problem = f"{shown(listed)} is no list"
            raise InvalidSchedule(self._given.name("timers"), problem, hint=hint)
        reader = _ServicesReader(
            self._services(), self._given.name("services"), *self._around(), switched
        )
        right: dict[str, ServiceTimer] = {}
        invalid: dict[str, str] = {}
        seen: set[str] = set()
        for place, given in enumerate(listed):
            name = _name_of(given) or f"timers[{place}]"
            if name in seen:
                invalid.setdefault(name, "duplicate timer ID")
                continue
            seen.add(name)
            try:
                right[name] = reader.read(given)
            except InvalidSchedule as refused:
                invalid[name] = str(refused)
        return Timers(_one_at_a_time(right), dict(sorted(invalid.items())))

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self._given.fields.get(name, default)
        if not isinstance(value, bool):
            problem = f"{shown(value)} is neither true nor false"
            raise InvalidSchedule(self._given.name(name), problem, hint="true or false")
        return value

    def _state_file(self) -> str | None:
        found = self._given.fields.get("state_file", STATE_FILE)
        if found is not None and (not isinstance(found, str) or not found or "\0" in found):
            problem = f"{shown(found)} is no file name"
            raise InvalidSchedule(self._given.name("state_file"), problem, hint=STATE_FILE)
        return found

    def _services(self) -> Mapping[str, object]:
        """Return services by name; as a list, each has its name as `id`."""
        found, name = self._given.fields.get("services") or {}, self._given.name("services")
        if isinstance(found, (list, tuple)):
            by_name: dict[str, object] = {}
            for place, each in enumerate(found):
                own = _name_of(each)
                if own is None or own in by_name:
                    problem = f"{shown(own)} is there twice" if own else "it has no id"
                    raise InvalidSchedule(f"{name}[{place}]", problem, hint="an id of its own")
                with naming(f"{name}[{place}]"):
                    spelled(each)
                by_name[own] = {key: each[key] for key in each if key not in IDS}
            return by_name
        if not isinstance(found, Mapping):
            hint = "{backup: {argv: [./backup.sh]}}"
            raise InvalidSchedule(name, f"{shown(found)} is no set of services", hint=hint)
        return found

    def _around(self) -> tuple[dict[str, object], str]:
        """Return the policies of all timers, and their zone."""
        given = self._given
        retry, window = given.fields.get("retry", RETRY), given.fields.get("catchup_window")
        if not isinstance(retry, (list, tuple)):
            problem = f"{shown(retry)} is no list of delays"
            raise InvalidSchedule(given.name("retry"), problem, hint="[30s, 2m, 10m]")
        found: dict[str, object] = {
            "retry": {"delays": [_length(each) for each in retry], "on": list(RETRY_ON)},
            "catchup_window": CATCHUP_WINDOW if window is None else _length(window),
        }
        names = {"retry.delays": "retry", "catchup_window": "catchup_window"}
        with renamed_errors({ours: given.name(name) for ours, name in names.items()}):
            read_policy(found)
        with renamed_errors({"timezone": given.name("timezone")}):
            return found, zone(given.fields.get("timezone", self._timezone)).name


@dataclass(frozen=True, slots=True)
class _ServicesReader:
    """Reads one timer after another."""

    services: Mapping[str, object]
    place: str  # what the services are called together
    around: Fields
    timezone: str
    switched: Mapping[str, bool]

    def read(self, raw: object) -> ServiceTimer:
        """Return a timer, or refuse it with the reason."""
        if not isinstance(raw, Mapping):
            raise _wrong(f"{shown(raw)} is no set of fields")
        given = _without_null_triggers(spelled(raw))
        unknown = given.unknown(OF_A_TIMER)
        if unknown is not None:
            raise _wrong(f"unknown keyword {unknown} ({given.meant(unknown, OF_A_TIMER)})")
        timer_id, target = (_text(given, name) for name in ("id", "target"))
        is_enabled, is_persistent = (_flag(given, name) for name in ("enabled", "persistent"))
        trigger = self._trigger(given)
        if target not in self.services:
            raise _wrong(f"{given.name('target')} {shown(target)} not found in {self.place}")
        runs, timeout = self._service(given, target)
        is_on = self.switched.get(timer_id, is_enabled)
        late = {"catchup": "once"} if is_persistent else {"catchup": "none", "grace": GRACE}
        policy = read_policy({**self.around, **timeout, **late, "enabled": is_on})
        with renamed_errors(
            {"schedule_id": given.name("id"), "calendar": given.name("on_calendar")}
        ):
            schedule = check_schedule(Schedule(timer_id, trigger, runs, policy, target))
        may_start, follows = is_on and runs.is_enabled, "on_unit_active_sec" in given.fields
        return ServiceTimer(schedule, target, is_on, is_enabled, is_persistent, may_start, follows)

    def _service(self, timer: Spelled, name: str) -> tuple[Target, Fields]:
        """Return what a service starts, and how long that may take."""
        raw = self.services[name]
        with naming(f"{self.place}.{name}"):
            if not isinstance(raw, Mapping):
                hint = "{argv: [./backup.sh]}"
                raise InvalidSchedule("", f"{shown(raw)} is no service", hint=hint)
            given = spelled(raw)
            check_known(given, OF_A_SERVICE)
        kind = given.fields.get("type", "oneshot")
        if kind != "oneshot":
            told = f"{timer.name('target')} {shown(name)} is not a oneshot service"
            raise _wrong(f"{told} (its {given.name('type')} is {shown(kind)})")
        with naming(f"{self.place}.{name}"), renamed_errors({"command": given.name("argv")}):
            fields = given.fields
            own = {each: fields[each] for each in ("cwd", "env") if each in fields}
            own["enabled"] = _flag(given, "enabled")
            target = read_target({"command": fields.get("argv"), **own})
            timeout = {"timeout": _length(fields["timeout"])} if "timeout" in fields else {}
            read_policy(timeout)
        return target, timeout

    def _trigger(self, given: Spelled) -> Trigger:
        parts: list[dict[str, object]] = []
        fields = given.fields
        if "on_calendar" in fields:
            several = fields["on_calendar"]
            each = several if isinstance(several, (list, tuple)) and several else [several]
            parts += [{"calendar": _calendar(given, one)} for one in each]
        if "on_startup_sec" in fields:
            parts.append({"startup": _seconds(given, "on_startup_sec")})
        if "on_unit_active_sec" in fields:
            parts.append({"after": {"success": _seconds(given, "on_unit_active_sec")}})
        if not parts:
            names = ", ".join(given.name(name) for name in TRIGGERS)
            raise _wrong(f"at least one trigger required ({names})")
        with renamed_errors({"calendar": given.name("on_calendar")}):
            return decode(parts[0] if len(parts) == 1 else {"any": parts}, timezone=self.timezone)


def _calendar(timer: Spelled, raw: object) -> dict[str, object]:
    """Return the fields of a calendar: one that is left out is any, also the minute."""
    name = timer.name("on_calendar")
    if not isinstance(raw, Mapping):
        told = f"{name} must be a set of fields, or a list of them"
        no_cron = f"{shown(raw)} is a text, and there is no cron here ({{hour: 3, minute: 0}})"
        raise _wrong(f"{told}: {no_cron}" if isinstance(raw, str) else told)
    given = spelled(raw)
    unknown = given.unknown(CALENDAR)
    if unknown is not None:
        raise _wrong(f"{name} has unknown field {unknown} ({given.meant(unknown, CALENDAR)})")
    found: dict[str, object] = {"minute": "*"}
    for field, value in given.fields.items():
        several = value if isinstance(value, (list, tuple)) else [value]
        problem = None if value == "*" else _problem_of(field, several)
        if problem is not None:
            raise _wrong(f"{name} {given.name(field)} {problem}")
        found[field] = list(several)
    return found


def _problem_of(field: str, values: Sequence[object]) -> str | None:
    """Return what is wrong with the values of a field of a calendar."""
    low, high, names = CALENDAR[field]
    for each in values:
        if type(each) is not int and not (isinstance(each, str) and each.upper() in names):
            right = f" (names such as {names[1].upper()} are right)" if names else ""
            return f"{NO_VALUES}: {shown(each)} is none{right}"
    if not values:
        return NO_VALUES
    if all(low <= each <= high for each in values if isinstance(each, int)):
        return None
    told = f"value out of range ({low}-{high})"
    return f"{told}: 0 is Sunday" if field == "day_of_week" else told


def _without_null_triggers(given: Spelled) -> Spelled:
    """Return fields without triggers that are not there: null, or a calendar of no fields."""
    fields = {
        name: value
        for name, value in given.fields.items()
        if name not in TRIGGERS or not (value is None or value == {})
    }
    return Spelled(fields, given.names)


def _one_at_a_time(timers: Mapping[str, ServiceTimer]) -> dict[str, ServiceTimer]:
    """Return timers, those of one service with one place for it: it never runs twice at once."""
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
    """Return the group of a service, which no other service has.

    What a name of a group may not have is quoted between slashes: `back up` is `back/20/up`.
    """
    quoted = "".join(each if _is_plain(each) else f"/{ord(each):x}/" for each in target)
    found = f"services/{quoted}"
    if len(found) <= LONGEST_GROUP:
        return found
    # No name that is quoted begins with two slashes.
    return f"services//{sha256(target.encode(errors='surrogatepass')).hexdigest()}"


def _is_plain(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "._-")


def _name_of(given: object) -> str | None:
    """Return the id of a timer, or of a service in a list, if it has one."""
    if not isinstance(given, Mapping):
        return None
    for name in IDS:
        found = given.get(name)
        if isinstance(found, str) and found:
            return found
    return None


def _text(given: Spelled, name: str) -> str:
    value = given.fields.get(name)
    if not isinstance(value, str) or not value:
        raise _wrong(f"{given.name(name)} must be a non-empty string")
    return value


def _flag(given: Spelled, name: str) -> bool:
    value = given.fields.get(name, True)
    if not isinstance(value, bool):
        raise _wrong(
            f"{given.name(name)} must be a boolean: {shown(value)} is none (true or false)"
        )
    return value


def _seconds(given: Spelled, name: str) -> str:
    """Return a length of time in seconds, rounded up to a whole one."""
    value = given.fields[name]
    if isinstance(value, (int, float)) and type(value) is not bool and 0 < value <= LONGEST:
        return f"{ceil(value)}s"
    told = f"{given.name(name)} must be a positive number"
    if isinstance(value, (int, float)) and value > LONGEST:
        raise _wrong(f"{told}: {shown(value)} is too long (at most {LONGEST})")
    raise _wrong(f"{told}: {shown(value)} is none (seconds, without a unit, such as 300)")


def _length(value: object) -> object:
    """Return a length as the core reads it: a bare number is of seconds here."""
    if isinstance(value, (int, float)) and type(value) is not bool and isfinite(value):
        return f"{int(value)}s" if value == int(value) else f"{round(value * 1000)}ms"
    return value


def _wrong(reason: str) -> InvalidSchedule:
    return InvalidSchedule("", reason)


OF_ALL = (
    "enabled", "timers_enabled", "state_file", "retry", "catchup_window", "timezone", "services",
    "timers",
)  # fmt: skip
IDS = ("id", ":id")
OF_A_SERVICE = ("argv", "cwd", "env", "timeout", "enabled", "type")
TRIGGERS = ("on_calendar", "on_startup_sec", "on_unit_active_sec")
OF_A_TIMER = ("id", "target", "enabled", "persistent", *TRIGGERS)
CALENDAR: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    "minute": (0, 59, ()),
    "hour": (0, 23, ()),
    "day_of_month": (1, 31, ()),
    "month": (1, 12, MONTH_NAMES),
    "day_of_week": (0, 6, WEEKDAY_NAMES),
}  # from, to, and names for these
