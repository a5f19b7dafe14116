"""Ways to break the product, each of which the checker has to find."""

import asyncio
import itertools
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from onbeat.core.runs.decisions import Plan
from onbeat.core.runs.run import Succeeded
from onbeat.engine.attempts import RunningAttempts
from onbeat.engine.lease import Lease
from onbeat.launchers.command.launcher import ProcessLauncher
from onbeat.ports.store import Attempt
from onbeat.stores.sql import lost, nodes
from onbeat.stores.sql.store import SqlStore


def launch_first(store: type[SqlStore]) -> None:
    """Launch before the announcement is committed."""
    plan_due, announce = store.plan_due, store.announce
    late = set()

    async def plan_only(self, plan, *, limit, node=None, slots=0):
        return await plan_due(self, plan, limit=limit, node=node, slots=0)

    async def announce_later(self, node, attempts):
        async def soon():
            await asyncio.sleep(0.3)
            await announce(self, node, attempts)

        late.add(asyncio.create_task(soon()))
        return attempts

    _replace(store, "plan_due", plan_only)
    _replace(store, "announce", announce_later)


def drop_ticks(store: type[SqlStore]) -> None:
    """Move on past some ticks without a row for them."""
    plan_due, turns = store.plan_due, itertools.count(1)

    async def wrapped(self, plan, *, limit, node=None, slots=0):
        def forgetful(*given):
            found = plan(*given)
            return Plan((), found.due) if next(turns) % 5 == 0 else found

        return await plan_due(self, forgetful, limit=limit, node=node, slots=slots)

    _replace(store, "plan_due", wrapped)


def forget_the_lost(_: type[SqlStore]) -> None:
    """Decide nothing of what a dead node had announced or claimed."""
    _decide_the_silent(lambda tx, run_id, fence: None)


def free_the_started(_: type[SqlStore]) -> None:
    """Free what a dead node had announced, as if it were only claimed, instead of calling it lost."""
    _decide_the_silent(lambda tx, run_id, fence: lost.free(tx, (run_id, fence)))


def _decide_the_silent(decide: Callable[..., None]) -> None:
    def end_runs_of(tx, silent, schedule_ids):
        for _, run_id, *_, fence in tx.all(lost.HELD_BY, (list(silent), list(schedule_ids))):
            decide(tx, run_id, fence)
        return 0, 0

    _replace(lost, "end_runs_of", end_runs_of)
    _replace(nodes, "end_runs_of", end_runs_of)


def leave_orphans(_: type[SqlStore]) -> None:
    """Leave running what a dead node had launched."""

    async def recover(self):
        return 0

    _replace(ProcessLauncher, "recover", recover)


def skip_launches(_: type[SqlStore]) -> None:
    """Call some runs a success that were never launched."""
    launch = ProcessLauncher.launch

    async def wrapped(self, attempt):
        return (Succeeded(), "") if attempt.run_id % 5 == 0 else await launch(self, attempt)

    _replace(ProcessLauncher, "launch", wrapped)


def vary_keys(_: type[SqlStore]) -> None:
    """Launch each attempt under a key of its own."""
    key = property(lambda self: sha256(f"{self.run_id}:{self.attempt}".encode()).hexdigest())
    _replace(Attempt, "key", key)


def ignore_the_lease(_: type[SqlStore]) -> None:
    """Go on launching, however late it is, when others may have decided otherwise."""
    launch = RunningAttempts.launch

    def wrapped(self, announced, sent):
        launch(self, announced, float("inf"))

    _replace(RunningAttempts, "launch", wrapped)
    _replace(Lease, "holds", property(lambda self: True))


def _replace(owner: object, name: str, by: object) -> None:
    """Replace what a class or a module has under this name; it must not be gone."""
    assert hasattr(owner, name), f"{owner} has no {name} to replace"
    setattr(owner, name, by)


class Way(NamedTuple):
    """A way to break the product, what the checker is to call it, and whether it takes several nodes."""

    put_in: Callable[[type[SqlStore]], None]
    kind: str
    needs_others: bool = False


WAYS = {
    "launch_first": Way(launch_first, "doubled"),
    "drop_ticks": Way(drop_ticks, "silent"),
    "forget_the_lost": Way(forget_the_lost, "stuck"),
    "free_the_started": Way(free_the_started, "doubled"),
    "leave_orphans": Way(leave_orphans, "orphaned"),
    "skip_launches": Way(skip_launches, "unlaunched"),
    "vary_keys": Way(vary_keys, "wrong key"),
    "ignore_the_lease": Way(ignore_the_lease, "late", needs_others=True),
}
