"""The people who use a database: they edit, pause, resume, delete, start runs and turn the gate.

All by the real command line, and some of their calls are killed, too.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onbeat.cli.exit_codes import UNAVAILABLE
from tests.chaos.workload import GOES, SCHEDULES, Workload

ROOT = Path(__file__).parents[2]
LONGEST_CALL = 0.5  # seconds of a call that is killed
LONG_CALL = 60.0  # a call that takes longer hangs
MOST_CALLS = 2  # at a time
LOOK = 0.01
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    "ONBEAT_ROLES": "plan,run",  # what is killed here is the engine
    "ONBEAT_LEASE": "2s",  # so that heartbeats are frequent, and the silent are soon given up
}
WHAT_THEY_DO = ("run", "run", "pause", "resume", "edit", "edit", "delete", "gate", "")


@dataclass(slots=True)
class Call:
    """A call of the command line that somebody made."""

    words: tuple[str, ...]
    process: subprocess.Popen
    log: Path
    on_done: Callable[[str], object]  # given what it printed
    may_fail: bool
    mortal: bool  # it may be killed, too
    began: float
    kill_at: float


class People:
    """Those who call, and what they were told is done.

    `is_excused` is asked whether a call that began then may have found no database.
    """

    def __init__(
        self,
        workload: Workload,
        url: str,
        chance: random.Random,
        is_excused: Callable[[float], bool],
    ) -> None:
        self._workload, self._url, self._chance = workload, url, chance
        self._is_excused = is_excused
        self._asked = 0
        self._calls: list[Call] = []
        self._paused: list[str] = []
        self.manual: set[tuple[str, str]] = set()
        self.tokens: set[str] = set()
        self.refused: list[str] = []  # what should have been done and was not
        self.calls: Counter[str] = Counter()

    def work(self) -> None:
        """Do one of the things that people do, unless they have enough to do."""
        if len(self._calls) >= MOST_CALLS:
            return
        chance, token = self._chance, f"call-{self._asked + 1}"
        mortal = chance.random() < 0.2
        name = chance.choice([each for each in SCHEDULES if each != GOES])
        match chance.choice(WHAT_THEY_DO):
            case "run":
                self.ask("run", name, "--request-id", token, mortal=mortal,
                         on_done=lambda _: self.manual.add((name, token)))  # fmt: skip
            case "pause" if name not in self._paused:
                self._paused.append(name)
                self.ask("pause", name, "--note", token, mortal=mortal,
                         on_done=lambda told: told.startswith("paused") and self.tokens.add(token)
                         )  # fmt: skip
            case "resume" if self._paused:
                name = self._paused.pop(chance.randrange(len(self._paused)))
                self.ask("resume", name, *chance.choice(((), ("--catchup",))), mortal=mortal)
            case "edit" if not any(call.words[0] == "apply" for call in self._calls):
                self._workload.edit(chance, token)
                if chance.random() < 0.5:  # else the next start of a node will do it
                    self.ask("apply", str(self._workload.file), mortal=mortal,
                             on_done=lambda _: self.tokens.add(token))  # fmt: skip
            case "delete":
                self.ask("delete", GOES, may_fail=True, mortal=mortal)  # it may be deleted already
            case "gate":
                self.ask("gate", "off", on_done=lambda _: self.ask("gate", "on"))

    def ask(
        self,
        *words: str,
        on_done: Callable[[str], object] = len,
        may_fail: bool = False,
        mortal: bool = False,
    ) -> None:
        """Call the command line, without waiting for the answer."""
        self._asked += 1
        log = self._workload.folder / f"call-{self._asked:04}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(*words), cwd=self._workload.folder, env=ENVIRONMENT,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        began = time.monotonic()
        longest = self._chance.uniform(0, LONGEST_CALL) if mortal else LONG_CALL
        self._calls.append(
            Call(words, process, log, on_done, may_fail, mortal, began, began + longest)
        )

    def command(self, verb: str, *rest: str) -> list[str]:
        """Return what is typed."""
        return [sys.executable, "-m", "onbeat", verb, "--database", self._url, *rest]

    def define(self) -> None:
        """Have the file of schedules defined, and everything answered that was asked before."""
        self.ask("apply", str(self._workload.file))
        self.let_end()

    def let_end(self) -> None:
        """Wait for all answers."""
        while self._calls:
            self.reap()
            time.sleep(LOOK)

    def reap(self) -> None:
        """See which calls have been answered."""
        for call in list(self._calls):
            code = call.process.poll()
            if code is not None:
                self._calls.remove(call)
                self._hear(call, code)
            elif time.monotonic() > call.kill_at:
                call.process.kill()

    def end(self) -> None:
        """Have nobody call any more."""
        for call in self._calls:
            call.process.kill()
            call.process.wait()

    def _hear(self, call: Call, code: int) -> None:
        verb, told = call.words[0], call.log.read_text(errors="replace")
        killed = code == -signal.SIGKILL and call.mortal
        away = code == UNAVAILABLE and self._is_excused(call.began)
        self.calls[f"{verb}, killed" if killed else f"{verb}, no answer" if away else verb] += 1
        if code == 0:
            call.on_done(told)
        elif not (call.may_fail or killed or away):
            self.refused.append(f"{' '.join(call.words)} was refused ({code}): {told[-1000:]}")
        elif away and verb == "gate":
            self.ask("gate", "on")  # it may have been turned, or not
