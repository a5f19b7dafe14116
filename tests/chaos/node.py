"""`onbeat up`, but it ends by SIGKILL where it is told to: the n-th time it passes a named point.

    python -m tests.chaos.node POINT PASS TOLD BROKEN up --database sqlite:///onbeat.db …

The points are laid around the product from outside, it has no hooks. `before` is when a call was
made, `after` when it has returned, that is: what it wrote is committed. `commit` is inside the
thread that writes, around COMMIT; `statement` is before any statement at all. Where it died is
appended to the file TOLD. BROKEN names a way to break the product that the checker has to find.
"""

import asyncio
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw

from onbeat.cli import main
from onbeat.core.plan import Plan
from onbeat.core.runs import Succeeded
from onbeat.errors import StoreUnusable
from onbeat.launchers.process import ProcessLauncher
from onbeat.ports import Attempt, Planned
from onbeat.stores.sqlite import SqliteStore

CALLS = (
    "register", "upsert", "plan_due", "claim", "announce", "hand_back", "finish", "heartbeat",
)  # fmt: skip
PAIRS = (*CALLS, "recover", "launch", "commit")
POINTS = (*(f"{name}:{side}" for name in PAIRS for side in ("before", "after")), "statement")
STALL = 0.8  # of the lease: longer than what may pass between a claim and its launch
LINGER = 0.2  # seconds that a stopped node has to act on it


class Fate:
    """Where this process is to die."""

    def __init__(self, point: str, nth: int, told: Path) -> None:
        self.point, self._left, self._told = point, nth, told
        self._lock = threading.Lock()

    def passes(self, point: str) -> None:
        if point != self.point:
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
            with self._told.open("ab", buffering=0) as file:
                file.write(f"{point}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


def lay(fate: Fate) -> None:
    """Put every point where it belongs."""
    for name in CALLS:
        _around(SqliteStore, name, fate)
    _around(ProcessLauncher, "recover", fate)
    _before_launch(fate)
    apsw.Connection = _connection(fate)  # type: ignore[misc]
    subprocess.Popen = _popen(fate)  # type: ignore[misc]
    if fate.point.startswith("hand_back"):
        _stall_once()
    if fate.point == "stop":
        _stop_while_planning()
    if fate.point == "refuse":
        _refuse_outcomes()


def _around(owner: type, name: str, fate: Fate) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    async def wrapped(*given, **named):
        fate.passes(f"{name}:before")
        found = await call(*given, **named)
        if found != [] and not (isinstance(found, Planned) and not found.ticks):
            fate.passes(f"{name}:after")  # something came of it
        return found

    setattr(owner, name, wrapped)


def _before_launch(fate: Fate) -> None:
    launch = ProcessLauncher.launch

    async def wrapped(self, attempt):
        fate.passes("launch:before")
        return await launch(self, attempt)

    ProcessLauncher.launch = wrapped


def _popen(fate: Fate) -> type:
    class Popen(subprocess.Popen):
        def __init__(self, *given, **named) -> None:
            super().__init__(*given, **named)
            fate.passes("launch:after")

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


def _stall_once() -> None:
    """Let the first announced runs come so late that they are handed back."""
    plan_due, first = SqliteStore.plan_due, itertools.chain([True], itertools.repeat(False))

    async def wrapped(self, plan, *, limit, node=None, slots=0):
        found = await plan_due(self, plan, limit=limit, node=node, slots=slots)
        if found.attempts and next(first):
            await asyncio.sleep(node.lease / 1000 * STALL)
        return found

    SqliteStore.plan_due = wrapped


def _stop_while_planning() -> None:
    """Be asked to stop, as by `onbeat down`, just when runs were announced."""
    plan_due = SqliteStore.plan_due

    async def wrapped(self, plan, *, limit, node=None, slots=0):
        found = await plan_due(self, plan, limit=limit, node=node, slots=slots)
        if found.attempts:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(LINGER)
        return found

    SqliteStore.plan_due = wrapped


def _refuse_outcomes() -> None:
    """Have a database that cannot be written any more, just when runs have ended."""

    async def finish(self, finished):
        raise StoreUnusable("the database is damaged: say")

    SqliteStore.finish = finish


# -- ways to break the product, each of which the checker has to find


def launch_first() -> None:
    """Launch before the announcement is committed."""
    plan_due, announce = SqliteStore.plan_due, SqliteStore.announce
    late = set()

    async def plan_only(self, plan, *, limit, node=None, slots=0):
        return await plan_due(self, plan, limit=limit, node=node, slots=0)

    async def announce_later(self, node, attempts):
        async def soon():
            await asyncio.sleep(0.3)
            await announce(self, node, attempts)

        late.add(asyncio.create_task(soon()))
        return attempts

    SqliteStore.plan_due, SqliteStore.announce = plan_only, announce_later


def drop_ticks() -> None:
    """Move on past some ticks without a row for them."""
    plan_due, turns = SqliteStore.plan_due, itertools.count(1)

    async def wrapped(self, plan, *, limit, node=None, slots=0):
        def forgetful(*given):
            found = plan(*given)
            return Plan((), found.due) if next(turns) % 5 == 0 else found

        return await plan_due(self, forgetful, limit=limit, node=node, slots=slots)

    SqliteStore.plan_due = wrapped


def forget_the_lost() -> None:
    """Start without deciding what a dead node had announced."""
    register = SqliteStore.register
    forget = "UPDATE schedule_runs SET leased_by = NULL WHERE status = 'STARTED'"

    async def wrapped(self, node):
        await self._worker.write(lambda tx: tx.run(forget))
        return await register(self, node)

    SqliteStore.register = wrapped


def leave_orphans() -> None:
    """Start without ending what a dead node had launched."""

    async def recover(self):
        return 0

    ProcessLauncher.recover = recover


def skip_launches() -> None:
    """Call some runs a success that were never launched."""
    launch = ProcessLauncher.launch

    async def wrapped(self, attempt):
        return (Succeeded(), "") if attempt.run_id % 5 == 0 else await launch(self, attempt)

    ProcessLauncher.launch = wrapped


def vary_keys() -> None:
    """Launch each attempt under a key of its own."""
    Attempt.key = property(
        lambda self: sha256(f"{self.run_id}:{self.attempt}".encode()).hexdigest()
    )


WAYS: dict[str, tuple[Callable[[], None], str]] = {  # and what the checker is to call it
    "launch_first": (launch_first, "doubled"),
    "drop_ticks": (drop_ticks, "silent"),
    "forget_the_lost": (forget_the_lost, "stuck"),
    "leave_orphans": (leave_orphans, "orphaned"),
    "skip_launches": (skip_launches, "unlaunched"),
    "vary_keys": (vary_keys, "wrong key"),
}


if __name__ == "__main__":
    at, nth, told, broken, *arguments = sys.argv[1:]
    if broken in WAYS:
        WAYS[broken][0]()
    lay(Fate(at, int(nth), Path(told)))
    main(arguments)
