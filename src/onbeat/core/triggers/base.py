"""The base of all triggers: find the next tick, list the ticks of a range, combine triggers.

The laws, which the tests check for every kind:

- `next_after(t) > t`, in whole seconds;
- the result is the same for every instant from `t` until the tick that it returns;
- the ticks of a range are those of its two halves;
- a result, or "never", is found within 50 ms.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import ClassVar

from onbeat.core.time.days import lowest_bit
from onbeat.core.time.instants import Instant, next_whole_second, whole_second
from onbeat.core.time.zones import DAY, FIRST_SECOND, LAST_SECOND
from onbeat.core.triggers.past import NO_PAST, Past
from onbeat.errors import InvalidSchedule


class Trigger(ABC):
    """The *when* of a schedule: a pure function of time and, for a few kinds, of the past."""

    __slots__ = ()
    # Whether one search step finds a tick, ticks are due as planned, and their number is not fixed.
    is_plain: ClassVar[bool] = False

    @property
    def needs_past(self) -> bool:
        """Whether the ticks depend on past events, so that a preview cannot know them all."""
        return False

    @abstractmethod
    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        """Return the first tick later than `t` in UTC seconds, or None."""

    def look(self, t: int, past: Past) -> tuple[int | None, int | None]:
        """Return the first tick later than `t`; or None and where the search gave up, if it did."""
        return self.next_after(t, past), None

    def following(self, t: int, past: Past, last: int) -> int | None:
        """Return the first tick with `t < tick < last`, however long the search takes."""
        while t < last:
            tick, reached = self.look(t, past)
            if tick is not None or reached is None:
                return tick if tick is not None and tick < last else None
            t = reached
        return None

    def upcoming(self, t: Instant, n: int, past: Past = NO_PAST) -> list[int]:
        """Return the next `n` ticks later than `t`: fewer when the trigger ends."""
        found: list[int] = []
        tick = self.next_after(max(whole_second(t), FIRST_SECOND - 1), past)
        while tick is not None and len(found) < n:
            found.append(tick)
            tick = self.next_after(tick, past)
        return found

    def between(self, first: Instant, last: Instant, past: Past = NO_PAST) -> "TickRange":
        """Return the ticks in `first <= tick < last`."""
        begins, ends = next_whole_second(first), next_whole_second(last)
        return TickRange(self, max(begins, FIRST_SECOND), min(ends, LAST_SECOND + 1), past)

    def due_at(self, run_at: int, past: Past = NO_PAST) -> int:
        """Return when the tick planned for `run_at` is due: then, unless `within` moved it."""
        return run_at

    def has(self, t: int, past: Past) -> bool:
        """Return whether `t` is a tick."""
        return self.next_after(t - 1, past) == t

    def floor(self, t: int, past: Past) -> int | None:
        """Return an instant after `t` before which there are no ticks, found without a search."""
        return self.next_after(t, past)

    def causes(self) -> Iterator[str]:
        """Yield the events that cause its ticks, as named in `Past.happened`.

        Each is `schedule:outcome:delay`, with an empty schedule for runs of the same schedule, or
        `@startup:delay`; the delay is in seconds.
        """
        yield from ()

    @property
    def counts_runs(self) -> bool:
        """Whether `max_runs` ends it."""
        return False

    def runs_left(self, past: Past) -> int | None:
        """Return how many runs `max_runs` still allows, if this trigger has it."""
        return None

    @property
    def cost(self) -> int:
        """The relative cost of one lookup, 1 for a plain trigger. It limits searches."""
        return 1

    def iterate(self, first: int, last: int, past: Past) -> Iterator[int]:
        """Yield the ticks in `first <= tick < last`, in order."""
        tick = self.following(first - 1, past, last)
        while tick is not None:
            yield tick
            tick = self.following(tick, past, last)

    def count(self, first: int, last: int, past: Past) -> int:
        """Return how many ticks there are in `first <= tick < last`."""
        return sum(1 for _ in self.iterate(first, last, past))

    def bits(self, first: int, last: int, past: Past) -> int:
        """Return the ticks in `first <= tick < last`, a day at most, as bits: bit 0 is `first`."""
        flags = bytearray(b"0") * (last - first)
        for tick in self.iterate(first, last, past):
            flags[last - 1 - tick] = 49  # "1", the highest bit leftmost
        return int(flags, 2) if flags else 0

    def __or__(self, other: object) -> "AnyOf":
        if not isinstance(other, Trigger):
            return NotImplemented
        return AnyOf((*_flat(AnyOf, self), *_flat(AnyOf, other)))

    def __and__(self, other: object) -> "AllOf":
        if not isinstance(other, Trigger):
            return NotImplemented
        return AllOf((*_flat(AllOf, self), *_flat(AllOf, other)))

    def __sub__(self, other: object) -> "Minus":
        return Minus(self, other) if isinstance(other, Trigger) else NotImplemented


class TickRange:
    """The ticks of a trigger in `first <= tick < last`, computed only when needed."""

    __slots__ = ("_first", "_last", "_past", "_trigger")

    def __init__(self, trigger: Trigger, first: int, last: int, past: Past) -> None:
        self._trigger, self._first, self._last, self._past = trigger, first, last, past

    def __repr__(self) -> str:
        return f"<ticks of {self._trigger!r} in {self._first} <= t < {self._last}>"

    def __iter__(self) -> Iterator[int]:
        return self._trigger.iterate(self._first, self._last, self._past)

    def __len__(self) -> int:
        return self._trigger.count(self._first, self._last, self._past)

    def __bool__(self) -> bool:
        return self.first is not None

    @property
    def first(self) -> int | None:
        """The earliest tick of the range."""
        return self._trigger.following(self._first - 1, self._past, self._last)

    @property
    def last(self) -> int | None:
        """The latest tick of the range, found by searching backward in growing steps."""
        found, step = None, 1
        while found is None:
            since = max(self._last - step, self._first)
            found = self._trigger.following(since - 1, self._past, self._last)
            if found is None and since == self._first:
                return None
            step *= 2
        beyond = self._last  # `found` is a tick, and there are no ticks from `beyond` on
        while (tick := self._trigger.following(found, self._past, beyond)) is not None:
            middle = (tick + beyond) // 2
            later = self._trigger.following(middle - 1, self._past, beyond)
            if later is not None:
                found = later
            else:
                found, beyond = tick, middle
        return found


def search(trigger: Trigger, t: int, past: Past) -> tuple[int | None, int | None]:
    """Find the first tick after `t` of a trigger that can test instants but not compute the next.

    Return the tick, or None and where the search gave up (None if there are no ticks). The
    search goes from floor to floor and, where many floors lie within a few hours, by the bits of a
    whole day. It gives up after BUDGET: see `docs/decisions/0003`.
    """
    for _ in range(max(BUDGET // (STEPS * trigger.cost), 2)):
        since = t
        for _ in range(STEPS):
            found = trigger.floor(t, past)
            if found is None or trigger.has(found, past):
                return found, None
            t = found
        if t - since < DAY // 8:
            bits = trigger.bits(t + 1, t + 1 + DAY, past)
            if bits:
                return t + 1 + lowest_bit(bits), None
            t += DAY
    return None, t


BUDGET = 10_000  # lookups of plain triggers: years of daily parts, half a year of dense parts
STEPS = 32
PROBES = (1_800_000_000, 0)  # where the search for a tick of a new trigger starts: 2027, then 1970
MOST_PARTS = 100


def refuse_if_never(trigger: Trigger, field: str, problem: str, *, hint: str) -> None:
    """Refuse a trigger without any tick, unless its ticks depend on the past."""
    if not trigger.needs_past and all(trigger.next_after(t) is None for t in PROBES):
        raise InvalidSchedule(field, problem, hint=hint)


class Combined(Trigger):
    """A trigger combined from others by set operations."""

    __slots__ = ()

    @property
    @abstractmethod
    def parts(self) -> tuple[Trigger, ...]:
        """The combined triggers."""

    @property
    def needs_past(self) -> bool:
        return any(part.needs_past for part in self.parts)

    def causes(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.causes()

    @property
    def counts_runs(self) -> bool:
        return any(part.counts_runs for part in self.parts)

    @property
    def cost(self) -> int:
        return sum(part.cost for part in self.parts)

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        return self.look(whole_second(t), past)[0]

    def look(self, t: int, past: Past) -> tuple[int | None, int | None]:
        return search(self, t, past)

    def count(self, first: int, last: int, past: Past) -> int:
        total, tick = 0, self.following(first - 1, past, last)
        while tick is not None:
            end = min(tick + DAY, last)
            total += self.bits(tick, end, past).bit_count()
            tick = self.following(end - 1, past, last)
        return total


@dataclass(frozen=True, slots=True)
class AnyOf(Combined):
    """A tick wherever one of the parts has a tick; equal instants are one tick."""

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        _check_parts(self.triggers, "any")

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return self.triggers

    def look(self, t: int, past: Past) -> tuple[int | None, int | None]:
        """Return the earliest tick. If a part gave up before it, an earlier tick may exist."""
        found = [part.look(t, past) for part in self.triggers]
        tick = min((tick for tick, _ in found if tick is not None), default=None)
        reached = min((end for _, end in found if end is not None), default=None)
        if reached is not None and (tick is None or reached < tick):
            return None, reached
        return tick, None

    def has(self, t: int, past: Past) -> bool:
        return any(part.has(t, past) for part in self.triggers)

    def floor(self, t: int, past: Past) -> int | None:
        floors = (part.floor(t, past) for part in self.triggers)
        return min((floor for floor in floors if floor is not None), default=None)

    def due_at(self, run_at: int, past: Past = NO_PAST) -> int:
        """Return the earliest due time of the parts that have this tick."""
        having = (part for part in self.triggers if part.has(run_at, past))
        return min((part.due_at(run_at, past) for part in having), default=run_at)

    def bits(self, first: int, last: int, past: Past) -> int:
        return reduce(or_, (part.bits(first, last, past) for part in self.triggers))


@dataclass(frozen=True, slots=True)
class AllOf(Combined):
    """A tick where all the parts have a tick."""

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        _check_parts(self.triggers, "all")
        hint = "use any if each part should tick separately"
        refuse_if_never(self, "all", "the parts have no tick in common", hint=hint)

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return self.triggers

    def has(self, t: int, past: Past) -> bool:
        return all(part.has(t, past) for part in self.triggers)

    def floor(self, t: int, past: Past) -> int | None:
        latest = t
        for part in self.triggers:
            floor = part.floor(t, past)
            if floor is None:
                return None
            latest = max(latest, floor)
        return latest

    def due_at(self, run_at: int, past: Past = NO_PAST) -> int:
        """Return the latest due time of the parts: then all allow it."""
        return max(part.due_at(run_at, past) for part in self.triggers)

    def bits(self, first: int, last: int, past: Past) -> int:
        return reduce(and_, (part.bits(first, last, past) for part in self.triggers))


@dataclass(frozen=True, slots=True)
class Minus(Combined):
    """A tick where `trigger` has a tick and `without` has none."""

    trigger: Trigger
    without: Trigger

    def __post_init__(self) -> None:
        problem = "no tick of the first part is left"
        refuse_if_never(self, "minus", problem, hint="use a narrower second part")

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return (self.trigger, self.without)

    def has(self, t: int, past: Past) -> bool:
        return self.trigger.has(t, past) and not self.without.has(t, past)

    def floor(self, t: int, past: Past) -> int | None:
        return self.trigger.floor(t, past)

    def due_at(self, run_at: int, past: Past = NO_PAST) -> int:
        return self.trigger.due_at(run_at, past)

    def bits(self, first: int, last: int, past: Past) -> int:
        return self.trigger.bits(first, last, past) & ~self.without.bits(first, last, past)


def _flat(kind: type[AnyOf | AllOf], trigger: Trigger) -> tuple[Trigger, ...]:
    """Return the parts of a trigger that is itself of this kind: `a | b | c` is one level."""
    return trigger.triggers if isinstance(trigger, kind) else (trigger,)


def _check_parts(triggers: tuple[Trigger, ...], kind: str) -> None:
    if not 2 <= len(triggers) <= MOST_PARTS:
        parts = f"{len(triggers)} part{'s' * (len(triggers) != 1)}"
        raise InvalidSchedule(kind, parts, hint=f"2 to {MOST_PARTS}")
