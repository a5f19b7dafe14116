"""What every trigger can do: find the next tick, tell of the ticks in a range, and be combined.

The laws, which the tests hold every kind to:

- `next_after(t) > t`, in whole seconds;
- the answer is the same for every instant from `t` until the tick it gives;
- the ticks of a range are those of its two halves;
- an answer, or "never", comes within 50 ms.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_, or_

from onbeat.core.days import lowest_bit
from onbeat.core.instants import Instant, next_whole_second, whole_second
from onbeat.core.model import NO_PAST, Past
from onbeat.core.zones import DAY, LAST_SECOND
from onbeat.errors import InvalidSchedule


class Trigger(ABC):
    """The *when* of a schedule: a pure function of time and, for a few kinds, of the past."""

    __slots__ = ()

    @property
    def needs_past(self) -> bool:
        """Whether the ticks depend on what happened, so that a preview cannot know them all."""
        return False

    @abstractmethod
    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        """Return the first tick later than `t` in UTC seconds, or None when there is none."""

    def upcoming(self, t: Instant, n: int, past: Past = NO_PAST) -> list[int]:
        """Return the next `n` ticks later than `t`: fewer when the trigger ends."""
        return list(islice(self.iterate(whole_second(t) + 1, LAST_SECOND + 1, past), n))

    def between(self, first: Instant, last: Instant, past: Past = NO_PAST) -> "Ticks":
        """Return the ticks in `first <= tick < last`."""
        return Ticks(self, next_whole_second(first), next_whole_second(last), past)

    def due_at(self, run_at: int) -> int:
        """Return when the tick planned for `run_at` is to start: then, unless `within` moved it."""
        return run_at

    def iterate(self, first: int, last: int, past: Past) -> Iterator[int]:
        """Yield the ticks in `first <= tick < last`, in order."""
        tick = self.next_after(first - 1, past)
        while tick is not None and tick < last:
            yield tick
            tick = self.next_after(tick, past)

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
        return AnyOf((self, other)) if isinstance(other, Trigger) else NotImplemented

    def __and__(self, other: object) -> "AllOf":
        return AllOf((self, other)) if isinstance(other, Trigger) else NotImplemented

    def __sub__(self, other: object) -> "Minus":
        return Minus(self, other) if isinstance(other, Trigger) else NotImplemented


class Ticks:
    """The ticks of a trigger in `first <= tick < last`: like a range, never listed unasked."""

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
        tick = self._trigger.next_after(self._first - 1, self._past)
        return tick if tick is not None and tick < self._last else None

    @property
    def last(self) -> int | None:
        """The latest tick of the range, found by looking back in ever longer steps."""
        found, step = None, 1
        while found is None:
            since = max(self._last - step, self._first)
            tick = self._trigger.next_after(since - 1, self._past)
            if tick is not None and tick < self._last:
                found = tick
            elif since == self._first:
                return None
            step *= 2
        beyond = self._last  # `found` is a tick, and from `beyond` on there is none
        while (tick := self._trigger.next_after(found, self._past)) is not None and tick < beyond:
            middle = (tick + beyond) // 2
            later = self._trigger.next_after(middle - 1, self._past)
            if later is not None and later < beyond:
                found = later
            else:
                found, beyond = tick, middle
        return found


class Combined(Trigger):
    """A trigger made of others by the algebra of sets. Dense parts meet as the bits of a day."""

    __slots__ = ()

    @property
    @abstractmethod
    def parts(self) -> tuple[Trigger, ...]:
        """The triggers it is made of."""

    @property
    def needs_past(self) -> bool:
        return any(part.needs_past for part in self.parts)

    def count(self, first: int, last: int, past: Past) -> int:
        total, tick = 0, self.next_after(first - 1, past)
        while tick is not None and tick < last:
            end = min(tick + DAY, last)
            total += self.bits(tick, end, past).bit_count()
            tick = self.next_after(end - 1, past)
        return total

    def _refuse_if_never(self, field: str, problem: str, hint: str) -> None:
        if not self.needs_past and self.next_after(0) is None:
            raise InvalidSchedule(field, problem, hint=hint)

    def _next_in_day(self, t: int, past: Past) -> int | None:
        """Return the first tick in the day that begins after `t`, by its bits."""
        found = self.bits(t + 1, t + 1 + DAY, past)
        return t + 1 + lowest_bit(found) if found else None


# How far `all` and `minus` look for a tick before they call it never: so many rounds, each of so
# many single steps and then one whole day. That is decades for daily parts, months for dense ones.
ROUNDS = 256
STEPS = 32


@dataclass(frozen=True, slots=True)
class AnyOf(Combined):
    """A tick wherever one of the parts has one; equal instants are one tick."""

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        _at_least(2, self.triggers, "any")

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return self.triggers

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        ticks = [tick for part in self.triggers if (tick := part.next_after(t, past)) is not None]
        return min(ticks, default=None)

    def bits(self, first: int, last: int, past: Past) -> int:
        return reduce(or_, (part.bits(first, last, past) for part in self.triggers))


@dataclass(frozen=True, slots=True)
class AllOf(Combined):
    """A tick where all the parts have one."""

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        _at_least(2, self.triggers, "all")
        self._refuse_if_never(
            "all", "no tick that all parts have was found", "any, if each shall have its own"
        )

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return self.triggers

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        t = whole_second(t)
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                ticks = [
                    tick for part in self.triggers if (tick := part.next_after(t, past)) is not None
                ]
                if len(ticks) < len(self.triggers):
                    return None
                latest = max(ticks)
                if latest == min(ticks):
                    return latest
                t = latest - 1
            if (found := self._next_in_day(t, past)) is not None:
                return found
            t += DAY
        return None

    def bits(self, first: int, last: int, past: Past) -> int:
        return reduce(and_, (part.bits(first, last, past) for part in self.triggers))


@dataclass(frozen=True, slots=True)
class Minus(Combined):
    """A tick where `trigger` has one and `without` has none."""

    trigger: Trigger
    without: Trigger

    def __post_init__(self) -> None:
        self._refuse_if_never(
            "minus", "nothing that is left of the first part was found", "a narrower second part"
        )

    @property
    def parts(self) -> tuple[Trigger, ...]:
        return (self.trigger, self.without)

    def next_after(self, t: Instant, past: Past = NO_PAST) -> int | None:
        t = whole_second(t)
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                tick = self.trigger.next_after(t, past)
                if tick is None or self.without.next_after(tick - 1, past) != tick:
                    return tick
                t = tick
            if (found := self._next_in_day(t, past)) is not None:
                return found
            t += DAY
        return None

    def bits(self, first: int, last: int, past: Past) -> int:
        return self.trigger.bits(first, last, past) & ~self.without.bits(first, last, past)


def _at_least(least: int, triggers: tuple[Trigger, ...], kind: str) -> None:
    if len(triggers) < least:
        raise InvalidSchedule(
            kind, f"{len(triggers)} part{'s' * (len(triggers) != 1)}", hint=f"{least} or more"
        )
