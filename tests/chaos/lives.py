"""One life of a node: a process of `tests.chaos.node`, its log, and what is done to it from outside."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.chaos.databases import Database
from tests.chaos.people import ENVIRONMENT
from tests.chaos.processes import is_halted
from tests.chaos.workload import Workload

STOP_GRACE = "2s"
UP, ANEW = b" is up on ", b"registers again as another node"


class Life:
    """A node from its start to its end. `word` is what it is told first."""

    def __init__(
        self, number: int, workload: Workload, database: Database, *, broken: str, word: str
    ) -> None:
        self.name = f"node-{number:04}"
        folder = workload.folder
        self._log = folder / f"{self.name}.log"
        self.began = time.monotonic()
        self.leaves_with: int | None = (
            None  # the exit code it has to have, if it is to end by itself
        )
        self.may_die = False  # it was told to, at some point
        self._was_up = False
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.node", str(folder), broken or "-",
                 "up", "--database", database.url(self.name), "--file", str(workload.file),
                 "--stop-grace", STOP_GRACE, "--output", str(folder / "output")],
                cwd=folder, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        self.tell(word)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        """What `onbeat nodes` calls it."""
        return f"{socket.gethostname()}:{self.pid}"

    @property
    def is_up(self) -> bool:
        """Whether it ever said that it was up."""
        self._was_up = self._was_up or UP in self._log.read_bytes()
        return self._was_up

    @property
    def is_halted(self) -> bool:
        return is_halted(self.pid)

    @property
    def joined_anew(self) -> int:
        """How often others had taken it for dead."""
        return self._log.read_bytes().count(ANEW)

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it lives."""
        code = self._process.poll()
        if code is not None:
            self._process.stdin.close()
        return code

    def tell(self, word: str) -> None:
        """Say where it is to die, or to be halted."""
        self.may_die = self.may_die or word.startswith("kill")
        with suppress(BrokenPipeError):  # it has just died
            if self.code is None:
                os.write(self._process.stdin.fileno(), f"{word}\n".encode())

    def halt(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self.wait(None)

    def wait(self, seconds: float | None) -> int | None:
        """Wait for its end; return its exit code, or None if it still lives."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.code

    def last_words(self) -> str:
        return f"{self.name}: {self._log.read_bytes()[-2000:].decode(errors='replace')}"


def times_told(folder: Path, line: str) -> int:
    """Return how often nodes said that they died, or were halted, as they were told to."""
    file = folder / "told"
    return file.read_text().splitlines().count(line) if file.exists() else 0
