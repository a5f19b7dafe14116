"""Acknowledged writes survive power loss, on a file system that loses unsynced writes.

The files are real; beside them, this one remembers what each held when it was last synced, and what
was written since. When the power goes, any part of that may have reached the disk, sector by sector.
"""

import asyncio
import random

import apsw
import pytest

from onbeat.core.decide.plan import plan
from onbeat.core.runs.run import Failed, Succeeded
from onbeat.errors import StoreFailed
from onbeat.ports.store import Finished, Node
from onbeat.stores.sqlite import database as sqlite_database
from onbeat.stores.sqlite.store import SqliteStore
from onbeat.testing import ManualClock, a_schedule

BELOW = "unix"  # the file system that really keeps the files
SECTOR = 512
SEEDS = 100
NODE = Node("node-1", "here", frozenset({"command"}))
STATE = [
    "SELECT schedule_id, revision, paused, definition FROM schedules",
    "SELECT * FROM schedule_state",
    "SELECT * FROM due",
    "SELECT * FROM schedule_runs",
    "SELECT * FROM events",
]


class ForgetfulDisk(apsw.VFS):
    """Files whose unsynced writes may be lost. Used by every connection while it is the default."""

    def __init__(self):
        self.synced: dict[str, bytes] = {}
        self.since: dict[str, list[tuple[int, bytes | None]]] = {}  # None: cut off at the offset
        self.syncs_left: int | None = None  # then every sync fails
        super().__init__("forgetful", BELOW, makedefault=True)

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's names
        return _File(self, name, flags)

    def xDelete(self, name, sync_directory):  # noqa: N802
        self.synced.pop(name, None)
        self.since.pop(name, None)
        super().xDelete(name, sync_directory)

    def lose_power(self, rng, folder):
        """Write the files as they may be found afterwards into a folder."""
        for name, content in self.synced.items():
            found = bytearray(content)
            for offset, data in self.since[name]:
                if data is None:
                    if rng.random() < 0.5:
                        del found[offset:]
                    continue
                for at in range(0, len(data), SECTOR):
                    if rng.random() < 0.5:
                        part = data[at : at + SECTOR]
                        found.extend(bytes(max(offset + at + len(part) - len(found), 0)))
                        found[offset + at : offset + at + len(part)] = part
            (folder / name.rsplit("/", 1)[1]).write_bytes(found)


class _File(apsw.VFSFile):
    def __init__(self, disk, name, flags):
        self._disk, self._name = disk, name.filename() if hasattr(name, "filename") else name
        disk.synced.setdefault(self._name, b"")
        disk.since.setdefault(self._name, [])
        super().__init__(BELOW, name, flags)

    def xWrite(self, data, offset):  # noqa: N802
        self._disk.since[self._name].append((offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size):  # noqa: N802
        self._disk.since[self._name].append((size, None))
        super().xTruncate(size)

    def xSync(self, flags):  # noqa: N802
        if self._disk.syncs_left is not None:
            if not self._disk.syncs_left:
                raise apsw.IOError("the disk does not answer")
            self._disk.syncs_left -= 1
        super().xSync(flags)
        self._disk.synced[self._name] = super().xRead(super().xFileSize(), 0)
        self._disk.since[self._name].clear()


@pytest.fixture
def disk():
    found = ForgetfulDisk()
    yield found
    found.unregister()


def played(story):
    return asyncio.run(asyncio.wait_for(story, 60))


async def _live(store, clock, rng, steps, acknowledged):
    """Do what nodes and people do; after each answer, have its effect noted."""
    held = []
    for _ in range(steps):
        clock.advance(rng.choice(["1s", "1m", "20m"]))
        match rng.randrange(5):
            case 0:
                await store.upsert([a_schedule(rng.choice("abc"), every=rng.choice(["1m", "5m"]))])
            case 1:
                slots = rng.randrange(9)
                planned = await store.plan_due(
                    lambda *given: plan(*given[:4], now=given[4]), limit=9, node=NODE, slots=slots
                )
                held += planned.attempts
            case 2:
                held += await store.announce(NODE, await store.claim(NODE, limit=9))
            case 3:
                outcome = rng.choice([Succeeded({"n": 1}), Failed("no")])
                await store.finish([Finished(attempt, outcome, "told") for attempt in held])
                held = []
            case 4:
                await rng.choice([store.pause, store.resume])("a")
        acknowledged()


async def _life_and_death(disk, folder, seed):
    """Play a seed until the power goes; return what was acknowledged, and what is found then."""
    rng, clock = random.Random(seed), ManualClock()
    found = folder / f"{seed}"
    found.mkdir()
    store = await SqliteStore.open(found / "before.db", clock=clock, inline=True)
    await store.register(NODE)
    await store.upsert([a_schedule(name, every="1m") for name in "abc"])
    noted = _state(store)

    def acknowledged():
        nonlocal noted
        noted = _state(store)

    fails = rng.random() < 0.5
    if fails:  # the power goes in the middle of a call, else between two
        disk.syncs_left = rng.randrange(30)
    try:
        await _live(store, clock, rng, rng.randrange(5, 60), acknowledged)
        fails = False
    except StoreFailed:
        pass
    disk.syncs_left = None
    after = found / "after"
    after.mkdir()
    disk.lose_power(rng, after)
    await store.close()
    disk.synced.clear()
    disk.since.clear()
    again = await SqliteStore.open(after / "before.db", clock=clock, inline=True)
    try:
        (intact,) = again._worker._connection.execute("PRAGMA integrity_check").fetchone()
        return fails, noted, _state(again), intact
    finally:
        await again.close()
        disk.synced.clear()
        disk.since.clear()


def _state(store):
    return [store._worker._connection.execute(sql).fetchall() for sql in STATE]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_acknowledged_writes_survive_power_loss(disk, tmp_path, seed):
    cut_short, noted, found, intact = played(_life_and_death(disk, tmp_path, seed))
    assert intact == "ok"
    if cut_short:  # the call that was not answered may have happened, or not
        assert len(found[-1]) - len(noted[-1]) in {0, 1}
        assert found[-1][: len(noted[-1])] == noted[-1]
    else:
        assert found == noted


def test_synchronous_normal_would_lose_writes(disk, tmp_path, monkeypatch):
    """So the test above can fail: with one setting less, most lives lose what was answered."""
    connect = sqlite_database.connect

    def carelessly(path):
        connection = connect(path)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    monkeypatch.setattr("onbeat.stores.sqlite.store.connect", carelessly)
    lost = 0
    for seed in range(20):
        _, noted, found, _ = played(_life_and_death(disk, tmp_path, seed))
        lost += found[-1][: len(noted[-1])] != noted[-1]
    assert lost > 10
