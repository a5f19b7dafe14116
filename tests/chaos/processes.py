"""What runs on this machine for a store, as /proc tells it, and what of it no node holds any more."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.chaos.databases import Database

LOOK_EVERY = 0.2  # seconds


class Command(NamedTuple):
    """A process that was started for an attempt, or by one that was."""

    process: str  # its number and when it was born, so that no other is taken for it
    run_id: int
    attempt: int
    node: str  # the same of the process that launched it

    @property
    def pid(self) -> int:
        return int(self.process.partition("-")[0])

    @property
    def has_node(self) -> bool:
        return identity(int(self.node.partition("-")[0])) == self.node

    def __str__(self) -> str:
        return f"{self.process}: attempt {self.attempt} at run {self.run_id}, by {self.node}"


def identity(pid: int) -> str:
    """Return what tells a process from any other that had, or will have, its number."""
    told = _stat(pid)
    return f"{pid}-{told[19].decode()}" if told else ""


def is_halted(pid: int) -> bool:
    """Return whether a process was stopped by a signal."""
    return _stat(pid)[:1] == [b"T"]


def commands(store_id: str) -> list[Command]:
    """Return what runs for a store, its own or its node's file with it."""
    mark, found = f"ONBEAT_STORE={store_id}".encode(), []
    for pid in [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]:
        entries = _of_process(pid, "environ").split(b"\0") if store_id else []
        if any(each.startswith(mark) for each in entries):
            told = dict(each.decode(errors="replace").partition("=")[::2] for each in entries)
            numbers = int(told["ONBEAT_RUN_ID"]), int(told["ONBEAT_ATTEMPT"])
            found.append(Command(identity(pid), *numbers, told["ONBEAT_NODE"]))
    return [each for each in found if each.process]


def end_commands(store_id: str) -> None:
    """Kill what runs for a store."""
    for each in commands(store_id):
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)


class Strays:
    """Commands that go on though no node holds them: their node is dead, or others decided them.

    Those nodes that live have so many seconds to end them, in which nothing else is done to them.
    """

    def __init__(self, database: Database, limit: float) -> None:
        self._database, self._limit = database, limit
        self._ages: dict[Command, float] = {}
        self._looked: float | None = None
        self.found: list[str] = []

    @property
    def are_there(self) -> bool:
        """Whether something is astray that was not found yet: it still may be ended."""
        return any(age < self._limit for age in self._ages.values())

    def look_away(self) -> None:
        """Let time pass that counts for nothing."""
        self._looked = None

    def forget(self) -> None:
        """Begin anew: nobody is there who could end anything."""
        self._ages, self._looked = {}, None

    def look(self) -> None:
        """See what is astray, and for how long it has been."""
        now = time.monotonic()
        if self._looked is not None and now - self._looked < LOOK_EVERY:
            return
        passed = 0.0 if self._looked is None else now - self._looked
        self._looked = now
        astray = self._astray()
        self._ages = {each: self._ages.get(each, -passed) + passed for each in astray}
        for each, age in self._ages.items():
            if age >= self._limit > age - passed:
                self.found.append(f"{each}, astray for {age:.1f} s")

    def _astray(self) -> list[Command]:
        found = commands(self._database.store_id)
        if found and self._database.nodes > 1:
            started = self._database.started()
            return [
                each
                for each in found
                if not each.has_node or (each.run_id, each.attempt) not in started
            ]
        return [each for each in found if not each.has_node]


def _stat(pid: int) -> list[bytes]:
    """Return what /proc tells of a process, from its state on; nothing if it is gone."""
    return _of_process(pid, "stat").rpartition(b")")[2].split()


def _of_process(pid: int, name: str) -> bytes:
    with suppress(OSError):  # it has ended, or is another user's
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
