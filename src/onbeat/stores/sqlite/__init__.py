"""The store on one SQLite file: `Store`'s contract, each call one transaction on one writer.

A file has one node at a time, which holds a lock beside it; any number of other processes may open
the file as clients, to define, pause, start and read.
"""

import os
import time
from collections.abc import Mapping, Sequence
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TypeVar

import msgspec

from onbeat.core.schedules import Schedule
from onbeat.errors import StoreHeld, StoreUnusable
from onbeat.events import AnyEvent, Event
from onbeat.ports import (
    Attempt,
    Clock,
    Finished,
    Listener,
    Node,
    Overview,
    PlanFunction,
    Planned,
    Registered,
    RunRow,
    ScheduleRow,
    Upserted,
)
from onbeat.stores.sqlite import defining, planning, reading, running
from onbeat.stores.sqlite.database import Inline, Threaded, Transaction, Worker, connect, migrate

T = TypeVar("T")


class SqliteStore:
    """A store on one file, or in memory. Open it with `open`."""

    def __init__(self, path: Path | None, worker: Worker, store_id: str) -> None:
        self.path = path
        self.store_id = store_id  # made with the file, and told to the processes it starts
        self._worker = worker
        self._lock: int | None = None
        self._file = _identity(path)
        self._seen: int | None = None

    @classmethod
    async def open(
        cls,
        path: Path | None,
        *,
        clock: Clock,
        inline: bool = False,
        listener: Listener | None = None,
    ) -> "SqliteStore":
        """Open a file, made if it is not there, or memory for None; bring its tables up to date.

        `listener` is told the events of this object's own transactions, once they are durable.
        """
        writing = connect(path)
        store_id = migrate(writing, path)
        told = listener or _nobody
        if inline:
            return cls(path, Inline(writing, clock, told), store_id)
        reading_too = connect(path) if path is not None else None
        return cls(path, Threaded(writing, reading_too, clock, told), store_id)

    async def close(self) -> None:
        self._worker.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- definitions

    async def upsert(
        self, schedules: Sequence[Schedule], *, source: str = "", user_id: str = ""
    ) -> list[Upserted]:
        return await self._worker.write(
            lambda tx: defining.upsert(tx, schedules, source=source, user_id=user_id)
        )

    async def pause(self, schedule_id: str, *, note: str = "") -> bool:
        return await self._worker.write(lambda tx: defining.pause(tx, schedule_id, note=note))

    async def resume(self, schedule_id: str, *, catchup: bool = False) -> bool:
        return await self._worker.write(
            lambda tx: defining.resume(tx, schedule_id, catchup=catchup)
        )

    async def delete(self, schedule_id: str) -> bool:
        return await self._worker.write(lambda tx: defining.delete(tx, schedule_id))

    async def set_gate(self, *, is_open: bool) -> bool:
        return await self._worker.write(lambda tx: defining.set_gate(tx, is_open=is_open))

    async def enqueue(
        self, schedule_id: str, *, request_id: str, inputs: Mapping[str, object] | None = None
    ) -> RunRow:
        def call(tx: Transaction) -> RunRow:
            run_id = defining.enqueue(tx, schedule_id, request_id=request_id, inputs=inputs)
            row = reading.run(tx, run_id)
            assert row is not None, "what was just enqueued is there"
            return row

        return await self._worker.write(call)

    # -- the engine

    async def hold(self, node: Node) -> None:
        self._take_lock(node)

    async def register(self, node: Node) -> Registered:
        self._take_lock(node)
        return await self._worker.write(lambda tx: running.register(tx, node))

    async def heartbeat(self, node: Node) -> None:
        if _identity(self.path) != self._file:
            problem = f"{self.path} was removed or replaced: what is written is lost"
            raise StoreUnusable(f"{problem} (start again on the file that is meant)")
        await self._worker.write(lambda tx: running.heartbeat(tx, node))

    async def unregister(self, node: Node) -> None:
        await self._worker.write(lambda tx: running.unregister(tx, node))

    async def plan_due(
        self, plan: PlanFunction, *, limit: int, node: Node | None = None, slots: int = 0
    ) -> Planned:
        return await self._worker.write(
            lambda tx: planning.plan_due(tx, plan, limit=limit, node=node, slots=slots)
        )

    async def claim(self, node: Node, *, limit: int) -> list[Attempt]:
        return await self._worker.write(lambda tx: running.claim(tx, node, limit=limit))

    async def announce(self, node: Node, attempts: Sequence[Attempt]) -> list[Attempt]:
        return await self._worker.write(lambda tx: running.announce(tx, node, attempts))

    async def hand_back(self, attempts: Sequence[Attempt]) -> None:
        await self._worker.write(lambda tx: running.hand_back(tx, attempts))

    async def finish(self, finished: Sequence[Finished]) -> list[int]:
        return await self._worker.write(lambda tx: running.finish(tx, finished))

    async def next_due(self, *, after: int) -> int | None:
        return await self._worker.read(lambda tx: reading.next_due(tx, after=after))

    async def changed_elsewhere(self) -> bool:
        before, self._seen = self._seen, await self._worker.peek(reading.data_version)
        return before is not None and before != self._seen

    # -- reading

    async def schedules(self, *, source: str | None = None) -> list[ScheduleRow]:
        return await self._worker.read(lambda tx: reading.schedules(tx, source=source))

    async def schedule(self, schedule_id: str) -> ScheduleRow | None:
        return await self._worker.read(lambda tx: reading.schedule(tx, schedule_id))

    async def runs(
        self,
        *,
        schedule_id: str | None = None,
        status: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        return await self._worker.read(
            lambda tx: reading.runs(
                tx, schedule_id=schedule_id, status=status, before=before, limit=limit
            )
        )

    async def run(self, run_id: int) -> RunRow | None:
        return await self._worker.read(lambda tx: reading.run(tx, run_id))

    async def events(self, *, after: int = 0, limit: int = 1000) -> list[tuple[int, int, AnyEvent]]:
        return await self._worker.read(lambda tx: reading.events(tx, after=after, limit=limit))

    async def overview(self) -> Overview:
        return await self._worker.read(reading.overview)

    async def prune(self, *, before: int, limit: int = 10_000) -> int:
        return await self._worker.write(lambda tx: reading.prune(tx, before=before, limit=limit))

    def _take_lock(self, node: Node) -> None:
        """Take the lock that only one node can have, and say in it who that is."""
        if self.path is None or self._lock is not None:
            return
        try:
            lock = os.open(lock_path(self.path), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as broken:
            problem = f"{lock_path(self.path)} cannot be opened: {broken.strerror}"
            raise StoreUnusable(problem) from None
        if not _locked(lock):
            os.close(lock)
            holder = who_holds(self.path)
            told = f"{holder.name}, process {holder.pid}" if holder is not None else "another node"
            raise StoreHeld(f"{self.path} is held by {told} (stop it: onbeat down)") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, msgspec.json.encode(Holder(os.getpid(), node.name, node.node_id)), 0)
        self._lock = lock


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Return which file a path names now, if one."""
    try:
        found = path.stat() if path is not None else None
    except FileNotFoundError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def _locked(lock: int) -> bool:
    """Take a lock. Whoever only looks has it for a moment, so it is tried a few times."""
    for _ in range(10):
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except OSError:
            time.sleep(0.01)
        else:
            return True
    return False


class Holder(msgspec.Struct, frozen=True):
    """The node that a file is held by."""

    pid: int
    name: str
    node_id: str


def lock_path(path: Path) -> Path:
    """Return the file whose lock a node holds."""
    return path.with_name(f"{path.name}.lock")


def who_holds(path: Path) -> Holder | None:
    """Return who holds the lock of a file right now, if anyone does."""
    try:
        lock = os.open(lock_path(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except OSError:
        try:
            return msgspec.json.decode(os.pread(lock, 4096, 0), type=Holder)
        except msgspec.MsgspecError:
            return None
    else:
        return None
    finally:
        os.close(lock)


def _nobody(events: Sequence[Event]) -> None:
    """Listen to nothing."""
