"""Harm that comes to nodes which share a server, besides being killed; and to the server itself.

Each kind is a generator: it does something, yields for how many seconds that is to last while all
else goes on, and undoes it.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.chaos.databases import Database
from tests.chaos.lives import Life
from tests.chaos.people import People

Length = tuple[float, float]  # seconds, from and to
ANY_LENGTH, ABOUT_A_LEASE, SURELY_FORGOTTEN = (0.5, 12.0), (1.2, 3.5), (4.5, 6.0)  # of a halt
LONGEST_AWAY, LONGEST_PAUSE = 3.0, 5.0  # seconds
CUT_FOR = (0.5, 3.0)  # seconds
UNANSWERED = 11.5  # seconds of a pause that is longer than a call waits for its answer
REST = 5.0  # seconds after which nothing is in doubt any more that was done before
REACHED_BY, FORGOTTEN_BY, JOINED_BY, GONE_BY = 8.0, 7.0, 8.0, 12.0  # seconds until it has to be so
LOOK = 0.1
HALTS = (
    "plan_due:after", "announce:after", "claim:after", "heartbeat:before", "heartbeat:after",
    "finish:before", "commit:before", "commit:after", "launch:before", "statement",
)  # fmt: skip


class Harm:
    """What is done to these nodes, one thing at a time."""

    def __init__(
        self,
        database: Database,
        people: People,
        chance: random.Random,
        *,
        living: Callable[[], list[Life]],
        note: Callable[[str], None],
    ) -> None:
        self._database, self._server, self._people = database, database.server, people
        self._chance, self._living, self._note = chance, living, note
        self._doing: Iterator[float] | None = None
        self._next, self._ended = 0.0, 0.0
        self._deck, self._kind = list[str](), ""
        self.waits_for: Life | None = (
            None  # who is to be halted at a point, and should not die before
        )
        self.server_is_away = False
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def is_on(self) -> bool:
        return self._doing is not None

    def was_on(self, since: float) -> bool:
        """Return whether something was going on at any time since then."""
        return self.is_on or self._ended > since

    def begin(self, kinds: tuple[str, ...]) -> None:
        """Begin one of these, each in its turn."""
        if not self._living():
            return
        self._deck = self._deck or self._chance.sample(kinds, len(kinds))
        self._kind = self._deck.pop()
        self._note(self._kind)
        self._doing, self._next = KINDS[self._kind](self), 0.0
        self.done[self._kind] += 1
        self.go_on()

    def go_on(self) -> None:
        """Do the next step, if it is time for it."""
        if self._doing is None or time.monotonic() < self._next:
            return
        try:
            self._next = time.monotonic() + next(self._doing)
        except StopIteration:
            self._doing, self._ended = None, time.monotonic()

    def stop(self) -> None:
        """Leave nothing halted, whatever happened."""
        if self._doing is not None:
            self._doing.close()

    # -- the kinds

    def _halt(self) -> Iterator[float]:
        life = self._chance.choice(self._living())
        life.halt()
        yield from self._while_halted(life)

    def _halt_at_a_point(self) -> Iterator[float]:
        return self._halt_at(self._chance.choice(HALTS))

    def _halt_about_a_lease(self) -> Iterator[float]:
        return self._halt_at(self._chance.choice(HALTS), ABOUT_A_LEASE)

    def _halt_before_launches(self) -> Iterator[float]:
        return self._halt_at("plan_due:after", SURELY_FORGOTTEN)

    def _halt_at(self, point: str, length: Length = ANY_LENGTH) -> Iterator[float]:
        """Have a node halted at a point, and not just anywhere."""
        life = self.waits_for = self._chance.choice(self._living())
        life.tell(f"halt {point} {self._chance.randint(1, 50) if point == 'statement' else 1}")
        limit = time.monotonic() + REACHED_BY
        while not life.is_halted and life.code is None and time.monotonic() < limit:
            yield LOOK
        self.waits_for = None
        if life.is_halted:
            self._note(f"{life.name} halted at {point}")
            yield from self._while_halted(life, length)
        else:
            life.tell("live - 1")
            self.done[self._kind] -= 1
            self.done["halt, not reached"] += 1

    def _while_halted(self, life: Life, length: Length = ANY_LENGTH) -> Iterator[float]:
        """Let it be for a while; if that was long, others have to have forgotten it."""
        before, was_up = life.joined_anew, life.is_up
        seconds = self._chance.uniform(*length)
        self._note(f"{life.name} is halted for {seconds:.1f} s")
        try:
            yield seconds
        finally:
            life.go_on()
        if seconds < FORGOTTEN_BY or not was_up:
            return
        limit = time.monotonic() + JOINED_BY
        while life.joined_anew == before and life.code is None:
            if time.monotonic() > limit:
                told = f"halted for {seconds:.1f} s, it did not join anew: {life.last_words()}"
                self.wrong.append(told)
                return
            yield LOOK

    def _cut_off(self) -> Iterator[float]:
        """End a node's connections, all of them or some."""
        life = self._chance.choice(self._living())
        self._database.end_backends(life.name, self._chance.choice((1, 2, 100)))
        yield 0.0

    def _cut_off_all(self) -> Iterator[float]:
        """End connections of all nodes again and again: some at a moment that hurts."""
        until = time.monotonic() + self._chance.uniform(*CUT_FOR)
        while time.monotonic() < until:
            self._database.end_backends("node-%", self._chance.choice((1, 3, 100)))
            yield self._chance.uniform(0, 0.1)

    def _restart_server(self) -> Iterator[float]:
        return self._restart("fast")

    def _crash_server(self) -> Iterator[float]:
        return self._restart("immediate")

    def _restart(self, mode: str) -> Iterator[float]:
        with self._without_server(lambda: self._server.stop(mode), self._server.start):
            yield self._chance.uniform(0, LONGEST_AWAY)

    def _pause_server(self) -> Iterator[float]:
        with self._without_server(self._server.pause, self._server.resume):
            yield self._chance.uniform(0.5, LONGEST_PAUSE)

    def _pause_server_for_long(self) -> Iterator[float]:
        with self._without_server(self._server.pause, self._server.resume):
            yield UNANSWERED

    @contextmanager
    def _without_server(self, take: Callable[[], None], give: Callable[[], None]) -> Iterator[None]:
        self.server_is_away = True
        take()
        try:
            yield
        finally:
            give()
            self.server_is_away = False

    def _ask_to_leave(self) -> Iterator[float]:
        """Have a node stop by `onbeat down`, in good order, while others go on."""
        yield REST
        while not (staying := [life for life in self._living() if life.is_up]):
            yield LOOK
        life = self._chance.choice(staying)
        life.leaves_with = 0
        self._people.ask("down", life.address)
        limit = time.monotonic() + GONE_BY
        while life.code is None:
            if time.monotonic() > limit:
                self.wrong.append(f"asked to stop, it did not: {life.last_words()}")
                life.kill()
                return
            yield LOOK


KINDS: dict[str, Callable[[Harm], Iterator[float]]] = {
    "halt": Harm._halt,
    "halt at a point": Harm._halt_at_a_point,
    "halt about a lease": Harm._halt_about_a_lease,
    "halt before launches": Harm._halt_before_launches,
    "cut off": Harm._cut_off,
    "cut off all": Harm._cut_off_all,
    "server restarted": Harm._restart_server,
    "server crashed": Harm._crash_server,
    "server paused": Harm._pause_server,
    "server paused long": Harm._pause_server_for_long,
    "asked to leave": Harm._ask_to_leave,
}

# What happens to the server alone: no node may end by it.
OF_SERVER = (
    "cut off", "cut off all", "server restarted", "server crashed", "server paused",
    "server paused long",
)  # fmt: skip
