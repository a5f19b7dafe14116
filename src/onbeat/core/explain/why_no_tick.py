"""Why an instant is not a tick: which field, limit or part of a trigger rules it out."""

from onbeat.core.explain.describe import MONTHS, WEEKDAYS, describe, listing
from onbeat.core.time.cron import FIELDS, compile_fields
from onbeat.core.time.durations import Duration
from onbeat.core.time.instants import rfc3339
from onbeat.core.time.local_patterns import WallPattern
from onbeat.core.time.zones import DAY, date_of
from onbeat.core.triggers.base import AllOf, AnyOf, Minus, Trigger
from onbeat.core.triggers.bounds import Bounded, OpenHours
from onbeat.core.triggers.kinds import After, At, Every, LocalPatternTrigger, Manual, Startup
from onbeat.core.triggers.past import Past

DATE, WEEKDAY = 3, 5  # indexes of the two fields of which either may match


def why_no_tick(trigger: Trigger, t: int, past: Past) -> str:
    """Return why an instant is not a tick of this trigger."""
    match trigger:
        case LocalPatternTrigger():
            return _local_pattern(trigger.pattern, t)
        case Every():
            return _every(trigger, t)
        case At():
            return "it is not one of the listed times"
        case Startup():
            return f"no start of the scheduler {_before(trigger.startup)}it caused a tick"
        case After():
            of = trigger.schedule or "this schedule"
            ended = {"success": "succeeded", "failure": "failed", "completion": "ended"}
            how = f"{ended[trigger.outcome]} {_before(trigger.delay)}it"
            return f"no run of {of} that {how} caused a tick"
        case Manual():
            return "it has no ticks: its trigger is manual"
        case AnyOf():
            return "; ".join(why_no_tick(part, t, past) for part in trigger.triggers)
        case AllOf():
            failing = [part for part in trigger.triggers if not part.has(t, past)]
            return "; ".join(why_no_tick(part, t, past) for part in failing)
        case Minus():
            if not trigger.trigger.has(t, past):
                return why_no_tick(trigger.trigger, t, past)
            return f"it is excluded by minus: {describe(trigger.without)}"
        case OpenHours():
            return _open(trigger, t, past)
        case Bounded():
            return _limited(trigger, t, past)
        case _:
            raise TypeError(f"{trigger!r} is of an unknown kind")


def _local_pattern(pattern: WallPattern, t: int) -> str:
    wall = t + pattern.zone.offset(t)
    failing = [n for n, text in enumerate(pattern.texts) if not _field_has(n, text, wall)]
    if pattern.days.either:
        one_holds = not {DATE, WEEKDAY} <= set(failing)
        failing = [n for n in failing if not (one_holds and n in (DATE, WEEKDAY))]
    where = f"{rfc3339(t, pattern.zone)} in {pattern.zone.name}"
    if failing:
        fields = [
            f"{FIELDS[n].label} is {_value(n, wall)}, not {pattern.texts[n]}" for n in failing
        ]
        return f"{where}: {listing(fields)}"
    if pattern.zone.first_pass(wall) != t:
        return f"{where}: the clocks show this time twice that night, and only the first is a tick"
    return f"{where}: its fields match, but the rule for clock changes drops it"


def _field_has(place: int, text: str, wall: int) -> bool:
    texts = ["*"] * len(FIELDS)
    texts[place] = text
    return bool(compile_fields(texts, "UTC", either=False, keep_gaps=True).walls(wall, wall + 1))


def _value(place: int, wall: int) -> str:
    """Return the value of a field at a wall time."""
    day, second = divmod(wall, DAY)
    date = date_of(day)
    return (
        str(second % 60),
        str(second // 60 % 60),
        str(second // 3600),
        str(date.day),
        MONTHS[date.month],
        WEEKDAYS[date.weekday()],
        str(date.year),
    )[place]


def _every(trigger: Every, t: int) -> str:
    if trigger.start_at is not None and t < (trigger.next_after(-(2**40)) or t):
        return f"it is before the first tick, {trigger.start_at}"
    return f"it is not on the grid of {describe(trigger)}"


def _open(trigger: OpenHours, t: int, past: Past) -> str:
    if not trigger.trigger.has(t, past):
        return why_no_tick(trigger.trigger, t, past)
    if trigger.exclude is not None and trigger.exclude.closed_until(t) is not None:
        items = listing(list(trigger.exclude.items[:5]))
        until = rfc3339(trigger.exclude.closed_until(t) or t)
        return f"it is excluded ({items}), until {until}"
    within = trigger.within
    assert within is not None, "a closed instant that is not excluded is outside the hours"
    if within.outside == "move":
        return "it is outside the hours, and another tick was moved to the same opening"
    days = f" on {within.days}" if within.days != "*" else ""
    return f"it is outside the hours, {listing(list(within.hours))}{days}"


def _limited(trigger: Bounded, t: int, past: Past) -> str:
    if trigger.is_before(t):
        return f"it is before its start_at, {trigger.start_at}"
    if not trigger.allows(t):
        return f"it is after its end_at, {trigger.end_at}"
    if not trigger.trigger.has(t, past):  # then limits do not matter
        return why_no_tick(trigger.trigger, t, past)
    if trigger.max_runs is not None and trigger.runs_left(past) == 0:
        return f"its max_runs of {trigger.max_runs} is used up"
    return f"it is within the first {trigger.delay} after the schedule was defined (delay)"


def _before(delay: Duration) -> str:
    return f"{delay} before " if delay != Duration() else "just before "
