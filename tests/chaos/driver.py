"""Who kills: starts the node, has it die at a point or kills it at any moment, and starts it again.

Meanwhile people are at work: they edit, pause, resume, delete, start runs and turn the gate, all by
the real command line. In the end everything is let go, the node settles and is stopped by `down`.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import apsw

from tests.chaos.checker import UNFINISHED, History, read
from tests.chaos.node import POINTS
from tests.chaos.workload import GOES, SCHEDULES, Workload

ROOT = Path(__file__).parents[2]
ANY_MOMENT = "any moment"
LONGEST_LIFE = 1.5  # seconds of a node that is killed at any moment
REACH_LIMIT = 6.0  # seconds in which a point has to be reached, or it is tried again later
LONG_AWAY = 2.2  # seconds: so long that ticks are missed under a grace of one second
LONGEST_CALL = 0.5  # seconds of a call that is killed
LONG_CALL = 60.0  # a call that takes longer hangs
MOST_CALLS = 2  # of people, at a time
LOOK, MOMENT = 0.01, 0.2
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    "ONBEAT_LEASE": "2s",  # so that heartbeats are frequent
}
MORE_THAN_ONCE = ("plan_due", "claim", "announce", "finish", "heartbeat", "launch", "commit")


@dataclass(slots=True)
class Call:
    """A call of the command line that somebody made."""

    verb: str
    process: subprocess.Popen
    log: Path
    on_done: Callable[[str], object]  # given what it printed
    may_fail: bool
    mortal: bool  # it may be killed, too
    kill_at: float


class Driver:
    """A folder with a database in it, its node, and the people who use it."""

    def __init__(
        self, folder: Path, *, seed: int, broken: str = "", patience: float = 30.0
    ) -> None:
        self.folder, self._broken, self._patience = folder, broken or "-", patience
        self._chance = random.Random(seed)
        self._workload = Workload(folder)
        self.database, self._told = folder / "onbeat.db", folder / "told"
        self._told.touch()
        self._node: subprocess.Popen | None = None
        self._log = folder / "node.log"
        self._starts, self._asked = 0, 0
        self._calls: list[Call] = []
        self._paused: list[str] = []
        self._orphans: list[str] = []
        self._broken_off: list[str] = []
        self._manual: set[tuple[str, str]] = set()
        self._tokens: set[str] = set()
        self.kills: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.unreached: Counter[str] = Counter()

    # -- the whole

    def run(self, kills: int, points: tuple[str, ...] = POINTS) -> History:
        """Kill the node so many times, each point in its turn; return what is left.

        A point that is not reached is tried again in the end, twice at most.
        """
        try:
            self._define()
            waiting = deque(islice(self._deal(kills, points), kills))
            while waiting:
                point = waiting.popleft()
                if not self._kill_at(point):
                    self.unreached[point] += 1
                    if self.unreached[point] < 3:
                        waiting.append(point)
                if self._chance.random() < 0.08:
                    time.sleep(LONG_AWAY)
            return self.finish()
        finally:
            self.end()

    def stop_at(self, point: str, *, code: int = 0) -> History:
        """Start a node that ends by itself at a point, with this exit code; return what is left."""
        try:
            self._workload.hurry()
            self._define()
            self._start(point)
            found = self._wait(REACH_LIMIT)
            if found is None:
                self._kill()
            if found != code:
                self._broken_off.append(f"it ended with {found}: {self._last_words()}")
            return self.finish()
        finally:
            self.end()

    def finish(self) -> History:
        """Let go of everything, let it settle, stop it, and read what is left."""
        self._let_people_end()
        self._workload.hurry()
        self._start("-")
        self._until(lambda: b" is up on " in self._log.read_bytes(), "the last node is not up")
        self._until(self._is_level, "the node does not catch up")
        self._ask("resume", *SCHEDULES)  # also what a killed call was to resume
        self._let_people_end()
        self._workload.end()
        self._define()
        self._until(self._is_settled, "")  # what is left unfinished is found by the checker
        stopped = self._command("down")
        code = subprocess.run(
            stopped, cwd=self.folder, env=ENVIRONMENT, check=False, capture_output=True, timeout=60
        )
        if code.returncode != 0 or self._wait(REACH_LIMIT) != 0:
            told = (code.stdout + code.stderr).decode(errors="replace")
            self._broken_off.append(f"down: {told} {self._last_words()}")
        history = read(self.database, self._workload.witness)
        self._orphans += [f"after down: {told}" for told in self._strays(node=None)]
        history.orphans, history.broken_off = self._orphans, self._broken_off
        history.manual, history.tokens = self._manual, self._tokens
        return history

    def end(self) -> None:
        """Leave nothing running, whatever happened."""
        for process in [call.process for call in self._calls] + [self._node]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for pid in [int(told.split()[0]) for told in self._strays(node=None)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _deal(self, kills: int, points: tuple[str, ...]) -> Iterator[str]:
        """Yield each point in turn, in a new order each time, with other moments in between."""
        others = 2 if kills < 2 * len(points) else len(points) // 2
        while True:
            turn = [*points, *[ANY_MOMENT] * others]
            self._chance.shuffle(turn)
            yield from turn

    # -- one life of the node

    def _kill_at(self, point: str) -> bool:
        """Start the node and see it die; return whether it did so where it was to."""
        at_any = point == ANY_MOMENT
        life = self._chance.uniform(0, LONGEST_LIFE) if at_any else REACH_LIMIT
        self._start("-" if at_any else point)
        before = self._told.stat().st_size
        code = self._wait(life)
        if code is None:
            self._kill()
        elif code != -signal.SIGKILL:
            self._broken_off.append(f"the node ended by itself ({code}): {self._last_words()}")
            return True
        reached = at_any or self._told.stat().st_size > before
        self.kills[point if reached else ANY_MOMENT] += 1
        return reached

    def _kill(self) -> None:
        self._node.kill()
        self._node.wait()

    def _start(self, point: str) -> None:
        self._starts += 1
        self._log = self.folder / f"node-{self._starts:04}.log"
        nth = 1
        if point == "statement":
            nth = self._chance.randint(1, 150)
        elif point.partition(":")[0] in MORE_THAN_ONCE:
            nth = self._chance.choice((1, 1, 2, 3))
        arguments = [point, str(nth), str(self._told), self._broken]
        with self._log.open("wb") as log:
            self._node = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.node", *arguments, *self._command("up")[3:],
                 "--file", str(self._workload.file), "--stop-grace", "2s"],
                cwd=self.folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _wait(self, seconds: float) -> int | None:
        """Wait until the node is dead, or for so long; meanwhile people do what they do."""
        limit, looked = time.monotonic() + seconds, False
        work_at = time.monotonic() + self._chance.uniform(0, 1)
        while (code := self._node.poll()) is None and time.monotonic() < limit:
            self._reap()
            if not looked and b" is up on " in self._log.read_bytes():
                looked = True
                self._orphans += self._found_orphans()
            if time.monotonic() > work_at and len(self._calls) < MOST_CALLS:
                work_at = limit
                self._work()
            time.sleep(LOOK)
        return code

    def _found_orphans(self) -> list[str]:
        """Return what an earlier node launched and this one did not end when it started."""
        strays = set(self._strays(node=self._node.pid))
        if strays:
            time.sleep(MOMENT)  # one that is just ending may have lost its parent
            strays &= set(self._strays(node=self._node.pid))
        alive = self._node.poll() is None  # else they are its own
        return [f"after start {self._starts}: {told}" for told in sorted(strays) if alive]

    def _last_words(self) -> str:
        return self._log.read_bytes()[-2000:].decode(errors="replace")

    def _strays(self, *, node: int | None) -> list[str]:
        """Return the processes of this store's runs that do not descend from the node."""
        with closing(self._connect()) as connection:
            try:
                sql = "SELECT value FROM meta WHERE name = 'store_id'"
                mark = f"ONBEAT_STORE={connection.execute(sql).get}".encode()
            except apsw.SQLError:  # it was killed before there was a table
                return []
        found = []
        for pid in [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]:
            environ = _of_process(pid, "environ").split(b"\0")
            ours = any(each.startswith(mark) for each in environ)  # with the file's own number
            if ours and node not in set(_line(pid)):
                run = next(each for each in environ if each.startswith(b"ONBEAT_RUN_ID="))
                found.append(f"{pid} {run.decode()}")
        return found

    # -- the people

    def _work(self) -> None:
        """Do one of the things that people do."""
        chance, token = self._chance, f"call-{self._asked + 1}"
        mortal = chance.random() < 0.2
        name = chance.choice([each for each in SCHEDULES if each != GOES])
        match chance.choice(
            ("run", "run", "pause", "resume", "edit", "edit", "delete", "gate", "")
        ):
            case "run":
                self._ask("run", name, "--request-id", token, mortal=mortal,
                          on_done=lambda _: self._manual.add((name, token)))  # fmt: skip
            case "pause" if name not in self._paused:
                self._paused.append(name)
                self._ask("pause", name, "--note", token, mortal=mortal,
                          on_done=lambda told: told.startswith("paused") and self._tokens.add(token)
                          )  # fmt: skip
            case "resume" if self._paused:
                name = self._paused.pop(chance.randrange(len(self._paused)))
                self._ask("resume", name, *chance.choice(((), ("--catchup",))), mortal=mortal)
            case "edit" if not any(call.verb == "apply" for call in self._calls):
                self._workload.edit(chance, token)
                if chance.random() < 0.5:  # else the next start of the node will do it
                    self._ask("apply", str(self._workload.file), mortal=mortal,
                              on_done=lambda _: self._tokens.add(token))  # fmt: skip
            case "delete":
                self._ask("delete", GOES, may_fail=True, mortal=mortal)  # it may be deleted already
            case "gate":
                self._ask("gate", "off", on_done=lambda _: self._ask("gate", "on"))

    def _ask(
        self,
        verb: str,
        *rest: str,
        on_done: Callable[[str], object] = len,
        may_fail: bool = False,
        mortal: bool = False,
    ) -> None:
        """Call the command line, without waiting for the answer."""
        self._asked += 1
        log = self.folder / f"call-{self._asked:04}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._command(verb, *rest), cwd=self.folder, env=ENVIRONMENT,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        kill_at = time.monotonic() + (
            self._chance.uniform(0, LONGEST_CALL) if mortal else LONG_CALL
        )
        self._calls.append(Call(verb, process, log, on_done, may_fail, mortal, kill_at))

    def _reap(self) -> None:
        """See which calls have been answered."""
        for call in list(self._calls):
            code = call.process.poll()
            if code is None:
                if time.monotonic() > call.kill_at:
                    call.process.kill()
                continue
            self._calls.remove(call)
            killed = code == -signal.SIGKILL
            self.calls[f"{call.verb}, killed" if killed else call.verb] += 1
            told = call.log.read_text(errors="replace")
            if code == 0:
                call.on_done(told)
            elif not (call.may_fail or (killed and call.mortal)):
                self._broken_off.append(f"{call.verb} was refused: {told[-1000:]}")

    def _define(self) -> None:
        self._ask("apply", str(self._workload.file))
        self._let_people_end()

    def _let_people_end(self) -> None:
        while self._calls:
            self._reap()
            time.sleep(LOOK)

    def _command(self, verb: str, *rest: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "onbeat",
            verb,
            "--database",
            f"sqlite:///{self.database}",
            *rest,
        ]

    # -- the end

    def _is_level(self) -> bool:
        """Return whether nothing is undecided that was due half a second ago."""
        with closing(self._connect()) as connection:
            sql = "SELECT count(*) FROM due WHERE due_at < ?"
            late = connection.execute(sql, (int(time.time() * 1000) - 500,)).get
        return not late

    def _is_settled(self) -> bool:
        with closing(self._connect()) as connection:
            sql = f"SELECT count(*) FROM schedule_runs WHERE status IN {UNFINISHED}"
            return connection.execute(sql).get == 0

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.database))
        connection.set_busy_timeout(5000)
        return connection

    def _until(self, reached: Callable[[], bool], problem: str) -> None:
        limit = time.monotonic() + self._patience
        while not reached():
            if time.monotonic() > limit or self._node.poll() is not None:
                if problem:
                    self._broken_off.append(f"{problem}: {self._last_words()}")
                return
            time.sleep(0.05)


def _of_process(pid: int, name: str) -> bytes:
    with suppress(OSError):  # it has ended, or is another user's
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _line(pid: int) -> Iterator[int]:
    """Yield a process and its parents."""
    while pid and (stat := _of_process(pid, "stat")):
        yield pid
        pid = int(stat.rpartition(b")")[2].split()[1])
