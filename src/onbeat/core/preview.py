"""What a trigger will do, told beforehand: its words, its coming ticks, and notes about them."""

from typing import NamedTuple

from onbeat.core.model import STARTUP, Happened, Past
from onbeat.core.nights import YEAR, night_notes
from onbeat.core.ticks import Trigger
from onbeat.core.words import words
from onbeat.core.zones import Zone


class Preview(NamedTuple):
    """The words of a trigger, `run_at` and `due_at` of its ticks, and notes."""

    words: str
    zone: Zone  # that its times are told in
    ticks: list[tuple[int, int]]
    notes: list[str]


def preview(trigger: Trigger, where: Zone, *, after: int, n: int) -> Preview:
    """Return what a trigger defined, and started, at `after` will do: its next `n` ticks."""
    starts = {cause: Happened(after) for cause in trigger.causes() if cause.startswith(STARTUP)}
    past = Past(created_at=after, happened=starts)
    ticks = [(tick, trigger.due_at(tick, past)) for tick in trigger.upcoming(after, n, past)]
    notes = night_notes(trigger, after, after + YEAR)
    if trigger.needs_past:
        notes.append("what depends on runs to come is not told; a start is taken to be now")
    return Preview(words(trigger), where, ticks, notes)
