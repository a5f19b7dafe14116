"""Real nodes on real PostgreSQL that are killed, stopped and woken, with the limits that are promised.

The stories happen at the same time, each in a database of its own: most of it is waiting.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from onbeat.stores.postgres.store import PostgresStore
from onbeat.testing import a_schedule
from tests.postgres import shared_server

ROOT = Path(__file__).parents[2]
SOON = 20.0  # seconds: far more than any of it may take
WITNESS = 'echo "$ONBEAT_RUN_ID $ONBEAT_ATTEMPT" >> "$0"'


class Story:
    """A database, its nodes, and a client that observes them."""

    def __init__(self, folder):
        self.folder, self.server = folder, shared_server()
        folder.mkdir()
        self.url = self.server.new_database()
        self.witness = folder / "witness"
        self.witness.touch()
        self._nodes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._nodes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.server.drop_database(self.url)

    def ask(self, call):
        """Ask the store something, as a client."""

        async def client():
            store = await PostgresStore.open(self.url)
            try:
                return await call(store)
            finally:
                await store.close()

        return asyncio.run(client())

    def define(self, then="", **fields):
        """Define a schedule whose command leaves a witness, and then does something."""
        command = ["sh", "-c", f"{WITNESS}; {then}", str(self.witness)]
        schedule = a_schedule("report", run={"command": command}, **fields)
        self.ask(lambda store: store.upsert([schedule]))

    def start(self, grief="none", *, go=True):
        """Start a node; return it with its folder once it is ready."""
        folder = self.folder / f"node-{len(self._nodes)}"
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.nodes.node", self.url, str(folder), grief],
                cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log,
            )  # fmt: skip
        self._nodes.append(process)
        self.until((folder / "ready").exists, f"{grief}: the node is not ready")
        if go:
            (folder / "go").touch()
        return process, folder

    def start_two(self, grief):
        """Start a node that fails beside one that starts then; return it, its folder and the time."""
        _, survivor = self.start(go=False)
        process, victim = self.start(grief)
        self.until((victim / "grief").exists, "the node did not come to grief")
        at = int(self.until((victim / "grief").read_text, "it does not say when"))
        (survivor / "go").touch()
        return process, victim, at

    def until(self, reached, problem):
        limit = time.monotonic() + SOON
        while not (found := reached()):
            assert time.monotonic() < limit, problem
            time.sleep(0.01)
        return found

    def left_over(self):
        """Return the processes that runs of this database have started and that are still there."""

        async def store_id(store):
            return store.store_id

        mark, found = f"ONBEAT_STORE={self.ask(store_id)}".encode(), []
        for each in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended
                found += [each.parent.name] if mark in each.read_bytes().split(b"\0") else []
        return found

    def run_when(self, is_so):
        """Wait until the only run there is is so; return it."""

        async def looks(store):
            limit = time.monotonic() + SOON
            while True:
                rows = await store.runs()
                if rows and is_so(rows[-1]):
                    return rows[-1]
                assert time.monotonic() < limit, f"it does not come to be: {rows}"
                await asyncio.sleep(0.02)

        return self.ask(looks)


def in_a_moment():
    """Return a time that a node has not reached when it is started."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))


def killed_in_a_batch(story):
    story.define(at=in_a_moment())
    *_, killed_at = story.start_two("killed in a batch")
    return story.run_when(lambda row: True).created_at - killed_at


def stopped_in_a_batch(story):
    story.define(at=in_a_moment())
    process, _, stopped_at = story.start_two("stopped in a batch")
    row = story.run_when(lambda row: row.status == "SUCCESS")
    process.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    assert story.run_when(lambda row: True) == row, "woken, it changes nothing"
    assert len(story.witness.read_text().splitlines()) == 1
    return row.created_at - stopped_at


def killed_with_started_runs(story):
    story.define(at=in_a_moment(), then="sleep 60")
    _, survivor = story.start(go=False)
    process, _ = story.start()
    story.run_when(lambda row: row.status == "STARTED")
    story.until(story.witness.read_text, "it was not launched")
    process.kill()
    killed_at = time.time_ns() // 1_000_000
    (survivor / "go").touch()
    row = story.run_when(lambda row: row.finished_at is not None)
    assert (row.status, row.reason) == ("FAILED", "lost")
    assert story.left_over() == [], "what it had launched was ended first"
    return row.finished_at - killed_at


def woken_after_its_lease(story):
    story.define(at=in_a_moment())
    process, victim, stopped_at = story.start_two("stopped before the launch")
    row = story.run_when(lambda row: row.finished_at is not None)
    assert (row.status, row.reason) == ("FAILED", "lost")
    process.send_signal(signal.SIGCONT)
    story.until(
        lambda: "registers again" in (victim / "log").read_text(), "it does not register again"
    )
    story.until(lambda: len(story.ask(lambda store: store.nodes())) == 2, "it is not there again")
    assert story.witness.read_text() == "", "woken, it launches nothing"
    assert story.run_when(lambda row: True) == row, "and changes nothing"
    return row.finished_at - stopped_at


def clocks_that_are_wrong(story):
    story.define(every="1s")
    for grief in ("an hour ahead", "an hour behind"):
        story.start(grief)
    story.until(lambda: len(story.ask(lambda store: store.nodes())) == 2, "they are not up")
    up_since = time.time_ns() // 1_000_000
    time.sleep(4)
    rows = [row for row in story.ask(lambda store: store.runs()) if row.due_at > up_since]
    lateness = [row.created_at - row.due_at for row in rows]
    assert len(rows) >= 3, "they do run"
    assert all(row.started_at >= row.run_at * 1000 for row in rows if row.started_at)
    assert min(lateness) >= 0, "nothing is early"
    return max(lateness)


STORIES = {  # and how long it may take from the grief to the decision, in milliseconds
    killed_in_a_batch: 1_000,
    stopped_in_a_batch: 6_000,
    killed_with_started_runs: 10_000,
    woken_after_its_lease: 10_000,
    clocks_that_are_wrong: 500,
}


def test_failed_node_delays_and_doubles_no_run(tmp_path):
    def play(story_of):
        with Story(tmp_path / story_of.__name__) as story:
            return story_of(story)

    with ThreadPoolExecutor(len(STORIES)) as threads:
        took = dict(zip(STORIES, threads.map(play, STORIES), strict=True))
    told = {story_of.__name__: took[story_of] for story_of in STORIES}
    print(told)  # shown by -s
    assert all(0 <= took[story_of] <= STORIES[story_of] for story_of in STORIES), told
