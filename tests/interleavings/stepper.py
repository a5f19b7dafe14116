"""Two calls on one database, stepped statement by statement through every order that matters.

Each call runs in a separate thread and stops before each of its statements. The stepper lets one of
them execute its next statement, and waits until that is done or PostgreSQL shows it waiting for the
other. Orders that differ only in statements that cannot see each other are tried once: what a
statement touches is read from its text (sleep sets, after Godefroid).
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg

from onbeat.stores.postgres.database import DeadlineCursor

TABLES = re.compile(r"\b(due|schedule_state|schedules|schedule_runs|meta|nodes)\b")
CHANGED = re.compile(
    r"\b(?:UPDATE|INTO|DELETE FROM) (due|schedule_state|schedules|schedule_runs|meta|nodes)\b"
)
ALIASES = {"d": "due", "t": "schedule_state", "r": "schedule_runs"}
PATIENCE = 10.0  # seconds for one statement


@dataclass(frozen=True)
class Step:
    """A statement: what it reads, changes or locks, locks in share mode, and emits."""

    text: str
    reads: frozenset[str] = frozenset()
    holds: frozenset[str] = frozenset()
    shares: frozenset[str] = frozenset()
    writes_event: bool = False  # it writes an event: their order is what the checker goes by
    ends: bool = False  # it commits, or takes back, what the transaction held and shared

    def depends_on(self, other: "Step") -> bool:
        """Whether it can make a difference which of the two, of two transactions, comes first."""
        if self.writes_event or other.writes_event:
            return self.writes_event and other.writes_event
        if self.ends and other.ends:
            return False
        if self.ends:
            return other.depends_on(self)
        touched = other.holds | other.shares if self.holds else other.holds
        clash = bool(self.holds & touched or self.shares & other.holds)
        return clash or (other.ends and bool(self.reads & other.holds))


def read_step(text: str, params: object, before: list[Step]) -> Step:
    """Return what a statement does, after those before it in its transaction."""
    word = text.split(None, 1)[0]
    if word == "BEGIN":
        return Step(text)
    if word in ("COMMIT", "ROLLBACK"):
        held = frozenset().union(*(step.holds for step in before))
        return Step(
            text, holds=held, shares=frozenset().union(*(s.shares for s in before)), ends=True
        )
    if "INTO events" in text:
        return Step(text, writes_event=True)
    if "pg_advisory" in text:
        lock = frozenset({f"lock {params[0]}"})
        return Step(text, shares=lock) if "shared" in text else Step(text, holds=lock)
    tables, holds = frozenset(TABLES.findall(text)), frozenset(CHANGED.findall(text))
    if "FOR KEY SHARE" in text:
        return Step(text, tables, shares=tables)
    if named := re.search(r"FOR UPDATE OF (\w), (\w)", text):
        holds = frozenset(ALIASES[name] for name in named.groups())
    elif "FOR UPDATE" in text:
        holds = tables
    return Step(text, tables - holds, holds)


@dataclass
class Actor:
    """One of the calls."""

    name: str
    pid: int  # of the server process that serves it
    work: Callable[[], object]
    steps: list[Step] = field(default_factory=list)
    waiting_for: Step | None = None  # the statement it stopped before
    is_done: bool = False
    is_free: bool = False  # it runs without being stepped
    result: object = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.may_go = False

    def stop_before(self, text: str, params: object) -> None:
        """Wait for permission to continue, in the thread of the call."""
        with self.changed:
            self.waiting_for = read_step(text, params, self.steps)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.may_go or self.is_free, PATIENCE)
            self.steps.append(self.waiting_for)
            self.may_go, self.waiting_for = False, None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as broken:  # noqa: BLE001 - the explorer checks it
            self.error = broken
        with self.changed:
            self.is_done = True
            self.changed.notify_all()

    def go(self) -> None:
        with self.changed:
            self.may_go = True
            self.changed.notify_all()

    def let_go(self) -> None:
        with self.changed:
            self.is_free = True
            self.changed.notify_all()

    def has_stopped(self, seconds: float) -> bool:
        """Wait for so long at most; return whether it stands before a statement, or is done."""
        with self.changed:
            return self.changed.wait_for(
                lambda: self.is_done or (self.waiting_for is not None and not self.may_go), seconds
            )


@dataclass
class Frame:
    """A place where there was a choice: who could go, who need not, and who went."""

    enabled: dict[str, Step]
    asleep: dict[str, Step]
    choice: str


class Circle(AssertionError):  # noqa: N818 - it names what is wrong
    """Both wait for each other."""


class Explorer:
    """Goes through the orders of two calls, one after the other."""

    def __init__(self, watching: psycopg.Connection) -> None:
        self._watching = watching
        self._frames: list[Frame] = []
        self.pruned = 0

    def orders(self, make_actors: Callable[[], list[Actor]]) -> Iterator[list[Actor]]:
        """Yield the two calls, done, after each order there is; they are made anew for each."""
        while True:
            actors = make_actors()
            if self._play(actors):
                yield actors
            else:
                self.pruned += 1
            if not self._turn_back():
                return

    def describe(self) -> str:
        """Return the order that was just played."""
        return "\n".join(
            f"  {frame.choice:9} {' '.join(frame.enabled[frame.choice].text.split())[:110]}"
            for frame in self._frames
        )

    def _turn_back(self) -> bool:
        """Go back to the last choice that could have been another one, and make it."""
        while self._frames:
            frame = self._frames[-1]
            frame.asleep[frame.choice] = frame.enabled[frame.choice]
            left = [name for name in frame.enabled if name not in frame.asleep]
            if left:
                frame.choice = left[0]
                return True
            self._frames.pop()
        return False

    def _play(self, actors: list[Actor]) -> bool:
        """Play the order of the frames and continue from there; return whether it was a new one."""
        by_pid = {actor.pid: actor for actor in actors}
        threads = [threading.Thread(target=actor.run, daemon=True) for actor in actors]
        with _stopping(by_pid):
            for thread in threads:
                thread.start()
            try:
                return self._steer({actor.name: actor for actor in actors})
            finally:
                for actor in actors:
                    actor.let_go()
                for thread in threads:
                    thread.join(2 * PATIENCE)

    def _steer(self, actors: dict[str, Actor]) -> bool:
        depth, asleep, blocked = 0, {}, set()
        for actor in actors.values():
            assert actor.has_stopped(PATIENCE), f"{actor.name} did not begin"
        while True:
            blocked = {name for name in blocked if self._is_blocked(actors[name])}
            enabled = {
                name: actor.waiting_for
                for name, actor in actors.items()
                if name not in blocked and actor.waiting_for is not None
            }
            if not enabled:
                if blocked:
                    raise Circle(f"all wait: {blocked}")
                return True
            if depth == len(self._frames):
                awake = [name for name in enabled if name not in asleep]
                if not awake:
                    return False  # the same was played in another order
                self._frames.append(Frame(enabled, dict(asleep), awake[0]))
            frame = self._frames[depth]
            assert frame.enabled.keys() == enabled.keys(), "the same order has the same choices"
            step = enabled[frame.choice]
            asleep = {
                name: other
                for name, other in frame.asleep.items()
                if name != frame.choice and not other.depends_on(step)
            }
            actors[frame.choice].go()
            if self._is_blocked(actors[frame.choice]):
                blocked.add(frame.choice)
            depth += 1

    def _is_blocked(self, actor: Actor) -> bool:
        """Wait until a call stops, or PostgreSQL reports that it waits for the other."""
        limit = time.monotonic() + PATIENCE
        while not actor.has_stopped(0.002):
            found = self._watching.execute("SELECT cardinality(pg_blocking_pids(%s))", (actor.pid,))
            if found.fetchone()[0] and not actor.has_stopped(0):
                return True
            assert time.monotonic() < limit, f"{actor.name} hangs"
        return False


class _stopping:  # noqa: N801 - it is read as a word
    """Have the statements of these server processes stop before they begin."""

    def __init__(self, actors: dict[int, Actor]) -> None:
        self._actors = actors

    def __enter__(self) -> None:
        self._execute = execute = DeadlineCursor.execute
        actors = self._actors

        def stopping(cursor, query, params=None, **options):
            actor = actors.get(cursor.connection.info.backend_pid)
            if actor is not None:
                actor.stop_before(query, params)
            return execute(cursor, query, params, **options)

        DeadlineCursor.execute = stopping

    def __exit__(self, *_: object) -> None:
        DeadlineCursor.execute = self._execute
