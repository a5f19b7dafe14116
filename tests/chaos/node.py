"""`onbeat up`, but it dies, or stops for a while, where it is told to: the n-th time it passes a point.

    python -m tests.chaos.node FOLDER BROKEN up --database sqlite:///onbeat.db …

What it is to do comes by its standard input, a line each: `kill plan_due:after 2`, `halt …` or
`live - 1`. It begins when it has read the first, and dies when the driver does. The points are laid
around the product from outside, it has no hooks. `before` is when a call was made, `after` when it
has returned, that is: what it wrote is committed. `commit` is inside the thread that writes, around
COMMIT; `statement` is before any statement at all. Where it died is appended to the file `told` of
FOLDER. BROKEN names a way to break the product that the checker has to find.
"""

import asyncio
import functools
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import apsw

from onbeat.cli.command import main
from onbeat.errors import StoreUnusable
from onbeat.launchers.command.launcher import ProcessLauncher
from onbeat.ports.store import PlanResult
from onbeat.stores.sql.store import SqlStore
from tests.chaos.broken import WAYS

CALLS = (
    "register", "upsert", "plan_due", "claim", "announce", "hand_back", "finish", "heartbeat",
)  # fmt: skip
AT_START = ("register", "upsert", "recover")  # what a node does when it starts, and hardly later
STALL = 0.8  # of the lease: longer than what may pass between a claim and its launch
LINGER = 0.2  # seconds that a stopped node has to act on it
HALTED = 0.3  # seconds between a launch and its process, in which a node must have been halted
SIGNALS = {"kill": signal.SIGKILL, "halt": signal.SIGSTOP}


def points(*pairs: str) -> tuple[str, ...]:
    """Return the points around these."""
    return (*(f"{name}:{side}" for name in pairs for side in ("before", "after")), "statement")


POINTS = points(*CALLS, "recover", "launch", "commit")
SHARED_POINTS = points(*CALLS, "rescue", "recover", "launch", "commit")  # of a store with others


class Fate:
    """Where this process is to die, or to be halted, by the last word of whoever started it."""

    def __init__(self, folder: Path) -> None:
        self.deed, self.point, self._left = "live", "-", 1
        self._folder, self._lock = folder, threading.Lock()
        self._words = io.FileIO(0, closefd=False)
        self._launching = 0.0, 0, 0  # since when, and which attempt at which run

    def listen(self) -> None:
        """Hear the first word, and have a thread hear the others."""
        self._hear()
        threading.Thread(target=self._hear_all, daemon=True).start()

    def passes(self, point: str) -> None:
        if point != self.point:
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
            self._write("told", f"{self.deed} {point}")
            os.kill(os.getpid(), SIGNALS[self.deed])

    def launches(self, run_id: int, attempt: int) -> None:
        """Take note of an attempt that is about to be launched: it was judged to be in time."""
        self._launching = time.monotonic(), run_id, attempt
        self.passes("launch:before")

    def launched(self) -> None:
        """Say so if the process was halted in between: nothing could keep it from being late."""
        since, run_id, attempt = self._launching
        if time.monotonic() - since > HALTED:
            self._write("halted", f"{run_id} {attempt}")
        self.passes("launch:after")

    def _hear(self) -> bool:
        word = self._words.readline().decode().split()
        if word:
            with self._lock:
                self.deed, self.point, self._left = word[0], word[1], int(word[2])
        return bool(word)

    def _hear_all(self) -> None:
        while self._hear():
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, name: str, line: str) -> None:
        with (self._folder / name).open("ab", buffering=0) as file:
            file.write(f"{line}\n".encode())


def lay(fate: Fate, store: type[SqlStore]) -> None:
    """Put every point where it belongs."""
    for name in (*CALLS, "rescue"):
        _around(store, name, fate)
    _around(ProcessLauncher, "recover", fate)
    _before_launch(fate)
    subprocess.Popen = _popen(fate)  # type: ignore[misc]
    if store.is_shared:
        _in_postgres(fate)
    else:
        apsw.Connection = _connection(fate)  # type: ignore[misc]
    _after_planning(fate, store)
    if fate.point == "refuse":
        _refuse_outcomes(store)


def _around(owner: type, name: str, fate: Fate) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    async def wrapped(*given, **named):
        fate.passes(f"{name}:before")
        found = await call(*given, **named)
        nothing = found == [] or (isinstance(found, PlanResult) and not found.ticks)
        if not nothing and (found is not None or name != "rescue"):
            fate.passes(f"{name}:after")  # something came of it
        return found

    setattr(owner, name, wrapped)


def _before_launch(fate: Fate) -> None:
    launch = ProcessLauncher.launch

    async def wrapped(self, attempt):
        fate.launches(attempt.run_id, attempt.attempt)
        return await launch(self, attempt)

    ProcessLauncher.launch = wrapped


def _popen(fate: Fate) -> type:
    class Popen(subprocess.Popen):
        def __init__(self, *given, **named) -> None:
            super().__init__(*given, **named)
            fate.launched()

    return Popen


def _connection(fate: Fate) -> type:
    class Connection(apsw.Connection):
        def execute(self, statements, bindings=(), **named):
            fate.passes("statement")
            if statements != "COMMIT":
                return super().execute(statements, bindings, **named)
            fate.passes("commit:before")
            found = super().execute(statements, bindings, **named)
            fate.passes("commit:after")
            return found

    return Connection


def _in_postgres(fate: Fate) -> None:
    from onbeat.stores.postgres.database import DeadlineCursor  # noqa: PLC0415 - an extra

    execute = DeadlineCursor.execute

    def wrapped(self, query, params=None, **options):
        fate.passes("statement")
        if query != "COMMIT":
            return execute(self, query, params, **options)
        fate.passes("commit:before")
        found = execute(self, query, params, **options)
        fate.passes("commit:after")
        return found

    DeadlineCursor.execute = wrapped


def _after_planning(fate: Fate, store: type[SqlStore]) -> None:
    """Let announced runs come so late that they are handed back; or be asked to stop just then."""
    plan_due, stalled = store.plan_due, set()

    async def wrapped(self, plan, *, limit, node=None, slots=0):
        found = await plan_due(self, plan, limit=limit, node=node, slots=slots)
        if found.attempts and fate.point.startswith("hand_back") and not stalled:
            stalled.add(node)
            await asyncio.sleep(node.lease / 1000 * STALL)
        if found.attempts and fate.point == "stop":
            os.kill(os.getpid(), signal.SIGTERM)  # as `onbeat down` does on SQLite
            await asyncio.sleep(LINGER)
        return found

    store.plan_due = wrapped


def _refuse_outcomes(store: type[SqlStore]) -> None:
    """Have a database that cannot be written any more, just when runs have ended."""

    async def finish(self, finished):
        raise StoreUnusable("the database is damaged: say")

    store.finish = finish


def _store_of(arguments: list[str]) -> type[SqlStore]:
    url = arguments[arguments.index("--database") + 1]
    if url.startswith("sqlite:"):
        from onbeat.stores.sqlite.store import SqliteStore  # noqa: PLC0415 - one of the two

        return SqliteStore
    from onbeat.stores.postgres.store import PostgresStore  # noqa: PLC0415 - an extra

    return PostgresStore


if __name__ == "__main__":
    folder, broken, *arguments = sys.argv[1:]
    chosen, own_fate = _store_of(arguments), Fate(Path(folder))
    own_fate.listen()
    if broken in WAYS:
        WAYS[broken].put_in(chosen)
    lay(own_fate, chosen)
    main(arguments)
