"""Who kills: keeps nodes running, has one die at a point or kills it at any moment, and starts another.

Meanwhile people are at work, and where nodes share a server, other harm is done. In the end everything
is let go, the nodes settle and are stopped by `down`.
"""

import random
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tests.chaos.databases import Database
from tests.chaos.harm import KINDS, Harm
from tests.chaos.history import History
from tests.chaos.lives import Life, times_told
from tests.chaos.node import AT_START
from tests.chaos.people import ENVIRONMENT, People
from tests.chaos.processes import Strays, commands, end_commands
from tests.chaos.workload import SCHEDULES, Workload

ANY_MOMENT = "any moment"
LONGEST_LIFE = 1.5  # seconds until a node is killed at any moment
REACH_LIMIT = {1: 6.0, 3: 10.0}  # seconds in which a point has to be reached, or is tried again
STOP_LIMIT = 6.0
LONG_AWAY = 2.2  # seconds: so long that ticks are missed under a grace of one second
CALM = 3.0  # seconds: sometimes twice as long, so that others notice that a node is dead
SELDOM = ("rescue", "hand_back", "announce", "claim:after")  # anyone may be the first to get there
OFTEN_AWAY, OFTEN_HARMED = 0.08, 0.4
ASTRAY = {1: 0.2, 3: 6.0}  # seconds that a command may outlive its node, when there are so many
LIVE = "live - 1"
LOOK = 0.01
MORE_THAN_ONCE = ("plan_due", "claim", "announce", "finish", "heartbeat", "launch", "commit")


class Driver:
    """A folder, a database, the nodes on it, and the people who use it."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        *,
        seed: int,
        broken: str = "",
        patience: float = 30.0,
        calm: float = CALM,
        harms: tuple[str, ...] = tuple(KINDS),
        often: float = OFTEN_HARMED,
    ) -> None:
        self.folder, self._database = folder, database
        self._broken, self._patience, self._calm = broken, patience, calm
        self._harms, self._often = harms if database.server is not None else (), often
        self._chance = random.Random(seed)
        self._workload = Workload(folder)
        self._lives: list[Life] = []
        self._victims: list[Life] = []  # those that may die now
        self._starts = 0
        self._strays = Strays(database, ASTRAY[database.nodes])
        self._broken_off: list[str] = []
        url = database.url("people")
        self._people = People(self._workload, url, self._chance, self._was_harmed)
        self._harm = Harm(
            database, self._people, self._chance, living=self._spared, note=self._note
        )
        self.kills: Counter[str] = Counter()
        self.unreached: Counter[str] = Counter()

    @property
    def calls(self) -> Counter[str]:
        """What people asked for."""
        return self._people.calls

    @property
    def harm(self) -> Counter[str]:
        """What else was done to nodes and their server."""
        return self._harm.done

    # -- the whole

    def run(self, kills: int, points: tuple[str, ...] = ()) -> History:
        """Kill a node so many times, at each point in its turn; return what is left.

        A point that is not reached is tried again in the end, twice at most.
        """
        try:
            self._people.define()
            waiting = deque(islice(self._deal(kills, points or self._database.points), kills))
            while waiting:
                point = waiting.popleft()
                if self._harms and not self._harm.is_on and self._chance.random() < self._often:
                    self._harm.begin(self._harms)
                if not self._kill_at(point):
                    self.unreached[point] += 1
                    if self.unreached[point] < 3:
                        waiting.append(point)
                if not waiting and self.kills.total() < kills:
                    waiting.append(ANY_MOMENT)
                self._rest()
            return self.finish()
        finally:
            self.end()

    def endure(self, times: int) -> History:
        """Harm the server so many times, and kill no node that is up; return what is left.

        Every third time a node is replaced, so that it starts while the server fails.
        """
        try:
            self._people.define()
            self._fill(LIVE)
            self._until(lambda: all(life.is_up for life in self._lives), "a node is not up")
            for n in range(times):
                if n % 3 == 2:
                    self._make_room()
                    self._fill(LIVE)
                self._harm.begin(self._harms)
                while self._harm.is_on:
                    self._pump()
                self._people.work()
                self._rest()
            self._people.define()  # what was deleted: no node starts anew that would do it
            return self.finish()
        finally:
            self.end()

    def stop_at(self, point: str, *, code: int = 0) -> History:
        """Start a node that ends by itself at a point, with this exit code; return what is left."""
        try:
            self._workload.hurry()
            self._people.define()
            life = self._fill(f"live {point} 1")
            life.leaves_with, self._victims = code, [life]
            self._wait(self._reach_limit)
            if life.code != code:
                self._broken_off.append(f"it ended with {life.code}: {life.last_words()}")
            self._victims = []
            return self.finish()
        finally:
            self.end()

    def finish(self) -> History:
        """Let go of everything, let it settle, stop it, and read what is left."""
        while self._harm.is_on:
            self._pump()
        self._people.let_end()
        self._fill(LIVE)
        self._until(lambda: all(life.is_up for life in self._lives), "a last node is not up")
        self._until(lambda: not self._strays.are_there, "")
        self._workload.hurry()
        self._until(lambda: self._database.is_level(_now()), "the nodes do not catch up")
        self._people.ask("gate", "on")
        self._people.ask("resume", *SCHEDULES)  # also what a killed call was to resume
        self._people.let_end()
        self._workload.end()
        self._people.define()
        self._until(self._database.is_settled, "")  # what is unfinished is found by the checker
        self._stop_all()
        history = self._database.read(self.folder)
        left = [f"after down: {each}" for each in commands(self._database.store_id)]
        history.orphans = self._strays.found + left
        history.broken_off = self._broken_off + self._harm.wrong + self._people.refused
        history.manual, history.tokens = self._people.manual, self._people.tokens
        return history

    def end(self) -> None:
        """Leave nothing running, whatever happened."""
        self._people.end()
        for life in self._lives:
            life.kill()
        self._harm.stop()
        end_commands(self._database.store_id)

    def _deal(self, kills: int, points: tuple[str, ...]) -> Iterator[str]:
        """Yield each point in turn, in a new order each time, with other moments in between."""
        others = 2 if kills < 2 * len(points) else len(points) // 2
        while True:
            turn = [*points, *[ANY_MOMENT] * others]
            self._chance.shuffle(turn)
            yield from turn

    # -- one death

    def _kill_at(self, point: str) -> bool:
        """See to it that there are nodes and that one dies; return whether it did where it was to."""
        at_any = point == ANY_MOMENT
        before = times_told(self.folder, f"kill {point}")
        self._victims = self._choose(point)
        self._note(f"{' '.join(life.name for life in self._victims)} is to die: {point}")
        limit = self._chance.uniform(0, LONGEST_LIFE) if at_any else self._reach_limit
        self._wait(limit, only_with_server=not at_any)
        self._bury_the_dead()
        victims, self._victims = self._victims, []
        dead = [life for life in victims if life.code is not None]
        if not dead:
            victims[0].kill()
            self._lives.remove(victims[0])
        for life in victims:
            life.tell(LIVE)
        reached = times_told(self.folder, f"kill {point}") > before
        if reached or not dead:  # else it could not even start
            self.kills[point if reached else ANY_MOMENT] += 1
        return reached or at_any

    def _choose(self, point: str) -> list[Life]:
        """Fill up the nodes, and tell those that may die where to; return them."""
        name, word = point.partition(":")[0], f"kill {point} {self._how_often(point)}"
        if point == ANY_MOMENT:
            word = LIVE
        if self._database.nodes == 1 or name in AT_START:
            self._make_room()
            return [self._fill(word)]
        self._fill(LIVE)
        able = [life for life in self._spared() if point == ANY_MOMENT or not life.is_halted]
        able = able or self._lives
        chosen = able if point.startswith(SELDOM) else [self._chance.choice(able)]
        for life in chosen:
            life.tell(word)
        return chosen

    def _how_often(self, point: str) -> int:
        """Return how often a node passes a point before it dies there."""
        name = point.partition(":")[0]
        if name == "statement":
            return self._chance.randint(1, 150)
        if name == "commit" and self._database.nodes > 1:  # there, whoever reads commits as well
            return self._chance.randint(1, 12)
        return self._chance.choice((1, 1, 2, 3)) if name in MORE_THAN_ONCE else 1

    def _fill(self, word: str) -> Life:
        """Start as many nodes as there are to be, and tell the last of them; return the latest."""
        self._bury_the_dead()
        while (missing := self._database.nodes - len(self._lives)) > 0:
            self._starts += 1
            last = word if missing == 1 else LIVE
            given = self._starts, self._workload, self._database
            self._lives.append(Life(*given, broken=self._broken, word=last))
        return self._lives[-1]

    def _make_room(self) -> None:
        """Kill a node if there is none to be started."""
        if len(self._lives) == self._database.nodes:
            life = self._chance.choice(self._lives)
            life.kill()
            self._lives.remove(life)
            self.kills[ANY_MOMENT] += 1

    def _wait(self, seconds: float, *, only_with_server: bool = False) -> None:
        """Wait until a victim is dead, or for so long; meanwhile people do what they do."""
        looked, left = time.monotonic(), seconds
        work_at = looked + self._chance.uniform(0, 1)
        while left > 0 and all(life.code is None for life in self._victims):
            self._pump()
            now = time.monotonic()
            if not (only_with_server and self._harm.server_is_away):
                left -= now - looked
            looked = now
            if now > work_at:
                work_at = float("inf")
                self._people.work()

    def _rest(self) -> None:
        """Be away for a while, now and then; where there are others, let them be for a while."""
        is_long = self._chance.random() < OFTEN_AWAY
        seconds = LONG_AWAY if is_long else 0.0
        if self._database.nodes > 1:
            seconds = self._calm * (2 if is_long else self._chance.random())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._pump()

    @property
    def _reach_limit(self) -> float:
        return REACH_LIMIT[self._database.nodes]

    # -- what goes on all the time

    def _pump(self) -> None:
        self._people.reap()
        self._harm.go_on()
        self._bury_the_dead()
        if not any(life.is_up for life in self._lives):
            self._strays.forget()
        elif self._harm.is_on:
            self._strays.look_away()
        else:
            self._strays.look()
        time.sleep(LOOK)

    def _spared(self) -> list[Life]:
        """Return the nodes to which nothing is to be done yet."""
        busy = (*self._victims, self._harm.waits_for)
        return [life for life in self._lives if life.leaves_with is None and life not in busy]

    def _bury_the_dead(self) -> None:
        """Take note of nodes that have ended, and say so if they should not have, or not this way."""
        for life in [each for each in self._lives if each.code is not None]:
            self._lives.remove(life)
            code = life.code
            self._note(f"{life.name} ended ({code})")
            as_told = code == life.leaves_with or (code == -signal.SIGKILL and life.may_die)
            if not as_told:
                self._broken_off.append(f"a node ended by itself ({code}): {life.last_words()}")

    def _was_harmed(self, since: float) -> bool:
        return self._harm.was_on(since)

    def _note(self, text: str) -> None:
        with (self.folder / "diary").open("a") as diary:
            diary.write(f"{_now()} {text}\n")

    # -- the end

    def _until(self, reached: Callable[[], bool], problem: str) -> None:
        limit = time.monotonic() + self._patience
        while not reached():
            if time.monotonic() > limit or len(self._lives) < self._database.nodes:
                if problem:
                    last = [life.last_words() for life in self._lives]
                    self._broken_off.append("\n".join([problem, *last]))
                return
            self._pump()

    def _stop_all(self) -> None:
        """Stop every node in good order."""
        stopped = subprocess.run(
            self._people.command("down", "--all"), cwd=self.folder, env=ENVIRONMENT, check=False,
            capture_output=True, timeout=60,
        )  # fmt: skip
        codes = [life.wait(STOP_LIMIT) for life in self._lives]
        if stopped.returncode != 0 or any(code != 0 for code in codes):
            words = (stopped.stdout + stopped.stderr).decode(errors="replace")
            last = [life.last_words() for life in self._lives]
            self._broken_off.append("\n".join([f"down ended with {codes}: {words}", *last]))


def _now() -> int:
    return int(time.time() * 1000)
