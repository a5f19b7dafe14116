"""Timers of oneshot services, as fields and as schedules.

    services:
      backup: {argv: [./backup.sh, --all], cwd: /srv, env: {LEVEL: full}, timeout: 30m}
    timers:
      - {id: nightly, target: backup, on_calendar: {hour: 3, minute: 0}}

A timer that is wrong is told of with the reason, and keeps no other from running.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal

from onbeat.core.codec import check_names, decode
from onbeat.core.policies import read_policy
from onbeat.core.schedules import Schedule, check_schedule, read_target
from onbeat.core.ticks import Trigger
from onbeat.core.zones import zone
from onbeat.errors import InvalidSchedule, meant, naming, shown
from onbeat.records import Which
from onbeat.service import Service
from onbeat.systems.wording import check_fields, told_in

SOURCE = "services"  # whose schedules these are, in the store
RETRY = ("30s", "2m", "10m")
LONGEST = 10 * 366 * 86_400  # seconds

WhyNot = Literal["disabled", "disabled_target"]
Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Timers:
    """What came of a list of timers."""

    schedules: tuple[Schedule, ...]  # of those that are right; what is disabled skips its ticks
    targets: Mapping[str, str]  # the service that each of these starts
    disabled: Mapping[str, WhyNot]  # by id: the timer is, or its service
    invalid: Mapping[str, InvalidSchedule]  # by id, or by place if a timer has none of its own


async def define_timers(service: Service, given: Fields) -> Timers:
    """Define the timers that are right, and take away those of before that are not among them."""
    found = read_timers(given)
    schedules, invalid = [], dict(found.invalid)
    for schedule in found.schedules:
        known = await service.find(schedule.schedule_id)
        if known is not None and known.source != SOURCE:
            problem = f"{shown(schedule.schedule_id)} is there, and no timer"
            invalid[schedule.schedule_id] = InvalidSchedule("id", problem, hint="another id")
            continue
        target = found.targets[schedule.schedule_id]
        try:
            with naming(f"services.{target}"), told_in(WORDS):
                service.check(schedule)
        except InvalidSchedule as refused:
            invalid[schedule.schedule_id] = refused
        else:
            schedules.append(schedule)
    await service.define(schedules, source=SOURCE)
    there = {schedule.schedule_id for schedule in schedules}
    for row in await service.schedules(Which(source=SOURCE)):
        if row.schedule_id not in there:
            await service.delete(row.schedule_id)
    targets = {name: found.targets[name] for name in there}
    return Timers(tuple(schedules), targets, found.disabled, invalid)


def read_timers(given: Fields) -> Timers:
    """Return the schedules that timers come to; refuse what is wrong with the whole of them."""
    check_fields(given, {"services", "timers", "retry", "catchup_window", "timezone"})
    services, timers = given.get("services", {}), given.get("timers", [])
    if not isinstance(services, Mapping):
        hint = "{backup: {argv: [./backup.sh]}}"
        raise InvalidSchedule("services", f"{shown(services)} is no set of services", hint=hint)
    if not isinstance(timers, (list, tuple)):
        hint = "[{id: nightly, target: backup, on_calendar: {hour: 3}}]"
        raise InvalidSchedule("timers", f"{shown(timers)} is no list", hint=hint)
    around = {"retry": RETRY} | {name: given[name] for name in given.keys() & AROUND}
    read_policy(around)
    timezone = zone(given.get("timezone", "UTC")).name
    found: dict[str, Schedule] = {}
    targets: dict[str, str] = {}
    disabled: dict[str, WhyNot] = {}
    invalid: dict[str, InvalidSchedule] = {}
    for place, timer in enumerate(timers):
        name = f"[{place}]"
        try:
            name = _id_of(timer, {*found, *invalid})
            with told_in(WORDS):
                schedule, why_not = _read(name, timer, services, around, timezone)
        except InvalidSchedule as refused:
            invalid[name] = refused
        else:
            found[name], targets[name] = schedule, timer["target"]
            if why_not is not None:
                disabled[name] = why_not
    return Timers(tuple(found.values()), targets, disabled, invalid)


def _read(
    timer_id: str, timer: Fields, services: Mapping[str, object], around: Fields, timezone: str
) -> tuple[Schedule, WhyNot | None]:
    """Return a timer's schedule, and why it is not to run if it is not."""
    check_names(timer, {"id", "target", "enabled", "persistent", *TRIGGERS})
    target = timer.get("target")
    if not isinstance(target, str) or target not in services:
        hint = meant(target, map(str, services))
        raise InvalidSchedule("target", f"no service is called {shown(target)}", hint=hint)
    with naming(f"services.{target}"):
        service = _service(services[target])
        is_enabled = _flag(service, "enabled")
        timeout = {name: service[name] for name in service.keys() & {"timeout"}}
        read_policy(timeout)
        run = {name: service[name] for name in service.keys() & {"cwd", "env"}}
        with told_in(WORDS):
            runs = read_target({"command": service.get("argv"), "enabled": is_enabled} | run)
    catchup = "once" if _flag(timer, "persistent") else "none"
    own = {"catchup": catchup, "enabled": _flag(timer, "enabled")}
    policy = read_policy({**around, **timeout, **own})
    schedule = check_schedule(Schedule(timer_id, _trigger(timer, timezone), runs, policy))
    if not policy.enabled:
        return schedule, "disabled"
    return schedule, None if is_enabled else "disabled_target"


def _id_of(timer: object, taken: Container[str]) -> str:
    if not isinstance(timer, Mapping):
        hint = "{id: nightly, target: backup, on_calendar: {hour: 3}}"
        raise InvalidSchedule("", f"{shown(timer)} is no timer", hint=hint)
    name = timer.get("id")
    if not isinstance(name, str) or not name:
        raise InvalidSchedule("id", f"{shown(name)} is no id", hint="such as id: nightly")
    if name in taken:
        raise InvalidSchedule("id", f"an earlier timer is called {shown(name)}", hint="another id")
    return name


def _service(given: object) -> Fields:
    if not isinstance(given, Mapping):
        raise InvalidSchedule("", f"{shown(given)} is no service", hint="{argv: [./backup.sh]}")
    check_names(given, {"argv", "cwd", "env", "timeout", "enabled"})
    return given


def _trigger(timer: Fields, timezone: str) -> Trigger:
    if not timer.keys() & TRIGGERS:
        hint = "on_calendar, on_startup_sec or on_unit_active_sec"
        raise InvalidSchedule("", "nothing says when it is to start", hint=hint)
    parts: list[dict[str, object]] = []
    if "on_calendar" in timer:
        fields = timer["on_calendar"]
        if isinstance(fields, Mapping):
            with naming("on_calendar"):
                check_names(fields, CALENDAR)
        parts.append({"calendar": fields})
    if "on_startup_sec" in timer:
        parts.append({"startup": _seconds(timer, "on_startup_sec")})
    if "on_unit_active_sec" in timer:
        parts.append({"after": {"success": _seconds(timer, "on_unit_active_sec")}})
    return decode(parts[0] if len(parts) == 1 else {"any": parts}, timezone=timezone)


def _seconds(timer: Fields, name: str) -> str:
    """Return a length of time in seconds, rounded up to a whole one."""
    value = timer[name]
    if isinstance(value, (int, float)) and type(value) is not bool and 0 < value <= LONGEST:
        return f"{ceil(value)}s"
    problem = f"{shown(value)} is no number of seconds"
    raise InvalidSchedule(name, problem, hint="a positive number, such as 300")


def _flag(given: Fields, name: str) -> bool:
    value = given.get(name, True)
    if not isinstance(value, bool):
        raise InvalidSchedule(name, f"{shown(value)} is neither true nor false", hint="true")
    return value


AROUND = {"retry", "catchup_window"}  # what may be set for all timers
CALENDAR = {"minute", "hour", "day_of_month", "month", "day_of_week"}
TRIGGERS = {"on_calendar", "on_startup_sec", "on_unit_active_sec"}
WORDS = {
    "schedule_id": "id",
    "run.command": "argv",
    "run.env": "env",
    "run.cwd": "cwd",
    "command": "argv",
    "calendar": "on_calendar",
}  # the core's, and this system's
