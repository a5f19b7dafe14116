"""What a trigger will do, told beforehand: its words, its coming ticks, and notes about them."""

from typing import NamedTuple

from msgspec.structs import replace

from onbeat.core.explain.describe import describe
from onbeat.core.explain.dst_notes import YEAR, night_notes
from onbeat.core.time.zones import Zone
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.kinds import Manual
from onbeat.core.triggers.past import STARTUP, Past, TriggerCause

NO_MORE = "no more ticks"
MOST_LOOKED_AT = 10_000  # ticks, for the shortest time between two


class Preview(NamedTuple):
    """The words of a trigger, `run_at` and `due_at` of its ticks, and notes."""

    words: str
    zone: Zone  # that its times are told in
    ticks: list[tuple[int, int]]
    notes: list[str]


def preview(trigger: Trigger, where: Zone, *, after: int, n: int) -> Preview:
    """Return what a trigger defined, and started, at `after` will do: its next `n` ticks."""
    starts = {cause: TriggerCause(after) for cause in trigger.causes() if cause.startswith(STARTUP)}
    past = Past(created_at=after, happened=starts)
    ticks = [(tick, trigger.due_at(tick, past)) for tick in trigger.upcoming(after, n, past)]
    notes = night_notes(trigger, after, after + YEAR)
    if trigger.needs_past:
        notes.append("what depends on runs to come is not told; a start is taken to be now")
    return Preview(describe(trigger), where, ticks, notes)


def awaited(trigger: Trigger, now: int, past: Past) -> str:
    """Return what a trigger without a next tick waits for, or that there are no more ticks.

    It waits for an event if a tick would follow were that event to happen now.
    """
    if isinstance(trigger, Manual):
        return "started by hand"
    events = {cause: TriggerCause(now + 1) for cause in trigger.causes()}
    if trigger.next_after(now, replace(past, happened=events)) is None:
        return NO_MORE
    is_start = all(cause.startswith(STARTUP) for cause in events)
    return "at the next start of the scheduler" if is_start else "waits for runs to come"


def shortest_gap(trigger: Trigger, *, after: int) -> int | None:
    """Return the fewest seconds between two ticks of the coming year; None: there are not two.

    Of a trigger that ticks every few minutes it looks at some weeks only.
    """
    ticks, last, shortest = 0, None, None
    tick = trigger.next_after(after)
    while tick is not None and tick <= after + YEAR and ticks < MOST_LOOKED_AT:
        if last is not None and (shortest is None or tick - last < shortest):
            shortest = tick - last
        ticks, last, tick = ticks + 1, tick, trigger.next_after(tick)
    return shortest
