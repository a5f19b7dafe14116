"""Ticks caused by events: by the end of a run of this or another schedule, or by a start.

An event is stored with the schedule that it concerns, as the instant from which its tick follows. A
further event before that tick is decided joins it; the next event after that causes another tick.
So every event is followed by a tick, and no later event cancels a tick.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from onbeat.core.runs.phase import Status
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.past import STARTUP, Ending, Past, TriggerCause

ENDINGS: Mapping[Status, tuple[Ending, ...]] = {
    Status.SUCCESS: ("success", "completion"),
    Status.FAILED: ("failure", "completion"),
}  # other statuses cause nothing
MOST_NAMED = 10  # schedules of a cycle


def find_cycle(followed: Mapping[str, Collection[str]], names: Iterable[str]) -> list[str]:
    """Return a cycle in which one of these schedules follows itself through others, or [].

    A schedule may follow itself directly. Each schedule is visited once.
    """
    done: set[str] = set()
    for name in names:
        path: dict[str, None] = {}  # from `name` to the current schedule, in order
        stack = [iter((name,))]
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                if path:
                    done.add(path.popitem()[0])
            elif following in path and following != next(reversed(path)):
                cycle = list(path)[list(path).index(following) :]
                return [*cycle, following]
            elif following not in path and following not in done:
                path[following] = None
                stack.append(iter(sorted(followed.get(following, ()))))
    return []


def cycle_problem(cycle: Sequence[str]) -> str:
    """Return the problem of schedules that follow each other in a cycle."""
    if len(cycle) > MOST_NAMED:
        cycle = [*cycle[: MOST_NAMED - 1], "...", cycle[-1]]
    return f"{' follows '.join(cycle)}: this is a cycle"


def causes_after_end(
    trigger: Trigger, past: Past, schedule: str, status: Status, *, now: int, until: int
) -> Mapping[str, TriggerCause]:
    """Return the causes of a schedule's ticks, including the end of a run of `schedule`.

    An empty `schedule` is the schedule itself. Every tick up to `until` is decided.
    """
    causes = [f"{schedule}:{ending}:" for ending in ENDINGS[status]]
    return _with(trigger, past, tuple(causes), now=now, until=until)


def causes_after_start(
    trigger: Trigger, past: Past, *, now: int, until: int
) -> Mapping[str, TriggerCause]:
    """Return the causes of a schedule's ticks, including a start of the scheduler."""
    return _with(trigger, past, (f"{STARTUP}:",), now=now, until=until)


def count_events(trigger: Trigger, run_at: int, past: Past) -> int:
    """Return how many events a tick follows; 1 for a tick of the clock."""
    causes = {cause for cause in trigger.causes() if _tick(cause, past) == run_at}
    return max(sum(past.happened[cause].count for cause in causes), 1)


def encode_happened(happened: Mapping[str, TriggerCause]) -> str:
    """Return the causes as the JSON that is stored."""
    return msgspec.json.encode(
        {cause: (each.at, each.count) for cause, each in happened.items()}
    ).decode()


def decode_happened(text: str) -> Mapping[str, TriggerCause]:
    """Return the causes of stored JSON."""
    stored = msgspec.json.decode(text, type=dict[str, tuple[int, int]])
    return {cause: TriggerCause(*each) for cause, each in stored.items()}


def _with(
    trigger: Trigger, past: Past, causes: tuple[str, ...], *, now: int, until: int
) -> Mapping[str, TriggerCause]:
    found = {cause: past.happened[cause] for cause in trigger.causes() if cause in past.happened}
    for cause in trigger.causes():
        if not cause.startswith(causes):
            continue
        tick = _tick(cause, past)
        # A tick excluded by limits is never decided: no event can join it.
        if tick is not None and tick > until and trigger.has(tick, past):
            found[cause] = TriggerCause(past.happened[cause].at, past.happened[cause].count + 1)
        else:
            delay = int(cause.rpartition(":")[2])
            found[cause] = TriggerCause(max(now // 1000, until + 1 - delay))
    return found


def _tick(cause: str, past: Past) -> int | None:
    event = past.happened.get(cause)
    return None if event is None else event.at + int(cause.rpartition(":")[2])
