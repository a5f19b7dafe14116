"""Ticks that are caused: by a run that ended, of this schedule or another, or by a start.

An event is kept with the schedule that it concerns, as the instant from which its tick follows. One
that comes before that tick is decided joins it; the next one after that has a tick of its own. So
every event is followed by a tick, and no tick is undone by a later event.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from onbeat.core.runs.run import Status
from onbeat.core.triggers.base import Trigger
from onbeat.core.triggers.past import STARTUP, Ending, Past, TriggerCause

ENDINGS: Mapping[Status, tuple[Ending, ...]] = {
    Status.SUCCESS: ("success", "completion"),
    Status.FAILED: ("failure", "completion"),
}  # of the others nothing follows
MOST_NAMED = 10  # schedules of a circle


def find_cycle(followed: Mapping[str, Collection[str]], names: Iterable[str]) -> list[str]:
    """Return the way by which one of these schedules follows itself through others, or nothing.

    A schedule may follow itself directly. Each schedule is looked at once, whatever their number.
    """
    done: set[str] = set()
    for name in names:
        way: dict[str, None] = {}  # from `name` to where we are, in order
        ahead = [iter((name,))]
        while ahead:
            following = next(ahead[-1], None)
            if following is None:
                ahead.pop()
                if way:
                    done.add(way.popitem()[0])
            elif following in way and following != next(reversed(way)):
                circle = list(way)[list(way).index(following) :]
                return [*circle, following]
            elif following not in way and following not in done:
                way[following] = None
                ahead.append(iter(sorted(followed.get(following, ()))))
    return []


def followed_schedules(circle: Sequence[str]) -> str:
    """Return what is wrong with schedules that follow each other in a circle."""
    if len(circle) > MOST_NAMED:
        circle = [*circle[: MOST_NAMED - 1], "...", circle[-1]]
    return f"{' follows '.join(circle)}: that has no beginning"


def ended(
    trigger: Trigger, past: Past, schedule: str, status: Status, *, now: int, until: int
) -> Mapping[str, TriggerCause]:
    """Return what has happened to a schedule when a run of `schedule` has ended as well.

    An empty `schedule` is its own. `until` is where it is decided up to.
    """
    causes = [f"{schedule}:{ending}:" for ending in ENDINGS[status]]
    return _with(trigger, past, tuple(causes), now=now, until=until)


def started(trigger: Trigger, past: Past, *, now: int, until: int) -> Mapping[str, TriggerCause]:
    """Return what has happened to a schedule when the scheduler has started as well."""
    return _with(trigger, past, (f"{STARTUP}:",), now=now, until=until)


def events_at(trigger: Trigger, run_at: int, past: Past) -> int:
    """Return how many events a tick follows: one, if it is of the clock."""
    causes = {cause for cause in trigger.causes() if _tick(cause, past) == run_at}
    return max(sum(past.happened[cause].count for cause in causes), 1)


def encode_happened(happened: Mapping[str, TriggerCause]) -> str:
    """Return what is kept of it."""
    return msgspec.json.encode(
        {cause: (each.at, each.count) for cause, each in happened.items()}
    ).decode()


def decode_happened(text: str) -> Mapping[str, TriggerCause]:
    """Return what was kept."""
    kept = msgspec.json.decode(text, type=dict[str, tuple[int, int]])
    return {cause: TriggerCause(*each) for cause, each in kept.items()}


def _with(
    trigger: Trigger, past: Past, causes: tuple[str, ...], *, now: int, until: int
) -> Mapping[str, TriggerCause]:
    found = {cause: past.happened[cause] for cause in trigger.causes() if cause in past.happened}
    for cause in trigger.causes():
        if not cause.startswith(causes):
            continue
        tick = _tick(cause, past)
        # One that limits leave out is never decided: nothing can join it.
        if tick is not None and tick > until and trigger.has(tick, past):
            found[cause] = TriggerCause(past.happened[cause].at, past.happened[cause].count + 1)
        else:
            delay = int(cause.rpartition(":")[2])
            found[cause] = TriggerCause(max(now // 1000, until + 1 - delay))
    return found


def _tick(cause: str, past: Past) -> int | None:
    event = past.happened.get(cause)
    return None if event is None else event.at + int(cause.rpartition(":")[2])
