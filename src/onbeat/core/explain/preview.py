"""Preview of a trigger: its description, its next ticks, and notes about them."""

from typing import NamedTuple

from msgspec.structs import replace

from onbeat.core.explain.describe import describe
from onbeat.core.explain.dst_notes import YEAR, clock_change_notes
from onbeat.core.time.zones import Zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.kinds import Manual
from onbeat.core.triggers.past import STARTUP, Past, TriggerCause

NO_MORE = "no more ticks"
MOST_COMPARED = 10_000  # ticks, to find the shortest time between two


class Preview(NamedTuple):
    """The description of a trigger, `run_at` and `due_at` of its ticks, and notes."""

    words: str
    zone: Zone  # the zone of the displayed times
    ticks: list[tuple[int, int]]
    notes: list[str]


def preview(trigger: Trigger, where: Zone, *, after: int, n: int) -> Preview:
    """Return the next `n` ticks of a trigger, as if defined and started at `after`."""
    starts = {cause: TriggerCause(after) for cause in trigger.causes() if cause.startswith(STARTUP)}
    past = Past(created_at=after, happened=starts)
    ticks = [(tick, trigger.due_at(tick, past)) for tick in trigger.upcoming(after, n, past)]
    notes = clock_change_notes(trigger, after, after + YEAR)
    if trigger.needs_past:
        notes.append("ticks that depend on future runs are not shown; a start is assumed to be now")
    return Preview(describe(trigger), where, ticks, notes)


def describe_wait(trigger: Trigger, now: int, past: Past) -> str:
    """Return what a trigger without a next tick waits for, or that it has no more ticks.

    It waits for an event if that event, happening now, would cause a tick.
    """
    if isinstance(trigger, Manual):
        return "started manually"
    events = {cause: TriggerCause(now + 1) for cause in trigger.causes()}
    if trigger.next_after(now, replace(past, happened=events)) is None:
        return NO_MORE
    is_start = all(cause.startswith(STARTUP) for cause in events)
    return "at the next start of the scheduler" if is_start else "waits for other runs"


def shortest_gap(trigger: Trigger, *, after: int) -> int | None:
    """Return the fewest seconds between two ticks of the next year; None without two ticks.

    For a trigger that ticks every few minutes it covers only some weeks.
    """
    ticks, last, shortest = 0, None, None
    tick = trigger.next_after(after)
    while tick is not None and tick <= after + YEAR and ticks < MOST_COMPARED:
        if last is not None and (shortest is None or tick - last < shortest):
            shortest = tick - last
        ticks, last, tick = ticks + 1, tick, trigger.next_after(tick)
    return shortest
